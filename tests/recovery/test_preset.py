"""An operator of another preset, under the whole bundles: the ledger speaks its words, and verifies and proves like any other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checker import check
from small import small
from typer.testing import CliRunner

from tidings.cli import application
from tidings.gate.presets import preset_named

pytestmark = pytest.mark.timeout(400)
NAMES = preset_named("master-record").names


def test_the_ledger_speaks_the_operators_words(tmp_path: Path) -> None:
    with small(tmp_path, "crm") as one:
        with (one.folder / "tidings.yaml").open("a") as more:
            more.write("preset: master-record\n")
        (one.folder / "policy/own.yaml").write_text("version: '1'\ninclude: [event, vertical, governance]\n")
        one.world.round()
        one.finish()
        rows = one.store.arrow("journal", ["event_id", "entry"]).to_pylist()
        decisions = [json.loads(row["entry"])["decision"] for row in rows]
        assert decisions
        assert all(decision["preset"] == "master-record" for decision in decisions)
        assert all(set(decision["anchors"]) == set(NAMES.values()) for decision in decisions)
        assert {decision["anchors"][NAMES["event"]] for decision in decisions} == {"pass"}
        assert all("spec.cloudevents" in decision["tags"] for decision in decisions)
        assert check(one) == []
        said = CliRunner().invoke(application("prove"), ["prove", rows[0]["event_id"], "-C", str(one.folder), "--json"])
        assert said.exit_code == 0, said.output
