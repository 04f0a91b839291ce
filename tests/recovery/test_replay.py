"""The seam on the real process: a late subscriber and a repeat for an old one, beside live traffic, killed twice on the way."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checker import History, history_of, wrong, wrong_entries, wrong_ledger, wrong_so_far
from small import SUBSCRIBERS, Small, small
from warm import WarmJvm

from tidings.report.account import reconcile
from tidings.verbs.status import totals

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

LATE = (
    "manifest: webhook\nurl: {url}/late\nrole: service\nregion: US\ndpa: true\nsemantics: {{default: exactly-once}}\n"
)


def tidings(one: Small, *more: str) -> Any:
    command = [sys.executable, "-m", "tidings.cli", *more, "-C", str(one.folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def gaps(history: History) -> list[str]:
    """The late subscriber has every event, or the newest of whoever an event was superseded for."""
    held = {event.what: event for event in history.journal}
    newest: dict[tuple[str, int], str] = {}
    found, ended = [], defaultdict(list)
    for expected in history.expected:
        event = held[expected.source, expected.change_type, expected.marker]
        newest[expected.source, expected.who] = event.event_id
        ended[history.finals.get((event.event_id, "late"), "")].append(event.event_id)
    found += [
        f"ended {word or 'not at all'}: {ids}"
        for word, ids in ended.items()
        if word not in ("acknowledged", "superseded")
    ]
    told = {arrival.event_id for arrival in history.arrivals if arrival.subscriber == "late"}
    return found + [f"{who} stands at an old state" for who, event in newest.items() if event not in told]


def test_a_late_subscriber_and_a_repeat_survive_two_kills(tmp_path: Path, jvm: WarmJvm) -> None:
    with small(tmp_path, "crm", jvm=jvm) as one:
        one.world.round()
        one.world.round()
        one.finish()
        before = len(history_of(one).journal)
        url = (tmp_path / "url").read_text()
        (one.folder / "subscribers" / "late.yaml").write_text(LATE.format(url=url))
        ask = ["replay", "--subscriber", "late", "--bootstrap", "--most", "3"]
        forecast = tidings(one, *ask, "--dry-run")
        assert forecast["counts"]["sent"] == before
        tidings(one, *ask, "--reason", "a new system")
        again = tidings(one, "replay", "--subscriber", "once", "--again", "--reason", "they restored a backup")
        assert again["counts"]["sent"] + again["counts"]["superseded"] == before
        for point in ("lanes.after_send:3", "attempts.before_commit:4"):
            one.world.round()
            code, said = one.run(crash_at=point)
            assert code == -9, said
            one.remember_heads()
            assert wrong_so_far(of_all(one)) == [], point
        one.world.round()
        one.finish()
        judged(one)
        assert [order["state"] for order in tidings(one, "replay", "list")] == ["done", "done"]
        sent = tidings(one, "replay", "show", "once-1")["deliveries"]
        assert sent["acknowledged"] >= 1
        assert set(sent) <= {"acknowledged", "superseded"}


def of_all(one: Small) -> History:
    return replace(history_of(one), semantics=SUBSCRIBERS | {"late": "exactly-once"})


def judged(one: Small) -> None:
    history = of_all(one)
    assert wrong_so_far(history) == []
    assert gaps(history) == []
    others = [arrival for arrival in history.arrivals if arrival.subscriber != "late"]
    assert wrong(replace(history, arrivals=others, semantics=SUBSCRIBERS)) == []
    store = one.store
    tables = ("journal", "attempts", "settled")
    held = [(t, entry) for t in tables for entry in store.arrow(t, ["entry"])["entry"].to_pylist() if entry is not None]
    assert wrong_entries(held) == []
    assert wrong_ledger(one.data / "ledger", one.heads, [entry for _, entry in held]) == []
    assert reconcile(store, totals(one.settings, store))["problems"] == []
