"""Writes a round of the shop's changes as its systems would: JSONL in four dialects, with everything that goes wrong.

    python -m examples.shop.changes DROP_FOLDER --seed 7 --round 1

The same seed, round and time give the same bytes. Round n continues where round n-1 ended.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import dialects
from .story import heroine_email, play
from .world import Act, Row, World

Message = dict[str, Any] | str  # a str is a line that is no JSON, written as it is

CONTRACTS = {
    ("crm", "customers"): "customer",
    ("crm", "stores"): "location",
    ("crm", "employees"): "employee",
    ("crm", "suppliers"): "supplier",
    ("crm", "inventory"): "inventory",
    ("loyalty", "members"): "member",
    ("shop", "customers"): "shopper",
    ("legacy", "customers"): "customer",
}


CONSENTS = {"customer": 3, "shopper": 1}  # a new record states each of its consents, and each is an event of its own


@dataclass(frozen=True)
class Expected:
    """One event a reader must find: whose, what kind, and after which earlier one of the same subject (list order)."""

    source: str
    entity: str
    key: Row
    change_type: str
    case: str = ""

    @property
    def subject(self) -> str:
        return f"{self.entity}:{json.dumps(self.key, sort_keys=True)}"


@dataclass
class Truth:
    """What a round holds, for a checker. Counts are messages, `events` are per change and change type."""

    round: int
    email: str  # the heroine's address after this round
    messages: dict[str, int] = field(default_factory=dict)
    events: list[Expected] = field(default_factory=list)
    snapshots: int = 0
    duplicates: int = 0
    late: int = 0
    cards: int = 0
    clock_ahead: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)

    def per_type(self) -> Counter[str]:
        return Counter(event.change_type for event in self.events)

    def per_subject(self) -> dict[str, list[str]]:
        """Change types of each subject in the order they were committed, per source."""
        found: dict[str, list[str]] = {}
        for event in self.events:
            found.setdefault(f"{event.source}/{event.subject}", []).append(event.change_type)
        return found


def compose(seed: int, round: int, now: float) -> tuple[Truth, dict[str, list[list[Message]]]]:
    """What round `round` holds, and its messages: one list per file, per source. `now` is when its last change was committed."""
    world = World(seed)
    opening = list(world.snapshot()) if round == 1 else []
    for earlier in range(1, round):
        play(world, earlier)
    acts = play(world, round)
    truth = Truth(round, heroine_email(round))
    files: dict[str, list[list[Message]]] = {}
    for source, scribe in SCRIBES.items():
        first, then = ([act for act in found if act.source == source] for found in (opening, acts))
        files[source] = [page for page in scribe(round, int(now * 1_000_000), first, then, truth) if page]
        truth.messages[source] = sum(map(len, files[source]))
    return truth, files


def write(folder: str | Path, seed: int, round: int, now: float | None = None) -> Truth:
    """Write round `round` below `folder` (one sub-folder per source) and say what was written; each file whole or not at all."""
    truth, files = compose(seed, round, now or time.time())
    for source, pages in files.items():
        for number, messages in enumerate(pages, 1):
            _publish(Path(folder) / source, f"round-{round:04d}-{number:02d}.jsonl", messages)
    return truth


def _publish(folder: Path, name: str, messages: list[Message]) -> None:
    """A reader sees the whole file or none: hidden name, fsync, rename, fsync of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f".{name}.part"
    with hidden.open("w", encoding="utf-8") as file:
        for message in messages:
            file.write(
                message if isinstance(message, str) else json.dumps(message, separators=(",", ":"), ensure_ascii=False)
            )
            file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    hidden.rename(folder / name)
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _expect(truth: Truth, act: Act) -> None:
    if act.op == "snapshot":
        truth.snapshots += 1
    entity = CONTRACTS[(act.source, act.table)]
    stated = CONSENTS.get(entity, 0) if act.op == "insert" else 0
    truth.events += [
        Expected(act.source, entity, act.key, kind, act.case) for kind in (*act.types, *["consent"] * stated)
    ]


