"""The mapping language of manifests: literals, and strings that start with `=`.

    =email                        a field, or nothing
    =email | google_email | sha256   a field through named functions, left to right
    ==text                        the literal text "=text"

An object's key may be an expression too; with nothing to call it the pair is left out. `=whole: true` in an object leaves the
object out unless every one of its fields is there.

A path or query text may hold the same inside braces: `/lists/{var.list_id}/members/{email | md5_lower}`.
There are no operators, no arguments, no loops and no way to name a function that is not in `normalise.FUNCTIONS`.

Names: `after.X before.X key key.X changed consent.X moved.0.X` are the event's data; `event.X` is an envelope attribute and
`envelope` all of it; `member.X` is the member (event_id, idempotency_key, subject, sequence, change_type);
`var.X` is the operator's; `secret` only where the manifest shows it in the body; `reference` is the job id of a probe.
Any other name is a logical field: the manifest's `fields`, the operator's `vars` entry `field_X`, or the defaults below.

What is not there is `ABSENT` and leaves no trace: its key, its array element, and the object that held nothing else.
A telephone number is told with the calling code of the `country` of the same record, where the number does not say its own.
An explicit null stays null (some vendors clear a field on null and keep it when absent). A field that is withheld from the subscriber
is absent whatever functions follow it: `or_empty` would clear what the subscriber has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from tidings import phones
from tidings.channels.call import Member
from tidings.channels.normalise import ABSENT, FUNCTIONS, PHONES

_EXPRESSION = re.compile(r"[a-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_$-]+)*( ?\| ?[a-z][a-z0-9_]*)*")
_HOLE = re.compile(r"\{([^{}]*)\}")
WHOLE = "=whole"
_UNSAFE = frozenset("/\\?#")
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")

DEFAULT_FIELDS: dict[str, tuple[str, ...]] = {
    "email": ("after.email",),
    "old_email": ("before.email",),
    "any_email": ("after.email", "before.email", "key.email"),
    "phone": ("after.phone",),
    "old_phone": ("before.phone",),
    "any_phone": ("after.phone", "before.phone", "key.phone"),
    "first_name": ("after.first_name",),
    "last_name": ("after.last_name",),
    "city": ("after.city", "after.address.city"),
    "state": ("after.state", "after.address.state"),
    "postcode": ("after.postcode", "after.zip", "after.address.postcode"),
    "country": ("after.country", "after.address.country"),
    "birth_date": ("after.birth_date", "after.date_of_birth"),
    "gender": ("after.gender",),
    "ad_id": ("after.ad_id", "after.mobile_ad_id"),
    "locale": ("after.locale", "event.locale"),
    "tier": ("after.tier",),
    "points": ("after.points",),
    # A merge names the survivor; who was merged into it is told, or is the record itself.
    "merged_id": ("moved.0.from", "key"),
    "survivor_id": ("moved.0.to",),
}


class Unusable(Exception):
    """A value that must be there is not, or may not travel where the manifest puts it. `code` goes into the outcome."""

    def __init__(self, code: str, detail: str) -> None:
        self.code, self.detail = code, detail
        super().__init__(code, detail)


@dataclass(frozen=True)
class Scope:
    """Where names are looked up for one member."""

    member: Member | None
    variables: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    secret: str = field(default="", repr=False)
    reference: str = ""

    def value(self, name: str) -> Any:
        """What a name means here; ABSENT when it is not there."""
        root, _, rest = name.partition(".")
        if root == "var":
            return self.variables.get(rest) or ABSENT
        if root == "secret":
            return self.secret or ABSENT
        if root == "reference":
            return self.reference or ABSENT
        if self.member is None:
            return ABSENT
        if root == "member":
            return getattr(self.member, rest, ABSENT)
        if root == "envelope":
            return self.member.body
        if root == "event":
            return self.member.body.get(rest, ABSENT)
        data = self.member.body.get("data")
        data = data if isinstance(data, Mapping) else {}
        if root in ("after", "before", "changed", "consent", "moved"):
            return dig(data, name)
        if root == "key":
            return dig(data, name) if rest else _whole_key(data.get("key"))
        return self._logical(name)

    def _logical(self, name: str) -> Any:
        found = ABSENT
        for path in self._paths(name):
            found = self.value(path)
            if found is not ABSENT and found is not None:
                return found
        return found

    def _paths(self, name: str) -> tuple[str, ...]:
        """Where a logical field may stand."""
        own = self.variables.get(f"field_{name}")
        return (own,) if own else self.fields.get(name) or DEFAULT_FIELDS.get(name, ())

    def _withheld(self, name: str) -> bool:
        """Is a name, or one of the places it may stand, kept from this subscriber?"""
        root, _, rest = name.partition(".")
        hidden = self.member.withheld if self.member else ()
        if root in ("after", "before", "key"):
            return any(f"{rest}.".startswith(f"{path}.") for path in hidden)
        if root == "event":
            return f"attribute:{rest}" in hidden
        return any(self._withheld(path) for path in self._paths(name)) if hidden else False

    def evaluate(self, text: str) -> Any:
        """One expression without its `=`."""
        name, *functions = _parse(text)
        value = self.value(name)
        if value is ABSENT and self._withheld(name):
            return ABSENT
        if PHONES.intersection(functions):
            value = self._international(name, value)
        for function in functions:
            value = FUNCTIONS[function](value)
        return value

    def _international(self, name: str, value: Any) -> Any:
        """A number as it is dialled at home, with the calling code of the country that the same record names."""
        if isinstance(value, bool) or not isinstance(value, str | int):
            return value
        images = ("before", "after") if name.startswith(("old_", "before.")) else ("after", "before")
        places = [f"{image}.{path}" for image in images for path in ("country", "address.country")]
        countries = (self.value(place) for place in (("country", *places) if images[0] == "after" else places))
        country = next((one for one in countries if isinstance(one, str) and one), "")
        number = phones.e164(str(value), country)
        return number if number.startswith("+") else value

    def fill(self, template: Any) -> Any:
        """The template with every expression replaced."""
        if isinstance(template, str):
            if template.startswith("=="):
                return template[1:]
            return self.evaluate(template[1:]) if template.startswith("=") else template
        if isinstance(template, Mapping):
            pairs = ((self.fill(key) if key[:1] == "=" else key, self.fill(one)) for key, one in template.items())
            whole = {key: value for key, value in pairs if value is not ABSENT and isinstance(key, str)}
            if template.get(WHOLE) and len(whole) < len(template) - 1:
                return ABSENT
            return whole if whole or not template else ABSENT
        if isinstance(template, (list, tuple)):
            every = [value for inner in template if (value := self.fill(inner)) is not ABSENT]
            return every if every or not template else ABSENT
        return template

    def fill_path(self, template: str) -> str:
        """A URL path with every parameter encoded; refuses what could climb out of its place."""
        return _HOLE.sub(lambda hole: path_parameter(self.evaluate(hole[1]), hole[1]), template)


def path_parameter(value: Any, name: str) -> str:
    """One value as one path segment. The name is said in errors, the value never."""
    if value is ABSENT or value is None or value == "":
        raise Unusable("missing_field", f"{name} is not there and the path needs it")
    text = str(value)
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
        raise Unusable("unsafe_path", f"{name} holds a control character")
    if set(text) & _UNSAFE or _ENCODED.search(text):
        raise Unusable("unsafe_path", f"{name} holds a slash, ?, # or an encoded character, which some servers decode")
    if text.strip(".") == "":
        raise Unusable("unsafe_path", f"{name} is a dot segment")
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise Unusable("unsafe_path", f"{name} is not well-formed text") from None


def dig(value: Any, path: str) -> Any:
    """A dotted path into decoded JSON; digits index arrays; ABSENT when it leads nowhere."""
    for part in path.split(".") if path else ():
        if isinstance(value, Mapping):
            value = value.get(part, ABSENT)
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return ABSENT
    return value


def _whole_key(key: Any) -> Any:
    """A key of one field is its value; of several, the values joined in the contract's order."""
    if isinstance(key, Mapping):
        return ":".join(str(part) for part in key.values()) if key else ABSENT
    return ABSENT if key is None else key


