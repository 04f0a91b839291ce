"""What people may ask, and one such request as it came in: who asks for what, by which way, and how sure we are that it is them.

Every way in (form, API, a processor's protocol, a vendor's webhook, a signal, a list, the command line) ends in an `Ask`. Pure.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tidings.errors import Problem, TidingsError

# Kind → (what it is, how sure we must be that it is the person).
KINDS: Mapping[str, tuple[str, str]] = {
    "access": ("a copy of the person's data and who received it", "verified"),
    "portability": ("the person's data in a form that other systems read", "verified"),
    "know": ("which categories are kept, why, and who receives them", "claimed"),
    "erasure": ("forget the person, here and everywhere their data went", "verified"),
    "rectification": ("put data right, here and everywhere it went", "verified"),
    "restriction": ("keep the data and do nothing else with it", "claimed"),
    "objection": ("stop processing on grounds of a legitimate interest (GDPR Art. 21)", "claimed"),
    "automated_decision": ("no agent decides about the person; a human looks (GDPR Art. 22)", "claimed"),
    "opt_out_sale": ("no sale, no sharing", "none"),
    "limit_sensitive": ("sensitive data only for what was asked for", "none"),
    "opt_out": ("no marketing, by one channel or all", "none"),
    "opt_in": ("marketing again, by one channel or all", "verified"),
    "consent_narrowing": ("fewer purposes than before", "none"),
    "appeal": ("look again at a request that was refused", "claimed"),
}
ASSURANCES = ("none", "claimed", "verified", "strong")  # a later one is enough wherever an earlier one is
WAYS = ("rest", "form", "opendsr", "mparticle", "shopify", "drp", "consent", "signal", "csv", "cli", "source")
IDENTIFIERS = ("email", "phone")  # besides these, the name of an entity: customer → its key
SHOP = "shop"  # a whole shop, which Shopify alone names
MOST_IDENTIFIERS, MOST_TEXT, MOST_WORDS, MOST_PLACES = 20, 2_000, 50, 5
AHEAD = timedelta(minutes=5)
EARLIEST = datetime(
    2000, 1, 1, tzinfo=UTC
)  # before any of these laws; an older time is a mistake, and some cannot be counted from
PLACE = re.compile(r"[A-Z]{2}(-[A-Z0-9]{1,3})?|EU|")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_REGULATION = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/-]{0,63}|")  # it enters the ledger, so it is no free text


class BadAsk(TidingsError):
    """A request that cannot be taken in, with every problem at once."""

    exit_code = 3

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        parts = "; ".join(f"{one.path}: found {one.found}, expected {one.expected}" for one in self.problems)
        super().__init__("bad_request", parts, "", "Nothing was taken in.")


def enough(kind: str, assurance: str) -> bool:
    """Are we sure enough to do this?"""
    return ASSURANCES.index(assurance) >= ASSURANCES.index(KINDS[kind][1])


@dataclass(frozen=True)
class Identifier:
    """By what the person is looked up: an e-mail, a phone, or the key of a record."""

    kind: str
    value: str = field(repr=False)


@dataclass(frozen=True)
class Ask:
    """One request. `received` is when the person asked, which starts the clock, wherever that was."""

    kind: str
    identifiers: tuple[Identifier, ...]
    way: str
    received: datetime
    assurance: str = "none"
    jurisdiction: str = ""  # where the person lives, as far as they said; several places with commas between
    regulation: str = ""  # the law that whoever passed it on had in mind
    reference: str = ""  # the caller's own id: asking twice under one reference is asking once
    scope: tuple[str, ...] = ()  # channels, purposes or fields; none means all
    values: Mapping[str, str] = field(default_factory=dict, repr=False)  # of a rectification: field → what is right
    contact: str = field(default="", repr=False)  # where letters go
    callbacks: tuple[str, ...] = ()
    agent: str = ""  # who asks for the person
    about: str = ""  # of an appeal: the request that was refused
    child: bool = False
    at_once: bool = False  # of an erasure: whoever asks gives up the time in which it can be taken back

    def problems(self) -> Iterator[Problem]:
        """Everything that is wrong with it; a value is never shown."""
        for path, found, fine, expected in self._looked_at():
            if not fine:
                yield Problem(self.way, 0, path, "bad_request", found, expected, "Mend it and ask again.")

    def _looked_at(self) -> Iterator[tuple[str, str, bool, str]]:
        # A column that slipped holds an address where a word should be, so not even these words are shown.
        yield "kind", "another word", self.kind in KINDS, "one of " + ", ".join(KINDS)
        yield "assurance", "another word", self.assurance in ASSURANCES, "one of " + ", ".join(ASSURANCES)
        named = self.jurisdiction.split(",")
        place = all(PLACE.fullmatch(one) and (one or len(named) == 1) for one in named) and len(named) <= MOST_PLACES
        yield (
            "jurisdiction",
            "another word",
            place,
            f"a place such as US-CA or DE, or up to {MOST_PLACES} like US-CA,DE",
        )
        yield "regulation", "other characters", bool(_REGULATION.fullmatch(self.regulation)), "a word such as gdpr"
        many = len(self.identifiers)
        yield "identifiers", f"{many} identifiers", 0 < many <= MOST_IDENTIFIERS, f"1 to {MOST_IDENTIFIERS}"
        for number, one in enumerate(self.identifiers):
            known, sized = bool(_NAME.fullmatch(one.kind)), 0 < len(one.value.strip()) <= 320
            yield f"identifiers[{number}].kind", "another word", known, "email, phone or the name of an entity"
            yield f"identifiers[{number}].value", f"{len(one.value)} characters", sized, "1 to 320 characters"
            clean = _writable(one.value)
            yield f"identifiers[{number}].value", "a character that is none", clean, "letters, digits and signs"
        yield "received", "a time ahead of ours", self.received <= datetime.now(UTC) + AHEAD, "when the person asked"
        yield "received", "a time before 2000", self.received >= EARLIEST, "when the person asked"
        yield from self._texts()

    def _texts(self) -> Iterator[tuple[str, str, bool, str]]:
        """Words and free text: bounded, and of characters that can be written down."""
        many = max(len(self.scope), len(self.values))
        yield "text", f"{many} words or fields", many <= MOST_WORDS, f"at most {MOST_WORDS}"
        lines = (self.agent, self.reference, self.about, *self.scope, *self.values)
        free = (self.contact, *self.values.values())  # may have several lines, as an address has
        long = max(map(len, (*lines, *free)))
        yield "text", f"{long} characters", long <= MOST_TEXT, f"at most {MOST_TEXT} in one value"
        clean = all(map(_writable, lines)) and all(_writable(text, "\n\r\t") for text in free)
        yield "text", "a character that is none", clean, "text without control characters or halves of characters"
        right = self.kind != "rectification" or bool(self.values)
        yield "values", "no field to put right", right, "field and value, at least one"
        yield "about", "no request", self.kind != "appeal" or bool(self.about), "the request that was refused"

    def checked(self) -> Ask:
        """Itself, or every problem at once."""
        if found := list(self.problems()):
            raise BadAsk(found)
        return self

    def as_json(self) -> str:
        said = asdict(self) | {"received": self.received.astimezone(UTC).isoformat()}
        return json.dumps(said, ensure_ascii=False, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Ask:
        said: dict[str, Any] = json.loads(text)
        lists = {name: tuple(said[name]) for name in ("scope", "callbacks")}
        people = tuple(Identifier(**one) for one in said["identifiers"])
        return cls(**said | lists | {"identifiers": people, "received": datetime.fromisoformat(said["received"])})


def _writable(text: str, besides: str = "") -> bool:
    """No control character but these, no half of a character: UTF-8 can hold it, and a table, a letter or a log can show it."""
    return all(one in besides or unicodedata.category(one) not in ("Cc", "Cs") for one in text)


def same_name(first: str, second: str) -> bool:
    """Is it one name in two spellings (case, spaces, forms of one letter, signs that nobody sees)? Then it is one person."""
    return _folded(first) == _folded(second)


def _folded(name: str) -> str:
    seen = "".join(one for one in unicodedata.normalize("NFKC", name) if unicodedata.category(one) not in ("Cf", "Mn"))
    return "".join(seen.casefold().split())


ACTIONS: Mapping[str, str] = {
    "verify": "the person proved who they are",
    "cancel": "the person took the request back",
    "approve": "a human said that it goes on",
    "refuse": "a human said no, with the reason",
    "done": "a human did what a recipient has no machine for, with evidence",
    "except": "a recipient cannot be told or does not answer; two people say so",
    "extend": "more time, with a reason, once",
    "pause": "the clock stands while something is missing",
    "resume": "what was missing is there",
    "lift": "a restriction, an objection or a limit ends; the person is told before it does",
    "hold": "the law or counsel wants the data kept",
    "release": "the reason to keep it is over; two people say so",
    "incident": "a security incident: opened, assessed, notified or closed, as `says` tells",
    "split": "an identifier of two people: a human said whose it is",
}


@dataclass(frozen=True)
class Word:
    """What somebody says of a request that is under way; `by` is who answers for it."""

    request: str
    action: str
    by: str
    reason: str = ""
    recipient: str = ""
    evidence: str = ""  # digest of what was shown
    at: str = ""
    says: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Word:
        return cls(**json.loads(text))
