"""The checker can fail: each kind of wrong history is found, and a right one is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from checker import Arrival, Event, History, wrong, wrong_entries, wrong_ledger, wrong_so_far
from small import SUBSCRIBERS, Expected

from tidings.ledger.classes import Ledger, class_log
from tidings.ledger.vocabulary import encode_entry

WANTED = [Expected("crm", 1, "insert", "a@example.com"), Expected("crm", 1, "email", "b@example.com")]
JOURNAL = [Event(f"e{n}", w.source, w.change_type, w.marker, ("g1", n)) for n, w in enumerate(WANTED)]


def good() -> History:
    arrivals = [
        Arrival(to, f"{to}-{e.event_id}", e.event_id, f"{to}-1", e.marker) for e in JOURNAL for to in SUBSCRIBERS
    ]
    finals = {(e.event_id, to): "acknowledged" for e in JOURNAL for to in SUBSCRIBERS}
    return History(list(WANTED), list(JOURNAL), arrivals, finals)


def arrival(to: str, number: int, **other: str) -> Arrival:
    event = JOURNAL[number]
    return replace(Arrival(to, f"{to}-{event.event_id}", event.event_id, f"{to}-1", event.marker), **other)


def test_a_right_history_has_nothing_wrong() -> None:
    assert wrong(good()) == []


def test_what_each_promise_allows_is_not_called_wrong() -> None:
    told = good()
    told.arrivals += [arrival("least", 0), arrival("once", 1)]  # again, under the same key
    told.arrivals = [a for a in told.arrivals if (a.subscriber, a.event_id) != ("most", "e1")]
    told.finals = {**told.finals, ("e1", "most"): "in_doubt"}
    assert wrong(told) == []


def without(to: str, name: str) -> History:
    told = good()
    told.arrivals = [a for a in told.arrivals if (a.subscriber, a.event_id) != (to, name)]
    return told


def ended(to: str, final: str) -> History:
    told = good()
    told.finals = {**told.finals, ("e0", to): final}
    return told


def with_arrival(one: Arrival) -> History:
    told = good()
    told.arrivals.append(one)
    return told


def with_journal(*events: Event) -> History:
    return replace(good(), journal=list(events))


PLANTED = {
    "an event is not journalled": ("lost", with_journal(JOURNAL[0])),
    "acknowledged by one who never got it": ("lost", without("least", "e1")),
    "dead-lettered": ("lost", ended("once", "dead_lettered")),
    "no end": ("lost", ended("least", "")),
    "in doubt where it must be known": ("lost", ended("least", "in_doubt")),
    "two events under one key": ("lost", with_arrival(arrival("once", 1, key="once-e0"))),
    "journalled twice": ("duplicate", with_journal(*JOURNAL, JOURNAL[1])),
    "journalled twice under two ids": ("duplicate", with_journal(*JOURNAL, replace(JOURNAL[1], event_id="e9"))),
    "at-most-once sent twice": ("duplicate", with_arrival(arrival("most", 0))),
    "exactly-once under two keys": ("duplicate", with_arrival(arrival("once", 0, key="another"))),
    "journalled and not written": ("phantom", with_journal(*JOURNAL, Event("e9", "crm", "email", "x@example.com"))),
    "sent and not journalled": ("phantom", with_arrival(arrival("least", 0, event_id="e9"))),
    "sent with other content": ("phantom", with_arrival(arrival("least", 0, marker="b@example.com"))),
    "in another order": ("disorder", replace(good(), arrivals=list(reversed(good().arrivals)))),
    "against the sequence": ("disorder", with_journal(JOURNAL[0], replace(JOURNAL[1], place=("g1", -1)))),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_wrong_is_found(name: str) -> None:
    kind, told = PLANTED[name]
    assert {line.partition(":")[0] for line in wrong(told)} >= {kind}, wrong(told)


def test_before_recovery_only_what_can_never_be_mended_is_wrong() -> None:
    assert wrong_so_far(History(list(WANTED), [JOURNAL[0]], [arrival("least", 0)])) == []


def entry(reason: str) -> bytes:
    said = {"attestor": "tidings", "lane": "least", "reason": reason, "timestamp": "2026-11-15T09:30:00Z"}
    return encode_entry({"kind": "lane_paused", **said})


def test_entries_of_another_form_are_found() -> None:
    assert wrong_entries([("journal", entry("a"))]) == []
    assert wrong_entries([("journal", b'{"kind":"decided"}')])[0].startswith("entry: journal")


def written(folder: Path, *reasons: str) -> list[tuple[str, bytes]]:
    """A ledger of these entries; the heads it shows at its end."""
    name = class_log("standard", 2026)
    with Ledger(folder, "example.com/small", bytes(32)) as ledger:
        for version, reason in enumerate(reasons):
            ledger.append("journal", version, {name: [entry(reason)]})
    return [(log, (folder / log / "checkpoint").read_bytes()) for log in ("root", name)]


def test_a_ledger_that_forgot_a_head_forked_or_misses_an_entry_is_found(tmp_path: Path) -> None:
    early = written(tmp_path / "one", "a")
    written(tmp_path / "one", "a", "b")
    held = [entry("a"), entry("b")]
    assert wrong_ledger(tmp_path / "one", early, held) == []
    assert "attested 1 times and held 0" in wrong_ledger(tmp_path / "one", early, held[:1])[0]
    assert "attested 0 times and held 1" in wrong_ledger(tmp_path / "one", early, [*held, entry("c")])[0]
    other = written(tmp_path / "two", "x", "b")
    assert "forked" in " ".join(wrong_ledger(tmp_path / "one", other, held))
    tile = next((tmp_path / "one").glob("standard/2026/tile/0/**/*.p/*"))
    tile.write_bytes(bytes(len(tile.read_bytes())))
    assert "does not hold the hashes" in " ".join(wrong_ledger(tmp_path / "one", early, held))
