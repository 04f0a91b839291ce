"""OpenDSR on the wire: what a controller's request says, and the bodies of our answers. Pure; docs/opendsr.md is the same in words.

Versions 1.0 (OpenGDPR), 2.0 and mParticle's 3.0 have the types access, portability and erasure. Our own profile adds more under a
version of its own, and never under one of theirs. A value of the request never comes back in an error.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tidings.rights.asks import AHEAD, Ask, Identifier
from tidings.strict import strict_value

TYPES = {"access": "access", "portability": "portability", "erasure": "erasure"}
PROFILE = "tidings-1.0"
OWN_TYPES = TYPES | {
    "rectification": "rectification",
    "restriction": "restriction",
    "restrict": "restriction",
    "objection": "objection",
    "automated_decision": "automated_decision",
    "opt_out": "opt_out",
    "opt_out_sale": "opt_out_sale",
    "limit": "limit_sensitive",
    "limit_sensitive": "limit_sensitive",
}
FORMATS = ("raw", "sha1", "md5", "sha256")
PLACES = {"gdpr": "EU", "ccpa": "US-CA"}
MPARTICLE = "opendsr.mparticle.com"
PHONES = ("mobile_number", "phone_number_2", "phone_number_3")
MOST_CALLBACKS, MOST_URL = 5, 2_000
_GROUP = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


@dataclass(frozen=True)
class Version:
    """One version of the protocol, by its first path segments."""

    path: str
    api: str
    way: str
    majors: tuple[str, ...]
    types: Mapping[str, str]
    bare_errors: bool = False  # mParticle puts the error object on top


VERSIONS = {
    one.path: one
    for one in (
        Version("v1", "1.0", "opendsr", ("0", "1"), TYPES),
        Version("v2", "2.0", "opendsr", ("1", "2"), TYPES),
        Version("v3", "3.0", "mparticle", ("3",), TYPES, bare_errors=True),
        Version("v1/tidings", PROFILE, "opendsr", (PROFILE,), OWN_TYPES),
    )
}


class Wrong(Exception):
    """An answer that is an error: its status and, for each problem, a reason and words without a value."""

    def __init__(self, status: int, *problems: tuple[str, str], retry_after: float | None = None) -> None:
        self.status, self.problems, self.retry_after = status, problems, retry_after
        super().__init__(status)


@dataclass(frozen=True)
class Order:
    """A request as it came over the wire."""

    version: Version
    id: str
    type: str
    kind: str
    regulation: str
    submitted: datetime
    identifiers: tuple[Identifier, ...] = field(repr=False)
    callbacks: tuple[str, ...] = field(default=(), repr=False)
    group: str = ""
    scope: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    at_once: bool = False

    def ask(self, controller: str, assurance: str) -> Ask:
        said: dict[str, Any] = {"scope": self.scope, "values": self.values, "callbacks": self.callbacks}
        said |= {"jurisdiction": PLACES[self.regulation], "regulation": self.regulation}
        said |= {"assurance": assurance, "reference": self.id, "agent": controller, "at_once": self.at_once}
        return Ask(self.kind, self.identifiers, self.version.way, self.submitted, **said)


def strict_json(body: bytes) -> dict[str, Any]:
    """The body as one object; a name that stands twice, a number that is none and too deep a nesting are refused."""
    try:
        said = strict_value(body)
    except ValueError:
        raise Wrong(400, ("MalformedBody", "The body is not one JSON object.")) from None
    if not isinstance(said, dict):
        raise Wrong(400, ("MalformedBody", "The body is not one JSON object."))
    return said


def read(version: Version, body: bytes, known: Mapping[str, str], now: datetime, domain: str = "") -> Order:
    """The order in a body, or every problem at once. `known`: type of identity → what we look it up by; `domain` is ours."""
    said, found = strict_json(body), list[tuple[str, str]]()
    ours = _extended(said, (domain, MPARTICLE), found)
    name = _text(said, "subject_request_id", found)
    if name and not _uuid(name):
        found.append(("IllegalArgumentException", "subject_request_id must be a UUID v4 in small letters."))
    kind_of = _word(_text(said, "subject_request_type", found))
    if kind_of and kind_of not in version.types:
        found.append(("UnsupportedRequestType", "subject_request_type is not one that discovery lists."))
    regulation = _regulation(version, said, found)
    submitted = _time(_text(said, "submitted_time", found), found, now)
    _version(version, said, found)
    people = tuple(_identities(said, ours, known, found))
    callbacks = _callbacks(said, found)
    group = _group(said, found)
    scope, values = _besides(version, said, found)
    if kind_of == "rectification" and not values:
        found.append(("IllegalArgumentException", "values is required: field and value."))
    if found:
        raise Wrong(400, *found)
    rest = (callbacks, group, scope, values, ours.get("skip_waiting_period") is True)
    return Order(version, name, kind_of, version.types[kind_of], regulation, submitted, people, *rest)


def _text(said: Mapping[str, Any], name: str, found: list[tuple[str, str]]) -> str:
    value = said.get(name)
    if isinstance(value, str) and 0 < len(value) <= MOST_URL:
        return value
    found.append(("IllegalArgumentException", f"{name} field is required."))
    return ""


def _word(text: str) -> str:
    """One spelling: opt-out is opt_out, whoever writes it."""
    return text.strip().lower().replace("-", "_")


def _uuid(text: str) -> bool:
    try:
        read = uuid.UUID(text)
    except ValueError:
        return False
    return str(read) == text and read.version == 4


def _regulation(version: Version, said: Mapping[str, Any], found: list[tuple[str, str]]) -> str:
    """A body of versions 1 and 2 without the field is one of version 1, which knew the GDPR alone."""
    value = said.get("regulation")
    if value is None and version.path in ("v1", "v2"):
        return "gdpr"
    if isinstance(value, str) and value.lower() in PLACES:
        return value.lower()
    found.append(("IllegalArgumentException", "regulation must be gdpr or ccpa."))
    return ""


def _time(text: str, found: list[tuple[str, str]], now: datetime) -> datetime:
    text = text.upper()  # RFC 3339 lets t and z be small
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00")) if "T" in text else None
        if text and (moment is None or moment.year < 2000):
            raise ValueError
        moment = moment or now
        moment = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        found.append(("IllegalArgumentException", "submitted_time must be a time of RFC 3339."))
        return now
    if moment > now + AHEAD:
        found.append(("IllegalArgumentException", "submitted_time is ahead of our clock."))
    return moment


def _version(version: Version, said: Mapping[str, Any], found: list[tuple[str, str]]) -> None:
    value = said.get("api_version")
    if value is None:
        return
    major = value if value == PROFILE else str(value).partition(".")[0]
    if not isinstance(value, str) or major not in version.majors:
        found.append(("UnsupportedVersion", f"api_version is not one of this address, which speaks {version.api}."))


def _extended(said: Mapping[str, Any], domains: Sequence[str], found: list[tuple[str, str]]) -> Mapping[str, Any]:
    """What `extensions` says to us, under our domain or mParticle's; what it says to other processors is theirs."""
    given = said.get("extensions") or {}
    mine = [given[name] for name in dict.fromkeys(domains) if name in given] if isinstance(given, dict) else [None]
    if not all(isinstance(one, dict) for one in mine):
        found.append(("IllegalArgumentException", "extensions must be an object of objects."))
        return {}
    ours = {name: value for one in reversed(mine) for name, value in one.items()}
    if not isinstance(ours.get("skip_waiting_period", False), bool):
        found.append(("IllegalArgumentException", "skip_waiting_period must be true or false."))
    return ours


