"""Two masters, one record: what each has said, what each had seen, where they disagree, and whose value stands.

Between masters the unit of comparison is the field. A master has seen another's value when its own row held it: in the before-image,
in the row it last sent, in the row it sends now, or by the `causality` it says it had seen. A change that sets a field to something else
than another master's standing value, without having seen that value, is concurrent with it: a dispute, marked on the event and
decided as the contract declares. A contract without `masters` costs nothing here.

Guarantee broken by: a master whose messages are lost, or that skips rows: its view is then older than the truth, and a later change
of it is marked although it had seen. It errs towards marking.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from tidings.contract import Consent, Contract, Masters
from tidings.stages.event import nothing, units_of
from tidings.stages.once import built_once
from tidings.stages.subject import choose, consent_key, consent_map, states_of

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
    rows = rows.withColumns(_asserted(contracts)).withColumns(_faces(contracts)).withColumns(_seen(contracts))
    return rows.withColumns(_disputes()).withColumns(_standing(contracts))


def is_master(contracts: Mapping[str, Contract]) -> Column:
    return F.coalesce(F.col("contract").isin(*mastered(contracts)), F.lit(False))


def master_fields(contracts: Mapping[str, Contract]) -> list[str]:
    return list(dict.fromkeys(name for contract in mastered(contracts).values() for name in contract.fields))


def up_to() -> tuple[WindowSpec, WindowSpec]:
    """The subject's rows of this batch before this one, and those with this one."""
    window = Window.partitionBy("lot", "tag").orderBy("ordering", "rank", "ordinal")
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
    newest = F.max(F.when(live(), F.col("nth"))).over(Window.partitionBy("lot", "tag"))
    last = F.when(is_master(contracts), F.coalesce(newest == F.col("nth"), F.lit(False))).otherwise(F.col("last"))
    return {"borrowed": F.coalesce(lone, F.lit(False)), "last": last}


@built_once
def _borrowing() -> dict[str, Column]:
    pairs = {"base": "joint_fields", "image_before": "joint_image"}
    return {name: F.when(F.col("borrowed"), F.col(joint)).otherwise(F.col(name)) for name, joint in pairs.items()}


@built_once
def _asserted(contracts: Mapping[str, Contract]) -> dict[str, Column]:
    """The fields to which this row gives a value that its source had not given before; and what its source says it had seen."""
    new = F.coalesce("changed", F.map_keys(F.map_filter("fields_after", lambda _, value: value.isNotNull())))
    told = F.unix_micros(F.when(F.col("ahead"), F.col("arrived")).otherwise(F.coalesce("commit_time", "arrived")))
    seen = {name: one.masters.seen for name, one in mastered(contracts).items() if one.masters and one.masters.seen}
    context = choose(F.col("contract"), {n: F.try_element_at(F.col("fields_after"), F.lit(s)) for n, s in seen.items()})
    consents = {name: consent_map(F.col("joint_fields"), one) for name, one in mastered(contracts).items()}
    return {
        "asserted": F.when(is_master(contracts) & live(), new),
        "told": told,
        "said_seen": F.str_to_map(context.cast("string"), F.lit(","), F.lit("=")),
        "joint_consent": choose(F.col("contract"), consents),
    }


@built_once
def _faces(contracts: Mapping[str, Contract]) -> dict[str, Column]:
    """Each field whose standing value another master wrote, beside what this row says of it; almost always none."""
    met = []
    for name in master_fields(contracts):
        wrote, now = F.try_element_at(F.col("known_wrote"), F.lit(name)), _value("fields_after", name)
        foreign = F.col("asserted").isNotNull() & (wrote["by"] != F.col("source"))
        face = {
            "field": F.lit(name),
            "outcome": _outcome(name, contracts, wrote),
            "with": wrote["by"],
            "unit": unit_of(contracts, name),
            "agrees": _agrees(name, wrote),
            "against": F.array_contains("asserted", name) & ~now.eqNullSafe(_value("joint_fields", name)),
        }
        met.append(F.when(foreign, F.struct(*[column.alias(part) for part, column in face.items()])))
    return {"faces": F.array_compact(F.array(*met))}


def _value(image: str, name: str) -> Column:
    return F.try_element_at(F.col(image), F.lit(name))


def _agrees(name: str, wrote: Column) -> Column:
    """Does this row show that its source holds, or held, the value that another master gave the field?"""

    def holds(image: str) -> Column:
        same = F.map_contains_key(F.col(image), name) & _value(image, name).eqNullSafe(_value("joint_fields", name))
        return F.coalesce(same, F.lit(False))

    seen = F.try_element_at(F.col("said_seen"), wrote["by"]).try_cast("bigint") >= wrote["at"]
    return (~F.col("borrowed") & holds("base")) | holds("fields_after") | F.coalesce(seen, F.lit(False))


