"""What a certificate claims, read off ledger entries and law rows and nothing else. Pure: who checks it computes the same claims again.

A request is certified as fulfilled only when its last step says so and each recipient acknowledged with proof (A2 or stronger, or a person
with evidence), was outranked by something newer, or was excepted by two different people. Everything else is an interim statement, or,
when the request was refused or taken back, a closing statement; neither is called a certificate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tidings.errors import Damaged
from tidings.rights.asks import KINDS, same_name
from tidings.rights.attested import Leaf, parts_root
from tidings.rights.book import FINAL
from tidings.rights.certificate_laws import Rows, Told, bindings, reckoned

FORMAT = "tidings-certificate/1"
CERTIFICATE, INTERIM, CLOSING = "certificate", "interim statement", "closing statement"
STEPS = ("rights_transition", "erased")
PROVES = ("A2", "A3", "A4")
OUTRANKED = ("superseded", "erased")  # something newer of the same person goes to this recipient instead
EXCEPTING = ("exception_asked", "excepted")
EXTENDING = ("extend_asked", "extended")


@dataclass(frozen=True)
class Shown:
    """One entry of the ledger as the archive numbers it; `outcome` is the event's own in a call."""

    number: int
    values: Mapping[str, Any]
    event: str = ""
    outcome: str = ""


@dataclass(frozen=True)
class Evidence:
    """Everything a certificate rests on."""

    origin: str
    request: str
    entries: tuple[Shown, ...]
    parts: Mapping[str, Sequence[Leaf]]  # step → the recipients it named
    laws: Rows
    steps: list[Shown] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        mine = [one for one in self.entries if one.values["kind"] in STEPS]
        self.steps.extend(sorted(mine, key=lambda one: int(one.values["step"])))


def claims(evidence: Evidence) -> dict[str, Any]:
    """The whole of certificate.json."""
    _sound(evidence)
    last = evidence.steps[-1].values
    ended = _ended(evidence)
    recipients = list(_recipients(evidence))
    missing = list(_missing(evidence, recipients))
    told = told_of(evidence)
    return {
        "format": FORMAT,
        "document": CERTIFICATE if not missing else (CLOSING if last["state"] in FINAL[1:] else INTERIM),
        "ledger": evidence.origin,
        "request": evidence.request,
        "asked": _asked(evidence),
        "standing": {"state": last["state"], "as_of": last["timestamp"], "ended": ended, "missing": missing},
        "deadline": _deadline(evidence, told),
        "clocks": reckoned(evidence.laws, told),
        "pauses": list(told.pauses),
        "extension": _extension(evidence),
        "recipients": recipients,
        "erasure": _erasure(evidence),
        "letters": [_letter(one) for one in evidence.steps if one.values["what"].startswith("letter:")],
        "steps": [_step(one) for one in evidence.steps],
    }


def told_of(evidence: Evidence) -> Told:
    said = _ended(evidence)
    ended = datetime.fromisoformat(said) if said else None
    letter = next(iter(_happened(evidence, "letter:extension")), None)
    return Told(tuple(_pauses(evidence)), datetime.fromisoformat(letter.values["timestamp"]) if letter else None, ended)


def _ended(evidence: Evidence) -> str:
    """When it came to its end; steps after that (a letter, a hold that is over years later) do not move it."""
    found = ""
    for one in reversed(evidence.steps):
        if one.values["state"] not in FINAL:
            break
        found = str(one.values["timestamp"])
    return found


def _sound(evidence: Evidence) -> None:
    """Steps of one request, none left out, each where the one before it ended; recipients as they were attested."""
    if not evidence.steps:
        raise _contradicted("no step of a request", "every step from the first on")
    numbers = [one.values["step"] for one in evidence.steps]
    if numbers[0] not in (0, 1) or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise _contradicted("steps that are missing or come twice", "every step from the first on")
    state = ""
    for one in evidence.steps:
        values = one.values
        if values["request"] != evidence.request:
            raise _contradicted(f"entry {one.number}, which speaks of another request", "one request")
        if state and values["previous_state"] != state:
            raise _contradicted(
                f"step {values['step']}, which begins where no step ended", "steps that follow each other"
            )
        state = values["state"]
        leaves = evidence.parts.get(str(values["step"]), ())
        if len(leaves) != values.get("parts_count", 0) or (leaves and parts_root(leaves) != values["parts_root"]):
            raise _contradicted(f"other recipients than step {values['step']} attests", "the same")
    named = {part[2] for many in evidence.parts.values() for part in many}
    for one in evidence.entries:
        if one.values["kind"] not in STEPS and one.event not in named:
            raise _contradicted(
                f"entry {one.number}, which belongs to no event of this request", "events of this request"
            )


