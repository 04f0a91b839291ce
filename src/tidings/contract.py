"""An entity's contract: its key, its fields, and which change type each field makes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict

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
LIFE_CYCLE = ("insert", "update", "delete", "soft_delete", "restore", "reparent", "rekey")


class Wrong(ValueError):
    """A value that has the right type and is still not usable; carries what was expected and what to do."""

    def __init__(self, expected: str, what_now: str, code: str = "wrong_value") -> None:
        self.expected, self.what_now, self.code = expected, what_now, code
        super().__init__(code)


class Model(BaseModel):
    """Every shape of the operator's folder: frozen, no unknown keys, input never repeated in an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=False)


def _distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(values)) < len(values):
        raise Wrong("each entry once", "Remove the repeated entry.", "duplicate_id")
    return values


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
DistinctTexts = Annotated[tuple[Text, ...], AfterValidator(_distinct)]
Scalar = str | Whole | Flag


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
    normalise: Literal["email", "phone", "text", "lower", "digits"] | None = None
    class_: Annotated[
        Literal["public", "internal", "personal", "sensitive"],
        Field(alias="class", description="how protected the value is: public, internal, personal or sensitive"),
    ] = "personal"
    consent: Consent | None = None


class OwnType(Model):
    """A change type the operator defines."""

    description: Text


class FromField(Model):
    """A fact read from a field of the record, optionally through a map of its values."""

    field: FieldPath
    map: dict[str, Text] = Field(default_factory=dict)


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
    identifiers: dict[FieldPath, Name] = Field(default_factory=dict)
    types: dict[TypeName, OwnType] = Field(default_factory=dict)
    jurisdiction: FromField | None = None
    locale: FromField | None = None
    location: FromField | None = None

    @property
    def change_types(self) -> tuple[str, ...]:
        """The change types this contract can make, in the order its fields name them."""
        return tuple(dict.fromkeys(rule.type for rule in self.fields.values() if rule.type))

    @property
    def event_types(self) -> tuple[str, ...]:
        """Every type an event of this contract can have: its change types, then the life-cycle steps it knows."""
        known = {rule.lifecycle for rule in self.fields.values()}
        untyped = any(rule.type is None and rule.lifecycle is None for rule in self.fields.values())
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
    def compared(self) -> tuple[str, ...]:
        """The field paths that are looked at: those whose change means something, and those that say where and who."""
        context = [rule.field for rule in (self.jurisdiction, self.locale, self.location) if rule]
        for _, consent in self.consents:
            context += [name for name in (consent.source_field, consent.time_field) if name]
        return tuple(dict.fromkeys([*self.key, *self.fields, *context, *self.identifiers]))

    def life_cycle(self, kind: str) -> tuple[str, ...]:
        """The field paths whose change is this life-cycle operation."""
        return tuple(path for path, rule in self.fields.items() if rule.lifecycle == kind)
