"""What `run` would do, as small records: built without effects, shown before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tidings.channels import open_channel
from tidings.channels.call import Channel
from tidings.channels.manifest import Manifest, load_manifest
from tidings.errors import ConfigurationError, Problem, Refused
from tidings.gate.loading import examine_policy
from tidings.hold_check import hold_problems
from tidings.settings import Settings, examine
from tidings.shapes import Subscriber


@dataclass(frozen=True)
class PlannedSource:
    name: str
    kind: str
    dialect: str
    path: str
    banner: str
    location: str
    entities: dict[str, str]
    snapshot: str
    after: str


@dataclass(frozen=True)
class PlannedEntity:
    name: str
    kind: str
    version: str
    key: tuple[str, ...]
    change_types: tuple[str, ...]
    identifiers: tuple[str, ...]
    fields: int


@dataclass(frozen=True)
class Promise:
    """What one subscriber is promised for one change type, and how much its acknowledgement proves."""

    change_type: str
    semantics: str
    sla_s: float
    ack: str


@dataclass(frozen=True)
class Capacity:
    """How fast a subscriber may be fed: calls per second times members per call, and what that means for a backfill."""

    calls_per_second: float
    members_per_call: int
    concurrency: int
    subjects: int
    backfill_s: float


@dataclass(frozen=True)
class PlannedSubscriber:
    name: str
    manifest: str
    channel: str
    role: str
    region: str
    dpa: bool
    entities: tuple[str, ...]
    filtered: bool
    promises: tuple[Promise, ...]
    capacity: Capacity


@dataclass(frozen=True)
class Plan:
    """Everything `check` prints."""

    tenant: str
    banners: dict[str, tuple[str, ...]]
    jurisdiction: str
    data: str
    sources: tuple[PlannedSource, ...]
    entities: tuple[PlannedEntity, ...]
    own_types: tuple[str, ...]
    subscribers: tuple[PlannedSubscriber, ...]
    rules: int
    policy_version: str
    test_mode: bool
    test_subjects: int
    warnings: tuple[Problem, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def verified(directory: str | Path) -> Settings:
    """The settings once files, catalogue, secrets, rules, filters and channels all fit; else every problem at once."""
    settings, problems = examine(directory)
    if settings is not None:
        said = {(problem.file, problem.path) for problem in problems}
        channels = [problem for problem in _channels(settings) if (problem.file, problem.path) not in said]
        problems = sorted({*problems, *examine_policy(settings)[1], *channels, *hold_problems(settings)})
    if problems or settings is None:
        raise ConfigurationError(problems)
    return settings


def _channels(settings: Settings) -> Iterator[Problem]:
    """What keeps a subscriber's channel from being opened; opening one calls nobody."""
    for name in settings.subscribers:
        label = f"subscribers/{name}.yaml"
        page = settings.documents[label]
        try:
            open_subscriber(settings, name)
        except ConfigurationError as error:
            for problem in error.problems:
                yield (
                    replace(problem, line=page.line(tuple(problem.path.split("."))))
                    if problem.file == label
                    else problem
                )
        except Refused as error:
            # A secret that is not there was reported where it is referred to.
            if not error.code.startswith("secret_"):
                place = ("signing_secret",) if error.code.startswith("signing") else ()
                yield page.problem(place, error.code, error.found, error.expected, error.what_now)


def open_subscriber(settings: Settings, name: str) -> Channel:
    """The channel of one subscriber, with its secrets."""
    secrets = settings.secrets_of(name)
    return open_channel(settings.subscribers[name], secrets, settings.network, manifests=settings.manifests_path)


def plan(settings: Settings, subjects: int) -> Plan:
    """The plan of this folder; `subjects` is how many records a backfill would send."""
    return Plan(
        tenant=settings.tenant,
        banners={banner.id: tuple(place.id for place in banner.locations) for banner in settings.banners.values()},
        jurisdiction=settings.jurisdiction,
        data=settings.operator.data,
        sources=tuple(_source(settings, name) for name in settings.sources),
        entities=tuple(_entity(settings, name) for name in settings.entities),
        own_types=tuple(
            name for name in settings.change_types if any(name in c.types for c in settings.entities.values())
        ),
        subscribers=tuple(_subscriber(settings, one, subjects) for one in settings.subscribers.values()),
        rules=len(settings.policies.rules),
        policy_version=examine_policy(settings)[0].version,
        test_mode=settings.test_mode.enabled,
        test_subjects=len(settings.test_mode.subjects),
        warnings=settings.warnings,
    )


def _source(settings: Settings, name: str) -> PlannedSource:
    source = settings.sources[name]
    where = (source.banner, source.location or "")
    return PlannedSource(
        name, source.kind, source.dialect, source.path or "", *where, source.entities, source.snapshot, source.after
    )


def _entity(settings: Settings, name: str) -> PlannedEntity:
    contract = settings.entities[name]
    identifiers = tuple(contract.identifiers)
    types = contract.change_types
    return PlannedEntity(name, contract.kind, contract.version, contract.key, types, identifiers, len(contract.fields))


def _subscriber(settings: Settings, subscriber: Subscriber, subjects: int) -> PlannedSubscriber:
    manifest = load_manifest(subscriber.manifest, settings.manifests_path)
    promises = tuple(_promises(settings, subscriber, manifest))
    return PlannedSubscriber(
        name=subscriber.name,
        manifest=subscriber.manifest,
        channel=manifest.channel,
        role=subscriber.role,
        region=subscriber.region,
        dpa=subscriber.dpa,
        entities=subscriber.entities,
        filtered=subscriber.filter is not None,
        promises=promises,
        capacity=capacity(subscriber, manifest, [promise.change_type for promise in promises], subjects),
    )


def _promises(settings: Settings, subscriber: Subscriber, manifest: Manifest) -> list[Promise]:
    """Only types that some contract the subscriber takes can make."""
    made = {
        kind
        for name, contract in settings.entities.items()
        for kind in contract.event_types
        if subscriber.wants(kind, name)
    }
    return [
        Promise(kind, subscriber.semantics_for(kind), subscriber.sla_for(kind), manifest.strength(kind))
        for kind in settings.change_types
        if kind in made
    ]


def capacity(subscriber: Subscriber, manifest: Manifest, types: list[str], subjects: int) -> Capacity:
    """The narrower of the vendor's limits and the operator's; a verb that takes one member a request sets the pace."""
    vendor, own = manifest.limits_for_lane, subscriber.rate
    calls = min(vendor.per_second, own.per_second or vendor.per_second)
    verbs = [verb for kind in types for verb in manifest.routed(kind)]
    members = min((verb.batch.max if verb.batch else 1 for verb in verbs), default=vendor.max_batch)
    members = min(members, own.batch or members)
    at_once = min(vendor.concurrency, own.concurrency or vendor.concurrency)
    return Capacity(calls, members, at_once, subjects, round(subjects / (calls * members), 1))
