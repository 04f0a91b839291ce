"""Whether what must be kept of erased people has somewhere to go: counsel's key where there are holds, and recipients that exist."""

from __future__ import annotations

from collections.abc import Iterator

from tidings.errors import Problem, Refused
from tidings.gate.loading import catalogue_statutes
from tidings.gate.retention import OWN
from tidings.gate.retention_reader import read_retention
from tidings.rights.holdstore import counsel_key
from tidings.settings import Settings


def hold_problems(settings: Settings) -> Iterator[Problem]:
    """For `tidings check`. A run without the key still asks two people before anything that is held goes."""
    rights, page = settings.operator.rights, settings.documents["tidings.yaml"]
    if rights is None:
        return
    if rights.holds is None:
        if why := _kept(settings):
            expected = "`rights: {holds: {counsel_key: file:NAME}}`, the public key of whoever opens held records"
            now = "Ask counsel for the key; until then two people approve each erasure of somebody who is held."
            yield page.problem(("rights",), "no_counsel_key", why, expected, now)
        return
    try:
        counsel_key(settings.secret(rights.holds.counsel_key).reveal_bytes())
    except Refused as error:
        place = ("rights", "holds", "counsel_key")
        yield page.problem(place, error.code, error.found, error.expected, error.what_now)
    known = {*settings.subscribers, *(one.name for one in rights.by_hand)}
    known |= {f"{one.name}/{name}" for one in settings.subscribers.values() for name in one.onward}
    for at, name in enumerate(rights.holds.recipients):
        if name not in known:
            expected = "a subscriber, a name of `by_hand`, or SUBSCRIBER/NAME of an `onward`"
            yield page.problem(
                ("rights", "holds", "recipients", at), "hold_recipient", name, expected, "Mend the name."
            )


def _kept(settings: Settings) -> str:
    """What of the policy keeps records that an erasure would destroy; empty when nothing does."""
    statutes, _ = catalogue_statutes(settings)
    retention, _ = read_retention(settings.policies.documents, (), statutes)
    laws = {
        duty.name
        for name, one in retention.schedules.items()
        if name != "proof"
        for duty in one.duties
        if one.named and duty.name != OWN
    }
    said = [f"{len(retention.holds)} holds of the policy"] if retention.holds else []
    return " and ".join([*said, *([f"records kept by {', '.join(sorted(laws))}"] if laws else [])])
