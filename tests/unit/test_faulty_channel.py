"""The subscriber that fails by seed: the same seed fails in the same way, in the shares it was asked for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tidings.channels import open_channel
from tidings.channels.call import Call, Channel, Member
from tidings.channels.faulty import FaultyChannel
from tidings.errors import Refused
from tidings.shapes import NetworkRules, Subscriber


def opened(**dials: str) -> Channel:
    own = {"manifest": "faulty", "name": "flaky", "role": "service", "region": "US", "vars": dials}
    return open_channel(Subscriber.model_validate(own), {}, NetworkRules(allow=()))


def events(count: int) -> tuple[Member, ...]:
    return tuple(Member(f"e{n}", f"s{n}", "email", "", {}, f"e{n}", 1) for n in range(count))


def results(channel: Channel, attempt: int = 1) -> list[str]:
    those = tuple(replace(one, attempt=attempt) for one in events(2_000))
    return [outcome.result for outcome in channel.send(Call("flaky", those, 5.0))]


def test_the_same_seed_fails_in_the_same_way() -> None:
    dials = {"transient": "0.2", "lost_ack": "0.1"}
    first = results(opened(seed="7", **dials))
    assert first == results(opened(seed="7", **dials))
    assert first != results(opened(seed="8", **dials))
    assert first != results(opened(seed="7", **dials), attempt=2)


def test_failures_come_in_the_shares_asked_for() -> None:
    channel = opened(seed="1", transient="0.3", throttled="0.1", in_doubt="0.05", lost_ack="0.05", terminal="0.1")
    found = Counter(results(channel))
    expected = {"transient": 600, "throttled": 200, "in_doubt": 200, "terminal": 200, "acknowledged": 800}
    assert all(abs(found[name] - many) < 80 for name, many in expected.items()), found


def test_a_lost_acknowledgement_took_effect_once() -> None:
    channel = opened(seed="1", lost_ack="1")
    assert isinstance(channel, FaultyChannel)
    assert set(results(channel)) == set(results(channel, attempt=2)) == {"in_doubt"}
    assert set(channel.effects.values()) == {1}
    assert {one.result for one in channel.probe(Call("flaky", events(5), 1.0))} == {"acknowledged"}


@pytest.mark.parametrize("dials", [{"transient": "2"}, {"transient": "-1"}, {"terminal": "many"}])
def test_a_dial_is_a_share(dials: dict[str, str]) -> None:
    with pytest.raises(Refused, match="faulty_dials"):
        opened(**dials)


def test_dials_add_up_to_no_more_than_one() -> None:
    with pytest.raises(Refused, match="at most 1"):
        opened(transient="0.6", terminal="0.6")
