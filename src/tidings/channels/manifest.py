"""A vendor's API as data: the shape of catalog/subscribers/*.yaml and how one is read.

A manifest says which verbs a vendor has, what a request looks like, what counts as success, what a repeat does and how
much an acknowledgement proves. It holds no code: values are literals or the expressions of `mapping`.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from tidings import yaml_lines
from tidings.channels.call import STANDARD_SCHEDULE, Capabilities, Limits, Result, Strength
from tidings.channels.mapping import check_path_template, check_template
from tidings.contract import Model, Wrong
from tidings.errors import ConfigurationError, Problem
from tidings.reading import into

Encoding = Literal["json", "form", "none"]
Mode = Literal["structured", "binary", "batched"]
Idempotency = Literal["natural", "header", "field", "none"]


def _compiles(path: str, *templates: Any) -> None:
    try:
        check_path_template(path)
        for template in templates:
            check_template(template)
    except ValueError as error:
        raise Wrong(f"templates that can be read: {error}", "Mend the expression.") from None


class Auth(Model):
    """How the subscriber's secret is shown. `body` puts it where a template says `=secret`."""

    kind: Literal["bearer", "basic", "header", "body", "none"] = "none"
    header: str = "Authorization"
    prefix: str = ""
    user: str | None = None  # basic: the fixed user, the secret is the password
    password: str | None = None  # basic: the fixed password, the secret is the user


class Check(Model):
    """A condition on the decoded answer; with no comparison it asks whether anything is there."""

    path: str = ""
    equals: Any = Field(default=None, alias="is")
    among: tuple[Any, ...] = Field(default=(), alias="in")
    not_among: tuple[Any, ...] = Field(default=(), alias="not_in")
    empty: bool | None = None


class Rule(Check):
    """The first rule whose status and condition both fit decides a request that is not a success."""

    status: tuple[int | str, ...] = ()
    result: Result
    code: str = ""


class Success(Model):
    status: tuple[int | str, ...] = ("2xx",)
    body: tuple[Check, ...] = ()


class Items(Model):
    """Where an answer speaks of single members.

    `style: all` lists every member and `failed` picks the bad ones; `style: failures` lists only the bad ones.
    `match: index` is the position in the request; otherwise it is a path in the item, compared with `ours`.
    """

    style: Literal["all", "failures"]
    at: str
    match: str
    ours: str = "=member.event_id"
    failed: Check | None = None
    code: str = ""
    transient_codes: tuple[Any, ...] = ()


class Counts(Model):
    """Only a number of bad members comes back: a batch with any is halved until the bad ones stand alone."""

    invalid: str


class Batch(Model):
    """Many members in one request: `item` per member, gathered in an array at `at` in the body."""

    at: str
    item: Any
    max: int = Field(gt=0)
    max_bytes: int = Field(default=1_000_000, gt=0)


class Probe(Model):
    """Ask what became of a member. No rule fits: still pending, so still in doubt."""

    method: str = "GET"
    path: str
    query: dict[str, Any] = Field(default_factory=dict)
    strength: Strength = "A3"
    rules: tuple[Rule, ...]

    @model_validator(mode="after")
    def _templates_compile(self) -> Probe:
        _compiles(self.path, self.query)
        return self


class Verb(Model):
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
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
    ack: Strength
    job: str = ""
    probe: Probe | None = None
    timeout_s: float = Field(default=30, gt=0)
    note: str = ""

    @property
    def capabilities(self) -> Capabilities:
        keyed = self.idempotency in ("header", "field")
        return Capabilities(idempotency_key=keyed, natural=self.idempotency == "natural", probe=self.probe is not None)

    @model_validator(mode="after")
    def _templates_compile(self) -> Verb:
        _compiles(self.path, self.query, self.headers, self.body, self.batch and self.batch.item)
        if self.batch and self.idempotency == "header":
            raise Wrong("`field`, `natural` or `none`: no header stays the same when a batch is cut anew", "Change it.")
        if self.batch and "{" in self.path.replace("{var.", ""):
            raise Wrong("only {var.…} in a batched path: it is one request for many members", "Drop `batch`.")
        return self


