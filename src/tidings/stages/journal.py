"""event → the rows a batch leaves behind: the journal row, sealed and attested, and the rows that remember its subject.

One frame carries the rows of every table, told apart by `out`: one job then writes a whole batch in one pass.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidings.contract import Contract
from tidings.gate.presets import DEFAULT, preset_named
from tidings.seal.columns import aad_column, identifier_column, key_column, kid_column, seal_column, wrap_column
from tidings.shapes import ASK, SAGA
from tidings.stages.attested import decided_entry
from tidings.stages.conflict import conflict_part
from tidings.stages.erased import GONE
from tidings.stages.event import Batch, nothing
from tidings.stages.joint import later_version
from tidings.stages.normal import normalised
from tidings.stages.once import built_once

TABLES = ("journal", "keys", "last_seen", "subjects", "identities", "quarantine")
_IMAGES = ("insert", "update", "snapshot")  # operations whose after image is the record as it now stands


_COPIED = (
    "tenant",
    "banner",
    "location",
    "locale",
    "routing_hint",
    "position",
    "ordering",
    "epoch",
    "decision",
    "deadlines",
)
_OF_EVENTS = (
    "offset",
    "event_id",
    "change_type",
    "operation",
    "hlc",
    "lamport",
    "subjectseq",
    "schema_version",
)


def spread(rows: DataFrame, batch: Batch, contracts: Mapping[str, Contract]) -> DataFrame:
    """One row per thing to write: `out` names the table, `unit` and `index` say which event of the change."""
    rows = rows.withColumns(_consents(batch.masters) | _subject_key()).withColumns(_exploded(batch.keeps, contracts))
    return rows.select("*", "things.*").drop("things")


@built_once
def _consents(masters: bool) -> dict[str, Column]:
    """The subject's consents after this change: what was known, overwritten by what the image says; between masters, by what stands."""
    said = F.col("stated" if masters else "consent")
    return {"consents": F.map_concat(F.coalesce("known_consents", nothing()), F.coalesce(said, nothing()))}


@built_once
def _exploded(keeps: bool, contracts: Mapping[str, Contract]) -> dict[str, Column]:
    return {"things": F.explode(_things(keeps, contracts))}


def _thing(table: str, unit: Column | None = None, index: Column | None = None) -> Column:
    said = F.lit(None).cast("string") if unit is None else unit
    place = F.lit(0) if index is None else index
    return F.struct(F.lit(table).alias("out"), said.alias("unit"), place.cast("int").alias("index"))


def _things(keeps: bool, contracts: Mapping[str, Contract]) -> Column:
    live = F.col("problem").isNull() & F.col("skip").isNull() & F.col("contract").isNotNull() & ~F.col("repeat")
    events = F.size("units") > 0
    said = (F.size("consents") > 0) & ~F.map_entries("consents").eqNullSafe(F.map_entries("known_consents"))
    # Where images are kept the subject's rows are sorted together, so one key row per subject is enough; whoever stays erased gets none.
    keyed = (F.col("first") & F.col("stone").isNull()) | F.col("stone_now").isNotNull() if keeps else events
    image = live & F.col("last") & F.col("op").isin(*_IMAGES) if keeps else F.lit(False)
    remembered = F.array(
        F.when(keyed & F.col("tag").isNotNull(), _thing("keys")),
        F.when(image, _thing("last_seen")),
        # What is older than what is known may be told, and changes nothing that is known: a late yes does not undo a no.
        F.when(live & ((said & ~F.col("stale")) | (F.col("stone")[3] == GONE)), _thing("subjects")),
        F.when(F.col("problem").isNotNull(), _thing("quarantine")),
    )
    new = F.col("base").isNull() | F.col("op").isin("insert", "snapshot")
    named = [
        F.when(
            live
            & (F.col("contract") == name)
            & F.try_element_at(F.col("fields_after"), F.lit(path)).isNotNull()
            & F.coalesce(new | F.array_contains("changed", path), F.lit(False)),
            _thing("identities", F.lit(f"{kind}|{path}")),
        )
        for name, contract in contracts.items()
        for path, kind in (*contract.identifiers.items(), *((path, merged_kind(name)) for path in contract.merges))
    ]
    return F.concat(
        F.transform("units", lambda u, i: _thing("journal", u, i)),
        F.array_compact(remembered),
        F.array_compact(F.array(*named)),
    )


