"""change with its subject → events: what changed, in which order, under which id. Pure; depends on the batch and on what was committed before it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from tidings.contract import Consent, Contract
from tidings.progress import Marks
from tidings.seal.columns import LOTS
from tidings.seal.tokens import token_flags
from tidings.stages.normal import truthy
from tidings.stages.once import built_once
from tidings.stages.signals import signal_units
from tidings.stages.subject import choose, consent_key, lookup

OFFSETS_PER_BATCH = 1 << 24
AHEAD_MS = 500  # a commit time further ahead of its arrival does not move our clock


@dataclass(frozen=True)
class Batch:
    """The place of one batch: everything a row's identity needs besides the row."""

    source: str
    generation: str
    number: int
    key_file: str = ""
    marks: Marks = field(default_factory=Marks)
    keeps: bool = True  # last images are looked up and kept
    emit_snapshots: bool = False
    masters: bool = False  # what each master said is looked up and kept
    lots: bytes = field(default=b"", repr=False)  # what its subjects draw their lots with

    def values(self) -> dict[str, object]:
        """What differs from batch to batch, as columns of the one-row frame: a literal would make Spark compile each batch anew."""
        return {
            "b_generation": self.generation,
            "b_number": self.number,
            "b_key_file": self.key_file,
            "b_high": list(self.marks.high.items()),
            "b_tick": self.marks.hlc[0],
            "b_counter": self.marks.hlc[1],
            "b_lamport": self.marks.lamport,
        }


def mark() -> Column:
    """The high-water mark of the row's epoch and table; null when there is none yet."""
    return F.try_element_at(F.col("b_high"), F.concat_ws("|", "epoch", "entity"))


def ordered(rows: DataFrame, already: DataFrame) -> DataFrame:
    """Adds the change's identity, its repeat flags and the hybrid logical clock, in the source's order within each lot."""
    rows = rows.withColumns(_identity()).withColumns(_place()).withColumns(_clock())
    return rows.join(F.broadcast(already), "change_id", "left").withColumns(_repeat())


def suspect() -> Column:
    """May this row have come before? Above the mark of its epoch and table it is new; without order or mark nobody can tell."""
    live = F.col("problem").isNull() & F.col("skip").isNull()
    return live & (~F.col("ordered") | F.coalesce(F.col("ordering") <= mark(), F.lit(True)))


@built_once
def _identity() -> dict[str, Column]:
    named = ("source", "epoch", "entity", "op", "position", "ordinal")
    key = [F.coalesce(F.col(name).cast("string"), F.lit("")) for name in named]
    place = F.when(F.col("position").isNull(), F.col("place")).otherwise(F.lit(""))
    identity = F.concat_ws("\x1f", *key, place, F.hex(F.coalesce("tag", F.lit(b""))))
    # Several people's changes may stand at one position: told apart by tag to recognise a change that comes again, but an event's id
    # is in the ledger for ever, and one made of the tag would give an erased person away. The message's own place tells them apart too.
    message = F.concat_ws("\x1f", *key, F.col("place"))
    return {
        "change_id": F.substring(F.hmac(F.col("k_id"), F.encode(identity, "UTF-8")), 1, 16),
        "message_id": F.substring(F.hmac(F.col("k_id"), F.encode(message, "UTF-8")), 1, 16),
        "redelivered": F.coalesce(F.col("ordered") & (F.col("ordering") <= mark()), F.lit(False)),
        "suspect": suspect(),
        "ahead": F.coalesce(F.unix_millis("commit_time") > F.unix_millis("arrived") + AHEAD_MS, F.lit(False)),
    }


def in_order() -> tuple[WindowSpec, WindowSpec]:
    """The lot in the source's order, and the same up to the current row."""
    window = Window.partitionBy("lot").orderBy("ordering", "rank", "ordinal")
    return window, window.rowsBetween(Window.unboundedPreceding, Window.currentRow)


@built_once
def _place() -> dict[str, Column]:
    window, _ = in_order()
    return {
        "again": F.coalesce(F.lag("change_id").over(window) == F.col("change_id"), F.lit(False)),
        "nth": F.row_number().over(window),
    }


