"""Two masters, one record: what each has said, what each had seen, where they disagree, and whose value stands.

Between masters the unit of comparison is the field. A master has seen another's value when its own row held it: in the before-image,
in the row it last sent, in the row it sends now, or by the `causality` it says it had seen. A change that sets a field to something else
than another master's standing value, without having seen that value, is concurrent with it: a dispute, marked on the event and
decided as the contract declares. A contract without `masters` costs nothing here.

Guarantee broken by: a master whose messages are lost, or that skips rows: its view is then older than the truth, and a later change
of it is marked although it had seen. It errs towards marking.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from tidings.contract import Consent, Contract, Masters
from tidings.stages.event import nothing, units_of
from tidings.stages.once import built_once
from tidings.stages.subject import choose, consent_key, consent_map

SUPERSEDED, HELD = "superseded", "held"  # flags beside `conflict`


def mastered(contracts: Mapping[str, Contract]) -> dict[str, Contract]:
    """The contracts that several sources write."""
    return {name: contract for name, contract in contracts.items() if contract.masters is not None}


def own_view(rows: DataFrame, contracts: Mapping[str, Contract]) -> DataFrame:
    """From here on `known_…` is what this source itself last said; what stands between all masters is `joint_…`."""
    return rows.withColumns(_own_view(contracts)) if mastered(contracts) else rows


def compared_with_others(rows: DataFrame, contracts: Mapping[str, Contract]) -> DataFrame:
    """A subject that this source tells of for the first time is compared with what the other masters said of it."""
    return rows.withColumns(_borrowed(contracts)).withColumns(_borrowing()) if mastered(contracts) else rows


def disputed(rows: DataFrame, contracts: Mapping[str, Contract]) -> DataFrame:
    """Adds `disputes` (field, with whom, outcome), `context` (what the writer had seen) and `stated` (consents that stand)."""
    if not mastered(contracts):
        return rows
    rows = rows.withColumns(_asserted(contracts)).withColumns(_seen(contracts)).withColumns(_disputes(contracts))
    return rows.withColumns(_standing(contracts))


def is_master(contracts: Mapping[str, Contract]) -> Column:
    return F.coalesce(F.col("contract").isin(*mastered(contracts)), F.lit(False))


def master_fields(contracts: Mapping[str, Contract]) -> list[str]:
    return list(dict.fromkeys(name for contract in mastered(contracts).values() for name in contract.fields))


def up_to() -> tuple[WindowSpec, WindowSpec]:
    """The subject's rows of this batch before this one, and those with this one."""
    window = Window.partitionBy("bucket", "tag").orderBy("ordering", "rank", "ordinal")
    start = Window.unboundedPreceding
    return window.rowsBetween(start, -1), window.rowsBetween(start, Window.currentRow)


def live() -> Column:
    """A row that says something of its subject's fields."""
    fine = F.col("problem").isNull() & F.col("skip").isNull() & ~F.col("repeat") & ~F.col("stale")
    return fine & F.col("op").isin("insert", "update", "snapshot")


@built_once
def _own_view(contracts: Mapping[str, Contract]) -> dict[str, Column]:
    told = is_master(contracts) & F.col("known_masters").isNotNull()
    view = F.try_element_at(F.col("known_masters"), F.col("source"))
    own = {"fields": view["fields"], "image": view["image"], "time": F.timestamp_micros(view["time"])}
    columns = {f"known_{name}": F.when(told, column).otherwise(F.col(f"known_{name}")) for name, column in own.items()}
    return columns | {"joint_fields": F.col("known_fields"), "joint_image": F.col("known_image")}


@built_once
def _borrowed(contracts: Mapping[str, Contract]) -> dict[str, Column]:
    lone = is_master(contracts) & F.col("base").isNull() & F.col("joint_fields").isNotNull()
    # An order of its own makes the last row the newest whatever its clock says; only what is stale is left out.
    newest = F.max(F.when(live(), F.col("nth"))).over(Window.partitionBy("bucket", "tag"))
    last = F.when(is_master(contracts), F.coalesce(newest == F.col("nth"), F.lit(False))).otherwise(F.col("last"))
    return {"borrowed": F.coalesce(lone, F.lit(False)), "last": last}


@built_once
def _borrowing() -> dict[str, Column]:
    pairs = {"base": "joint_fields", "image_before": "joint_image"}
    return {name: F.when(F.col("borrowed"), F.col(joint)).otherwise(F.col(name)) for name, joint in pairs.items()}


