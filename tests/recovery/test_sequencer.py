"""The ledger through crashes: power cut at every step of the disk, the process killed at every named point.

After any crash: what was acknowledged is there, every head that was ever signed fits the one history, and the ledger
that was interrupted is byte for byte the ledger that was not.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidings import crash
from tidings.errors import Damaged, Refused
from tidings.ledger.classes import Ledger, class_log
from tidings.ledger.disk import Disk
from tidings.ledger.log import Log, archived
from tidings.ledger.note import Checkpoint, Verifier
from tidings.ledger.sequencer import RECORD, Sequencer
from tidings.ledger.verification import verify_ledger
from tidings.ledger.vocabulary import encode_entry

SEED, ORIGIN = bytes(range(32)), "example.com/ledger"
# The simulated disk decides what survives; the real one below it may as well be memory.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
LOGS = (class_log("standard", 2026), class_log("tax", 2026))


@dataclass(frozen=True)
class Version:
    """One version of a table and how many entries it gives each log."""

    table: str
    number: int
    counts: tuple[int, int]

    def entries(self) -> dict[str, list[bytes]]:
        return {log: [self._entry(log, row) for row in range(n)] for log, n in zip(LOGS, self.counts, strict=True)}

    def _entry(self, log: str, row: int) -> bytes:
        reason = f"{self.table} {self.number} {log} {row}"
        said = {"attestor": "tidings", "lane": "hook", "reason": reason, "timestamp": "2026-11-15T09:30:00Z"}
        return encode_entry({"kind": "lane_paused", **said})


def history(shape: Sequence[tuple[int, int, int]]) -> list[Version]:
    """Versions of two tables in one order, each table counting its own."""
    numbers = {"journal": 0, "attempts": 0}
    versions = []
    for which, first, second in shape:
        table = ("journal", "attempts")[which]
        versions.append(Version(table, numbers[table], (first, second)))
        numbers[table] += 1
    return versions


HISTORY = history([(0, 3, 0), (1, 0, 1), (0, 0, 0), (0, 260, 2), (1, 5, 5), (0, 1, 0)])


class PowerCut(BaseException):
    pass


class Quick(Disk):
    """A real disk without the waiting, for reference runs."""

    def sync(self, handle: int) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        pass

    def sync_handles(self, handles: list[int]) -> None:
        pass


class Cuttable(Quick):
    """Knows what is durable: contents by fsync of a file, names by fsync of a folder. Cuts the power at one step."""

    def __init__(self, root: Path, cut_at: int) -> None:
        self.root, self.left = root, cut_at
        self.steps = 0
        self.content = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
        self.durable = dict(self.content)
        self.names: set[Path] = set(root.rglob("*"))
        self.safe_names = set(self.names)
        self.open: dict[int, Path] = {}
        self.moved: dict[Path, bytes] = {}

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.left:
            raise PowerCut

    def mkdir(self, folder: Path) -> None:
        self.step()
        super().mkdir(folder)
        self.names.add(folder)

    def write(self, path: Path, data: bytes, flag: int) -> int:
        before = b"" if flag == os.O_TRUNC else self.content.get(path, b"")
        self.names.add(path)
        self.content[path] = before + data
        if flag == os.O_TRUNC:
            self.durable.pop(path, None)
        self.step()
        handle = super().write(path, data, flag)
        self.open[handle] = path
        return handle

    def truncate(self, handle: int, path: Path, size: int) -> None:
        self.content[path] = self.content[path][:size]
        self.step()
        super().truncate(handle, path, size)
        self.open[handle] = path

    def sync(self, handle: int) -> None:
        self.step()
        self.durable[self.open[handle]] = self.content[self.open[handle]]

    def sync_handles(self, handles: list[int]) -> None:
        for handle in handles:
            self.sync(handle)

    def rename(self, source: Path, target: Path) -> None:
        self.step()
        super().rename(source, target)
        # Until the folder is synced either name may survive; the old content under the target with it.
        self.moved[target] = self.durable.get(target, b"")
        self.content[target] = self.content.pop(source)
        self.durable[target] = self.durable.pop(source, b"")
        self.names = self.names - {source} | {target}

    def sync_folder(self, folder: Path) -> None:
        self.step()
        here = {name for name in self.names if name.parent == folder}
        self.safe_names = {name for name in self.safe_names if name.parent != folder} | here
        self.moved = {path: old for path, old in self.moved.items() if path.parent != folder}

    def remove(self, folder: Path) -> None:
        self.step()
        super().remove(folder)
        self.names = {name for name in self.names if name != folder and folder not in name.parents}

    def survivors(self, target: Path, dice: random.Random) -> None:
        """One state the disk may be in after the cut: unsynced names and bytes are there, gone or torn."""
        names = self.names & self.safe_names
        names |= {name for name in sorted(self.names ^ self.safe_names) if dice.random() < 0.5}
        for name in sorted(names):
            place = target / name.relative_to(self.root)
            if not place.parent.is_dir() or name.name == "lock":
                continue
            if name not in self.content and (name.is_dir() or name in self.safe_names):
                place.mkdir(exist_ok=True)
            elif name in self.content:
                place.write_bytes(self._after(name, dice))

    def _after(self, name: Path, dice: random.Random) -> bytes:
        written, safe = self.content[name], self.durable.get(name, b"")
        if name in self.moved and dice.random() < 0.5:
            return self.moved[name]
        if safe.startswith(written):
            return dice.choice([safe, written])
        kept = safe if written.startswith(safe) else b""
        torn = dice.randint(len(kept), max(len(kept), len(written)))
        ways = [safe, written, written[:torn], written[:torn] + b"\0" * (len(written) - torn)]
        return dice.choice(ways)


def resume(folder: Path, versions: Sequence[Version], disk: Disk, acknowledged: dict[str, int]) -> None:
    """What the runner does at every start: finish the half-done version, then go on in order."""
    with Ledger(folder, ORIGIN, SEED, disk) as ledger:
        for table, number in acknowledged.items():
            assert (ledger.position(table) if ledger.position(table) is not None else -1) >= number
        half = ledger.pending
        for version in sorted(versions, key=lambda v: (v.table, v.number) != half):
            ledger.append(version.table, version.number, version.entries())
            acknowledged[version.table] = max(version.number, acknowledged.get(version.table, -1))
            if half:
                break
        if half:
            for version in versions:
                ledger.append(version.table, version.number, version.entries())
                acknowledged[version.table] = max(version.number, acknowledged.get(version.table, -1))


def logs_of(folder: Path) -> dict[str, list[bytes]]:
    return {str(p.parent.relative_to(folder)): list(archived(p.parent)) for p in folder.rglob("checkpoints")}


def files_of(folder: Path) -> dict[str, bytes]:
    kept = [p for p in folder.rglob("*") if p.is_file() and p.name != "lock" and not p.name.endswith(".new")]
    return {str(p.relative_to(folder)): p.read_bytes() for p in kept if ".p/" not in str(p)}


def survive(versions: Sequence[Version], cuts: Sequence[int], seed: int) -> bool:
    """Run through power cuts and hold the result against an uninterrupted run; False if no cut was reached."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory(dir=MEMORY) as scratch:
        here = Path(scratch) / "0"
        here.mkdir()
        acknowledged: dict[str, int] = {}
        signed: list[tuple[str, bytes]] = []
        reached = False
        for number, cut in enumerate(cuts):
            disk = Cuttable(here, cut)
            try:
                resume(here / "ledger", versions, disk, acknowledged)
            except PowerCut:
                reached = True
                signed += [(log, note) for log, notes in logs_of(here / "ledger").items() for note in notes]
                after = Path(scratch) / str(number + 1)
                after.mkdir()
                disk.survivors(after, dice)
                here = after
        resume(here / "ledger", versions, Quick(), acknowledged)
        verdict = verify_ledger(here / "ledger")
        assert verdict.problems == []
        files, heads = uninterrupted(tuple(versions))
        assert files_of(here / "ledger") == files
        assert set(signed) <= heads
        return reached