@built_once
def narrowed() -> dict[str, Column]:
    """What only some tables need is dropped from the rows of the others, which are most of what is copied from here on."""
    needed = {
        ("journal",): ("key_json", "before_json", "image_before", "fields_before", "base", "changed"),
        ("journal", "last_seen"): ("after_json",),
        ("last_seen", "identities"): ("fields_after",),
        ("quarantine",): ("body",),
    }
    return {name: F.when(F.col("out").isin(*tables), F.col(name)) for tables, names in needed.items() for name in names}


@built_once
def _subject_key() -> dict[str, Column]:
    """The subject's key of this batch, worked out once per change and not once per row that it makes."""
    return {
        "kid": kid_column(F.col("secret"), F.col("tag")),
        "subject_key": key_column(F.col("secret"), F.col("tag")),
    }


def payload(masters: bool = False) -> Column:
    """What is sealed of an event: the key, the images as the source gave them, which fields changed, its details, and what is in dispute."""
    null = F.lit("null")
    changed = F.coalesce(F.to_json(F.array_sort("changed")), F.lit("[]"))
    parts = (
        ("after", F.coalesce("after_json", null)),
        ("before", F.coalesce("image_before", null)),
        ("changed", changed),
        ("key", F.coalesce("key_json", null)),
    )
    pieces = [piece for name, text in parts for piece in (F.lit(f',"{name}":'), text)]
    if masters:
        pieces.insert(-2, conflict_part())
    return F.concat(F.lit("{"), F.substring(F.concat(*pieces), 2, 2**31 - 1), F.col("detail"), F.lit("}"))


def _image(keeps: bool, masters: bool) -> Column:
    """The record as it now stands: the newest image, and every field ever seen of it."""
    held = F.coalesce("held", nothing()) if keeps else nothing()
    fields = F.map_concat(held, F.col("fields_after"))
    alone = F.to_json(
        F.struct(fields.alias("fields"), F.col("after_json").alias("image")), {"ignoreNullFields": "false"}
    )
    return F.coalesce("joint_now", alone) if masters else alone


def merged_kind(entity: str) -> str:
    """Under which a record is filed that went into another one: from that other one it is found by this and the other's key."""
    return f"merged.{entity}"


def identifier(kind: Column, value: Column) -> Column:
    """E-mail and phone in the form that `timeline` compares, a phone without its extension; anything else trimmed."""
    return (
        F.when(kind == "email", normalised(value, "email"))
        .when(kind == "phone", F.regexp_replace(value, "[^0-9+]|;.*$", ""))
        .otherwise(F.trim(value))
    )


def written(
    rows: DataFrame, batch: Batch, policy_version: str, preset: str = DEFAULT, *, sealed: bool = True
) -> DataFrame:
    """The columns of every table; a row fills only its own table's."""
    return rows.select(*_written(batch.keeps, batch.masters, policy_version, preset, sealed))


@built_once
def _written(keeps: bool, masters: bool, policy_version: str, preset: str, sealed: bool) -> list[Column]:
    entry = decided_entry(policy_version, preset_named(preset))
    groups = (_journal(policy_version, entry, sealed, masters), _keys(), _state(keeps, masters), _quarantine())
    shared = {
        "source": F.when(F.col("out") != "keys", F.col("source")),
        "generation": F.when(F.col("out") != "keys", F.col("b_generation")),
        "batch": F.when(F.col("out") != "keys", F.col("b_number")),
        "key_file": F.when(F.col("out").isin("journal", "last_seen"), F.col("b_key_file")),
        "tag": F.when(F.col("out").isin("keys", "last_seen", "subjects", "identities"), F.col("tag")),
        "bucket": F.when(F.col("out").isin("last_seen", "subjects", "identities"), F.col("bucket")),
        "kid": F.when(F.col("out").isin("journal", "keys", "last_seen"), F.col("kid")),
        "flags": F.when(F.col("out") == "journal", F.col("flags")).when(F.col("out") == "subjects", F.col("stone_now")),
        "time": F.when(F.col("out").isin("journal", "last_seen"), F.coalesce("commit_time", "arrived")),
        "entity": F.when(F.col("out").isin("journal", "identities"), F.col("contract")).when(
            F.col("out") == "quarantine", F.col("unmapped")
        ),
    }
    return [F.col("out"), *(column.alias(name) for group in (shared, *groups) for name, column in group.items())]


