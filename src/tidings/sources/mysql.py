"""MySQL's and MariaDB's binary log as a source: read by place on one server, by GTID when another server takes over.

    log ─steps→ walk ─rows→ messages ─Spark→ journal

The server keeps nothing for us: the place is the stream's checkpoint, and the first one a file beside it. A row's order is (log file,
position of its transaction, number in it). Rows that were there before come in pieces beside the log (mysnapshot.py). What breaks the guarantee: a log that is purged before it is read; the source stops then and
says so. What it cannot see: rows that vanish with DROP TABLE or with a partition.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidings.durable import durable_write
from tidings.errors import SourceStopped
from tidings.progress import Generations
from tidings.seal.keyring import open_payload, seal_payload
from tidings.sources.binlog import Group, Step, Walk, changes_as_text, number, opened, ours, truncated
from tidings.sources.gtids import Gtids
from tidings.sources.myready import INSTALL, problems
from tidings.sources.myrows import Teller
from tidings.sources.myserver import Here, Server, Status, gtid_at, here, status
from tidings.sources.myserver import rows as fetched
from tidings.sources.mysnapshot import PIECE, Aside, Beside, Key, beside, next_piece, packed, piece_of, unpacked
from tidings.sources.tap import Offset, Taken, Tap

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.shapes import Source
    from tidings.sources.myserver import Db

MOST = 8 << 20  # bytes of log in a batch; a transaction is never divided, so one may be larger
BESIDE = 1_000_000_000  # rows that stand beside the log come after all of its rows at their position
ABOUT = 500  # bytes of a row, to guess a batch by
_AAD = b"tidings/offset"
QUIET = 256 << 10  # bytes of other tables' changes that are passed before they are worth a batch of their own


@dataclass(frozen=True)
class Capture(Tap):
    """Tables in one server's log. `kept` is where the place is written down at which the source began."""

    server: Server
    tables: tuple[str, ...]
    kept: Path
    # Of the keys in offsets; without it only the log is read.
    seal: tuple[bytes, bytes] | None = field(default=None, repr=False)
    looked: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)  # the last look that found nothing

    @property
    def source(self) -> str:
        return self.server.source

    def verify(self) -> str:
        with self.server.connected() as connection:
            for found, expected, what_now in problems(connection, self.tables):
                raise SourceStopped("source_not_ready", f"source {self.source}: {found}", expected, what_now)
            self._made(self._end_of(connection))  # reading is a right of its own
            return here(connection).name

    def verified(self) -> Capture:
        self.verify()
        self.first()  # by one process, before there are others
        return self

    def statements(self) -> list[tuple[str, str]]:
        return [(INSTALL, "")]

    def execute(self, statements: Sequence[str]) -> None:
        self.server.execute(statements)

    def first(self) -> Offset:
        """The log's end when the source was first started: written down, because the server would say another one each time."""
        if not self.kept.exists():
            with self.server.connected() as connection:
                now, name = self._end_of(connection), here(connection).name
                made = self._made(now)
                first: Offset = {
                    "server": name,
                    "origin": f"{name}-{made}",
                    "file": now.file,
                    "pos": now.pos,
                    "made": made,
                }
                gtid = gtid_at(connection, now)
            first |= {"gtid": gtid, "prepared": {}, "undone": [], "seconds": 0, "bytes": 0}
            durable_write(self.kept, json.dumps(first))
        return dict(json.loads(self.kept.read_text()))

    def _end_of(self, connection: Db) -> Status:
        now = status(connection)
        if now is None:
            raise self.server.unreadable("is not written", "log_bin")
        return now

    def _made(self, at: Status) -> int:
        """When the file that is written now was made."""
        walk = Walk(self.server, at.file, at.pos, 0, Gtids("", True))
        with opened(self.server, walk, self.tables) as steps:
            return next((step.seconds for step in steps if step.kind == "format"), 0)

    def latest(self, start: Offset) -> Offset:
        """The end of the last transaction within reach, and the next piece of a table that is not read yet."""
        with self.server.connected() as connection:
            end = self._reach(start, self._end_of(connection), here(connection))
            return end | self._next_piece(connection, start, end) if self.seal else end

    def _reach(self, start: Offset, now: Status, who: Here) -> Offset:
        known = [start["server"], start["file"], start["pos"], who.name, now.file, now.pos]
        if self.looked.get("known") == known or (who.name == start["server"] and _same(start, now)):
            return start
        if who.name == start["server"] and (number(now.file), now.pos) < (number(start["file"]), start["pos"]):
            raise self.server.went_back("the log ends before the place that was read last")
        end, mine = self._scan(start, who, lambda walk, passed: passed >= MOST)
        if not mine and end["bytes"] < QUIET and end["file"] == start["file"]:
            self.looked["known"] = known
            return start
        return end

    def _next_piece(self, connection: Db, start: Offset, end: Offset) -> Offset:
        tables = sorted({*start.get("tables", []), *self.tables})
        left: dict[str, str] = dict(start.get("left", {}))
        left |= dict.fromkeys((name for name in tables if name not in start.get("tables", [])), "")
        told = start.get("rows", 0)
        if not left:
            return {"tables": tables, "rows": told, "left": {}}
        table, after = next(iter(left.items()))
        del left[table]
        piece = next_piece(connection, self.source, table, self._opened(after))
        if piece is None:
            return {"tables": tables, "rows": told, "left": left}
        seconds = max(end["seconds"], int(fetched(connection, "SELECT UNIX_TIMESTAMP()")[0][0]))
        left = {table: self._sealed(piece.upto), **left}
        return {"tables": tables, "rows": told + PIECE, "left": left, "seconds": seconds}

    def _sealed(self, key: Key) -> str:
        """A key may be an address; the stream's checkpoint holds none in clear."""
        assert self.seal is not None
        return seal_payload(packed(key).encode(), *self.seal, _AAD).hex()

    def _opened(self, sealed: str) -> Key:
        assert self.seal is not None
        return unpacked(open_payload(self.seal[0], _AAD, bytes.fromhex(sealed)).decode()) if sealed else ()

    def _beside(self, connection: Db, start: Offset, end: Offset) -> Beside | None:
        """The rows of the piece between two offsets, if there is one."""
        for table, upto in end.get("left", {}).items():
            if (after := start.get("left", {}).get(table, "")) != upto:
                return beside(connection, piece_of(connection, table, self._opened(after), self._opened(upto)))
        return None

    def _scan(self, start: Offset, who: Here, enough: Callable[[Walk, int], bool]) -> tuple[Offset, bool]:
        """How far it goes from `start` on this server, and whether anything on the way is ours."""
        walk, by_gtid = self._walk(start, who), start["server"] != who.name
        end, passed, mine = start, 0, by_gtid
        with opened(self.server, walk, self.tables, by_gtid=by_gtid) as steps:
            for step in steps:
                ended = walk.take(step)
                walk.settled(step)
                mine = mine or ours(step, self.tables)
                passed += step.pos - ended.head if ended else 0
                if walk.group is None and step.kind != "file":
                    end = self._offset(walk, who, f"{who.name}-{walk.made}" if by_gtid else start["origin"], passed)
                if ended and enough(walk, passed):
                    break
        return end, mine

    def _walk(self, start: Offset, who: Here) -> Walk:
        gtids, prepared = Gtids(start["gtid"], who.mariadb), dict(start["prepared"])
        return Walk(self.server, start["file"], start["pos"], start["made"], gtids, prepared, seconds=start["seconds"])

    def _offset(self, walk: Walk, who: Here, origin: str, passed: int) -> Offset:
        place = {"server": who.name, "origin": origin, "file": walk.file, "pos": walk.pos, "made": walk.made}
        place |= {"gtid": walk.gtids.text, "prepared": dict(walk.prepared), "undone": [*walk.undone]}
        return {**place, "seconds": walk.seconds, "bytes": passed}

    def read(self, start: Offset, end: Offset) -> Iterator[Taken]:
        with self.server.connected() as connection:
            who = here(connection)
            rows = self._beside(connection, start, end)
            upto = self._end_of(connection) if rows else None  # everything the rows' query saw is in the log by now
        if who.name != end["server"]:  # another server took over after the batch was planned
            end = end | self._scan(start, who, lambda walk, _: walk.gtids.covers(end["gtid"]))[0]
        teller = Teller(end["origin"])
        yield from self._log(teller, start, end, who, Aside(rows, upto))
        if rows is not None and not rows.emptied:
            end_of_batch = Group(end["file"], end["pos"], end["pos"], "", end["seconds"])
            for at, row in enumerate(rows.rows.values(), BESIDE + start.get("rows", 0)):
                yield teller.standing(end_of_batch, rows.piece.table, at, rows.piece.key, row)

    def _log(self, teller: Teller, start: Offset, end: Offset, who: Here, aside: Aside) -> Iterator[Taken]:
        """What the log tells up to `end`; beyond it the rows beside are still held against it."""
        walk, by_gtid, undone = self._walk(start, who), start["server"] != who.name, frozenset(end["undone"])
        beyond = not by_gtid and walk.reached(end["file"], end["pos"])
        if beyond and aside.over(walk):
            return
        with opened(self.server, walk, self.tables, by_gtid=by_gtid) as steps:
            for step in steps:
                ended = walk.take(step)
                teller.at = 0 if step.kind == "begin" else teller.at
                group = ended or walk.group
                if group is not None and group.place not in undone:
                    messages = self._told(teller, walk, group, step, aside)
                    yield from (message for message in messages if not beyond)
                if ended is not None:
                    aside.settle(ended.place not in walk.undone)
                beyond = beyond or walk.reached(end["file"], end["pos"])
                if beyond and aside.over(walk):
                    return
        if not beyond:
            raise self.server.went_back("the log ends before the place it had reached")

    def _told(self, teller: Teller, walk: Walk, group: Group, step: Step, aside: Aside) -> Iterator[Taken]:
        if step.kind == "rows" and step.text:
            yield from self._rows(teller, group, step, aside)
        elif step.kind != "query":
            return
        elif (table := truncated(step)) in self.tables:
            aside.empty(table)
            yield teller.statement(group, table, "truncate")
        elif place := walk.settled(step):
            yield from self._prepared(teller, group, place, walk.gtids.mariadb, aside)
        elif table := changes_as_text(step, self.tables):
            yield teller.statement(group, table, "statement")

    def _rows(self, teller: Teller, group: Group, step: Step, aside: Aside) -> Iterator[Taken]:
        for message, images in teller.rows(group, step.event):
            aside.hear(step.text, images)
            yield message

    def _prepared(self, teller: Teller, group: Group, place: list[Any], maria: bool, aside: Aside) -> Iterator[Taken]:
        """The rows of a transaction that was prepared further back, told where it is committed."""
        file, pos, made = place
        walk = Walk(self.server, file, pos, made, Gtids("", maria))
        with opened(self.server, walk, self.tables) as steps:
            for step in steps:
                if step.kind == "rows" and step.text:
                    yield from self._rows(teller, group, step, aside)
                if walk.take(step):
                    return

    def done(self, end: Offset) -> None:
        """Nothing: the server forgets its log when its own settings say so."""

    def size(self, start: Offset, end: Offset) -> int:
        logged = 0 if (end["file"], end["pos"]) == (start["file"], start["pos"]) else int(end["bytes"])
        return logged + max(int(end.get("rows", 0)) - int(start.get("rows", 0)), 0) * ABOUT


def _same(start: Offset, now: Status) -> bool:
    return (start["file"], start["pos"]) == (now.file, now.pos)


def tap(settings: Settings, source: Source) -> Capture:
    """The capture a source declares."""
    assert source.connection is not None, "checked with the folder"
    server = Server(source.name, settings.secret(source.connection).reveal())
    kept = Generations(settings.data_path, source.name).checkpoint / "first.json"
    keys = (settings.keyring.derive("offset"), settings.keyring.derive("iv"))
    return Capture(server, tuple(sorted(source.entities)), kept, keys if source.snapshot != "none" else None)
