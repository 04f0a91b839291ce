"""A merge that one system takes and another refuses: what was taken is taken back, once, and it is all one story."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lane_stage import Endpoint, Journal, arrow_schema, operator, serving

from tidings.errors import ConfigurationError
from tidings.report.account import End
from tidings.sagas import Sagas, inverse, stories, told
from tidings.seal.keyring import associated, open_payload
from tidings.settings import load
from tidings.shapes import Saga
from tidings.store import Store

ENTITY = """\
kind: customer
version: '1'
key: [id]
fields:
  email: {type: email, normalise: email, class: personal}
  merged_into: {type: identity_merge, class: internal}
"""
UNDO = "kind: inbox\ndialect: table_diff\nimages: full\nentities: {customers: customer}\nbanner: shop\n"
SAGA = "of: identity_merge\nparticipants: {alpha: undo_alpha, beta: undo_beta}\n"


def folder(root: Path, alpha: str, beta: str, saga: str = SAGA) -> Path:
    operator(root, {"alpha": alpha, "beta": beta, "gamma": alpha.replace("/0", "/2")})
    for name, text in {
        "entities/customer.yaml": ENTITY,
        "sources/undo_alpha.yaml": UNDO,
        "sources/undo_beta.yaml": UNDO,
        "sagas/merge.yaml": saga,
    }.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    return root


def change(number: int, before: dict[str, Any], after: dict[str, Any]) -> str:
    place = {
        "schema": "public",
        "table": "customers",
        "lsn": number,
        "txId": number,
        "ts_ms": 1_790_000_000_000 + number,
    }
    return json.dumps(
        {
            "before": before,
            "after": after,
            "op": "u",
            "ts_ms": place["ts_ms"],
            "source": place | {"connector": "postgresql", "db": "shop", "snapshot": "false"},
        }
    )


def tidings(*words: str) -> Any:
    ended = subprocess.run([sys.executable, "-m", "tidings.cli", *words], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads(ended.stdout) if "--json" in words else ended.stdout


@pytest.mark.spark
def test_a_refused_merge_is_taken_back_where_it_was_taken(tmp_path: Path) -> None:
    refuses = Endpoint(lambda event_id, times: 400)
    takes, other = Endpoint(), Endpoint()
    with serving(takes, refuses, other):
        root = folder(tmp_path, takes.url, refuses.url)
        old = {"id": "7", "email": "ann@example.com", "merged_into": None}
        (root / "drop/one.jsonl").write_text(
            change(1, old, {**old, "merged_into": "3", "email": "x@example.com"}) + "\n"
        )
        tidings("run", "--until-idle", "-C", str(root))
    settings = load(root)
    waiting = sorted((settings.data_path / "inbox").rglob("*.parquet"))
    Sagas(settings, Store(settings.data_path / "tables")).step()
    assert sorted((settings.data_path / "inbox").rglob("*.parquet")) == waiting  # a new start hands nothing over again
    (story,) = tidings("saga", "list", "-C", str(root), "--json")["stories"]
    parts = {part["subscriber"]: part for part in story["parts"]}
    assert (story["saga"], story["standing"]) == ("merge", "undone")
    assert {name: (part["outcome"], part["undo"]) for name, part in parts.items()} == {
        "alpha": ("acknowledged", "undone"),
        "beta": ("dead_lettered", ""),
    }
    merges = [body for body in takes.bodies if body["type"] == "tidings.identity_merge.changed"]
    first, back = merges
    assert first["data"]["after"]["merged_into"] == "3"
    assert (back["data"]["before"]["merged_into"], back["data"]["after"]["merged_into"]) == ("3", None)
    assert back["data"]["after"]["email"] == "x@example.com"  # another event changed that, and it stands
    assert back["causationid"] == first["id"] == story["event_id"]
    assert back["id"] == parts["alpha"]["undo_event"]
    assert first["subject"] == back["subject"]
    assert back["id"] not in refuses.got + other.got  # it was meant for one
    rows = Store(settings.data_path / "tables").arrow("journal", ["source", "event_id"]).to_pylist()
    assert [row["event_id"] for row in rows if row["source"].startswith("undo_")] == [back["id"]]
    merged = settings.keyring.identifier_hash("merged.customer", "3")  # from the record that stays to the one that went
    found = Store(settings.data_path / "tables").lookup("identities", [merged])["tag"].to_pylist()
    assert set(found) == {settings.keyring.tag(settings.tenant, "customer", "7")}
    shown = tidings("saga", "show", story["event_id"], "-C", str(root))
    assert "alpha: acknowledged; took it back with" in shown
    assert "beta: dead_lettered (" in shown


def row(**said: Any) -> dict[str, Any]:
    at = datetime(2026, 11, 16, 9, 0, 0, 5, UTC)
    recipients = [
        {"subscriber": name, "outcome": "allow", "reasons": [], "semantics": "at-least-once", "deadline": None}
        for name in ("a", "b", "c")
    ]
    usual = {"event_id": "0197-00ff", "change_type": "identity_merge", "entity": "customer", "operation": "update"}
    return {**usual, "time": at, "recorded": at, "recipients": recipients, **said}


def ended(store: Store, number: int, finals: dict[str, str], event_id: str) -> None:
    """An attempt of each subscriber, as the lanes write them."""
    now = datetime.now(UTC)
    member = {
        "source": "crm",
        "generation": "g1",
        "offset": 0,
        "event_id": event_id,
        "change_type": "identity_merge",
        "attempt": 1,
    }
    rows = [
        {"lane": name, "cycle": number, "subscriber": name, "intent": False, "started": now, "finished": now, "members": [member | {"result": "ok", "final": final}]}
        for name, final in finals.items()
    ]  # fmt: skip
    folder = Path(store.fresh("attempts"))
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=arrow_schema("attempts")), folder / "part-0.parquet")
    store.commit("attempts", str(folder), app="test", version=number)


def test_what_is_handed_over(tmp_path: Path) -> None:
    """One message into the one inbox, sealed; none before somebody said no, and none for an event without an image before."""
    root = folder(tmp_path, "http://127.0.0.1:9/0", "http://127.0.0.1:9/1")
    settings = load(root)
    store = Store(settings.data_path / "tables")
    journal = Journal(settings, store)
    data = {
        "key": {"id": "7"},
        "before": {"id": "7", "merged_into": None, "email": "a"},
        "after": {"id": "7", "merged_into": "3", "email": "b"},
    }
    both = {"alpha": "allow", "beta": "allow"}
    (event,) = journal.batch(
        [("7", both)], data=data | {"changed": ["email", "merged_into"]}, row={"change_type": "identity_merge"}
    )
    (blind,) = journal.batch(
        [("8", both)], data=data | {"before": None, "changed": []}, row={"change_type": "identity_merge"}
    )
    watched = Sagas(settings, store)
    ended(store, 0, {"alpha": "acknowledged"}, event)
    watched.step()
    assert [story.standing for story in watched.stories()] == ["open", "open"]
    ended(store, 1, {"beta": "dead_lettered"}, event)
    ended(store, 2, {"alpha": "acknowledged", "beta": "refused"}, blind)
    for _ in range(2):
        watched.step()
    assert watched.idle()
    assert [(story.event_id, story.standing) for story in watched.stories()] == [(event, "undoing")]
    (segment,) = (settings.data_path / "inbox").rglob("*.parquet")
    assert segment.parent.name == "undo_alpha"
    (kept,) = pq.read_table(segment).to_pylist()
    assert kept["place"] == f"saga:{event}:alpha"
    aad = associated("inbox", kept["place"], "body")
    message = json.loads(open_payload(settings.keyring.derive("inbox"), aad, kept["sealed"]))
    assert message["after"] == {"id": "7", "merged_into": None, "email": "b"}
    assert message["before"] == data["after"]
    # After a restart the same message has the same name; what it becomes is one event.
    again = Sagas(settings, store)
    again.step()
    assert {row["place"] for path in segment.parent.iterdir() for row in pq.read_table(path).to_pylist()} == {
        kept["place"]
    }
    assert stories(settings, store, blind)[0].standing == "a person"


MERGE = Saga(name="merge", of="identity_merge", participants={"a": "undo_a", "b": "undo_b", "c": "human"})
# How each subscriber ended, how the events that take back ended (by subscriber), and how the story stands.
STANDINGS: list[tuple[str, dict[str, str], str, dict[str, str]]] = [
    ("acknowledged acknowledged acknowledged", {}, "done", {}),
    ("acknowledged acknowledged -", {}, "open", {}),
    ("acknowledged dead_lettered -", {}, "undoing", {"a": "asked"}),
    ("acknowledged dead_lettered refused", {}, "undoing", {"a": "asked"}),
    ("acknowledged dead_lettered refused", {"a": "-"}, "undoing", {"a": "asked"}),
    ("acknowledged dead_lettered refused", {"a": "acknowledged"}, "undone", {"a": "undone"}),
    ("acknowledged dead_lettered refused", {"a": "dead_lettered"}, "a person", {"a": "a person"}),
    ("acknowledged refused acknowledged", {"a": "acknowledged"}, "a person", {"a": "undone", "c": "a person"}),
    ("refused refused refused", {}, "undone", {}),
    ("in_doubt refused refused", {}, "a person", {"a": "a person"}),
    ("acknowledged acknowledged acknowledged", {"a": "acknowledged"}, "undoing", {"a": "undone", "b": "asked", "c": "a person"}),
    ("superseded acknowledged acknowledged", {}, "done", {}),
]  # fmt: skip


@pytest.mark.parametrize(("ended", "undone", "standing", "undo"), STANDINGS)
def test_how_a_story_stands(ended: str, undone: dict[str, str], standing: str, undo: dict[str, str]) -> None:
    known = {
        ("0197-00ff", name): End(final=final) for name, final in zip("abc", ended.split(), strict=True) if final != "-"
    }
    known |= {(f"back-{name}", name): End(final=final) for name, final in undone.items() if final != "-"}
    undos = {name: row(event_id=f"back-{name}") for name in undone}
    story = told(MERGE, row(), known, undos)
    assert story.standing == standing
    assert {part.subscriber: part.undo for part in story.parts if part.undo} == undo


def test_only_what_the_event_changed_is_taken_back() -> None:
    data = {
        "key": {"id": 7},
        "before": {"id": 7, "m": None, "n": 1},
        "after": {"id": 7, "m": 3, "n": 2},
        "changed": ["m", "n"],
    }
    assert inverse(row(), data, "customers", ["other"]) is None
    message = inverse(row(), data, "customers", ["m"])
    assert message is not None
    assert (message["before"], message["after"]) == ({"id": 7, "m": 3, "n": 2}, {"id": 7, "m": None, "n": 2})
    assert message["number"] % 1_000_000 == 6  # right after the event, so that a newer change outranks it
    assert inverse(row(), {**data, "before": None}, "customers", ["m"]) is None
    assert inverse(row(operation="insert"), data, "customers", ["m"]) is None
    assert inverse(row(), {"expired": True}, "customers", ["m"]) is None


@pytest.mark.parametrize(
    ("saga", "says"),
    [
        ("of: nothing\nparticipants: {alpha: human, beta: human}\n", "change type"),
        ("of: identity_merge\nparticipants: {alpha: human, nobody: human}\n", "no subscriber nobody"),
        ("of: identity_merge\nparticipants: {alpha: crm, beta: human}\n", "kind: inbox"),
        ("of: identity_merge\nparticipants: {alpha: undo_alpha, beta: undo_alpha}\n", "a source for each"),
    ],
)
def test_a_saga_must_fit_the_folder(tmp_path: Path, saga: str, says: str) -> None:
    root = folder(tmp_path, "http://127.0.0.1:9/0", "http://127.0.0.1:9/1", saga)
    with pytest.raises(ConfigurationError) as caught:
        load(root)
    assert {problem.code for problem in caught.value.problems} == {"saga"}
    assert says in str(caught.value)
