"""What `tidings replay --dry-run` says, over tables as a run leaves them, and orders as the ledger keeps them. No JVM."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "recovery"))
from history import BATCH, FEED, LANE, NOW, History

from tidings.lanes import buffer, control
from tidings.lanes.attempts import table_of, when
from tidings.lanes.standing import Standing
from tidings.ledger.vocabulary import validate_entry
from tidings.report.account import reconcile
from tidings.seal.keyfiles import KeyFiles

import tidings.cli  # isort: skip

DAY = 86_400.0
DENY = """\
version: '2'
rules:
  - id: no-more
    anchor: event
    when: {fact: change_type, is: email}
    effect: {deny: "not any more"}
    examples:
      - {given: {change_type: email}, to: {subscriber: least}, gives: deny}
      - {given: {change_type: phone}, to: {subscriber: least}, gives: nothing}
"""


def tidings_(folder: Path, *more: str) -> tuple[int, Any]:
    said, code = StringIO(), 0
    with redirect_stdout(said):
        try:
            tidings.cli.main([*more, "-C", str(folder), "--json"])
        except SystemExit as end:
            code = int(end.code or 0)
    return code, json.loads(said.getvalue())


def counts(history: History, *more: str) -> dict[str, int]:
    code, said = tidings_(history.folder, "replay", "--subscriber", LANE, "--dry-run", *more)
    assert code == 0, said
    return {word: count for word, count in said["counts"].items() if count}


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "operator")


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (("--from", "2026-11-02", "--to", "2026-11-01"), "moment"),
        (("--from", "2026-11-02T09:00:00Z", "--to", "2026-11-02T09:00:00Z"), "moment"),
        (("--type", "emial"), "unknown_type"),
        (("--type", "email", "--type", "nosuch"), "unknown_type"),
        (("--type", "email"), ""),
        (("--from", "99999999999999999999h ago"), ""),
    ],
)
def test_what_can_hold_nothing_is_refused_and_not_answered_with_none(
    history: History, more: tuple[str, ...], code: str
) -> None:
    ended, said = tidings_(history.folder, "replay", "--subscriber", LANE, "--dry-run", *more)
    assert (ended, said.get("error", {}).get("code", "")) == (3 if code else 0, code)


@pytest.mark.parametrize(
    "words",
    [
        ("replay", "--dry-run"),
        ("dead-letters", "list"),
        ("dead-letters", "retry", "--reason", "x", "--yes"),
        ("lanes", "waiting"),
    ],
)
def test_a_subscriber_that_is_not_there_is_refused(history: History, words: tuple[str, ...]) -> None:
    ended, said = tidings_(history.folder, *words, "--subscriber", "nobody")
    assert (ended, said["error"]["code"]) == (3, "unknown_lane")
    assert LANE in said["error"]["expected"]


def test_what_was_acknowledged_is_skipped_and_what_was_given_up_is_sent(history: History) -> None:
    history.batch(40, people=3, final="dead_lettered")
    history.batch(30, people=2)  # newer, of two of the three people
    assert counts(history) == {"skipped": 2, "superseded": 2, "sent": 1}
    assert counts(history, "--from", "35d ago") == {"skipped": 2}
    assert counts(history, "--to", "35d ago") == {"superseded": 2, "sent": 1}
    assert counts(history, "--type", "phone") == {}
    assert counts(history, "--again") == {"superseded": 2, "sent": 3}
    assert counts(history, "--subject", "customer:2") == {"sent": 1}
    assert counts(history, "--subject", "customer:0") == {"superseded": 1, "skipped": 1}


def test_a_consent_is_overtaken_only_by_a_consent_of_its_class_and_channel(history: History) -> None:
    email, sms = ({"class": "marketing", "channel": name, "state": "withdrawn"} for name in ("email", "sms"))
    history.batch(40, people=1, final="dead_lettered", row={"consent": email, "change_type": "consent"})
    history.batch(39, people=1, row={"consent": sms, "change_type": "consent"})
    history.batch(38, people=1)
    assert counts(history) == {"skipped": 2, "sent": 1}
    history.batch(37, people=1, row={"consent": email, "change_type": "consent"})
    assert counts(history) == {"skipped": 3, "superseded": 1}


def test_erased_people_doubts_and_the_gate_of_today(history: History) -> None:
    history.batch(40, people=3, final="dead_lettered")
    settings = history.folder / "subscribers" / f"{LANE}.yaml"
    settings.write_text(settings.read_text().replace("at-least-once", "at-most-once"))
    history.decide()
    history.batch(30, people=1, final="in_doubt", first=7)
    keys = KeyFiles(history.settings.data_path / "keys", history.settings.keyring.derive("kek"))
    keys.erase(history.tag(0))
    assert counts(history) == {"sent": 2, "erased": 1, "in_doubt": 1}
    assert counts(history, "--again") == {"sent": 3, "erased": 1}
    (history.folder / "policy" / "own.yaml").write_text(DENY)
    assert counts(history) == {"refused": 2, "erased": 1, "in_doubt": 1}
    code, said = tidings_(history.folder, "replay", "--subscriber", LANE, "--dry-run", "--subject", "customer:0")
    assert (code, said["error"]["code"]) == (3, "nobody_found")


def test_a_part_that_is_gone_is_named(history: History) -> None:
    history.batch(900, people=2, final="acknowledged")
    history.batch(5, people=1, final="dead_lettered")
    history.attest()
    history.policy("retention:\n  events: {months: 13}\n")
    assert tidings_(history.folder, "gate", "expire")[0] == 0
    code, said = tidings_(history.folder, "replay", "--subscriber", LANE, "--dry-run", "--again")
    assert code == 0
    assert {word: count for word, count in said["counts"].items() if count} == {"expired": 2, "sent": 1}
    assert said["gone"] == ["2 events of the range are kept without what they said: crm/g1 up to offset 1"]


def test_files_outside_the_range_are_not_opened_and_slices_are_small(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    for age in range(60, 10, -5):
        history.batch(age, people=4, final="dead_lettered")
    code, said = tidings_(history.folder, "replay", "--subscriber", LANE, "--dry-run", "--from", "21d ago")
    assert (code, said["files"]) == (0, {"read": 2, "total": 10})
    history.store.compact("journal")
    whole = counts(history)
    assert whole == {"sent": 40}
    monkeypatch.setattr(buffer, "MOST_ROWS", 3)  # every slice ends inside a file
    assert counts(history) == whole
    assert counts(history, "--latest") == {"sent": 4, "superseded": 36}


def test_an_order_is_attested_and_names_nobody(history: History) -> None:
    history.batch(40, people=3, final="dead_lettered")
    ask = ["replay", "--subscriber", LANE, "--subject", "customer:1", "--rate", "5", "--most", "7"]
    assert tidings_(history.folder, *ask)[1]["error"]["code"] == "no_reason"
    code, said = tidings_(history.folder, *ask, "--reason", "their import failed")
    assert (code, said["replay"], said["counts"]["sent"]) == (0, f"{LANE}-1", 1)
    (request,) = control.asked(history.settings.data_path, LANE)
    entry = validate_entry(request.entry("tidings/small") or b"")
    assert (entry["kind"], entry["count"], entry["subscriber"]) == ("replayed", 1, LANE)
    assert "one subject" in entry["range"]
    text = (history.settings.data_path / "control" / f"{LANE}.jsonl").read_text()
    assert history.tag(1).hex() not in text
    order = buffer.Order.of({name: value for name, value in request.order.items() if name != "range"})
    assert (order.rate, order.most, order.count, len(order.people)) == (5.0, 7, 1, 1)
    _, listed = tidings_(history.folder, "replay", "list")
    assert [(one["name"], one["state"]) for one in listed] == [(f"{LANE}-1", "asked")]
    tidings_(history.folder, "replay", "cancel", f"{LANE}-1", "--reason", "not needed")
    assert tidings_(history.folder, "replay", "show", f"{LANE}-1")[1]["state"] == "cancelled"
    assert (
        tidings_(history.folder, "replay", "pause", f"{LANE}-1", "--reason", "x")[1]["error"]["code"] == "replay_over"
    )
    assert tidings_(history.folder, "replay", "show", "other-9")[1]["error"]["code"] == "unknown_replay"


def test_cursors_are_listed_compared_and_moved_with_a_reason(history: History) -> None:
    history.batch(40, people=3)
    history.batch(2, people=2, settled=False)
    _, said = tidings_(history.folder, "lanes", "cursors")
    mine, since = {one["subscriber"]: one for one in said}, (datetime.now(UTC) - NOW).total_seconds()
    assert (mine[LANE]["position"], mine[LANE]["lag"]) == (BATCH + 1, 0)
    assert (mine[LANE]["unsettled"], mine[LANE]["oldest"]) == (2, BATCH)
    assert mine[LANE]["oldest_s"] == pytest.approx(2 * DAY + since, abs=600)
    assert (mine["once"]["position"], mine["once"]["lag"]) == (-1, 5)
    assert mine["once"]["lag_s"] == pytest.approx(40 * DAY + since, abs=600)
    (row,) = tidings_(history.folder, "lanes", "compare", LANE, "once")[1]
    assert (row["feed"], row["ahead"]) == (str(FEED), 5)
    move = ["lanes", "move", "--subscriber", LANE, "--to"]
    assert tidings_(history.folder, *move, "end")[1]["error"]["code"] == "no_reason"
    assert tidings_(history.folder, *move, "7", "--reason", "x")[1]["error"]["code"] == "unknown_feed"
    assert tidings_(history.folder, *move, "30d ago", "--dry-run", "--again")[1]["counts"]["skipped"] == 0
    other = ["lanes", "move", "--subscriber", "once", "--to", "end"]
    assert tidings_(history.folder, *other, "--dry-run")[1]["expired"] == 0  # nothing here was for it
    assert control.asked(history.settings.data_path, "once") == []


def wish(offsets: Sequence[int], code: str | None) -> dict[str, Any]:
    members = [
        {**FEED._asdict(), "offset": n, "event_id": f"event-0-{n}", "attempt": 0, "result": "replayed", "code": code}
        for n in offsets
    ]
    row = {"lane": "once", "cycle": 1, "call": "replay-1-1", "subscriber": "once", "intent": False}
    return row | {"started": when(2e9), "finished": when(2e9), "members": members}


@pytest.mark.parametrize("made", [True, False])
def test_pairs_of_a_bootstrap_balance_and_others_do_not(history: History, made: bool) -> None:
    history.batch(3, people=2)
    store = history.store
    before = reconcile(store, {})
    folder = history._folder("attempts", table_of([wish([0, 1], "bootstrap exactly-once" if made else None)]))
    store.commit("attempts", folder, app="lanes", version=1)
    after = reconcile(store, {})
    assert after["balanced"] is made
    assert after["pairs"] - before["pairs"] == (2 if made else 0)


def call(cycle: int, offset: int, event: str, final: str) -> dict[str, Any]:
    member = {**FEED._asdict(), "offset": offset, "event_id": event, "change_type": "email", "attempt": 1}
    row = {"lane": LANE, "cycle": cycle, "call": f"{LANE}-{cycle}", "subscriber": LANE, "intent": False}
    moment = when(NOW.timestamp())
    return row | {"started": moment, "finished": moment, "members": [member | {"result": final, "final": final}]}


def test_an_answer_that_comes_after_quicker_ones_is_not_missed(history: History) -> None:
    """A slow call has a lower number than calls that were committed before it."""
    history.batch(3, people=1, final="dead_lettered")
    history.batch(2, people=1, settled=False, first=1)
    store = history.store
    keys = KeyFiles(history.settings.data_path / "keys", history.settings.keyring.derive("kek"))
    standing = Standing(store, keys, LANE, 0.0).build()
    place, person = (0, 0), history.tag(0)
    history.batch(1, people=1, settled=False)  # the same person, newer
    for version, rows in enumerate(
        ([call(9, BATCH + 1, "event-1-1", "acknowledged")], [call(8, 2 * BATCH, "event-2-0", "acknowledged")]), 1
    ):
        folder = history._folder("attempts", table_of(rows))
        store.commit("attempts", folder, app="lanes", version=version)
        standing.refresh()
        assert standing.has(FEED, BATCH + 1)
        assert standing.overtaken_since(FEED, person, place) is (version == 2)
    assert standing.has(FEED, 2 * BATCH)
    assert not standing.has(FEED, 0)


def test_a_bootstrap_takes_what_was_decided_without_the_subscriber_and_nothing_else(history: History) -> None:
    history.batch(9, people=2)
    history.batch(8, people=1, row={"flags": ["stale"], "recipients": []})
    text = (history.folder / "subscribers" / f"{LANE}.yaml").read_text()
    late = history.folder / "subscribers" / "late.yaml"
    late.write_text(text)
    ask = ["replay", "--bootstrap", "--dry-run", "--subscriber"]
    found = tidings_(history.folder, *ask, "late")[1]
    assert {word: count for word, count in found["counts"].items() if count} == {"sent": 2}
    held_back = tidings_(history.folder, *ask, LANE)[1]  # it was there, so a row that does not name it is not for it
    assert not any(held_back["counts"].values())
    late.write_text(text + "filter: \"banner = 'shop'\"\n")
    assert tidings_(history.folder, *ask, "late")[1]["error"]["code"] == "bootstrap_filter"
