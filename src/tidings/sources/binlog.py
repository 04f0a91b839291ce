"""A server's binary log as steps, and the walk that knows where transactions begin, end, and were never made true.

Places are (file, position) on one server and GTIDs across servers; both are kept. A transaction's place is the position after its GTID, a
row's is its number inside it. Rows that never became true are left out by their transaction's place: a rollback, a transaction that a
crash cut off, and a prepared one, whose rows count where it is committed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tidings.sources.gtids import Gtids
from tidings.sources.myserver import Server, client

# Events whose rows we could not see: what the log does, and what would be right. Their place must not be passed in silence.
REFUSED = {
    0x1A: ("says that the server lost changes", "a log without an incident"),
    0x22: ("holds transactions without GTID", "gtid_mode = ON"),
    0x27: ("holds parts of JSON values", "binlog_row_value_options empty"),
    0x28: ("is compressed", "binlog_transaction_compression = OFF"),
    0x2A: ("holds tagged GTIDs", "GTIDs without tags"),
    **dict.fromkeys(range(0xA5, 0xAC), ("is compressed", "log_bin_compress = OFF")),
}
CLOCK_SET_BACK_S = 3600
BYTES = (
    "iso8859-1"  # one character per byte: text is decoded by us, so that bytes that are no text do not end the reading
)
_XA = re.compile(r"(?is)\s*xa\s+(\w+)\s+(.*?)\s*$")
_TRUNCATE = re.compile(
    r"(?is)\s*(?:/\*.*?\*/\s*)*truncate\s+(?:table\s+)?(?:(`(?:[^`]|``)+`|[^\s`.;]+)\s*\.\s*)?(`(?:[^`]|``)+`|[^\s`.;]+)"
)


class Step(NamedTuple):
    """One event as far as the walk needs it. `pos` is where the next event begins; `event` is the library's, for rows alone."""

    kind: str  # file, format, begin, query, table, rows, commit, prepare, other
    pos: int
    text: str = ""
    seconds: int = 0
    alone: bool = False  # a begin whose transaction is a single statement
    event: Any = None


@dataclass(frozen=True)
class Group:
    """A transaction: where it began (and `head`, where its GTID begins), its GTID and time."""

    file: str
    head: int
    pos: int
    gtid: str
    seconds: int
    alone: bool = False

    @property
    def place(self) -> str:
        return f"{number(self.file)}:{self.pos}"