@built_once
def _asserted(contracts: Mapping[str, Contract]) -> dict[str, Column]:
    """The fields to which this row gives a value that its source had not given before."""
    new = F.coalesce("changed", F.map_keys(F.map_filter("fields_after", lambda _, value: value.isNotNull())))
    told = F.unix_micros(F.when(F.col("ahead"), F.col("arrived")).otherwise(F.coalesce("commit_time", "arrived")))
    context = {
        name: F.try_element_at(F.col("fields_after"), F.lit(contract.masters.seen))
        for name, contract in mastered(contracts).items()
        if contract.masters and contract.masters.seen
    }
    return {
        "asserted": F.when(is_master(contracts) & live(), new),
        "told": told,
        "said_seen": F.str_to_map(choose(F.col("contract"), context), F.lit(","), F.lit("="))
        if context
        else F.lit(None).cast("map<string,string>"),
    }


def _standing_write(name: str) -> tuple[Column, Column]:
    """Who wrote the standing value of a field, and whether that was another master."""
    wrote = F.try_element_at(F.col("known_wrote"), F.lit(name))
    return wrote, F.coalesce(wrote["by"] != F.col("source"), F.lit(False))


def _says(name: str) -> Column:
    return F.coalesce(F.array_contains("asserted", name), F.lit(False))


def _differs(name: str) -> Column:
    return ~F.try_element_at(F.col("fields_after"), F.lit(name)).eqNullSafe(_joint(name))


def _joint(name: str) -> Column:
    return F.try_element_at(F.col("joint_fields"), F.lit(name))


def _agrees(name: str) -> Column:
    """Does this row show that its source holds, or held, the value that another master gave the field?"""
    wrote, foreign = _standing_write(name)

    def holds(image: str) -> Column:
        held = F.map_contains_key(F.col(image), name)
        return F.coalesce(held & F.try_element_at(F.col(image), F.lit(name)).eqNullSafe(_joint(name)), F.lit(False))

    seen = F.try_element_at(F.col("said_seen"), wrote["by"]).try_cast("bigint") >= wrote["at"]
    shown = (~F.col("borrowed") & holds("base")) | holds("fields_after") | F.coalesce(seen, F.lit(False))
    return F.col("asserted").isNotNull() & foreign & shown


@built_once
def _seen(contracts: Mapping[str, Contract]) -> dict[str, Column]:
    """Fields whose standing value the source has seen by now, and fields that it took over earlier in this batch."""
    before, upto = up_to()
    seen, took = [], []
    for name in master_fields(contracts):
        _, foreign = _standing_write(name)
        wins = _says(name) & foreign & _differs(name) & (_outcome(name, contracts) == "kept")
        seen.append(F.when(F.max(_agrees(name)).over(upto), F.lit(name)))
        took.append(F.when(F.max(wins).over(before), F.lit(name)))
    return {"seen": F.array_compact(F.array(*seen)), "took": F.array_compact(F.array(*took))}


def _outcome(name: str, contracts: Mapping[str, Contract]) -> Column:
    """kept, lost or held, were the field in dispute."""
    options = {
        entity: _ruled(name, contract, contract.masters)
        for entity, contract in mastered(contracts).items()
        if contract.masters and name in contract.fields
    }
    # A snapshot is what a source had at some time, not something it wrote: it never takes a field over.
    return F.when(F.col("op") == "snapshot", F.lit("lost")).otherwise(choose(F.col("contract"), options))


def _ruled(name: str, contract: Contract, masters: Masters) -> Column:
    wrote, _ = _standing_write(name)
    kept, lost, held = F.lit("kept"), F.lit("lost"), F.lit("held")
    if masters.preferred:
        ruled = F.when(F.col("source") == masters.preferred, kept).when(wrote["by"] == masters.preferred, lost)
        ruled = ruled.otherwise(held)
    elif masters.on_conflict == "newest":
        order = F.array(*[F.lit(source) for source in masters.sources])
        first = F.array_position(order, F.col("source")) < F.array_position(order, wrote["by"])
        newer = (F.col("told") > wrote["time"]) | ((F.col("told") == wrote["time"]) & first)
        ruled = F.when(newer, kept).otherwise(lost)
    else:
        ruled = held
    consent = contract.fields[name].consent
    return ruled if consent is None else _of_consent(contract, consent, ruled)


def _of_consent(contract: Contract, consent: Consent, ruled: Column) -> Column:
    """A withdrawal stands whatever the policy says; a grant that had not seen it waits for a person."""
    key = F.lit(consent_key(consent.class_, consent.channel))
    now = F.try_element_at(F.col("consent"), key) == "withdrawn"
    then = F.try_element_at(consent_map(F.col("joint_fields"), contract), key) == "withdrawn"
    return F.when(now, F.lit("kept")).when(then, F.lit("held")).otherwise(ruled)


