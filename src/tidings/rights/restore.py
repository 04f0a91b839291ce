"""A backup of the data folder brings nobody back: every erasure is also written down outside it, and a run looks there first.

    <operator>/tombstones.jsonl        every erasure, in order: request, time, keyed tags and hashes; kept with the master key
    data/rights/tombstones.jsonl       the same lines, as far as this data folder has carried them out

More lines outside than inside: the data is older than these erasures. `tidings run` refuses, `tidings restore` carries them out again.
More inside than outside: the file outside was lost, and is written again. Each line is keyed with the one before it, so none can be
changed or left out in the middle. What it cannot see: both files restored from the same backup, or the last lines cut off both. Keep
the file outside where backups of the data folder do not reach; a witness that co-signed a later ledger head shows the rest.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tidings import crash, durable
from tidings.errors import Damaged, Refused
from tidings.rights.holding import Holding
from tidings.rights.scrub import ERASED, Gone, scrub
from tidings.rights.steps import write
from tidings.seal.keyfiles import KeyFiles
from tidings.seal.keyring import bucket
from tidings.session import BUCKETS
from tidings.settings import Settings
from tidings.store import Store

NAME = "tombstones.jsonl"
APP = "restore"
TORN = 1 << 16  # bytes at once, looking back for the end of a line
crash.POINTS["restore.scrubbed"] = "a later erasure is carried out again in restored data, nobody has noted it"


@dataclass(frozen=True)
class Tombstone:
    """One erasure: who, by keyed values alone, and when."""

    request: str
    millis: int
    generation: int
    tags: tuple[str, ...]
    hashes: tuple[str, ...]

    @property
    def flag(self) -> str:
        return f"{ERASED}{self.millis}:{self.generation}:gone"


def note(settings: Settings, stones: Iterable[Tombstone]) -> None:
    """Write erasures down outside the data folder, before anybody is told of them. Noted twice they stand there once."""
    _append(settings, _outside(settings), stones)


def carried_out(settings: Settings, stones: Iterable[Tombstone]) -> None:
    """This data folder has lost these people."""
    _append(settings, _inside(settings), stones)


def missing(settings: Settings) -> list[Tombstone]:
    """Erasures that this data folder has not carried out; a lost file outside is written again from what the data knows."""
    _append(settings, _outside(settings), _read(settings, _inside(settings)))
    return later(settings)


def later(settings: Settings) -> list[Tombstone]:
    """The same, by looking alone."""
    outside, inside = (_read(settings, path) for path in (_outside(settings), _inside(settings)))
    done = {one.request for one in inside}
    return [one for one in outside if one.request not in done]


def ready(settings: Settings, store: Store) -> None:
    """Refuse data that is older than an erasure. One that is under way in this data is finished by the run itself."""
    wanted = {one.request for one in missing(settings)}
    if not wanted:
        return
    here = set(store.arrow("rights_requests", ["request"])["request"].to_pylist()) if _has(store) else set()
    if wanted - here:
        raise Refused(
            "restored_data",
            f"data that is older than {len(wanted - here)} erasures",
            "data in which every erasure is carried out",
            "Run `tidings restore`, which carries them out again. Nothing was started.",
        )


def again(settings: Settings, store: Store, keys: KeyFiles) -> list[Gone]:
    """Carry out every later erasure in restored data. The caller holds the run lock."""
    done = []
    holding = Holding(settings, store, keys)
    for stone in missing(settings):
        tags = [bytes.fromhex(tag) for tag in stone.tags]
        holding.seal(
            f"restore/{stone.request}", [(stone.request, tags)]
        )  # the backup may be older than the hold's file
        _flagged(store, stone, tags)
        done.append(scrub(store, keys, tags))
        _on_record(store, stone)
        crash.point("restore.scrubbed")
        carried_out(settings, [stone])
    return done


def _flagged(store: Store, stone: Tombstone, tags: Iterable[bytes]) -> None:
    """The word that the flow looks at, so that a source that is read again does not bring the person back."""
    rows = [
        {"tag": tag, "bucket": bucket(tag, BUCKETS), "offset": 0, "source": APP, "generation": APP, "batch": 0}
        | {"version": f"{stone.millis:013d}-999999-99", "flags": [stone.flag]}
        for tag in tags
    ]
    _commit(store, "subjects", rows)


def _on_record(store: Store, stone: Tombstone) -> None:
    """The request is open for a human: this data does not know who was told."""
    moment = datetime.fromtimestamp(stone.millis / 1000, UTC)
    row: dict[str, Any] = {"request": stone.request, "step": 1, "what": "restored", "kind": "erasure"}
    row |= {"state": "review", "way": "cli", "opened": moment, "changed": datetime.now(UTC), "actor": "tidings"}
    row |= {"reason": "the data was restored from a backup older than this erasure"}
    row |= {name: [bytes.fromhex(one) for one in getattr(stone, name)] for name in ("tags", "hashes")}
    _commit(store, "rights_requests", [row])


def _commit(store: Store, table: str, rows: list[dict[str, Any]]) -> None:
    store.commit(table, write(store, table, rows), app=APP, version=(store.transaction_version(table, APP) or 0) + 1)


def _has(store: Store) -> bool:
    return store.version("rights_requests") is not None


def _outside(settings: Settings) -> Path:
    return settings.directory / NAME


def _inside(settings: Settings) -> Path:
    return settings.data_path / "rights" / NAME


def _read(settings: Settings, path: Path) -> list[Tombstone]:
    return [stone for stone, _ in _lines(settings, path)]


def _lines(settings: Settings, path: Path) -> list[tuple[Tombstone, str]]:
    """Each erasure and its mac. A line without its end was never confirmed to anybody, and is not there."""
    found, mac = [], ""
    for number, line in enumerate(path.read_text().split("\n")[:-1] if path.exists() else (), 1):
        try:
            said: dict[str, Any] = json.loads(line)
            told = str(said.pop("mac"))
        except (ValueError, KeyError):
            told, said = "", {}
        if not said or not hmac.compare_digest(told, mac := _mac(settings, mac, said)):
            raise Damaged(
                "tombstones",
                f"{path.name}: line {number} is not the line that was written there",
                "every erasure, in order",
                "Put the file back from its copy. Nothing was started.",
            )
        found.append((Tombstone(**said | {name: tuple(said[name]) for name in ("tags", "hashes")}), mac))
    return found


def _append(settings: Settings, path: Path, stones: Iterable[Tombstone]) -> None:
    """Add what is not there yet; durable on return."""
    known, mac = _known(settings, path)
    text = ""
    for stone in stones:
        if stone.request not in known:
            known.add(stone.request)
            said = json.loads(json.dumps(asdict(stone)))
            mac = _mac(settings, mac, said)
            text += json.dumps(said | {"mac": mac}, sort_keys=True) + "\n"
    if not text:
        return
    durable.make_folder(path.parent, 0o700)
    with path.open("rb+" if path.exists() else "wb") as sink:
        sink.seek(_whole(path))
        sink.truncate()
        sink.write(text.encode())
    path.chmod(0o600)
    durable.sync_file(path)
    durable.sync_folder(path.parent)
    _SEEN[path] = (_look(path), known, mac)


# Which erasures a file names, and its last mac, as of the look of it that this process left: so many lines are not read at each commit.
_SEEN: dict[Path, tuple[tuple[int, ...], set[str], str]] = {}


def _known(settings: Settings, path: Path) -> tuple[set[str], str]:
    look, known, mac = _SEEN.pop(path, ((), set[str](), ""))
    if look and look == _look(path):
        return known, mac
    there = _lines(settings, path)
    return {stone.request for stone, _ in there}, there[-1][1] if there else ""


def _look(path: Path) -> tuple[int, ...]:
    try:
        seen = path.stat()
    except FileNotFoundError:
        return ()
    return seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns


def _whole(path: Path) -> int:
    """Where the last line with an end ends; what a crash tore is after it."""
    with path.open("rb") as file:
        end = file.seek(0, 2)
        while end > 0:
            begin = max(0, end - TORN)
            file.seek(begin)
            if (place := file.read(end - begin).rfind(b"\n")) >= 0:
                return begin + place + 1
            end = begin
    return 0


def _mac(settings: Settings, before: str, said: dict[str, Any]) -> str:
    told = before.encode() + json.dumps(said, sort_keys=True).encode()
    return hmac.new(settings.keyring.derive("tombstones"), told, hashlib.sha256).hexdigest()
