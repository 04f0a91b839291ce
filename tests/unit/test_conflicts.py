"""Two masters, one record. Cases are rows: four batches, crm and shop by turns, each story about a subject of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tidings import emit, held
from tidings.decisions import Decisions
from tidings.emit import Emitter
from tidings.flow import reading
from tidings.rehearse import message_frame
from tidings.report.account import journal_rows, pairs
from tidings.report.people import opened
from tidings.seal.columns import keys_frame
from tidings.settings import Settings, load
from tidings.stages.event import Batch
from tidings.store import Store
from tidings.verbs.init import write as write_operator

pytestmark = pytest.mark.timeout(1800)
CONTRACT = """\
kind: customer
version: "1"
key: [id]
fields:
  email: {type: email}
  tier: {type: tier}
  phone: {type: phone}
  ok: {type: consent, consent: {class: marketing, channel: email}}
"""
POLICIES = {"prefer": "prefer crm", "newest": "newest", "hold": "hold, seen: seen"}
SOURCE = """\
kind: files
path: drop/%s
dialect: debezium_postgresql
entities: {%s}
banner: shop
images: full
"""
SUBSCRIBER = "manifest: webhook\nurl: http://127.0.0.1:1/\nrole: service\nregion: US\ndpa: true\n"
TURNS = ("crm", "shop", "crm", "shop")
START = {"email": "a", "tier": "basic", "phone": "1", "ok": True}


def row(**changed: Any) -> dict[str, Any]:
    return START | changed


@dataclass(frozen=True)
class Step:
    """One message: after, the image before it (None: the message has none), when, and what."""

    after: Mapping[str, Any] | None
    before: Mapping[str, Any] | None = None
    at: int | None = None
    op: str = "u"


BORN = Step(row(), op="c")
# story → (table, the steps of each turn). A turn is a batch; its place says whose.
STORIES: dict[str, tuple[str, list[list[Step]]]] = {
    **{
        f"one after the other, {policy}": (
            policy,
            [[BORN], [Step(row(email="b"), row())], [Step(row(email="c"), row(email="b"))]],
        )
        for policy in POLICIES
    },
    **{
        f"the same field, {policy}": (policy, [[BORN], [Step(row(email="b"), row())], [Step(row(email="c"), row())]])
        for policy in POLICIES
    },
    **{
        f"three, {policy}": (
            policy,
            [[BORN], [Step(row(email="b"), row())], [Step(row(email="c"), row())], [Step(row(email="d"), row(email="b"))]],
        )
        for policy in POLICIES
    },
    "different fields": ("hold", [[BORN], [Step(row(email="b"), row())], [Step(row(tier="gold"), row())]]),
    "the same value": ("hold", [[BORN], [Step(row(email="b"), row())], [Step(row(email="b"), row())]]),
    "one of two fields": ("hold", [[BORN], [Step(row(email="b"), row())], [Step(row(email="c", tier="gold"), row())]]),
    "an older one comes later": ("newest", [[BORN], [Step(row(email="b"), row(), 50)], [Step(row(email="c"), row(), 40)]]),
    "at the same time": ("newest", [[BORN], [Step(row(email="b"), row(), 50)], [Step(row(email="c"), row(), 50)]]),
    "no row before, not seen": (
        "hold",
        [[BORN], [Step(row(), op="c")], [Step(row(email="c"))], [Step(row(email="d"))]],
    ),
    "no row before, seen": (
        "hold",
        [[BORN], [Step(row(), op="c")], [Step(row(email="c"))], [Step(row(email="c")), Step(row(email="d"))]],
    ),
    "no row before, another field": (
        "hold",
        [[BORN], [Step(row(), op="c")], [Step(row(email="c"))], [Step(row(tier="gold"))]],
    ),
    "both create it": ("hold", [[BORN], [Step(row(email="b", phone=None), op="c")]]),
    "told twice": ("hold", [[BORN], [Step(row(email="b"), row())], [Step(row(email="c"), row(), 7)] * 2, []]),
    "goes on alone": (
        "newest",
        [[BORN], [Step(row(email="b"), row())], [Step(row(email="c"), row()), Step(row(email="d"), row(email="c"))]],
    ),
    "loses": ("prefer", [[BORN], [], [Step(row(email="b"), row())], [Step(row(email="c"), row())]]),
    "loses and goes on": (
        "prefer",
        [[BORN], [], [Step(row(email="b"), row())], [Step(row(email="c"), row()), Step(row(email="d"), row(email="c"))]],
    ),
    "withdrawn against a grant": (
        "prefer",
        [[Step(row(ok=None), op="c")], [Step(row(ok=False), row(ok=None))], [Step(row(ok=True), row(ok=None))]],
    ),
    "a withdrawal that would lose": (
        "prefer",
        [[Step(row(ok=None), op="c")], [], [Step(row(ok=True), row(ok=None))], [Step(row(ok=False), row(ok=None))]],
    ),
    "an old consent in a new row": (
        "hold",
        [[BORN], [Step(row(ok=False), row())], [Step(row(tier="gold"), row())]],
    ),
    "said to be seen": (
        "hold",
        [[BORN], [Step(row(email="b"), row())], [Step(row(email="c", seen="shop=9999999999"), row())]],
    ),
    "said to be not seen": (
        "hold",
        [[BORN], [Step(row(email="b"), row())], [Step(row(email="c", seen="shop=0"), row())]],
    ),
    "a snapshot takes nothing over": (
        "newest",
        [[BORN], [Step(row(email="b"), op="r")], [Step(row(tier="gold"), row())], [Step(row(email="e"), row(email="b"))]],
    ),
    "no masters": ("plain", [[BORN], [Step(row(email="b"), row())], [Step(row(email="c"), row())]]),
}  # fmt: skip
NUMBERS = {story: number for number, story in enumerate(STORIES, 1)}


def message(table: str, number: int, step: Step, turn: int, place: int) -> str:
    at = 1_772_443_000_000_000 + (10 * (turn + 1) if step.at is None else step.at) * 1_000_000
    lsn = 1000 * (turn + 1) + (step.at if step.at == 7 else place)
    source = {"connector": "postgresql", "schema": "public", "table": table, "ts_us": at, "lsn": lsn, "txId": lsn}
    source |= {"sequence": json.dumps([str(lsn), str(lsn)]), "snapshot": "true" if step.op == "r" else "false"}
    images = {
        name: None if image is None else {"id": number, **image}
        for name, image in (("before", step.before), ("after", step.after))
    }
    value = {"op": step.op, **images, "source": source, "ts_ms": 1}
    return json.dumps({"topic": f"x.public.{table}", "key": {"id": number}, "value": value})


def lines(turn: int) -> list[str]:
    return [
        message(table, NUMBERS[story], step, turn, 10 * NUMBERS[story] + place)
        for story, (table, turns) in STORIES.items()
        for place, step in enumerate(turns[turn] if turn < len(turns) else ())
    ]


def operator(folder: Path) -> Settings:
    write_operator(folder)
    for path in [*folder.glob("entities/*"), *folder.glob("sources/*"), *folder.glob("subscribers/*")]:
        path.unlink()
    texts = {
        name: CONTRACT + f"masters: {{sources: [crm, shop], on_conflict: {said}}}\n" for name, said in POLICIES.items()
    }
    texts["plain"] = CONTRACT
    for name, text in texts.items():
        (folder / "entities" / f"{name}.yaml").write_text(text)
    tables = ", ".join(f"public.{name}: {name}" for name in texts)
    for source in ("crm", "shop"):
        (folder / "sources" / f"{source}.yaml").write_text(SOURCE % (source, tables))
        (folder / "drop" / source).mkdir(parents=True, exist_ok=True)
    (folder / "subscribers" / "desk.yaml").write_text(SUBSCRIBER)
    (folder / "policy" / "own.yaml").write_text("version: '1'\nrules: []\n")
    for path in folder.glob("policy/*"):
        if path.name != "own.yaml" and path.is_file():
            path.unlink()
    return load(folder)


class Told:
    """What four batches left behind."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self.spark, self.settings, self.store = spark, settings, Store(settings.data_path / "tables")
        decisions = Decisions.load(settings)
        self.emitters = {
            name: Emitter(spark, settings, source, self.store, decisions, "g1")
            for name, source in settings.sources.items()
        }
        self.numbers = dict.fromkeys(self.emitters, 0)

    def tell(self, source: str, said: list[str]) -> None:
        one = self.settings.sources[source]
        keys = keys_frame(self.spark, {"k_tag": self.settings.keyring.derive("tag")})
        rows = reading(message_frame(self.spark, source, said), self.settings, one, keys)
        self.emitters[source].emit(rows, self.numbers[source], sum(map(len, said)))
        self.numbers[source] += 1

    def events(self, story: str) -> list[dict[str, Any]]:
        """This story's events in the order they were journalled, opened."""
        keys = self.emitters["crm"].keyfiles
        wanted = self.settings.keyring.tag(self.settings.tenant, STORIES[story][0], str(NUMBERS[story]))
        kids = {kid: key for _, kid, key in keys.find(wanted)}
        rows = [r for r in journal_rows(self.store, None, ["kid", "payload", "vector"]) if r["kid"] in kids]
        found = [r | {"data": opened(r, kids[r["kid"]]), "pair": pairs(r, {})[0]} for r in rows]
        return sorted(found, key=lambda r: (r["batch"], r["source"], r["offset"]))

    def state(self, story: str) -> dict[str, Any]:
        """What is remembered of this story's subject by now."""
        tag = self.settings.keyring.tag(self.settings.tenant, STORIES[story][0], str(NUMBERS[story]))
        batch = Batch("nobody", "g", 0, masters=True)
        state = held._images(self.store, self.emitters["crm"].keyfiles, batch, {tag})[tag]
        rows = self.store.lookup("subjects", {tag}).sort_by("version").to_pylist()
        return state | {"fields": dict(state["fields"]), "consents": dict(rows[-1]["consents"]) if rows else {}}


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    """The third turn is looked up as a large batch is, the others in hand: each reads what the other wrote."""
    kept = emit.BIG
    found = Told(spark, operator(tmp_path_factory.mktemp("masters") / "operator"))
    try:
        for turn, source in enumerate(TURNS):
            emit.BIG = -1 if turn == 2 else kept
            found.tell(source, lines(turn))
        yield found
    finally:
        emit.BIG = kept