@built_once
def _clock() -> dict[str, Column]:
    """The hybrid clock: the latest time told so far, and how many rows ago it was first told."""
    # A message that makes no change, or comes from the future, does not move the clock.
    silent = F.col("problem").isNotNull() | F.col("skip").isNotNull() | (F.col("op") == "tombstone")
    told = F.unix_millis(F.when(F.col("ahead"), F.col("arrived")).otherwise(F.coalesce("commit_time", "arrived")))
    moves = F.when(~silent & (told > F.col("b_tick")), F.struct(told.alias("tick"), (-F.col("nth")).alias("since")))
    latest = F.max(moves).over(in_order()[1])
    return {
        "tick": F.coalesce(latest["tick"], F.col("b_tick")),
        "counter": F.when(latest.isNull(), F.col("b_counter") + F.col("nth")).otherwise(F.col("nth") + latest["since"]),
    }


@built_once
def _repeat() -> dict[str, Column]:
    return {"repeat": F.col("again") | F.col("journalled").isNotNull()}


def with_known(rows: DataFrame, batch: Batch, contracts: Mapping[str, Contract]) -> DataFrame:
    """The image a change is compared with: the message's own, else the last one of this batch, else the last one committed."""
    if not batch.keeps:
        return rows.withColumns(_told())
    return rows.withColumns(_seen_in_batch()).withColumns(_compared(contracts)).withColumns(_last())


@built_once
def _seen_in_batch() -> dict[str, Column]:
    """Without an order of its own a source may repeat a message anywhere in a batch, not only in the next line."""
    first = F.min("nth").over(Window.partitionBy("lot", "change_id"))
    return {"repeat": F.col("repeat") | (~F.col("ordered") & (F.col("nth") > first))}


@built_once
def _told() -> dict[str, Column]:
    return {"base": F.col("fields_before"), "image_before": F.col("before_json"), "stale": F.lit(False)}


def _usable() -> Column:
    fine = F.col("problem").isNull() & F.col("skip").isNull() & ~F.col("repeat")
    return fine & F.col("op").isin("insert", "update", "snapshot")


def _latest_fields(contracts: Mapping[str, Contract], before: WindowSpec) -> Column:
    """What earlier rows of the batch last said of each field; field by field, so that a subject told of a thousand times costs a thousand."""
    said = []
    for name in dict.fromkeys(name for contract in contracts.values() for name in contract.compared):
        value = F.struct(F.lit(name).alias("key"), F.try_element_at(F.col("fields_after"), F.lit(name)).alias("value"))
        told = F.when(_usable() & F.map_contains_key("fields_after", name), value)
        said.append(F.last(told, ignorenulls=True).over(before))
    return F.map_from_entries(F.array_compact(F.array(*said)))


@built_once
def _compared(contracts: Mapping[str, Contract]) -> dict[str, Column]:
    window = Window.partitionBy("lot", "tag").orderBy("ordering", "rank", "ordinal")
    before = window.rowsBetween(Window.unboundedPreceding, -1)
    usable = _usable()
    merged = F.map_concat(F.coalesce(F.col("known_fields"), nothing()), _latest_fields(contracts, before))
    told = F.coalesce(F.max(F.when(usable, F.lit(True))).over(before), F.lit(False))
    known = F.when(told | F.col("known_fields").isNotNull(), merged)
    image = F.coalesce(F.last(F.when(usable, F.col("after_json")), ignorenulls=True).over(before), F.col("known_image"))
    without = F.col("before_kind") == "none"
    newest = F.greatest(F.col("known_time"), F.max(F.when(usable, F.col("commit_time"))).over(before))
    older = F.coalesce(F.col("commit_time") < newest, F.lit(False))
    return {
        "base": F.when(without, known).otherwise(F.col("fields_before")),
        "image_before": F.when(without, image).otherwise(F.col("before_json")),
        "held": known,
        "older": older,
        # A source without an order of its own may deliver an older change late: marked, and never compared with newer state.
        "stale": usable & ~F.col("ordered") & older & (F.col("op") != "snapshot"),
        "first": F.row_number().over(window) == 1,
    }


@built_once
def _last() -> dict[str, Column]:
    newest = F.max(F.when(_usable() & ~F.col("older"), F.col("nth"))).over(Window.partitionBy("lot", "tag"))
    return {"last": F.coalesce(newest == F.col("nth"), F.lit(False))}


def nothing() -> Column:
    """An empty map of texts."""
    return F.map_from_arrays(F.array().cast("array<string>"), F.array().cast("array<string>"))


