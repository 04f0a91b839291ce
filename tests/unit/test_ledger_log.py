"""One log, its writer and its heads: what it accepts, what it refuses, and that it never signs two histories."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import pytest

from tidings.errors import Damaged, Refused
from tidings.ledger.disk import Disk
from tidings.ledger.log import Log, archived
from tidings.ledger.merkle import EMPTY_ROOT, leaf_hash, root_of
from tidings.ledger.note import Checkpoint, Signer, Verifier
from tidings.ledger.tiles import Tiles

SEED, ORIGIN = bytes(range(32)), "example.com/log"


def entries(count: int, start: int = 0) -> list[bytes]:
    return [f"entry {i}".encode() for i in range(start, start + count)]


def grown(folder: Path, *steps: int) -> Log:
    log, done = Log(folder, ORIGIN, SEED), 0
    for step in steps:
        assert log.append(entries(step, done)) == done
        done += step
    return log


def head(log: Log) -> Checkpoint:
    return Checkpoint.open(log.checkpoint(), Verifier.parse(log.vkey))


def test_an_empty_log_signs_the_empty_tree(tmp_path: Path) -> None:
    with Log(tmp_path / "log", ORIGIN, SEED) as log:
        assert head(log) == Checkpoint(ORIGIN, 0, EMPTY_ROOT)
        assert log.append([]) == 0
    assert len(list(archived(tmp_path / "log"))) == 1


@pytest.mark.parametrize("steps", [(1,), (255, 1), (256,), (300, 300), (1, 2, 3) * 5, (65_536, 1)], ids=str)
def test_a_log_goes_on_where_it_stopped(tmp_path: Path, steps: tuple[int, ...]) -> None:
    done = 0
    for step in steps:
        with Log(tmp_path / "log", ORIGIN, SEED) as log:
            assert log.append(entries(step, done)) == done
            done += step
            assert head(log) == Checkpoint(ORIGIN, done, log.root)
            assert log.root == root_of(map(leaf_hash, entries(done)))
            assert (tmp_path / "log" / "checkpoint").read_bytes() == log.checkpoint()
    sizes = [Checkpoint.open(note, Verifier.parse(log.vkey)).size for note in archived(tmp_path / "log")]
    assert sizes == [sum(steps[:n]) for n in range(len(steps) + 1)]
    assert Tiles(tmp_path / "log").entry(done - 1, done) == entries(1, done - 1)[0]


def test_partial_tiles_go_when_the_full_tile_is_there(tmp_path: Path) -> None:
    with grown(tmp_path / "log", 100, 100, 100):
        left = sorted(
            str(p.relative_to(tmp_path / "log" / "tile")) for p in (tmp_path / "log/tile").rglob("*") if p.is_file()
        )
    assert left == ["0/000", "0/001.p/44", "1/000.p/1", "entries/000", "entries/001.p/44"]


def test_a_second_writer_is_refused_and_told_who_writes(tmp_path: Path) -> None:
    with Log(tmp_path / "log", ORIGIN, SEED), pytest.raises(Refused, match=f"process {os.getpid()}"):
        Log(tmp_path / "log", ORIGIN, SEED)
    Log(tmp_path / "log", ORIGIN, SEED).close()


def test_another_key_is_refused(tmp_path: Path) -> None:
    grown(tmp_path / "log", 5).close()
    with pytest.raises(Damaged, match="ledger-key"):
        Log(tmp_path / "log", ORIGIN, bytes(32))


def test_an_entry_too_long_changes_nothing(tmp_path: Path) -> None:
    with Log(tmp_path / "log", ORIGIN, SEED) as log:
        with pytest.raises(Refused):
            log.append([b"good", b"x" * 65_536])
        assert log.append([b"x" * 65_535]) == 0


def test_a_writer_that_was_overtaken_never_signs(tmp_path: Path) -> None:
    with grown(tmp_path / "log", 5) as log:
        archive = tmp_path / "log" / "checkpoints"
        other = Signer(ORIGIN, SEED).sign(Checkpoint(ORIGIN, 6, bytes(32)).text)
        archive.write_bytes(archive.read_bytes() + b64encode(other) + b"\n")
        with pytest.raises(Damaged, match="ledger-fence"):
            log.append(entries(1))
        with pytest.raises(Damaged, match="ledger-stopped"):
            log.append(entries(1))


def rolled_back_archive(folder: Path) -> None:
    lines = (folder / "checkpoints").read_bytes().splitlines(keepends=True)
    (folder / "checkpoints").write_bytes(b"".join(lines[:-1]))


def lost_archive(folder: Path) -> None:
    (folder / "checkpoints").unlink()


def changed_tile(folder: Path) -> None:
    path = folder / "tile/0/000.p/7"
    path.write_bytes(b"\x01" + path.read_bytes()[1:])


def lost_tile(folder: Path) -> None:
    (folder / "tile/0/000.p/7").unlink()


def changed_bundle(folder: Path) -> None:
    path = folder / "tile/entries/000.p/7"
    path.write_bytes(path.read_bytes().replace(b"entry 3", b"entry X"))


def older_tiles(folder: Path) -> None:
    shutil.rmtree(folder / "tile")
    grown(folder.parent / "other", 5).close()
    shutil.copytree(folder.parent / "other" / "tile", folder / "tile")


@pytest.mark.parametrize(
    "damage", [rolled_back_archive, lost_archive, changed_tile, lost_tile, changed_bundle, older_tiles]
)
def test_a_log_that_contradicts_itself_is_not_opened(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    grown(tmp_path / "log", 5, 2).close()
    damage(tmp_path / "log")
    with pytest.raises(Damaged):
        Log(tmp_path / "log", ORIGIN, SEED)


@pytest.mark.parametrize("torn", [b"Zm9v", b"\0" * 40, b"Zm9v\n"], ids=["part", "zeros", "rubbish"])
def test_a_torn_head_was_never_published_and_is_forgotten(tmp_path: Path, torn: bytes) -> None:
    grown(tmp_path / "log", 5).close()
    archive = tmp_path / "log" / "checkpoints"
    whole = archive.read_bytes()
    archive.write_bytes(whole + torn)
    with Log(tmp_path / "log", ORIGIN, SEED) as log:
        assert log.size == 5
        assert archive.read_bytes() == whole


def test_a_head_that_was_signed_is_published_after_a_crash(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    grown(folder, 5).close()
    old = (folder / "checkpoint").read_bytes()
    grown_on = Log(folder, ORIGIN, SEED)
    grown_on.append(entries(3, 5))
    grown_on.close()
    (folder / "checkpoint").write_bytes(old)
    with Log(folder, ORIGIN, SEED) as log:
        assert log.size == 8
        assert (folder / "checkpoint").read_bytes() == log.checkpoint()


class FailsAt(Disk):
    """A disk whose n-th fsync fails once; every later one would claim success."""

    def __init__(self, failing: int) -> None:
        self.failing, self.calls = failing, 0

    def sync(self, handle: int) -> None:
        self.calls += 1
        if self.calls == self.failing:
            raise OSError(5, "Input/output error")
        super().sync(handle)


# An append this small syncs its bundle, its tile, the archive and the published head.
@pytest.mark.parametrize("failing", [1, 2, 3, 4])
def test_a_failed_fsync_stops_the_log_and_is_never_tried_again(tmp_path: Path, failing: int) -> None:
    disk = FailsAt(10**9)
    with Log(tmp_path / "log", ORIGIN, SEED, disk) as log:
        log.append(entries(3))
        disk.failing = disk.calls + failing
        with pytest.raises(Damaged, match="ledger-disk"):
            log.append(entries(3, 3))
        spent = disk.calls
        with pytest.raises(Damaged, match="ledger-stopped"):
            log.append(entries(3, 3))
        assert disk.calls == spent
    with Log(tmp_path / "log", ORIGIN, SEED) as log:
        assert log.size == (6 if failing > 2 else 3)


def test_the_ledger_needs_no_spark() -> None:
    code = (
        "import sys, pkgutil, importlib, tidings.ledger, tidings.verbs.verify, tidings.verbs.prove\n"
        "for m in pkgutil.iter_modules(tidings.ledger.__path__): importlib.import_module('tidings.ledger.' + m.name)\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in {'pyspark', 'py4j', 'deltalake', 'pyarrow'}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == "[]\n"
