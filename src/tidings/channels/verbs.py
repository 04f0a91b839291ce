"""What one verb of a vendor is: the request, what its answer means, how much that proves and how fast it may be asked.

A verb is named by what it does: one of VERBS, alone or with a word for the channel or the case (`suppress_sms`).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

from pydantic import Field, model_validator

from tidings.channels.call import Capabilities, Result, Strength
from tidings.channels.mapping import check_path_template, check_template, expressions_of, texts_of
from tidings.contract import Model, Wrong

VERBS = ("upsert", "rectify", "suppress", "resubscribe", "erase", "merge", "track")
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Encoding = Literal["json", "form", "none"]
Idempotency = Literal["natural", "header", "field", "none"]


def _compiles(path: str, *templates: Any) -> None:
    try:
        check_path_template(path)
        for template in templates:
            check_template(template)
    except ValueError as error:
        raise Wrong(f"templates that can be read: {error}", "Mend the expression.") from None


class Check(Model):
    """A condition on the decoded answer; with no comparison it asks whether anything is there.

    `empty` is about a value that is there: a list without members, an object without fields, an empty text or null.
    """

    path: str = ""
    equals: Any = Field(default=None, alias="is")
    among: tuple[Any, ...] = Field(default=(), alias="in")
    not_among: tuple[Any, ...] = Field(default=(), alias="not_in")
    empty: bool | None = None


class Rule(Check):
    """The first rule whose status and condition both fit decides a request that is not a success.

    `shut: true` says that no member is at fault but the credentials or the account: the lane waits, as after a 401.
    """

    status: tuple[int | str, ...] = ()
    result: Result
    code: str = ""
    shut: bool = False


class Success(Model):
    status: tuple[int | str, ...] = ("2xx",)
    body: tuple[Check, ...] = ()


class Items(Model):
    """Where an answer speaks of single members.

    `style: all` lists every member and `failed` picks the bad ones; `style: failures` lists only the bad ones.
    `match: index` is the position in the request, told at `place` where only failures are listed; otherwise `match` is a
    path in the item, compared with `ours`. `done_codes` are failures that mean it had been done before.
    """

    style: Literal["all", "failures"]
    at: str
    match: str
    place: str = "index"
    ours: str = "=member.event_id"
    failed: Check | None = None
    code: str = ""
    transient_codes: tuple[Any, ...] = ()
    done_codes: tuple[Any, ...] = ()


class Counts(Model):
    """Only a number of bad members comes back: a batch with any is halved until the bad ones stand alone."""

    invalid: str


class Batch(Model):
    """Many members in one request: `item` per member, gathered in an array at `at` in the body."""

    at: str
    item: Any
    max: int = Field(gt=0)
    max_bytes: int = Field(default=1_000_000, gt=0)


class Windows(Model):
    """How many requests a vendor takes in each of several windows at once."""

    per_second: float | None = Field(default=None, gt=0)
    per_minute: float | None = Field(default=None, gt=0)
    per_day: float | None = Field(default=None, gt=0)

    @property
    def spans(self) -> tuple[tuple[float, float], ...]:
        """(requests, seconds) of each window that is told."""
        told = ((self.per_second, 1.0), (self.per_minute, 60.0), (self.per_day, 86_400.0))
        return tuple((many, seconds) for many, seconds in told if many is not None)


class Rates(Windows):
    """The vendor's pace for the account, and how many requests may be open."""

    per_second: float = Field(default=10, gt=0)
    concurrency: int = Field(default=4, gt=0)
    max_bytes: int = Field(default=1_000_000, gt=0)

    @property
    def steady(self) -> float:
        """Requests a second that break neither the second's window nor the minute's."""
        return min(self.per_second, (self.per_minute or self.per_second * 60) / 60)


class Probe(Model):
    """Ask what became of a member. No rule fits: still pending, so still in doubt."""

    method: Method = "GET"
    path: str
    query: dict[str, Any] = Field(default_factory=dict)
    encoding: Encoding = "none"
    body: Any = None
    strength: Strength = "A3"
    rules: tuple[Rule, ...]

    @model_validator(mode="after")
    def _templates_compile(self) -> Probe:
        _compiles(self.path, self.query, self.body)
        return self


class Verb(Model):
    """`probe` follows a job or a record we named; `verify` reads what an acknowledgement of A0 or A1 does not prove."""

    method: Method = "POST"
    path: str
    query: dict[str, Any] = Field(default_factory=dict)
    headers: dict[str, str] = Field(default_factory=dict)
    encoding: Encoding = "json"
    body: Any = None
    batch: Batch | None = None
    require: tuple[str, ...] = ()
    require_any: tuple[str, ...] = ()
    success: Success = Success()
    items: Items | None = None
    counts: Counts | None = None
    failures: tuple[Rule, ...] = ()
    idempotency: Idempotency
    key_window_s: float | None = Field(default=None, gt=0)  # how long a key is remembered; None means for good
    ack: Strength
    job: str = ""
    probe: Probe | None = None
    verify: Probe | None = None
    limits: Windows = Windows()
    timeout_s: float = Field(default=30, gt=0)
    note: str = ""

    @property
    def capabilities(self) -> Capabilities:
        keyed, natural = self.idempotency in ("header", "field"), self.idempotency == "natural"
        # A read of the state shows an effect, but where a repeat is harmful it cannot show that there was none.
        asked = self.probe is not None or (self.verify is not None and (keyed or natural))
        return Capabilities(idempotency_key=keyed, natural=natural, probe=asked)

    @property
    def asks(self) -> Probe | None:
        """The read that tells what became of a member, if the vendor has one."""
        return self.probe or self.verify

    @cached_property
    def hashes(self) -> bool:
        """Whether it sends digests, which only the same normal form finds again."""
        texts = texts_of((self.body, self.query, self.path, self.batch and self.batch.item))
        return any("| sha256" in text for text in texts)

    @cached_property
    def forms(self) -> dict[str, tuple[str, ...]]:
        """How this request writes each name, before it is hashed: what has no such form is not there for this verb."""
        found: dict[str, set[str]] = {}
        for text in expressions_of(self.path, self.query, self.headers, self.body, self.batch and self.batch.item):
            name, *functions = (part.strip() for part in text.split("|"))
            kept = [one for one in functions if one != "sha256" and not one.startswith("or_")]
            found.setdefault(name, set()).add(" | ".join((name, *kept)))
        return {name: tuple(sorted(forms)) for name, forms in found.items()}

    @model_validator(mode="after")
    def _templates_compile(self) -> Verb:
        _compiles(self.path, self.query, self.headers, self.body, self.batch and self.batch.item)
        if self.batch and self.idempotency == "header":
            raise Wrong("`field`, `natural` or `none`: no header stays the same when a batch is cut anew", "Change it.")
        if self.batch and "{" in self.path.replace("{var.", ""):
            raise Wrong("only {var.…} in a batched path: it is one request for many members", "Drop `batch`.")
        if self.verify and self.ack > "A1":
            raise Wrong("`verify` only where the acknowledgement is A0 or A1", "Call it `probe`, or leave it out.")
        return self


class Ping(Model):
    method: Literal["GET", "POST"] = "GET"
    path: str
    query: dict[str, Any] = Field(default_factory=dict)
    encoding: Encoding = "none"
    body: Any = None
    success: Success = Success()
    note: str = ""

    @model_validator(mode="after")
    def _templates_compile(self) -> Ping:
        _compiles(self.path, self.query, self.body)
        return self
