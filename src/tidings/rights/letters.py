"""Letters to the person: which one is owed, what it says, and that it was sent, at most once each.

    letter_sending:<kind>   it is about to leave; whatever happens now, it does not leave a second time by itself
    letter:<kind>           the mail server took it, or a person answers for having sent it; its digest, not its text
    letter_failed:<kind>    it did not leave; it is tried again
    letter_task:<kind>      a person must send it: no way to, no address, refused, or in doubt

No letter carries data of the person. Whoever has not proved who they are gets the neutral text in place of
every letter that would say whether anything is kept. What breaks the guarantee: a mail that is lost after the server took it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from tidings.errors import Refused
from tidings.gate.calendars import places
from tidings.rights.asks import ASSURANCES, KINDS
from tidings.rights.book import Request, Step
from tidings.rights.clocks import ANSWER, Laws, clocks_of, due_of, places_of
from tidings.rights.drafts import Draft
from tidings.rights.sweeper import SILENT_WAYS

LETTERS = (
    "receipt",
    "identity",
    "extension",
    "completion",
    "partly",
    "unmatched",
    "hold",
    "refusal",
    "breach",
    "lifting",
)
KEPT = "a duty to keep records forbids us to delete part of it now; that part is locked away and deleted when the duty ends"
ENDS = ("completion", "partly", "unmatched", "refusal")
MOST_TRIES, AGAIN_AFTER = 5, timedelta(minutes=30)
DOUBT_AFTER = timedelta(minutes=15)  # a letter that was about to leave so long ago did not come back


@dataclass(frozen=True)
class Sender:
    """Who writes: the operator's name, where it is reached, and the texts."""

    operator: str
    contact: str
    texts: Mapping[str, Any]


@dataclass(frozen=True)
class Letter:
    kind: str
    request: str
    subject: str
    text: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.subject}\n\n{self.text}".encode()).hexdigest()


def texts(language: str, directory: Path | None = None) -> Mapping[str, Any]:
    """The texts of a language: the catalogue's, with whatever the operator's own file says instead."""
    shelf = files("tidings").joinpath(f"catalog/letters/{language}.yaml")
    own = directory / "policy" / "letters" / f"{language}.yaml" if directory else None
    found = yaml.safe_load(shelf.read_text(encoding="utf-8")) if shelf.is_file() else {}
    if own and own.is_file():
        found = _laid_over(found, yaml.safe_load(own.read_text(encoding="utf-8")) or {})
    if not found:
        expected = "en, or a file policy/letters/<language>.yaml"
        raise Refused("unknown_language", repr(language[:20]), expected, "Mend `rights.language`.")
    return found


def _laid_over(below: Any, above: Any) -> Any:
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return below | {name: _laid_over(below.get(name), value) for name, value in above.items()}


def owed(request: Request, laws: Laws, now: datetime) -> list[str]:
    """The letters that are to leave now: owed, not sent, not on their way, not a person's task."""
    return [kind for kind in _wanted(request, laws, now) if _free(request, kind, now)]


def _wanted(request: Request, laws: Laws, now: datetime) -> list[str]:
    if request.kind == "incident" or request.way in SILENT_WAYS or request.state == "cancelled":
        return []
    found = ["lifting"] if request.happened("lift_asked") and not request.happened("lift_begun") else []
    found += [] if request.happened("letter:receipt") or not request.open else ["receipt"]
    # The public form asks for the proof itself, with a code.
    if request.state == "verifying" and request.way != "form":
        found.append("identity")
    if request.open and request.happened("extension_asked"):
        found.append("extension")
    if request.state == "review" and _held(request) == "legal_hold":
        found.append("hold")
    if request.state in ("fulfilled", "refused") and not any(request.lately(f"letter:{kind}") for kind in ENDS):
        found.append(outcome_of(request))
    return found


def _held(request: Request) -> str:
    return next((step.reason for step in reversed(request.steps) if step.what == "held"), "")


def outcome_of(request: Request) -> str:
    """Which of the letters that end a request is the true one."""
    if request.happened("unmatched"):
        return "unmatched"
    if request.state == "refused":
        return "refusal"
    kept = any(part.state in ("excepted", "held") for part in request.parts.values()) or request.happened("hold_sealed")
    return "partly" if kept else "completion"


def _free(request: Request, kind: str, now: datetime) -> bool:
    if request.lately(f"letter:{kind}") or request.lately(f"letter_task:{kind}"):
        return False
    sending, failed = request.lately(f"letter_sending:{kind}"), request.lately(f"letter_failed:{kind}")
    return len(sending) == len(failed) and (not failed or now - failed[-1].at >= AGAIN_AFTER)


def unsettled(request: Request, now: datetime) -> list[Draft]:
    """Letters that a person must take over: those in doubt, and those that failed too often."""
    found = []
    for kind in LETTERS:
        if request.lately(f"letter:{kind}") or request.lately(f"letter_task:{kind}"):
            continue
        sending, failed = request.lately(f"letter_sending:{kind}"), request.lately(f"letter_failed:{kind}")
        if len(sending) > len(failed) and now - sending[-1].at > DOUBT_AFTER:
            found.append(task(request, kind, "It is not known whether the letter left; ask before it is sent again."))
        elif len(failed) >= MOST_TRIES:
            found.append(task(request, kind, f"The mail server took it in none of {len(failed)} tries."))
    return found


