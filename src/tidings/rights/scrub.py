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
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidings import crash, durable
from tidings.expiry import archived, made_at
from tidings.parquet import AddFile, holding
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
    gone.journal = reduce_journal(store, keys.places(tags))
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
    batches = {(place[1], place[2], int(place[3])) for name in names if (place := _PLACE.match(name))}
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

    near = [file for file in store.files("journal") if any(_may_hold(file, *batch) for batch in batches)]
    holding = [file for file in near if _unreduced(store, file, kids)]
    store.rewritten("journal", holding, blank)
    return counted


def forget_quarantined(store: Store, keyring: Keyring, values: Iterable[str]) -> int:
    """Take messages out of quarantine in which one of these identifiers stands; they were never tied to a person otherwise."""
    wanted, gone = _told(values), 0

    def theirs(rows: pa.Table) -> list[bool]:
        return [bool(row["sealed"]) and _names(_body(keyring, row), wanted) for row in rows.to_pylist()]

    for file in store.files("quarantine") if wanted else ():
        found = theirs(store.arrow("quarantine", ["place", "day", "sealed"], files=[file]))
        if any(found):
            gone += sum(found)
            store.rewritten("quarantine", [file], lambda rows: rows.filter(pa.array([not one for one in theirs(rows)])))
    if gone:
        store.unlink_replaced("quarantine")
    return gone


def quarantined(store: Store, keyring: Keyring, values: Iterable[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """The messages that `forget_quarantined` would take out, opened."""
    wanted = _told(values)
    for file in store.files("quarantine") if wanted else ():
        for row in store.arrow("quarantine", ["place", "day", "source", "arrived", "sealed"], files=[file]).to_pylist():
            body = _body(keyring, row) if row["sealed"] else b""
            if _names(body, wanted):
                yield row, body.decode(errors="replace")


def archived_lines(settings: Settings, values: Iterable[str]) -> Iterator[tuple[str, datetime, str, str]]:
    """(source, when its file came, place, line) of what `blank_lines` would empty."""
    wanted = _told(values)
    sources = [name for name, source in settings.sources.items() if source.kind == "files"] if wanted else []
    for name in sources:
        for path in archived(settings, name):
            for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
                if _names(line, wanted):
                    made = made_at(path) or datetime.now(UTC)
                    yield name, made, f"{name}/{path.name}:{number}", line.decode(errors="replace")


def blank_lines(settings: Settings, values: Iterable[str]) -> int:
    """Empty the lines of archived drop files in which one of these identifiers stands; line numbers stay what they are."""
    wanted, gone = _told(values), 0
    sources = [name for name, source in settings.sources.items() if source.kind == "files"] if wanted else []
    for path in (path for name in sources for path in archived(settings, name)):
        lines = path.read_bytes().split(b"\n")
        kept = [b"" if _names(line, wanted) else line for line in lines]
        if changed := sum(a != b for a, b in zip(lines, kept, strict=True)):
            draft = path.with_name(f".{path.name}.new")
            draft.write_bytes(b"\n".join(kept))
            durable.sync_file(draft)
            durable.replace(draft, path)
            gone += changed
    return gone


_PLACE = re.compile(r"(.+)-(g[0-9a-z]+)-([0-9]+)-[0-9a-f]+$")


def _may_hold(file: AddFile, source: str, generation: str, batch: int) -> bool:
    wanted = {"source": source, "generation": generation, "batch": batch}
    return all(file.minimum.get(name, one) <= one <= file.maximum.get(name, one) for name, one in wanted.items())


def _unreduced(store: Store, file: AddFile, kids: pa.Array) -> bool:
    """Is there a row of theirs that still has what it loses? A second try writes nothing again."""
    rows = store.arrow("journal", ["kid", "change", "payload"], files=[file])
    full = pc.or_(pc.is_valid(rows["change"]), pc.is_valid(rows["payload"]))
    return bool(pc.any(pc.and_(full, pc.fill_null(pc.is_in(rows["kid"], kids), False))).as_py())


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
    for file in store.files(table):
        if next(iter(holding([file.path], schema, "tag", tags).get_fragments()), None) is None:
            continue
        count = pc.sum(theirs(store.arrow(table, TOLD[table], files=[file]))).as_py() or 0
        if count:
            store.rewritten(table, [file], lambda rows: rows.filter(pc.invert(theirs(rows))))
            gone += count
    return gone


def _told(values: Iterable[str]) -> list[bytes]:
    """Identifiers as they are looked for in a message: small letters, and a number by its digits."""
    said = [value.strip().lower() for value in values]
    return [
        re.sub(r"[^0-9]", "", one).encode() if one.startswith("+") else one.encode() for one in said if len(one) > 4
    ]


def _names(body: bytes, wanted: list[bytes]) -> bool:
    small = body.lower()
    digits = re.sub(rb"[ ().-]", b"", small) if any(one.isdigit() for one in wanted) else b""
    return any(one in (digits if one.isdigit() else small) for one in wanted)


def _body(keyring: Keyring, row: dict[str, Any]) -> bytes:
    key = hmac.new(keyring.derive("quarantine"), row["day"].isoformat().encode(), hashlib.sha256).digest()
    return open_payload(key, associated("quarantine", row["place"], "body"), row["sealed"])