@lru_cache(maxsize=4096)
def _parse(text: str) -> tuple[str, ...]:
    if not _EXPRESSION.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is not `name` or `name | function | …`")
    name, *functions = (part.strip() for part in text.split("|"))
    for function in functions:
        if function not in FUNCTIONS:
            raise ValueError(f"{function!r} is not a function; there are {', '.join(sorted(FUNCTIONS))}")
    return (name, *functions)


def check_template(template: Any) -> None:
    """Every expression parses; a ValueError says which does not."""
    for text in texts_of(template):
        if text.startswith("=") and not text.startswith("=="):
            _parse(text[1:])


def check_path_template(path: str) -> None:
    """A path starts with `/`, and its holes parse; parameters never make a dot segment of a literal."""
    if not path.startswith("/") or any(part in (".", "..") for part in path.split("/")):
        raise ValueError(f"path {path!r} must start with / and hold no dot segment")
    for hole in _HOLE.findall(path):
        _parse(hole)
    if "{" in _HOLE.sub("", path) or "?" in path or "#" in path:
        raise ValueError(f"path {path!r}: braces must pair, and query parameters go under `query`")


def expressions_of(path: str, *templates: Any) -> Iterator[str]:
    """Every expression of a request, without its `=` or its braces."""
    yield from _HOLE.findall(path)
    for text in texts_of(templates):
        if text.startswith("=") and not text.startswith("=="):
            yield text[1:]


def texts_of(template: Any) -> Iterator[str]:
    """Every text in a template, however deep."""
    if isinstance(template, str):
        yield template
    elif isinstance(template, Mapping):
        for key, inner in template.items():
            yield from texts_of(key)
            yield from texts_of(inner)
    elif isinstance(template, (list, tuple)):
        for inner in template:
            yield from texts_of(inner)
