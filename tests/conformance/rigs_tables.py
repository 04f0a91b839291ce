"""Rigs of the sinks that are tables: real servers from Debian, and Delta in a folder."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
from deltalake import DeltaTable
from sinks import Around, Arrived, Rig, call, family, members

from tidings.channels.call import Call, Capabilities, Channel, Outcome

from mysql_server import OPTIONS, MariaDb, programs  # isort: skip  (its folder is put on the path by `sinks`)
from postgres_server import Database  # isort: skip

LOG = {"key": "event_id = member.event_id", "columns": "subject = member.subject, body = envelope"}
TABLE = "(event_id varchar(64) PRIMARY KEY, subject varchar(64), body {json})"
# What happened to the table, one row for each time: an overwritten row would hide a second effect.
EFFECTS = "(n {serial}, body {json}, UNIQUE (n))"
NOTED = """
CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
EXECUTE format('INSERT INTO %I (body) VALUES ($1)', TG_TABLE_NAME || '_effects') USING NEW.body; RETURN NEW; END $$
"""


class PostgreSqlRig(Rig):
    manifest = "postgresql"
    missing = frozenset({"sql_42P01"})

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tidings-pg-"))
        self.database = Database(self.folder)
        rules = self.database.data / "pg_hba.conf"
        rules.write_text(f"host all writer 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        self._numbers = count(1)
        self._made = False

    def start(self) -> None:
        self.database.start()
        if not self._made:
            with psycopg.connect(self.database.address, autocommit=True) as db:
                db.execute(f"CREATE ROLE writer LOGIN PASSWORD '{self.password}'")
                db.execute("GRANT CREATE ON SCHEMA public TO writer")
                db.execute(NOTED)
            self._made = True

    def stop(self) -> None:
        self.database.stop()

    def kill(self) -> None:
        assert self.database.server is not None
        all_of_it = self.pids()
        for pid in all_of_it:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.database.server.wait(60)
        end = time.monotonic() + 10
        while any(Path(f"/proc/{pid}").exists() for pid in all_of_it) and time.monotonic() < end:
            time.sleep(0.02)

    def pids(self) -> list[int]:
        """The server's own first: the program that changed the user stops and goes on as its child does."""
        assert self.database.server is not None
        postmaster = int((self.database.data / "postmaster.pid").read_text().splitlines()[0])
        return [*family(postmaster), *({self.database.server.pid} - {postmaster})]

    def end(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def connection(self, password: str) -> str:
        return f"postgresql://writer:{password}@127.0.0.1:{self.database.port}/postgres"

    def place(self) -> dict[str, Any]:
        name = f"place{next(self._numbers)}"
        with psycopg.connect(self.connection(self.password), autocommit=True) as db:
            db.execute(f"CREATE TABLE {name} " + TABLE.format(json="jsonb"))
            db.execute(f"CREATE TABLE {name}_effects " + EFFECTS.format(serial="bigserial", json="jsonb"))
            when = f"AFTER INSERT OR UPDATE ON {name} FOR EACH ROW EXECUTE FUNCTION noted()"
            db.execute(f"CREATE TRIGGER noted {when}")
            db.execute("DROP TABLE IF EXISTS tidings_delivered, tidings_subjects")
        return {"table": name, **LOG}

    def nowhere(self) -> dict[str, Any]:
        return {"table": "nowhere", **LOG}

    def arrived(self, place: Mapping[str, Any]) -> list[Arrived]:
        with psycopg.connect(self.connection(self.password), autocommit=True) as db:
            rows = db.execute(f"SELECT body FROM {place['table']}_effects ORDER BY n").fetchall()
        return [Arrived(body["id"], body["subject"], body) for (body,) in rows]


class TwoSteps(Around):
    """A channel by two-phase commit, and the part of a lane in it: what was accepted is recorded, and asked about."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel)
        self.record = dict[str, str]()

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.channel.capabilities, probe=True)

    def send(self, call: Call) -> list[Outcome]:
        outcomes = self.channel.send(call)
        assert all(outcome.result != "acknowledged" for outcome in outcomes)
        taken = {one.event_id: one.reference for one in outcomes if one.result == "accepted"}
        self.record |= taken
        waiting = tuple(member for member in call.members if member.event_id in taken)
        told = {one.event_id: one for one in self.probe(replace(call, members=waiting))} if waiting else {}
        return [told.get(outcome.event_id, outcome) for outcome in outcomes]

    def probe(self, call: Call) -> list[Outcome]:
        known = [replace(member, reference=self.record.get(member.event_id, "")) for member in call.members]
        return self.channel.probe(replace(call, members=tuple(known)))


class TwoPhaseRig(PostgreSqlRig):
    manifest = "postgresql_two_phase"

    def open(self, place: Mapping[str, Any], **own: Any) -> Any:
        return TwoSteps(super().open(place, **own))

    def special(self, place: Mapping[str, Any], channel: Any) -> None:
        """What is accepted has not happened yet."""
        super().special(place, channel.channel)
        assert {one.result for one in channel.channel.send(call(*members(1, 3)))} == {"accepted"}
        assert self.arrived(place) == []
        assert channel.channel.roll_back({1}) == [1]


class MariaDbRig(Rig):
    manifest = "mariadb"
    missing = frozenset({"sql_1146"})

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tidings-my-"))
        user = ["--user=mysql"] if os.geteuid() == 0 else []
        if user:
            shutil.chown(self.folder, "mysql")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        make = [programs()[1], "--no-defaults", *user, f"--datadir={self.folder / 'data'}"]
        make += ["--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run(make, check=True, capture_output=True, cwd=self.folder, timeout=120)
        self.server = MariaDb(self.folder, port, 1, OPTIONS)
        self._numbers = count(1)
        self._made = False

    def start(self) -> None:
        self.server.start()
        if not self._made:
            self.server.run(
                "CREATE DATABASE sink",
                f"CREATE USER writer@'%' IDENTIFIED BY '{self.password}'",
                "GRANT ALL ON sink.* TO writer@'%'",
            )
            self._made = True

    def stop(self) -> None:
        self.server.stop()

    def kill(self) -> None:
        self.server.stop(crash=True)

    def pids(self) -> list[int]:
        assert self.server.process is not None
        return family(self.server.process.pid)

    def end(self) -> None:
        self.server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def connection(self, password: str) -> str:
        return f"mariadb://writer:{password}@127.0.0.1:{self.server.port}/sink"

    def place(self) -> dict[str, Any]:
        name = f"place{next(self._numbers)}"
        self.server.run(
            f"CREATE TABLE sink.{name} " + TABLE.format(json="json"),
            f"CREATE TABLE sink.{name}_effects " + EFFECTS.format(serial="bigint auto_increment", json="json"),
            *(
                f"CREATE TRIGGER sink.{name}_{when} AFTER {when} ON sink.{name} FOR EACH ROW"
                f" INSERT INTO sink.{name}_effects (body) VALUES (NEW.body)"
                for when in ("insert", "update")
            ),
            "DROP TABLE IF EXISTS sink.tidings_delivered",
            "DROP TABLE IF EXISTS sink.tidings_subjects",
        )
        return {"table": name, **LOG}

    def nowhere(self) -> dict[str, Any]:
        return {"table": "nowhere", **LOG}

    def arrived(self, place: Mapping[str, Any]) -> list[Arrived]:
        bodies = [
            json.loads(row[0]) for row in self.server.run(f"SELECT body FROM sink.{place['table']}_effects ORDER BY n")
        ]
        return [Arrived(body["id"], body["subject"], body) for body in bodies]


class DeltaRig(Rig):
    manifest = "delta_table"
    stoppable = guarded = locked = False  # a folder

    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tidings-delta-"))
        self._numbers = count(1)

    def end(self) -> None:
        shutil.rmtree(self.folder)

    def connection(self, password: str) -> str:
        return ""

    def place(self) -> dict[str, Any]:
        return {"path": str(self.folder / f"place{next(self._numbers)}")}

    def arrived(self, place: Mapping[str, Any]) -> list[Arrived]:
        if not Path(place["path"]).exists():
            return []
        rows = DeltaTable(place["path"]).to_pyarrow_table().sort_by([("call", "ascending"), ("place", "ascending")])
        return [Arrived(row["id"], row["subject"]) for row in map(json.loads, rows["envelope"].to_pylist())]


RIGS: list[type[Rig]] = [PostgreSqlRig, TwoPhaseRig, MariaDbRig, DeltaRig]