@lru_cache(maxsize=1)
def uninterrupted(versions: tuple[Version, ...]) -> tuple[dict[str, bytes], set[tuple[str, bytes]]]:
    """The files and the heads of a run that nothing disturbed."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as scratch:
        resume(Path(scratch), versions, Quick(), {})
        heads = {(log, note) for log, notes in logs_of(Path(scratch)).items() for note in notes}
        return files_of(Path(scratch)), heads


def test_power_cut_at_every_step() -> None:
    step = 1
    while survive(HISTORY, [step], step):
        survive(HISTORY, [step], -step)
        step += 1
    assert step > 100, "the history is too short to mean anything"


shapes = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([0, 1, 3, 255, 256, 300]), st.sampled_from([0, 0, 1, 257])),
    min_size=1,
    max_size=5,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shapes, st.lists(st.integers(1, 120), min_size=1, max_size=3), st.integers(0, 2**32))
def test_power_cuts_during_any_history_and_its_recovery(
    shape: list[tuple[int, int, int]], cuts: list[int], seed: int
) -> None:
    survive(history(shape), cuts, seed)


WORKER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_sequencer import HISTORY, resume, Disk
resume(Path(sys.argv[1]), HISTORY, Disk(), {})
"""


def work(folder: Path, crash_at: str = "") -> int:
    command = [sys.executable, "-c", WORKER, str(folder), str(Path(__file__).parent)]
    return subprocess.run(command, env=os.environ | {"TIDINGS_CRASH_AT": crash_at}, check=False, timeout=120).returncode


