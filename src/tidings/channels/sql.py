"""Rows of PostgreSQL or MariaDB with the ids of their events beside them, in one transaction: the channel `sql`.

| what happens | outcome |
|---|---|
| committed | acknowledged, A3: the row had changed when the answer came |
| the event is in `tidings_delivered` already | acknowledged (`already_delivered`), nothing changed |
| a newer event of the subject was written before | acknowledged (`superseded_at_sink`), nothing changed |
| the table refuses the values (constraint, type) | terminal, for that member alone; the others are committed |
| no connection, a lock, a missing table or right | transient: the transaction was rolled back |
| the connection broke at COMMIT | in doubt; a repeat is harmless |

Members are written in their order in one transaction. `tidings_subjects` keeps the highest `subjectseq` of each
subject, also after its row was erased, so that nothing older ever overwrites or brings back a row. A table whose key
is the event itself (`key: event_id = member.event_id`) is a log: every event has its row and none is superseded.

What breaks its guarantee: somebody who empties `tidings_delivered` or `tidings_subjects`, a trigger with effects
outside the database, a MariaDB table without transactions, and a server that acknowledges COMMIT before the disk has
it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from tidings.channels.call import Call, Capabilities, Limits, Member, Outcome, Strength, all_members, never_raises
from tidings.channels.databases import DELIVERED, SUBJECTS, TABLES, Database, database_of
from tidings.channels.kinds import Guarantee, Opening
from tidings.channels.members import Held
from tidings.channels.normalise import ABSENT
from tidings.channels.projection import Projection, projection
from tidings.channels.transactions import Lost, Sessions, in_transaction, run

GUARANTEE = Guarantee(
    title="SQL table (PostgreSQL, MariaDB)",
    ack="the COMMIT of the row together with the event's id",
    strength="A3",
    order="as the lane's; an event older than the subject's last one changes nothing",
    dedup="`tidings_delivered`, in the same transaction, for as long as its rows are kept",
    breaks="emptying tidings_delivered or tidings_subjects; triggers with effects outside; tables without transactions;"
    " a server that answers COMMIT before its disk has it",
    capabilities=Capabilities(transaction=True, probe=True),
    extra="sql",
)
PING_S = 15.0


@dataclass(frozen=True)
class Writer:
    """One member's statements inside a transaction that somebody else begins and ends."""

    database: Database
    shape: Projection
    lane: str
    strength: Strength = "A3"
    most_bytes: int = 1_000_000
    remembers: bool = True  # keep the event's id and the subject's place beside the row

    def ready(self, member: Member) -> Outcome | None:
        """Why a member cannot become a row; known without asking the database, and the same each time."""
        try:
            size = sum(len(str(value).encode()) for value in self.shape.row_of(member).values())
            self._place(member)
            absent = self.shape.key_of(member) is ABSENT
        except (ValueError, TypeError, RecursionError):
            return Outcome(member.event_id, "refused", "unrenderable", detail="the event cannot be written as a row")
        if absent:
            detail = f"the event has no {self.shape.key[1]}, and it names the row"
            return Outcome(member.event_id, "refused", "missing_field", detail=detail)
        if size > self.most_bytes:
            detail = f"{size} bytes; at most {self.most_bytes}"
            return Outcome(member.event_id, "refused", "too_large", detail=detail)
        return None

    def _place(self, member: Member) -> tuple[str, str, int]:
        return self.lane, member.subject, int(member.body.get("subjectseq") or member.sequence or 0)

    def write(self, connection: Any, member: Member) -> Outcome:
        done = Outcome(member.event_id, "acknowledged", "ok", self.strength)
        if self.remembers:
            place = self._place(member)
            if not run(connection, self.database.remember(), (member.event_id, *place))[0]:
                return replace(done, code="already_delivered")
            if not self.shape.is_log and not run(connection, self.database.advance(), place)[0]:
                return replace(done, code="superseded_at_sink")
        table, key = self.database.quoted(*self.shape.table), self.database.quoted(self.shape.key[0])
        named = self.shape.key_of(member)
        if member.change_type in self.shape.erases:
            run(connection, f"DELETE FROM {table} WHERE {key} = %s", (named,))  # noqa: S608
            return done
        row = self.shape.row_of(member)
        columns = [self.database.quoted(column) for column in row]
        run(connection, self.database.upsert(table, key, columns), (named, *row.values()))
        return done


