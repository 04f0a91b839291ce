"""Accepted over the real cycle, answered over the real API: a subscriber that pulls, and one that calls back through the receiver kit."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from lane_stage import Journal, operator, until
from pyspark.sql import SparkSession
from tidings_receiver import Event, Receiver, Taken, send_callback

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))
sys.path.insert(0, str(Path(__file__).parents[1] / "kit"))
from api_stage import SECRET, serving
from test_kit_receiver import wsgi_server

from tidings.api.access import Tokens
from tidings.lanes.cycle import Cycle
from tidings.report.account import ends, reconcile
from tidings.settings import load
from tidings.store import Store

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


def test_what_is_pulled_or_called_back_is_acknowledged_once(spark: SparkSession, tmp_path: Path) -> None:
    taken: list[str] = []

    def handle(event: Event, connection: Any) -> None:
        taken.append(event.id)

    with wsgi_server(Receiver([SECRET], handle)) as url:
        (tmp_path / "secrets").mkdir()
        (tmp_path / "secrets/hook.key").write_text(SECRET)
        (tmp_path / "secrets/hook.key").chmod(0o600)
        operator(tmp_path, {"hook": f"{url}\nsigning_secret: file:hook.key\nvars: {{answers: callback}}"})
        (tmp_path / "subscribers/erp.yaml").write_text("manifest: pull\nrole: service\nregion: US\ndpa: true\n")
        settings = load(tmp_path)
        store = Store(settings.data_path / "tables")
        journal = Journal(settings, store)
        both = {"erp": "allow", "hook": "allow"}
        ids = journal.batch([("ann", both), ("bob", both)])
        token, _ = Tokens(settings.data_path).make("erp")
        lanes = Cycle(spark, store, settings, settings.keyring)
        with serving(settings) as served:

            def read() -> list[str]:
                lanes.step()
                found = served.ask("GET", "/v1/subscribers/erp/events", token)
                return [one["id"] for one in found.json()]

            until(lambda: read() == ids and sorted(taken) == ids, lambda: None, 60)
            assert {(end.open, end.final) for end in ends(store).values()} == {("accepted", "")}
            lanes.close()
            lanes = Cycle(spark, store, settings, settings.keyring)  # open through a restart
            assert read() == ids
            acks = {"acks": [{"id": ids[0], "status": "ok"}, {"id": ids[1], "status": "failed", "reason": "no_room"}]}
            for result in ("taken", "already"):
                told = served.ask("POST", "/v1/subscribers/erp/acks", token, json=acks).json()["results"]
                assert [one["result"] for one in told] == [result] * 2
            send_callback(f"{served.url}/v1/callbacks/hook", SECRET, [Taken(one, "ok") for one in ids])
            until(lambda: len(ends(store)) == 4 and all(e.final for e in ends(store).values()), lanes.step, 30)
            told = served.ask("POST", "/v1/subscribers/erp/acks", token, json=acks).json()["results"]
            assert [one["result"] for one in told] == ["already"] * 2
            assert read() == []
        lanes.step()
        lanes.close()
    found = {place: (end.final, end.strength) for place, end in ends(store).items()}
    assert found == {
        (ids[0], "erp"): ("acknowledged", "A3"),
        (ids[1], "erp"): ("dead_lettered", "A0"),
        (ids[0], "hook"): ("acknowledged", "A4"),
        (ids[1], "hook"): ("acknowledged", "A4"),
    }
    assert sorted(taken) == ids
    assert [p for p in reconcile(store, {})["problems"] if "source" not in p] == []
    entries = [json.loads(e) for e in store.arrow("attempts", ["entry"])["entry"].to_pylist() if e]
    assert any(e.get("ack_strength") == "A4" and e["outcomes"] == {"acknowledged": 2} for e in entries)
