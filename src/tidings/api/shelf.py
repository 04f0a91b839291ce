"""What a subscriber may read now: what its lane has offered and nobody has answered for, as far as the gate still lets it leave.

The offers are read from the attempts, from the lane's oldest open call on; the answers from the requests of the lane. An event is
opened with its key as it is at this moment, so whoever was erased is not there, and passes the gate at send again: a consent that was
withdrawn since, or a stricter policy, keeps it back. Nothing is kept in memory beyond the list of open places.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds

from tidings.api.cursors import Place
from tidings.gate.again import Again
from tidings.gate.decisions import DecisionTable, decided_in
from tidings.gate.loading import load_policy
from tidings.gate.policy import Policy
from tidings.lanes import control
from tidings.lanes.cargo import ROW
from tidings.lanes.disputes import resolutions
from tidings.lanes.job import wire_subject
from tidings.lanes.member import Feed
from tidings.lanes.policies import in_force, in_force_since
from tidings.lanes.slices import Sealed, keys_of
from tidings.seal.keyfiles import KeyFiles
from tidings.seal.keyring import associated, open_payload
from tidings.settings import Settings, load
from tidings.stages.envelope import addressed
from tidings.store import Store

ANSWERS = ("acknowledge", "reject")
POLICY_EVERY_S = 10.0  # how soon a new policy holds here as well


class Offer(NamedTuple):
    """One open delivery."""

    place: Place
    event_id: str
    feed: Feed
    offset: int
    change_type: str
    attempt: int


@dataclass
class _Known:
    """One lane as it was read last."""

    version: int | None = None
    offers: list[Offer] = field(default_factory=list)
    taken: int = 0  # requests that the lane had taken up
    size: int = -1
    asked: list[control.Request] = field(default_factory=list)


class Shelf:
    """Safe to use from several threads."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.store = settings, Store(settings.data_path / "tables")
        self.keys = KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek"))
        self._wire = settings.keyring.derive("wire")
        self._lanes = {name: _Known() for name in settings.subscribers}
        self._lock = threading.Lock()
        self.answering = threading.Lock()  # held from the look at what is open until the answer is written
        self._gate: Again | None = None
        self._policy, self._looked, self._met = "", 0.0, -1

    def page(self, lane: str, after: Place, limit: int) -> list[tuple[Place, dict[str, Any]]]:
        """Open events after a place, in the order they were offered; what may not leave any more is passed over."""
        found: list[tuple[Place, dict[str, Any]]] = []
        offers = [offer for offer in self.offers(lane) if offer.place > after]
        for start in range(0, len(offers), limit):
            found += self._opened(lane, offers[start : start + limit])
            if len(found) >= limit:
                break
        return found[:limit]

    def offers(self, lane: str) -> list[Offer]:
        """Everything open, oldest first."""
        with self._lock:
            known, version = self._lanes[lane], self.store.version("attempts")
            if version != known.version:
                # First how many answers were taken up: one that is taken up meanwhile is then counted twice, not left out.
                known.taken = self.store.transaction_version("attempts", f"control/{lane}") or 0
                known.offers, known.version = self._offered(lane), version
            waiting = _answers(self._asked(lane)[known.taken :])
            return [offer for offer in known.offers if offer.event_id not in waiting]

    def answered(self, lane: str) -> dict[str, str]:
        """Event → the last answer that was given for it, taken up or not."""
        with self._lock:
            return _answers(self._asked(lane))

    def _asked(self, lane: str) -> list[control.Request]:
        known = self._lanes[lane]
        [size] = control.marks(self.settings.data_path, [lane])
        if size != known.size:
            known.asked, known.size = control.asked(self.settings.data_path, lane), size
        return known.asked

    def _offered(self, lane: str) -> list[Offer]:
        since = self.store.transaction_version("attempts", f"lane/{lane}/since") or 1
        files = self.store.files("attempts", column="cycle", above=since - 1, where={"lane": lane})
        if not files:
            return []
        look = (ds.field("lane") == lane) & (ds.field("cycle") >= since) & ~ds.field("intent")
        rows = self.store.arrow("attempts", ["cycle", "members"], files=files, filter=look).sort_by("cycle")
        found: dict[str, Offer] = {}
        for row in rows.to_pylist():
            for index, member in enumerate(row["members"] or ()):
                event_id = member["event_id"]
                if member["final"] is not None or member["result"] == "transient":
                    found.pop(event_id, None)
                elif member["result"] == "accepted" and event_id not in found:
                    feed = Feed(member["source"], member["generation"])
                    rest = (member["offset"], member["change_type"] or "", member["attempt"] or 0)
                    found[event_id] = Offer(Place(row["cycle"], index), event_id, feed, *rest)
        return sorted(found.values())

    def _opened(self, lane: str, offers: Sequence[Offer]) -> list[tuple[Place, dict[str, Any]]]:
        sealed, rows = self._sealed(offers), self._rows(offers)
        passed = self._passed(lane, [o for o in offers if o.event_id in sealed and o.event_id in rows], sealed, rows)
        found = []
        for offer in offers:
            if offer.event_id in passed:
                tag, key, _ = sealed[offer.event_id]
                row, hidden = rows[offer.event_id], passed[offer.event_id]
                plain = open_payload(key, associated("journal", offer.event_id, "payload"), row["payload"])
                wire = wire_subject(self._wire, lane, tag)
                found.append((offer.place, addressed(row, wire, json.loads(plain), sorted(hidden))))
        return found

    def _sealed(self, offers: Sequence[Offer]) -> dict[str, Sealed]:
        found: dict[str, Sealed] = {}
        for feed in {offer.feed for offer in offers}:
            wanted = {offer.offset: offer.event_id for offer in offers if offer.feed == feed}
            found |= keys_of(self.store, self.keys, feed, wanted)
        return found

    def _rows(self, offers: Sequence[Offer]) -> dict[str, dict[str, Any]]:
        """The journal's rows, without those whose payload is gone."""
        found: dict[str, dict[str, Any]] = {}
        for feed in {offer.feed for offer in offers}:
            offsets = sorted(offer.offset for offer in offers if offer.feed == feed)
            files = self.store.files("journal", column="offset", above=offsets[0] - 1, where=dict(feed._asdict()))
            look = (ds.field("source") == feed.source) & (ds.field("generation") == feed.generation)
            look &= ds.field("offset").isin(pa.array(offsets, pa.int64())) & ds.field("payload").is_valid()
            rows = self.store.arrow("journal", ROW, files=files, filter=look).to_pylist()
            found |= {row["event_id"]: row for row in rows}
        return found

    def _passed(
        self, lane: str, offers: Sequence[Offer], sealed: dict[str, Sealed], rows: dict[str, dict[str, Any]]
    ) -> dict[str, set[str]]:
        """Event → the fields that must not go with it, of those that may leave."""
        decided = decided_in(self.store.decisions)
        asked = [
            {"lane": lane, "event_id": one.event_id, "tag": sealed[one.event_id].tag, "source": one.feed.source}
            | {"generation": one.feed.generation, "offset": one.offset, "change_type": one.change_type}
            | {"attempt": one.attempt, "since": rows[one.event_id]["recorded"].timestamp()}
            for one in offers
        ]
        verdicts = self.gate()(asked) if asked else {}
        passed = {}
        for one in offers:
            verdict = verdicts.get((lane, one.event_id))
            if verdict is None or isinstance(verdict, frozenset):
                own = decided.choices(sealed[one.event_id].decision)[lane]["redact"]
                passed[one.event_id] = {*own, *(verdict or ())}
        return passed

    def gate(self) -> Again:
        """The gate under the policy in force, which the running process names, with every situation it has met so far."""
        with self._lock:
            now = time.monotonic()
            if self._gate is None or now - self._looked > POLICY_EVERY_S:
                said, self._looked = in_force(self.store), now
                if self._gate is None or said != self._policy:
                    self._gate, self._policy = self._gated(load_policy(load(self.settings.directory))), said
            if _size(self._gate.table.path) != self._met:
                self._gate = self._gated(self._gate.table.policy)
            return self._gate

    def _gated(self, policy: Policy) -> Again:
        words = partial(resolutions, self.settings.data_path)
        self._met = _size(
            self.store.decisions / f"{policy.digest}.jsonl"
        )  # before it is read: what comes meanwhile is seen next
        table = DecisionTable(self.store.decisions, policy, looking=True)
        return Again(self.store, table, words, in_force_since(self.store))


def _answers(asked: Sequence[control.Request]) -> dict[str, str]:
    spoken = [one for one in asked if one.action in ANSWERS]
    return {event: one.action for one in spoken for event in (*one.events, one.event) if event}


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