def task(request: Request, kind: str, why: str) -> Draft:
    """A person must send it."""
    return Draft(request.id, f"letter_task:{kind}", why)


def sending(letter: Letter) -> Draft:
    """Written and committed before the letter leaves."""
    return Draft(letter.request, f"letter_sending:{letter.kind}", details={"digest": letter.digest})


def sent(letter: Letter, result: str, code: str) -> Draft:
    """What became of it, by the mail server's answer."""
    said = {"digest": letter.digest, "code": code}
    if result in ("accepted", "acknowledged"):
        return Draft(letter.request, f"letter:{letter.kind}", "The mail server took it.", details=said)
    if result == "transient":
        return Draft(letter.request, f"letter_failed:{letter.kind}", "It did not leave.", details=said)
    why = "It is not known whether the letter left." if result == "in_doubt" else "The mail server refuses it."
    return Draft(letter.request, f"letter_task:{letter.kind}", why, details=said)


def by_hand(request: Request, kind: str, by: str, evidence: str) -> Draft:
    """A person sent it and answers for it."""
    if kind not in LETTERS:
        raise Refused("unknown_letter", repr(kind[:40]), "one of " + ", ".join(LETTERS), "Mend the kind.")
    why = "" if evidence else "A letter that was sent by hand needs evidence: the digest of what was sent."
    if request.lately(f"letter:{kind}"):
        why = "This letter was sent before."
    if why:
        return Draft(request.id, "declined", why, by, {"action": f"letter:{kind}"})
    return Draft(request.id, f"letter:{kind}", "Sent by hand.", by, {"digest": evidence, "code": "by_hand"})


def proved(request: Request) -> bool:
    """May the letter say what became of the person's data? An opt-out says nothing of it, so it needs no proof."""
    return ASSURANCES.index(request.assurance) >= ASSURANCES.index("verified") or KINDS[request.kind][1] == "none"


def written(request: Request, kind: str, sender: Sender, laws: Laws, now: datetime) -> Letter:
    """The letter as it would leave now."""
    if kind not in LETTERS or (kind != "breach" and request.kind not in KINDS):
        raise Refused("unknown_letter", repr(kind[:40]), "one of " + ", ".join(LETTERS), "Mend the kind.")
    template, where = sender.texts["letters"][kind], _nearest(request, laws)
    neutral = kind in sender.texts["neutral"]["for"] and not proved(request)
    template = sender.texts["neutral"] if neutral else template
    added = [sender.texts.get("laws", {}).get(place, {}).get(kind, "") for place in where]
    paragraphs = [template["body"].strip(), *(one for one in added if one and not neutral)]
    words = _words(request, kind, sender, laws, now)
    words["appeal"] = _appeal(sender, laws, request, where).format_map(words)
    text = "\n\n".join([*paragraphs, sender.texts["footer"].strip()]).format_map(words)
    return Letter(kind, request.id, template["subject"], text.rstrip() + "\n")


def _nearest(request: Request, laws: Laws) -> list[str]:
    """The places of the person, each followed by the one around it."""
    found = []
    for place in places_of(request, laws):
        around = places()[place].within if place in places() else ""
        found += [place, *([around] if around else [])]
    return list(dict.fromkeys(found))


def _appeal(sender: Sender, laws: Laws, request: Request, where: list[str]) -> str:
    """How to go on for every law that the request stands under."""
    said, found = sender.texts["appeal"], []
    for place in where:
        if place in said:
            found.append(said[place])
        elif (place, "appeal") in laws.shelf:
            found.append(said["appealing"])
    return "\n".join(dict.fromkeys(found)) or str(said["default"])


def _words(request: Request, kind: str, sender: Sender, laws: Laws, now: datetime) -> dict[str, str]:
    clocks = [clock for clock in clocks_of(request, laws, now) if clock.duty == ANSWER or kind == "breach"]
    ends = [clock.due for clock in clocks if clock.due]
    if kind == "extension":
        ends = [_longer(request, laws, now)]
    return {
        "operator": sender.operator,
        "contact": sender.contact,
        "request": request.id,
        "what": sender.texts["kinds"].get(request.kind, request.kind),
        "received": _day(request.opened),
        "due": _day(min(ends)) if ends else "",
        "reason": _reason(request, kind),
        "laws": "; ".join(dict.fromkeys(f"{clock.law}, {clock.citation}" for clock in clocks)),
    }


def _longer(request: Request, laws: Laws, now: datetime) -> datetime:
    """The end that the extension will give once its letter is sent."""
    told = Step(0, "letter:extension", request.state, now, "", "", {})
    return due_of(replace(request, steps=[*request.steps, told]), laws, now)


def _reason(request: Request, kind: str) -> str:
    whats = {
        "extension": "extension_asked",
        "refusal": "refused",
        "partly": "excepted",
        "lifting": "lift_asked",
    }
    found = [step.reason for step in request.happened(whats.get(kind, "")) if step.reason]
    found += [KEPT] if kind == "partly" and request.happened("hold_sealed") else []
    return "; ".join(dict.fromkeys(found)) or "-"


def _day(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d}"
