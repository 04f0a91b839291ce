"""May this person be contacted now? The policy's answer from what is known of the person, looked up by key. No JVM.

To contact somebody on a channel is, to the gate, to hand the address of that channel to whoever uses it. The question is asked of each
configured subscriber that has the channel and the purpose; where there is none, of one that is described, with a data processing
agreement and where the person is. Only the consent that was asked about counts for contact: of the other channels' nothing is taken.

What breaks the answer: a change of consent that no source has reported yet, and a policy that says nothing of the channel. A consent
that was withdrawn on this very channel is a no whatever the policy says, and so is an hour at which the channel is closed by law.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tidings.gate.categories import facts_of
from tidings.gate.decide import Decision, Policy, Recipient, decide
from tidings.gate.facts import CHANNELS, ROLES, UNKNOWN, Value, filed, known_facts
from tidings.gate.hours import closed, opens
from tidings.gate.loading import described, operator_facts
from tidings.gate.suppose import Supposed
from tidings.report.people import tags_of
from tidings.seal.keyfiles import KeyFiles
from tidings.settings import Settings
from tidings.store import Store

# Channel → the change type of the address that is used there.
ADDRESS = {"email": "email", "sms": "phone", "phone": "phone", "post": "address", "push": "account", "ads": "segment"}
_CONTACT = tuple(channel for channel in CHANNELS if channel != "ads")  # a no to advertising is no matter of one channel
_TRANSACTIONAL = ("transactional", "service", "contract", "security")
_ANSWER = {"allow": "yes", "deny": "no", "defer": "unknown"}
_WORST = ("yes", "unknown", "no")


def may_contact(
    settings: Settings, store: Store, policy: Policy, asked: Mapping[str, str], at: datetime | None = None
) -> dict[str, Any]:
    """`asked` says subject, channel and purpose; the strictest answer of all records that the subject names counts."""
    tags = tags_of(settings, store, asked["subject"])
    entity = asked["subject"].partition(":")[0]
    states = {tag: state for tag in tags if (state := _state(settings, store, tag, at)) is not None}
    if not states:
        return _answer("unknown", "nobody of this name is known here") | {"recipients": []}
    kept = entity if entity in settings.entities else _holder(settings)
    told = [_ask(settings, policy, asked, kept, rows, at or datetime.now(UTC)) for rows in states.values()]
    return max(told, key=lambda one: _WORST.index(one["may"]))


def _state(settings: Settings, store: Store, tag: bytes, at: datetime | None) -> list[dict[str, Any]] | None:
    """What was said of a person, oldest first; None for somebody nobody has heard of, or who was erased."""
    rows = store.lookup("subjects", [tag]).sort_by("version").to_pylist() if store.files("subjects") else []
    files = KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek"))
    if not files.of([tag]):
        return None
    upto = None if at is None else f"{int(at.timestamp() * 1000):013d}~"
    return [row for row in rows if upto is None or row["version"] <= upto]


def _holder(settings: Settings) -> str:
    """The contract that people are kept under."""
    return next(
        (name for name, one in settings.entities.items() if one.kind == "customer"), next(iter(settings.entities))
    )


def _ask(
    settings: Settings,
    policy: Policy,
    asked: Mapping[str, str],
    entity: str,
    rows: Sequence[Mapping[str, Any]],
    at: datetime,
) -> dict[str, Any]:
    """The policy's answer; a withdrawal on this very channel and the hour of the day stand above it."""
    channel, selling = asked["channel"], asked["purpose"] not in _TRANSACTIONAL
    states = dict(rows[-1]["consents"] or ()) if rows else {}
    place = rows[-1]["jurisdiction"] if rows and rows[-1]["jurisdiction"] else settings.jurisdiction
    facts = _facts(settings, asked, entity, states) | {"jurisdiction": place}
    decisions = [decide(policy, facts, one) for one in _recipients(policy, asked, entity, place)]
    best = min(decisions, key=lambda one: _WORST.index(_ANSWER[one.outcome]))
    said = states.get(filed(f"consent_{channel}"), UNKNOWN)
    known = {
        "consent": said,
        "since": _since(rows, filed(f"consent_{channel}")),
        "jurisdiction": place,
        "recipients": [_told(one) for one in decisions],
    }
    answer = _answer(_ANSWER[best.outcome], "; ".join(best.reasons), best)
    if answer["may"] == "yes" and selling and said == "withdrawn":
        answer |= {"may": "no", "reason": f"the person withdrew their consent for {channel}"}
    if answer["may"] == "yes" and selling and (law := closed(place, channel, at)):
        then = opens(place, channel, at).isoformat(timespec="minutes")
        answer |= {
            "may": "no",
            "reason": f"not at this hour where the person is; again from {then}",
            "hours": dict(law),
        }
    return answer | known


def _facts(settings: Settings, asked: Mapping[str, str], entity: str, states: Mapping[str, str]) -> dict[str, Any]:
    """The situation of handing over this channel's address of this person."""
    change, channel = ADDRESS[asked["channel"]], asked["channel"]
    known: dict[str, Value] = known_facts(states)
    if channel in _CONTACT:
        own = known.get(f"consent_{channel}")
        known = {name: value for name, value in known.items() if name not in {f"consent_{one}" for one in _CONTACT}}
        known |= {f"consent_{one}": own for one in _CONTACT} if own is not None else {}
    facts: dict[str, Any] = {
        "change_type": change,
        "operation": "update",
        "entity": entity,
        "jurisdiction": settings.jurisdiction,
    }
    listed = operator_facts(settings) | {"test_subject": asked["subject"] in settings.test_mode.subjects}
    contract = settings.entities[entity]
    said = facts_of(contract, change)
    return facts | listed | said | {"lawful_basis": said["lawful_basis"] or contract.lawful_basis} | known


def _recipients(policy: Policy, asked: Mapping[str, str], entity: str, place: str) -> list[Recipient]:
    """The subscribers that contact people so, narrowed to the question; one that is described where there is none."""
    channel, purpose = asked["channel"], asked["purpose"]
    narrow = {"channels": (channel,), "purposes": (purpose,)}
    found = [
        Supposed.of(one, narrow)
        for one in policy.recipients
        if one.holds(entity) and channel in _many(one, "channels") and purpose in _many(one, "purposes")
    ]
    role = purpose if purpose in ROLES else "service" if purpose in _TRANSACTIONAL else "marketing"
    whoever = {"subscriber": "anybody", "role": role, "region": place, "dpa": True}
    return list(found) or [Supposed.of(described(whoever), narrow | {"approved": True})]


def _many(recipient: Recipient, name: str) -> tuple[str, ...]:
    said = recipient.terms.get(name)
    return said if isinstance(said, tuple) else ()


def _since(rows: Sequence[Mapping[str, Any]], word: str) -> str | None:
    """Since when the consent is as it is, as far back as the table remembers."""
    since = None
    for row in rows:
        said = dict(row["consents"] or ()).get(word)
        if since is None or since[0] != said:
            since = (said, row["version"])
    if since is None or since[0] is None:
        return None
    return datetime.fromtimestamp(int(since[1].partition("-")[0]) / 1000, UTC).isoformat(timespec="seconds")


def _answer(word: str, reason: str, decision: Decision | None = None) -> dict[str, Any]:
    return {
        "may": word,
        "reason": reason,
        "rules": list(decision.rules) if decision else [],
        "laws": list(decision.statutes) if decision else [],
        "since": None,
    }


def _told(decision: Decision) -> dict[str, Any]:
    return {"subscriber": decision.subscriber, "outcome": decision.outcome, "reasons": list(decision.reasons)}
