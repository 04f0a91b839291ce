"""Dictionary pages of a Parquet file, unpacked: they may hold values that no row refers to any more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def dictionary_pages(data: bytes, footer: pq.FileMetaData) -> Iterator[bytes]:
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(footer.num_columns)):
            start = column.dictionary_page_offset
            if start is None:
                continue
            fields, at = _struct(data, start)
            size, packed = fields[2], fields[3]
            page = data[at : at + packed]
            codec = column.compression.lower()
            known = {"uncompressed": None, "lz4": "lz4_raw"}.get(codec, codec)
            yield page if known is None else bytes(pa.Codec(known).decompress(page, size))


def _struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    """A struct in Thrift's compact form: field → value, and where it ends. Page headers have numbers, flags, bytes and structs."""
    fields: dict[int, Any] = {}
    number = 0
    while (head := data[at]) != 0:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _zigzag(data, at)
        fields[number], at = _value(data, at, head & 0x0F)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in (1, 2):
        return kind == 1, at
    if kind == 3:
        return data[at], at + 1
    if kind in (4, 5, 6):
        return _zigzag(data, at)
    if kind == 8:
        size, at = _varint(data, at)
        return data[at : at + size], at + size
    assert kind == 12, f"a page header with a field of type {kind}"
    return _struct(data, at)


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