POINTS = sorted(name for name in crash.POINTS if name.startswith("ledger."))


@pytest.mark.parametrize("passing", [1, 2, 5, 8])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_every_point(tmp_path: Path, point: str, passing: int) -> None:
    folder = tmp_path / "ledger"
    assert work(folder, f"{point}:{passing}") == -signal.SIGKILL
    verifier = Verifier.parse((folder / "root" / "vkey").read_text()) if (folder / "root" / "vkey").exists() else None
    published = (folder / "root" / "checkpoint").read_bytes() if (folder / "root" / "checkpoint").exists() else b""
    assert work(folder) == 0
    assert verify_ledger(folder).problems == []
    reference = tmp_path / "reference"
    resume(reference, HISTORY, Quick(), {})
    assert files_of(folder) == files_of(reference)
    if verifier and published:
        assert (
            Checkpoint.open(published, verifier).size
            <= Checkpoint.open((folder / "root/checkpoint").read_bytes(), verifier).size
        )
        assert published in list(archived(folder / "root"))


def test_the_points_are_declared() -> None:
    assert POINTS == ["ledger.checkpoint_persisted", "ledger.intent", "ledger.published", "ledger.tiles"]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log", ORIGIN, SEED, Quick())


def test_a_repeat_changes_nothing(tmp_path: Path, log: Log) -> None:
    sequencer = Sequencer(tmp_path / "index", log)
    spans = [sequencer.append("journal", v, [b"a%d" % v, b"b"]) for v in range(3)]
    head = log.checkpoint()
    assert [sequencer.append("journal", v, [b"a%d" % v, b"b"]) for v in range(3)] == spans
    assert (log.checkpoint(), sequencer.position("journal"), sequencer.position("attempts")) == (head, 2, None)


WRONG = {
    "gap": ("journal", 4, [b"x"]),
    "other entries": ("journal", 1, [b"other"]),
    "fewer entries": ("journal", 1, []),
    "first not 0 or 1": ("attempts", 2, [b"x"]),
    "negative": ("attempts", -1, [b"x"]),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_a_gap_or_a_change_is_damage(tmp_path: Path, log: Log, case: tuple[str, int, list[bytes]]) -> None:
    sequencer = Sequencer(tmp_path / "index", log)
    for version in range(3):
        sequencer.append("journal", version, [b"%d" % version])
    head = log.checkpoint()
    with pytest.raises(Damaged):
        sequencer.append(*case)
    assert log.checkpoint() == head
    assert sequencer.append("journal", 3, [b"3"]) is not None


def test_a_table_name_cannot_leave_the_folder(tmp_path: Path, log: Log) -> None:
    for name in ("../x", "/x", "a//b", "A", "a b", "", "a/b/c/d/e", "x" * 65):
        with pytest.raises(Refused):
            Sequencer(tmp_path / "index", log).append(name, 0, [b"x"])


def test_an_index_that_lost_its_end_is_not_used(tmp_path: Path, log: Log) -> None:
    sequencer = Sequencer(tmp_path / "index", log)
    for version in range(3):
        sequencer.append("journal", version, [b"%d" % version])
    path = tmp_path / "index" / "journal.index"
    os.truncate(path, RECORD * 2)
    with pytest.raises(Damaged, match="ledger-index"):
        Sequencer(tmp_path / "index", log)


def test_a_class_log_put_back_is_noticed_by_the_root(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    resume(folder, HISTORY[:3], Quick(), {})
    shutil.copytree(folder / "standard", tmp_path / "old")
    resume(folder, HISTORY, Quick(), {})
    shutil.rmtree(folder / "standard")
    shutil.copytree(tmp_path / "old", folder / "standard")
    assert not verify_ledger(folder).good
    with pytest.raises(Damaged, match="ledger-rollback"):
        Ledger(folder, ORIGIN, SEED, Quick())


def test_cost_is_flat_as_the_log_grows(tmp_path: Path, log: Log) -> None:
    """Counted in files and bytes, not in time: an append late in the log writes what an early one wrote."""

    class Counting(Quick):
        written = 0

        def write(self, path: Path, data: bytes, flag: int) -> int:
            self.written += len(data)
            return super().write(path, data, flag)

    disk = Counting()
    log.close()
    with Log(tmp_path / "log", ORIGIN, SEED, disk) as counted:
        sequencer = Sequencer(tmp_path / "index", counted, disk=disk)
        costs = []
        for version in range(300):
            before = disk.written
            sequencer.append("journal", version, [b"x" * 100] * 256)
            costs.append(disk.written - before)
    assert max(costs[-40:]) - max(costs[10:50]) < 9_000, "at most one upper tile more"
