"""A real log becomes messages: every kind of row, every odd value, every end a transaction can have, in the server's own order."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mysql_server import MariaDb, mariadb

from tidings.errors import SourceStopped
from tidings.sources.myserver import Server
from tidings.sources.mysql import Capture
from tidings.sources.tap import Offset, Taken

COLUMNS = """id bigint unsigned PRIMARY KEY, code binary(6), raw varbinary(10), tags set('x','y','z'), kind enum('p','q'), f float,
 d double, amount decimal(20,5), ts timestamp(3) NULL, dt datetime(6), day date, span time(2), born year, bits bit(10), doc json,
 old varchar(10) CHARACTER SET latin1, note text, bin blob, small tinyint, byte tinyint unsigned, name char(5)"""
VALUES = """18446744073709551615, 0x610000, 0x6100, 'z,x', 'q', 1.1, 1.1, -12345.67890, '2026-11-16 10:00:00.5',
 '2026-11-16 10:00:00.123456', '2026-01-02', '-01:02:03.45', 2026, b'1000000001', '{"a": [1]}', _latin1 0x4181e9, 'tä😀', 0x00ff,
 -1, 255, 'ab'"""
ODD = {
    "id": 18446744073709551615, "code": "YQAAAAAA", "raw": "YQA=", "tags": "x,z", "kind": "q", "f": 1.1, "d": 1.1, "amount": "-12345.67890",
    "ts": "2026-11-16 10:00:00.500000+00:00", "dt": "2026-11-16 10:00:00.123456", "day": "2026-01-02", "span": "-01:02:03.450000",
    "born": 2026, "bits": 513, "doc": '{"a": [1]}', "old": "A\x81é", "note": "tä😀", "bin": "AP8=", "small": -1, "byte": 255, "name": "ab",
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDb]:
    with mariadb() as one:
        yield one


@pytest.fixture
def capture(server: MariaDb, tmp_path: Path) -> Capture:
    server.run("CREATE OR REPLACE DATABASE crm CHARACTER SET utf8mb4", f"CREATE TABLE crm.people ({COLUMNS})")
    server.run("CREATE TABLE crm.other (id int PRIMARY KEY)")
    return Capture(Server("crm", server.url()), ("crm.people",), tmp_path / "first.json").verified()


def taken(tap: Capture, start: Offset) -> tuple[list[Taken], Offset]:
    """All there is now, read twice: both must be the same."""
    found: list[Taken] = []
    while (end := json.loads(json.dumps(tap.latest(start)))) != start:
        part = list(tap.read(start, end))
        assert part == list(tap.read(start, end)), "read again, it is the same"
        found, start = [*found, *part], end
    ranks = [message.rank for message in found]
    assert ranks == sorted(set(ranks))
    assert len({message.place for message in found}) == len(found)
    return found, start


def bodies(messages: list[Taken]) -> list[dict[str, Any]]:
    return [
        json.loads(m.body, parse_float=lambda text: text if "." in text and len(text) > 5 else float(text))
        for m in messages
    ]


def test_rows_and_values(server: MariaDb, capture: Capture) -> None:
    start = capture.first()
    server.run(
        f"INSERT INTO crm.people VALUES ({VALUES})", "INSERT INTO crm.people (id, tags, born) VALUES (2, '', 0000)"
    )
    server.run("UPDATE crm.people SET small = 4 WHERE id = 2", "UPDATE crm.people SET id = 3 WHERE id = 2")
    server.run("DELETE FROM crm.people WHERE id = 3", "TRUNCATE TABLE crm.people", "USE crm", "truncate `people`")
    server.run("INSERT INTO crm.other VALUES (1)")
    found = bodies(taken(capture, start)[0])
    assert [(m["op"], m["at"]) for m in found] == [
        ("insert", 1), ("insert", 1), ("update", 1), ("update", 1), ("delete", 1), ("truncate", 1), ("truncate", 1),
    ]  # fmt: skip
    odd, empty, changed, moved, gone, *_ = found
    assert odd["after"] == ODD
    assert (odd["key"], odd["before"], odd["schema"], odd["table"]) == (
        {"id": 18446744073709551615},
        None,
        "crm",
        "people",
    )
    assert {name: value for name, value in empty["after"].items() if value is not None} == {
        "id": 2,
        "tags": "",
        "born": 0,
    }
    assert (changed["before"]["small"], changed["after"]["small"]) == (None, 4)
    assert (moved["before"]["id"], moved["after"]["id"], moved["key"]) == (2, 3, {"id": 3})
    assert (gone["before"]["id"], gone["after"], gone["key"]) == (3, None, {"id": 3})
    assert len({m["gtid"] for m in found}) == 7


def test_only_what_was_committed_and_whole(server: MariaDb, capture: Capture) -> None:
    start, connection = capture.first(), server.connect(autocommit=False)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO crm.people (id) VALUES (1)")
        connection.rollback()
        cursor.execute("INSERT INTO crm.people (id) VALUES (2)")
        cursor.execute("SAVEPOINT s")
        cursor.execute("INSERT INTO crm.people (id) VALUES (3)")
        cursor.execute("ROLLBACK TO s")
        server.run("INSERT INTO crm.people (id) VALUES (10)")
        cursor.execute("INSERT INTO crm.people (id) VALUES (4), (5)")
        connection.commit()
    connection.close()
    found = bodies(taken(capture, start)[0])
    assert [(m["key"]["id"], m["at"]) for m in found] == [(10, 1), (2, 1), (4, 2), (5, 3)]
    assert len({m["gtid"] for m in found[1:]}) == 1


def test_a_prepared_transaction_counts_where_it_is_committed(server: MariaDb, capture: Capture) -> None:
    start = capture.first()
    for number, name in ((1, "kept"), (2, "dropped")):
        row = f"INSERT INTO crm.people (id) VALUES ({number})"
        server.run(f"XA START '{name}'", row, f"XA END '{name}'", f"XA PREPARE '{name}'")
    first, after = taken(capture, start)
    assert first == []
    assert len(after["prepared"]) == 2
    server.run("INSERT INTO crm.people (id) VALUES (3)", "XA ROLLBACK 'dropped'", "XA COMMIT 'kept'", "FLUSH LOGS")
    found, end = taken(capture, after)
    assert [m["key"]["id"] for m in bodies(found)] == [3, 1]
    assert end["prepared"] == {}


def test_a_change_logged_as_text_is_not_passed_in_silence(server: MariaDb, capture: Capture) -> None:
    start = capture.first()
    server.run("SET SESSION binlog_format = 'STATEMENT'", "INSERT INTO crm.people (id) VALUES (1)")
    assert [m["op"] for m in bodies(taken(capture, start)[0])] == ["statement"]


def test_columns_are_named_by_the_log(server: MariaDb, capture: Capture) -> None:
    start = capture.first()
    server.run(
        "INSERT INTO crm.people (id, name) VALUES (1, 'a')",
        "ALTER TABLE crm.people DROP COLUMN small, ADD COLUMN more int FIRST",
    )
    server.run("INSERT INTO crm.people (id, more) VALUES (2, 7)")
    old, new = bodies(taken(capture, start)[0])
    assert ("small" in old["after"], "more" in old["after"]) == (True, False)
    assert ("small" in new["after"], new["after"]["more"], new["after"]["id"]) == (False, 7, 2)


def test_a_batch_ends_with_a_transaction(server: MariaDb, capture: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidings.sources.mysql.MOST", 2_000)
    start = capture.first()
    rows = ", ".join(f"({n}, 'n{n}')" for n in range(1, 3001))
    server.run(f"INSERT INTO crm.people (id, note) VALUES {rows}", "FLUSH LOGS")
    for n in range(20):
        server.run(f"INSERT INTO crm.people (id) VALUES ({10_000 + n})")
    end = capture.latest(start)
    assert len(list(capture.read(start, end))) == 3000, "a transaction is not divided"
    found, _ = taken(capture, end)
    assert [m["key"]["id"] for m in bodies(found)] == [10_000 + n for n in range(20)]


def test_others_tables_move_the_place_now_and_then(
    server: MariaDb, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = capture.first()
    server.run("INSERT INTO crm.other VALUES (1), (2)")
    assert capture.latest(start) == start
    monkeypatch.setattr("tidings.sources.mysql.QUIET", 10)
    server.run("INSERT INTO crm.other VALUES (3)")
    end = capture.latest(start)
    assert end["pos"] > start["pos"]
    assert list(capture.read(start, end)) == []
    server.run("FLUSH LOGS")
    assert capture.latest(end)["file"] != end["file"], "a file that is read may be purged"


def test_a_log_that_is_gone_stops_with_the_remedy(server: MariaDb, capture: Capture) -> None:
    start = capture.first()
    server.run("INSERT INTO crm.people (id) VALUES (1)", "FLUSH LOGS", "FLUSH LOGS")
    last = server.run("SHOW BINARY LOGS")[-1][0]
    for _ in range(50):  # a reader that just left may hold a file for a moment
        server.run(f"PURGE BINARY LOGS TO '{last}'")
        if server.run("SHOW BINARY LOGS")[0][0] == last:
            break
        time.sleep(0.1)
    with pytest.raises(SourceStopped, match="no longer has the log") as stopped:
        capture.latest(start)
    assert stopped.value.code == "source_not_ready"
    assert "data/checkpoints/crm" in stopped.value.what_now


def test_a_log_that_was_reset_stops_the_source(server: MariaDb, capture: Capture) -> None:
    start = capture.first()
    server.run("RESET MASTER")
    with pytest.raises(SourceStopped) as stopped:
        capture.latest(start)
    assert stopped.value.code in ("source_went_back", "source_not_ready")
    for n in range(40):
        server.run(f"INSERT INTO crm.people (id) VALUES ({n})")
    with pytest.raises(SourceStopped) as stopped:
        capture.latest({**start, "file": "binlog.000001"})
    assert stopped.value.code == "source_went_back"
    capture.kept.unlink()
    assert capture.first()["origin"] != start["origin"], "a new epoch"


def test_what_stands_in_the_way_is_named_with_its_remedy(server: MariaDb, capture: Capture) -> None:
    for name, wrong, right in (
        ("binlog_format", "MIXED", "ROW"), ("binlog_row_image", "MINIMAL", "FULL"), ("binlog_row_metadata", "MINIMAL", "FULL"),
        ("gtid_strict_mode", "0", "1"), ("log_bin_compress", "1", "0"),
    ):  # fmt: skip
        server.run(f"SET GLOBAL {name} = {wrong}")
        with pytest.raises(SourceStopped, match=name):
            capture.verify()
        server.run(f"SET GLOBAL {name} = {right}")
    server.run("SET GLOBAL binlog_row_metadata = MINIMAL, GLOBAL gtid_strict_mode = 0")
    capture.execute([do for do, _ in capture.statements()])
    assert capture.verify() == "mariadb-1"
    server.run("CREATE TABLE crm.packed (id int PRIMARY KEY, note text COMPRESSED)")
    with pytest.raises(SourceStopped, match=r"crm\.packed\.note is of a type"):
        Capture(capture.server, ("crm.packed",), capture.kept).verify()
    with pytest.raises(SourceStopped, match=r"no table crm\.nobody"):
        Capture(capture.server, ("crm.nobody",), capture.kept).verify()


def test_who_is_not_let_in_is_told_apart_from_who_is_not_there(server: MariaDb, capture: Capture) -> None:
    server.run("CREATE OR REPLACE USER reader@'%' IDENTIFIED BY 'hunter2/@'", "GRANT SELECT ON crm.* TO reader@'%'")

    def code(url: str) -> str:
        tap = Capture(Server("crm", url), capture.tables, capture.kept)
        with pytest.raises(SourceStopped) as stopped:
            tap.verify()
        assert "hunter2" not in str(stopped.value) + repr(tap)
        return stopped.value.code

    right = server.url("reader", "hunter2%2F%40")
    assert code(server.url("reader", "wrong")) == "source_denied"
    assert code(right) == "source_denied", "no right to the log"
    server.run("GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO reader@'%'")
    assert Capture(Server("crm", right), capture.tables, capture.kept).verify() == "mariadb-1"
    server.run("ALTER USER reader@'%' PASSWORD EXPIRE")
    assert code(right) == "source_denied"
    assert code("mysql://reader:hunter2@127.0.0.1:1/") == "source_unreachable"
    assert code("host=127.0.0.1 password=hunter2") == "source_not_ready"
