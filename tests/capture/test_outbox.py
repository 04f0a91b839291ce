"""A real outbox under fifty concurrent writers, read in its three ways by a reader that is killed: every change once, in order."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from small import Small, small
from table_writers import Writer, ended, finished, judged, killed_twice, prepared

from tidings.cli import main

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]
SOURCE = """\
kind: outbox
mode: {mode}
table: public.{name}_outbox
connection: file:crm.connection
entities: {{customer: customer}}
banner: shop
location: online
"""
WRITERS = {"poll": 50, "push": 6, "tail": 6}


def tidings(one: Small, *verb: str) -> str:
    """What a verb prints."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main([*verb, "-C", str(one.folder)])
    return said.getvalue()


def installed(one: Small, address: str, name: str) -> Callable[..., None]:
    """The source and the function that tells it, which is the one `tidings source snippet` prints and nothing else."""
    (one.folder / "sources" / f"{name}.yaml").write_text(SOURCE.format(mode=name, name=name))
    secret = one.folder / "secrets" / "crm.connection"
    secret.write_text(address)
    secret.chmod(0o600)
    assert "CREATE TABLE" in tidings(one, "source", "install", name)
    made: dict[str, Callable[..., None]] = {}
    exec(tidings(one, "source", "snippet", name), made)
    return made["tell"]


def test_three_ways_to_read_an_outbox(postgresql: str, tmp_path: Path) -> None:
    with small(tmp_path, "crm") as one:
        (one.folder / "sources" / "crm.yaml").unlink()
        prepared(postgresql, list(WRITERS))
        tells = {name: installed(one, postgresql, name) for name in WRITERS}
        said = tidings(one, "check", "--connect")
        assert [f"connect {name}: ready" in said for name in WRITERS] == [True] * 3
        writers = [Writer(postgresql, name, n, tells[name]) for name, count in WRITERS.items() for n in range(count)]
        # What it told long ago holds back everybody after it.
        writers.append(Writer(postgresql, "poll", 50, tells["poll"], slow=True))
        for writer in writers:
            writer.start()
        killed_twice(one, 7)
        committed = ended(writers)
        finished(one)
        judged(one, committed)
        emptied(one, postgresql)


def emptied(one: Small, address: str) -> None:
    """What was told is deleted, with `tail` when the next batch comes; `remove` leaves nothing."""
    with psycopg.connect(address, autocommit=True) as connection:
        for name in WRITERS:
            left = connection.execute(f"SELECT count(*) FROM {name}_outbox").fetchone()
            assert left == (0,) or name == "tail"
            assert "DROP TABLE" in tidings(one, "source", "remove", name)
        assert connection.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)
        assert connection.execute("SELECT to_regclass('public.poll_outbox')").fetchone() == (None,)
