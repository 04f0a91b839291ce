"""Sagas: a change that several subscribers must take together. When one says no, those that took it are asked to take it back.

What is taken back is an ordinary message in an inbox source of that subscriber: the same fields, the other way round. It is
journaled, gated, delivered and attested like any event, with the event that it takes back as its cause. Its place and time are
made of that event alone, so handing it over twice makes one event; everything else is read from the tables, so a restart goes on.

What breaks the promise: between the yes of one and the no of another everybody sees a half-done change, and a subscriber may
refuse to take it back. Both are shown in the story, and the second waits for a person.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds

from tidings.gate.decisions import decided_in
from tidings.report.account import Ends, ends, pairs
from tidings.report.people import opened
from tidings.seal.keyfiles import KeyFiles
from tidings.shapes import HUMAN, SAGA, Saga

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.store import Store

NO = ("refused", "dead_lettered", "expired")
MOVING = ("waiting", "deferred", "accepted", "notified")
_COLUMNS = [
    "event_id", "source", "generation", "offset", "batch", "change_type", "operation", "entity", "time", "recorded", "flags", "decision",
    "recipients", "deadlines", "causation", "kid", "key_file", "payload",
]  # fmt: skip

Row = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One subscriber in the story; `undo` is empty while nothing must be taken back."""

    subscriber: str
    outcome: str
    why: str
    undo: str = ""  # asked, undone, a person
    undo_event: str = ""