def _asked(evidence: Evidence) -> dict[str, str]:
    first = evidence.steps[0].values
    said = {name: str(value) for one in evidence.steps for name, value in one.values.get("asked", {}).items()}
    named = first["right"]
    scope = next((one.values["details"]["scope"] for one in evidence.steps if _detail(one, "scope")), "")
    return said | {"kind": named, "meaning": KINDS.get(named, ("", ""))[0], "scope": scope}


def _deadline(evidence: Evidence, told: Told) -> dict[str, str]:
    """The attested deadline, and whether it is no later than the law rows leave."""
    attested = [one.values["deadline"] for one in evidence.steps if one.values.get("deadline")]
    ends = bindings(evidence.laws, told)
    if not attested or not ends:
        return {"attested": attested[-1] if attested else "", "fits": "nothing to compare"}
    fits = datetime.fromisoformat(attested[-1]) <= min(ends)
    return {"attested": attested[-1], "fits": "yes" if fits else "later than the law rows leave"}


def _pauses(evidence: Evidence) -> Iterator[str]:
    begun = ""
    for one in evidence.steps:
        what, at = one.values["what"], one.values["timestamp"]
        if what == "paused" and not begun:
            begun = at
        elif begun and (what == "resumed" or one.values["state"] in FINAL):
            yield f"{begun}..{at}"
            begun = ""
    if begun:
        yield f"{begun}..{evidence.steps[-1].values['timestamp']}"


def _extension(evidence: Evidence) -> dict[str, Any]:
    asked = next((one for what in EXTENDING for one in _happened(evidence, what)), None)
    letter = next(iter(_happened(evidence, "letter:extension")), None)
    if asked is None and letter is None:
        return {}
    said = asked or letter
    assert said is not None
    noticed = {"noticed": letter.values["timestamp"], "notice_entry": letter.number} if letter else {"noticed": ""}
    return {"at": said.values["timestamp"], "by": _actor(said), "reason": said.values.get("reason", "")} | noticed


def _recipients(evidence: Evidence) -> Iterator[dict[str, Any]]:
    """Those the steps named."""
    named = {part[0]: part for _, many in sorted(evidence.parts.items()) for part in many}
    for recipient, way, event, deadline in sorted(named.values()):
        mine = [one for one in evidence.entries if event and one.event == event]
        # Told of two events in one request, a recipient is named by the second one too, behind a number sign.
        subscriber = recipient.partition("#")[0]
        calls = [one for one in mine if one.outcome and one.values["subscriber"] == subscriber]
        yield {
            "recipient": recipient,
            "way": way,
            "event": event,
            "deadline": deadline,
            "notice": _notice(evidence, event, mine) if way == "lane" else {},
            "attempts": [_attempt(one) for one in calls],
            "end": _proven_end(subscriber, mine, calls) or _said_end(evidence, recipient, bool(calls)),
        }


def _notice(evidence: Evidence, event: str, mine: Sequence[Shown]) -> dict[str, Any]:
    """When it was handed to the lane: the decision about its event, or the step that says so."""
    decided = [one for one in mine if one.values["kind"] == "decided"]
    told = [one for one in _happened(evidence, "told") if _detail(one, "event") in ("", event)]
    found = next(iter([*decided, *told]), None)
    return {"at": found.values["timestamp"], "entry": found.number} if found else {}


def _attempt(call: Shown) -> dict[str, Any]:
    values = call.values
    said = {"at": values["timestamp"], "outcome": call.outcome, "strength": values["ack_strength"]}
    return said | {"attempt": values.get("attempt", 0), "entry": call.number}


def _proven_end(subscriber: str, mine: Sequence[Shown], calls: Sequence[Shown]) -> dict[str, Any]:
    """What the recipient itself said, as the lanes attested it: the settled pair, or a call that it acknowledged."""
    yes = [call for call in calls if call.outcome == "acknowledged"]
    for one in mine:
        for pair in one.values.get("subscriber_ack_set", ()) if one.values["kind"] == "settled" else ():
            proves = pair["outcome"] == "acknowledged" and pair["ack_strength"] in PROVES
            if pair["subscriber"] == subscriber and (proves or pair["outcome"] in OUTRANKED):
                at = yes[-1].values["timestamp"] if yes else one.values["timestamp"]
                said = {"outcome": pair["outcome"], "strength": pair["ack_strength"], "at": at}
                return said | {"entries": [*(call.number for call in yes[-1:]), one.number]}
    strong = [call for call in yes if call.values["ack_strength"] in PROVES]
    if not strong:
        return {}
    last = strong[-1].values
    said = {"outcome": "acknowledged", "strength": last["ack_strength"], "at": last["timestamp"]}
    return said | {"entries": [strong[-1].number]}


