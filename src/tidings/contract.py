"""An entity's contract: its key, its fields, and which change type each field makes."""

from __future__ import annotations

from collections.abc import Hashable
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Strict, Tag, model_validator

T = TypeVar("T", bound=Hashable)

CHANGE_TYPES = (
    "email",
    "phone",
    "address",
    "preference",
    "consent",
    "subscription",
    "tier",
    "segment",
    "cohort",
    "suppression",
    "household",
    "account",
    "payment_method",
    "identity_merge",
    "identity_split",
)
SIGNAL_TYPES = ("tier_transition", "churn_signal", "cross_sell_signal", "purchase", "sensitive_data")
# What a person's right is told as, in every contract of people where `rights:` is declared.
RIGHT_TYPES = ("restriction", "objection", "automated_decision", "limit_sensitive")
LIFE_CYCLE = ("insert", "update", "delete", "soft_delete", "restore", "reparent", "rekey")


class Wrong(ValueError):
    """A value that has the right type and is still not usable; carries what was expected and what to do."""

    def __init__(self, expected: str, what_now: str, code: str = "wrong_value") -> None:
        self.expected, self.what_now, self.code = expected, what_now, code
        super().__init__(code)


class Model(BaseModel):
    """Every shape of the operator's folder: frozen, no unknown keys, input never repeated in an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=False)


def _distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    if len(set(values)) < len(values):
        raise Wrong("each entry once", "Remove the repeated entry.", "duplicate_id")
    return values


def _reference(value: str) -> str:
    kind, _, name = value.partition(":")
    if kind not in ("env", "file") or not name:
        # The value may be the secret itself, so the message never repeats it.
        raise Wrong(
            "env:NAME or file:NAME", "Put the secret in a file of the secrets folder and name it.", "secret_in_clear"
        )
    return value


Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Flag = Annotated[bool, Strict()]
Name = Annotated[
    str,
    Field(
        pattern=r"^[a-z][a-z0-9_-]{0,62}$",
        description="a name: a small letter, then small letters, digits, _ or - (at most 63)",
    ),
]
TypeName = Annotated[
    str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$", description="a change type: small letters, digits and _")
]
# Quotes, brackets and backslashes are refused so that a path can be compiled into a closed accessor without escaping.
FieldPath = Annotated[
    str,
    Field(
        min_length=1,
        max_length=200,
        pattern=r"""^[^.\[\]'"`\\\x00-\x1f]+(\.[^.\[\]'"`\\\x00-\x1f]+)*$""",
        description="a field of the record, dots between levels (no quotes, brackets or backslashes)",
    ),
]
Jurisdiction = Annotated[
    str, Field(pattern=r"^[A-Z]{2}(-[A-Z0-9]{1,3})?$", description="an ISO 3166 code, like US, US-CA, DE, or EU")
]
Text = Annotated[str, Field(min_length=1, max_length=1000)]
SecretRef = Annotated[
    str, AfterValidator(_reference), Field(description="env:NAME or file:NAME (a file of the secrets folder)")
]
DistinctTexts = Annotated[tuple[Text, ...], AfterValidator(_distinct)]
Scalar = str | Whole | Flag
Basis = Annotated[
    Literal["consent", "contract", "legal_obligation", "vital_interests", "public_task", "legitimate_interests"],
    Field(description="the ground of Art. 6 GDPR: consent, contract, legal_obligation, …"),
]
# What a field can say of a person beside consent; the gate knows the same words.
PersonFact = Literal[
    "child",
    "parent_consent",
    "legal_hold",
    "restricted",
    "objected",
    "no_marketing",
    "no_automated",
    "limited",
    "hipaa_authorization",
    "health_consent",
    "biometric_release",
]


class Consent(Model):
    """What a field says about consent; truthy means granted unless `granted` lists the values that do."""

    class_: Annotated[Name, Field(alias="class")] = "marketing"
    channel: Annotated[Name, Field()] = "email"
    purpose: Annotated[Name, Field()] = "marketing"
    granted: tuple[Scalar, ...] = ()
    withdrawn: tuple[Scalar, ...] = ()
    source_field: FieldPath | None = None
    time_field: FieldPath | None = None


class FieldRule(Model):
    """What a change of one field means."""

    type: TypeName | None = None
    lifecycle: Literal["soft_delete", "reparent"] | None = None
    normalise: (
        Annotated[
            Literal["email", "phone", "address", "text", "lower", "digits", "number", "flag"],
            Field(description="the form in which two values are compared"),
        ]
        | None
    ) = None
    country: Annotated[str, Field(pattern=r"^[A-Z]{2}$", description="an ISO 3166 country, like DE")] | None = None
    country_field: FieldPath | None = None
    class_: Annotated[
        Literal["public", "internal", "personal", "sensitive"],
        Field(alias="class", description="how protected the value is: public, internal, personal or sensitive"),
    ] = "personal"
    category: (
        Annotated[
            str,
            Field(pattern=r"^(user|system)(\.[a-z_]+)*$", description="a fideslang label, like user.contact.email"),
        ]
        | None
    ) = None
    lawful_basis: Basis | None = None
    material: Annotated[Flag, Field(description="true when a listed company may have to publish its change")] = False
    consent: Consent | None = None
    person: (
        Annotated[PersonFact, Field(description="what a true value says of the person: child, legal_hold, …")] | None
    ) = None
    token: (
        Annotated[Name, Field(description="the vendor whose payment tokens this field holds, like skyflow")] | None
    ) = None


