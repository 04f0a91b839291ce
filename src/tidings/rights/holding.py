"""What must be kept of people who are to be erased, why and until when; sealed for counsel before anything of them is destroyed. No Spark.

    flag `legal_hold`   every record of the person, until two people release it or `rights.holds.days` have passed
    `holds:` of policy  the records that it covers, until its `until`
    a law that a class of payloads names under `statutes:`   the records of that class, until the duty's last day

A record that several of these keep is held until the last of them ends. The operator's own numbers keep nothing: an erasure ends them. Rows of
`proof` stay reduced, as everybody's do. What breaks the promise: a record of the person that no journal row, image, quarantined message or archived
line holds any more, because its time was over before the erasure.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tidings.errors import ConfigurationError, Damaged
from tidings.gate.retention import Retention, classes
from tidings.keeping import HELD, LONGER, retention_of
from tidings.rights.holdstore import Held, HoldStore, Scope, counsel_key
from tidings.rights.mentions import Record
from tidings.rights.people import rows_about
from tidings.rights.scrub import dropped_lines, quarantined
from tidings.seal.keyfiles import KeyFiles
from tidings.seal.keyring import associated, open_payload
from tidings.settings import load

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.store import Store

FLAG, POLICY = "legal_hold", "policy_hold"
COLUMNS = [
    "event_id", "kid", "source", "generation", "offset", "time", "recorded", "entity", "change_type", "operation",
]  # fmt: skip
WHOLE = [*COLUMNS, "payload", "position", "correlation", "causation", "location", "locale", "routing_hint", "consent"]
LOOK_EVERY_S = 60.0  # policy documents are read again, so that a hold counts soon after it is written


@dataclass(frozen=True)
class Ground:
    """One reason to keep a record, and its last day; None when only people can end it."""

    name: str
    until: date | None
    reason: str = ""


@dataclass(frozen=True)
class Item:
    """One record of a person. `laws` are the classes whose statutes bind it, `classes` those by which a hold may cover it."""

    name: str
    classes: tuple[str, ...]
    laws: tuple[str, ...]
    day: date
    source: str
    entity: str
    content: Mapping[str, Any] = field(default_factory=dict, repr=False)


class Holding:
    """Looks at people who are about to be erased. With no counsel's key it only tells whether something is held."""

    def __init__(self, settings: Settings, store: Store, keys: KeyFiles) -> None:
        self.settings, self.store, self.keys = settings, store, keys
        rights = settings.operator.rights
        self.said = rights.holds if rights else None
        self.counsel = counsel_key(settings.secret(self.said.counsel_key).reveal_bytes()) if self.said else None
        self.files = HoldStore(settings.data_path, settings.keyring.derive("hold"))
        self._read: tuple[float, Retention] | None = None

    def retention(self, today: date) -> Retention:
        """By the folder as it is now; one that does not pass says nothing new."""
        if self._read is None or time.monotonic() - self._read[0] > LOOK_EVERY_S:
            try:
                found = retention_of(load(self.settings.directory, secrets=False))
            except ConfigurationError:
                if self._read is None:
                    raise
                found = self._read[1]
            self._read = (time.monotonic(), found)
        return self._read[1].on(today)

    def flagged(self, tags: Collection[bytes]) -> set[bytes]:
        """Those of which the newest that is known says that they are under a legal hold."""
        rows = self.store.lookup("subjects", list(tags)).to_pylist() if self.store.files("subjects") else []
        newest = {row["tag"]: dict(row["consents"] or ()) for row in sorted(rows, key=lambda row: row["version"] or "")}
        return {tag for tag, said in newest.items() if said.get(HELD) == "granted"}

    def bound(self, tags: Collection[bytes]) -> bool:
        """Is any record of these people under a hold of the policy or a lawful duty?"""
        today = _today()
        retention = self.retention(today)
        if not binding(retention):
            return False
        rows = rows_about(self.store, self.keys, tags, COLUMNS)
        return any(self.grounds(_journal(row), False, retention, today) for _, row, _ in rows)

    def grounds(self, item: Item, flagged: bool, retention: Retention, today: date) -> list[Ground]:
        """Everything that keeps this record today."""
        days = self.said.days if self.said else None
        open_end = today + timedelta(days=days) if days else None
        found = [Ground(FLAG, open_end)] if flagged else []
        entities = {item.entity} if item.entity else None
        for hold in retention.holds:
            if any(hold.covers(name, (item.day, item.day), {item.source}, entities) for name in item.classes):
                found.append(Ground(POLICY, hold.until if hold.until != date.max else open_end, str(hold)))
        duties = (duty for name in item.laws if (duty := retention[name].lawful(item.day)))
        return [*found, *(Ground(d.name, d.until(item.day), str(d)) for d in duties if d.until(item.day) >= today)]

    def seal(self, commit: str, who: Iterable[tuple[str, Collection[bytes]]]) -> dict[str, list[Held]]:
        """Rows, last image and consents of (request, people); request → every hold it has, durable on return."""
        return self._sealed(commit, ((name, tags, self._rows(tags)) for name, tags in who))

    def seal_strays(self, commit: str, who: Iterable[tuple[str, Collection[bytes], list[str | Record]]]) -> None:
        """What names these people outside the tables: quarantined messages and archived lines, before they go."""
        self._sealed(commit, ((name, tags, self._strays(values)) for name, tags, values in who))

    def _sealed(
        self, commit: str, who: Iterable[tuple[str, Collection[bytes], Iterable[Item]]]
    ) -> dict[str, list[Held]]:
        if self.counsel is None:
            return {}
        asked = list(who)
        today, retention, there = _today(), self.retention(_today()), self.files.all()
        flagged = self.flagged({tag for _, tags, _ in asked for tag in tags})
        done: dict[str, set[str]] = {}
        for held in there:
            done.setdefault(held.request, set()).update(held.items)
        new = []
        for request, tags, items in asked:
            flag = not flagged.isdisjoint(tags)
            if flag or binding(retention):
                kept = ((item, self.grounds(item, flag, retention, today)) for item in items)
                mine = ((item, why) for item, why in kept if why and not self._done(item, done.get(request, set())))
                new += [self._hold(request, until, many) for until, many in _by_end(mine).items()]
        there += self.files.append(commit, self.counsel, new)
        names = {request for request, _, _ in asked}
        found: dict[str, list[Held]] = {}
        for held in there:
            if held.request in names:
                found.setdefault(held.request, []).append(held)
        return found

    def _done(self, item: Item, done: Collection[str]) -> bool:
        return self.files.opaque("item", item.name) in done

    def _hold(self, request: str, until: date | None, many: list[tuple[Item, list[Ground]]]) -> tuple[Held, bytes]:
        items = [item for item, _ in many]
        names = sorted(self.files.opaque("item", item.name) for item in items)
        reasons = {ground for _, why in many for ground in why}
        scope = Scope(
            tuple(sorted({name for item in items for name in item.classes})),
            tuple(sorted({item.source for item in items})),
            tuple(sorted({item.entity for item in items if item.entity})),
            str(min(item.day for item in items)),
            str(max(item.day for item in items)),
        )
        held = Held(
            hold=self.files.opaque("hold", request, str(until), *names),
            request=request,
            grounds=tuple(sorted({ground.name for ground in reasons})),
            until=str(until) if until else "",
            items=tuple(names),
            scope=scope,
            sealed_for="",
        )
        said = sorted({ground.reason for ground in reasons if ground.reason})
        plain = {"reasons": said, "records": [dict(item.content) for item in items]}
        return held, json.dumps(plain, ensure_ascii=False, sort_keys=True, default=_plain).encode()

    def _rows(self, tags: Collection[bytes]) -> Iterator[Item]:
        for tag, row, data in rows_about(self.store, self.keys, tags, WHOLE):
            row = {k: v for k, v in row.items() if v is not None}
            said = {"unopened": True} if data == {} else {} if data is None else {"payload": data}
            yield _journal(row, {"table": "journal", "record": tag.hex(), "row": row | {"payload": None} | said})
        opening = self.keys.of(tags) if tags else {}
        for table, look in (("last_seen", _image(opening)), ("subjects", _known)):
            found = self.store.lookup(table, list(tags)).to_pylist() if self.store.files(table) else []
            for row in found:
                day = (row.get("time") or datetime.now(UTC)).date()
                name = f"{table}/{row['tag'].hex()}/{row['version']}"
                content = {"table": table, "record": row["tag"].hex(), "version": row["version"]} | look(row)
                yield Item(name, ("state",), (), day, row["source"], row.get("entity") or "", content)

    def _strays(self, values: list[str | Record]) -> Iterator[Item]:
        for row, body in quarantined(self.store, self.settings.keyring, values):
            day, content = row["arrived"].date(), {"table": "quarantine", "place": row["place"], "body": body}
            name, laws = f"quarantine/{row['place']}", ("quarantine",)
            yield Item(name, laws, laws, day, row["source"], "", content)
        for source, made, place, line in dropped_lines(self.settings, values):
            content = {"table": "archive", "place": place, "body": line}
            yield Item(f"archive/{place}", ("archive",), ("archive",), made.date(), source, "", content)