def _journal(policy_version: str, entry: Column, sealed: bool, masters: bool) -> dict[str, Column]:
    mine = F.col("out") == "journal"
    body = payload(masters)
    if sealed:
        body = seal_column(
            body, F.col("subject_key"), F.col("k_iv"), aad_column("journal", F.col("event_id"), "payload")
        )
    return {
        **{name: F.when(mine, F.col(name)) for name in (*_COPIED, *_OF_EVENTS)},
        "recipients": F.when(mine, _told(sealed)),
        "vector": F.col("vector"),
        "recorded": F.when(mine, F.col("arrived")),
        "correlation": F.when(mine, F.coalesce("txn", F.lower(F.hex(F.substring("change_id", 1, 8))))),
        "change": F.when(mine, F.col("change_id")),
        "causation": F.when(
            mine & (F.col("place").startswith(SAGA) | F.col("place").startswith(ASK)), F.split("place", ":")[1]
        ),
        "policy_version": F.when(mine, F.lit(policy_version)),
        "consent": F.when(mine, F.col("consent_event")),
        "payload": F.when(mine, body).cast("binary"),
        "entry": F.when(mine, entry),
    }  # fmt: skip


def _told(sealed: bool) -> Column:
    """Who is told. An erasure is told out of its capsule, recipient by recipient, not out of the row that asked for it."""
    asked = F.array_contains("flags", "erasure") if sealed else F.lit(False)
    return F.when(asked, F.array().cast("array<string>")).otherwise(F.col("recipients"))


def _keys() -> dict[str, Column]:
    mine = F.col("out") == "keys"
    return {"key": F.when(mine, wrap_column(F.col("subject_key"), F.col("k_kek"), F.col("tag"), F.col("kid")))}


def _state(keeps: bool, masters: bool) -> dict[str, Column]:
    """Rows of last_seen, subjects and identities; `version` is the hybrid clock, comparable between sources."""
    is_image, is_subject, is_identity = (F.col("out") == name for name in ("last_seen", "subjects", "identities"))
    version = F.concat_ws(
        "-", F.lpad(F.col("tick").cast("string"), 13, "0"), F.lpad(F.col("counter").cast("string"), 6, "0")
    )
    version = later_version(version) if masters else version
    image = seal_column(
        _image(keeps, masters), F.col("subject_key"), F.col("k_iv"), aad_column("last_seen", F.hex("tag"), "image")
    )
    unit = F.split("unit", "\\|")
    value = F.try_element_at(F.col("fields_after"), unit[1])
    return {
        "version": F.when(is_image | is_subject, version),
        "image": F.when(is_image, image),
        "consents": F.when(is_subject, F.col("consents")),
        "jurisdiction": F.when(is_subject, F.col("jurisdiction")),
        "hash": F.when(is_identity, identifier_column(F.col("k_tag"), unit[0], identifier(unit[0], value))),
        "kind": F.when(is_identity, unit[0]),
    }


def _quarantine() -> dict[str, Column]:
    mine = F.col("out") == "quarantine"
    day = F.to_date("arrived")
    key = F.hmac(F.col("k_quarantine"), F.encode(day.cast("string"), "UTF-8"))
    sealed = seal_column(F.col("body"), key, F.col("k_iv"), aad_column("quarantine", F.col("place"), "body"))
    columns = {
        "place": F.col("place"), "arrived": F.col("arrived"), "code": F.col("problem.code"), "path": F.col("problem.path"),
        "detail": F.col("problem.detail"), "sealed": sealed, "day": day, "masked": F.col("masked"), "file": F.col("file"), "line": F.col("line"),
    }  # fmt: skip
    return {name: F.when(mine, column) for name, column in columns.items()}