def _changed(contract_base: Column) -> Column:
    """Field → its old text, for the fields of the after image that differ from what is known."""
    base = contract_base
    partial = F.col("before_kind") == "partial"
    return F.map_filter(
        F.col("fields_after"),
        lambda k, v: F.when(F.map_contains_key(base, k), ~v.eqNullSafe(F.try_element_at(base, k))).otherwise(
            ~partial & v.isNotNull()
        ),
    )


def units_of(contract: Contract) -> dict[str, str]:
    """Field → the unit its change makes: a change type, a life-cycle step, or a consent of one class and channel."""
    units: dict[str, str] = dict.fromkeys(contract.key, "rekey")
    for path, rule in contract.fields.items():
        if rule.consent:
            units[path] = _consent_unit(contract, path, rule.consent)
        elif contract.ignored(path):
            continue
        elif rule.lifecycle:
            units[path] = rule.lifecycle
        else:
            units[path] = rule.type or units.get(path, "update")
    return units


def _consent_unit(contract: Contract, path: str, consent: Consent) -> str:
    """A consent of one class and channel; the purpose is named where another field speaks for the channel."""
    other = contract.purposes.get(path)
    return "|".join(["consent", consent.class_, consent.channel, *([other] if other else [])])


def _unit(contract: Contract, name: Column) -> Column:
    """The unit of one changed field; a soft delete that is taken back is a restore."""
    units = units_of(contract)
    plain = lookup(name, units)
    if "soft_delete" not in units.values():
        return plain
    now = truthy(F.try_element_at(F.col("fields_after"), name))
    then = truthy(F.try_element_at(F.col("base"), name))
    step = F.when(now & ~then, F.lit("soft_delete")).when(~now & then, F.lit("restore"))
    return F.when(plain == "soft_delete", step).otherwise(plain)


def _typed_units(contract: Contract) -> Column:
    """An update is one event per change type among its changed fields, and one per signal that it gives."""
    typed = F.array_distinct(F.array_compact(F.transform("changed", lambda name: _unit(contract, name))))
    return F.concat(typed, signal_units(contract)) if contract.signals else typed


def _first_units(contract: Contract) -> Column:
    """A new record is one insert, and one consent event per consent it states."""
    stated = [
        F.when(
            F.try_element_at(F.col("fields_after"), F.lit(path)).isNotNull(), F.lit(_consent_unit(contract, path, c))
        )
        for path, c in contract.consents
    ]
    return F.array_distinct(F.array_compact(F.array(F.lit("insert"), *stated)))


def detected(rows: DataFrame, contracts: Mapping[str, Contract], batch: Batch) -> DataFrame:
    """Adds `changed` (fields) and `units` (what each becomes); a row that makes no event has an empty list."""
    return rows.withColumns(_changes()).withColumns(_units(contracts, batch.emit_snapshots))


@built_once
def _changes() -> dict[str, Column]:
    return {"changed": F.when(F.col("base").isNotNull(), F.map_keys(_changed(F.col("base"))))}


@built_once
def _units(contracts: Mapping[str, Contract], emit_snapshots: bool) -> dict[str, Column]:
    none = F.array().cast("array<string>")
    usable = F.col("problem").isNull() & F.col("skip").isNull() & F.col("contract").isNotNull() & ~F.col("repeat")
    contract = F.col("contract")
    typed = choose(contract, {n: _typed_units(c) for n, c in contracts.items()})
    fresh = choose(contract, {n: _first_units(c) for n, c in contracts.items()})
    if any(c.masters for c in contracts.values()):  # a record that another master created is not new
        fresh = F.when(F.col("borrowed"), typed).otherwise(fresh)
    units = (
        F.when(~usable, none)
        .when(F.col("stale"), F.array(F.lit("update")))
        .when(F.col("op") == "delete", F.array(F.lit("delete")))
        .when(F.col("op") == "truncate", F.array(F.lit("truncate")))
        .when(F.col("op") == "insert", fresh)
        .when(F.col("op") == "snapshot", fresh if emit_snapshots else none)
        .when((F.col("op") == "update") & F.col("base").isNull(), fresh)
        .when(F.col("op") == "update", typed)
        .otherwise(none)
    )
    return {"units": F.coalesce(units, none)}


def numbered(rows: DataFrame) -> DataFrame:
    """The index of each change's first event inside its lot: dense, so offsets are dense per lot."""
    return rows.withColumns(_start())


@built_once
def _start() -> dict[str, Column]:
    count = F.size("units")
    return {"start": F.sum(count).over(in_order()[1]) - count}


