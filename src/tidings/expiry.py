"""What goes when its time is over, and how: planned, attested, then carried out.

    tables, archive ─plan→ data/retention/plan.json ─attest→ attempts (from there the ledger) ─carry out→ gone, plan removed

A kill at any instant leaves either a plan that nobody attested, which is thrown away, or one that was attested, which is carried out
before anything new is planned. A hold that came in between is respected: the plan is attested again without what it covers.
Nothing goes unless a policy document names its class. Events go before what proves them, so no event is ever left without its proof.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from tidings import crash, durable
from tidings.gate.retention import Duty, Schedule, classes
from tidings.keeping import LONGER, Keeping, days_of
from tidings.lanes.attempts import policy_row, stamp, write
from tidings.ledger.attestation import Expired
from tidings.ledger.merkle import leaf_hash, root_of
from tidings.parquet import AddFile
from tidings.settings import Settings
from tidings.store import Store, is_bare, worn

LANE = "_retention"  # no subscriber can have this name
MOST_ROWS = 2_000_000  # of one step; the rest goes in the next
IDS = {"journal": "event_id", "settled": "event_id", "attempts": "call", "quarantine": "place"}
FOLDERS = ("archive", "duplicates")

crash.POINTS["expiry.planned"] = "what is to go is written down, nobody has attested it"
crash.POINTS["expiry.attested"] = "what is to go is attested, all of it is still there"
crash.POINTS["expiry.removed"] = "a table has lost what was to go, the plan is still there"


@dataclass(frozen=True)
class Going:
    """One file that goes, or loses its payload."""

    path: str
    rows: int
    size: int
    first: str
    last: str
    root: str
    feeds: dict[str, dict[str, int]] = field(default_factory=dict)
    spares: tuple[str, ...] = ()  # change types whose rows keep their payload


@dataclass(frozen=True)
class Step:
    """Everything of one class that goes from one place."""

    record_class: str
    records: str
    goes: str
    duty: str
    keep_until: str
    files: tuple[Going, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def entry(self, by: str, now: float, policy_version: str, replaces: int = 0) -> bytes:
        """What the ledger says of it."""
        feeds: dict[str, dict[str, int]] = {}
        for file in self.files:
            for name, part in file.feeds.items():
                known = feeds.setdefault(name, {"rows": 0, "upto": 0})
                feeds[name] = {"rows": known["rows"] + part["rows"], "upto": max(known["upto"], part["upto"])}
        return Expired(
            attestor=by,
            timestamp=stamp(now),
            record_class=self.record_class,
            records=self.records,
            goes=self.goes,
            count=self.rows,
            files=len(self.files),
            range=f"{min(f.first for f in self.files)}/{max(f.last for f in self.files)}" if self.files else "nothing",
            keep_until=self.keep_until,
            duty=self.duty,
            members_root=root_of(leaf_hash(bytes.fromhex(f.root)) for f in self.files).hex(),
            policy_version=policy_version,
            feeds=feeds or None,
            replaces=replaces or None,
        ).encode()


@dataclass(frozen=True)
class Kept:
    """A file whose time is over and which stays all the same."""

    record_class: str
    records: str
    rows: int
    reason: str


class Planner:
    """What may go today, and why the rest stays."""

    def __init__(self, keeping: Keeping) -> None:
        self.keeping, self.store, self.settings = keeping, keeping.store, keeping.settings
        self.kept: list[Kept] = []

    def steps(self) -> list[Step]:
        """In the order in which they are carried out: events before their proof."""
        rows = self._table("proof", "journal", self.store.files("journal"))
        gone = {file.path for step in rows for file in step.files}
        left = [file for file in self.store.files("journal") if file.path not in gone]
        sealed = [file for file in left if not is_bare(file)]
        # What proves an event is as old as the event or younger, so it stays while an event of that age does.
        oldest = min((days_of("journal", file)[0] for file in left), default=date.max)
        found = [*rows, *self._table("events", "journal", [file for file in sealed if not worn(file)])]
        found += self._spared([file for file in sealed if worn(file)])
        for table in ("settled", "attempts"):
            files = [file for file in self.store.files(table) if days_of(table, file)[1] < oldest]
            # What operators did is little, and the books are kept by it.
            files = [file for file in files if not str(file.maximum.get("lane", "")).startswith("_")]
            found += self._table("proof", table, files)
        found += self._table("quarantine", "quarantine", self.store.files("quarantine"))
        return [*found, *self._archives()]

    def _table(self, name: str, table: str, files: Iterable[AddFile]) -> list[Step]:
        schedule, chosen, rows = self.keeping.retention[name], [], 0
        for file in sorted(files, key=lambda file: days_of(table, file)[1]):
            newest = days_of(table, file)[1]
            if rows >= MOST_ROWS or newest == date.max or not schedule.over(newest, self.keeping.today):
                break
            if why := self.keeping.why(name, table, file):
                self.kept.append(Kept(name, table, file.rows, why))
                continue
            chosen.append(file)
            rows += file.rows
        going = [self._going(table, file, name) for file in chosen]
        return [_step(schedule, table, days_of(table, chosen[-1])[1], going)] if chosen else []

    def _spared(self, files: Iterable[AddFile]) -> list[Step]:
        """Files with payloads of longer classes alone: they go when the longest of these is over."""
        steps = []
        for file in files:
            day = days_of("journal", file)[1]
            named = [one for name in (*LONGER, "events") if (one := self.keeping.retention[name]).named]
            if not self.keeping.spares(file) and named and all(one.over(day, self.keeping.today) for one in named):
                schedule = max(named, key=lambda one: one.until(day) or day)
                steps.append(_step(schedule, "journal", day, [self._going("journal", file, schedule.record_class)]))
        return steps

    def _going(self, table: str, file: AddFile, name: str) -> Going:
        feeds: dict[str, dict[str, int]] = {}
        if table == "journal" and classes()[name].goes == "rows":
            found = self.store.arrow(table, ["source", "generation", "offset"], files=[file])
            found = found.group_by(["source", "generation"]).aggregate([("offset", "count"), ("offset", "max")])
            for row in found.to_pylist():
                feeds[f"{row['source']}/{row['generation']}"] = {"rows": row["offset_count"], "upto": row["offset_max"]}
        payloads = table == "journal" and classes()[name].goes == "payload"
        spares = self.keeping.spares(file) if payloads else ()
        look = ds.field("payload").is_valid() if payloads and worn(file) else None
        look = ~ds.field("change_type").isin(list(spares)) if spares else look
        ids = self.store.arrow(table, [IDS[table]], files=[file], filter=look)[IDS[table]].to_pylist()
        low, high = (side[_moment(table)] for side in (file.minimum, file.maximum))
        return Going(file.path, len(ids), file.size, _time(low), _time(high), _root(ids), feeds, spares)

    def _archives(self) -> list[Step]:
        schedule, steps = self.keeping.retention["archive"], []
        for name, source in sorted(self.settings.sources.items()):
            if source.kind != "files" or not schedule.named:
                continue
            going, newest = [], date.min
            for path in archived(self.settings, name):
                made = made_at(path)
                if made is None or not schedule.over(made.date(), self.keeping.today):
                    continue
                holds = self.keeping.retention.holds
                if any(hold.covers("archive", (made.date(), made.date()), {name}) for hold in holds):
                    self.kept.append(Kept("archive", f"archive/{name}", 1, "held"))
                    continue
                going.append(Going(str(path), 1, path.stat().st_size, _time(made), _time(made), _root([path.name])))
                newest = max(newest, made.date())
            if going:
                steps.append(_step(schedule, f"archive/{name}", newest, going))
        return steps


class Expiry:
    """Carries out what is over. The caller holds the run lock: one process at a time."""

    def __init__(self, keeping: Keeping) -> None:
        self.keeping, self.store, self.settings = keeping, keeping.store, keeping.settings
        self.path = self.settings.data_path / "retention" / "plan.json"

    def run(self, now: float) -> list[Step]:
        """Finish what was begun, then everything that is over now; returns what went."""
        done = self._resumed(now)
        while steps := Planner(self.keeping).steps():
            self._begin(steps, now)
            done += steps
            if not self._carry_out(steps):
                break  # somebody else has rewritten all of it; what it became is looked at the next time
        return done

    def _resumed(self, now: float) -> list[Step]:
        if not self.path.exists():
            return []
        said = json.loads(self.path.read_text())
        if (self.store.transaction_version("attempts", LANE) or 0) < said["number"]:
            self.path.unlink()  # nobody attested it; what is over is still over
            return []
        steps = [Step(**one | {"files": tuple(_planned(file) for file in one["files"])}) for one in said["steps"]]
        allowed = [self._unheld(step) for step in steps]
        if allowed != steps:
            self._begin(allowed, now, said["number"])
        self._carry_out(allowed)
        return [step for step in allowed if step.files]

    def _unheld(self, step: Step) -> Step:
        if step.goes == "files":
            source = step.records.partition("/")[2]
            days = [(file, date.fromisoformat(file.first[:10])) for file in step.files]
            holds = self.keeping.retention.holds
            free = [f for f, day in days if not any(h.covers("archive", (day, day), {source}) for h in holds)]
            return replace(step, files=tuple(free))
        live = {file.path: file for file in self.store.files(step.records)}
        names = (step.record_class, *(LONGER if step.goes == "payload" else ()))
        held = {
            path for path, file in live.items() if any(self.keeping.held(name, step.records, file) for name in names)
        }
        return replace(step, files=tuple(file for file in step.files if file.path not in held))

    def _begin(self, steps: list[Step], now: float, replaces: int = 0) -> None:
        """Write down what is to go, then say so where the ledger takes it from."""
        number = (self.store.transaction_version("attempts", LANE) or 0) + 1
        durable.durable_write(self.path, json.dumps({"number": number, "steps": [asdict(step) for step in steps]}))
        crash.point("expiry.planned")
        by, version = f"tidings/{self.settings.tenant}", self.settings.policy_version
        entries = [step.entry(by, now, version, replaces) for step in steps]
        rows = [
            policy_row(LANE, number, now, entry) | {"call": f"retention-{number}-{place}"}
            for place, entry in enumerate(entries)
        ]
        folder = self.store.fresh("attempts")
        write(rows, folder)
        self.store.commit("attempts", folder, app=LANE, version=number)
        crash.point("expiry.attested")

    def _carry_out(self, steps: Iterable[Step]) -> int:
        """Every step as far as it is not done yet; returns how many files changed or went."""
        changed = 0
        for step in steps:
            paths = {file.path for file in step.files}
            if step.goes == "payload":
                changed += self.store.bare(step.records, {file.path: file.spares for file in step.files}, "payload")
            elif step.goes == "rows":
                changed += self.store.remove(step.records, paths)
            else:
                changed += sum(_unlinked(Path(path)) for path in paths)
            crash.point("expiry.removed")
        self.path.unlink()
        return changed


def archived(settings: Settings, source: str) -> list[Path]:
    """Dropped files of a source that nothing reads any more."""
    folders = [settings.source_path(source) / name for name in FOLDERS]
    return sorted(path for folder in folders if folder.is_dir() for path in folder.iterdir() if path.is_file())


def made_at(path: Path) -> datetime | None:
    """When a file was claimed, from its name; None when it is not one of ours."""
    micros = path.name.partition("-")[0]
    return datetime.fromtimestamp(int(micros) / 1_000_000, UTC) if len(micros) == 16 and micros.isdigit() else None


def _planned(said: dict[str, Any]) -> Going:
    return Going(**said | {"spares": tuple(said.get("spares", ()))})


def _unlinked(path: Path) -> bool:
    there = path.exists()
    path.unlink(missing_ok=True)
    return there


def _step(schedule: Schedule, records: str, newest: date, going: list[Going]) -> Step:
    duty: Duty | None = schedule.decides(newest)
    assert duty is not None
    goes = classes()[schedule.record_class].goes
    return Step(schedule.record_class, records, goes, str(duty)[:1000], str(duty.until(newest)), tuple(going))


def _moment(table: str) -> str:
    return next(one.moments[table] for one in classes().values() if table in one.moments)


def _time(moment: Any) -> str:
    return str(moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))


def _root(ids: Iterable[str]) -> str:
    return root_of(leaf_hash(name.encode()) for name in sorted(ids)).hex()


def expired_feeds(store: Store) -> dict[str, dict[str, int]]:
    """What the journal no longer holds: feed → rows that went, and the offset they reach up to."""
    found: dict[str, dict[str, int]] = {}
    if store.version("attempts") is None:
        return found
    rows = store.arrow("attempts", ["cycle", "entry"], filter=ds.field("lane") == LANE).to_pylist()
    entries = [json.loads(row["entry"]) | {"number": row["cycle"]} for row in rows]
    undone = {entry["replaces"] for entry in entries if "replaces" in entry}
    for entry in entries:
        for name, part in (entry.get("feeds") or {}).items() if entry["number"] not in undone else ():
            known = found.setdefault(name, {"rows": 0, "upto": -1})
            found[name] = {"rows": known["rows"] + part["rows"], "upto": max(known["upto"], part["upto"])}
    return found