def said(event: Mapping[str, Any]) -> str:
    """source, type, and what became of it, in one line."""
    marks = [flag for flag in event["flags"] if flag in ("conflict", "superseded", "held")]
    return " ".join([event["source"], event["change_type"], *marks, event["pair"]["outcome"]])


WAIT, HELD, LOST, WON = "waiting", "conflict held deferred", "conflict superseded refused", "conflict waiting"
# story → what comes after the first insert and its consent
EXPECTED = {
    **{f"one after the other, {policy}": [f"shop email {WAIT}", f"crm email {WAIT}"] for policy in POLICIES},
    "the same field, prefer": [f"shop email {WAIT}", f"crm email {WON}"],
    "the same field, newest": [f"shop email {WAIT}", f"crm email {WON}"],
    "the same field, hold": [f"shop email {WAIT}", f"crm email {HELD}"],
    "loses": [f"crm email {WAIT}", f"shop email {LOST}"],
    "three, prefer": [f"shop email {WAIT}", f"crm email {WON}", f"shop email {LOST}"],
    "three, newest": [f"shop email {WAIT}", f"crm email {WON}", f"shop email {WON}"],
    "three, hold": [f"shop email {WAIT}", f"crm email {HELD}", f"shop email {WAIT}"],
    "different fields": [f"shop email {WAIT}", f"crm tier {WAIT}"],
    "the same value": [f"shop email {WAIT}", f"crm email {WAIT}"],
    "one of two fields": [f"shop email {WAIT}", f"crm email {HELD}", f"crm tier {WAIT}"],
    "an older one comes later": [f"shop email {WAIT}", f"crm email {LOST}"],
    "at the same time": [f"shop email {WAIT}", f"crm email {WON}"],
    "no row before, not seen": [f"crm email {WAIT}", f"shop email {HELD}"],
    "no row before, seen": [f"crm email {WAIT}", f"shop email {WAIT}", f"shop email {WAIT}"],
    "no row before, another field": [f"crm email {WAIT}", f"shop tier {WAIT}"],
    "both create it": [f"shop email {HELD}", f"shop phone {HELD}"],
    "told twice": [f"shop email {WAIT}", f"crm email {HELD}"],
    "goes on alone": [f"shop email {WAIT}", f"crm email {WON}", f"crm email {WAIT}"],
    "loses and goes on": [f"crm email {WAIT}", f"shop email {LOST}", f"shop email {LOST}"],
    "withdrawn against a grant": [f"shop consent {WAIT}", f"crm consent {HELD}"],
    "a withdrawal that would lose": [f"crm consent {WAIT}", f"shop consent {WON}"],
    "an old consent in a new row": [f"shop consent {WAIT}", f"crm tier {WAIT}"],
    "said to be seen": [f"shop email {WAIT}", f"crm email {WAIT}"],
    "said to be not seen": [f"shop email {WAIT}", f"crm email {HELD}"],
    "a snapshot takes nothing over": [f"crm tier {WAIT}", f"shop email {WON}"],
    "no masters": [f"shop email {WAIT}", f"crm email {WAIT}"],
}


