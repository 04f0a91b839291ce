"""The parts a vendor's API is made of: a request, an answer, verbs, and how each vendor asks who is calling."""

from __future__ import annotations

import base64
import hmac
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qs

from .books import Books, Item, Repeat, digest, subject_of


@dataclass(frozen=True)
class Request:
    """One call as it arrived. Header names are lower case; `groups` are the parts of the path the verb names."""

    vendor: str
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    groups: Mapping[str, str] = field(default_factory=dict)

    def json(self) -> Any:
        """The body; a ValueError when it is none."""
        return json.loads(self.body or b"null")

    def form(self) -> dict[str, list[str]]:
        return parse_qs(self.body.decode(), strict_parsing=True)


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


Reading = Callable[[Request], list[Item]]
Saying = Callable[[Request, Sequence[Item], Sequence[str], Books], Answer]


@dataclass(frozen=True)
class Verb:
    """One thing a vendor does. `many` is its batch limit and `too_many` what it answers above it."""

    name: str
    method: str
    path: str
    reads: Reading
    says: Saying
    many: int = 1
    too_many: int = 400
    repeat: Repeat = "harmless"
    needs_person: bool = False  # 404 for somebody this vendor has erased
    tells: bool = False  # its answer can speak of single items; where it cannot, one bad item is a bad request

    def fits(self, method: str, path: str) -> Mapping[str, str] | None:
        found = re.fullmatch(self.path, path) if method == self.method else None
        return None if found is None else found.groupdict()


@dataclass(frozen=True)
class Vendor:
    """`knows` tells a caller with the right secret from the others. `per_second` 0 means it does not throttle."""

    name: str
    verbs: tuple[Verb, ...]
    knows: Callable[[Request, str], bool]
    per_second: float = 0
    burst: float = 1
    throttle: Literal["retry-after", "silent", "body"] = "retry-after"


def says(status: int, body: Any = None) -> Saying:
    """Always the same words."""
    return lambda request, items, outcomes, books: Answer(status, body)


def nothing(request: Request) -> list[Item]:
    """A verb that only looks."""
    return []


def same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


def bearer(request: Request, secret: str) -> bool:
    return same(request.headers.get("authorization", ""), f"Bearer {secret}")


def header(name: str, prefix: str = "") -> Callable[[Request, str], bool]:
    return lambda request, secret: same(request.headers.get(name, ""), prefix + secret)


def basic(shape: str) -> Callable[[Request, str], bool]:
    """`shape` says where the secret sits: `{secret}`, `anything:{secret}` or `{secret}:`."""

    def knows(request: Request, secret: str) -> bool:
        scheme, _, coded = request.headers.get("authorization", "").partition(" ")
        try:
            text = base64.b64decode(coded, validate=True).decode()
        except ValueError:
            return False
        if shape.startswith("anything:"):
            text = "anything:" + text.partition(":")[2]
        return scheme.lower() == "basic" and same(text, shape.format(secret=secret))

    return knows


def content(value: Any) -> str:
    """What the books keep of a body: whether it is the same as another."""
    return digest(json.dumps(value, sort_keys=True, separators=(",", ":")))


def item(identity: object, body: Any, key: object = "", at: tuple[object, object] = ("", "")) -> Item:
    """An item for this person; without an identity the vendor will not take it."""
    feed, sequence = (str(part or "") for part in at)
    wrong = "" if identity not in (None, "") else "no_identity"
    return Item(subject_of(identity), content(body), str(key or ""), feed, sequence, wrong)


def job_of(seconds: float, where: Callable[[str], Any], status: int = 202, verb: str = "job") -> Saying:
    """Accepted; done later; here is the number to ask with."""

    def say(request: Request, items: Sequence[Item], outcomes: Sequence[str], books: Books) -> Answer:
        return Answer(status, where(books.new_job(request.vendor, verb, seconds)))

    return say
