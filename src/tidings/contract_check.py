"""What a contract says that does not fit together: each problem with its line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from tidings.contract import CHANGE_TYPES, LIFE_CYCLE, SIGNAL_TYPES, Consent, Contract, FieldRule
from tidings.errors import Problem
from tidings.phones import plans
from tidings.reading import did_you_mean, listed, shown
from tidings.tokens import vendors
from tidings.yaml_lines import Document, Place


def contract_problems(page: Document, contract: Contract) -> Iterator[Problem]:
    for name in contract.types:
        if name in (*CHANGE_TYPES, *SIGNAL_TYPES, *LIFE_CYCLE, "default"):
            yield page.problem(
                ("types", name), "duplicate_id", "a name Tidings already uses", "a new name", "Rename it."
            )
    for path, rule in contract.fields.items():
        yield from _field(page, contract, path, rule)
    for path in contract.identifiers:
        yield from known_name(page, ("identifiers", path), path, {*contract.fields, *contract.key}, "unknown_field")
    yield from _consents(page, contract)
    yield from _ignored(page, contract)
    yield from _signals(page, contract)


def _field(page: Document, contract: Contract, path: str, rule: FieldRule) -> Iterator[Problem]:
    place = ("fields", path)
    if rule.type is not None:
        yield from known_name(page, (*place, "type"), rule.type, {*CHANGE_TYPES, *contract.types}, "unknown_type")
    if (rule.type == "consent") != (rule.consent is not None):
        says = ("one without the other", "`type: consent` and `consent:` together", "Add the missing one.")
        yield page.problem(place, "missing_key", *says)
    if rule.consent is not None and set(rule.consent.granted) & set(rule.consent.withdrawn):
        says = ("a value that is both granted and withdrawn", "one meaning per value", "Remove it from one list.")
        yield page.problem((*place, "consent"), "wrong_value", *says)
    if rule.token is not None:
        yield from known_name(page, (*place, "token"), rule.token, vendors(), "unknown_vendor")
        if rule.normalise is not None:
            says = ("a token that is compared in another form", "`token` without `normalise`", "Remove `normalise`.")
            yield page.problem((*place, "normalise"), "wrong_value", *says)
    for key in ("country", "country_field"):
        if getattr(rule, key) is not None and rule.normalise != "phone":
            says = ("a country without a phone", f"`{key}` beside `normalise: phone`", "Remove it.")
            yield page.problem((*place, key), "unknown_key", *says)
    if rule.country is not None and rule.country_field is not None:
        says = ("two countries", "country or country_field", "Remove one of them.")
        yield page.problem((*place, "country"), "wrong_value", *says)
    if rule.country is not None and rule.country not in plans():
        says = (rule.country, "a country whose numbers are known", "Name another, or leave it out.")
        yield page.problem((*place, "country"), "wrong_value", *says)


def _consents(page: Document, contract: Contract) -> Iterator[Problem]:
    """Two fields that say the same consent would overwrite each other."""

    def meaning(consent: Consent) -> tuple[str, str, str]:
        return consent.class_, consent.channel, consent.purpose

    times = Counter(meaning(consent) for _, consent in contract.consents)
    for path, consent in contract.consents:
        if times[meaning(consent)] > 1:
            says = ("a consent that another field says too", "each class, channel and purpose once", "Change one.")
            yield page.problem(("fields", path, "consent"), "duplicate_id", *says)


def _ignored(page: Document, contract: Contract) -> Iterator[Problem]:
    for at, pattern in enumerate(contract.ignore):
        only = contract.model_copy(update={"ignore": (pattern,)})
        keys = [path for path in (*contract.key, *contract.identifiers) if only.ignored(path)]
        meant = [
            path
            for path, rule in contract.fields.items()
            if only.ignored(path) and (rule.type or rule.lifecycle or rule.consent)
        ]
        if keys or meant:
            says = (
                f"{listed({*keys, *meant})}, which means something",
                "technical fields only",
                "Narrow it, or take the meaning away.",
            )
            yield page.problem(("ignore", at), "wrong_value", *says)


def _signals(page: Document, contract: Contract) -> Iterator[Problem]:
    fields = {*contract.fields, *contract.key, *contract.ignore}
    types = {*CHANGE_TYPES, *SIGNAL_TYPES, *contract.types} - {"consent"}  # a consent says who, where and for what
    for name, signal in contract.signals.items():
        place: Place = ("signals", name)
        yield from known_name(page, (*place, "type"), signal.type, types, "unknown_type")
        several = len(signal.conditions) > 1 or "all" in signal.when.model_fields_set
        for at, condition in enumerate(signal.conditions):
            where: Place = (*place, "when", "all", at, "field") if several else (*place, "when", "field")
            yield from known_name(page, where, condition.field, fields, "unknown_field")


def known_name(page: Document, place: Place, name: str, names: Iterable[str], code: str) -> Iterator[Problem]:
    """A problem when `name` is none of `names`."""
    if name not in (known := set(names)):
        what_now = f"Name one that exists.{did_you_mean(name, known)}"
        yield page.problem(place, code, shown(place, name), f"one of {listed(known)}", what_now)
