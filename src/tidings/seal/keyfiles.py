"""Key files: (tag, kid, key) per batch, the only place where a sealed row meets a person, and the index from one to the other.

    new/<name>/<part>.parquet      what one batch wrote; <name> is the key_file of its journal rows
    bucket/<nn>/<run>.parquet      many batches compacted by tag; each row keeps its <name> in `file`
    tmp/                           what is being written

Delta would keep history, which is what must not be kept: these files are replaced, synced and unlinked. Keys are wrapped
under the key-encryption key; a folder for the owner alone holds them. Erasing a person rewrites the few files that name them.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tidings import crash, durable
from tidings.errors import Damaged, Refused
from tidings.parquet import chunks, holding, is_empty
from tidings.seal import kek as rotation
from tidings.seal.keyring import IV_BYTES, SEPARATOR, bucket

SCHEMA = pa.schema([("tag", pa.binary()), ("kid", pa.binary()), ("key", pa.binary())])
FILED = SCHEMA.append(pa.field("file", pa.string()))
BUCKETS = 64  # bounds what one erasure rewrites: 50 million rows are 60 MB a bucket
ABANDONED_S = 3600

crash.POINTS["keys.before_adopt"] = "key files: written and synced, not yet under their name"
crash.POINTS["keys.after_adopt"] = "key files: under their name, the journal does not refer to them yet"
crash.POINTS["keys.rewrapping"] = "a rotation: one key file is under the new key-encryption key, others are not"
crash.POINTS["keys.compacting"] = "key files: compacted rows are durable, the batches' own files are still there"


def wrap(kek: bytes, tag: bytes, kid: bytes, key: bytes) -> bytes:
    """The twin of wrap_column. One kid has one key, so the kid gives the IV and equal input gives equal bytes."""
    return AESGCM(kek).encrypt(kid[:IV_BYTES], key, _row_aad(tag, kid))


def unwrap(keks: Sequence[bytes], tag: bytes, kid: bytes, wrapped: bytes) -> bytes:
    for kek in keks:
        try:
            return AESGCM(kek).decrypt(kid[:IV_BYTES], wrapped, _row_aad(tag, kid))
        except InvalidTag:
            continue
    raise Damaged("key_file", "a key that does not unwrap", "the key this row was sealed with", "Check the master key.")


class KeyFiles:
    """The key files under `root`. `kek` wraps what is written; `older` ones still open what was written before a rotation."""

    def __init__(self, root: str | Path, kek: bytes, *older: bytes) -> None:
        self.root = durable.local(root)
        self._keks = (kek, *older)
        if not older:  # only a rotation knows two
            rotation.settled(self.root)

    def __repr__(self) -> str:
        return f"KeyFiles({str(self.root)!r})"

    def fresh(self) -> str:
        """A folder for Spark to write (tag, kid, key as wrap_column gives it) into; `adopt` takes it from there."""
        self._ready()
        return str(self.root / "tmp" / durable.unique())

    def adopt(self, folder: str, name: str) -> None:
        """Give a written folder its name; durable on return. A name used before keeps its rows: no key is ever replaced."""
        place, target = durable.local(folder), self._named(name)
        self._ready()
        for path in sorted(place.iterdir()):
            if path.suffix == ".parquet" and not path.name.startswith((".", "_")) and _checked(path):
                path.chmod(0o600)
                durable.sync_file(path)
            else:
                path.unlink()
        place.chmod(0o700)
        durable.sync_folder(place)
        crash.point("keys.before_adopt")
        if target.exists():
            for path in sorted(place.iterdir()):
                path.rename(target / f"{durable.unique()}.parquet")
            durable.sync_folder(target)
            place.rmdir()
        else:
            durable.replace(place, target)
        crash.point("keys.after_adopt")

    def write(self, rows: pa.Table, name: str) -> None:
        """The same from (tag, kid, key) rows with plain keys, without Spark."""
        plain = rows.select(SCHEMA.names).to_pylist()
        wrapped = [wrap(self._keks[0], row["tag"], row["kid"], row["key"]) for row in plain]
        table = pa.table([rows["tag"], rows["kid"], pa.array(wrapped, pa.binary())], schema=SCHEMA)
        folder = Path(self.fresh())
        folder.mkdir(mode=0o700)
        _write(table, folder / "part-0.parquet")
        self.adopt(str(folder), name)

    def load(self, names: Iterable[str], kids: Collection[bytes] | None = None) -> dict[bytes, tuple[bytes, bytes]]:
        """kid → (tag, key) of these batches, or only of `kids`. What is not in the answer is erased or missing."""
        wanted = sorted(set(names))
        only = None if kids is None else ds.field("kid").isin(pa.array(sorted(kids), pa.binary()))

        def read() -> pa.Table:
            found = self._read([p for name in wanted for p in self._parts(self._named(name))], only)
            if kids is not None and len(set(found["kid"].to_pylist())) == len(set(kids)):
                return found
            named = ds.field("file").isin(pa.array(wanted, pa.string()))
            return pa.concat_tables([found, self._read(self._runs(), named if only is None else named & only)])

        rows = self._steadily(read).to_pylist()
        return {row["kid"]: (row["tag"], unwrap(self._keks, row["tag"], row["kid"], row["key"])) for row in rows}

    def people(self, names: Collection[str]) -> pa.Table:
        """(kid, tag) of these batches, no key opened; who is not in the answer is erased."""
        wanted = sorted(names)

        def read() -> pa.Table:
            named = ds.field("file").isin(pa.array(wanted, pa.string()))
            batches = [p for name in wanted for p in self._parts(self._named(name))]
            return pa.concat_tables([self._read(batches, None), self._read(self._runs(), named)]).select(["kid", "tag"])

        return self._steadily(read)

    def of(self, tags: Collection[bytes]) -> dict[bytes, tuple[bytes, bytes]]:
        """kid → (tag, key) of these people, from all their batches."""
        rows = self._steadily(lambda: self._about(tags)).to_pylist()
        return {row["kid"]: (row["tag"], unwrap(self._keks, row["tag"], row["kid"], row["key"])) for row in rows}

    def find(self, tag: bytes) -> list[tuple[str, bytes, bytes]]:
        """Every (file, kid, key) of one person: from here to their rows, without reading anybody else's bucket."""
        rows = self._steadily(lambda: self._about([tag]))
        found = {(r["file"], r["kid"]): unwrap(self._keks, r["tag"], r["kid"], r["key"]) for r in rows.to_pylist()}
        return [(file, kid, key) for (file, kid), key in sorted(found.items())]

    def about(self, tags: Collection[bytes]) -> list[tuple[bytes, str, bytes, bytes]]:
        """Every (tag, file, kid, key) of these people."""
        rows = self._steadily(lambda: self._about(tags)).to_pylist() if tags else []
        return [(r["tag"], r["file"], r["kid"], unwrap(self._keks, r["tag"], r["kid"], r["key"])) for r in rows]

    def held(self, tags: Collection[bytes]) -> Counter[bytes]:
        """How many keys there are of each of these people; who has none is not in it. No key is opened."""
        return Counter(self._steadily(lambda: self._about(tags))["tag"].to_pylist()) if tags else Counter()

    def places(self, tags: Collection[bytes]) -> set[tuple[str, bytes]]:
        """Every (file, kid) of these people, no key opened."""
        rows = self._steadily(lambda: self._about(tags))
        return set(zip(rows["file"].to_pylist(), rows["kid"].to_pylist(), strict=True))

    def paths(self, tags: Collection[bytes] | None = None) -> list[str]:
        """The files that may name these people (or anybody), for Spark to read as (tag, kid, key)."""
        return [str(path) for path in (self._runs() + self._batches() if tags is None else self._holding(tags))]

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep files where they are while Spark, which lists first and opens later, reads `paths`."""
        self._ready()
        with self._locked(fcntl.LOCK_SH):
            yield

    def erase(self, *tags: bytes) -> int:
        """Forget these people: their keys are gone from the disk's names on return. Returns how many rows went."""
        gone = 0
        with self._alone():
            for path in self._holding(tags):
                held = pq.read_table(path, columns=["tag"])["tag"]
                if pc.any(pc.is_in(held, pa.array(tags, pa.binary()))).as_py():
                    gone += _without(path, tags)
        return gone

    def compact(self, *, minimum: int = 64) -> int:
        """Move batches' own files into the buckets once there are `minimum` of them; returns how many batches moved."""
        with self._alone():
            names = [path.name for path in sorted((self.root / "new").iterdir())]
            if len(names) < minimum:
                return 0
            rows = self._read([part for name in names for part in self._parts(self._named(name))], None)
            numbers = pa.array([bucket(tag, BUCKETS) for tag in rows["tag"].to_pylist()], pa.int32())
            for number in range(BUCKETS):
                mine = rows.filter(pc.equal(numbers, number))
                if mine.num_rows:
                    self._merge(number, mine)
            crash.point("keys.compacting")
            for name in names:
                shutil.rmtree(self._named(name))
            durable.sync_folder(self.root / "new")
        return len(names)

    def rewrap(self) -> int:
        """After a rotation: every key under the current key-encryption key, so that the older ones can be destroyed.

        Nobody writes meanwhile: what lies in tmp was left by somebody who was killed. Killed itself, it is done again; a file that
        is under the current key already stays as it is. Returns how many rows there are.
        """
        counted = 0
        with self._alone():
            for left in (self.root / "tmp").iterdir():
                shutil.rmtree(left)
            for path in self._runs() + self._batches():
                rows = pq.read_table(path)
                triples = list(zip(*(rows[name].to_pylist() for name in SCHEMA.names), strict=True))
                keys = [wrap(self._keks[0], t, k, unwrap(self._keks, t, k, w)) for t, k, w in triples]
                if keys != [wrapped for _, _, wrapped in triples]:
                    _replace(path, rows.set_column(2, "key", pa.array(keys, pa.binary())))
                crash.point("keys.rewrapping")
                counted += rows.num_rows
        return counted

    def _merge(self, number: int, rows: pa.Table) -> None:
        """Write one run of new rows and of older runs that are not much larger: few runs, and no row is rewritten often."""
        folder = self.root / "bucket" / f"{number:02d}"
        durable.make_folder(folder, 0o700)
        merged = []
        for path in sorted(folder.iterdir(), key=lambda p: p.stat().st_size):
            if pq.read_metadata(path).num_rows <= 4 * rows.num_rows:
                rows = pa.concat_tables([rows, pq.read_table(path, schema=FILED)])
                merged.append(path)
        # A crash between the two steps of an earlier compaction leaves rows in both places; here they meet and become one.
        rows = rows.group_by(FILED.names).aggregate([]).sort_by([("tag", "ascending"), ("file", "ascending")])
        run = folder / f"{durable.unique()}.parquet"
        _replace(run, rows)
        for path in merged:
            path.unlink()
        durable.sync_folder(folder)

    def _read(self, paths: Sequence[Path], only: ds.Expression | None) -> pa.Table:
        """Rows with the name of their batch: compacted files hold it as a column, a batch's own files are in a folder so named."""
        runs = [str(path) for path in paths if path.parent.parent.name == "bucket"]
        batches = [str(path) for path in paths if path.parent.parent.name == "new"]
        filed = ds.dataset(runs, schema=FILED, format="parquet").to_table(filter=only) if runs else FILED.empty_table()
        if not batches:
            return filed
        # A batch's files have no `file` column; a filter on it is only ever asked of the buckets.
        new = ds.dataset(batches, schema=SCHEMA, format="parquet").to_table([*SCHEMA.names, "__filename"], filter=only)
        names = pa.array([path.split("/")[-2] for path in new["__filename"].to_pylist()], pa.string())
        return pa.concat_tables([filed, new.drop_columns("__filename").append_column("file", names)])

    def _about(self, tags: Collection[bytes]) -> pa.Table:
        """Rows of these people. A person has a row per batch that spoke of them, so the row groups of a run are skipped by tag."""
        batches = self._batches()  # before the runs: see _holding
        only = ds.field("tag").isin(pa.array(sorted(tags), pa.binary()))
        runs = [str(p) for n in sorted({bucket(tag, BUCKETS) for tag in tags}) for p in self._runs(n)]
        return pa.concat_tables([self._read(batches, only), holding(runs, FILED, "tag", tags).to_table(filter=only)])

    def _steadily(self, read: Callable[[], pa.Table]) -> pa.Table:
        """A file may be replaced by its compacted form between listing and opening; then the new list is the right one.

        Reading does not wait for a compaction unless it keeps getting in the way.
        """
        for _ in range(3):
            try:
                return read()
            except FileNotFoundError:
                time.sleep(0.01)
        with self._locked(fcntl.LOCK_SH):
            return read()

    def _holding(self, tags: Collection[bytes]) -> list[Path]:
        # Batches first: compaction adds to a bucket before it removes a batch, so no row is missed between the two lists.
        batches = self._batches()
        return [p for n in sorted({bucket(tag, BUCKETS) for tag in tags}) for p in self._runs(n)] + batches

    def _batches(self) -> list[Path]:
        folder = self.root / "new"
        return [part for name in sorted(folder.iterdir()) for part in self._parts(name)] if folder.is_dir() else []

    def _runs(self, number: int | None = None) -> list[Path]:
        numbers = range(BUCKETS) if number is None else [number]
        return [path for n in numbers for path in self._parts(self.root / "bucket" / f"{n:02d}")]

    def _parts(self, folder: Path) -> list[Path]:
        try:
            return sorted(path for path in folder.iterdir() if path.suffix == ".parquet" and path.name[0] not in "._")
        except FileNotFoundError:
            return []

    def _named(self, name: str) -> Path:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", name):
            raise Refused("key_file_name", f"key file name {name!r}", "letters, digits, dots, dashes and underscores")
        return self.root / "new" / name

    def _ready(self) -> None:
        for part in ("new", "bucket", "tmp"):
            durable.make_folder(self.root / part, 0o700)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time changes files that exist, so an erasure and a compaction cannot undo each other."""
        self._ready()
        with self._locked(fcntl.LOCK_EX):
            self._tidy()
            yield

    @contextmanager
    def _locked(self, mode: int) -> Iterator[None]:
        handle = os.open(self.root / ".lock", os.O_RDONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, mode)
            yield
        finally:
            os.close(handle)

    def _tidy(self) -> None:
        """What a killed writer left behind may hold keys of people who are to be forgotten."""
        for folder in [*(self.root / "new").iterdir(), *(self.root / "bucket").iterdir()]:
            for path in folder.iterdir():
                if path.suffix != ".parquet":
                    path.unlink()
        for left in (self.root / "tmp").iterdir():
            if time.time() - durable.newest(left) > ABANDONED_S:
                shutil.rmtree(left)


def _without(path: Path, tags: Collection[bytes]) -> int:
    rows = pq.read_table(path)
    kept = rows.filter(pc.invert(pc.is_in(rows["tag"], pa.array(tags, pa.binary()))))
    if kept.num_rows:
        _replace(path, kept)
    else:
        path.unlink()
        durable.sync_folder(path.parent)
    return int(rows.num_rows - kept.num_rows)


def _replace(path: Path, rows: pa.Table) -> None:
    draft = path.with_suffix(".draft")
    _write(rows, draft)
    durable.sync_file(draft)
    durable.replace(draft, path)


def _write(rows: pa.Table, path: Path) -> None:
    # Keys do not compress and are never compared; tags and names are what a reader skips by.
    statistics = [name for name in rows.column_names if name != "key"]
    dictionary = [name for name in rows.column_names if name == "file"]
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as sink:
        pq.write_table(rows, sink, write_statistics=statistics, use_dictionary=dictionary, row_group_size=4_096)


def _checked(path: Path) -> bool:
    """True when the file has rows. A row without its person or its kid stops the batch; other columns may only be empty."""
    footer = pq.read_metadata(path)
    columns = chunks(footer)
    filled = not footer.num_rows or all(
        part.statistics is not None and part.statistics.null_count == 0
        for name in ("tag", "kid")
        for part in columns.get(name, [])
    )
    others = [name for name in columns if name not in SCHEMA.names]
    if (
        not filled
        or (columns and not set(SCHEMA.names) <= set(columns))
        or not all(is_empty(columns[n]) for n in others)
    ):
        raise Damaged(
            "key_file", "other filled columns or missing values", f"{SCHEMA.names}, all filled", "Nothing was kept."
        )
    if others and footer.num_rows:
        # A batch writes all its tables in one pass, so its files have every table's columns; a key file has its own three.
        _replace(path, pq.ParquetFile(path).read(SCHEMA.names))
    return bool(footer.num_rows)


def _row_aad(tag: bytes, kid: bytes) -> bytes:
    return b"keys" + SEPARATOR + tag + kid
