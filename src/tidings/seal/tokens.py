"""Payment tokens in columns: which fields hold one, and how an attested one that looks like a card keeps its digits.

A token is told by the field the contract declares, and by the vendor's format. While the rest of the message is masked, the digits of
an attested token are hidden behind characters that no text has. What breaks this: an attestation that is not true. The same field name
deeper in the record is taken for the declared one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidings.contract import Contract
from tidings.tokens import vendors

_DIGITS = "0123456789"
_SHIELD = "".join(map(chr, range(0xFDD0, 0xFDDA)))  # noncharacters of Unicode
_BLANKED = "\ufffd" * len(_SHIELD)


def token_pattern(contract: Contract, attested: Collection[str]) -> str:
    """Where canonical text holds an attested token of this contract that may look like a card; empty when nowhere."""
    places = []
    for path, rule in contract.fields.items():
        if rule.token and rule.token in attested and (formats := "|".join(vendors()[rule.token].card_like)):
            name = rf'"\Q{path.rpartition(".")[2]}\E":'
            places += [rf'(?<={name}")(?:{formats})(?=")', rf"(?<={name})(?:{formats})(?=[,}}])"]
    return "|".join(places)


def shielded(text: Column, entity: Column, patterns: Mapping[str, str]) -> Column:
    """The text with attested tokens hidden from the look for cards; `patterns` by the vendor's table."""
    made = text
    for table, pattern in patterns.items():
        clean = F.translate(text, _SHIELD, _BLANKED)
        found = F.transform(
            F.regexp_extract_all(clean, F.lit(pattern), F.lit(0)), lambda token: F.translate(token, _DIGITS, _SHIELD)
        )
        outer = F.split(F.regexp_replace(F.translate(clean, "\uffff", "\ufffd"), pattern, "\uffff"), "\uffff", -1)
        whole = F.array_join(F.zip_with(outer, found, lambda a, b: F.concat(a, F.coalesce(b, F.lit("")))), "")
        made = F.when(entity == table, whole).otherwise(made)
    return made


def unshielded(text: Column, patterns: Mapping[str, str]) -> Column:
    return F.translate(text, _SHIELD, _DIGITS) if patterns else text


def token_flags(fields: Column, contracts: Mapping[str, Contract], attested: Collection[str]) -> dict[str, Column]:
    """Words for an event's flags: it holds a token, its vendor is attested, or what stands in a token's field is none."""
    said: dict[str, list[Column]] = {"token": [], "token_attested": [], "not_a_token": []}
    for name, contract in contracts.items():
        declared = {path: rule.token for path, rule in contract.fields.items() if rule.token}
        if not declared:
            continue
        mine = F.col("contract") == name
        values = {path: F.try_element_at(fields, F.lit(path)) for path in declared}
        fits = {path: values[path].rlike(vendors()[vendor].whole) for path, vendor in declared.items()}
        vouched = [fits[path] for path, vendor in declared.items() if vendor in attested]
        said["token"].append(mine & _any(list(fits.values())))
        said["not_a_token"].append(mine & _any([~fit for fit in fits.values()]))
        trusted = _any(vouched) & ~_any([fits[path] for path, vendor in declared.items() if vendor not in attested])
        said["token_attested"].append(mine & trusted)
    return {word: _any(tests) for word, tests in said.items() if tests}


def _any(tests: Collection[Column]) -> Column:
    """Whether one of these holds; a field that is absent says nothing."""
    found = F.lit(False)
    for test in tests:
        found = found | F.coalesce(test, F.lit(False))
    return found
