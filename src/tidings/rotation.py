"""A new key-encryption key for all key files, and how the key files stand. No Spark.

    kek.json says "next" ─every file written again─ attested ─kek.json says the new version

The caller holds the run lock. A kill at any instant leaves "next" behind: until `tidings keys rotate` has gone on to the end nobody opens a
key file (`rotation_unfinished`). Files are replaced and what writers left half-done is unlinked, so no copy under the older key stays in
the data folder. What this does not reach: backups, which the older version still opens for whoever has the master key.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq

from tidings import crash
from tidings.lanes.attempts import policy_row, stamp, write
from tidings.ledger.attestation import KeysRotated
from tidings.rights import restore
from tidings.seal import kek
from tidings.seal.keyfiles import KeyFiles
from tidings.settings import Settings
from tidings.store import Store

LANE = "_keys"  # no subscriber can have this name
crash.POINTS["keys.rotation_begun"] = "a rotation: it is written down, every key is under the older key-encryption key"
crash.POINTS["keys.rewrapped"] = "a rotation: every key is under the new key-encryption key, nobody has attested it"
crash.POINTS["keys.rotation_attested"] = "a rotation: it is attested, the version in force is still the older one"


@dataclass(frozen=True)
class Rotated:
    """What a rotation did; counts alone."""

    version: int
    previous: int
    keys: int
    files: int


@dataclass(frozen=True)
class Rule:
    """One rule about backups, and whether this folder keeps it."""

    rule: str
    kept: bool
    what_now: str = ""


def rotate(settings: Settings, store: Store) -> Rotated:
    """Wrap every key under the next version; goes on where an earlier try was killed."""
    root = settings.data_path / "keys"
    now = kek.read(root)
    following = now.version + 1
    kek.write(root, kek.Kek(now.version, following))
    crash.point("keys.rotation_begun")
    store.sweep(older_than=-1)  # a batch that was killed wrote its keys beside its rows
    ring = settings.keyring
    files = KeyFiles(root, ring.wrapping(following), ring.wrapping(now.version))
    done = Rotated(following, now.version, files.rewrap(), len(files.paths()))
    crash.point("keys.rewrapped")
    _attest(settings, store, done)
    crash.point("keys.rotation_attested")
    kek.write(root, kek.Kek(following))
    return done


def _attest(settings: Settings, store: Store, done: Rotated) -> None:
    """Once for each version: a commit under its number is not made again."""
    moment = time.time()
    by = {"attestor": f"tidings/{settings.tenant}", "timestamp": stamp(moment)}
    entry = KeysRotated(**by, version=done.version, previous=done.previous, count=done.keys, files=done.files)
    folder = store.fresh("attempts")
    write([policy_row(LANE, done.version, moment, entry.encode()) | {"call": f"keys-{done.version}"}], folder)
    store.commit("attempts", folder, app=LANE, version=done.version)


def status(settings: Settings) -> dict[str, object]:
    """Files, rows and versions; nothing of anybody."""
    root = settings.data_path / "keys"
    for _ in range(3):
        try:
            return _counted(root) | {"backup_rules": [asdict(one) for one in backup_rules(settings)]}
        except FileNotFoundError:  # a run compacted them meanwhile
            time.sleep(0.1)
    with KeyFiles(root, settings.keyring.derive("kek")).reading():
        return _counted(root) | {"backup_rules": [asdict(one) for one in backup_rules(settings)]}


def _counted(root: Path) -> dict[str, object]:
    now = kek.read(root)
    found = _files(root)
    oldest = min((path.stat().st_mtime for path in found), default=None)
    return {
        "kek_version": now.version,
        "rotating_to": now.next,
        "files": len(found),
        "batches": len({path.parent for path in found if path.parent.parent.name == "new"}),
        "rows": sum(pq.read_metadata(path).num_rows for path in found),
        "bytes": sum(path.stat().st_size for path in found),
        "oldest": datetime.fromtimestamp(oldest, UTC).isoformat(timespec="seconds") if oldest else None,
        "left_half_written": sum(1 for _ in (root / "tmp").iterdir()) if (root / "tmp").is_dir() else 0,
    }


def _files(root: Path) -> list[Path]:
    return [path for name in ("new", "bucket") for path in sorted((root / name).glob("*/*.parquet"))]


def backup_rules(settings: Settings) -> Iterator[Rule]:
    """What can be seen from here of the rules in docs/erasure.md; how long a backup elsewhere lives cannot."""
    data, home = settings.data_path.resolve(), settings.directory.resolve()
    kind, _, name = settings.operator.master_key.partition(":")
    place = (home / settings.operator.secrets.folder / name).resolve()
    yield Rule(
        "the master key is not in the data folder",
        kind == "env" or not place.is_relative_to(data),
        "Move the secrets folder: a backup of the data folder would open itself.",
    )
    stones = (home / restore.NAME).resolve()
    yield Rule(
        "the list of erasures is kept outside the data folder",
        not stones.is_relative_to(data),
        "Give the data a folder of its own under `data:`.",
    )
    inside = data / "rights" / restore.NAME
    yield Rule(
        "the list of erasures outside is there and has every erasure of the data",
        not inside.exists() or (stones.exists() and stones.stat().st_size >= inside.stat().st_size),
        "Start `tidings run`, which writes it again.",
    )
    later = restore.later(settings)
    yield Rule("this data has carried out every erasure on the list", not later, "Run `tidings restore`.")
    yield Rule(
        "key files are for their owner alone",
        not any(stat.S_IMODE(path.stat().st_mode) & 0o077 for path in _files(data / "keys")),
        "Take the rights of others off data/keys (chmod -R go= data/keys).",
    )
    yield Rule(
        "no copy of the key files lies in the operator's folder",
        not any(_copies(home, data)),
        "Unlink it, or move it to where its age is watched.",
    )


def _copies(home: Path, data: Path) -> Iterator[Path]:
    """Folders shaped like key files that are not those in force."""
    for depth in ("*", "*/*", "*/*/*"):
        for found in home.glob(f"{depth}/bucket"):
            if found.is_dir() and (found.parent / "new").is_dir() and found.parent.resolve() != data / "keys":
                yield found.parent