@built_once
def _disputes(contracts: Mapping[str, Contract]) -> dict[str, Column]:
    found, unseen = [], []
    for name in master_fields(contracts):
        wrote, foreign = _standing_write(name)
        blind = foreign & ~F.array_contains("seen", name)
        said = {"field": F.lit(name), "outcome": _outcome(name, contracts), "with": wrote["by"]}
        dispute = F.struct(*[column.alias(part) for part, column in said.items()])
        found.append(F.when(_says(name) & _differs(name) & blind & ~F.array_contains("took", name), dispute))
        unseen.append(F.when(blind, wrote["by"]))
    view = F.try_element_at(F.col("known_masters"), F.col("source"))
    hidden = F.array_compact(F.array(*unseen))
    others = F.map_filter(
        "known_vector", lambda source, _: (source != F.col("source")) & ~F.array_contains(hidden, source)
    )
    before = F.map_filter(F.coalesce(view["seen"], no_counts()), lambda source, _: F.array_contains(hidden, source))
    return {
        "disputes": F.array_compact(F.array(*found)),
        "context": F.map_concat(before, F.coalesce(others, no_counts())),
    }


def no_counts() -> Column:
    return nothing().cast("map<string,bigint>")


def stands(name: str) -> Column:
    """This row's value of the field is what counts from now on."""
    refused = F.exists("disputes", lambda d: (d["field"] == name) & (d["outcome"] != "kept"))
    return _says(name) & ~F.coalesce(refused, F.lit(False))


@built_once
def _standing(contracts: Mapping[str, Contract]) -> dict[str, Column]:
    """The consents that stand after this row: what this source said so far in this batch, where nobody's word was against it."""
    _, upto = up_to()
    options = {}
    for entity, contract in contracts.items():
        if contract.masters is None:
            options[entity] = F.col("consent")
            continue
        pairs = []
        for path, consent in contract.consents:
            key = F.lit(consent_key(consent.class_, consent.channel))
            state = F.when(stands(path), F.try_element_at(F.col("consent"), key))
            pairs += [key, F.last(state, ignorenulls=True).over(upto)]
        made = F.create_map(*pairs) if pairs else nothing()
        options[entity] = F.map_filter(made, lambda _, value: value.isNotNull())
    return {"stated": choose(F.col("contract"), options)}


def unit_of(contracts: Mapping[str, Contract], name: Column) -> Column:
    """Field → the unit its change makes."""
    maps = {
        entity: F.try_element_at(F.create_map(*[F.lit(x) for pair in units_of(one).items() for x in pair]), name)
        for entity, one in mastered(contracts).items()
    }
    return choose(F.col("contract"), maps)


def conflict_columns(contracts: Mapping[str, Contract]) -> dict[str, Column]:
    """What an event says of its disputes, and the version vector its writer had; rows of other tables have none."""
    return _conflict_columns(contracts) if mastered(contracts) else {}


@built_once
def _conflict_columns(contracts: Mapping[str, Contract]) -> dict[str, Column]:
    event = F.col("out") == "journal"

    def touches(dispute: Column) -> Column:
        unit, made = F.col("unit"), unit_of(contracts, dispute["field"])
        return (made == unit) | (unit == "insert") | ((made == "soft_delete") & (unit == "restore"))

    dispute = F.filter("disputes", lambda one: F.coalesce(touches(one), F.lit(False)))
    outcomes = F.array_distinct(F.transform(dispute, lambda one: one["outcome"]))
    # Fields of one event that went different ways go together to a person.
    word = (
        F.when((F.size(outcomes) > 1) | F.array_contains(outcomes, "held"), F.array(F.lit("conflict"), F.lit(HELD)))
        .when(F.array_contains(outcomes, "lost"), F.array(F.lit("conflict"), F.lit(SUPERSEDED)))
        .when(F.size(outcomes) > 0, F.array(F.lit("conflict")))
        .otherwise(F.array().cast("array<string>"))
    )
    own = F.create_map(F.col("source"), F.col("lamport"))
    known = F.when(is_master(contracts), F.map_concat(F.col("context"), own)).otherwise(F.col("vector"))
    return {
        "dispute": F.when(event, dispute),
        "flags": F.when(event, F.concat("flags", word)),
        "vector": F.when(event, known).when(F.col("out") == "last_seen", F.col("joint_vector")),
    }


def conflict_part() -> Column:
    """The piece of the payload that names the fields in dispute and the other master; empty without a dispute."""
    return F.when(F.size("dispute") > 0, F.concat(F.lit(',"conflict":'), F.to_json("dispute"))).otherwise(F.lit(""))