@built_once
def event_columns(contracts: Mapping[str, Contract], attested: Collection[str]) -> dict[str, Column]:
    """Columns of one event, from a row spread by `out`, `unit` and `index` (its place in the change); other rows have none of them."""
    index = F.col("start") + F.col("index")
    offset = F.col("b_number") * OFFSETS_PER_BATCH + index * LOTS + F.col("lot")
    parts = F.split("unit", "\\|")
    kind = parts[0]
    life = ("insert", "update", "delete", "soft_delete", "restore", "reparent", "rekey", "truncate")
    hlc = F.concat_ws(
        "-",
        F.lpad(F.col("tick").cast("string"), 13, "0"),
        F.lpad(F.col("counter").cast("string"), 6, "0"),
        F.lpad(F.col("index").cast("string"), 2, "0"),
    )
    lamport = F.col("b_lamport") + 1 + index * LOTS + F.col("lot")
    columns = {
        "offset": offset,
        "event_id": event_id(),
        "change_type": kind,
        "operation": F.when(kind.isin(*life), kind).otherwise(
            F.when(F.col("op") == "snapshot", F.lit("insert")).otherwise(F.col("op"))
        ),
        "time": F.coalesce("commit_time", "arrived"),
        "hlc": hlc,
        "lamport": lamport,
        "vector": F.create_map(F.col("source"), lamport),
        "subjectseq": F.col("tick") * 4096 + F.least(F.col("counter"), F.lit(4095)),
        "flags": _flags(contracts, attested),
        "consent_event": _consent_event(parts, contracts),
        "schema_version": choose(F.col("contract"), {n: F.lit(f"{n}/{c.version}") for n, c in contracts.items()}),
    }
    return {name: F.when(F.col("out") == "journal", column) for name, column in columns.items()}


def _flags(contracts: Mapping[str, Contract], attested: Collection[str]) -> Column:
    """What is odd about an event, in words."""
    said = {
        "clock_ahead": F.col("ahead"),
        "late": F.col("redelivered"),
        "stale": F.col("stale"),
        "card_masked": F.col("masked"),
        "erasure": F.col("reason") == "erasure",
        **token_flags(F.coalesce("fields_after", "fields_before"), contracts, attested),
    }
    return F.array_compact(F.array(*[F.when(test, F.lit(word)) for word, test in said.items()]))


def _consent_event(parts: Column, contracts: Mapping[str, Contract]) -> Column:
    """Class, channel, purpose, where it was said, when, and what it now is; null for an event of another type."""
    kind, class_, channel = parts[0], parts[1], parts[2]
    filed = F.when(class_ == "marketing", channel).otherwise(F.concat_ws(":", class_, channel))
    filed = F.concat_ws("/", filed, F.get(parts, F.lit(3)))
    state = F.coalesce(F.try_element_at(F.col("consent"), filed), F.lit("unknown"))
    meant = {n: {_consent_unit(c, path, x): x.purpose for path, x in c.consents} for n, c in contracts.items()}
    purpose = choose(F.col("contract"), {n: lookup(F.col("unit"), units) for n, units in meant.items() if units})
    said = {"class": class_, "channel": channel, "purpose": purpose.cast("string")}
    said |= {"source_channel": F.col("source_channel"), "request_time": F.col("request_time"), "state": state}
    return F.when(kind == "consent", F.struct(*[column.alias(name) for name, column in said.items()]))


def event_id() -> Column:
    """UUIDv7 layout: time bits from the commit (else arrival) time, the rest keyed; the same message gives the same id."""
    millis = F.lpad(F.lower(F.hex(F.unix_millis(F.coalesce("commit_time", "arrived")))), 12, "0")
    raw = F.lower(F.hex(F.hmac(F.col("k_id"), F.concat(F.col("message_id"), F.encode("unit", "UTF-8")))))
    variant = F.translate(F.substring(raw, 20, 1), "0123456789abcdef", "89ab" * 4)
    return F.concat(
        F.substring(millis, 1, 8), F.lit("-"), F.substring(millis, 9, 4), F.lit("-7"), F.substring(raw, 1, 3), F.lit("-"),
        variant, F.substring(raw, 4, 3), F.lit("-"), F.substring(raw, 7, 12),
    )  # fmt: skip


__all__ = [
    "Batch",
    "consent_key",
    "detected",
    "event_columns",
    "event_id",
    "numbered",
    "ordered",
    "with_known",
]
