"""Tables of changes on a real server, without Spark: late commits, gaps, order, epochs, and what install makes and remove undoes."""

from __future__ import annotations

import json
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tidings.errors import SourceStopped
from tidings.sources import change_table
from tidings.sources.change_table import ChangeTable
from tidings.sources.gaps import Gaps, missing
from tidings.sources.outbox import Outbox, Tail
from tidings.sources.pgserver import Server
from tidings.sources.tap import Tap
from tidings.sources.triggers import Triggers

Connection = psycopg.Connection[Any]
ODD = 'odd "$$ name'


@pytest.fixture
def admin(postgresql: str) -> Iterator[Connection]:
    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS trial CASCADE")
        connection.execute("CREATE SCHEMA trial")
        yield connection


@pytest.fixture
def outbox(postgresql: str, admin: Connection) -> Outbox:
    return installed(Outbox(Server("orders", postgresql), "trial.outbox"))


def installed(tap: Any) -> Any:
    for _ in range(2):  # a second time changes nothing
        tap.execute([do for do, _ in tap.statements()])
    return tap.verified()


def tell(connection: Connection, mail: str, table: str = "trial.outbox") -> None:
    row = (json.dumps({"id": 1}), json.dumps({"id": 1, "email": mail}))
    connection.execute(f"INSERT INTO {table} (entity, op, key, after) VALUES ('customer', 'update', %s, %s)", row)