def binding(retention: Retention) -> bool:
    """Does a policy hold or a law bind records that an erasure would destroy?"""
    return bool(retention.holds) or any(
        one.lawful(_today()) for name, one in retention.schedules.items() if name != "proof"
    )


def _today() -> date:
    return datetime.now(UTC).date()


def _journal(row: Mapping[str, Any], content: Mapping[str, Any] | None = None) -> Item:
    longer = tuple(name for name in LONGER if row["change_type"] in classes()[name].types)
    covered, laws = ("events", "proof", "dead_letters", *longer), ("events", *longer)
    name, day = f"journal/{row['event_id']}", row["recorded"].date()
    return Item(name, covered, laws, day, row["source"], row.get("entity") or "", content or {})


def _image(opening: Mapping[bytes, tuple[bytes, bytes]]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    def look(row: Mapping[str, Any]) -> dict[str, Any]:
        aad = associated("last_seen", row["tag"].hex().upper(), "image")
        try:
            return {"image": json.loads(open_payload(opening[row["kid"]][1], aad, row["image"])), "time": row["time"]}
        except (KeyError, Damaged, TypeError):
            return {"image": None, "time": row["time"]}

    return look


def _known(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"consents": dict(row["consents"] or ()), "flags": row["flags"] or []}


def _by_end(
    kept: Iterable[tuple[Item, list[Ground]]],
) -> dict[date | None, list[tuple[Item, list[Ground]]]]:
    """Records by the end of the last of their grounds."""
    found: dict[date | None, list[tuple[Item, list[Ground]]]] = {}
    for item, why in kept:
        ends = [ground.until for ground in why]
        last = None if None in ends else max(end for end in ends if end is not None)
        found.setdefault(last, []).append((item, why))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if isinstance(value, date | datetime) else str(value)
