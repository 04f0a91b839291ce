"""Rows in a PostgreSQL table by two-phase commit, with nothing of ours in the database: the channel `twophase`.

`send` writes a call's members and ends with PREPARE TRANSACTION under a name made of the lane and the call's number:
*accepted*. Once that is recorded, `probe` says COMMIT PREPARED: *acknowledged*. What a crash leaves in doubt is read
off the server:

| recorded as accepted | prepared under that name | so | outcome of `probe` |
|---|---|---|---|
| yes | yes | we died before the commit | committed now: acknowledged |
| yes | no | we died after the commit | acknowledged |
| no | yes | we died before the record | rolled back now: transient, it is sent again |
| no | no | it was never prepared | transient: it is sent again |

So only what is on record is ever committed. A call is recorded for all its members at once and committed for all of
them at once, while each is asked about in its own time: committing for one member what another has no record of would send
that one twice. The last two rows hold only if the doubtful call cannot prepare any more, so its session, which carries
the name, is ended first. A call with a bad member prepares nothing: the bad one is terminal, the others come again at
once without it.

What breaks its guarantee: somebody else who commits or rolls back what we prepared; two installations with the same
lane name and `vars.prefix` in one server; a server restored from a copy; a trigger with effects outside the database.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tidings.channels.call import Call, Capabilities, Limits, Member, Outcome, never_raises
from tidings.channels.databases import PostgreSql, database_of
from tidings.channels.kinds import Guarantee, Opening
from tidings.channels.projection import projection
from tidings.channels.sql import PING_S, Writer
from tidings.channels.transactions import Lost, Sessions, in_transaction, run
from tidings.errors import Refused

GUARANTEE = Guarantee(
    title="SQL table by two-phase commit (PostgreSQL)",
    ack="COMMIT PREPARED, said only after the prepared transaction is on our record",
    strength="A3",
    order="as the lane's; a subject waits while its last event is prepared and not committed",
    dedup="none is needed: a call's transaction is committed once, under its own name",
    breaks="committing or rolling back our prepared transactions by hand; the same lane name and prefix in two"
    " installations; a server restored from a copy",
    capabilities=Capabilities(two_phase=True),
    extra="sql",
)
TAKEN = "42710"  # this name is prepared already
NOT_THERE = "42704"
END_MS = 5000


@dataclass(frozen=True)
class TwoPhaseChannel:
    limits: Limits
    writer: Writer
    sessions: Sessions = field(repr=False)
    prefix: str = "tidings"

    @property
    def capabilities(self) -> Capabilities:
        return GUARANTEE.capabilities

    def named(self, number: int) -> str:
        """The name a call is prepared under."""
        return f"{self.prefix}-{self.writer.lane}-{number}"

    @never_raises
    def send(self, call: Call) -> list[Outcome]:
        refused = {one.event_id: why for one in call.members if (why := self.writer.ready(one)) is not None}
        good = [member for member in call.members if member.event_id not in refused]
        found = self._prepared(call, good) if good else {}
        return [
            refused.get(one.event_id) or replace(found[one.event_id], event_id=one.event_id) for one in call.members
        ]

    @never_raises
    def probe(self, call: Call) -> list[Outcome]:
        groups: dict[tuple[str, bool], list[Member]] = {}
        found: dict[str, Outcome] = {}
        for member in call.members:
            # A member that was refused before its call was prepared is no part of it.
            if (why := self.writer.ready(member)) is not None:
                found[member.event_id] = why
                continue
            name = member.reference or self.named(member.sent_in)
            groups.setdefault((name, bool(member.reference)), []).append(member)
        deadline = time.monotonic() + call.timeout_s
        for (name, recorded), members in groups.items():
            outcome = self._resolved(name, recorded, deadline)
            found |= {member.event_id: replace(outcome, event_id=member.event_id) for member in members}
        return [found[member.event_id] for member in call.members]

    def ping(self) -> Outcome:
        """The table is there and the server keeps prepared transactions at all."""
        shape, database = self.writer.shape, self.writer.database
        names = [database.quoted(name) for name in (shape.key[0], *(shape.columns or ("envelope",)))]
        asked = f"SELECT {', '.join(names)} FROM {database.quoted(*shape.table)} WHERE 1 = 0"  # noqa: S608

        def look(connection: Any) -> int:
            run(connection, asked)
            return int(run(connection, "SHOW max_prepared_transactions")[1][0][0])

        try:
            most = in_transaction(self.sessions, time.monotonic() + PING_S, look)
        except Lost as lost:
            return replace(lost.outcome, event_id="ping")
        if most == 0:
            most = self.limits.concurrency
            now = f"max_prepared_transactions is 0: set it to {most} or more for each lane and restart the server"
            return Outcome("ping", "refused", "prepared_transactions_off", detail=now)
        return Outcome("ping", "acknowledged", "ok")

    def close(self) -> None:
        self.sessions.close()

    def left_prepared(self) -> list[int]:
        """The numbers of this lane's calls that are prepared and not committed."""
        found = in_transaction(self.sessions, time.monotonic() + PING_S, lambda connection: self._names(connection))
        start = self.named(0)[:-1]
        rest = [name.removeprefix(start) for name in found if name.startswith(start)]
        return sorted(int(number) for number in rest if number.isdigit())

    def roll_back(self, resolved: Collection[int]) -> list[int]:
        """Undo what these calls left prepared: only calls that the caller knows to be resolved otherwise."""
        orphans = [number for number in self.left_prepared() if number in resolved]
        for number in orphans:
            self._ended("ROLLBACK PREPARED", self.named(number), time.monotonic() + PING_S)
        return orphans

    def _prepared(self, call: Call, members: Sequence[Member]) -> dict[str, Outcome]:
        name = self.named(call.number)
        bad: list[Outcome] = []

        def work(connection: Any) -> None:
            run(connection, "SELECT set_config('application_name', %s, true)", (_label(name),))
            for member in members:
                try:
                    self.writer.write(connection, member)
                except Exception as error:
                    if self.writer.database.bad_row(error):
                        code = self.writer.database.code(error)
                        bad.append(Outcome(member.event_id, "terminal", code, detail="the table refuses the values"))
                    raise

        try:
            in_transaction(self.sessions, time.monotonic() + call.timeout_s, work, f"PREPARE TRANSACTION {_text(name)}")
        except Lost as lost:
            others = lost.outcome
            if bad:
                others = Outcome("", "throttled", "beside_bad_row", retry_after=0.0, detail="comes again without it")
            elif others.code == f"sql_{TAKEN}":
                others = replace(others, result="in_doubt", detail="the name is prepared already")
            found = {member.event_id: others for member in members}
            return found | {outcome.event_id: outcome for outcome in bad}
        waiting = Outcome("", "accepted", "prepared", reference=name)
        return {member.event_id: waiting for member in members}

    def _resolved(self, name: str, recorded: bool, deadline: float) -> Outcome:
        """What became of one call, and its commit where that is on record."""
        if recorded:
            return self._committed(name, deadline)
        try:
            there = in_transaction(self.sessions, deadline, lambda connection: self._fenced(connection, name))
            if there:
                self._ended("ROLLBACK PREPARED", name, deadline)
        except Lost as lost:
            return replace(lost.outcome, result="in_doubt")
        return Outcome("", "transient", "rolled_back" if there else "never_prepared")

    def _committed(self, name: str, deadline: float) -> Outcome:
        try:
            self._ended("COMMIT PREPARED", name, deadline)
        except Lost as lost:
            if lost.outcome.code != f"sql_{NOT_THERE}":
                return replace(lost.outcome, result="in_doubt", reference=name)
        return Outcome("", "acknowledged", "committed", self.writer.strength, reference=name)

    def _ended(self, how: str, name: str, deadline: float) -> None:
        """COMMIT PREPARED or ROLLBACK PREPARED; neither may stand inside a transaction, so an empty one ends first."""

        def work(connection: Any) -> None:
            run(connection, "COMMIT")
            run(connection, f"{how} {_text(name)}")
            run(connection, "BEGIN")

        in_transaction(self.sessions, deadline, work)

    def _fenced(self, connection: Any, name: str) -> bool:
        """Whether it is prepared, once the session that might still prepare it is gone."""
        ended = run(
            connection,
            "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity"
            " WHERE application_name = %s AND pid <> pg_backend_pid()",
            (END_MS, _label(name)),
        )
        if not all(row[0] for row in ended[1]):
            raise TimeoutError("the doubtful session does not end")
        return name in self._names(connection)

    def _names(self, connection: Any) -> list[str]:
        asked = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        return [str(row[0]) for row in run(connection, asked)[1]]


def _text(name: str) -> str:
    """A literal, since these statements take no parameters: a prefix and a lane's letters, checked at the start."""
    assert "'" not in name
    return f"'{name}'"


def _label(name: str) -> str:
    """What a session calls itself while it works on this call; the server keeps 63 letters of it, so a digest."""
    return f"tidings {hashlib.sha256(name.encode()).hexdigest()[:40]}"


def open_sink(opening: Opening) -> TwoPhaseChannel:
    database = database_of(opening.connection, opening.network)
    prefix = opening.variables["prefix"]
    if not isinstance(database, PostgreSql) or not re.fullmatch("[A-Za-z0-9_]{1,32}", prefix):
        expected = "PostgreSQL, and a `prefix` of at most 32 letters, digits and _"
        raise Refused("sink_connection", "another database or prefix", expected, "Mend `connection:` or `vars:`.")
    sink = opening.manifest.sink
    assert sink is not None
    shape = projection(opening.variables, opening.manifest.fields)
    writer = Writer(database, shape, opening.name, sink.ack, opening.limits.max_bytes, remembers=False)
    return TwoPhaseChannel(opening.limits, writer, Sessions(database), prefix)