def _said_end(evidence: Evidence, recipient: str, called: bool) -> dict[str, Any]:
    """What people answer for: the work of a recipient that no lane reaches, with evidence, or an exception."""
    about = [one for one in evidence.steps if _detail(one, "recipient") == recipient]
    done = [one for one in about if one.values["what"] == "acknowledged" and _detail(one, "evidence")]
    if done and not called:
        said = {"outcome": "acknowledged", "strength": "evidence", "at": done[-1].values["timestamp"]}
        return said | {"by": _actor(done[-1]), "evidence": _detail(done[-1], "evidence"), "entries": [done[-1].number]}
    return _excepted([one for one in about if one.values["what"] in EXCEPTING])


def _excepted(steps: Sequence[Shown]) -> dict[str, Any]:
    """Two different people, each in a step of their own."""
    approvers = sorted({_actor(one) for one in steps if _actor(one)})
    one_name = all(same_name(name, approvers[0]) for name in approvers)
    if one_name or steps[-1].values["what"] != "excepted":
        return {}
    reason = next((one.values["reason"] for one in steps if one.values.get("reason")), "")
    said = {"outcome": "excepted", "strength": "none", "at": steps[-1].values["timestamp"], "reason": reason}
    return said | {"approvers": approvers, "entries": [one.number for one in steps]}


def _missing(evidence: Evidence, recipients: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Why this is not a certificate; nothing when it is."""
    state = evidence.steps[-1].values["state"]
    if state != "fulfilled":
        yield f"the request is {state}"
    for one in recipients:
        if not one["end"]:
            held = [step for step in evidence.steps if _detail(step, "recipient") == one["recipient"]]
            kept = held and held[-1].values["what"] == "recipient_held"
            yield f"{one['recipient']}: {'it keeps its copy under the same hold' if kept else _why(one)}"
    if state != "fulfilled":
        return
    told, owed = (
        len(_happened(evidence, "told")),
        max((int(_detail(one, "messages") or 0) for one in evidence.steps), default=0),
    )
    if evidence.steps[0].values["right"] != "erasure":
        if told < owed:
            yield f"{told} of {owed} messages became events"
    elif not _erasure(evidence) and not _happened(evidence, "already_erased"):
        yield "no entry says that keys were destroyed"


def _why(recipient: Mapping[str, Any]) -> str:
    attempts = recipient["attempts"]
    if attempts and attempts[-1]["outcome"] == "acknowledged":
        return f"a yes of strength {attempts[-1]['strength']}, which does not prove that it was done"
    return "no acknowledgement and no exception that two people answer for"


def _erasure(evidence: Evidence) -> dict[str, Any]:
    found = [one for one in evidence.steps if one.values["kind"] == "erased"]
    if not found:
        return {}
    first = found[0].values
    return {
        "at": first["timestamp"],
        "keys_destroyed": sum(one.values["keys_destroyed"] for one in found),
        "generation": first["generation"],
        "basis": first["basis"],
        "entries": [one.number for one in found],
    }


def _letter(step: Shown) -> dict[str, Any]:
    said = {"letter": step.values["what"].partition(":")[2], "at": step.values["timestamp"]}
    return said | {"digest": _detail(step, "digest"), "entry": step.number}


def _step(step: Shown) -> dict[str, Any]:
    values = step.values
    said = {"step": values["step"], "at": values["timestamp"], "what": values["what"], "state": values["state"]}
    said |= {"by": _actor(step), "reason": values.get("reason", ""), "details": dict(values.get("details", {}))}
    return said | {"entry": step.number}


def _happened(evidence: Evidence, what: str) -> list[Shown]:
    return [one for one in evidence.steps if one.values["what"] == what]


def _detail(step: Shown, name: str) -> str:
    return str(step.values.get("details", {}).get(name, ""))


def _actor(step: Shown) -> str:
    return str(step.values.get("actor", ""))


def _contradicted(found: str, expected: str) -> Damaged:
    return Damaged("certificate_claim", found, expected, "Do not rely on this document.")
