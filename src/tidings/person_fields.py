"""Fields that a contract of people has beside its own, so that no right of a person waits for a column of the operator's.

    tidings_restricted, tidings_objected, …    what is known of the person: makes an event of the right's own type
    tidings_email, tidings_sms, …              consent to marketing by a channel for which the contract has no field
    tidings_sale, tidings_profiling, …         consent to a purpose for which it has none

Only messages of the source `rights` are read with them: a column of that name in somebody's table says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidings.contract import Consent, Contract, FieldRule
from tidings.gate.facts import CHANNELS, PURPOSES

SOURCE = "rights"
PREFIX = "tidings_"
# What is said of the person → the type of the event that tells of it.
TOLD_AS: Mapping[str, str] = {
    "restricted": "restriction",
    "objected": "objection",
    "no_marketing": "objection",
    "no_automated": "automated_decision",
    "limited": "limit_sensitive",
}


def own_field(word: str) -> str:
    """The field that says this of a person in every contract."""
    return f"{PREFIX}{word}"


def spoken(contract: Contract) -> Contract:
    """The contract as requests of people speak it."""
    return contract.model_copy(update={"fields": {**contract.fields, **dict(_added(contract))}})


def _added(contract: Contract) -> Iterator[tuple[str, FieldRule]]:
    for word, kind in TOLD_AS.items():
        yield own_field(word), FieldRule.model_validate({"type": kind, "class": "internal", "person": word})
    channels = {consent.channel for _, consent in contract.consents if consent.class_ == "marketing"}
    purposes = {consent.purpose for _, consent in contract.consents}
    for channel in CHANNELS:
        if channel not in channels:
            yield own_field(channel), _agreed(Consent(channel=channel))
    for purpose in PURPOSES:
        if purpose not in purposes:
            said = {"class": "processing", "channel": purpose, "purpose": purpose}
            yield own_field(purpose), _agreed(Consent.model_validate(said))


def _agreed(consent: Consent) -> FieldRule:
    return FieldRule.model_validate({"type": "consent", "class": "internal", "consent": consent})
