"""MySQL's and MariaDB's binary log as a source: read by place on one server, by GTID when another server takes over.

    log ─steps→ walk ─rows→ messages ─Spark→ journal

The server keeps nothing for us: the place is the stream's checkpoint, and the first one a file beside it. A row's order is (log file,
position of its transaction, number in it). What breaks the guarantee: a log that is purged before it is read; the source stops then and
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
from tidings.sources.binlog import Group, Gtids, Step, Walk, changes_as_text, number, opened, ours, truncated
from tidings.sources.myready import INSTALL, problems
from tidings.sources.myrows import Teller
from tidings.sources.myserver import Server, Status, gtid_at, identity, mariadb, status
from tidings.sources.tap import Offset, Taken, Tap

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.shapes import Source
    from tidings.sources.myserver import Db

MOST = 8 << 20  # bytes of log in a batch; a transaction is never divided, so one may be larger
QUIET = 256 << 10  # bytes of other tables' changes that are passed before they are worth a batch of their own


@dataclass(frozen=True)
class Capture(Tap):
    """Tables in one server's log. `kept` is where the place is written down at which the source began."""

    server: Server
    tables: tuple[str, ...]
    kept: Path
    looked: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)  # the last look that found nothing

    @property
    def source(self) -> str:
        return self.server.source

    def verify(self) -> str:
        with self.server.connected() as connection:
            for found, expected, what_now in problems(connection, self.tables):
                raise SourceStopped("source_not_ready", f"source {self.source}: {found}", expected, what_now)
            now = self._end_of(connection)
            self._made(now, mariadb(connection))  # reading is a right of its own
            return identity(connection)

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
                now, name = self._end_of(connection), identity(connection)
                made = self._made(now, mariadb(connection))
                here = {"server": name, "origin": f"{name}-{made}", "file": now.file, "pos": now.pos, "made": made}
                gtid = gtid_at(connection, now)
            durable_write(self.kept, json.dumps({**here, "gtid": gtid, "prepared": {}, "undone": [], "bytes": 0}))
        return dict(json.loads(self.kept.read_text()))

    def _end_of(self, connection: Db) -> Status:
        now = status(connection)
        if now is None:
            raise self.server.unreadable("is not written", "log_bin")
        return now

    def _made(self, at: Status, maria: bool) -> int:
        """When the file that is written now was made."""
        walk = Walk(self.server, at.file, at.pos, 0, Gtids("", maria))
        with opened(self.server, walk, self.tables) as steps:
            return next((step.seconds for step in steps if step.kind == "format"), 0)

    def latest(self, start: Offset) -> Offset:
        """The end of the last transaction within reach."""
        with self.server.connected() as connection:
            now, name, maria = self._end_of(connection), identity(connection), mariadb(connection)
        known = [start, name, now.file, now.pos]
        if self.looked.get("known") == known or (name == start["server"] and _same(start, now)):
            return start
        if name == start["server"] and (number(now.file), now.pos) < (number(start["file"]), start["pos"]):
            raise self.server.went_back("the log ends before the place that was read last")
        end, mine = self._scan(start, name, maria, lambda walk, passed: passed >= MOST)
        if not mine and end["bytes"] < QUIET and end["file"] == start["file"]:
            self.looked["known"] = known
            return start
        return end

    def _scan(
        self, start: Offset, name: str, maria: bool, enough: Callable[[Walk, int], bool]
    ) -> tuple[Offset, bool]:
        """How far it goes from `start` on this server, and whether anything on the way is ours."""
        walk, by_gtid = self._walk(start, maria), start["server"] != name
        end, passed, mine = start, 0, by_gtid
        with opened(self.server, walk, self.tables, by_gtid=by_gtid) as steps:
            for step in steps:
                ended = walk.take(step)
                walk.settled(step)
                mine = mine or ours(step, self.tables)
                passed += step.pos - ended.head if ended else 0
                if walk.group is None and step.kind != "file":
                    end = self._offset(walk, name, start["origin"] if not by_gtid else f"{name}-{walk.made}", passed)
                if ended and enough(walk, passed):
                    break
        return end, mine

    def _walk(self, start: Offset, maria: bool) -> Walk:
        gtids, prepared = Gtids(start["gtid"], maria), dict(start["prepared"])
        return Walk(self.server, start["file"], start["pos"], start["made"], gtids, prepared)

    def _offset(self, walk: Walk, name: str, origin: str, passed: int) -> Offset:
        place = {"server": name, "origin": origin, "file": walk.file, "pos": walk.pos, "made": walk.made}
        return {**place, "gtid": walk.gtids.text, "prepared": dict(walk.prepared), "undone": [*walk.undone], "bytes": passed}

    def read(self, start: Offset, end: Offset) -> Iterator[Taken]:
        with self.server.connected() as connection:
            name, maria = identity(connection), mariadb(connection)
        if name != end["server"]:  # another server took over after the batch was planned
            end, _ = self._scan(start, name, maria, lambda walk, _: walk.gtids.covers(end["gtid"]))
        walk, by_gtid = self._walk(start, maria), start["server"] != name
        if not by_gtid and walk.reached(end["file"], end["pos"]):
            return
        teller, undone = Teller(self.source, end["origin"]), frozenset(end["undone"])
        with opened(self.server, walk, self.tables, by_gtid=by_gtid) as steps:
            for step in steps:
                group = walk.take(step) or walk.group
                teller.at = 0 if step.kind == "begin" else teller.at
                if group is not None and group.place not in undone:
                    yield from self._told(teller, walk, group, step)
                if walk.reached(end["file"], end["pos"]):
                    return
        raise self.server.went_back("the log ends before the place it had reached")

    def _told(self, teller: Teller, walk: Walk, group: Group, step: Step) -> Iterator[Taken]:
        if step.kind == "rows" and step.text:
            yield from (message for message, _ in teller.rows(group, step.event))
        elif step.kind != "query":
            return
        elif (table := truncated(step)) in self.tables:
            yield teller.statement(group, table, "truncate")
        elif place := walk.settled(step):
            yield from self._prepared(teller, group, place, walk.gtids.mariadb)
        elif table := changes_as_text(step, self.tables):
            yield teller.statement(group, table, "statement")

    def _prepared(self, teller: Teller, group: Group, place: list[Any], maria: bool) -> Iterator[Taken]:
        """The rows of a transaction that was prepared further back, told where it is committed."""
        walk = Walk(self.server, *place, Gtids("", maria))
        with opened(self.server, walk, self.tables) as steps:
            for step in steps:
                if step.kind == "rows" and step.text:
                    yield from (message for message, _ in teller.rows(group, step.event))
                if walk.take(step):
                    return

    def done(self, end: Offset) -> None:
        """Nothing: the server forgets its log when its own settings say so."""

    def size(self, start: Offset, end: Offset) -> int:
        return int(end["bytes"])


def _same(start: Offset, now: Status) -> bool:
    return (start["file"], start["pos"]) == (now.file, now.pos)


def tap(settings: Settings, source: Source) -> Capture:
    """The capture a source declares."""
    assert source.connection is not None, "checked with the folder"
    server = Server(source.name, settings.secret(source.connection).reveal())
    kept = Generations(settings.data_path, source.name).checkpoint / "first.json"
    return Capture(server, tuple(sorted(source.entities)), kept)