def _crm(round: int, at: int, opening: list[Act], acts: list[Act], truth: Truth) -> list[list[Message]]:
    """Debezium on PostgreSQL: a snapshot first, then three pages of log with its usual misfortunes."""
    log = dialects.PostgresLog(round, at, len(acts) + len(opening))
    snapshot: list[Message] = []
    for act in opening:
        _expect(truth, act)
        snapshot.append(log.write(act))
    late: list[Message] = []
    pages: list[list[Message]] = [[], [], []]
    for index, act in enumerate(acts):
        page = pages[min(2, index * 3 // len(acts))]
        _expect(truth, act)
        truth.cards += act.case == "card"
        truth.clock_ahead += act.case == "clock_ahead"
        message = log.write(act, ahead_s=600 if act.case == "clock_ahead" else 0, toast=act.case == "toast")
        if act.case == "late":
            truth.late += 1
            late.append(message)
            continue
        page.append(message)
        if act.case == "delete":
            page.append(log.tombstone(act))
    pages[1] += [log.heartbeat(), log.transaction()]
    truth.skipped = {"heartbeat": 1, "transaction_marker": 1}  # a tombstone is a change that makes no event
    pages[1] += _misfortunes(log, truth)
    again = [message for message in pages[0] if not isinstance(message, str)][:5]
    truth.duplicates += len(again)
    pages[2] += [*again, *late]
    return [snapshot, *pages]


def _misfortunes(log: dialects.PostgresLog, truth: Truth) -> list[Message]:
    """Lines that must end in quarantine, each with its own reason, and stop nobody."""
    row = {"id": 1, "email": "c1@example.com"}
    whole = json.dumps(log.write(Act("crm", "customers", "insert", {"id": 1}, None, row, ())))
    unknown = log.write(Act("crm", "coupons", "insert", {"id": 77}, None, {"id": 77, "code": "WELCOME"}, ()))
    keyless = log.write(Act("crm", "customers", "insert", {"id": 1}, None, {"email": "nobody@example.com"}, ()))
    keyless["key"] = None
    truth.quarantined = dict.fromkeys(
        ("truncated_json", "malformed_json", "duplicate_key", "unknown_table", "missing_key"), 1
    )
    return [whole[: len(whole) // 2], "not json at all", whole[:-1] + ',"key":{"id":2}}', unknown, keyless]


def _loyalty(round: int, at: int, opening: list[Act], acts: list[Act], truth: Truth) -> list[list[Message]]:
    log = dialects.MaxwellLog(round, at, len(acts) + len(opening))
    for act in (*opening, *acts):
        _expect(truth, act)
    return [[log.write(act) for act in opening], [log.write(act) for act in acts]]


def _shop(round: int, at: int, opening: list[Act], acts: list[Act], truth: Truth) -> list[list[Message]]:
    """Shopify delivers at least once: the first webhook of the round comes again, with its own id."""
    log = dialects.ShopifyHooks(round, at, len(acts) + len(opening))
    for act in (*opening, *acts):
        _expect(truth, act)
    first, then = [log.write(act) for act in opening], [log.write(act) for act in acts]
    truth.skipped["data_subject_access_request"] = 1
    truth.duplicates += 1
    return [list(first), [*then, then[0], log.data_request()]]


def _legacy(round: int, at: int, opening: list[Act], acts: list[Act], truth: Truth) -> list[list[Message]]:
    for act in acts:
        _expect(truth, act)
    return [[dialects.legacy(act, round, at + index) for index, act in enumerate(acts)]]


SCRIBES: dict[str, Callable[[int, int, list[Act], list[Act], Truth], list[list[Message]]]] = {
    "crm": _crm,
    "loyalty": _loyalty,
    "shop": _shop,
    "legacy": _legacy,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="write one round of changes into a drop folder")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--round", type=int, default=1)
    given = parser.parse_args()
    print(json.dumps(asdict(write(given.folder, given.seed, given.round)), indent=2))


if __name__ == "__main__":
    main()