class Route(Model):
    """Which verbs an event takes: the first route whose types and conditions fit. Several verbs run in order."""

    types: tuple[str, ...]
    when: dict[str, Any] = Field(default_factory=dict)
    verbs: tuple[str, ...] = Field(alias="verb")
    optional: tuple[str, ...] = ()

    @field_validator("verbs", "types", "optional", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class Rates(Model):
    per_second: float = Field(default=10, gt=0)
    concurrency: int = Field(default=4, gt=0)
    max_bytes: int = Field(default=1_000_000, gt=0)


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


class Hook(Model):
    """Channel `webhook`: how CloudEvents travel and what a 2xx proves."""

    mode: Mode = "structured"
    batch: int = Field(default=100, gt=0)
    ack: Strength = "A2"
    idempotency: Idempotency = "header"


class Manifest(Model):
    name: str = Field(default="", exclude=True, json_schema_extra={"internal": True})
    title: str
    channel: Literal["http", "webhook"]
    kind: str
    url: str = ""
    docs: str
    source: str
    checked_on: str
    confidence: Literal["high", "med", "low"]
    notes: tuple[str, ...] = ()
    vars: dict[str, str | None] = Field(default_factory=dict)
    fields: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    auth: Auth = Auth()
    headers: dict[str, str] = Field(default_factory=dict)
    limits: Rates = Rates()
    retry: tuple[float, ...] = STANDARD_SCHEDULE
    retry_after: str = "Retry-After"
    idempotency_header: str = "Idempotency-Key"
    failures: tuple[Rule, ...] = ()
    ping: Ping | None = None
    verbs: dict[str, Verb] = Field(default_factory=dict)
    routes: tuple[Route, ...] = ()
    webhook: Hook | None = None

    @model_validator(mode="after")
    def _whole(self) -> Manifest:
        if (self.channel == "webhook") != (self.webhook is not None):
            raise Wrong("channel `webhook` together with a `webhook:` section", "Add the one that is missing.")
        if self.channel == "http" and not (self.verbs and self.routes and self.ping):
            raise Wrong("`verbs`, `routes` and `ping` for the channel `http`", "Add what is missing.")
        for route in self.routes:
            if any(self.verbs[verb].idempotency == "none" for verb in route.verbs[:-1] if verb in self.verbs):
                raise Wrong("only the last verb of a route without idempotency: a retry runs all", "Split the route.")
            for verb in (*route.verbs, *route.optional):
                if verb not in self.verbs:
                    raise Wrong(
                        f"routes to the verbs {', '.join(sorted(self.verbs))}", f"Describe {verb!r} or rename it."
                    )
        return self

    def routed(self, change_type: str) -> list[Verb]:
        """Every verb an event of this type might take, whatever its values."""
        found: list[Verb] = []
        for route in self.routes:
            if change_type in route.types or "*" in route.types:
                found += [self.verbs[name] for name in route.verbs]
                if not route.when:
                    break
        return found

    def capabilities(self, change_type: str | None = None) -> Capabilities:
        """What every verb that may be used can do; a promise is only as good as the weakest of them."""
        if self.webhook:
            return Capabilities(idempotency_key=self.webhook.idempotency == "header")
        verbs = list(self.verbs.values()) if change_type is None else self.routed(change_type)
        each = [verb.capabilities for verb in verbs]
        once = bool(each) and all("exactly-once" in found.semantics for found in each)
        return Capabilities(
            idempotency_key=once and any(found.idempotency_key for found in each),
            natural=once and any(found.natural for found in each),
            probe=once and any(found.probe for found in each),
        )

    def strength(self, change_type: str) -> Strength:
        """The weakest acknowledgement an event of this type can get."""
        if self.webhook:
            return self.webhook.ack
        return min((verb.ack for verb in self.routed(change_type)), default="A0")

    @property
    def limits_for_lane(self) -> Limits:
        """A call may need one request per member; then it holds no more members than two seconds' worth of requests."""
        rates = self.limits
        if self.webhook:
            many = self.webhook.batch if self.webhook.mode == "batched" else 1
        else:
            many = max((verb.batch.max for verb in self.verbs.values() if verb.batch), default=1)
            if any(verb.batch is None for verb in self.verbs.values()):
                many = min(many, max(1, int(rates.per_second * 2)))
        return Limits(many, rates.per_second, rates.concurrency, rates.max_bytes, tuple(self.retry))


def manifest_names() -> list[str]:
    """The manifests that come with the package."""
    folder = files("tidings").joinpath("catalog/subscribers")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


@cache
def shipped_manifest(name: str) -> Manifest:
    """One manifest of the catalog, by name."""
    label = f"catalog/subscribers/{name}.yaml"
    if name not in manifest_names():
        known = f"one of {', '.join(manifest_names())}"
        now = "Name one of these, or write your own."
        raise ConfigurationError([Problem(label, 0, "manifest", "unknown_manifest", repr(name), known, now)])
    return read_manifest(files("tidings").joinpath(label).read_text(encoding="utf-8"), label, name)


def load_manifest(name: str, folder: Path | None = None) -> Manifest:
    """The operator's own `<folder>/<name>.yaml` when it exists, else the shipped one."""
    if folder is not None and "/" not in name and (own := folder / f"{name}.yaml").is_file():
        return read_manifest(own.read_text(encoding="utf-8"), f"{folder.name}/{name}.yaml", name)
    return shipped_manifest(name)


def read_manifest(text: str, file: str, name: str) -> Manifest:
    """Parse and validate; every problem at once, with its line."""
    document, problems = yaml_lines.parse(text, file)
    if document is not None:
        manifest, problems = into(Manifest, document, name)
        if manifest is not None:
            return manifest
    raise ConfigurationError(problems)