def test_every_story_ends_as_its_policy_says(told: Told) -> None:
    found = {
        story: [said(event) for event in told.events(story) if event["change_type"] != "insert"][1:]
        for story in STORIES
    }
    consented = {"withdrawn against a grant", "a withdrawal that would lose"}  # these start without a consent
    for story in consented:
        found[story] = [said(event) for event in told.events(story) if event["change_type"] != "insert"]
    assert found == EXPECTED


def test_what_stands_is_what_was_not_refused(told: Told) -> None:
    stands = {story: told.state(story)["fields"] for story in STORIES if STORIES[story][0] != "plain"}
    found = {policy: stands[f"the same field, {policy}"]["email"] for policy in POLICIES}
    assert found == {"prefer": "c", "newest": "c", "hold": "b"}
    assert stands["loses"]["email"] == "b"
    assert (stands["different fields"]["email"], stands["different fields"]["tier"]) == ("b", "gold")
    assert stands["a snapshot takes nothing over"]["email"] == "e"
    assert stands["no row before, another field"]["email"] == "c"


def test_an_event_names_the_fields_and_the_other_master_and_no_value(told: Told) -> None:
    last = told.events("one of two fields")[-2]
    assert last["data"]["conflict"] == [{"field": "email", "outcome": "held", "with": "shop"}]
    assert "conflict" not in told.events("different fields")[-1]["data"]


