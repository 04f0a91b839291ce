"""Rows of a binary log, and rows of a table beside it, as messages of the dialect `mysql_rows`.

Both come to the same JSON for the same value, or a row read from the table would look changed when the log tells it again. Pure: no
connection here. A value that is no text of its column's character set makes a message that ends in quarantine.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from tidings.sources.binlog import Group, number
from tidings.sources.tap import Taken

FLOAT, TIMESTAMP, YEAR, BIT, TIMESTAMP2, JSON, SET, STRING = 4, 7, 13, 16, 17, 245, 248, 254
# What servers call otherwise than Python does; names both know are not here.
CODECS = {
    "ujis": "euc_jp", "eucjpms": "euc_jp", "euckr": "euc_kr", "macroman": "mac_roman", "macce": "mac_latin2", "tis620": "tis-620",
    "ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be",
}  # fmt: skip
OPS = {"WriteRowsEvent": "insert", "UpdateRowsEvent": "update", "DeleteRowsEvent": "delete"}
Image = dict[str, str] | None  # column → JSON text


class NotText(ValueError):
    """Bytes that are no text."""


@dataclass
class Teller:
    """Makes the messages of one reader; `at` counts the rows of a transaction."""

    origin: str
    at: int = 0

    def rows(self, group: Group, event: Any) -> Iterator[tuple[Taken, list[dict[str, str]]]]:
        """Each row as a message, with its images."""
        op = OPS[type(event).__name__]
        names = (event.primary_key,) if isinstance(event.primary_key, str) else tuple(event.primary_key)
        for row in event.rows:
            self.at += 1
            before, after, said = None, None, op
            try:
                if op != "insert":
                    before = image(event.columns, row, "before_values" if op == "update" else "values")
                if op != "delete":
                    after = image(event.columns, row, "after_values" if op == "update" else "values")
            except NotText:
                said = "unreadable"
            known = after if after is not None else before
            key = {n: known[n] for n in names} if known is not None and any(names) else None
            told = self.message(
                group, f"{event.schema}.{event.table}", said, {"key": key, "before": before, "after": after}
            )
            yield told, [one for one in (before, after) if one is not None]

    def statement(self, group: Group, table: str, op: str) -> Taken:
        self.at += 1
        return self.message(group, table, op, {"key": None, "before": None, "after": None})

    def standing(self, group: Group, table: str, at: int, key: Sequence[str], row: dict[str, str]) -> Taken:
        """A row as it is, read beside the log, standing at this place."""
        self.at = at
        return self.message(group, table, "snapshot", {"key": {n: row[n] for n in key}, "before": None, "after": row})

    def message(self, group: Group, table: str, op: str, images: Mapping[str, Image]) -> Taken:
        schema, name = table.split(".", 1)
        file = number(group.file)
        said = {
            "origin": self.origin, "file": file, "pos": group.pos, "at": self.at, "gtid": group.gtid or None,
            "commit_seconds": group.seconds, "schema": schema, "table": name, "op": op,
        }  # fmt: skip
        text = json.dumps(said, ensure_ascii=False)[:-1]
        body = text + "".join(f', "{part}": {_object(value)}' for part, value in images.items()) + "}"
        place = f"{self.origin}/{file}/{group.pos}/{self.at}"
        rank = f"{file:010d}-{group.pos:020d}-{self.at:012d}"
        return Taken(place, group.seconds * 1_000_000, rank, body, self.at)


def image(columns: Sequence[Any], row: Mapping[str, Any], which: str) -> dict[str, str]:
    """One side of a logged row; a column that was not logged is absent, not null."""
    nothing = row[which.replace("values", "none_sources")]
    found = {}
    for column in columns:
        why = nothing.get(column.name, "")
        if why != "cols bitmap":
            found[column.name] = '""' if why == "empty set" else logged(column, row[which][column.name])
    return found


def logged(column: Any, value: Any) -> str:
    """A value as the log's reader gives it: text is still bytes in disguise, sets have no order, years count from 1900."""
    if isinstance(value, str) and column.enum_values is None and column.type != BIT:
        raw = value.encode("iso8859-1")
        if column.encoding in (None, "binary"):
            return as_json(raw.ljust(column.max_length, b"\0") if column.type == STRING else raw, column.type)
        return json.dumps(_text(raw, column.encoding), ensure_ascii=False)
    if isinstance(value, set):
        value = ",".join(name for name in column.set_values if name in value)
    if column.type == BIT and value is not None:
        return str(int(value, 2))
    if column.type == YEAR and value == 1900:
        value = 0
    if isinstance(value, timedelta) and value < timedelta() and value.microseconds:
        value = -(
            2 * timedelta(seconds=math.ceil(-value.total_seconds())) - timedelta(seconds=1) + value
        )  # a borrow it forgets
    return json.dumps(_plain(value), ensure_ascii=False) if column.type == JSON else as_json(value, column.type)


def _text(raw: bytes, encoding: str) -> str:
    try:
        if encoding == "cp1252":  # the server's latin1 has a character for all 256 bytes
            return "".join(
                bytes([b]).decode("latin-1" if b in (0x81, 0x8D, 0x8F, 0x90, 0x9D) else "cp1252") for b in raw
            )
        return raw.decode(CODECS.get(encoding, encoding))
    except (LookupError, UnicodeDecodeError):
        raise NotText from None


def as_json(value: Any, kind: int) -> str:
    """A value as JSON: numbers keep every digit, bytes are base64, times have the server's spelling, timestamps are UTC and say so."""
    if isinstance(value, bytes):
        return str(int.from_bytes(value, "big")) if kind == BIT else json.dumps(base64.b64encode(value).decode())
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float):
        return json.dumps(float(f"{value:.6g}") if kind == FLOAT else value)
    if isinstance(value, datetime):
        return json.dumps(value.isoformat(" ") + ("+00:00" if kind in (TIMESTAMP, TIMESTAMP2) else ""))
    if isinstance(value, date):
        return json.dumps(value.isoformat())
    if isinstance(value, timedelta):
        return json.dumps(_clock(value))
    return json.dumps(value, ensure_ascii=False)


def _clock(value: timedelta) -> str:
    left, sign = abs(value), "-" if value < timedelta() else ""
    hours, rest = divmod(left.days * 86_400 + left.seconds, 3600)
    text = f"{sign}{hours:02d}:{rest // 60:02d}:{rest % 60:02d}"
    return f"{text}.{left.microseconds:06d}" if left.microseconds else text


def _plain(value: Any) -> Any:
    """A JSON value of MySQL with texts instead of bytes."""
    if isinstance(value, dict):
        return {_plain(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, bytes):
        return value.decode()
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _object(value: Image) -> str:
    if value is None:
        return "null"
    return "{" + ", ".join(f"{json.dumps(n, ensure_ascii=False)}: {text}" for n, text in value.items()) + "}"