@dataclass(frozen=True)
class SqlChannel:
    limits: Limits
    writer: Writer
    sessions: Sessions = field(repr=False)

    @property
    def capabilities(self) -> Capabilities:
        return GUARANTEE.capabilities

    @never_raises
    def send(self, call: Call) -> list[Outcome]:
        found: dict[str, Outcome] = {}
        for member in call.members:
            if (reason := self.writer.ready(member)) is not None:
                found[member.event_id] = reason
        good = [member for member in call.members if member.event_id not in found]
        try:
            deadline = time.monotonic() + call.timeout_s
            found |= in_transaction(self.sessions, deadline, lambda connection: self._written(connection, good))
        except Lost as lost:
            return [found.get(each.event_id) or replace(lost.outcome, event_id=each.event_id) for each in call.members]
        return [found[member.event_id] for member in call.members]

    @never_raises
    def probe(self, call: Call) -> list[Outcome]:
        """What the table of delivered events says."""
        ids = [member.event_id for member in call.members]
        places = ", ".join(["%s"] * len(ids))
        asked = f"SELECT event_id FROM {DELIVERED} WHERE lane = %s AND event_id IN ({places})"  # noqa: S608
        try:
            rows = in_transaction(
                self.sessions,
                time.monotonic() + call.timeout_s,
                lambda connection: {str(row[0]) for row in run(connection, asked, (self.writer.lane, *ids))[1]},
            )
        except Lost as lost:
            return all_members(call, replace(lost.outcome, result="in_doubt"))
        yes = Outcome("", "acknowledged", "probed", self.writer.strength)
        no = Outcome("", "transient", "not_delivered")
        return [replace(yes if one in rows else no, event_id=one) for one in ids]

    def ping(self) -> Outcome:
        """The table, its key and our own two are there and can be read; nothing is written but what creates ours."""
        shape, database = self.writer.shape, self.writer.database
        names = [database.quoted(name) for name in (shape.key[0], *(shape.columns or ("envelope",)))]
        asked = f"SELECT {', '.join(names)} FROM {database.quoted(*shape.table)} WHERE 1 = 0"  # noqa: S608
        try:
            in_transaction(self.sessions, time.monotonic() + PING_S, lambda connection: run(connection, asked))
        except Lost as lost:
            return replace(lost.outcome, event_id="ping")
        return Outcome("ping", "acknowledged", "ok")

    def close(self) -> None:
        self.sessions.close()

    def _written(self, connection: Any, members: Sequence[Member]) -> dict[str, Outcome]:
        """All members, at first without savepoints; if one of them is bad once more with, so that it falls alone."""
        run(connection, "SAVEPOINT tidings_call")
        try:
            return {member.event_id: self.writer.write(connection, member) for member in members}
        except Exception as error:
            if not self.writer.database.bad_row(error):
                raise
        run(connection, "ROLLBACK TO SAVEPOINT tidings_call")
        held, found = Held(), {}
        for member in members:
            found[member.event_id] = held.unless(member, lambda one: self._alone(connection, one))
        return found

    def _alone(self, connection: Any, member: Member) -> Outcome:
        run(connection, "SAVEPOINT tidings_member")
        try:
            outcome = self.writer.write(connection, member)
        except Exception as error:
            if not self.writer.database.bad_row(error):
                raise
            run(connection, "ROLLBACK TO SAVEPOINT tidings_member")
            detail = "the table refuses the values"
            return Outcome(member.event_id, "terminal", self.writer.database.code(error), detail=detail)
        run(connection, "RELEASE SAVEPOINT tidings_member")
        return outcome


def own_tables(connection: Any) -> None:
    """Make our two tables where they are missing; docs/channels.md shows them for users that may not make any."""
    for name, statement in zip((DELIVERED, SUBJECTS), TABLES, strict=True):
        look = f"SELECT 1 FROM {name} WHERE 1 = 0"  # noqa: S608
        try:
            run(connection, look)
        except Exception:
            with suppress(Exception):  # another session made it at the same moment; looking decides
                run(connection, statement)
            run(connection, look)


def open_sink(opening: Opening) -> SqlChannel:
    database = database_of(opening.connection, opening.network)
    sink = opening.manifest.sink
    assert sink is not None
    shape = projection(opening.variables, opening.manifest.fields)
    writer = Writer(database, shape, opening.name, sink.ack, opening.limits.max_bytes)
    return SqlChannel(opening.limits, writer, Sessions(database, own_tables))
