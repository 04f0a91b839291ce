"""PostgreSQL's own change stream (the pgoutput plugin, protocol 1), decoded to messages of the dialect `postgresql_wal`.

Pure: bytes in, messages out. A transaction's place is the position of its commit, a row's is its number inside it, so the order of
messages is the order in which the server made them true.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

EPOCH_MICROS = 946_684_800_000_000  # PostgreSQL counts from 2000-01-01
_WHOLE, _REAL, _JSON, _TRUTH = {20, 21, 23, 26}, {700, 701, 1700}, {114, 3802}, 16
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
Image = dict[str, object] | None
_UNCHANGED = object()  # a large value that the update did not touch: absent, not null


@dataclass(frozen=True)
class Table:
    """A table as the stream described it; `key` are the columns of its replica identity."""

    schema: str
    name: str
    whole_row: bool
    columns: tuple[tuple[str, int], ...]
    key: frozenset[str]


@dataclass(frozen=True)
class Message:
    """One row's change, or one truncated table, as JSON."""

    commit_lsn: int
    at: int
    micros: int
    body: str


@dataclass
class _Bytes:
    data: bytes
    place: int = 0

    def take(self, form: str) -> tuple[int, ...]:
        found = struct.unpack_from(f"!{form}", self.data, self.place)
        self.place += struct.calcsize(f"!{form}")
        return found

    def raw(self, size: int) -> bytes:
        self.place += size
        return self.data[self.place - size : self.place]

    def text(self) -> str:
        end = self.data.index(0, self.place)
        found = self.data[self.place : end].decode()
        self.place = end + 1
        return found


def begun(data: bytes) -> int | None:
    """The commit position of the transaction that starts here; None for any other record."""
    return _Bytes(data[1:]).take("q")[0] if data[:1] == b"B" else None


def begun_by(data: bytes) -> int:
    """The number of the transaction that starts here, as far as the log has it: its lower 32 bits."""
    return _Bytes(data[1:]).take("qqI")[2]


@dataclass
class Decoder:
    """Reads the records of one slot in their order. `origin` names the server, its timeline and nothing that changes by itself."""

    origin: str
    tables: dict[int, Table] = field(default_factory=dict)
    commit_lsn: int = 0
    micros: int = 0
    xid: int = 0
    at: int = 0
    watched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # table → its key columns
    touched: set[tuple[str, ...]] = field(
        default_factory=set
    )  # keys of watched tables that were told of, as JSON texts
    emptied: bool = False  # a watched table was truncated

    def messages(self, records: Iterable[bytes]) -> Iterator[Message]:
        for data in records:
            yield from self.one(data)

    def one(self, data: bytes) -> Iterator[Message]:
        kind, rest = data[:1], _Bytes(data[1:])
        if kind == b"B":
            self.commit_lsn, since, self.xid = rest.take("qqI")
            self.micros, self.at = since + EPOCH_MICROS, 0
        elif kind == b"R":
            self._described(rest)
        elif kind in (b"I", b"U", b"D"):
            table = self.tables[rest.take("I")[0]]
            yield self._row(table, {b"I": "insert", b"U": "update", b"D": "delete"}[kind], *self._tuples(table, rest))
        elif kind == b"T":
            count = rest.take("IB")[0]
            for number in rest.take(f"{count}I"):
                yield self._row(self.tables[number], "truncate", None, None, False)

    def _described(self, rest: _Bytes) -> None:
        (number,) = rest.take("I")
        schema, name = rest.text(), rest.text()
        identity, count = rest.take("BH")
        columns, key = [], set()
        for _ in range(count):
            (flags,) = rest.take("B")
            column = rest.text()
            oid, _modifier = rest.take("Ii")
            columns.append((column, oid))
            if flags & 1:
                key.add(column)
        self.tables[number] = Table(schema, name, chr(identity) == "f", tuple(columns), frozenset(key))

    def _tuples(self, table: Table, rest: _Bytes) -> tuple[Image, Image, bool]:
        """Old row, new row, and whether the old one is no more than the key."""
        old = new = None
        key_only = False
        while rest.place < len(rest.data):
            part = rest.raw(1)
            found = self._values(table, rest)
            if part == b"N":
                new = found
            else:
                key_only = part == b"K"
                old = {n: v for n, v in found.items() if n in table.key} if key_only else found
        return old, new, key_only

    def _values(self, table: Table, rest: _Bytes) -> dict[str, object]:
        (count,) = rest.take("H")
        found: dict[str, object] = {}
        for name, oid in table.columns[:count]:
            kind = rest.raw(1)
            if kind == b"t":
                (size,) = rest.take("I")
                found[name] = _Literal(as_json(rest.raw(size).decode(), oid))
            elif kind == b"n":
                found[name] = _Literal("null")
            else:
                found[name] = _UNCHANGED
        return found

    def _row(
        self,
        table: Table,
        op: str,
        old: Image,
        new: Image,
        key_only: bool,
    ) -> Message:
        self.at += 1
        if key_names := self.watched.get(f"{table.schema}.{table.name}"):
            self._touch(op, key_names, old, new)
        row = new if new is not None else old
        # With the whole row as identity every column is marked as key: the contract's key is then the only one that says.
        key = None if table.whole_row or row is None else {n: v for n, v in row.items() if n in table.key}
        images = {"key": key, "before": old, "after": new}
        return self._message(op, table.schema, table.name, images, "key" if key_only else "row")

    def _message(self, op: str, schema: str, table: str, images: Mapping[str, Image], before_is: str) -> Message:
        said = {
            "origin": self.origin, "commit_lsn": str(self.commit_lsn), "at": self.at, "xid": str(self.xid),
            "commit_micros": self.micros, "schema": schema, "table": table, "op": op,
        }  # fmt: skip
        text = json.dumps(said, ensure_ascii=False)[:-1]
        for name, image in images.items():
            text += f', "{name}": {_object(image)}'
        return Message(self.commit_lsn, self.at, self.micros, f'{text}, "before_is": "{before_is}"}}')

    def _touch(self, op: str, names: tuple[str, ...], *images: Image) -> None:
        self.emptied = self.emptied or op == "truncate"
        for image in images:
            if image is not None and all(isinstance(image.get(name), _Literal) for name in names):
                self.touched.add(tuple(str(image[name]) for name in names))

    def standing(self, table: str, row: Mapping[str, str], key: Sequence[str], place: tuple[int, int, int]) -> Message:
        """A row as it is, read beside the log: column → JSON text, and where and when it stands."""
        self.commit_lsn, self.at, self.micros = place
        self.xid = 0
        after: dict[str, object] = {name: _Literal(text) for name, text in row.items()}
        images: dict[str, Image] = {"key": {name: after[name] for name in key}, "before": None, "after": after}
        schema, name = table.split(".", 1)
        return self._message("snapshot", schema, name, images, "row")


class _Literal(str):
    """JSON text as it goes into the message."""


def _object(image: Image) -> str:
    if image is None:
        return "null"
    kept = [f"{json.dumps(n, ensure_ascii=False)}: {v}" for n, v in image.items() if isinstance(v, _Literal)]
    return "{" + ", ".join(kept) + "}"


def as_json(text: str, oid: int) -> str:
    """A value's text as JSON: numbers keep every digit, JSON stays JSON, everything else is a string."""
    if oid == _TRUTH:
        return "true" if text == "t" else "false"
    if oid in _WHOLE or (oid in _REAL and not _LETTERS & set(text.replace("e", ""))):
        return text
    if oid in _JSON:
        return text.replace("\n", " ").replace("\r", " ")
    return json.dumps(text, ensure_ascii=False)
