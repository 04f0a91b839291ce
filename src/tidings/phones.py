"""Telephone numbers in one form: `+` and digits (E.164), with the extension behind it, from whatever way they were written.

`stages.normal` says the same in columns; this is for one number in hand. What cannot be a number of its country keeps its
digits as told, and what holds other letters is no number: guessing would make two people's numbers one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from tidings import yaml_lines

PREFIX = r"^(?i:tel:)"
# Digits, then a word for "extension", then at most seven digits; `;ext=` is RFC 3966's way.
EXTENSION = r"^(.*[0-9)])\s*[,;]?\s*(?i:ext=|extension|extn|ext|x|#)[\s.:=]*([0-9]{1,7})\s*$"
PARAMETERS = r";.*$"
LETTERS = r"\p{L}"
# Already in its form. No zero among the first four digits, so no trunk prefix can hide behind the calling code.
READY = r"^\+[1-9]{4}[0-9]{3,11}$"
INTERNATIONAL = r"^[^0-9]*\+"
ABROAD = r"^[^0-9]*(\+|00)"
OPTIONAL_TRUNK = r"\(0\)"
SHORTEST = 7  # digits of the shortest number there is, with its calling code
# Other digits that people type: fullwidth, Arabic-Indic, Persian; and the fullwidth plus.
TYPED = "０１２３４５６７８９٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹＋"
MEANT = "0123456789" * 3 + "+"


@dataclass(frozen=True)
class Plan:
    """How numbers are written in one country."""

    code: str
    trunk: str
    out: str
    short: int
    long: int

    def as_text(self) -> str:
        return f"{self.code}|{self.trunk}|{self.out}|{self.short}|{self.long}"


@cache
def plans() -> dict[str, Plan]:
    """Country → its plan, from the catalogue."""
    text = files("tidings").joinpath("catalog/phones/numbers.yaml").read_text(encoding="utf-8")
    document, problems = yaml_lines.parse(text, "catalog/phones/numbers.yaml")
    assert document is not None, problems
    return {
        name: Plan(said["code"], said.get("trunk", ""), said.get("out", "00"), *said["digits"])
        for name, said in document.data.items()
    }


def country_of(place: str) -> str:
    """The country of a jurisdiction: `us-ca` → `US`."""
    return place.strip().upper().partition("-")[0]


def e164(text: str, country: str = "") -> str:
    """One number in hand; the country is where it would be dialled without its calling code."""
    told = re.sub(PREFIX, "", text.translate(str.maketrans(TYPED, MEANT)).strip())
    found = re.match(EXTENSION, told)
    body, extension = (found[1], found[2]) if found else (told, "")
    body = re.sub(PARAMETERS, "", body)
    if re.search(r"[^\W\d_]", body):
        return " ".join(text.lower().split())
    digits = re.sub(r"[^0-9]", "", body.replace("(0)", "") if re.match(ABROAD, body) else body)
    number = _number(digits, bool(re.match(INTERNATIONAL, body)), plans().get(country_of(country)))
    return f"{number};ext={extension}" if number and extension else number


def _number(digits: str, plus: bool, plan: Plan | None) -> str:
    if plus:
        return f"+{_untrunked(digits, plan)}" if digits else ""
    for out in (plan.out, "00") if plan else ("00",):
        if digits.startswith(out) and len(digits) >= len(out) + SHORTEST:
            return f"+{_untrunked(digits[len(out) :], plan)}"
    if plan is None:
        return digits
    if digits.startswith(plan.code) and len(digits) > plan.long:
        return f"+{digits}"
    drops = plan.trunk and digits.startswith(plan.trunk) and (plan.trunk[0] == "0" or len(digits) > plan.long)
    rest = digits[len(plan.trunk) :] if drops else digits
    return f"+{plan.code}{rest}" if plan.short <= len(rest) <= plan.long else digits


def _untrunked(digits: str, plan: Plan | None) -> str:
    """+44 020 … is how people write +44 20 …; only a trunk that no number begins with can be told apart."""
    if plan is None or plan.trunk[:1] != "0" or not digits.startswith(plan.code + plan.trunk):
        return digits
    return plan.code + digits[len(plan.code) + len(plan.trunk) :]
