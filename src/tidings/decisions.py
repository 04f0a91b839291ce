"""The decision table at work: situations met by a batch are looked up, and decided once when they are new."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidings.contract import Contract
from tidings.gate.cesql_columns import filter_column, journal_attributes
from tidings.gate.decisions import DecisionTable
from tidings.gate.loading import load_policy
from tidings.gate.situations import decision_frame, event_facts, situation_columns, unknown_situations
from tidings.settings import Settings
from tidings.stages.decision import decision


@dataclass
class Decisions:
    """Shared by all sources of a run; the frame is rebuilt only when the table grew."""

    settings: Settings
    table: DecisionTable
    _frames: dict[int, tuple[int, DataFrame]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def load(cls, settings: Settings) -> Decisions:
        policy = load_policy(settings)
        return cls(settings, DecisionTable(settings.data_path / "decisions", policy))

    @property
    def version(self) -> str:
        return self.table.policy.version

    def decided(self, events: DataFrame, contracts: Mapping[str, Contract]) -> DataFrame:
        """Adds `decision`, `recipients`, `anchors` and `deadline`; rows of other tables than the journal pass unharmed."""
        spark = events.sparkSession
        flags = F.concat(
            F.coalesce("flags", F.array().cast("array<string>")),
            F.coalesce("known_flags", F.array().cast("array<string>")),
        )
        facts = event_facts(contracts, F.col("consents"), F.col("consent_event"), flags) | self._test_mode()
        mine = F.col("out") == "journal"
        found = situation_columns(self.table.policy, facts)
        rows = events.withColumns({name: F.when(mine, column) for name, column in found.items()})
        rows = decision(rows, self._frame(spark), self._filters(rows))
        earliest = F.array_min(F.transform("recipients", lambda one: one["deadline"]))
        nobody = F.array_contains("flags", "stale")
        return rows.withColumns(
            {
                "deadline": earliest,
                "recipients": F.when(nobody, F.array().cast(rows.schema["recipients"].dataType)).otherwise(
                    F.col("recipients")
                ),
            }
        )

    def unknown(self) -> Column:
        """For `observe` on decided rows: what nobody has decided yet."""
        return unknown_situations().alias("unknown")

    def learn(self, found: Mapping[str, Any]) -> int:
        """Decide the situations a batch met for the first time; returns how many there were."""
        met = [row.asDict() for row in found["unknown"] or []]
        with self._lock:
            return self.table.extend(met) if met else 0

    def _frame(self, spark: SparkSession) -> DataFrame:
        with self._lock:
            size, key = len(self.table.rows), id(spark)
            if self._frames.get(key, (-1, None))[0] != size:
                self._frames[key] = (size, decision_frame(spark, self.table))
            return self._frames[key][1]

    def _filters(self, rows: DataFrame) -> dict[str, Column]:
        attributes = journal_attributes(rows.columns)
        return {n: filter_column(s.filter, attributes) for n, s in self.settings.subscribers.items() if s.filter}

    def _test_mode(self) -> dict[str, Column]:
        mode = self.settings.test_mode
        subject = F.concat_ws(":", "entity", "keytext")
        return {
            "test_mode": F.lit(mode.enabled),
            "test_subject": subject.isin(*mode.subjects) if mode.subjects else F.lit(False),
        }