def mails(tap: Tap, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    return [json.loads(taken.body)["after"]["after"]["email"] for taken in tap.read(start, end)]


def test_a_number_that_appears_late_is_waited_for(postgresql: str, outbox: Outbox) -> None:
    with psycopg.connect(postgresql) as slow, psycopg.connect(postgresql) as quick:
        start = outbox.first()
        tell(slow, "first")
        tell(quick, "second")
        quick.commit()
        assert outbox.latest(start) == start
        assert outbox.latest(start) == start  # as often as asked
        slow.commit()
        end = outbox.latest(start)
        assert mails(outbox, start, end) == ["first", "second"]
        assert mails(outbox, start, end) == ["first", "second"]
        assert outbox.latest(end) == end


def test_rows_that_are_held_back_are_unread_unless_who_holds_them_takes_too_long(
    postgresql: str, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(postgresql) as slow, psycopg.connect(postgresql) as quick:
        start = outbox.first()
        assert not outbox.unread(start)
        tell(slow, "first")
        assert not outbox.unread(start)  # nothing is committed yet
        tell(quick, "second")
        quick.commit()
        assert (outbox.latest(start) == start, outbox.unread(start)) == (True, True)
        monkeypatch.setattr(change_table, "PATIENCE_S", 0)
        assert not outbox.unread(start)


def test_a_number_that_never_appears_holds_nobody_up(postgresql: str, outbox: Outbox) -> None:
    with psycopg.connect(postgresql) as gone, psycopg.connect(postgresql) as quick:
        start = outbox.first()
        tell(quick, "zero")
        quick.commit()
        tell(gone, "never")
        tell(quick, "one")
        quick.commit()
        before = outbox.latest(start)
        assert mails(outbox, start, before) == ["zero"]
        gone.rollback()
        tell(gone, "later writers are not waited for")
        end = outbox.latest(before)
        assert mails(outbox, before, end) == ["one"]


def test_who_writes_elsewhere_holds_nobody_up(postgresql: str, outbox: Outbox, admin: Connection) -> None:
    admin.execute("CREATE TABLE trial.noise (id int)")
    with psycopg.connect(postgresql) as long, psycopg.connect(postgresql) as quick:
        long.execute("INSERT INTO trial.noise VALUES (1)")
        tell(quick, "one")
        quick.commit()
        assert mails(outbox, outbox.first(), outbox.latest(outbox.first())) == ["one"]


def test_a_subject_keeps_its_order_when_transactions_draw_their_numbers_early(
    postgresql: str, outbox: Outbox, admin: Connection
) -> None:
    admin.execute("CREATE TABLE trial.noise (id int)")
    with psycopg.connect(postgresql) as early, psycopg.connect(postgresql) as late:
        early.execute("INSERT INTO trial.noise VALUES (1)")  # draws the lower transaction number
        tell(late, "older")
        late.commit()
        tell(early, "newer")
        early.commit()
    assert mails(outbox, outbox.first(), outbox.latest(outbox.first())) == ["older", "newer"]


def test_a_prepared_writer_is_waited_for(postgresql: str, outbox: Outbox, admin: Connection) -> None:
    with psycopg.connect(postgresql) as quick, psycopg.connect(postgresql) as two_phase:
        tell(two_phase, "prepared")
        two_phase.execute("PREPARE TRANSACTION 'waiting'")
        tell(quick, "quick")
        quick.commit()
        try:
            assert outbox.latest(outbox.first()) == outbox.first()
        finally:
            admin.execute("COMMIT PREPARED 'waiting'")
        assert mails(outbox, outbox.first(), outbox.latest(outbox.first())) == ["prepared", "quick"]


def test_gaps() -> None:
    assert missing(0, [3, 4, 7]) == [(1, 2), (5, 6)]
    gaps = Gaps()
    gaps.waited(gaps.seen(2, [3, 5, 8]), {"a"})
    assert gaps.horizon(2, [3, 5, 8]) == 3
    gaps.waited(gaps.seen(2, [3, 5, 8]), {"b"})  # a is gone; b came later and cannot have drawn 4, 6 or 7
    assert gaps.horizon(2, [3, 5, 8]) == 8
    assert gaps.horizon(2, [3, 8]) == 3  # somebody deleted 5: the range grew and is a new one
    assert gaps.horizon(2, [3, 5, 8, 10]) == 8  # 9 was never waited for
    assert gaps.horizon(2, []) == 2


def test_done_deletes_what_was_read_and_no_more(postgresql: str, outbox: Outbox, admin: Connection) -> None:
    tell(admin, "one")
    end = outbox.latest(outbox.first())
    tell(admin, "two")
    outbox.done({**end, "origin": "another server"})
    assert admin.execute("SELECT count(*) FROM trial.outbox").fetchone() == (2,)
    outbox.done(end)
    assert admin.execute("SELECT after ->> 'email' FROM trial.outbox").fetchall() == [("two",)]
    outbox.wait(outbox.latest(end))  # nothing more is asked for before all of it is finished
    assert admin.execute("SELECT count(*) FROM trial.outbox").fetchone() == (0,)
    tell(admin, "two")
    keeping = Outbox(outbox.server, outbox.table, keeps=True).verified()
    keeping.done(keeping.latest(end))
    assert admin.execute("SELECT count(*) FROM trial.outbox").fetchone() == (1,)


def test_another_server_is_read_from_its_start(outbox: Outbox, admin: Connection) -> None:
    tell(admin, "one")
    end = outbox.latest(outbox.first())
    elsewhere = {**end, "origin": "another server"}
    assert mails(outbox, elsewhere, outbox.latest(elsewhere)) == ["one"]


def test_numbers_that_went_back_stop_the_source(outbox: Outbox, admin: Connection) -> None:
    tell(admin, "one")
    end = outbox.latest(outbox.first())
    admin.execute("SELECT setval(pg_get_serial_sequence('trial.outbox', 'id'), 5)")
    with pytest.raises(SourceStopped, match="restored from a copy") as stopped:
        outbox.latest(end)
    assert stopped.value.code == "source_went_back"


def test_a_table_made_anew_goes_on_above_the_old_one(outbox: Outbox, admin: Connection) -> None:
    tell(admin, "one")
    end = outbox.latest(outbox.first())
    outbox.execute([undo for _, undo in reversed(outbox.statements())])
    with pytest.raises(SourceStopped, match=r"no table trial\.outbox.*tidings source install orders"):
        outbox.verify()
    again = installed(outbox)
    tell(admin, "two")
    assert mails(again, end, again.latest(end)) == ["two"]


def test_numbers_drawn_in_advance_are_refused_with_the_remedy(outbox: Outbox, admin: Connection) -> None:
    admin.execute("ALTER TABLE trial.outbox ALTER COLUMN id SET CACHE 10")
    with pytest.raises(SourceStopped, match="SET CACHE 1") as stopped:
        outbox.verify()
    admin.execute(stopped.value.what_now.removeprefix("Run: "))
    outbox.verify()


def test_a_long_transaction_is_told(postgresql: str, outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outbox.remarks() == []
    monkeypatch.setattr(change_table, "LONG_S", 0)
    with psycopg.connect(postgresql) as slow:
        tell(slow, "one")
        assert "has been open for" in outbox.remarks()[0]


def test_a_notification_wakes_and_a_lost_one_only_delays(
    postgresql: str, admin: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_table, "WAKE_S", 20.0)
    tap = installed(Outbox(Server("orders", postgresql), "trial.outbox", rings=True))
    begun = time.monotonic()
    writer = threading.Timer(0.5, tell, (admin, "one"))
    writer.start()
    tap.wait(tap.first())
    assert 0.4 < time.monotonic() - begun < 10
    writer.join()
    assert tap.latest(tap.first()) != tap.first()
    admin.execute("ALTER TABLE trial.outbox DISABLE TRIGGER tidings_ring")
    with pytest.raises(SourceStopped, match="nothing rings"):
        tap.verify()
    monkeypatch.setattr(change_table, "WAKE_S", 0.2)
    end = tap.latest(tap.first())
    tap.wait(end)
    tell(admin, "nobody rang")
    assert mails(tap, end, tap.latest(end)) == ["nobody rang"]


def test_tail_deletes_what_the_slot_gave_up(postgresql: str, admin: Connection) -> None:
    server = Server("orders", postgresql)
    tap = Tail(server, "trial_tail", "trial_tail", ("trial.outbox",), outbox=Outbox(server, "trial.outbox"))
    tap = installed(tap)
    try:
        with psycopg.connect(postgresql) as unread:
            start = tap.first()
            tell(unread, "open")
            tell(admin, "one")
            end = tap.latest(start)
            assert mails(tap, start, end) == ["one"]
            tap.done(end)
            unread.commit()
        assert admin.execute("SELECT after ->> 'email' FROM trial.outbox").fetchall() == [("open",)]
        assert mails(tap, end, tap.latest(end)) == ["open"]
        tap.done(tap.latest(end))
        assert admin.execute("SELECT count(*) FROM trial.outbox").fetchone() == (0,)
    finally:
        tap.execute([undo for _, undo in reversed(tap.statements())])
    assert admin.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)


def things(connection: Connection) -> list[Any]:
    """Everything that lives in the schema, to see that nothing stays."""
    query = """
        SELECT 'table', relname FROM pg_class WHERE relnamespace = 'trial'::regnamespace
        UNION ALL SELECT 'function', proname FROM pg_proc WHERE pronamespace = 'trial'::regnamespace
        UNION ALL SELECT 'trigger', tgname FROM pg_trigger WHERE tgrelid IN
          (SELECT oid FROM pg_class WHERE relnamespace = 'trial'::regnamespace)
        ORDER BY 1, 2"""
    return connection.execute(query).fetchall()


def test_triggers_write_every_change_and_leave_nothing_behind(postgresql: str, admin: Connection) -> None:
    quoted = f'trial."{ODD.replace(chr(34), chr(34) * 2)}"'
    admin.execute(f"CREATE TABLE {quoted} (id int PRIMARY KEY, email text, worth numeric)")
    before = things(admin)
    tap = installed(Triggers(Server("crm", postgresql), f"trial.{ODD} changes", tables=(f"trial.{ODD}",)))
    admin.execute(f"INSERT INTO {quoted} VALUES (1, 'a', 12345678901234567890.10)")
    admin.execute(f"UPDATE {quoted} SET email = 'b'")
    admin.execute(f"DELETE FROM {quoted}")
    admin.execute(f"TRUNCATE {quoted}")
    found = [json.loads(taken.body)["after"] for taken in tap.read(tap.first(), tap.latest(tap.first()))]
    assert '"worth": 12345678901234567890.10' in next(tap.read(tap.first(), tap.latest(tap.first()))).body
    assert {row["entity"] for row in found} == {f"trial.{ODD}"}
    old, new = ({"id": 1, "email": mail, "worth": 12345678901234567890.10} for mail in "ab")
    assert [(row["op"], row["before"], row["after"]) for row in found] == [
        ("insert", None, old),
        ("update", old, new),
        ("delete", new, None),
        ("truncate", None, None),
    ]
    admin.execute(f"ALTER TABLE {quoted} DISABLE TRIGGER USER")
    with pytest.raises(SourceStopped, match="or it is disabled"):
        tap.verify()
    for _ in range(2):
        tap.execute([undo for _, undo in reversed(tap.statements())])
    assert things(admin) == before


def test_who_writes_the_table_needs_no_right_to_its_changes(postgresql: str, admin: Connection) -> None:
    admin.execute("DROP ROLE IF EXISTS clerk")
    admin.execute("CREATE ROLE clerk LOGIN")
    admin.execute("CREATE TABLE trial.people (id int PRIMARY KEY)")
    admin.execute("GRANT USAGE ON SCHEMA trial TO clerk")
    admin.execute("GRANT INSERT ON trial.people TO clerk")
    tap = installed(Triggers(Server("crm", postgresql), "trial.changes", tables=("trial.people",)))
    with psycopg.connect(postgresql, user="clerk", autocommit=True) as clerk:
        clerk.execute("INSERT INTO trial.people VALUES (1)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            clerk.execute("SELECT * FROM trial.changes")
        clerk.execute("CREATE TEMP TABLE forged (id int)")
        forge = "CREATE TRIGGER forge AFTER INSERT ON forged FOR EACH ROW EXECUTE FUNCTION trial.changes_write('trial.people')"
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            clerk.execute(forge)
    assert len(list(tap.read(tap.first(), tap.latest(tap.first())))) == 1
    admin.execute("DROP OWNED BY clerk")
    admin.execute("DROP ROLE clerk")


def test_the_snippet_writes_in_the_callers_transaction(postgresql: str, admin: Connection) -> None:
    tap = installed(Outbox(Server("orders", postgresql), f"trial.{ODD}"))
    made: dict[str, Any] = {}
    exec(tap.snippet(), made)
    with psycopg.connect(postgresql) as connection:
        made["tell"](connection, "customer", "upsert", {"id": 1}, {"id": 1, "email": "taken back"})
        connection.rollback()
        made["tell"](connection, "customer", "upsert", {"id": 1}, {"id": 1, "email": "one"})
        with pytest.raises(psycopg.errors.CheckViolation), connection.transaction():
            made["tell"](connection, "customer", "upsrt", {"id": 1}, {})
    assert mails(tap, tap.first(), tap.latest(tap.first())) == ["one"]


def test_the_page_shows_the_snippet() -> None:
    page = (Path(__file__).parents[2] / "docs" / "outbox.md").read_text()
    shown = textwrap.indent(Outbox(Server("orders", ""), "public.outbox").snippet(), "    ")
    assert "\n".join(line.rstrip() for line in shown.splitlines()) in page


def test_the_kinds_share_one_reader() -> None:
    assert issubclass(Outbox, ChangeTable)
    assert issubclass(Triggers, ChangeTable)