@dataclass
class Walk:
    """Where a reader is. Between transactions `file`, `pos`, `made` and `gtids` are a place one can start from again."""

    server: Server
    file: str
    pos: int
    made: int  # when the file was made: a log that was reset uses the same names again
    gtids: Gtids
    prepared: dict[str, list[Any]] = field(default_factory=dict)  # XA id → file and position of its rows
    undone: list[str] = field(default_factory=list)
    seconds: int = 0  # the latest time told
    group: Group | None = None

    def take(self, step: Step) -> Group | None:
        """The transaction that ends with this step."""
        if step.kind == "file":
            self._torn()
            self.file, self.pos = step.text, step.pos
        elif step.kind == "format":
            self._torn()
            self.made = step.seconds
        elif step.kind == "begin":
            self._begin(step)
        elif self.group is None:
            self.pos = max(self.pos, step.pos)
        elif self._ends(step):
            return self._end(step)
        return None

    def _begin(self, step: Step) -> None:
        self._torn()
        if self.gtids.known(step.text):
            raise self.server.went_back("the log tells a transaction that was read before")
        # The log tells when a statement began; what is true later is not older. A clock that was set back is believed.
        behind = self.seconds - step.seconds
        self.seconds = self.seconds if 0 < behind < CLOCK_SET_BACK_S else step.seconds
        self.group = Group(self.file, self.pos, step.pos, step.text, self.seconds, step.alone)

    def _ends(self, step: Step) -> bool:
        assert self.group is not None
        if step.kind in ("commit", "prepare"):
            return True
        if step.kind != "query":
            return False
        words = step.text.upper().replace(";", " ").split()[:2]
        if words[:1] in (["BEGIN"], ["SAVEPOINT"]) or words in (["XA", "START"], ["XA", "BEGIN"], ["XA", "END"]):
            self.group = replace(self.group, alone=False)
            return False
        return self.group.alone or words[:1] in (["COMMIT"], ["XA"]) or words == ["ROLLBACK"]

    def _end(self, step: Step) -> Group:
        group, self.group = self.group, None
        assert group is not None
        if step.kind == "prepare":
            self.prepared[step.text] = [group.file, group.head, self.made]
            self.undone.append(group.place)
        elif step.kind == "query" and step.text.strip().upper() == "ROLLBACK":
            self.undone.append(group.place)
        self.gtids.add(group.gtid)
        self.pos = step.pos
        return group

    def _torn(self) -> None:
        """A transaction that another file or transaction follows was cut off by a crash, and the server took it back."""
        if self.group is not None:
            self.undone.append(self.group.place)
            self.group = None

    def settled(self, step: Step) -> list[Any] | None:
        """Where the rows of a prepared transaction are that this step commits; it is forgotten, as it is when rolled back."""
        if step.kind != "query" or not (xa := _XA.match(step.text)) or xa[1].upper() not in ("COMMIT", "ROLLBACK"):
            return None
        found = self.prepared.pop(re.sub(r"(?i)\s+one\s+phase$|\s", "", xa[2]), None)
        return found if xa[1].upper() == "COMMIT" else None

    def reached(self, file: str, pos: int) -> bool:
        return self.group is None and (number(self.file), self.pos) >= (number(file), pos)


@contextmanager
def opened(server: Server, walk: Walk, tables: Sequence[str], *, by_gtid: bool = False) -> Iterator[Iterator[Step]]:
    """The log from where the walk is to its end now. Another server is asked by GTID, the same one by place."""
    from pymysqlreplication import BinLogStreamReader

    place = {"log_file": walk.file, "log_pos": walk.pos, "resume_stream": True}
    if by_gtid:
        place = {"auto_position": walk.gtids.text, "is_mariadb": walk.gtids.mariadb}
    with server.minded():
        stream = BinLogStreamReader(
            server.arguments(),
            random.randrange(1 << 31, (1 << 32) - 1),  # a number of its own: servers end the older of two readers
            only_schemas=sorted({table.split(".", 1)[0] for table in tables}),
            only_tables=sorted({table.split(".", 1)[1] for table in tables}),
            filter_non_implemented_events=False,
            enable_logging=False,
            pymysql_wrapper=_twice(),
            only_events=_wanted(),
            **place,
        )
        try:
            yield _steps(server, stream, walk, frozenset(tables), by_gtid)
        finally:
            stream.close()


def _twice() -> Callable[..., Any]:
    """The library connects again by itself, at the start of what it was asked for: rows would come twice. Two connections are all it needs."""
    pymysql, left = client(), [None, None]

    def connect(**arguments: Any) -> Any:
        if not left:
            raise pymysql.err.OperationalError(2013, "lost")
        left.pop()
        arguments["database"] = arguments.pop("db", None)  # the library says it the old way
        return pymysql.connect(**arguments)

    return connect


def _wanted() -> list[type]:
    from pymysqlreplication import event, row_event

    return [
        event.RotateEvent, event.FormatDescriptionEvent, event.MariadbGtidEvent, event.GtidEvent, event.QueryEvent, event.XidEvent,
        event.XAPrepareEvent, event.NotImplementedEvent, event.MariadbGtidListEvent, event.MariadbBinLogCheckPointEvent, event.StopEvent,
        event.PreviousGtidsEvent, row_event.TableMapEvent, row_event.WriteRowsEvent, row_event.UpdateRowsEvent, row_event.DeleteRowsEvent,
        row_event.PartialUpdateRowsEvent,
    ]  # fmt: skip


