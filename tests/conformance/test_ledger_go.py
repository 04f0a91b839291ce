"""A stranger's verifier, built from Go's own packages, accepts our log and refuses every damaged one."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rights.certificate_story import whole
from tidings.ledger.log import Log
from tidings.ledger.note import Checkpoint
from tidings.ledger.tiles import WIDTH, tile_path
from tidings.rights.certificate_archive import unpack

SEED = bytes(range(32))
ORIGIN = "example.com/ledger/standard/2026"
ENTRIES = 1000
DAMAGES = 1000


def written(folder: Path, sizes: list[int]) -> str:
    with Log(folder, ORIGIN, SEED) as log:
        for number, size in enumerate(sizes):
            log.append([f'{{"batch":{number},"row":{row},"text":"é"}}'.encode() for row in range(size)])
        return log.vkey


def accepts(verifier: Path, folder: Path, vkey: str) -> bool:
    return subprocess.run([verifier, folder, vkey], capture_output=True, timeout=60, check=False).returncode == 0


@pytest.mark.parametrize(
    "sizes",
    [[], [1], [255], [256], [1, 254, 1], [256, 1], [257], [3] * 100, [70_000], [65_535, 1, 1], [65_536, 300]],
    ids=lambda sizes: f"{len(sizes)}x{max(sizes, default=0)}",
)
def test_go_accepts_our_log(verifier: Path, tmp_path: Path, sizes: list[int]) -> None:
    vkey = written(tmp_path / "log", sizes)
    ran = subprocess.run([verifier, tmp_path / "log", vkey], capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"{sum(sizes)} entries\n", "")


def test_go_refuses_a_log_under_another_key(verifier: Path, tmp_path: Path) -> None:
    written(tmp_path / "log", [10])
    with Log(tmp_path / "other", ORIGIN, bytes(32)) as other:
        assert not accepts(verifier, tmp_path / "log", other.vkey)


def current_files(folder: Path) -> list[Path]:
    """The files the published head rests on; narrower partial tiles belong to older heads."""
    size = Checkpoint.parse((folder / "checkpoint").read_text().split("\n\n")[0] + "\n").size
    names = ["checkpoint", "checkpoints"]
    for level in ("entries", 0, 1):
        count = -(-size // WIDTH) if level in ("entries", 0) else 1
        per_level = size if level in ("entries", 0) else size // WIDTH
        names += [tile_path(level, n, min(WIDTH, per_level - n * WIDTH)) for n in range(count)]
    return [folder / name for name in names]


def flip(path: Path, _: Path, dice: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)


def truncate(path: Path, _: Path, dice: random.Random) -> None:
    os.truncate(path, dice.randrange(path.stat().st_size))


def zero(path: Path, _: Path, dice: random.Random) -> None:
    data = path.read_bytes()
    start = dice.randrange(len(data))
    end = min(len(data), start + 1 + dice.randrange(64))
    path.write_bytes(data[:start] + b"\0" * (end - start) + data[end:])


def swap(path: Path, other: Path, _: random.Random) -> None:
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def remove(path: Path, _: Path, __: random.Random) -> None:
    path.unlink()


def grow(path: Path, _: Path, dice: random.Random) -> None:
    path.write_bytes(path.read_bytes() + dice.randbytes(1 + dice.randrange(64)))


Damage = Callable[[Path, Path, random.Random], None]
DAMAGE: list[Damage] = [flip, flip, truncate, zero, swap, remove, grow]


def test_go_refuses_every_damaged_log(verifier: Path, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    vkey = written(folder, [100] * (ENTRIES // 100))
    files = current_files(folder)
    assert all(path.is_file() for path in files)
    kept = {path: path.read_bytes() for path in files}
    dice = random.Random(20261115)
    accepted, tried = [], 0
    for number in range(DAMAGES):
        damage = DAMAGE[number % len(DAMAGE)]
        path, other = dice.sample(files, 2)
        damage(path, other, dice)
        if any(not p.is_file() or p.read_bytes() != kept[p] for p in (path, other)):
            tried += 1
            if accepts(verifier, folder, vkey):
                accepted.append(f"{damage.__name__} {path.relative_to(folder)} {other.relative_to(folder)}")
        for changed in (path, other):
            changed.write_bytes(kept[changed])
    assert accepted == []
    assert tried >= DAMAGES * 0.9
    assert accepts(verifier, folder, vkey)


def test_go_accepts_a_certificate_and_refuses_a_damaged_one(verifier: Path, tmp_path: Path) -> None:
    story = whole(tmp_path / "operator")
    files = unpack(story.issue().archive)
    for name, data in files.items():
        (tmp_path / "unpacked" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "unpacked" / name).write_bytes(data)
    command = [verifier, "certificate", tmp_path / "unpacked", story.key]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    count = sum(name.startswith("entries/") and name.endswith(".tlog") for name in files)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"{count} entries\n", "")
    for name in ("entries/0001.json", "heads/0001.tlog", "checkpoint", "certificate.pdf", "manifest.note"):
        path = tmp_path / "unpacked" / name
        kept = path.read_bytes()
        path.write_bytes(kept[:-9] + bytes([kept[-9] ^ 1]) + kept[-8:])
        assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 1, name
        path.write_bytes(kept)
