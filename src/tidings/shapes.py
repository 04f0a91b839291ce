"""The shapes of tidings.yaml, sources/*.yaml and subscribers/*.yaml."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from tidings.contract import (
    DistinctTexts,
    Flag,
    Jurisdiction,
    Model,
    Name,
    Number,
    Scalar,
    SecretRef,
    Text,
    TypeName,
    Whole,
    Wrong,
)
from tidings.kinds import KINDS
from tidings.matters import Kind, Severity
from tidings.rights_shapes import Rights

Semantics = Literal["at-most-once", "at-least-once", "exactly-once"]
ALERTS: tuple[Kind | Severity, ...] = ("P0", "P1", "P2", "P3")


def _address(value: str) -> str:
    try:
        parts = urlsplit(value)
        usable = bool(parts.scheme and parts.hostname) and not any(c.isspace() for c in value)
        _ = parts.port
    except ValueError:
        usable = False
    if not usable:
        raise Wrong("an address like https://host/path", "Write the whole address.")
    if parts.username is not None or parts.password is not None:
        raise Wrong("an address without user or password", "Move the credentials to auth.", "secret_in_clear")
    return value


def _network(value: str) -> str:
    try:
        ipaddress.ip_network(value)
    except ValueError:
        raise Wrong("a network like 10.0.0.0/8 or one address", "Write it in CIDR form, host bits zero.") from None
    return value


def _kind(value: str) -> str:
    if value not in KINDS:
        raise Wrong(f"one of {', '.join(KINDS)}", "Name a kind of source that exists.")
    return value


def _locale(value: str) -> str:
    parts = value.split("-")
    if not (2 <= len(parts[0]) <= 3 and all(p.isascii() and p.isalnum() and len(p) <= 8 for p in parts)):
        raise Wrong("a language tag like en-US", "Write a BCP 47 tag.")
    return value


Url = Annotated[str, Field(max_length=2000, description="an address like https://host/path"), AfterValidator(_address)]
Locale = Annotated[str, Field(max_length=35, description="a language tag like en-US"), AfterValidator(_locale)]
Network = Annotated[str, Field(description="a network like 10.0.0.0/8"), AfterValidator(_network)]
PlaceName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$", description="letters, digits, _ . - (at most 63)")
]
Seconds = Annotated[Number, Field(gt=0, le=31_536_000, description="seconds, more than 0, at most a year")]


Vertical = Annotated[
    str, Field(pattern=r"^[A-Z][A-Za-z]{1,60}$", description="a line of business of schema.org, like MedicalBusiness")
]


class Location(Model):
    """A store, site or channel of a banner; what it does not say it takes from its banner."""

    id: PlaceName
    locale: Locale | None = None
    routing_hint: Text | None = None
    jurisdiction: Jurisdiction | None = None


class Banner(Model):
    """One brand of the portfolio and its locations."""

    id: PlaceName
    locale: Locale = "en-US"
    routing_hint: Text = ""
    jurisdiction: Jurisdiction | None = None
    vertical: Vertical | None = None
    locations: tuple[Location, ...] = ()


class Portfolio(Model):
    name: Text


class SecretsFolder(Model):
    folder: Text = "secrets"


class TestMode(Model):
    """With test mode on only the listed subjects reach a subscriber; everybody else's deliveries are refused and recorded."""

    __test__ = False  # pytest must not take the name for a test class

    enabled: Flag = False
    subjects: Annotated[DistinctTexts, Field(description="subjects like customer:1001")] = ()


class WebhookAlert(Model):
    kind: Literal["webhook"]
    url: Url
    secret: SecretRef | None = None
    on: Annotated[tuple[Kind | Severity, ...], Field(description="kinds of alert, or severities P0 to P4")] = ALERTS


