"""Records of a real server become messages: every kind of row, every odd value, in the server's own order."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tidings.errors import SourceStopped
from tidings.sources.pgoutput import Decoder
from tidings.sources.pgserver import Server
from tidings.sources.postgresql import PEEK, Capture, position

LONG = os.urandom(10_000).hex()  # too large for its row, and not to be compressed


@pytest.fixture
def capture(postgresql: str) -> Iterator[tuple[Capture, psycopg.Connection[Any]]]:
    made = Capture(Server("odd", postgresql), "odd_slot", "odd_slot", ("public.Odd Table",))
    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute(
            'CREATE TABLE public."Odd Table" (id bigint PRIMARY KEY, mail text, big numeric, f float8, ok boolean, doc jsonb, at timestamptz)'
        )
        for do, _ in made.statements():
            connection.execute(do.encode())
        try:
            yield made, connection
        finally:
            for _, undo in reversed(made.statements()):
                connection.execute(undo.encode())
            connection.execute('DROP TABLE public."Odd Table"')


def told(capture: Capture, connection: psycopg.Connection[Any]) -> list[dict[str, Any]]:
    records = list(capture.records(connection, PEEK, None, None))
    return [json.loads(message.body, parse_float=str) for message in Decoder("here-1").messages(records)]


def test_rows_and_values(capture: tuple[Capture, psycopg.Connection[Any]]) -> None:
    where, connection = capture
    put = 'INSERT INTO public."Odd Table" VALUES (%s, %s, %s, %s, %s, %s, %s)'
    number = "12345678901234567890.123456789012345"
    with connection.transaction():
        connection.execute(put, (1, "jo@example.com\n\u00e9", number, 1e300, True, '{"a": [1, null]}', "2026-11-16Z"))
        connection.execute(put, (2, LONG, "NaN", float("inf"), None, None, None))
    connection.execute('UPDATE public."Odd Table" SET ok = false WHERE id = 2')
    connection.execute('UPDATE public."Odd Table" SET id = 3 WHERE id = 1')
    connection.execute('DELETE FROM public."Odd Table" WHERE id = 3')
    connection.execute('TRUNCATE public."Odd Table"')
    found = told(where, connection)
    assert [(m["op"], m["at"]) for m in found] == [
        ("insert", 1), ("insert", 2), ("update", 1), ("update", 1), ("delete", 1), ("truncate", 1),
    ]  # fmt: skip
    first, second, toast, moved, gone, _ = found
    assert first["after"] == {
        "id": 1, "mail": "jo@example.com\n\u00e9", "big": number, "f": "1e+300", "ok": True, "doc": {"a": [1, None]},
        "at": "2026-11-16 00:00:00+00",
    }  # fmt: skip
    assert (second["after"]["big"], second["after"]["f"], second["after"]["ok"]) == ("NaN", "Infinity", None)
    assert first["xid"] == second["xid"] != toast["xid"]
    assert "mail" not in toast["after"]
    assert (moved["before"], moved["before_is"], moved["key"]) == ({"id": 1}, "key", {"id": 3})
    assert (gone["before"], gone["after"], gone["key"]) == ({"id": 3}, None, {"id": 3})
    order = [(int(m["commit_lsn"]), m["at"]) for m in found]
    assert order == sorted(order)


def test_the_whole_row_as_identity_names_no_key(capture: tuple[Capture, psycopg.Connection[Any]]) -> None:
    where, connection = capture
    connection.execute('ALTER TABLE public."Odd Table" REPLICA IDENTITY FULL')
    connection.execute('INSERT INTO public."Odd Table" (id, mail) VALUES (7, %s)', ("old@example.com",))
    connection.execute('UPDATE public."Odd Table" SET mail = %s WHERE id = 7', ("new@example.com",))
    changed = told(where, connection)[-1]
    assert changed["key"] is None
    assert (changed["before"]["mail"], changed["before_is"]) == ("old@example.com", "row")


def test_what_stands_in_the_way_is_named_with_its_remedy(capture: tuple[Capture, psycopg.Connection[Any]]) -> None:
    where, _ = capture
    assert where.verify().endswith("-1")
    lacking = replace(where, slot="no_slot")
    with pytest.raises(SourceStopped) as stopped:
        lacking.verify()
    assert "no slot no_slot" in stopped.value.found
    other = replace(where, tables=("public.Odd Table", "public.more"))
    with pytest.raises(SourceStopped) as stopped:
        other.verify()
    assert "lacks public.more" in stopped.value.found
    away = replace(where, server=Server("odd", "host=127.0.0.1 port=1 user=x password=hunter2"))
    with pytest.raises(SourceStopped) as stopped:
        away.verify()
    assert stopped.value.code == "source_unreachable"
    assert "hunter2" not in str(stopped.value) + repr(away)
    nobody = replace(where, server=Server("odd", f"{where.server.connection} user=nobody_here"))
    with pytest.raises(SourceStopped) as stopped:
        nobody.verify()
    assert stopped.value.code == "source_denied"


def test_positions_are_numbers() -> None:
    assert position("16/B374D848") == 0x16B374D848