Values = Annotated[tuple[Scalar, ...], Field(min_length=1, max_length=200, description="a list of values")]


class Crosses(Model):
    """A line that a number steps over: from at most `above` to more, or from at least `below` to less."""

    above: Number | None = None
    below: Number | None = None

    @model_validator(mode="after")
    def _one_line(self) -> Crosses:
        if (self.above is None) == (self.below is None):
            raise Wrong("one of above, below", "Say which way the number crosses.")
        return self


class Condition(Model):
    """What one field does in a change (`from`, `becomes`, `gains`, `loses`, `crosses`, `moves`), or what it `is` after it."""

    field: FieldPath
    from_: Annotated[Values | None, Field(alias="from")] = None
    becomes: Values | None = None
    gains: Values | None = None
    loses: Values | None = None
    crosses: Crosses | None = None
    moves: Annotated[Literal["up", "down"], Field(description="up or down")] | None = None
    order: (
        Annotated[Values, Field(min_length=2, description="the steps, lowest first"), AfterValidator(_distinct)] | None
    ) = None
    is_: Annotated[Values | None, Field(alias="is")] = None

    @property
    def happens(self) -> bool:
        """Whether this is something that happens, and not only how things stand."""
        return self.is_ is None

    @model_validator(mode="after")
    def _one_test(self) -> Condition:
        tests = (self.becomes, self.gains, self.loses, self.crosses, self.moves, self.is_)
        said = sum(test is not None for test in tests)
        if said > 1 or (said == 0 and self.from_ is None):
            raise Wrong("one of becomes, gains, loses, crosses, moves, is; or from", "Write one condition per test.")
        if self.from_ is not None and said and self.becomes is None:
            raise Wrong("`from` alone or with `becomes`", "Remove `from`.")
        if self.order is not None and self.moves is None:
            raise Wrong("`order` with `moves`", "Add `moves: up` or `moves: down`.")
        return self


class Together(Model):
    """Conditions that must all hold for one change; at least one of them is something that happens."""

    all: Annotated[tuple[Condition, ...], Field(min_length=1, max_length=8, description="one to eight conditions")]

    @model_validator(mode="after")
    def _something_happens(self) -> Together:
        if not any(condition.happens for condition in self.all):
            raise Wrong("a condition besides `is`", "Say which change makes the signal.")
        return self


def _form(given: Any) -> str:
    return "several" if isinstance(given, Together) or (isinstance(given, dict) and "all" in given) else "one"


class Signal(Model):
    """A rule of its own: a change that means more than its fields say, told as one more event."""

    type: TypeName
    when: Annotated[
        Annotated[Condition, Tag("one")] | Annotated[Together, Tag("several")],
        Discriminator(_form),
        Field(description="a condition, or `all` and a list of them"),
    ]

    @model_validator(mode="after")
    def _something_happens(self) -> Signal:
        if isinstance(self.when, Condition) and not self.when.happens:
            raise Wrong("a condition besides `is`", "Say which change makes the signal.")
        return self

    @property
    def conditions(self) -> tuple[Condition, ...]:
        return self.when.all if isinstance(self.when, Together) else (self.when,)


class OwnType(Model):
    """A change type the operator defines."""

    description: Text


class FromField(Model):
    """A fact read from a field of the record, optionally through a map of its values."""

    field: FieldPath
    map: dict[str, Text] = Field(default_factory=dict)


class Masters(Model):
    """Several sources write the same records: which, and who decides when two of them wrote at the same time."""

    sources: Annotated[
        tuple[Name, ...],
        Field(min_length=2, max_length=32, description="the sources that write this contract, at least two"),
        AfterValidator(_distinct),
    ]
    on_conflict: Annotated[
        str,
        Field(
            pattern=r"^(newest|hold|prefer [a-z][a-z0-9_-]{0,62})$",
            description="newest, hold (a person decides), or prefer SOURCE",
        ),
    ]
    seen: (
        Annotated[
            FieldPath,
            Field(description="a field in which a writer keeps the `causality` it had seen, like crm=12,shop=5"),
        ]
        | None
    ) = None

    @property
    def preferred(self) -> str:
        """The source that wins; empty when none is preferred."""
        return self.on_conflict.partition(" ")[2]


