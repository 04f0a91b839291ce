"""One suite for every sink: a real server, real failures, the same promises."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from rigs import LONG, RIGS
from sinks import Around, Arrived, Rig, call, member, members

from tidings.channels.call import Channel, Member, Outcome

GRACE_S = 3.0


@pytest.fixture(
    scope="module",
    params=[pytest.param(one, id=one.manifest, marks=[pytest.mark.soak] if one in LONG else []) for one in RIGS],
)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    made: Rig = request.param()
    try:
        made.start()
        yield made
    finally:
        made.end()


@pytest.fixture
def place(rig: Rig) -> dict[str, Any]:
    return rig.place()


@pytest.fixture
def channel(rig: Rig, place: dict[str, Any]) -> Iterator[Channel]:
    opened = rig.open(place)
    yield opened
    opened.close()


def results(rig: Rig, channel: Channel, outcomes: Sequence[Outcome]) -> list[str]:
    """The results; nothing that is shown may hold the password or personal data."""
    shown = f"{channel!r} {channel} {outcomes!r}"
    assert rig.password not in shown
    assert "@example.com" not in shown
    return [outcome.result for outcome in outcomes]


def ids(those: Sequence[Member] | Sequence[Arrived]) -> list[str]:
    return [one.event_id for one in those]


def by_subject(those: Sequence[Member] | Sequence[Arrived]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in those:
        found.setdefault(one.subject, []).append(one.event_id)
    return found


def waiting(rig: Rig) -> set[str]:
    """What may be said where nobody has answered yet."""
    return {"accepted"} if rig.later else set()


def not_done(rig: Rig) -> set[str]:
    return {"transient", "in_doubt", *waiting(rig)}


def once(channel: Channel) -> bool:
    """Does a repeat have no second effect?"""
    can = channel.capabilities
    return can.idempotency_key or can.natural or can.transaction


def test_all_are_acknowledged_once_and_in_order(rig: Rig, place: dict[str, Any], channel: Channel) -> None:
    those = members(1, 30)
    outcomes = channel.send(call(*those))
    assert results(rig, channel, outcomes) == ["acknowledged"] * 30
    assert ids(outcomes) == ids(those)
    assert {outcome.strength for outcome in outcomes} == {rig.described.strength("email")}
    assert by_subject(rig.arrived(place)) == by_subject(those)


def test_order_holds_from_call_to_call(rig: Rig, place: dict[str, Any], channel: Channel) -> None:
    for number in range(4):
        channel.send(call(*members(10 * number, 10), number=number + 1))
    assert by_subject(rig.arrived(place)) == by_subject(members(0, 40))


def test_a_repeat_has_one_effect_where_the_channel_says_so(rig: Rig, place: dict[str, Any], channel: Channel) -> None:
    those = members(1, 5)
    for number in (1, 2):
        assert results(rig, channel, channel.send(call(*those, number=number))) == ["acknowledged"] * 5
    assert set(Counter(ids(rig.arrived(place))).values()) == ({1} if once(channel) else {2})


def test_a_repeat_by_another_process_has_one_effect_too(rig: Rig, place: dict[str, Any]) -> None:
    those = members(1, 5)
    for number in (1, 2):
        opened = rig.open(place)
        assert results(rig, opened, opened.send(call(*those, number=number))) == ["acknowledged"] * 5
        opened.close()
    assert set(Counter(ids(rig.arrived(place))).values()) == ({1} if once(opened) and rig.remembers else {2})


def test_what_cannot_travel_is_refused_and_takes_nobody_along(
    rig: Rig, place: dict[str, Any], channel: Channel
) -> None:
    large = member(2, pad="x" * channel.limits.max_bytes)
    large = replace(large, body={**large.body, "data": {"pad": "x" * channel.limits.max_bytes}})
    odd = replace(member(3), body={**member(3).body, "data": {"number": float("nan")}})
    outcomes = channel.send(call(member(1), large, odd, member(4)))
    if not rig.leaves:
        assert results(rig, channel, outcomes) == ["acknowledged"] * 4
        assert sorted(ids(rig.arrived(place))) == ids(members(1, 4))
        return
    assert [(one.result, one.code) for one in outcomes[1:3]] == [("refused", "too_large"), ("refused", "unrenderable")]
    assert results(rig, channel, outcomes)[::3] == ["acknowledged"] * 2
    assert set(ids(rig.arrived(place))) == {member(1).event_id, member(4).event_id}


def test_a_place_that_is_not_there_has_a_name(rig: Rig) -> None:
    if not rig.missing:
        return
    opened = rig.open(rig.nowhere())
    outcomes = opened.send(call(*members(1, 3), timeout=8))
    assert set(results(rig, opened, outcomes)) <= {"transient", "terminal"}
    assert {outcome.code for outcome in outcomes} <= rig.missing
    assert opened.ping().result != "acknowledged"
    opened.close()


def test_a_wrong_password_is_no_acknowledgement(rig: Rig, place: dict[str, Any]) -> None:
    if not rig.locked:
        return
    opened = rig.open(place, password="not-it-99")
    outcomes = opened.send(call(*members(1, 3), timeout=8))
    assert set(results(rig, opened, outcomes)) <= {"transient", "terminal", "refused", *waiting(rig)}
    assert "not-it-99" not in f"{opened!r} {outcomes!r}"
    assert {outcome.code for outcome in outcomes} <= rig.denied
    assert not rig.guarded or opened.ping().result != "acknowledged"
    opened.close()
    assert rig.arrived(place) == []


def test_a_private_address_is_refused_unless_it_is_allowed(rig: Rig, place: dict[str, Any]) -> None:
    if not rig.guarded:
        return
    opened = rig.open(place, allow=())
    outcomes = opened.send(call(*members(1, 3)))
    assert results(rig, opened, outcomes) == ["refused"] * 3
    assert {outcome.code for outcome in outcomes} == {"blocked_address"}
    assert opened.ping().result == "refused"
    opened.close()
    assert rig.arrived(place) == []


def test_a_ping_leaves_nothing(rig: Rig, place: dict[str, Any], channel: Channel) -> None:
    assert channel.ping().result == "acknowledged"
    assert rig.arrived(place) == []


def test_a_probe_tells_the_truth(rig: Rig, place: dict[str, Any], channel: Channel) -> None:
    channel.send(call(*members(1, 3), number=7))
    channel.send(call(*members(4, 3), number=9))
    did = [replace(one, sent_in=7) for one in members(1, 3)]
    never = [replace(one, sent_in=8) for one in members(7, 3)]
    told = [channel.probe(call(*those, number=10)) for those in (did, never)]
    if channel.capabilities.probe:
        assert results(rig, channel, told[0]) == ["acknowledged"] * 3
        assert results(rig, channel, told[1]) == ["transient"] * 3
    else:
        assert {one.result for one in told[0]} <= {"acknowledged", "in_doubt"}
        assert {one.result for one in told[1]} <= {"in_doubt", *waiting(rig)}
    assert len(rig.arrived(place)) == 6


def test_many_threads_at_once(rig: Rig, place: dict[str, Any], channel: Channel) -> None:
    """As a lane has it: two calls under way at once are never about one person."""
    found: list[str] = []
    whole = [tuple(member(10 * n + i, f"subject-{n}") for i in range(10)) for n in range(6)]

    def send(number: int) -> None:
        found.extend(results(rig, channel, channel.send(call(*whole[number], number=number + 1))))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert found == ["acknowledged"] * 60
    assert by_subject(rig.arrived(place)) == {f"subject-{n}": ids(those) for n, those in enumerate(whole)}


def test_close_leaves_no_thread_and_no_socket(rig: Rig, place: dict[str, Any]) -> None:
    first = alone(rig, place)
    first.ping()  # what a client loads or keeps for the whole process is there
    first.close()
    before = _held()
    opened = alone(rig, place)
    assert results(rig, opened, opened.send(call(member(1)))) == ["accepted" if rig.later else "acknowledged"]
    opened.close()
    opened.close()
    end = time.monotonic() + 5
    while time.monotonic() < end and not all(now <= then for now, then in zip(_held(), before, strict=True)):
        time.sleep(0.05)
    assert all(now <= then for now, then in zip(_held(), before, strict=True)), (_held(), before)
    assert set(results(rig, opened, opened.send(call(member(2))))) <= {"transient", "acknowledged", *waiting(rig)}
    opened.close()


def alone(rig: Rig, place: dict[str, Any]) -> Channel:
    """The channel without the lane and the reader that the suite has around one that is answered for later."""
    opened = rig.open(place)
    return opened.channel if rig.later and isinstance(opened, Around) else opened


def _held() -> tuple[int, int]:
    """Threads and sockets of this process."""
    sockets = 0
    for entry in os.scandir("/proc/self/fd"):
        try:
            sockets += os.readlink(entry.path).startswith("socket:")
        except OSError:
            continue
    return len(os.listdir("/proc/self/task")), sockets


def test_what_this_sink_alone_has(rig: Rig, place: dict[str, Any], channel: Channel) -> None:
    rig.special(place, channel)


def test_a_server_that_is_gone_and_comes_back(rig: Rig, place: dict[str, Any], channel: Channel) -> None:
    if not rig.stoppable:
        return
    assert results(rig, channel, channel.send(call(*members(1, 5)))) == ["acknowledged"] * 5
    rig.stop()
    try:
        begun = time.monotonic()
        outcomes = channel.send(call(*members(6, 5), number=2, timeout=3))
        assert time.monotonic() - begun < 3 + GRACE_S
        assert set(results(rig, channel, outcomes)) <= not_done(rig)
        assert not rig.guarded or channel.ping().result != "acknowledged"
    finally:
        rig.start()
    nothing = {one.event_id for one in outcomes if one.result == "transient"}
    arrived = ids(rig.arrived(place))
    assert arrived[:5] == ids(members(1, 5)) or by_subject(rig.arrived(place)) == by_subject(members(1, 5))
    assert not nothing & set(arrived)
    assert _sent_in_the_end(rig, channel, members(11, 5), 3) == ["acknowledged"] * 5
    assert set(ids(members(1, 5))) | set(ids(members(11, 5))) <= set(ids(rig.arrived(place)))


def test_a_server_that_hangs_costs_no_more_than_the_call_has(rig: Rig, place: dict[str, Any], channel: Channel) -> None:
    if not rig.stoppable:
        return
    assert results(rig, channel, channel.send(call(member(1)))) == ["acknowledged"]
    rig.freeze()
    try:
        begun = time.monotonic()
        outcomes = channel.send(call(*members(2, 3), number=2, timeout=2))
        assert time.monotonic() - begun < 2 + GRACE_S
        assert set(results(rig, channel, outcomes)) <= not_done(rig)
    finally:
        rig.thaw()
    assert _sent_in_the_end(rig, channel, members(6, 3), 3) == ["acknowledged"] * 3
    arrived = Counter(ids(rig.arrived(place)))
    assert not {one.event_id for one in outcomes if one.result == "transient"} & set(arrived)


def test_a_kill_loses_nothing_that_was_acknowledged(rig: Rig, place: dict[str, Any], channel: Channel) -> None:
    if not rig.stoppable:
        return
    time.sleep(rig.settling_s)
    told: list[Outcome] = list(channel.send(call(*members(20, 20))))  # slow as it may be on a busy machine
    killing = threading.Timer(0.4, rig.kill)
    killing.start()
    end, number = time.monotonic() + 1.5, 1
    while time.monotonic() < end:
        number += 1
        told += channel.send(call(*members(20 * number, 20), number=number, timeout=1))
    killing.join()
    rig.start()
    assert set(results(rig, channel, told)) <= {"acknowledged", *not_done(rig)}
    done = {one.event_id for one in told if one.result == "acknowledged"}
    assert done, "nothing was acknowledged before the kill"
    assert len(done) < len(told), "the kill hit nothing"
    assert _sent_in_the_end(rig, channel, members(1, 1), number + 1) == ["acknowledged"]
    arrived = ids(rig.arrived(place))
    assert done <= set(arrived)
    assert not {one.event_id for one in told if one.result == "transient"} & set(arrived)


def _sent_in_the_end(rig: Rig, channel: Channel, those: Sequence[Member], number: int) -> list[str]:
    """After a restart a server may need a moment; a doubt is asked about or repeated as a lane would."""
    end = time.monotonic() + 90
    while True:
        outcomes = channel.send(call(*those, number=number, timeout=10))
        found = results(rig, channel, outcomes)
        if not set(found) & not_done(rig) or time.monotonic() > end:
            return found
        number += 1
        time.sleep(0.3)