@dataclass(frozen=True)
class Story:
    saga: str
    event_id: str
    change_type: str
    entity: str
    began: str
    standing: str  # open, done, undoing, undone, a person
    parts: tuple[Part, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def told(saga: Saga, row: Row, known: Ends, undos: Mapping[str, Row]) -> Story:
    """How a saga's event stands; `undos` are the journal rows that take it back, by subscriber."""
    here = [pair for pair in pairs(row, known) if pair["subscriber"] in saga.participants]
    # A dead letter that is taken after all does not bring back what others have taken back.
    failed = bool(undos) or any(pair["outcome"] in NO for pair in here)
    parts = tuple(_part(saga, pair, failed, undos.get(pair["subscriber"]), known) for pair in here)
    began = row["time"].isoformat()
    return Story(saga.name, row["event_id"], row["change_type"], row["entity"], began, _standing(parts, failed), parts)


def _part(saga: Saga, pair: Mapping[str, Any], failed: bool, undo: Row | None, known: Ends) -> Part:
    name, outcome = pair["subscriber"], pair["outcome"]
    if not failed or outcome not in ("acknowledged", "in_doubt"):
        return Part(name, outcome, pair["reason"])
    if outcome == "in_doubt" or saga.participants[name] == HUMAN:
        return Part(name, outcome, pair["reason"], "a person")
    if undo is None:
        return Part(name, outcome, pair["reason"], "asked")
    ended = next((one["outcome"] for one in pairs(undo, known) if one["subscriber"] == name), "refused")
    state = (
        "undone" if ended in ("acknowledged", "superseded", "erased") else "asked" if ended in MOVING else "a person"
    )
    return Part(name, outcome, pair["reason"], state, undo["event_id"])


def _standing(parts: Iterable[Part], failed: bool) -> str:
    parts = list(parts)
    if any(part.outcome in MOVING for part in parts):
        return "undoing" if failed else "open"
    states = {part.undo for part in parts}
    if "asked" in states:
        return "undoing"
    if "a person" in states:
        return "a person"
    return "undone" if failed else "done"


def inverse(row: Row, data: Mapping[str, Any], table: str, fields: Iterable[str]) -> dict[str, Any] | None:
    """The message that takes an event back; None when what was before is not known.

    A row may have changed in more ways than one. Only `fields`, those of the event's own type, go back.
    """
    before, after = data.get("before"), data.get("after")
    if row["operation"] != "update" or not isinstance(before, dict) or not isinstance(after, dict):
        return None
    changed = [name for name in fields if name in (data.get("changed") or ()) and name in before]
    if not changed:
        return None
    number = int(row["time"].timestamp()) * 1_000_000 + row["time"].microsecond + 1
    return {
        "export": "saga",
        "number": number,
        "row": int(sha256(row["event_id"].encode()).hexdigest()[:12], 16),
        "table": table,
        "op": "update",
        "key": data.get("key"),
        "before": after,
        "after": {**after, **{name: before[name] for name in changed}},
    }


class Sagas:
    """Watches the events of sagas until their stories are over, and hands over what must be taken back."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self.settings, self.store = settings, store
        self.files = KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek"))
        self.by_type = {saga.of: saga for saga in settings.sagas.values()}
        ways = {way: name for saga in settings.sagas.values() for name, way in saga.participants.items()}
        self.ways = {way: name for way, name in ways.items() if way in settings.sources}
        self.rows: dict[str, Row] = {}
        self.undos: dict[str, dict[str, Row]] = {}
        self.opened: dict[str, dict[str, Any]] = {}
        self.over: set[str] = set()
        self.handed: set[tuple[str, str]] = set()
        self.read: set[str] = set()
        self.looked: tuple[int | None, int | None] | None = None

    def idle(self) -> bool:
        """Has everything that is in the tables been looked at?"""
        return not self.by_type or self.looked == self._versions()

    def step(self) -> None:
        versions = self._versions()
        if not self.by_type or versions == self.looked:
            return
        for story in self.stories():
            row = self.rows[story.event_id]
            for part in story.parts:
                if part.undo == "asked" and not part.undo_event:
                    self._hand_over(row, part.subscriber)
            if story.standing in ("done", "undone", "a person"):
                self.over.add(story.event_id)
                self.opened.pop(story.event_id, None)
                del self.rows[story.event_id]
        self.looked = versions

    def stories(self) -> list[Story]:
        """Every story that is not over, oldest first; journal files are read once."""
        self._take_in()
        if not self.rows:
            return []
        undos = {row["event_id"] for event in self.rows for row in self.undos.get(event, {}).values()}
        known = ends(self.store, set(self.rows) | undos, min(row["recorded"] for row in self.rows.values()))
        ordered = sorted(self.rows.values(), key=lambda row: (row["time"], row["event_id"]))
        return [self._story(row, known) for row in ordered]

    def _story(self, row: Row, known: Ends) -> Story:
        story = told(self.by_type[row["change_type"]], row, known, self.undos.get(row["event_id"], {}))
        parts = tuple(
            replace(part, undo="a person")
            if part.undo == "asked" and not part.undo_event and self._message(row, part.subscriber) is None
            else part
            for part in story.parts
        )
        failed = any(part.undo for part in parts) or any(part.outcome in NO for part in parts)
        return replace(story, parts=parts, standing=_standing(parts, failed))

    def _versions(self) -> tuple[int | None, int | None]:
        return self.store.version("journal"), self.store.version("attempts")

    def _take_in(self) -> None:
        live = self.store.files("journal")
        new = [file for file in live if file.path not in self.read]
        look = ds.field("change_type").isin(pa.array(sorted(self.by_type), pa.string()))
        decided = decided_in(self.store.decisions) if new else None
        for row in self.store.arrow("journal", _COLUMNS, files=new, filter=look).to_pylist() if new else ():
            assert decided is not None
            row["recipients"] = decided.recipients(row)
            if row["source"] in self.ways:
                self.undos.setdefault(row["causation"], {})[self.ways[row["source"]]] = row
            elif row["event_id"] not in self.over:
                self.rows[row["event_id"]] = row
        self.read = {file.path for file in live}

    def _message(self, row: Row, subscriber: str) -> dict[str, Any] | None:
        """What takes the event back at this subscriber; None when it cannot be told, or the person is erased."""
        if row["event_id"] not in self.opened:
            keys = self.files.load([row["key_file"]], {row["kid"]})
            self.opened[row["event_id"]] = opened(row, keys[row["kid"]][1]) if row["kid"] in keys else {}
        way = self.settings.sources[self.by_type[row["change_type"]].participants[subscriber]]
        tables = {entity: table for table, entity in way.entities.items()}
        if row["entity"] not in tables:
            return None
        typed = self.settings.entities[row["entity"]].typed_fields
        fields = [path for path, kind in typed if kind == row["change_type"]]
        return inverse(row, self.opened[row["event_id"]], tables[row["entity"]], fields)

    def _hand_over(self, row: Row, subscriber: str) -> None:
        from tidings.sources.inbox import Named, accept

        message = self._message(row, subscriber)
        if message is None or (row["event_id"], subscriber) in self.handed:
            return
        folder = self.settings.data_path / "inbox" / self.by_type[row["change_type"]].participants[subscriber]
        place = f"{SAGA}{row['event_id']}:{subscriber}"
        accept(folder, self.settings.keyring, [Named(json.dumps(message), place, message["number"])])
        self.handed.add((row["event_id"], subscriber))


def stories(settings: Settings, store: Store, event: str = "") -> list[Story]:
    """Every story there is, or that of one event, from the tables alone."""
    watched = Sagas(settings, store)
    found = watched.stories() if watched.by_type else []
    return [story for story in found if event in ("", story.event_id)]