def _steps(server: Server, stream: Any, walk: Walk, tables: frozenset[str], by_gtid: bool) -> Iterator[Step]:
    made = 0 if by_gtid else walk.made
    while (event := stream.fetchone()) is not None:
        kind = type(event).__name__
        if event.event_type in REFUSED:
            raise server.unreadable(*REFUSED[event.event_type])
        if kind == "FormatDescriptionEvent":
            stream.table_map.clear()  # numbers of tables start anew with a server, and those of others are not kept
            if event.checksum_algorithm != 1:
                raise server.unreadable("has no checksums", "binlog_checksum = CRC32")
            if made and event.timestamp != made:
                raise server.went_back(f"the log file {walk.file} is another one than was read")
            made = 0
        elif kind == "TableMapEvent":
            _as_bytes(server, event, tables)
        yield _step(event, kind, tables)


def _step(event: Any, kind: str, tables: frozenset[str]) -> Step:
    pos = event.packet.log_pos
    if kind == "RotateEvent":
        return Step("file", event.position, event.next_binlog)
    if kind == "FormatDescriptionEvent":
        return Step("format", pos, seconds=event.timestamp)
    if kind in ("MariadbGtidEvent", "GtidEvent"):
        return Step("begin", pos, event.gtid, event.timestamp, kind == "GtidEvent" or bool(event.flags & 1))
    if kind == "QueryEvent":
        return Step("query", pos, event.query, event.timestamp, event=event)
    if kind == "XidEvent" or (kind == "XAPrepareEvent" and event.one_phase):
        return Step("commit", pos)
    if kind == "XAPrepareEvent":
        return Step("prepare", pos, f"X'{event.xid_gtrid.hex()}',X'{event.xid_bqual.hex()}',{event.xid_format_id}")
    if kind in ("TableMapEvent", "WriteRowsEvent", "UpdateRowsEvent", "DeleteRowsEvent"):
        name = f"{event.schema}.{event.table}"
        return Step("table" if kind == "TableMapEvent" else "rows", pos, name if name in tables else "", event=event)
    return Step("other", pos)


def _as_bytes(server: Server, event: Any, tables: frozenset[str]) -> None:
    for column in event.columns:
        if f"{event.schema}.{event.table}" in tables and column.name is None:
            raise server.unreadable(
                f"does not name the columns of {event.schema}.{event.table}", "binlog_row_metadata = FULL"
            )
        column.encoding = column.character_set_name
        if column.enum_values is None and column.set_values is None and column.encoding is not None:
            column.character_set_name = BYTES


def truncated(step: Step) -> str:
    """`schema.table` when this statement empties a table."""
    if not (found := _TRUNCATE.match(step.text)):
        return ""
    schema, table = (name and name.strip("`").replace("``", "`") for name in found.groups())
    return f"{schema or step.event.schema.decode()}.{table}"


def changes_as_text(step: Step, tables: Sequence[str]) -> str:
    """The first of these tables that a statement logged as text may have changed."""
    if not re.match(r"(?is)\s*(?:/\*.*?\*/\s*)*(insert|update|delete|replace|load)\s", step.text):
        return ""
    return next((t for t in tables if re.search(rf"\b{re.escape(t.split('.', 1)[1])}\b", step.text)), "")


def number(file: str) -> int:
    """`binlog.000012` → 12: files are numbered in their order."""
    return int(file.rsplit(".", 1)[1])


def ours(step: Step, tables: Mapping[str, object] | Sequence[str]) -> bool:
    """Does this step tell something of our tables?"""
    return bool(step.kind == "table" and step.text) or (
        step.kind == "query"
        and (truncated(step) in tables or bool(_XA.match(step.text)) or bool(changes_as_text(step, tuple(tables))))
    )
