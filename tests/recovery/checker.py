"""Holds everything that happened against everything that should have: a history is judged as a whole, from the tables,
the ledger and the subscribers' own books. It finds; it does not raise.

    lost          an event that is not journalled, or that a subscriber who was promised it never got
    duplicate     an event journalled twice, an exactly-once effect that happened twice, an at-most-once call made twice
    phantom       an event nobody wrote, or a call no decision speaks of
    disorder      a subject's events that a subscriber first met in another order than they were committed in
    account       a pair without exactly one end
    entry         ledger bytes that do not follow the vocabulary
    ledger        a ledger that does not verify, that forgot a head it once published, or that does not hold what the tables hold
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from small import SUBSCRIBERS, Expected, Small

from tidings.errors import TidingsError
from tidings.ledger.classes import class_logs
from tidings.ledger.merkle import leaf_hash, root_of
from tidings.ledger.note import Checkpoint, split
from tidings.ledger.tiles import WIDTH, Tiles
from tidings.ledger.verification import verify_ledger
from tidings.ledger.vocabulary import validate_entry
from tidings.report.account import ends, reconcile
from tidings.seal.keyfiles import KeyFiles
from tidings.seal.keyring import associated, open_payload
from tidings.verbs.status import totals

Found = list[str]


@dataclass(frozen=True)
class Event:
    """A journal row as far as a judge needs it, with its payload opened."""

    event_id: str
    source: str
    change_type: str
    marker: str
    place: tuple[str, int] = ("", 0)  # generation and offset: comparable inside a generation

    @property
    def what(self) -> tuple[str, str, str]:
        return self.source, self.change_type, self.marker


@dataclass(frozen=True)
class Arrival:
    """One request as the subscriber wrote it down."""

    subscriber: str
    key: str
    event_id: str
    subject: str
    marker: str


@dataclass
class History:
    """What was wanted, what we say happened, what the subscribers say happened."""

    expected: list[Expected]
    journal: list[Event]
    arrivals: list[Arrival]
    finals: Mapping[tuple[str, str], str] = field(default_factory=dict)  # (event, subscriber) → how it ended
    semantics: Mapping[str, str] = field(default_factory=lambda: SUBSCRIBERS)


def wrong_so_far(history: History) -> Found:
    """What must never be true at any instant, also not between a crash and its recovery."""
    return [*_journal_twice(history), *_phantoms(history), *_twice(history), *_disorder(history)]


def wrong(history: History) -> Found:
    """What must not be true when everything is done."""
    return wrong_so_far(history) + _lost(history)


def _journal_twice(history: History) -> Found:
    ids = Counter(event.event_id for event in history.journal)
    facts = Counter(event.what for event in history.journal)
    found = [f"duplicate: event {name} is journalled {count} times" for name, count in ids.items() if count > 1]
    return found + [f"duplicate: {what} is journalled {count} times" for what, count in facts.items() if count > 1]


def _phantoms(history: History) -> Found:
    wanted = {(e.source, e.change_type, e.marker) for e in history.expected}
    known = {event.event_id: event for event in history.journal}
    found = [f"phantom: {e.what} is journalled and nobody wrote it" for e in history.journal if e.what not in wanted]
    for arrival in history.arrivals:
        event = known.get(arrival.event_id)
        if event is None:
            found.append(f"phantom: {arrival.subscriber} got {arrival.event_id}, which is not journalled")
        elif event.marker != arrival.marker:
            found.append(
                f"phantom: {arrival.subscriber} got {arrival.marker} as {arrival.event_id}, not {event.marker}"
            )
    return found


def _twice(history: History) -> Found:
    """At-most-once: one request at most. Exactly-once: all requests of an event under one key, which the subscriber takes once."""
    requests: Counter[tuple[str, str]] = Counter()
    keys: dict[tuple[str, str], set[str]] = defaultdict(set)
    for arrival in history.arrivals:
        requests[arrival.subscriber, arrival.event_id] += 1
        keys[arrival.subscriber, arrival.event_id].add(arrival.key)
    found = []
    for (to, name), count in requests.items():
        if history.semantics[to] == "at-most-once" and count > 1:
            found.append(f"duplicate: {to} was sent {name} {count} times and may get it once")
        if history.semantics[to] == "exactly-once" and len(keys[to, name]) > 1:
            found.append(f"duplicate: {to} got {name} under {len(keys[to, name])} keys, so it happened as often")
    shared = Counter((to, key) for (to, _), mine in keys.items() for key in mine)
    return found + [f"lost: {to} got {count} events under one key" for (to, _), count in shared.items() if count > 1]


def _disorder(history: History) -> Found:
    """First meetings, per subscriber and subject: in the order of the world, and in the order of the sequence."""
    turn = {(e.source, e.change_type, e.marker): n for n, e in enumerate(history.expected)}
    known = {event.event_id: event for event in history.journal}
    last: dict[tuple[str, ...], tuple[int, str]] = {}
    met: set[tuple[str, str]] = set()
    found = []
    for arrival in history.arrivals:
        event = known.get(arrival.event_id)
        if event is None or event.what not in turn or (arrival.subscriber, arrival.event_id) in met:
            continue
        met.add((arrival.subscriber, arrival.event_id))
        generation, offset = event.place
        for scope, value in (
            ((arrival.subscriber, arrival.subject), turn[event.what]),
            ((arrival.subscriber, arrival.subject, event.source, generation), offset),
        ):
            before = last.get(scope, (-1, ""))
            if value < before[0]:
                found.append(f"disorder: {arrival.subscriber} met {event.what} after {before[1]}")
            last[scope] = max(before, (value, str(event.what)))
    return sorted(set(found))


def _lost(history: History) -> Found:
    held = {event.what: event.event_id for event in history.journal}
    got = {(arrival.subscriber, arrival.event_id) for arrival in history.arrivals}
    found = []
    for e in history.expected:
        name = held.get((e.source, e.change_type, e.marker))
        if name is None:
            found.append(f"lost: {e} is not journalled")
            continue
        for to, semantics in history.semantics.items():
            end = history.finals.get((name, to), "")
            doubt = semantics == "at-most-once" and end == "in_doubt"
            if end != "acknowledged" and not doubt:
                found.append(f"lost: {e} ended as {end or 'nothing'} at {to}")
            if end == "acknowledged" and (to, name) not in got:
                found.append(f"lost: {e} is acknowledged by {to}, who never got it")
    return found


def wrong_entries(entries: Iterable[tuple[str, bytes]]) -> Found:
    """Ledger bytes, with where they lie, that do not follow the vocabulary."""
    found = []
    for place, entry in entries:
        try:
            validate_entry(entry)
        except TidingsError as error:
            found.append(f"entry: {place}: {error.found}")
    return found


def wrong_ledger(folder: Path, heads: Iterable[tuple[str, bytes]], entries: Iterable[bytes]) -> Found:
    """A ledger that does not verify, that left a head it once showed, or that does not hold exactly these entries."""
    found = [f"ledger: {problem}" for problem in verify_ledger(folder).problems]
    logs = {name: _log(folder / name) for name in ("root", *class_logs(folder))}
    for name, note in set(heads):
        head = Checkpoint.parse(split(note)[0])
        log = logs.get(name, [])
        if len(log) < head.size or root_of(map(leaf_hash, log[: head.size])) != head.root:
            found.append(f"ledger: {name} forked: the head of {head.size} entries it once published is not part of it")
    told = Counter(entry for name, log in logs.items() if name != "root" for entry in log)
    held = Counter(entries)
    found += [
        f"ledger: an entry is attested {told[e]} times and held {held[e]} times"
        for e in told | held
        if told[e] != held[e]
    ]
    return found


def _log(folder: Path) -> list[bytes]:
    size = Checkpoint.parse(split((folder / "checkpoint").read_bytes())[0]).size
    tiles = Tiles(folder)
    return [e for n in range(-(-size // WIDTH)) for e in tiles.bundle(n, min(WIDTH, size - n * WIDTH))]


def history_of(one: Small) -> History:
    """The history of a small operator, from its disk and its subscribers' book."""
    store, settings = one.store, one.settings
    columns = ["event_id", "source", "generation", "offset", "change_type", "kid", "key_file", "payload"]
    rows = store.arrow("journal", columns).to_pylist() if store.version("journal") is not None else []
    keys = KeyFiles(one.data / "keys", settings.keyring.derive("kek")).load({row["key_file"] for row in rows})
    arrivals = [Arrival(a["endpoint"], a["key"], a["id"], a["subject"], a["marker"]) for a in one.arrivals()]
    finals = {pair: end.final for pair, end in ends(store).items()} if store.version("attempts") is not None else {}
    return History(one.world.events, [_event(row, keys) for row in rows], arrivals, finals)


def _event(row: dict[str, Any], keys: Mapping[bytes, tuple[bytes, bytes]]) -> Event:
    """A journal row opened with the key its own batch kept for it."""
    aad = associated("journal", row["event_id"], "payload")
    said = json.loads(open_payload(keys[row["kid"]][1], aad, row["payload"]))
    image = said["after"] or said["before"]
    place = (row["generation"], row["offset"])
    return Event(row["event_id"], row["source"], row["change_type"], image["email"], place)


def check(one: Small, history: History | None = None) -> Found:
    """Everything about an operator that has come to rest."""
    store = one.store
    entries = [
        (table, entry)
        for table in ("journal", "attempts", "settled")
        for entry in store.arrow(table, ["entry"])["entry"].to_pylist()
        if entry is not None
    ]
    found = wrong(history or history_of(one)) + wrong_entries(entries)
    found += [f"account: {problem}" for problem in reconcile(store, totals(one.settings, store))["problems"]]
    return found + wrong_ledger(one.data / "ledger", one.heads, [entry for _, entry in entries])
