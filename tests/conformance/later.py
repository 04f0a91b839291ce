"""Around a channel whose yes comes later: the lane's books, without Spark, and whoever answers.

A send is then what a user sees of it from end to end. What the channel accepted is put down in a real operator's tables, the one
it was for answers as they would (over the API, or with `tidings lanes acknowledge`), and the lane takes the answer up. An
acknowledgement of the suite is one that those tables count.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sinks import Around, Member
from typer.testing import CliRunner

from tidings.channels.call import Call, Channel, Outcome
from tidings.cli import application
from tidings.lanes import attempts
from tidings.lanes.job import wire_subject
from tidings.lanes.lane import Tables
from tidings.lanes.member import Feed, PlannedCall, Sent
from tidings.lanes.orders import Orders
from tidings.lanes.semantics import judge
from tidings.lanes.slices import feeds
from tidings.report.account import ends
from tidings.seal.keyfiles import KeyFiles
from tidings.store import Store

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))
from lane_stage import BATCH, Journal, operator  # isort: skip

FEED = Feed("crm", "g1")


class Desk:
    """An operator's folder, and lanes that put down what was accepted and take up what was answered."""

    def __init__(self, folder: Path, subscribers: Mapping[str, str], secrets: Mapping[str, str]) -> None:
        for part in ("subscribers", "secrets"):
            (folder / part).mkdir(parents=True)
        for name, lines in subscribers.items():
            (folder / f"subscribers/{name}.yaml").write_text(f"{lines}\nrole: service\nregion: US\ndpa: true\n")
        for name, text in secrets.items():
            (folder / f"secrets/{name}").write_text(text)
            (folder / f"secrets/{name}").chmod(0o600)
        self.folder, self.settings = folder, operator(folder, {})
        self.store = Store(self.settings.data_path / "tables")
        keys = KeyFiles(self.settings.data_path / "keys", self.settings.keyring.derive("kek"))
        self.tables = Tables(self.store, keys, self.settings)
        self.journal, self.lock = Journal(self.settings, self.store), threading.RLock()
        self._put_down: set[tuple[str, str]] = set()
        self._version = 0

    def accepted(self, lane: str, those: Sequence[tuple[Member, Outcome]]) -> None:
        """A call of the lane in which these members were accepted; what is open or over already stays as it is."""
        new = [(one, outcome) for one, outcome in those if (lane, one.event_id) not in self._put_down]
        if not new:
            return
        first = self.journal.number * BATCH
        own = [(one.event_id, one.body["data"]) for one, _ in new]
        self.journal.batch([(one.subject, {lane: "allow"}) for one, _ in new], own=own)
        work = self.tables.restore(self.settings.subscribers[lane], feeds(self.store))
        rules, seq, now = work.state.rules, work.state.seq + 1, time.time()
        sent = tuple(Sent(one.event_id, first + n, "at-least-once", 1, "email") for n, (one, _) in enumerate(new))
        call = PlannedCall(lane, seq, FEED, "send", sent, now, False)
        told = judge(rules, call, [outcome for _, outcome in new], now, now)
        row = attempts.made_row(rules, call, told, (now, now), work.job.by)
        cursors = {**work.transactions(), f"lane/{lane}": seq, f"lane/{lane}/{FEED}": first + len(new) - 1}
        self._commit([row], cursors)
        self._put_down |= {(lane, one.event_id) for one, _ in new}

    def take_up(self, lane: str) -> None:
        """The answers given since, as the cycle takes them up."""
        work = self.tables.restore(self.settings.subscribers[lane], feeds(self.store))
        rows = Orders(self.tables, "tidings/shop").take([work], time.time())
        if rows:
            self._commit(rows, work.transactions())

    def counted(self, lane: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Outcomes as the books have them by now."""
        known = ends(self.store, {one.event_id for one in outcomes})
        found = []
        for one in outcomes:
            end = known.get((one.event_id, lane))
            if one.result == "accepted" and end is not None and end.final:
                assert end.finals == ["acknowledged"], f"{end.finals} and not one acknowledgement"
                one = replace(one, result="acknowledged", code="ok", strength=end.strength)  # type: ignore[arg-type]
            found.append(one)
        return found

    def pseudonyms(self, lane: str, subjects: Collection[str]) -> dict[str, str]:
        """What the subscriber calls these people → what the suite calls them."""
        ring = self.settings.keyring
        tags = {who: ring.tag("shop", "customer", json.dumps([who])) for who in subjects}
        return {wire_subject(ring.derive("wire"), lane, tag): who for who, tag in tags.items()}

    def verb(self, *words: str) -> Any:
        """`tidings lanes …` as a person types it; an error is raised."""
        told = CliRunner().invoke(application("lanes"), ["lanes", *words, "-C", str(self.folder), "--json"])
        if told.exception is not None:
            raise told.exception
        return json.loads(told.stdout)

    def _commit(self, rows: list[dict[str, Any]], cursors: dict[str, int]) -> None:
        folder = self.store.fresh("attempts")
        attempts.write(rows, folder)
        self._version += 1
        self.store.commit("attempts", folder, app="lanes", version=self._version, cursors=cursors)


class Answered(Around):
    """A channel with its lane and its reader. `answers` has so many seconds, and returns the events it was told are answered for."""

    def __init__(self, channel: Channel, desk: Desk, lane: str, answers: Callable[[float], set[str]]) -> None:
        super().__init__(channel)
        self.desk, self.lane, self.answers = desk, lane, answers
        self.subjects: dict[str, str] = {}  # of every event that was sent

    def send(self, call: Call) -> list[Outcome]:
        end = time.monotonic() + call.timeout_s
        outcomes = self.channel.send(call)
        assert all(outcome.result != "acknowledged" for outcome in outcomes), "nobody has answered yet"
        self.subjects |= {one.event_id: one.subject for one in call.members}
        with self.desk.lock:
            both = zip(call.members, outcomes, strict=True)
            self.desk.accepted(self.lane, [(one, told) for one, told in both if told.result == "accepted"])
            taken = self.answers(max(0.1, end - time.monotonic()))
            self.desk.take_up(self.lane)
            said = self.desk.counted(self.lane, outcomes)
        lost = taken & {one.event_id for one in said if one.result != "acknowledged"}
        assert not lost, "answers that were taken and not counted"
        return said

    def probe(self, call: Call) -> list[Outcome]:
        return self.desk.counted(self.lane, self.channel.probe(call))
