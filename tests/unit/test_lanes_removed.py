"""A subscriber is taken out of the folder with deliveries under way: each ends once, on record, and the books balance."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))

from lane_stage import Journal, operator

from tidings.lanes import control
from tidings.lanes.cycle import Cycle
from tidings.lanes.removed import REMOVED
from tidings.report.account import ends, reconcile
from tidings.settings import load
from tidings.store import Store

WHERE = {"alpha": "http://127.0.0.1:9/a", "beta": "http://127.0.0.1:9/b"}


def cycle(folder: Path) -> Cycle:
    settings = load(folder)
    spark = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    return Cycle(spark, Store(settings.data_path / "tables"), settings, settings.keyring)  # type: ignore[arg-type]


def stepped(folder: Path) -> Cycle:
    lanes = cycle(folder)
    lanes.step()
    lanes.step()
    lanes.close()
    return lanes


def test_what_a_removed_subscriber_was_owed_is_refused_once_and_stays_so_when_it_comes_back(tmp_path: Path) -> None:
    settings = operator(tmp_path, WHERE)
    store = Store(settings.data_path / "tables")
    journal = Journal(settings, store)
    for name in WHERE:
        control.ask(settings.data_path, name, "pause", "nothing may leave in this test")
    early = journal.batch([("ann", {"alpha": "allow", "beta": "deny"}), ("bob", {"alpha": "allow"})])
    stepped(tmp_path)
    late = journal.batch([("ann", {"alpha": "allow"})])
    gone = tmp_path / "subscribers/alpha.yaml"
    kept = gone.read_text()
    gone.unlink()
    stepped(tmp_path)
    found = ends(store)
    assert {event: found[event, "alpha"].finals for event in (*early, *late)} == {
        e: ["refused"] for e in (*early, *late)
    }
    assert {found[event, "alpha"].code for event in (*early, *late)} == {REMOVED}
    told = reconcile(store, {})
    assert (told["outcomes"], told["problems"]) == ({"refused": 4}, [])
    rows = store.arrow("attempts", ["entry", "members"]).to_pylist()
    assert all(row["entry"] for row in rows if row["members"]), "each refusal is attested"

    gone.write_text(kept)
    (again,) = journal.batch([("ann", {"alpha": "allow"})])
    lanes = stepped(tmp_path)
    assert set(lanes.lanes["alpha"].state.unsettled) == {again}, "it starts behind what was refused"
    assert reconcile(store, {})["problems"] == []


def test_what_ended_before_the_removal_does_not_end_again(tmp_path: Path) -> None:
    settings = operator(tmp_path, WHERE)
    store = Store(settings.data_path / "tables")
    journal = Journal(settings, store)
    for name in WHERE:
        control.ask(settings.data_path, name, "pause", "nothing may leave in this test")
    (event,) = journal.batch([("ann", {"alpha": "allow", "beta": "allow"})])
    lanes = stepped(tmp_path)
    control.answer(settings.data_path, "alpha", [event], True, "seen", "somebody")
    stepped(tmp_path)
    assert ends(store)[event, "alpha"].finals == ["acknowledged"]
    (tmp_path / "subscribers/alpha.yaml").unlink()
    stepped(tmp_path)
    assert ends(store)[event, "alpha"].finals == ["acknowledged"]
    assert lanes.lanes.keys() == WHERE.keys()
    assert reconcile(store, {})["problems"] == []
