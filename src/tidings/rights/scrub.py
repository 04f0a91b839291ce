"""Takes an erased person out of our own tables: what is kept by their tag goes at once, from the disk too.

    journal rows ─reduce→ what the ledger needs   last_seen, subjects, identities ─without them→ new files ─unlink→ old files
    quarantine ─opened, without them→              key files ─erase→ last, because they say where the person's rows are

It may be killed at any instant and is done again as a whole: nothing of it is decided by what an earlier try did. The caller holds
the fence (no batch is under way). What breaks the promise: a reader that opened a file before it was unlinked keeps it while it reads;
what a kill left half-written is swept within the hour; replaced files of the journal stay for VACUUM_HOURS, with no key to open them.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidings import crash
from tidings.expiry import made_at
from tidings.near import holding_batches
from tidings.parquet import AddFile, holding
from tidings.rights import dropped
from tidings.rights.mentions import Mentions, Record
from tidings.seal.keyfiles import KeyFiles
from tidings.seal.keyring import Keyring, associated, open_payload
from tidings.settings import Settings
from tidings.store import Store

TOLD = {"last_seen": ["tag"], "subjects": ["tag", "flags"], "identities": ["tag"]}  # table → what says whose a row is
STATE = tuple(TOLD)
ERASED = "erased:"  # begins the flag of the one row that stays: it says that this person is not to come back
# What the rows of an erased person keep: their place, what was decided and done, and the ledger's bytes. `change` is keyed by the tag.
REDUCED = (
    "change",
    "payload",
    "position",
    "ordering",
    "epoch",
    "correlation",
    "causation",
    "location",
    "locale",
    "routing_hint",
    "vector",
    "consent",
)
crash.POINTS["scrub.journal"] = "an erased person's journal rows are reduced, everything else of them is there"
crash.POINTS["scrub.state"] = "an erased person is out of the tables, the replaced files are still on the disk"
crash.POINTS["scrub.unlinked"] = "the replaced files are gone, the person's keys are still there"


@dataclass
class Gone:
    """How much went; never whose."""

    journal: int = 0
    state: int = 0
    keys: int = 0


def scrub(store: Store, keys: KeyFiles, tags: Collection[bytes]) -> Gone:
    """Take these people out of every table and destroy their keys; many in one go, since each file is written again once."""
    gone = Gone()
    if not tags:
        return gone
    places = keys.places(tags)
    while reduced := reduce_journal(store, places):  # again: a compaction may move rows between a look and its writing
        gone.journal += reduced
    crash.point("scrub.journal")
    for table in STATE:
        gone.state += _without(store, table, tags)
    crash.point("scrub.state")
    for table in STATE:
        store.unlink_replaced(table)
    crash.point("scrub.unlinked")
    gone.keys = keys.erase(*tags)
    return gone


def reduce_journal(store: Store, rows: Collection[tuple[str, bytes]]) -> int:
    """Blank what tells of the person in their journal rows, each known by (key file, kid); returns how many there were."""
    if not rows:
        return 0
    kids, names = pa.array(sorted({kid for _, kid in rows}), pa.binary()), {file for file, _ in rows}
    counted = 0

    def blank(found: pa.Table) -> pa.Table:
        nonlocal counted
        theirs = pc.fill_null(pc.is_in(found["kid"], kids), False)
        counted += pc.sum(theirs).as_py() or 0
        for name in REDUCED:
            at = found.schema.get_field_index(name)
            empty = pa.nulls(found.num_rows, found.schema.field(at).type)
            kept = pc.if_else(pc.invert(theirs), found[name], empty) if found.num_rows else found[name]
            found = found.set_column(at, found.schema.field(at), kept)
        return found

    near = [file for file in holding_batches(store.files("journal"), names) if _unreduced(store, file, kids)]
    store.rewritten("journal", near, blank)
    return counted


def forget_quarantined(
    store: Store, keyring: Keyring, values: Iterable[str | Record], seen: Collection[str] = ()
) -> int:
    """Take messages out of quarantine in which somebody is named; they were never tied to a person otherwise.

    Files that were `seen` to name none of them are not opened again.
    """
    wanted, gone = _told(values), 0

    def theirs(rows: pa.Table) -> list[bool]:
        return [
            bool(row["sealed"]) and _names(_body(keyring, row), wanted, row["source"] or "") for row in rows.to_pylist()
        ]

    for file in store.files("quarantine") if wanted else ():
        if file.path in seen:
            continue
        found = theirs(store.arrow("quarantine", ["source", "place", "day", "sealed"], files=[file]))
        if any(found):
            gone += sum(found)
            store.rewritten("quarantine", [file], lambda rows: rows.filter(pa.array([not one for one in theirs(rows)])))
    if gone:
        store.unlink_replaced("quarantine")
    return gone


def quarantined(store: Store, keyring: Keyring, values: Iterable[str | Record]) -> Iterator[tuple[dict[str, Any], str]]:
    """The messages that `forget_quarantined` would take out, opened."""
    wanted = _told(values)
    for file in store.files("quarantine") if wanted else ():
        for row in store.arrow("quarantine", ["place", "day", "source", "arrived", "sealed"], files=[file]).to_pylist():
            body = _body(keyring, row) if row["sealed"] else b""
            if _names(body, wanted, row["source"] or ""):
                yield row, body.decode(errors="replace")


def dropped_lines(settings: Settings, values: Iterable[str | Record]) -> Iterator[tuple[str, datetime, str, str]]:
    """(source, when its file came, place, line) of what `blank_lines` would empty."""
    wanted = _told(values)
    for name, path in dropped.lying(settings) if wanted else ():
        for number, line in dropped.lines(path):
            if _names(line, wanted, name):
                made = made_at(path) or datetime.now(UTC)
                yield name, made, f"{name}/{path.name}:{number}", line.rstrip(b"\n").decode(errors="replace")


def blank_lines(settings: Settings, values: Iterable[str | Record], seen: Collection[str] | None = None) -> int:
    """Empty the lines of dropped files in which somebody is named; line numbers stay what they are.

    First what nobody moves, while batches go on; then, behind the fence, what was not `seen` by then.
    """
    wanted, gone = _told(values), 0
    for name, path in dropped.lying(settings, still=seen is None) if wanted else ():
        if str(path) not in (seen or ()):
            gone += dropped.blanked(path, partial(_names, wanted=wanted, source=name))
    return gone


def _unreduced(store: Store, file: AddFile, kids: pa.Array) -> bool:
    """Is there a row of theirs that still has what it loses? A second try writes nothing again."""
    full = ds.field("change").is_valid() | ds.field("payload").is_valid()
    look = ds.field("kid").isin(kids)
    if not store.arrow("journal", ["kid"], files=[file], filter=look).num_rows:
        return False
    return bool(store.arrow("journal", ["kid"], files=[file], filter=look & full).num_rows)


def _of(tags: Collection[bytes]) -> Callable[[pa.Table], pa.Array]:
    """Which rows are about these people; the row with the flag says only that they are not to come back."""
    known = pa.array(sorted(tags), pa.binary())

    def theirs(rows: pa.Table) -> Any:
        about = pc.fill_null(pc.is_in(rows["tag"], known), False)
        if "flags" not in rows.column_names:
            return about
        places = pc.indices_nonzero(about).to_pylist()
        flags = rows["flags"].take(pa.array(places, pa.int64())).to_pylist()
        stones = [
            place for place, said in zip(places, flags, strict=True) if any(f.startswith(ERASED) for f in said or ())
        ]
        stays = pc.is_in(pa.array(range(rows.num_rows), pa.int64()), pa.array(stones, pa.int64()))
        return pc.and_(about, pc.invert(stays)) if stones else about

    return theirs


def _without(store: Store, table: str, tags: Collection[bytes]) -> int:
    """Write the files that hold rows about these people again without them; returns how many rows there were."""
    theirs, schema, gone = _of(tags), store.arrow(table, files=[]).schema, 0

    def held(file: AddFile) -> int:
        if next(iter(holding([file.path], schema, "tag", tags).get_fragments()), None) is None:
            return 0
        return pc.sum(theirs(store.arrow(table, TOLD[table], files=[file]))).as_py() or 0

    # Again until there is none: a compaction may put rows into another file between the look and the writing.
    while found := [(file, count) for file in store.files(table) if (count := held(file))]:
        store.rewritten(table, [file for file, _ in found], lambda rows: rows.filter(pc.invert(theirs(rows))))
        gone += sum(count for _, count in found)
    return gone


def _told(values: Iterable[str | Record]) -> Mentions:
    """What is looked for in messages, so that each message is read once for all of it."""
    return Mentions(values)


def _names(body: bytes, wanted: Mentions, source: str = "") -> bool:
    return wanted.named_in(body, source)


def _body(keyring: Keyring, row: dict[str, Any]) -> bytes:
    key = hmac.new(keyring.derive("quarantine"), row["day"].isoformat().encode(), hashlib.sha256).digest()
    return open_payload(key, associated("quarantine", row["place"], "body"), row["sealed"])