def test_vectors_say_what_the_writer_had_seen(told: Told) -> None:
    def vectors(story: str) -> list[dict[str, int]]:
        return [dict(event["vector"]) for event in told.events(story)]

    born, _, second, third = vectors("one after the other, hold")
    assert set(born) == {"crm"}
    assert second["crm"] >= born["crm"]
    assert third["shop"] == second["shop"]
    assert third["crm"] > second["crm"]
    *_, theirs, ours = vectors("the same field, hold")
    assert set(ours) == {"crm"}
    assert theirs["crm"] < ours["crm"]  # neither is below the other: concurrent
    assert set(dict(told.state("different fields")["vector"])) == {"crm", "shop"}
    assert set(vectors("no masters")[-1]) == {"crm"}


def test_a_withdrawal_outlives_every_dispute(told: Told) -> None:
    stories = ("withdrawn against a grant", "a withdrawal that would lose", "an old consent in a new row")
    assert {story: told.state(story)["consents"] for story in stories} == {
        story: {"email": "withdrawn"} for story in stories
    }


def test_a_change_that_comes_again_is_told_once(told: Told) -> None:
    before = len(told.events("told twice"))
    told.tell("crm", [line for line in lines(2) if f'"id": {NUMBERS["told twice"]}' in line])
    assert len(told.events("told twice")) == before
    assert told.state("told twice")["fields"]["email"] == "b"


def test_a_contract_without_masters_keeps_nothing_of_them(told: Told) -> None:
    state = told.state("no masters")
    assert "masters" not in state
    assert state["vector"] is None
