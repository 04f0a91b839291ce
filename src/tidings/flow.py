"""The whole chain on one page: message → change → event → decision → journal. Pure; read this first.

    reading(messages)          once, in the stream's plan     MESSAGE → CHANGE → SUBJECT rows
    gathered(rows, …)          per batch                      beside each row what is known of its subject
    writing(rows, batch, …)    per batch                      SUBJECT → EVENT → decided, sealed, attested rows of every table

Nothing here reads, writes, counts or looks at a clock; what it computes depends on the batch's rows and on state committed before it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidings.contract import Contract
from tidings.decisions import Decisions
from tidings.known import KEY, Known
from tidings.person_fields import SOURCE as REQUESTS
from tidings.person_fields import spoken
from tidings.seal.columns import lot_column
from tidings.seal.tokens import token_pattern
from tidings.seen import NAME
from tidings.settings import Settings
from tidings.shapes import Source
from tidings.stages.change import AUTO, change
from tidings.stages.conflict import compared_with_others, conflict_columns, disputed, own_view
from tidings.stages.erased import without_erased
from tidings.stages.event import Batch, detected, event_columns, numbered, ordered, with_known
from tidings.stages.joint import remembered
from tidings.stages.journal import narrowed, spread, written
from tidings.stages.once import built_once
from tidings.stages.signals import details
from tidings.stages.subject import SubjectRules, subject

Observers = tuple[Callable[[DataFrame], DataFrame], Callable[[DataFrame], DataFrame]]


def same(rows: DataFrame) -> DataFrame:
    return rows


@built_once
def contracts_of(settings: Settings, source: Source) -> dict[str, Contract]:
    """The contracts that a source speaks; requests of people have words of their own beside the contract's."""
    said = {name: settings.entities[name] for name in dict.fromkeys(source.entities.values())}
    return {name: spoken(one) for name, one in said.items()} if source.name == REQUESTS else said


def reading(
    messages: DataFrame, settings: Settings, source: Source, keys: DataFrame, heard: Collection[str] = ()
) -> DataFrame:
    """SUBJECT rows of a source. Built once: everything vendor-shaped happens here. `heard` is for `auto`, see `change`."""
    by_table = {table: settings.entities[name].key for table, name in source.entities.items()}
    site = settings.locations.get((source.banner, source.location or ""))
    banner = settings.banners[source.banner]
    rules = SubjectRules(
        tenant=settings.tenant,
        entities=source.entities,
        contracts=contracts_of(settings, source),
        jurisdiction=site.jurisdiction if site else banner.jurisdiction or settings.jurisdiction,
        location=source.location,
        locale=site.locale if site else banner.locale,
    )
    held = {
        table: token_pattern(settings.entities[n], settings.attested_vendors) for table, n in source.entities.items()
    }
    tokens = {table: pattern for table, pattern in held.items() if pattern}
    spoken = heard if source.dialect == AUTO else None
    return messages.transform(change, source.dialect, by_table, spoken, tokens).transform(subject, rules, keys)


@dataclass(frozen=True)
class Context:
    """What a batch needs besides its rows."""

    settings: Settings
    source: Source
    decisions: Decisions
    already: DataFrame  # change ids that the journal holds, for rows that may be re-deliveries; usually empty
    sealed: bool = True


def gathered(rows: DataFrame, one: DataFrame, known: Known, partitions: int) -> DataFrame:
    """Each row with the batch's keys and place (`one` row for all) and with what is known of its subject; divided by lot."""
    rows = rows.repartition(partitions, "bucket").join(known.subjects, [*KEY], "left")
    rows = rows if known.last_seen is None else rows.join(known.last_seen, [*KEY], "left")
    rows = rows.crossJoin(F.broadcast(one.select("lots"))).withColumn("lot", lot_column(F.col("lots"), F.col("tag")))
    return rows.drop("lots").repartition(partitions, "lot").crossJoin(F.broadcast(one.drop("lots")))


def writing(rows: DataFrame, batch: Batch, context: Context, observe: Observers = (same, same)) -> DataFrame:
    """One frame for all tables, told apart by `out`, of gathered rows; `observe` may count changes and decided events on their way."""
    contracts = contracts_of(context.settings, context.source)
    rows = rows.transform(own_view, contracts).transform(ordered, context.already).transform(without_erased)
    rows = rows.transform(with_known, batch, contracts).transform(compared_with_others, contracts)
    rows = rows.transform(detected, contracts, batch).transform(disputed, contracts)
    rows = rows.transform(numbered).transform(remembered, contracts).transform(observe[0])
    events = rows.transform(spread, batch, contracts)
    events = events.withColumns(
        event_columns(contracts, context.settings.attested_vendors) | narrowed() | details(contracts)
    )
    events = events.withColumns(conflict_columns(contracts)).withColumns(_place(context.settings, context.source))
    decided = context.decisions.decided(events, contracts).transform(observe[1])
    preset = context.settings.operator.preset
    return decided.transform(written, batch, context.decisions.version, preset, sealed=context.sealed)


@built_once
def _place(settings: Settings, source: Source) -> dict[str, Column]:
    """Where the event belongs: its banner and location, with the location's locale and routing hint.

    From here on `entity` is the contract's name; the vendor's table was only needed to order, and to name one that has no contract.
    """
    banner = settings.banners[source.banner]
    hint = F.lit(banner.routing_hint)
    for site in settings.locations.values():
        if site.banner == source.banner:
            hint = F.when(F.col("location") == site.id, F.lit(site.routing_hint)).otherwise(hint)
    return {
        "entity": F.col("contract"),
        "unmapped": F.when((F.col("problem.code") == "unknown_table") & F.col("entity").rlike(NAME), F.col("entity")),
        "generation_name": F.concat_ws("/", "source", "b_generation"),
        "tenant": F.lit(settings.tenant),
        "banner": F.lit(source.banner),
        "routing_hint": hint,
        "locale": F.coalesce(F.col("locale"), F.lit(banner.locale)),
    }
