"""Situations natively: the facts of an event as one struct, its id, and the decision table as a small frame to join."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidings.gate.categories import (
    bases_by_type,
    kinds,
    labels_by_type,
    material_types,
    personal,
    sensitive_types,
    types_of_kind,
)
from tidings.gate.clock_columns import CLOCK, day_number
from tidings.gate.decide import RESULTS
from tidings.gate.decisions import MAX_SITUATIONS, DecisionTable
from tidings.gate.facts import ANCHORS, CHANNELS, FACTS, PERSON, PURPOSES, UNKNOWN, Fact, filed
from tidings.gate.policy import Policy
from tidings.gate.relevance import Relevant

if TYPE_CHECKING:
    from tidings.contract import Contract

__all__ = ["DecisionTable", "decision_frame", "event_facts", "situation", "situation_id", "unknown_situations"]

# Fact → the flag that states it. An event whose dispute is decided carries the flag `conflict` too, and is no such fact.
FLAGS = {
    "erased": "erased",
    "conflict": "held",
    "superseded": "superseded",
    "late": "late",
    "clock_ahead": "clock_ahead",
    "token": "token",
    "tokenization_attested": "token_attested",
    "masked": "card_masked",
}
_PLACE = r"^([A-Z]{2}(-[A-Z0-9]{1,3})?)$"

_text = pa.string()
_texts = pa.list_(_text)
_CLOCK = pa.struct(
    {"unit": _text, "amount": pa.int32(), "origin": _text, "calendar": _text, "roll": pa.bool_(), "since": pa.int32(), "until": pa.int32()}
    | {"zone": _text, "first_day": pa.bool_(), "skip_hour": pa.bool_(), "two_days": pa.bool_()}
)  # fmt: skip
# `names` are the subscribers it concerns, `bounds` the clocks of each, by number; `reaching` those that a filter does not hold back.
_ARROW = pa.schema(
    {
        "decision": _text,
        "policy_version": _text,
        "clocks": pa.list_(_CLOCK),
        "names": _texts,
        "bounds": pa.list_(pa.list_(pa.int32())),
        "reaching": _texts,
        "anchors": pa.map_(_text, _text),
        "tags": _texts,
        "reference": _text,
    }
)
# The same schema in Spark's words.
FRAME = (
    f"decision string, policy_version string, clocks array<{CLOCK}>, names array<string>, bounds array<array<int>>,"
    " reaching array<string>, anchors map<string,string>, tags array<string>, reference string"
)


def kindred(counts: Mapping[tuple[str, str, str], Relevant]) -> Column:
    """Which facts count for an event, as a number; null for a kind that nobody looked at, where all do."""
    sorts = _sorts(counts)
    pairs = [F.lit(x) for place, each in counts.items() for x in ("|".join(place), sorts.index(each))]
    place = F.concat_ws("|", "entity", "change_type", "operation")
    return F.try_element_at(F.create_map(*pairs), place) if pairs else F.lit(None).cast("int")


def _sorts(counts: Mapping[tuple[str, str, str], Relevant]) -> list[Relevant]:
    return list(dict.fromkeys(counts.values()))


def situation(
    policy: Policy, facts: Mapping[str, Column], counts: Mapping[tuple[str, str, str], Relevant] | None = None
) -> Column:
    """The struct of the facts this policy looks at; facts not given take their default.

    With `counts` only what counts for an event's kind is in its situation; the rows then have the column `kindred`.
    """
    sorts = _sorts(counts or {})
    values = {name: _counting(FACTS[name], _fact(FACTS[name], facts.get(name)), sorts) for name in policy.facts}
    return F.struct(*[value.alias(name) for name, value in values.items()])


def situation_id(policy: Policy) -> Column:
    """The name of the decision, from the column `situation`: in a step of its own, so that no fact is worked out twice."""
    words = [
        F.coalesce(F.concat(F.length(text).cast("string"), F.lit(":"), text), F.lit("-"))
        for text in (F.col("situation")[name].cast("string") for name in policy.facts)
    ]
    version = F.lit(f"{len(policy.version)}:{policy.version}")
    return F.substring(F.sha2(F.concat(version, *words).cast("binary"), 256), 1, 32)


def _counting(fact: Fact, value: Column, sorts: Sequence[Relevant]) -> Column:
    """The value where it counts, else the default; of a place as much as counts."""
    out = [number for number, each in enumerate(sorts) if fact.name not in each.facts]
    if fact.kind == "place" and any(each.regions is not None for each in sorts):
        named = [F.array(*map(F.lit, each.regions or ())).cast("array<string>") for each in sorts]
        whole = F.array(*[F.lit(each.regions is None) for each in sorts])
        kind = F.col("kindred")
        keep = kind.isNull() | F.get(whole, kind) | F.array_contains(F.get(F.array(*named), kind), value)
        value = F.when(keep, value).otherwise(F.substring_index(value, "-", 1))
    if not out:
        return value
    default = F.lit(fact.default).cast("boolean" if fact.kind == "flag" else "string")
    return F.when(F.col("kindred").isin(*out), default).otherwise(value)


def _fact(fact: Fact, given: Column | None) -> Column:
    """A column that only holds what the fact may hold: anything else is unknown, so a wild value cannot make a situation."""
    kind = "boolean" if fact.kind == "flag" else "string"
    default = F.lit(fact.default).cast(kind)
    if given is None:
        return default
    if fact.kind == "flag":
        return F.coalesce(given.cast("boolean"), default)
    text = F.trim(given.cast("string"))
    if fact.kind == "place":
        upper = F.upper(text)
        return F.when(upper.rlike(_PLACE), upper)
    if fact.kind == "names":
        return F.coalesce(text, default)
    if fact.kind == "choice":
        said = [value for value in fact.values if value != UNKNOWN or fact.default is not None]
        text = F.when(text.isin(*said), text)
    return F.coalesce(F.when(F.length(text).between(1, 64), text), default)


def event_facts(
    contracts: Mapping[str, Contract], consents: Column, consent_event: Column, flags: Column
) -> dict[str, Column]:
    """The facts of an EVENT row with its subject: `consents` is map<channel, state>, `flags` the event's and the subject's flags."""
    entity = F.col("entity")
    said = {
        **{name: F.col(name) for name in ("change_type", "operation", "entity", "source", "banner", "jurisdiction")},
        "entity_kind": looked_up(entity, {name: contract.kind for name, contract in contracts.items()}),
        "personal": looked_up(entity, {name: personal(contract) for name, contract in contracts.items()}),
        "consent_state": F.when(consent_event.isNotNull(), F.coalesce(consent_event["state"], F.lit("unknown"))),
        "consent_class": consent_event["class"],
        "consent_channel": consent_event["channel"],
        "consent_purpose": consent_event["purpose"],
        "transactional": F.col("txn").isNotNull(),
    }
    said |= {name: F.array_contains(flags, flag) for name, flag in FLAGS.items()}
    return said | _of_the_contract(contracts) | _of_the_person(consents, flags)


def _of_the_contract(contracts: Mapping[str, Contract]) -> dict[str, Column]:
    """What contracts say of the data that an event of a type carries."""
    place = F.concat_ws("|", "entity", "change_type")

    def among(types: Callable[[Contract], frozenset[str]]) -> Column:
        places = sorted(f"{name}|{kind}" for name, contract in contracts.items() for kind in types(contract))
        return place.isin(*places) if places else F.lit(False)

    def text(words: Callable[[Contract], Mapping[str, str]]) -> Column:
        found = {f"{name}|{kind}": word for name, one in contracts.items() for kind, word in words(one).items()}
        return looked_up(place, found).cast("string")

    facts = {kind: among(lambda one, kind=kind: types_of_kind(one)[kind]) for kind in kinds()}  # type: ignore[misc]
    facts |= {"sensitive": among(sensitive_types), "material": among(material_types)}
    return facts | {"categories": text(labels_by_type), "lawful_basis": text(bases_by_type)}


def _of_the_person(consents: Column, flags: Column) -> dict[str, Column]:
    """Consents, and what fields say of the person."""
    words = [f"consent_{word}" for word in (*CHANNELS, *PURPOSES)]
    facts = {name: F.try_element_at(consents, F.lit(filed(name))) for name in words}
    for fact in PERSON:
        kept = F.try_element_at(consents, F.lit(filed(fact.name))) == "granted"
        facts[fact.name] = F.coalesce(kept, F.array_contains(flags, fact.name))
    return facts


def looked_up(key: Column, table: Mapping[str, Any]) -> Column:
    """The word of a table for a key; null for a key it does not have."""
    start = F.lit(None)
    return reduce(lambda rest, item: F.when(key == item[0], F.lit(item[1])).otherwise(rest), table.items(), start)


def decision_frame(spark: SparkSession, table: DecisionTable, key: bytes = b"") -> DataFrame:
    """The table as a frame to broadcast: FRAME. `reference` names the decision to a stranger without telling the facts."""
    rows = [_frame_row(row) | {"reference": _reference(key, name)} for name, row in table.rows.items()]
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=_ARROW))


def _reference(key: bytes, name: str) -> str:
    return hmac.new(key, name.encode(), hashlib.sha256).hexdigest()[:32]


def _frame_row(row: Mapping[str, Any]) -> dict[str, Any]:
    each = row["recipients"]
    said = {a: max((r["anchors"][a] for r in each), key=RESULTS.index, default=RESULTS[0]) for a in ANCHORS}
    clocks = [
        {**clock, "since": day_number(clock["since"]), "until": day_number(clock["until"])} for clock in row["clocks"]
    ]
    return {
        "decision": row["situation"],
        "policy_version": row["policy_version"],
        "clocks": clocks,
        "names": [each["subscriber"] for each in row["recipients"]],
        "bounds": [each["clocks"] for each in row["recipients"]],
        "reaching": [each["subscriber"] for each in row["recipients"] if each["reach"] == "everyone"],
        "anchors": list(said.items()),
        "tags": sorted({tag for r in each for tag in r.get("tags", ())}) or None,
    }


def unknown_situations() -> Column:
    """For `observe` on the output of the decision stage: the situations no decision was found for, bounded."""
    return F.slice(F.collect_set(F.when(F.col("recipients").isNull(), F.col("situation"))), 1, MAX_SITUATIONS + 1)
