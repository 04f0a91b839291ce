"""The sink of the delivery bench counts what a subscriber would complain about."""

from __future__ import annotations

import json
from urllib.request import Request, urlopen

from tidings.benches.sink import FIRST, Seen, become, reported, sink


def body(*events: tuple[str, int]) -> bytes:
    found = [{"subject": who.rjust(32, "0"), "time": "t", "sequence": f"{offset:020d}"} for who, offset in events]
    return json.dumps(found, separators=(",", ":")).encode()


def test_twice_and_behind_a_later_one_are_seen() -> None:
    seen = Seen()
    seen.take(body(("a", FIRST), ("b", FIRST + 1), ("a", FIRST + 2)))
    assert (seen.events, seen.duplicates, seen.out_of_order) == (3, 0, 0)
    seen.take(body(("b", FIRST + 9), ("b", FIRST + 5)))
    assert (seen.events, seen.duplicates, seen.out_of_order) == (5, 0, 1)
    seen.take(body(("a", FIRST + 2), ("c", 7), ("c", 7)))
    assert (seen.requests, seen.events, seen.duplicates) == (3, 8, 2)


def test_a_sink_answers_in_its_own_process_until_it_falls_ill() -> None:
    with sink() as url:
        with urlopen(Request(f"{url}/ok/s1", body(("a", FIRST)), method="POST"), timeout=10) as answer:
            assert answer.status == 200
        become(url, "s1", "busy")
        assert reported(url) == {"s1": {"requests": 1, "events": 1, "duplicates": 0, "out_of_order": 0}}
