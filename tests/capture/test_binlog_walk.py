"""Where transactions begin and end in a binary log, also in ways that no server does on request; and another server that takes over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mysql_server import MariaDb, mariadb

from tidings.errors import SourceStopped
from tidings.sources.binlog import Step, Walk, changes_as_text, truncated
from tidings.sources.gtids import Gtids
from tidings.sources.myserver import Server
from tidings.sources.mysql import Capture

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def walk(gtids: Gtids | None = None) -> Walk:
    return Walk(Server("crm", "mysql://x"), "binlog.000001", 4, 9, gtids or Gtids("0-1-5", True))


def ends(one: Walk, *steps: Step) -> list[int]:
    """The positions at which transactions begin that ended with these steps."""
    return [ended.pos for step in steps if (ended := one.take(step))]


def test_a_transaction_that_a_crash_cut_off_is_left_out() -> None:
    one = walk()
    begun = Step("begin", 40, "0-1-6", 1)
    assert ends(one, begun, Step("rows", 60), Step("file", 4, "binlog.000002"), Step("format", 256, seconds=11)) == []
    assert one.undone == ["1:40"]
    assert (one.file, one.pos, one.made, one.gtids.text) == ("binlog.000002", 4, 11, "0-1-5")
    assert ends(one, Step("begin", 300, "0-1-6", 2), Step("commit", 330)) == [300]
    assert (one.pos, one.gtids.text, one.undone) == (330, "0-1-6", ["1:40"])


def test_a_rollback_is_left_out_and_one_to_a_savepoint_is_not() -> None:
    one = walk()
    assert ends(one, Step("begin", 40, "0-1-6"), Step("query", 50, "ROLLBACK TO `s`"), Step("query", 60, "COMMIT")) == [
        40
    ]
    assert one.undone == []
    assert ends(one, Step("begin", 80, "0-1-7"), Step("rows", 90), Step("query", 99, "ROLLBACK")) == [80]
    assert one.undone == ["1:80"]


def test_mysql_marks_transactions_by_statements() -> None:
    one = walk(Gtids("", False))
    steps = [
        Step("begin", 40, f"{UUID}:1", 5, alone=True),
        Step("query", 50, "BEGIN"),
        Step("query", 60, "XA END X'61',X'',1"),
    ]
    assert ends(one, *steps) == []
    assert ends(one, Step("prepare", 70, "X'61',X'',1")) == [40]
    assert ends(one, Step("begin", 90, f"{UUID}:2", 5, alone=True), Step("query", 95, "ALTER TABLE t ADD c int")) == [
        90
    ]
    assert one.prepared == {"X'61',X'',1": ["binlog.000001", 4, 9]}
    assert one.gtids.text == f"{UUID}:1-2"
    assert one.settled(Step("query", 99, "XA COMMIT X'61',X'',1")) == ["binlog.000001", 4, 9]


def test_ids_that_were_read_are_known() -> None:
    held = Gtids(f"{UUID}:1-5", False)
    held.add(f"{UUID}:7")
    assert (held.known(f"{UUID}:5"), held.known(f"{UUID}:6"), held.known(f"{UUID}:7")) == (True, False, True)
    assert (held.covers(f"{UUID}:2-4"), held.covers(f"{UUID}:2-7")) == (True, False)
    domains = Gtids("0-1-5,7-2-9", True)
    domains.add("0-3-6")
    assert domains.text == "0-3-6,7-2-9"
    assert (domains.covers("0-1-6"), domains.covers("0-1-6,7-2-10"), domains.covers("")) == (True, False, True)


def test_a_transaction_told_again_stops_the_source() -> None:
    with pytest.raises(SourceStopped) as stopped:
        walk().take(Step("begin", 40, "0-1-5"))
    assert stopped.value.code == "source_went_back"


def test_what_is_true_later_is_not_older() -> None:
    one, told = walk(), []
    for number, seconds in ((6, 10_000), (7, 9_990), (8, 10_001), (9, 100)):
        one.take(Step("begin", 40 + number, f"0-1-{number}", seconds))
        assert one.group is not None
        told.append(one.group.seconds)
        one.take(Step("commit", 45 + number))
    assert told == [10_000, 10_000, 10_001, 100], "the last is a clock that was set back"


class _Query:
    schema = b"crm"


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("TRUNCATE TABLE people", "crm.people"),
        ("truncate `a``b` . `c.d`", "a`b.c.d"),
        ("/* why */ truncate shop.people;", "shop.people"),
        ("insert into truncated values (1)", ""),
    ],
)
def test_a_truncate_names_its_table(text: str, table: str) -> None:
    assert truncated(Step("query", 0, text, event=_Query())) == table


def test_only_text_that_changes_rows_of_ours_counts() -> None:
    def seen(text: str) -> str:
        return changes_as_text(Step("query", 0, text), ("crm.people",))

    assert seen("UPDATE `people` SET a = 1") == seen("/* x */ delete from crm.people") == "crm.people"
    assert seen("update peoples set a = 1") == seen("ALTER TABLE people ADD c int") == ""


def keys(tap: Capture, start: dict[str, object], end: dict[str, object]) -> list[int]:
    return [json.loads(message.body)["key"]["id"] for message in tap.read(start, end)]


def follow(first: MariaDb, second: MariaDb) -> None:
    second.run(
        f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={first.port}, MASTER_USER='root', MASTER_PASSWORD='',"
        " MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1",
        "START SLAVE",
    )


def put(server: MariaDb, *numbers: int) -> str:
    """Rows of a transaction each; what the log then holds."""
    server.run(*(f"INSERT INTO crm.people VALUES ({number})" for number in numbers))
    return str(server.run("SELECT @@gtid_binlog_pos")[0][0])


def test_another_server_takes_over(tmp_path: Path) -> None:
    with mariadb(1) as first, mariadb(2) as second:
        first.run("CREATE DATABASE crm", "CREATE TABLE crm.people (id int PRIMARY KEY)")
        follow(first, second)
        tap = Capture(Server("crm", first.url()), ("crm.people",), tmp_path / "first.json").verified()
        start = tap.first()
        put(first, 1, 2)
        read = tap.latest(start)
        assert keys(tap, start, read) == [1, 2]
        reached = put(first, 3)
        planned = tap.latest(read)
        reached = put(first, 4)
        assert second.run(f"SELECT MASTER_GTID_WAIT('{reached}', 60)") == [(0,)]
        first.stop()
        second.run("STOP SLAVE")
        put(second, 5)
        other = Capture(Server("crm", second.url()), ("crm.people",), tap.kept).verified()
        assert keys(other, read, planned) == [3], "a batch that was planned on the first is read on the second"
        end = other.latest(planned)
        assert keys(other, planned, end) == [4, 5]
        assert (end["server"], end["origin"] != read["origin"]) == ("mariadb-2", True)
        put(second, 6)
        assert keys(other, end, other.latest(end)) == [6]


def test_a_server_that_crashes_is_read_on(tmp_path: Path) -> None:
    with mariadb() as server:
        server.run("CREATE DATABASE crm", "CREATE TABLE crm.people (id int PRIMARY KEY)")
        tap = Capture(Server("crm", server.url()), ("crm.people",), tmp_path / "first.json").verified()
        start = tap.first()
        put(server, 1, 2)
        middle = tap.latest(start)
        put(server, 3)
        server.stop(crash=True)
        with pytest.raises(SourceStopped) as stopped:
            tap.latest(middle)
        assert stopped.value.code == "source_unreachable"
        server.start()
        put(server, 4)
        assert keys(tap, start, middle) == [1, 2]
        assert keys(tap, middle, tap.latest(middle)) == [3, 4]
