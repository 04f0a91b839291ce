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
from tidings.channels.auth import Auth
from tidings.channels.call import STANDARD_SCHEDULE, Capabilities, Limits, Strength
from tidings.channels.kinds import KINDS, guarantee
from tidings.channels.verbs import VERBS, Idempotency, Ping, Rates, Rule, Verb
from tidings.contract import RIGHT_TYPES, Model, Wrong
from tidings.errors import ConfigurationError, Problem
from tidings.reading import into

Mode = Literal["structured", "binary", "batched"]
SignedBy = Literal["standard", "rfc9421", "both"]
Answers = Literal["response", "callback"]


class Route(Model):
    """Which verbs an event takes: the first route whose types and conditions fit. Several verbs run in order.

    No verb at all says that the vendor has none for such an event, whatever the routes after it would catch.
    """

    types: tuple[str, ...]
    when: dict[str, Any] = Field(default_factory=dict)
    verbs: tuple[str, ...] = Field(alias="verb")
    optional: tuple[str, ...] = ()

    def takes(self, change_type: str) -> bool:
        """A right of a person is not what `*` means: an upsert would not carry it out, and would say that it had."""
        return change_type in self.types or ("*" in self.types and change_type not in RIGHT_TYPES)

    @field_validator("verbs", "types", "optional", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class Hook(Model):
    """Channel `webhook`: how CloudEvents travel and what a 2xx proves."""

    mode: Mode = "structured"
    batch: int = Field(default=100, gt=0)
    ack: Strength = "A2"
    idempotency: Idempotency = "header"
    signing: SignedBy = "standard"
    answers: Answers = "response"  # callback: a 2xx means taken, and a signed callback says what became of it
    handshake: str = ""  # the origin we ask leave for, a DNS name; empty: we do not ask


class Sink(Model):
    """Every channel that is neither HTTP nor a webhook: events go as CloudEvents, many to a call; `kinds` says what it promises."""

    batch: int = Field(default=500, gt=0, le=1_000)
    ack: Strength = "A3"
    mode: Literal["structured", "binary"] = "structured"
    key_window_s: float | None = Field(default=None, gt=0)  # how long a repeat is recognised; None means for good
    dedup: bool = True  # false: this form of the sink does not do what makes a repeat harmless elsewhere


class Manifest(Model):
    name: str = Field(default="", exclude=True, json_schema_extra={"internal": True})
    title: str
    channel: str
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
    retry_after_form: Literal["seconds", "epoch"] = "seconds"
    idempotency_header: str = "Idempotency-Key"
    failures: tuple[Rule, ...] = ()
    ping: Ping | None = None
    verbs: dict[str, Verb] = Field(default_factory=dict)
    routes: tuple[Route, ...] = ()
    webhook: Hook | None = None
    sink: Sink | None = None

    @model_validator(mode="after")
    def _whole(self) -> Manifest:
        if self.channel not in KINDS:
            raise Wrong(f"one of the channels {', '.join(KINDS)}", "Name a channel that exists.")
        if (self.channel not in ("http", "webhook")) != (self.sink is not None):
            raise Wrong("a `sink:` section for every channel but `http` and `webhook`", "Add or remove it.")
        if (self.channel == "webhook") != (self.webhook is not None):
            raise Wrong("channel `webhook` together with a `webhook:` section", "Add the one that is missing.")
        if self.channel == "http" and not (self.verbs and self.routes and self.ping):
            raise Wrong("`verbs`, `routes` and `ping` for the channel `http`", "Add what is missing.")
        for name in self.verbs:
            if name.partition("_")[0] not in VERBS:
                raise Wrong(f"verbs called {', '.join(VERBS)}, or one of them and _word", f"Rename {name!r}.")
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
            if route.takes(change_type):
                found += [self.verbs[name] for name in route.verbs]
                if not route.when:
                    break
        return found

    def capabilities(self, change_type: str | None = None) -> Capabilities:
        """What every verb that may be used can do; a promise is only as good as the weakest of them."""
        if self.webhook:
            return Capabilities(idempotency_key=self.webhook.idempotency == "header")
        if self.sink:
            return guarantee(self.channel).capabilities if self.sink.dedup else Capabilities()
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
        if self.sink:
            return self.sink.ack
        return min((verb.ack for verb in self.routed(change_type)), default="A0")

    @property
    def limits_for_lane(self) -> Limits:
        """A call may need one request per member; then it holds no more members than two seconds' worth of requests."""
        rates = self.limits
        if self.webhook:
            many = self.webhook.batch if self.webhook.mode == "batched" else 1
        elif self.sink:
            many = self.sink.batch
        else:
            many = max((verb.batch.max for verb in self.verbs.values() if verb.batch), default=1)
            if any(verb.batch is None for verb in self.verbs.values()):
                many = min(many, max(1, int(rates.steady * 2)))
        return Limits(many, rates.steady, rates.concurrency, rates.max_bytes, tuple(self.retry))


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