class EmailAlert(Model):
    kind: Literal["email"]
    smtp: Annotated[str, Field(pattern=r"^[A-Za-z0-9.\-\[\]:]+:[0-9]{1,5}$", description="host:port")]
    from_: Annotated[Text, Field(alias="from")]
    to: Annotated[tuple[Text, ...], Field(min_length=1)]
    secret: SecretRef | None = None
    on: Annotated[tuple[Kind | Severity, ...], Field(description="kinds of alert, or severities P0 to P4")] = ALERTS


Alert = Annotated[WebhookAlert | EmailAlert, Field(discriminator="kind")]


class NetworkRules(Model):
    allow: Annotated[tuple[Network, ...], Field(description="private networks that subscribers may live in")] = ()


class RunLimits(Model):
    """How hard one machine works; every default is a number with a measurement behind it."""

    slots: Annotated[Whole, Field(ge=2, le=1024, description="Spark task slots, 2 or more")] | None = None
    batch_files: Annotated[Whole, Field(ge=1, le=100_000, description="files per batch")] = 64
    fast_budget_s: Seconds = 3.0
    slow_budget_s: Seconds = 60.0
    idle_s: Seconds = 1.0
    jars: (
        Annotated[
            Text,
            Field(description="a folder with the jars that a Kafka source needs, where Maven Central is out of reach"),
        ]
        | None
    ) = None
    shared: Annotated[
        Flag, Field(description="true when every Spark worker sees the data and drop folders under the same path")
    ] = False


class Tokenization(Model):
    """Somebody's word that a vendor's tokens are what the token fields hold."""

    vendor: Annotated[Name, Field(description="a vendor of the catalogue, like skyflow")]
    attested_by: Annotated[Text, Field(description="who says so")]
    on: Annotated[
        str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", description="the day it was said, like 2026-01-31")
    ]


class Operator(Model):
    """tidings.yaml: who the operator is and where things live."""

    tenant: Name
    portfolio: Portfolio | None = None
    banners: Annotated[tuple[Banner, ...], Field(min_length=1, description="at least one banner")]
    jurisdiction: Annotated[
        Jurisdiction, Field(description="where a subject lives when its record does not say, like US-CA")
    ]
    vertical: Vertical = "Store"
    public_company: Annotated[Flag, Field(description="true when the operator's shares are traded")] = False
    ai_routing: Annotated[Flag, Field(description="true when a model takes part in deciding who is told")] = False
    preset: Annotated[
        Literal["event-operations", "master-record", "customer-graph"],
        Field(description="the names under which the results of the five anchors are recorded"),
    ] = "event-operations"
    data: Text = "data"
    secrets: SecretsFolder = SecretsFolder()
    master_key: SecretRef
    test_mode: TestMode = TestMode()
    alerts: tuple[Alert, ...] = ()
    runbooks: Annotated[Text, Field(description="where the runbooks are, in front of their file names")] = (
        "docs/runbooks"
    )
    network: NetworkRules = NetworkRules()
    tokenization: tuple[Tokenization, ...] = ()
    run: RunLimits = RunLimits()
    rights: Rights | None = None


