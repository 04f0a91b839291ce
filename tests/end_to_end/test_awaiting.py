"""A weak yes to an erasure over the real cycle: notified, open through a restart, and over when a person shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lane_stage import Endpoint, Journal, operator, serving, until
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tidings.cli import application
from tidings.lanes.cycle import Cycle
from tidings.report.account import ends, journal_rows, pairs, reconcile
from tidings.settings import load
from tidings.store import Store

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


def said(folder: Path, *words: str) -> object:
    found = CliRunner().invoke(application("lanes"), ["lanes", *words, "-C", str(folder), "--json"])
    return json.loads(found.stdout) if found.exit_code == 0 else found.exit_code


def test_a_notice_stays_open_until_somebody_shows_that_it_was_done(spark: SparkSession, tmp_path: Path) -> None:
    agent = Endpoint()
    with serving(agent):
        operator(tmp_path, {"agent": agent.url})
        path = tmp_path / "subscribers/agent.yaml"
        path.write_text(path.read_text().replace("manifest: webhook", "manifest: agent_webhook"))
        settings = load(tmp_path)
        store = Store(settings.data_path / "tables")
        journal = Journal(settings, store)
        lanes = Cycle(spark, store, settings, settings.keyring)
        (gone,) = journal.batch([("ann", {"agent": "allow"})], row={"change_type": "delete", "operation": "delete"})
        (after,) = journal.batch([("ann", {"agent": "allow"})])
        until(lambda: len(agent.got) == 2, lanes.step, 60)
        lanes.close()
        states = {row["event_id"]: pairs(row, ends(store))[0]["outcome"] for row in journal_rows(store)}
        assert states == {gone: "notified", after: "acknowledged"}, "what waits for its proof holds nobody up"
        (open_one,) = said(tmp_path, "waiting")
        assert (open_one["event"], open_one["state"]) == (gone, "notified")
        assert said(tmp_path, "acknowledge", after, "--subscriber", "agent", "--reason", "seen") != 0
        letter = tmp_path / "letter.txt"
        letter.write_text("We have deleted the record.")
        answer = ("acknowledge", gone, "--subscriber", "agent", "--reason", "letter", "--evidence", str(letter))
        said(tmp_path, *answer)
        lanes = Cycle(spark, store, settings, settings.keyring)
        until(lambda: ends(store)[gone, "agent"].final == "acknowledged", lanes.step, 30)
        lanes.step()
        lanes.close()
        again = Cycle(spark, store, settings, settings.keyring)
        assert not again.lanes["agent"].state.unsettled
        again.close()
    assert ends(store)[gone, "agent"].strength == "A3"
    assert agent.seen[gone] == 1
    assert reconcile(store, {})["outcomes"] == {"acknowledged": 2}
    assert [p for p in reconcile(store, {})["problems"] if "source" not in p] == []
    entries = [json.loads(e) for e in store.arrow("attempts", ["entry"])["entry"].to_pylist() if e]
    assert sum(e["outcomes"] == {"accepted": 1} for e in entries) == 1, "the notice is attested as what it is"
