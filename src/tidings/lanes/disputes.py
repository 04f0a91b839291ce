"""A person's word on one event, disputed between two masters or held for a review: attested, and true for what comes after.

`tidings conflicts resolve` and `tidings gate review` append the word to `data/control/_words.jsonl`. The running process takes it up
between two turns of the masters: a change that is kept becomes what stands of its subject, so that the next change on top of it is no
dispute again; then the word itself is committed to the attempts, from where the ledger takes it. The gate reads the same file when it
decides again about what was deferred. After an erasure there is nothing left to stand; the word is attested all the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tidings.lanes import control
from tidings.lanes.attempts import asked_row
from tidings.lanes.lane import Tables
from tidings.lanes.member import Feed
from tidings.lanes.slices import keys_of
from tidings.seal.keyring import associated, open_payload, seal_payload
from tidings.turns import between_turns

APP = f"control/{control.WORDS}"


def resolutions(data: Path) -> Mapping[str, frozenset[str]]:
    """Event → what people said of it, the last word on its dispute and on its review; the file is read again only when it has grown."""
    return _words(data, control.marks(data, [control.WORDS])[0])


@lru_cache(maxsize=4)
def _words(data: Path, size: int) -> Mapping[str, frozenset[str]]:
    last: dict[tuple[str, bool], str] = {}
    for request in control.asked(data, control.WORDS) if size else ():
        last[request.event, request.action in ("keep", "drop")] = request.action
    events = {event for event, _ in last}
    return {
        event: frozenset(last[place] for place in ((event, True), (event, False)) if place in last) for event in events
    }


class Disputes:
    """Takes up each word once."""

    def __init__(self, tables: Tables, attestor: str, k_iv: bytes) -> None:
        self.tables, self.attestor, self._k_iv = tables, attestor, k_iv
        self._taken = tables.store.transaction_version("attempts", APP) or 0
        self._size = 0  # of the file when everything in it had been taken

    def pending(self) -> bool:
        return control.marks(self.tables.settings.data_path, [control.WORDS])[0] != self._size

    def transactions(self) -> dict[str, int]:
        return {APP: self._taken} if self._taken else {}

    def take(self, now: float) -> list[dict[str, Any]]:
        """Rows that attest new words; none while a master is at work, because what stands is being looked at."""
        data = self.tables.settings.data_path
        size = control.marks(data, [control.WORDS])[0]
        if size == self._size:
            return []
        with between_turns(self.tables.settings, self.tables.store) as free:
            if not free:
                return []
            rows = []
            for request in control.asked(data, control.WORDS)[self._taken :]:
                if request.action == "keep":
                    self._stand(request)
                rows.append(asked_row(request, request.serial, now, self.attestor))
                self._taken = request.serial
        self._size = size
        return rows

    def _stand(self, request: control.Request) -> None:
        """Write the kept value, who wrote it and the consent it gives over what stood until now."""
        feed = Feed(request.source, request.generation)
        found = keys_of(self.tables.store, self.tables.keys, feed, {request.offset: request.event})
        if request.event not in found:
            return
        tag = found[request.event].tag
        event = self._event(request)
        image = self._newest("last_seen", tag)
        if event is None or image is None:
            return
        keys = self.tables.keys.of([tag])
        aad = associated("last_seen", tag.hex().upper(), "image")
        if image["kid"] not in keys:
            return
        key = keys[image["kid"]][1]
        state = json.loads(open_payload(key, aad, image["image"]))
        if not settle(state, event["change"].hex().upper(), unit_of(event)):
            return
        plain = json.dumps(state, ensure_ascii=False, separators=(",", ":")).encode()
        self._append("last_seen", image | {"image": seal_payload(plain, key, self._k_iv, aad)}, request.serial)
        subject = self._newest("subjects", tag)
        if event["consent"] and subject is not None:
            consents = dict(subject["consents"] or ()) | {filed(event["consent"]): event["consent"]["state"]}
            self._append("subjects", subject | {"consents": list(consents.items())}, request.serial)

    def _event(self, request: control.Request) -> dict[str, Any] | None:
        look = (ds.field("source") == request.source) & (ds.field("generation") == request.generation)
        look &= ds.field("offset") == request.offset
        where = {"source": request.source, "generation": request.generation}
        files = self.tables.store.files("journal", "offset", request.offset - 1, where=where)
        columns = ["change", "change_type", "consent"]
        rows: list[dict[str, Any]] = self.tables.store.arrow("journal", columns, files=files, filter=look).to_pylist()
        return rows[0] if rows else None

    def _newest(self, table: str, tag: bytes) -> dict[str, Any] | None:
        store = self.tables.store
        rows = store.lookup(table, [tag]).sort_by("version").to_pylist() if store.files(table) else []
        return rows[-1] if rows else None

    def _append(self, table: str, row: dict[str, Any], serial: int) -> None:
        """A row above the newest one; the same word makes it once."""
        store = self.tables.store
        made = {"source": control.WORDS, "generation": control.WORDS, "batch": serial, "version": above(row)}
        schema = store.lookup(table, [row["tag"]]).schema
        folder = Path(store.fresh(table))
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist([row | made], schema=schema), folder / "driver.parquet", compression="zstd")
        store.commit(table, str(folder), app=APP, version=serial)


def settle(state: dict[str, Any], change: str, unit: str) -> bool:
    """Let the held values of this event stand; False when none is held any more."""
    held = state.get("held") or {}
    chosen = {name: write for name, write in held.items() if write["change"] == change and _same(write["unit"], unit)}
    for name, write in chosen.items():
        state["fields"][name] = write["value"]
        state["wrote"] = (state.get("wrote") or {}) | {name: {part: write[part] for part in ("by", "at", "time")}}
        del held[name]
    return bool(chosen)


def _same(unit: str, wanted: str) -> bool:
    return unit == wanted or (unit, wanted) == ("soft_delete", "restore")


def unit_of(event: Mapping[str, Any]) -> str:
    """The unit that an event was made of: its type, or the class and channel of a consent."""
    consent = event["consent"]
    return f"consent|{consent['class']}|{consent['channel']}" if consent else str(event["change_type"])


def filed(consent: Mapping[str, str]) -> str:
    """How a consent is filed: marketing consents by channel alone."""
    return consent["channel"] if consent["class"] == "marketing" else f"{consent['class']}:{consent['channel']}"


def above(row: Mapping[str, Any]) -> str:
    """The next version of a subject's state."""
    tick, _, counter = str(row["version"]).partition("-")
    return f"{tick}-{int(counter or 0) + 1:06d}"
