"""What is left of an event says nothing of whose it is: the numbers that it keeps for ever are independent of the person's tag.

An insider has the master key and the list of all customers, so every tag, and may try any rule that goes from a tag to a number. Independence is
measured over the whole table of (what a tag gives, what the event shows), so a rule that only renames what it finds is found as well.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tidings.lanes.stretches import Stretches
from tidings.progress import Generations
from tidings.rehearse import rehearse
from tidings.seal.keyring import bucket
from tidings.settings import load
from tidings.verbs.init import write as write_operator

PEOPLE = 640
CELLS = 16
CHANCE = (CELLS - 1) ** 2  # the expected sum of independent numbers; its standard deviation is the root of twice that
BOUND = CHANCE + 7 * (2 * CHANCE) ** 0.5


def dependence(pairs: Iterable[tuple[int, int]]) -> float:
    """Pearson's sum over the table of pairs."""
    seen = Counter(pairs)
    every = sum(seen.values())
    left, right = Counter[int](), Counter[int]()
    for (a, b), n in seen.items():
        left[a] += n
        right[b] += n
    return sum(
        (seen[a, b] - left[a] * right[b] / every) ** 2 / (left[a] * right[b] / every) for a in left for b in right
    )


def insert(number: int) -> str:
    place = {"schema": "public", "table": "customers", "lsn": 100 + number, "txId": number, "ts_ms": 1_790_000_000_000}
    source = place | {"connector": "postgresql", "db": "shop", "snapshot": "false"}
    after = {"id": str(number), "email": f"person{number}@example.com"}
    return json.dumps({"before": None, "after": after, "op": "c", "ts_ms": 1_790_000_000_000, "source": source})


@pytest.fixture(scope="module")
def shown(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[bytes, dict[str, Any]]]:
    """Tag and journal row of each person's event."""
    folder = tmp_path_factory.mktemp("rank") / "operator"
    write_operator(folder)
    settings = load(folder)
    (source,) = [one for one in settings.sources.values() if one.kind == "files"]
    (entity,) = set(source.entities.values())
    kind = settings.entities[entity].kind
    rows = [
        row for row in rehearse(spark, settings, source, [insert(n) for n in range(PEOPLE)]) if row["out"] == "journal"
    ]
    keys = [json.loads(row["payload"])["after"]["id"] for row in rows if row["change_type"] == "insert"]
    tags = [settings.keyring.tag(settings.tenant, kind, key) for key in keys]
    return list(zip(tags, [row for row in rows if row["change_type"] == "insert"], strict=True))


@pytest.mark.spark
@pytest.mark.parametrize("number", ["offset", "lamport", "subjectseq", "hlc"])
def test_what_an_event_keeps_is_independent_of_the_tag(shown: list[tuple[bytes, dict[str, Any]]], number: str) -> None:
    def kept(row: dict[str, Any]) -> int:
        return int(row["hlc"].split("-")[1] if number == "hlc" else row[number]) % CELLS

    assert len(shown) == PEOPLE
    assert dependence((bucket(tag, CELLS), kept(row)) for tag, row in shown) < BOUND
    assert dependence((tag[-1] % CELLS, kept(row)) for tag, row in shown) < BOUND


@pytest.mark.spark
def test_the_measure_finds_a_place_that_follows_the_tag(shown: list[tuple[bytes, dict[str, Any]]]) -> None:
    """The same people, placed by their tag under other names, or only half of them."""
    assert dependence((bucket(tag, CELLS), (7 * tag[0] + 3) % CELLS) for tag, _ in shown) > 10 * BOUND
    mixed = ((bucket(tag, CELLS), (tag[0] if i % 2 else row["offset"]) % CELLS) for i, (tag, row) in enumerate(shown))
    assert dependence(mixed) > BOUND


@pytest.mark.spark
def test_every_lot_is_drawn(shown: list[tuple[bytes, dict[str, Any]]]) -> None:
    assert {row["offset"] % CELLS for _, row in shown} == set(range(CELLS))


def test_calls_are_divided_by_what_nobody_keeps(shown: list[tuple[bytes, dict[str, Any]]]) -> None:
    first, second = (Stretches.__new__(Stretches) for _ in range(2))
    first._dividing, second._dividing = b"a" * 16, b"b" * 16
    tags = [tag for tag, _ in shown]
    assert [first._split(tag, 8) for tag in tags] == [first._split(tag, 8) for tag in tags], (
        "a person stays in one split"
    )
    assert dependence((first._split(tag, 8), second._split(tag, 8)) for tag in tags) < BOUND
    assert dependence((bucket(tag, CELLS), first._split(tag, 8)) for tag in tags) < BOUND


def test_a_repeat_draws_the_same_lots_and_then_they_are_forgotten(tmp_path: Path) -> None:
    one = Generations(tmp_path, "crm")
    drawn = one.lots("g1", 4)
    assert one.lots("g1", 4) != drawn, "nothing is kept before the journal may be committed"
    one.keep_lots("g1", 4, drawn)
    assert one.lots("g1", 4) == drawn
    one.forget_lots()
    assert list(tmp_path.rglob("*.lots")) == []
    assert one.lots("g1", 4) != drawn
