"""Signals: what a browser, a tag manager or a consent string says a person wants, put into words that the desk understands.

    {"identifiers": {"email": "…"}, "jurisdiction": "US-CA", "gpc": true, "gpp": "DB…", "tcf": "C…", "usp": "1YNN", "consent_mode": {…}}

Pure. What a signal withholds becomes a request (at most one of each kind, the scopes joined); the strictest word counts when two
disagree. What it grants becomes a request only where the caller says so (`"grants": true`), and never undoes what the same signal
withholds. A signal proves nothing of who sent it, so its requests have the assurance `none`: enough to opt out, not to opt in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from tidings.gate.places import country, regime
from tidings.rights import consent_mode, gpp, layouts, tcf
from tidings.rights.asks import MOST_IDENTIFIERS, PLACE, Ask, Identifier
from tidings.rights.bits import BadSignal

FIELDS = ("identifiers", "jurisdiction", "gpc", "gpp", "tcf", "usp", "consent_mode", "grants")


@dataclass(frozen=True)
class Meaning:
    """One thing a signal asks for; `said_by` names the words of the signal that say so."""

    kind: str
    scope: tuple[str, ...]
    said_by: tuple[str, ...]
    place: str = ""


@dataclass(frozen=True)
class Signal:
    """What was sent. Identifiers may be missing: then the signal is about nobody we could know."""

    identifiers: tuple[Identifier, ...] = ()
    jurisdiction: str = ""
    gpc: bool = False
    gpp: str = ""
    tcf: str = ""
    usp: str = ""
    consent_mode: Any = None
    grants: bool = False

    @classmethod
    def of(cls, said: Any) -> Signal:
        """From a JSON object; a field that is not known, or of another kind, is refused."""
        if not isinstance(said, Mapping) or set(said) - set(FIELDS):
            raise BadSignal("bad_word", "signal")
        people, rest = said.get("identifiers") or {}, {k: v for k, v in said.items() if k != "identifiers"}
        texts = [rest.get(name, "") for name in ("jurisdiction", "gpp", "tcf", "usp")]
        flags = [rest.get(name, False) for name in ("gpc", "grants")]
        if not all(isinstance(text, str) for text in texts) or not all(isinstance(flag, bool) for flag in flags):
            raise BadSignal("bad_word", "signal")
        if not PLACE.fullmatch(texts[0]):  # it is counted by, also where nobody is named
            raise BadSignal("bad_word", "jurisdiction")
        if not isinstance(people, Mapping) or len(people) > MOST_IDENTIFIERS:
            raise BadSignal("bad_word", "identifiers")
        if not all(isinstance(value, str) for value in people.values()):
            raise BadSignal("bad_word", "identifiers")
        return cls(tuple(Identifier(kind, value) for kind, value in people.items()), **rest)

    def without_person(self) -> str:
        """The signal itself, for its digest: nothing of the person."""
        said = {name: getattr(self, name) for name in FIELDS if name != "identifiers"}
        return json.dumps(said, sort_keys=True, ensure_ascii=False, default=str)


@dataclass(frozen=True)
class Heard:
    """What a signal says: what it withholds and grants, whether it is about a child, and what could not be read."""

    meanings: tuple[Meaning, ...]
    granted: tuple[str, ...] = ()
    child: bool = False
    unread: dict[str, str] = field(default_factory=dict)


def sec_gpc(value: str | None) -> bool:
    """The header Sec-GPC: exactly "1"; every other value means nothing."""
    return value == "1"


def hear(signal: Signal) -> Heard:
    """What it means. A part that cannot be read is in `unread`; the other parts count all the same."""
    found: list[Meaning] = []
    granted: set[str] = set()
    unread: dict[str, str] = {}
    child = False
    for name, text in (("gpp", signal.gpp), ("tcf", signal.tcf), ("usp", signal.usp), ("mode", signal.consent_mode)):
        if not text:
            continue
        try:
            part = _READERS[name](text)
        except BadSignal as bad:
            unread["consent_mode" if name == "mode" else name] = bad.reason
            continue
        found += part.meanings
        granted |= set(part.granted)
        child = child or part.child
        unread |= part.unread
    if signal.gpc:
        said = meaning()["gpc"]
        place = signal.jurisdiction
        family = regime(country(place)) if place else None
        rule = said.get(family or "", said[""])
        found.append(Meaning(rule["kind"], tuple(rule["scope"]), ("gpc",), place))
    joined = tuple(_joined(found))
    withheld = {word for one in joined for word in one.scope}
    return Heard(joined, tuple(sorted(granted - withheld)), child, unread)


def asks(signal: Signal, heard: Heard, received: datetime, agent: str = "") -> Iterator[Ask]:
    """The requests of a signal that is about somebody."""
    if not signal.identifiers:
        return
    wanted = list(heard.meanings)
    if signal.grants and heard.granted:
        wanted.append(Meaning("opt_in", heard.granted, ("grants",)))
    for one in wanted:
        yield Ask(
            one.kind,
            signal.identifiers,
            "signal",
            received,
            jurisdiction=signal.jurisdiction or one.place,
            scope=one.scope,
            agent=agent,
            child=heard.child,
        )


@cache
def meaning() -> Mapping[str, Any]:
    said: Mapping[str, Any] = yaml.safe_load(
        files("tidings").joinpath("catalog/signals/meaning.yaml").read_text(encoding="utf-8")
    )
    return said


def _joined(found: Iterable[Meaning]) -> Iterator[Meaning]:
    """One of each kind; its place is the narrowest that was said."""
    kinds: dict[str, list[Meaning]] = {}
    for one in found:
        kinds.setdefault(one.kind, []).append(one)
    for kind, same in sorted(kinds.items()):
        scope = sorted({word for one in same for word in one.scope})
        said_by = dict.fromkeys(word for one in same for word in one.said_by)
        yield Meaning(kind, tuple(scope), tuple(said_by), max((one.place for one in same), key=len))


def _gpp(text: str) -> Heard:
    said = gpp.decode(text)
    heard = [_section(one) for one in said.sections]
    return Heard(
        tuple(meaning for one in heard for meaning in one.meanings),
        tuple(word for one in heard for word in one.granted),
        any(one.child for one in heard),
        {f"gpp.{number}": reason for number, reason in said.unread.items()},
    )


def _section(section: gpp.Section) -> Heard:
    if section.tcf is not None:
        return _purposes(section.tcf)
    if section.id == gpp.USP:
        return _us_privacy(section.fields)
    layout, found = layouts.us()[section.id], []
    for name, rule in meaning()["us"].items():
        if section.fields.get(name) == 1 and name not in layout.unconfirmed:
            found.append(Meaning(rule["kind"], tuple(rule["scope"]), (f"{section.name}.{name}",), section.place))
    limited = section.fields.get("SensitiveDataProcessing", ())
    if names := tuple(name for name, value in zip(layout.sensitive, limited, strict=False) if value == 1):
        said_by = (f"{section.name}.SensitiveDataProcessing",)
        found.append(Meaning("limit_sensitive", names, said_by, section.place))
    if section.gpc:
        found.append(Meaning("opt_out_sale", ("ads", "sale"), (f"{section.name}.Gpc",), section.place))
    children = section.fields.get("KnownChildSensitiveDataConsents", 0)
    return Heard(tuple(found), child=any(children) if isinstance(children, tuple) else bool(children))


def _us_privacy(fields: Mapping[str, Any]) -> Heard:
    if not fields["OptOutSale"]:
        return Heard(())
    return Heard((Meaning("opt_out_sale", ("sale",), ("uspv1.OptOutSale",), "US"),))


def _purposes(said: tcf.Tcf) -> Heard:
    consent, other = said.allowed()
    withheld: set[str] = set()
    granted: set[str] = set()
    for purpose, scope in meaning()["tcf"].items():
        if purpose in consent:
            granted |= set(scope)
        elif purpose not in other:
            withheld |= set(scope)
    found = Meaning("consent_narrowing", tuple(sorted(withheld)), (said.name,), said.place)
    return Heard((found,) if withheld else (), tuple(granted - withheld))


def _mode(settings: Any) -> Heard:
    said, words = consent_mode.read(settings), meaning()["consent_mode"]
    withheld = {word for name in said.denied() for word in words.get(name, ())}
    granted = {word for name in said.chosen if said.granted[name] for word in words.get(name, ())}
    found = Meaning(
        "consent_narrowing", tuple(sorted(withheld)), tuple(f"consent_mode.{n}" for n in sorted(said.denied()))
    )
    return Heard((found,) if withheld else (), tuple(granted - withheld))


_READERS = {
    "gpp": _gpp,
    "tcf": lambda text: _purposes(tcf.decode(text)),
    "usp": lambda text: _us_privacy(gpp.us_privacy(text)),
    "mode": _mode,
}
