"""Whom a person's data went to is read from the time of an event to its end; what an operator had sent again later is found all the same."""

from __future__ import annotations

from pathlib import Path

from tidings.benches.operator import operator
from tidings.benches.past import Past, Shape, answered, make
from tidings.gate.loading import load_policy
from tidings.lanes import control
from tidings.report.recipients import recipients_of

PERSON, EVENT = 0, "00000000-00000000"  # the first row of the first batch


def recipients(past: Past) -> list[str]:
    policy = load_policy(past.settings)
    return [one["subscriber"] for one in recipients_of(past.settings, past.store, policy, past.address(PERSON))]


def test_a_call_long_after_the_end_is_found_when_an_operator_asked_for_it(tmp_path: Path) -> None:
    past = make(operator(tmp_path / "operator", 2), Shape(20, 20, 20, read=1, told=True))
    assert recipients(past) == ["s00"]
    control.ask(past.settings.data_path, "s01", "replay", "they lost it")
    answered(past, {"s01": [EVENT]}, 1)
    assert recipients(past) == ["s00", "s01"]