class Source(Model):
    """sources/NAME.yaml: how messages arrive and what they mean."""

    name: str = Field(default="", exclude=True, json_schema_extra={"internal": True})
    kind: Annotated[str, AfterValidator(_kind), Field(description=f"one of {', '.join(KINDS)}")]
    path: Annotated[Text, Field(description="the drop folder")] | None = None
    connection: Annotated[SecretRef, Field(description="of a server: where it is, user and password")] | None = None
    slot: Annotated[Text, Field(pattern=r"^[a-z0-9_]{1,63}$", description="small letters, digits, _")] | None = None
    table: Annotated[Text, Field(pattern=r"^[^.]+\.[^.]+$", description="schema.name of our own table")] | None = None
    mode: Annotated[Literal["poll", "push", "tail"], Field(description="poll, push or tail")] = "poll"
    column: Annotated[Text, Field(description="when a row was last changed, like updated_at")] | None = None
    lag: Annotated[Number, Field(ge=0, le=86_400, description="seconds a row must be old before it is read")] = 1.0
    streams: Annotated[DistinctTexts, Field(min_length=1, description="topics, streams or queues")] | None = None
    dialect: Annotated[Name, Field(description="a dialect of the catalogue, or auto")] = "auto"
    entities: Annotated[dict[Text, Name], Field(min_length=1, description="the vendor's table or object → contract")]
    banner: PlaceName
    location: PlaceName | None = None
    snapshot: Annotated[
        Literal["none", "state", "emit"],
        Field(
            description="rows that are there already: none (not read), state (known, no event) or emit (an insert each)"
        ),
    ] = "state"
    after: Annotated[Literal["archive", "delete", "keep"], Field(description="archive, delete or keep")] = "keep"
    silent_after: Seconds | None = None
    max_deletes: (
        Annotated[Number, Field(ge=0, le=1, description="the share of rows that may be gone at once, 0 to 1")] | None
    ) = None

    @model_validator(mode="before")
    @classmethod
    def _own_dialect(cls, given: Any) -> Any:
        """What we read ourselves speaks our own dialect, and some of it is not needed afterwards."""
        if isinstance(given, dict) and isinstance(name := given.get("kind"), str) and name in KINDS:
            return {"dialect": KINDS[name].dialect, "after": KINDS[name].after, **given}
        return given

    images: Annotated[
        Literal["kept", "full"],
        Field(description="full when every message carries its before-image, so that no last image needs to be kept"),
    ] = "kept"


class Auth(Model):
    """How the subscriber's secret is shown; what is left out is as the manifest says."""

    kind: Annotated[
        Literal["bearer", "basic", "header", "query", "oauth2", "hmac", "sigv4", "google", "none"],
        Field(description="bearer, basic, header, query, oauth2, hmac, sigv4, google or none"),
    ]
    secret: SecretRef | None = None
    header: Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$", description="a header name")] | None = None
    prefix: str | None = None
    param: Annotated[Text, Field(description="query: the parameter's name")] | None = None
    user: Text | None = None
    token_url: Annotated[Text, Field(description="oauth2, google: where tokens are given out")] | None = None
    scope: Text | None = None
    audience: Text | None = None
    credentials: Annotated[Literal["body", "basic"], Field(description="oauth2: body or basic")] | None = None
    signs: Annotated[Text, Field(description="hmac: a text of {method} {path} {query} {body} …")] | None = None
    algorithm: Annotated[Literal["sha256", "sha512", "sha1"], Field(description="sha256, sha512 or sha1")] | None = None
    encoding: Annotated[Literal["hex", "base64"], Field(description="hex or base64")] | None = None
    region: Text | None = None
    service: Text | None = None


class Rate(Model):
    """Narrower limits than the vendor's own."""

    per_second: Annotated[Number, Field(gt=0, le=1_000_000, description="calls per second, more than 0")] | None = None
    concurrency: Annotated[Whole, Field(ge=1, le=10_000, description="calls at once, 1 or more")] | None = None
    batch: Annotated[Whole, Field(ge=1, le=100_000, description="members per call, 1 or more")] | None = None


