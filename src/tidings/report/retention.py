"""What is kept, since when, until when and why: the classes of record as an auditor asks for them. No JVM."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

from tidings.expiry import Planner, archived, made_at
from tidings.gate.retention import RecordClass, classes
from tidings.keeping import Keeping, days_of
from tidings.settings import Settings
from tidings.store import Store, is_bare


def retention(keeping: Keeping) -> dict[str, Any]:
    """Every class with its oldest record, its duties, its holds, and what would go today."""
    planner = Planner(keeping)
    steps = planner.steps()
    said = []
    for name, one in classes().items():
        schedule = keeping.retention[name]
        held = _held(keeping.settings, keeping.store, one)
        oldest = held["oldest"]
        deciding = schedule.decides(oldest) if oldest else None
        mine = [step for step in steps if step.record_class == name]
        said.append(
            {
                "class": name,
                "about": one.about,
                "goes": one.goes if schedule.named else "nothing",
                **held,
                "keep_until": schedule.until(oldest) if oldest else None,
                "duty": str(deciding) if deciding else None,
                "steps": schedule.steps(oldest or keeping.today) if one.goes != "nothing" else [one.about],
                "holds": [str(hold) for hold in keeping.retention.holds if hold.record_class in ("", name)],
                "would_go": sum(step.rows for step in mine),
                "stays": _stays(planner, name),
            }
        )
    return {"today": keeping.today, "classes": said, "keys": "kept: a key goes when its person is erased, not by age"}


def _held(settings: Settings, store: Store, one: RecordClass) -> dict[str, Any]:
    """How many records there are, how large, and the day of the oldest; from statistics and names alone."""
    if one.name == "archive":
        paths = [path for name, source in settings.sources.items() if source.kind == "files" for path in archived(settings, name)]  # fmt: skip
        days = [made.date() for path in paths if (made := made_at(path))]
        return _counted(len(paths), sum(path.stat().st_size for path in paths), days)
    if one.name in ("decisions", "ledger"):
        paths = [path for path in (settings.data_path / one.name).rglob("*") if path.is_file()]
        return _counted(None, sum(_size(path) for path in paths), [])
    if one.name == "dead_letters" or one.types:
        return _counted(None, None, [])  # part of the events
    found = [(table, file) for table in one.moments for file in store.files(table)]
    found = [(table, file) for table, file in found if one.goes != "payload" or not is_bare(file)]
    days = [days_of(table, file)[0] for table, file in found]
    return _counted(sum(file.rows for _, file in found), sum(file.size for _, file in found), days)


def _counted(records: int | None, size: int | None, days: Iterable[date]) -> dict[str, Any]:
    return {"records": records, "bytes": size, "oldest": min((day for day in days if day != date.min), default=None)}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0  # a partial tile that was superseded meanwhile


def _stays(planner: Planner, name: str) -> dict[str, int]:
    """Why records stay although their time is over, with how many."""
    found: dict[str, int] = {}
    for kept in planner.kept:
        if kept.record_class == name:
            found[kept.reason] = found.get(kept.reason, 0) + kept.rows
    return found
