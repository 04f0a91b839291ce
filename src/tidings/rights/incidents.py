"""Security incidents: from awareness to the last notice, over the steps, clocks and sweeper of requests.

    open (received) → assess (review: nothing to notify; working: notices are due) → notify, once per law → close (fulfilled)

An incident is a request of the kind `incident` whose receipt is the moment of awareness. Its clocks are the breach laws of the places of
those concerned; hours are not moved by weekends, and the two readings that lengthen 72 hours are off unless counsel chose them
(`clocks:` with `readings:` in a policy document). A regulator's notice is a person's task, met by evidence. A notice that comes late
needs its reason. Nothing closes while a notice is owed. What breaks the guarantee: a moment of awareness that is not the true one.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tidings.errors import Refused
from tidings.gate.calendars import places
from tidings.rights.asks import Word
from tidings.rights.book import Request
from tidings.rights.clocks import PROMISE, Laws, RightClock, clocks_of, due_of, shown
from tidings.rights.drafts import Draft
from tidings.rights.sweeper import met

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.store import Store

KIND = "incident"
RISKS = ("none", "risk", "high")
ACTS = ("open", "assess", "notify", "close")


def opened(word: Word, laws: Laws) -> tuple[Request, Draft]:
    """The incident as it is first written, and its first step."""
    says = word.says
    first, *more = says["places"].split(",")
    request = Request(word.request, KIND, "cli", moment(says["aware"]), jurisdiction=first)
    kept = {name: says[name] for name in ("recipients", "since", "until", "people", "events") if says.get(name)}
    request.details |= {"jurisdictions": ",".join(more), **kept}
    due = due_of(request, laws, request.opened)
    return request, Draft(request.id, "received", word.reason, word.by, dict(request.details), "received", due)


def checked(says: Mapping[str, str], now: datetime) -> None:
    """What an incident is opened with, before anything is put down."""
    for place in says["places"].split(","):
        if place not in places():
            raise Refused("unknown_place", repr(place[:10]), "places such as US-CA or DE", "Mend --place.")
    if moment(says["aware"]) > now:
        raise Refused("moment", "an awareness that is still to come", "a moment that has passed", "Mend --aware.")


def fresh() -> str:
    return f"incident-{secrets.token_hex(8)}"


def answer(request: Request, word: Word, laws: Laws, now: datetime) -> Draft:
    """The step that a word makes of an incident that is open."""
    act = word.says.get("what", "")
    if not request.open:
        return _declined(word, "The incident is closed.")
    steps = {"assess": _assessed, "notify": _notified, "close": _closed}
    return steps[act](request, word, laws, now) if act in steps else _declined(word, f"One of {', '.join(ACTS)}.")


def _assessed(request: Request, word: Word, laws: Laws, now: datetime) -> Draft:
    risk = word.says.get("risk", "")
    if risk not in RISKS or not word.reason.strip():
        return _declined(word, f"An assessment says a risk ({', '.join(RISKS)}) and why.")
    if risk == "none":
        return Draft(request.id, "not_notifiable", word.reason, word.by, {"risk": risk}, "review")
    return Draft(request.id, "assessed", word.reason, word.by, {"risk": risk}, "working")


def _notified(request: Request, word: Word, laws: Laws, now: datetime) -> Draft:
    name, evidence = word.says.get("clock", ""), word.evidence
    clock = next((one for one in clocks_of(request, laws, now) if one.statute == name), None)
    if clock is None:
        return _declined(word, "No clock of this incident has that name.")
    if not evidence:
        return _declined(word, "A notice needs evidence: the digest of what was sent or of its receipt.")
    at = moment(word.says["sent"]) if word.says.get("sent") else now
    if not request.opened <= at <= now:
        return _declined(word, "A notice was sent after awareness and before now.")
    if clock.due and at > clock.due and not word.reason.strip():
        return _declined(word, f"The notice was due {shown(clock.due)}; one that comes late says why.")
    said = {
        "clock": name,
        "evidence": evidence,
        "sent": str(shown(at)),
        "late": str(bool(clock.due and at > clock.due)),
    }
    return Draft(request.id, "notified", word.reason, word.by, said)


def _closed(request: Request, word: Word, laws: Laws, now: datetime) -> Draft:
    owed = [clock.statute for clock in owed_notices(request, laws, now)]
    if owed:
        return _declined(word, f"Notices are owed: {', '.join(owed)}.")
    if not (request.happened("assessed") or request.happened("not_notifiable")):
        return _declined(word, "It was not assessed.")
    return Draft(request.id, "closed", word.reason, word.by, state="fulfilled")


def owed_notices(request: Request, laws: Laws, now: datetime) -> list[RightClock]:
    """Notices still owed. A law without a number binds towards people only where the risk is high (GDPR Art. 34)."""
    assessed = [step for step in request.steps if step.what in ("assessed", "not_notifiable")]
    risk = assessed[-1].details.get("risk", "") if assessed else ""
    found = [one for one in clocks_of(request, laws, now) if one.statute != PROMISE and met(request, one) is None]
    return [one for one in found if one.due or one.duty != "people" or risk == "high"]


def _declined(word: Word, why: str) -> Draft:
    return Draft(word.request, "declined", why, word.by, {"action": f"incident {word.says.get('what', '')}".strip()})


def moment(text: str) -> datetime:
    """A time with its offset; an hour without a place is not known to the hour."""
    try:
        found = datetime.fromisoformat(text)
        found = found.astimezone(UTC) if found.tzinfo else datetime.min
    except (ValueError, OverflowError):
        found = datetime.min
    if found.tzinfo is None:
        raise Refused("moment", repr(text[:40]), "a time with its offset, such as 2026-11-16T09:00:00Z", "Mend it.")
    return found


@dataclass(frozen=True)
class Concerned:
    """Whose data the recipients received: how many events and people, and how many of those events are of nobody any more."""

    events: int
    people: frozenset[bytes]
    erased: int

    def as_dict(self) -> dict[str, int]:
        return {"events": self.events, "people": len(self.people), "erased_events": self.erased}


def concerned(
    settings: Settings, store: Store, recipients: Sequence[str], since: datetime, until: datetime
) -> Concerned:
    """By what those recipients acknowledged in the interval; both its ends count. People are counted by tag, never named."""
    from tidings.seal.keyfiles import KeyFiles

    events = set(_acknowledged(store, recipients, since, until))
    rows = [row for row in _journal(store, until) if row["event_id"] in events]
    files = KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek"))
    named = files.people({row["key_file"] for row in rows if row["key_file"]}).to_pylist() if rows else []
    tags = {row["kid"]: row["tag"] for row in named}
    gone = sum(row["kid"] not in tags for row in rows)
    return Concerned(len(events), frozenset(tags[row["kid"]] for row in rows if row["kid"] in tags), gone)


def _acknowledged(store: Store, recipients: Sequence[str], since: datetime, until: datetime) -> Iterator[str]:
    import pyarrow.dataset as ds

    inside = (ds.field("finished") >= since) & (ds.field("finished") <= until)
    rows = store.arrow("attempts", ["members"], filter=inside & ds.field("subscriber").isin(list(recipients)))
    for row in rows.to_pylist():
        yield from (one["event_id"] for one in row["members"] or () if one["final"] == "acknowledged")


def _journal(store: Store, until: datetime) -> Iterator[dict[str, Any]]:
    import pyarrow.dataset as ds

    rows = store.arrow("journal", ["event_id", "kid", "key_file"], filter=ds.field("recorded") <= until)
    yield from rows.to_pylist()