class Subscriber(Model):
    """subscribers/NAME.yaml: a system that must know, how it is reached and what it is promised."""

    name: str = Field(default="", exclude=True, json_schema_extra={"internal": True})
    manifest: Annotated[Name, Field(description="a manifest of the catalogue")]
    url: Url | None = None
    auth: Auth | None = None
    signing_secret: SecretRef | None = None
    connection: Annotated[SecretRef, Field(description="of a server: where it is, user and password")] | None = None
    vars: dict[Name, Scalar] = Field(default_factory=dict)
    role: Annotated[
        Literal["marketing", "service", "analytics", "ads", "loyalty", "warehouse", "agent"],
        Field(description="what it uses the data for: marketing, service, analytics, ads, loyalty, warehouse or agent"),
    ]
    region: Jurisdiction
    dpa: Annotated[Flag, Field(description="true when a data processing agreement is signed")] = False
    acts_as: Annotated[
        Literal["processor", "controller", "joint_controller", "third_party"],
        Field(description="what it is in law: processor, controller, joint_controller or third_party"),
    ] = "processor"
    baa: Annotated[Flag, Field(description="true when a business associate agreement is signed (HIPAA)")] = False
    transfer_mechanism: (
        Annotated[
            Literal["none", "adequacy", "dpf", "scc", "bcr", "idta", "derogation"],
            Field(description="what carries data across the border to it: none, adequacy, dpf, scc, bcr, idta, …"),
        ]
        | None
    ) = None
    sells: Annotated[Flag, Field(description="true when it sells or shares the data for advertising")] = False
    llm: Annotated[Flag, Field(description="true when the data may reach a large language model")] | None = None
    zero_retention: Annotated[Flag, Field(description="true when the model's vendor keeps nothing, by contract")] = (
        False
    )
    high_risk_ai: Annotated[Flag, Field(description="true when a model of Annex III of the AI Act uses the data")] = (
        False
    )
    human_oversight: Annotated[Flag, Field(description="true when a person oversees what a model decides")] = False
    impact_assessed: Annotated[Flag, Field(description="true when an impact assessment covers this use")] = False
    purposes: Annotated[tuple[Name, ...], Field(description="what it uses the data for; its role when empty")] = ()
    channels: Annotated[
        tuple[Literal["email", "sms", "phone", "push", "post", "ads"], ...],
        Field(description="how it reaches people: email, sms, phone, push, post, ads"),
    ] = ()
    certifications: Annotated[tuple[Name, ...], Field(description="like soc2, iso27001, pci-dss")] = ()
    owner: Annotated[Text, Field(description="who answers for it, a team rather than a person")] | None = None
    runbook: Annotated[Text, Field(description="where it is written what to do when it fails")] | None = None
    onward: Annotated[tuple[Text, ...], Field(description="who it passes the data on to, as it has told you")] = ()
    types: Annotated[tuple[TypeName | Literal["*"], ...], Field(min_length=1, description='change types, or ["*"]')] = (
        "*",
    )
    entities: Annotated[tuple[Name | Literal["*"], ...], Field(min_length=1, description='contracts, or ["*"]')] = (
        "*",
    )
    filter: (
        Annotated[
            Text | dict[str, Any] | list[Any],
            Field(description="a CESQL expression, or CloudEvents Subscriptions dialects such as {exact: {type: …}}"),
        ]
        | None
    ) = None
    semantics: Annotated[
        dict[TypeName, Semantics],
        Field(description="default or a change type → at-most-once, at-least-once, exactly-once"),
    ] = Field(default_factory=dict)
    sla: Annotated[dict[TypeName, Seconds], Field(description="default or a change type → seconds")] = Field(
        default_factory=dict
    )
    rate: Rate = Rate()

    def wants(self, change_type: str, entity: str) -> bool:
        """Whether an event of this type and contract makes a pair, before the filter is looked at."""
        return bool({"*", change_type} & set(self.types)) and bool({"*", entity} & set(self.entities))

    def semantics_for(self, change_type: str) -> Semantics:
        return self.semantics.get(change_type, self.semantics.get("default", "at-least-once"))

    def sla_for(self, change_type: str) -> float:
        """Seconds from the change to the acknowledgement."""
        return self.sla.get(change_type, self.sla.get("default", 900.0))


ASK = "ask:"  # the name of a message that a person's request became; the request follows
SAGA = "saga:"  # the name of a message that takes something back begins so; the event that it takes back follows
HUMAN = "human"


class Saga(Model):
    """sagas/NAME.yaml: a change that several subscribers must take together, and how each takes it back."""

    name: str = Field(default="", exclude=True, json_schema_extra={"internal": True})
    of: Annotated[TypeName, Field(description="the change type, like identity_merge")]
    participants: Annotated[
        dict[Name, Name],
        Field(min_length=2, description="subscriber → the inbox source that carries what is taken back, or human"),
    ]