class Contract(Model):
    """entities/NAME.yaml: the fields of one entity and the change types they make."""

    name: str = Field(default="", exclude=True, json_schema_extra={"internal": True})
    kind: Annotated[Name, Field(description="customer, location, inventory, employee, supplier, or your own name")]
    version: Annotated[Text, Field(description='the contract\'s version as text, like "1"')]
    key: Annotated[
        tuple[FieldPath, ...],
        Field(min_length=1, max_length=8, description="the fields that name one record"),
        AfterValidator(_distinct),
    ]
    fields: Annotated[
        dict[FieldPath, FieldRule], Field(min_length=1, max_length=500, description="field → what its change means")
    ]
    lawful_basis: Basis | None = None
    identifiers: dict[FieldPath, Name] = Field(default_factory=dict)
    types: dict[TypeName, OwnType] = Field(default_factory=dict)
    ignore: Annotated[
        tuple[FieldPath, ...],
        Field(max_length=100, description="technical fields, by name or with * and ?: a change of theirs is no event"),
        AfterValidator(_distinct),
    ] = ()
    signals: Annotated[
        dict[Name, Signal], Field(max_length=32, description="rule → what it says of a change and when")
    ] = Field(default_factory=dict)
    jurisdiction: FromField | None = None
    locale: FromField | None = None
    location: FromField | None = None
    masters: Masters | None = None

    @property
    def change_types(self) -> tuple[str, ...]:
        """The change types this contract can make, in the order its fields and then its signals name them."""
        made = [*(rule.type for rule in self.fields.values()), *sorted(self.signal_types)]
        return tuple(dict.fromkeys(kind for kind in made if kind))

    @property
    def merges(self) -> tuple[str, ...]:
        """The fields that say into which other record this one went."""
        return tuple(path for path, rule in self.fields.items() if rule.type == "identity_merge")

    @property
    def signal_types(self) -> frozenset[str]:
        return frozenset(signal.type for signal in self.signals.values())

    def ignored(self, path: str) -> bool:
        """Whether a field is technical: its change makes no event of its own."""
        return any(fnmatchcase(path, pattern) for pattern in self.ignore)

    @property
    def event_types(self) -> tuple[str, ...]:
        """Every type an event of this contract can have: its change types, then the life-cycle steps it knows."""
        known = {rule.lifecycle for rule in self.fields.values()}
        untyped = any(
            rule.type is None and rule.lifecycle is None and not self.ignored(path)
            for path, rule in self.fields.items()
        )
        steps = {"insert", "delete", "rekey", *(step for step in known if step)}
        steps |= {"restore"} if "soft_delete" in known else set()
        steps |= {"update"} if untyped else set()
        return (*self.change_types, *(step for step in LIFE_CYCLE if step in steps))

    @property
    def typed_fields(self) -> tuple[tuple[str, str], ...]:
        """(field path, change type) pairs, plain, for compiling."""
        return tuple((path, rule.type) for path, rule in self.fields.items() if rule.type)

    @property
    def consents(self) -> tuple[tuple[str, Consent], ...]:
        """(field path, consent) pairs."""
        return tuple((path, rule.consent) for path, rule in self.fields.items() if rule.consent)

    @property
    def persons(self) -> tuple[tuple[str, str], ...]:
        """(field path, what it says of the person) pairs; the first field of each word speaks."""
        said: dict[str, str] = {}
        for path, rule in self.fields.items():
            if rule.person:
                said.setdefault(rule.person, path)
        return tuple((path, word) for word, path in said.items())

    @property
    def purposes(self) -> dict[str, str]:
        """Consent fields that share class and channel with another → their purpose; the one left out speaks for the channel.

        That is the one for marketing, else the first: policies ask for a channel's consent by the channel's name.
        """
        speaks: dict[tuple[str, str], str] = {}
        for path, consent in sorted(self.consents, key=lambda item: item[1].purpose != "marketing"):
            speaks.setdefault((consent.class_, consent.channel), path)
        return {path: consent.purpose for path, consent in self.consents if path not in speaks.values()}

    @property
    def compared(self) -> tuple[str, ...]:
        """The field paths that are looked at: those whose change means something, and those that say where and who."""
        meant = [name for name in self.fields if not self.ignored(name)]
        context = [rule.field for rule in (self.jurisdiction, self.locale, self.location) if rule]
        for _, consent in self.consents:
            context += [name for name in (consent.source_field, consent.time_field) if name]
        seen = [self.masters.seen] if self.masters and self.masters.seen else []
        watched = [condition.field for signal in self.signals.values() for condition in signal.conditions]
        return tuple(dict.fromkeys([*self.key, *meant, *context, *self.identifiers, *seen, *watched]))

    def life_cycle(self, kind: str) -> tuple[str, ...]:
        """The field paths whose change is this life-cycle operation."""
        return tuple(path for path, rule in self.fields.items() if rule.lifecycle == kind)
