"""Sources share one decision table: what one of them decides while another writes must not leave the other's events undecided."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from pyspark.sql import Row

from tidings.decisions import Decisions
from tidings.gate.decide import Policy, Recipient
from tidings.gate.decisions import DecisionTable
from tidings.gate.loading import starter_policy


def test_what_another_source_decided_meanwhile_was_undecided_for_this_batch(tmp_path: Path) -> None:
    starter = starter_policy()
    people = (Recipient("klaviyo", "marketing", "US", True),)
    policy = Policy("2026-11", starter.rules, starter.statutes, people)
    decisions = Decisions(cast(Any, SimpleNamespace()), DecisionTable(tmp_path, policy))
    met = {"unknown": [Row(change_type="email", operation="update")]}
    assert decisions.learn(met) == 1
    assert decisions.learn(met) == 1, "written before it was decided, so it must be written again"
    assert decisions.learn({"unknown": None}) == 0
    assert len(decisions.table.rows) == 1
