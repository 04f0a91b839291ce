"""Triggers and polling on a real server under concurrent writers, and a reader that is killed."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from checker import history_of
from small import Small, small
from table_writers import Told, Writer, ended, finished, judged, killed_twice, prepared
from test_outbox import tidings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]
TRIGGERS = """\
kind: triggers
connection: file:crm.connection
entities: {public.people_triggers: customer}
banner: shop
location: online
"""
POLLING = """\
kind: polling
column: at
connection: file:crm.connection
entities: {public.people_polling: shopper}
banner: shop
location: online
"""


def test_triggers_and_polling(postgresql: str, tmp_path: Path) -> None:
    with small(tmp_path, "crm") as one:
        (one.folder / "sources" / "crm.yaml").unlink()
        prepared(postgresql, ["triggers", "polling"])
        for name, text in (("triggers", TRIGGERS), ("polling", POLLING)):
            (one.folder / "sources" / f"{name}.yaml").write_text(text)
        secret = one.folder / "secrets" / "crm.connection"
        secret.write_text(postgresql)
        secret.chmod(0o600)
        assert "FOR EACH ROW" in tidings(one, "source", "install", "triggers")
        said = tidings(one, "check", "--connect")
        assert "connect triggers: ready" in said
        assert "connect polling: ready" in said
        writers = [Writer(postgresql, name, n, None) for name in ("triggers", "polling") for n in range(10)]
        for writer in writers:
            writer.start()
        killed_twice(one, 11)
        committed = ended(writers)
        finished(one)
        polled = [told for told in committed if told.source == "polling"]
        judged_polling(one, polled)
        seen = {event.marker for event in history_of(one).journal if event.source == "polling"}
        judged(one, [told for told in committed if told.source == "triggers" or told.mail in seen])
        assert "DROP TRIGGER" in tidings(one, "source", "remove", "triggers")


def judged_polling(one: Small, committed: list[Told]) -> None:
    """States between two looks may be missing; a person's last one may not, and nothing comes that never was."""
    found = [event.marker for event in history_of(one).journal if event.source == "polling"]
    assert len(found) == len(set(found)), "a state came twice"
    assert set(found) <= {told.mail for told in committed}
    last: dict[int, Told] = {}
    kinds: dict[str, set[str]] = defaultdict(set)
    for told in committed:
        last[told.who] = max(last.get(told.who, told), told, key=lambda one: one.version)
    for event in history_of(one).journal:
        kinds[event.marker].add(event.change_type)
    assert {told.mail for told in last.values()} - set(found) == set(), "a last state is missing"
    inserts = [mail for mail, types in kinds.items() if "insert" in types and mail.startswith("polling.")]
    assert len(inserts) == len(last), "each person is new once"
