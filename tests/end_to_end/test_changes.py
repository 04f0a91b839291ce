"""The example shop's changes: the same every time, honest about what they hold, and readable as the operator's folder says."""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # the example is not installed with the package

from examples.shop import changes, prepare, story
from examples.shop.world import HEROINE, SHOPIFY_IDS, TEST_CARD, Act, World
from tidings import settings
from tidings.contract import CHANGE_TYPES, LIFE_CYCLE

NOW = 1_794_700_000.0
ROUNDS = (1, 2, 3)


def lines(folder: Path, source: str, round: int) -> list[str]:
    return [
        line
        for path in sorted((folder / source).glob(f"round-{round:04d}-*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def parsed(folder: Path, source: str, round: int) -> list[dict[str, Any]]:
    found = []
    for line in lines(folder, source, round):
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


@pytest.fixture(scope="module")
def drop(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, changes.Truth]]:
    folder = tmp_path_factory.mktemp("drop")
    return folder, {n: changes.write(folder, 7, n, NOW + n * 60) for n in ROUNDS}


def acts(seed: int, upto: int) -> list[list[Act]]:
    world = World(seed)
    return [story.play(world, n) for n in range(1, upto + 1)]


def test_same_seed_same_bytes(drop: tuple[Path, dict[int, changes.Truth]], tmp_path: Path) -> None:
    folder, truths = drop
    again = changes.write(tmp_path, 7, 2, NOW + 120)
    assert again == truths[2]
    for source in changes.SCRIBES:
        assert lines(tmp_path, source, 2) == lines(folder, source, 2)


def test_another_seed_is_another_story(drop: tuple[Path, dict[int, changes.Truth]], tmp_path: Path) -> None:
    changes.write(tmp_path, 8, 1, NOW + 60)
    assert lines(tmp_path, "crm", 1) != lines(drop[0], "crm", 1)


def test_only_whole_files_appear(drop: tuple[Path, dict[int, changes.Truth]]) -> None:
    names = [path.name for path in drop[0].rglob("*") if path.is_file()]
    assert names
    assert all(name.endswith(".jsonl") and not name.startswith(".") for name in names)


def test_a_round_continues_the_one_before() -> None:
    """Whoever changes twice starts, the second time, from the row the first time left."""
    last: dict[tuple[str, str, str], Any] = {}
    followed = 0
    for played in acts(7, 6):
        for act in played:
            name = (act.source, act.table, json.dumps(act.key, sort_keys=True))
            if act.op == "update" and name in last and act.case != "rekey":
                assert act.before == last[name], act
                followed += 1
            last[name] = act.after
    assert followed > 100


def test_every_update_changes_what_it_says(tmp_path: Path) -> None:
    contracts = settings.load(prepare.copy(tmp_path)).entities
    for act in (act for played in acts(7, 4) for act in played if act.op == "update"):
        assert act.before is not None
        assert act.after is not None
        contract = contracts[changes.CONTRACTS[(act.source, act.table)]]
        moved = {name for name in act.after if act.after[name] != act.before.get(name)}
        found = set()
        for name in moved:
            path = "email_marketing_consent.state" if name == "email_marketing_consent" else name
            rule = contract.fields.get(path)
            step = (
                "restore" if act.before[name] and rule and rule.lifecycle == "soft_delete" else rule and rule.lifecycle
            )
            found.add("rekey" if name in contract.key else (rule and (rule.type or step)) or "update")
        assert found == set(act.types), act


def test_all_types_and_the_whole_life_cycle_happen_every_round(drop: tuple[Path, dict[int, changes.Truth]]) -> None:
    for truth in drop[1].values():
        assert {*CHANGE_TYPES, *LIFE_CYCLE, "loyalty_points"} == set(truth.per_type())


def test_positions_only_grow_from_round_to_round(drop: tuple[Path, dict[int, changes.Truth]]) -> None:
    spans = []
    for n in ROUNDS:
        found = [m["value"]["source"]["lsn"] for m in parsed(drop[0], "crm", n) if (m.get("value") or {}).get("source")]
        spans.append((min(found), max(found)))
    assert all(before[1] < after[0] for before, after in itertools.pairwise(spans))


def test_awkward_lines_are_there_and_counted(drop: tuple[Path, dict[int, changes.Truth]]) -> None:
    folder, truths = drop
    for n, truth in truths.items():
        crm, raw = parsed(folder, "crm", n), lines(folder, "crm", n)
        lsns = Counter(m["value"]["source"]["lsn"] for m in crm if (m.get("value") or {}).get("source"))
        again = [line for line, times in Counter(raw).items() if times > 1]
        order = [m["value"]["source"]["lsn"] for m in crm if (m.get("value") or {}).get("source")]
        assert len(again) == 5 == truth.duplicates - 1  # and one of Shopify's
        assert sum(times - 1 for times in lsns.values()) == 5
        assert order != sorted(order)  # somebody is late
        assert TEST_CARD in "".join(raw)
        assert any("__debezium_unavailable_value" in line for line in raw)
        assert sum(1 for m in crm if m.get("value") is None and "key" in m) == 1
        ahead = [
            m for m in crm if (m.get("value") or {}).get("source", {}).get("ts_ms", 0) > (NOW + n * 60 + 300) * 1000
        ]
        assert len(ahead) == truth.clock_ahead == 1
        assert set(truth.quarantined) <= set(CODES)
        assert len(raw) - len(crm) == 2  # two lines are no JSON at all
        assert sum(truth.messages.values()) == sum(len(lines(folder, source, n)) for source in changes.SCRIBES)


CODES = ("truncated_json", "malformed_json", "duplicate_key", "unknown_table", "missing_key")


def test_numbers_past_the_doubles_keep_their_last_digit(drop: tuple[Path, dict[int, changes.Truth]]) -> None:
    ids = [m["body"]["id"] for m in parsed(drop[0], "shop", 1) if "id" in m["body"]]
    assert len(set(ids)) > len({int(float(name)) for name in ids})
    held = [
        m["value"]["after"]["on_hand"] for m in parsed(drop[0], "crm", 1) if m.get("topic") == "crm.public.inventory"
    ]
    assert any(int(float(count)) != count for count in held)


def test_the_heroine_changes_in_two_systems(drop: tuple[Path, dict[int, changes.Truth]]) -> None:
    for n, truth in drop[1].items():
        found = [(event.source, event.entity, event.change_type) for event in truth.events if event.case == "heroine"]
        assert found == [("crm", "customer", "email"), ("shop", "shopper", "email")]
        crm = [m for m in parsed(drop[0], "crm", n) if m.get("key") == {"id": HEROINE} and m["value"]["op"] == "u"]
        assert [m["value"]["after"]["email"] for m in crm] == [truth.email] * 2  # once more, because it is re-delivered
        assert crm[0] == crm[1]
        bodies = [m["body"] for m in parsed(drop[0], "shop", n) if m["body"].get("id") == SHOPIFY_IDS + HEROINE]
        assert bodies[-1]["email"] == truth.email
        assert all("before" not in body for body in bodies)


def test_nobody_real_is_in_it(drop: tuple[Path, dict[int, changes.Truth]]) -> None:
    for path in drop[0].rglob("*.jsonl"):
        for word in path.read_text().replace('"', " ").split():
            if "@" in word:
                assert word.rpartition("@")[2].rstrip(",}") in {"example.com", "example.net", "example.org"}


def test_the_folder_loads(tmp_path: Path) -> None:
    found = settings.load(prepare.copy(tmp_path))
    kinds = {contract.kind for contract in found.entities.values()}
    assert len(found.subscribers) == 12
    assert kinds == {"customer", "location", "employee", "supplier", "inventory"}
    assert set(found.entities["customer"].change_types) == set(CHANGE_TYPES)
    assert len(found.locations) == 7