def _identities(
    said: Mapping[str, Any], ours: Mapping[str, Any], known: Mapping[str, str], found: list[tuple[str, str]]
) -> Iterator[Identifier]:
    """Those of the body and those of the extension, which may stand alone; none is left out, since that would do less than was asked."""
    mpids = ours.get("mpids") or []
    many = mpids if isinstance(mpids, list) else [mpids]
    given = [*_listed(said.get("subject_identities"), found), *_listed(ours.get("subject_identities"), found)]
    given += [*_listed(ours.get("identities"), found), *(("mpid", str(one), "raw") for one in many)]
    if not given:
        found.append(("IllegalArgumentException", "subject_identities field is required."))
    if len(given) > 1 and any(kind == "mpid" for kind, _, _ in given):
        found.append(("InvalidOperationException", "If an mpid is provided, it must be the only identity."))
    for kind, value, form in given:
        if kind not in known:
            found.append(("UnsupportedIdentity", "an identity_type is not one that discovery lists."))
        elif form != "raw":
            told = (
                "hashed identities cannot be looked up here; send them raw." if form in FORMATS else "unknown format."
            )
            found.append(("UnsupportedIdentity", told))
        elif not isinstance(value, str) or not 0 < len(value.strip()) <= 320:
            found.append(("IllegalArgumentException", "an identity has no value of 1 to 320 characters."))
        else:
            yield Identifier(known[kind], value.strip())


def _listed(given: Any, found: list[tuple[str, str]]) -> list[tuple[str, Any, str]]:
    """Type, value and format, from the array of versions 1 and 2 or the object of version 3."""
    if given is None:
        return []
    if isinstance(given, dict):
        pairs = [(kind, one.get("value"), one.get("encoding")) for kind, one in given.items() if isinstance(one, dict)]
    elif isinstance(given, list):
        names = ("identity_type", "identity_value", "identity_format")
        pairs = [tuple(one.get(name) for name in names) for one in given if isinstance(one, dict)]  # type: ignore[misc]
    else:
        pairs = []
    if not isinstance(given, dict | list) or len(pairs) < len(given) or len(pairs) > 20:
        found.append(("IllegalArgumentException", "subject_identities must be at most 20 identities."))
        return []
    return [(_word(str(kind)), value, str(form or "raw").lower()) for kind, value, form in pairs]


def _callbacks(said: Mapping[str, Any], found: list[tuple[str, str]]) -> tuple[str, ...]:
    given = said.get("status_callback_urls") or []
    fine = isinstance(given, list) and len(given) <= MOST_CALLBACKS
    if not fine or not all(isinstance(one, str) and 0 < len(one) <= MOST_URL for one in given):
        found.append(("IllegalArgumentException", f"status_callback_urls must be at most {MOST_CALLBACKS} addresses."))
        return ()
    return tuple(dict.fromkeys(given))


def _group(said: Mapping[str, Any], found: list[tuple[str, str]]) -> str:
    group = said.get("group_id")
    if group is None:
        return ""
    if isinstance(group, str) and _GROUP.fullmatch(group):
        return group
    found.append(("IllegalArgumentException", "group_id must be at most 128 letters, digits, _ . : and -."))
    return ""


def _besides(
    version: Version, said: Mapping[str, Any], found: list[tuple[str, str]]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """What our own profile adds: `scope` and, for a rectification, `values`."""
    if version.api != PROFILE:
        return (), {}
    scope, values = said.get("scope") or [], said.get("values") or {}
    fine = isinstance(scope, list) and isinstance(values, dict)
    if not fine or not all(isinstance(one, str) for one in [*scope, *values, *values.values()]):
        found.append(("IllegalArgumentException", "scope is a list of words, values an object of text."))
        return (), {}
    return tuple(scope), dict(values)
