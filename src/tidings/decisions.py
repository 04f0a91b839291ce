"""The decision table at work: situations met by a batch are looked up, and decided once when they are new."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidings.contract import Contract
from tidings.gate import filters
from tidings.gate.cesql import ATTRIBUTES
from tidings.gate.cesql_columns import filter_column, journal_attributes
from tidings.gate.decisions import DecisionTable
from tidings.gate.loading import load_policy, operator_facts
from tidings.gate.relevance import Relevant, relevant
from tidings.gate.situations import (
    decision_frame,
    event_facts,
    kindred,
    looked_up,
    situation,
    situation_id,
    unknown_situations,
)
from tidings.settings import Settings
from tidings.stages.attested import opening
from tidings.stages.decision import decision
from tidings.stages.once import built_once
from tidings.tables import TABLES

CANARY_STEPS = 10_000  # the same people every time: a share grows by people, it does not change them


@dataclass
class Decisions:
    """Shared by all sources of a run; the frame is rebuilt only when the table grew."""

    settings: Settings
    table: DecisionTable
    _frames: dict[int, tuple[int, DataFrame]] = field(default_factory=dict)
    _situations: dict[tuple[str, ...], dict[str, Column]] = field(default_factory=dict)
    _sorts: dict[tuple[str, ...], dict[str, Column]] = field(default_factory=dict)
    _relevant: dict[tuple[str, ...], Mapping[tuple[str, str, str], Relevant]] = field(default_factory=dict)
    _name: dict[str, Column] | None = None
    _compiled: dict[str, Column] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def load(cls, settings: Settings) -> Decisions:
        policy = load_policy(settings)
        return cls(settings, DecisionTable(settings.data_path / "decisions", policy))

    @property
    def version(self) -> str:
        return self.table.policy.version

    def decided(self, events: DataFrame, contracts: Mapping[str, Contract]) -> DataFrame:
        """Adds `decision`, `recipients`, `deadlines`, `anchors` and `deadline`; rows of other tables than the journal pass unharmed."""
        rows = events.withColumns(self._kindred(contracts)).withColumns(self._situation(contracts)).drop("kindred")
        rows = rows.withColumns(self._named())
        frame, free = self._frame(events.sparkSession), self.table.policy.free_days
        return decision(rows, frame, self._filters(), free).withColumns(_deadline())

    def _situation(self, contracts: Mapping[str, Contract]) -> dict[str, Column]:
        """The situation of an event, in the words of this policy; of other rows, nothing."""
        key = _key(contracts)
        if key not in self._situations:
            flags = F.concat(F.coalesce("flags", _none()), F.coalesce("known_flags", _none()))
            facts = event_facts(contracts, F.col("consents"), F.col("consent_event"), flags) | self._of_the_operator()
            found = situation(self.table.policy, facts, self._counts(contracts))
            self._situations[key] = {"situation": F.when(F.col("out") == "journal", found)}
        return self._situations[key]

    def _kindred(self, contracts: Mapping[str, Contract]) -> dict[str, Column]:
        key = _key(contracts)
        if key not in self._sorts:
            self._sorts[key] = {"kindred": F.when(F.col("out") == "journal", kindred(self._counts(contracts)))}
        return self._sorts[key]

    def _named(self) -> dict[str, Column]:
        if self._name is None:
            named = F.when(F.col("situation").isNotNull(), situation_id(self.table.policy))
            self._name = {"decision": named}
        return self._name

    def _counts(self, contracts: Mapping[str, Contract]) -> Mapping[tuple[str, str, str], Relevant]:
        """What counts for which event of these contracts, worked out once."""
        key = _key(contracts)
        if key not in self._relevant:
            everywhere = operator_facts(self.settings)
            if any(banner.vertical for banner in self.settings.operator.banners):
                del everywhere["vertical"]
            self._relevant[key] = relevant(self.table.policy, contracts, everywhere)
        return self._relevant[key]

    def unknown(self) -> Column:
        """For `observe` on decided rows: what nobody has decided yet."""
        return unknown_situations().alias("unknown")

    def learn(self, found: Mapping[str, Any]) -> int:
        """Decide the situations that a batch found undecided; returns how many there were.

        Another source may have decided them since. They count all the same: the batch was written without their decisions.
        """
        met = [row.asDict() for row in found["unknown"] or []]
        if met:
            with self._lock:
                self.table.extend(met)
        return len(met)

    def _frame(self, spark: SparkSession) -> DataFrame:
        with self._lock:
            size, key = len(self.table.rows), id(spark)
            if self._frames.get(key, (-1, None))[0] != size:
                digest = self.settings.keyring.derive("digest")
                self._frames[key] = (size, decision_frame(spark, self.table, digest))
            return self._frames[key][1]

    def _filters(self) -> Mapping[str, Column]:
        """The subscribers' filters, compiled once: the same mapping every time, so that what is built on it is kept too."""
        if self._compiled is None:
            attributes = journal_attributes([*TABLES["journal"].fields, "policy_version"])
            wanted = {name: one.filter for name, one in self.settings.subscribers.items() if one.filter is not None}
            trees = {name: filters.read(said, ATTRIBUTES) for name, said in wanted.items()}
            own = {name: filter_column(tree, attributes) for name, tree in trees.items()}
            self._compiled = own | self._for_one(own)
        return self._compiled

    def _for_one(self, own: Mapping[str, Column]) -> dict[str, Column]:
        """What a saga takes back is told to the one subscriber that it is for."""
        meant = {(source, name) for saga in self.settings.sagas.values() for name, source in saga.participants.items()}
        sources = sorted({source for source, _ in meant if source in self.settings.sources})
        if not sources:
            return {}
        others = ~F.col("source").isin(*sources)
        mine = {
            name: F.col("source").isin(*[source for source, other in meant if other == name])
            for name in self.settings.subscribers
        }
        return {name: (others | F.coalesce(mine[name], F.lit(False))) & own.get(name, F.lit(True)) for name in mine}

    def _of_the_operator(self) -> dict[str, Column]:
        """What the folder says, whatever the event."""
        mode, operator = self.settings.test_mode, self.settings.operator
        subject = F.concat_ws(":", "entity", "keytext")
        lines = {banner.id: banner.vertical for banner in operator.banners if banner.vertical}
        facts = {
            "test_mode": F.lit(mode.enabled),
            "test_subject": subject.isin(*mode.subjects) if mode.subjects else F.lit(False),
            "vertical": F.coalesce(looked_up(F.col("banner"), lines), F.lit(operator.vertical)),
            "public_company": F.lit(operator.public_company),
            "ai_routing": F.lit(operator.ai_routing),
            "capture": looked_up(F.col("source"), {name: one.kind for name, one in self.settings.sources.items()}),
        }
        place = F.pmod(F.crc32(F.col("tag")), F.lit(CANARY_STEPS))
        canaries = {a: m.share for a, m in self.table.policy.rollout.items() if m.mode == "canary"}
        return facts | {f"canary_{a}": place < round(share * CANARY_STEPS) for a, share in canaries.items()}


def _none() -> Column:
    return F.array().cast("array<string>")


def _key(contracts: Mapping[str, Contract]) -> tuple[str, ...]:
    """Which contracts, and with which change types: requests of people speak more than the sources do."""
    return tuple(f"{name}:{','.join(one.event_types)}" for name, one in contracts.items())


@built_once
def _deadline() -> dict[str, Column]:
    """The nearest deadline of all, and the key that opens this event's states to an auditor."""
    return {
        "deadline": F.array_min(F.map_values("deadlines")),
        "opening": F.when(F.col("out") == "journal", opening()),
    }