@built_once
def _seen(contracts: Mapping[str, Contract]) -> dict[str, Column]:
    """Fields whose standing value the source has seen by now, and fields that it took over earlier in this batch."""
    before, upto = up_to()
    seen, took = [], []
    for name in master_fields(contracts):
        agrees = F.exists("faces", _about(name, lambda face: face["agrees"]))
        wins = F.exists("faces", _about(name, lambda face: face["against"] & (face["outcome"] == "kept")))
        seen.append(F.when(F.max(agrees).over(upto), F.lit(name)))
        took.append(F.when(F.max(wins).over(before), F.lit(name)))
    return {"seen": F.array_compact(F.array(*seen)), "took": F.array_compact(F.array(*took))}


def _about(name: str, test: Callable[[Column], Column]) -> Callable[[Column], Column]:
    return lambda one: (one["field"] == name) & test(one)


def _outcome(name: str, contracts: Mapping[str, Contract], wrote: Column) -> Column:
    """kept, lost or held, were the field in dispute."""
    options = {
        entity: _ruled(name, contract, contract.masters, wrote)
        for entity, contract in mastered(contracts).items()
        if contract.masters and name in contract.fields
    }
    # A snapshot is what a source had at some time, not something it wrote: it never takes a field over.
    return F.when(F.col("op") == "snapshot", F.lit("lost")).otherwise(choose(F.col("contract"), options))


def _ruled(name: str, contract: Contract, masters: Masters, wrote: Column) -> Column:
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
    return ruled if consent is None else _of_consent(consent, ruled)


def _of_consent(consent: Consent, ruled: Column) -> Column:
    """A withdrawal stands whatever the policy says; a grant that had not seen it waits for a person."""
    key = F.lit(consent_key(consent.class_, consent.channel))
    now = F.try_element_at(F.col("consent"), key) == "withdrawn"
    then = F.try_element_at(F.col("joint_consent"), key) == "withdrawn"
    return F.when(now, F.lit("kept")).when(then, F.lit("held")).otherwise(ruled)


@built_once
def _disputes() -> dict[str, Column]:
    blind = F.filter("faces", lambda face: ~F.array_contains("seen", face["field"]))
    found = F.filter(blind, lambda face: face["against"] & ~F.array_contains("took", face["field"]))
    hidden = F.transform(blind, lambda face: face["with"])
    view = F.try_element_at(F.col("known_masters"), F.col("source"))
    others = F.map_filter(
        "known_vector", lambda source, _: (source != F.col("source")) & ~F.array_contains(hidden, source)
    )
    before = F.map_filter(F.coalesce(view["seen"], no_counts()), lambda source, _: F.array_contains(hidden, source))
    return {"disputes": found, "context": F.map_concat(before, F.coalesce(others, no_counts()))}


def no_counts() -> Column:
    return nothing().cast("map<string,bigint>")


def in_dispute(name: str, *outcomes: str) -> Column:
    return F.coalesce(F.exists("disputes", _about(name, lambda one: one["outcome"].isin(*outcomes))), F.lit(False))


def stands(name: str) -> Column:
    """This row's value of the field is what counts from now on."""
    return F.coalesce(F.array_contains("asserted", name), F.lit(False)) & ~in_dispute(name, "lost", "held")


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
        for word, path in states_of(contract):
            state = F.when(stands(path), F.try_element_at(F.col("consent"), F.lit(word)))
            pairs += [F.lit(word), F.last(state, ignorenulls=True).over(upto)]
        made = F.create_map(*pairs) if pairs else nothing()
        options[entity] = F.map_filter(made, lambda _, value: value.isNotNull())
    return {"stated": choose(F.col("contract"), options)}


def unit_of(contracts: Mapping[str, Contract], name: str) -> Column:
    """The unit that a change of this field makes."""
    return choose(
        F.col("contract"), {entity: F.lit(units_of(one).get(name)) for entity, one in mastered(contracts).items()}
    )


def conflict_columns(contracts: Mapping[str, Contract]) -> dict[str, Column]:
    """What an event says of its disputes, and the version vector its writer had; rows of other tables have none."""
    return _conflict_columns(contracts) if mastered(contracts) else {}


@built_once
def _conflict_columns(contracts: Mapping[str, Contract]) -> dict[str, Column]:
    event = F.col("out") == "journal"

    def touches(dispute: Column) -> Column:
        unit, made = F.col("unit"), dispute["unit"]
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
    said = F.transform("dispute", lambda one: F.struct(one["field"], one["outcome"], one["with"]))
    return F.when(F.size("dispute") > 0, F.concat(F.lit(',"conflict":'), F.to_json(said))).otherwise(F.lit(""))
