"""What channels over one connection share, without a server."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.channels.addresses import BadTarget
from tidings.channels.call import Call, Capabilities, Limits, Member, Outcome
from tidings.channels.eventhubs import login
from tidings.channels.kafkawire import FORGET, Committed, properties_of
from tidings.channels.line import LOST, LineChannel, NotReached, Ready, in_waves, written


def member(number: int, subject: str) -> Member:
    return Member(f"e{number}", subject, "email", "", {"id": f"e{number}", "data": {}}, f"e{number}", 1)


def ready(*subjects: str) -> list[Ready]:
    return written([member(number, subject) for number, subject in enumerate(subjects)], "structured", 1000)[0]


@given(st.lists(st.sampled_from("abc"), max_size=12), st.sets(st.integers(0, 11)))
def test_a_wave_holds_one_event_per_subject_and_none_behind_a_failure(subjects: list[str], bad: set[int]) -> None:
    sent: list[Ready] = []

    def send(wave: list[Ready]) -> list[Outcome]:
        assert len({one.member.subject for one in wave}) == len(wave)
        sent.extend(wave)
        return [one.outcome("in_doubt" if one.member.event_id in failing else "acknowledged", "x") for one in wave]

    failing = {f"e{number}" for number in bad}
    found = {outcome.event_id: outcome for outcome in in_waves(ready(*subjects), send)}
    assert len(found) == len(subjects)
    for subject in set(subjects):
        own = [f"e{number}" for number, name in enumerate(subjects) if name == subject]
        failed = next((place for place, name in enumerate(own) if name in failing), len(own))
        assert [one.member.event_id for one in sent if one.member.subject == subject] == own[: failed + 1]
        assert all(found[name].code == "held_behind" for name in own[failed + 1 :])


def test_a_connection_that_ends_between_waves_leaves_what_was_acknowledged() -> None:
    calls: list[int] = []

    def send(wave: list[Ready]) -> list[Outcome]:
        calls.append(len(wave))
        if len(calls) == 2:
            raise NotReached(LOST, "gone")
        return [one.outcome("acknowledged", "ok") for one in wave]

    found = in_waves(ready("a", "b", "a", "a"), send)
    assert [(one.event_id, one.result) for one in found] == [
        ("e0", "acknowledged"),
        ("e1", "acknowledged"),
        ("e2", "transient"),
        ("e3", "transient"),
    ]
    assert calls == [2, 1]


class Scripted:
    """A connection that does what it is told to."""

    def __init__(self, *steps: Exception | str) -> None:
        self.steps, self.closed = list(steps), False

    def publish(self, ready: Sequence[Ready], call: Call, deadline: float) -> list[Outcome]:
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return [one.outcome("acknowledged", step, strength="A3") for one in ready]

    def ping(self, deadline: float) -> None:
        raise NotReached("no_answer", "it does not say")

    def close(self) -> None:
        self.closed = True


def channel(*lines: Scripted | Exception) -> LineChannel:
    waiting = list(lines)

    def connect(_: float) -> Scripted:
        line = waiting.pop(0)
        if isinstance(line, Exception):
            raise line
        return line

    return LineChannel(connect, Limits(), Capabilities())


CALL = Call("someone", (member(1, "a"),), 1.0)


def told(outcomes: list[Outcome]) -> tuple[str, str]:
    (one,) = outcomes
    return one.result, one.code


def test_an_idle_connection_that_was_lost_is_replaced_within_the_call() -> None:
    first, second = Scripted("ok", NotReached(LOST, "gone")), Scripted("again")
    one = channel(first, second)
    assert told(one.send(CALL)) == ("acknowledged", "ok")
    assert told(one.send(CALL)) == ("acknowledged", "again")
    assert first.closed
    assert not second.closed


def test_a_fresh_connection_is_not_replaced() -> None:
    assert told(channel(Scripted(NotReached(LOST, "gone"))).send(CALL)) == ("transient", LOST)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (BadTarget("dns", "no address"), ("transient", "dns")),
        (BadTarget("blocked_address", "inside"), ("refused", "blocked_address")),
        (NotReached("unauthorised", "no"), ("transient", "unauthorised")),
        (RuntimeError("jo@example.com"), ("in_doubt", "channel_error")),
    ],
)
def test_nothing_is_raised_and_a_doubt_is_a_doubt(fault: Exception, expected: tuple[str, str]) -> None:
    for one in (channel(fault), channel(Scripted(fault))):
        outcomes = one.send(CALL)
        assert told(outcomes) == expected
        assert "example.com" not in repr(outcomes)


def test_a_call_waits_for_its_turn_no_longer_than_it_has() -> None:
    one = channel()
    begun = time.monotonic()
    with one._turn:
        assert told(one.send(Call("someone", CALL.members, 0.05))) == ("transient", "not_reached")
    assert time.monotonic() - begun < 1


def test_after_close_nothing_is_sent() -> None:
    one = channel(Scripted("ok"))
    one.close()
    assert told(one.send(CALL)) == ("transient", "closed")


@given(st.sets(st.integers(1, 5_000), max_size=300))
def test_committed_calls_are_remembered_in_few_letters(numbers: set[int]) -> None:
    known = Committed()
    for number in sorted(numbers):
        known = Committed.read(str(known.plus(number)))
    assert len(str(known)) <= FORGET
    for number in range(1, 5_001):
        assert (number in known) == (number in numbers and number >= known.floor)


def test_what_is_forgotten_is_known_to_be_forgotten() -> None:
    known = Committed()
    for number in range(1, 3_000, 2):
        known = known.plus(number)
    assert 1 < known.floor < 2_999
    assert 2_999 in known
    assert 1 not in known


def test_a_connection_is_read_as_kafka_s_own_tools_write_it() -> None:
    login_line = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p;\\"q";'
    given = f"bootstrap.servers=a:1,b:2\nsecurity.protocol=SASL_SSL\nacks=0\nsasl.jaas.config={login_line}\n"
    assert properties_of(given) == {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "SASL_SSL",
        "sasl.username": "u",
        "sasl.password": 'p;"q',
    }
    assert properties_of("a:9092") == {"bootstrap.servers": "a:9092"}


@pytest.mark.parametrize("text", ["", "a", "a:b", "security.protocol=SSL"])
def test_a_connection_that_names_no_server_is_refused(text: str) -> None:
    with pytest.raises(NotReached) as error:
        properties_of(text)
    assert (error.value.outcome.result, error.value.outcome.code) == ("refused", "bad_connection")


@pytest.mark.parametrize("text", ["", "Endpoint=http://a/;SharedAccessKey=k", "Endpoint=sb://a/"])
def test_a_string_that_is_none_of_event_hubs_is_refused(text: str) -> None:
    with pytest.raises(NotReached) as error:
        login(text)
    assert error.value.outcome.code == "bad_connection"
    assert "SharedAccessKey=k" not in str(error.value.outcome)
