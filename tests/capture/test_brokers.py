"""What the reader of every broker promises, and what is peculiar to each: real servers, no Spark."""

from __future__ import annotations

import json
import pickle
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.capture.broker_servers import Broker, NatsServer, RabbitServer, RedisServer
from tidings.errors import SourceStopped
from tidings.sources import nats, rabbitmq, redis, streams
from tidings.sources.streams import Streams, Wanted
from tidings.sources.tap import Offset, Place, Taken

KINDS: dict[str, tuple[type[Broker], type[Streams[Any]]]] = {
    "redis": (RedisServer, redis.RedisStreams),
    "rabbitmq": (RabbitServer, rabbitmq.RabbitStreams),
    "nats": (NatsServer, nats.NatsStreams),
}
T = TypeVar("T")
serial = iter(range(1_000_000))


class Bench:
    """A broker, a fresh stream on it, and the tap that reads it."""

    def __init__(self, broker: Broker, kind: type[Streams[Any]], dialect: str = "segment") -> None:
        self.broker, self.stream = broker, f"crm{next(serial)}"
        self.tap = kind(Wanted("crm", (self.stream,), "tidings_crm", dialect, broker.url))

    def made(self, **limits: Any) -> Bench:
        self.broker.create(self.stream, **limits)
        self.install()
        return self

    def install(self) -> None:
        self.tap.execute([do for do, _ in self.tap.statements()]) if self.tap.statements() else None

    def write(self, *numbers: int) -> None:
        self.broker.write(self.stream, *(json.dumps({"n": number}).encode() for number in numbers))

    def all(self, start: Offset) -> tuple[list[int], Offset]:
        """What one batch after the other reads until there is nothing new."""
        found: list[int] = []
        while (end := self.tap.latest(start)) != start:
            found += numbers(self.tap.read(start, end))
            self.tap.done(end)
            start = end
        return found, start


def numbers(taken: Iterator[Taken]) -> list[int]:
    return [json.loads(one.body)["n"] for one in taken]


@pytest.fixture(scope="session")
def brokers() -> Iterator[dict[str, Broker]]:
    running: dict[str, Broker] = {}
    try:
        yield running
    finally:
        for broker in running.values():
            broker.end()


@pytest.fixture(params=list(KINDS))
def bench(request: pytest.FixtureRequest, brokers: dict[str, Broker]) -> Bench:
    return bench_of(brokers, request.param)


def bench_of(brokers: dict[str, Broker], name: str) -> Bench:
    server, kind = KINDS[name]
    if name not in brokers:
        brokers[name] = server()
        brokers[name].start()
    return Bench(brokers[name], kind)


def test_a_range_reads_the_same_however_often(bench: Bench) -> None:
    bench.made().write(1, 2, 3)
    start = bench.tap.first()
    middle = bench.tap.latest(start)
    bench.write(4, 5)
    end = bench.tap.latest(middle)
    once, again = list(bench.tap.read(start, middle)), list(pickle.loads(pickle.dumps(bench.tap)).read(start, middle))
    assert once == again
    assert numbers(iter(once)) == [1, 2, 3]
    assert numbers(bench.tap.read(middle, end)) == [4, 5]
    assert bench.tap.latest(end) == end
    assert json.loads(json.dumps(end)) == end
    whole = list(bench.tap.read(start, end))
    assert len({one.place for one in whole}) == 5
    assert [one.rank for one in whole] == sorted(one.rank for one in whole)
    assert all(one.micros > 1_700_000_000_000_000 for one in whole)
    assert bench.tap.size(start, end) > 0


def test_a_batch_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (streams, redis, rabbitmq, nats):
        monkeypatch.setattr(module, "MOST", 7)
    bench.made().write(*range(20))
    start = bench.tap.first()
    end = bench.tap.latest(start)
    assert 0 < len(numbers(bench.tap.read(start, end))) <= 7  # RabbitMQ numbers what it notes for itself too
    assert bench.all(start)[0] == list(range(20))


def test_an_empty_stream_has_nothing_new(bench: Bench) -> None:
    start = bench.made().tap.first()
    assert bench.tap.latest(start) == start
    assert list(bench.tap.read(start, start)) == []


def test_what_is_no_json_is_a_message(bench: Bench) -> None:
    bench.made()
    bench.broker.write(bench.stream, b"\xff\xfe", b"not json", b"", b'{"n": 1}')
    start = bench.tap.first()
    taken = list(bench.tap.read(start, bench.tap.latest(start)))
    assert [one.body for one in taken][1:] == ["not json", "", '{"n": 1}']
    assert taken[0].body.encode()  # text, whatever it was


def test_a_record_dialect_gets_the_record(bench: Bench) -> None:
    bench.tap = replace(bench.tap, wanted=replace(bench.tap.wanted, dialect="debezium_postgresql"))
    bench.made().write(1)
    start = bench.tap.first()
    (one,) = bench.tap.read(start, bench.tap.latest(start))
    record = json.loads(one.body)
    assert record["topic"].startswith(bench.stream)
    assert record["value"] == {"n": 1}
    assert record["timestamp"] == one.micros // 1000


def test_a_stream_made_anew_is_a_new_epoch(bench: Bench) -> None:
    bench.made().write(1, 2)
    begin = bench.tap.first()
    found, old = bench.all(begin)
    places = [one.place for one in bench.tap.read(begin, old)]
    bench.write(3)
    planned = bench.tap.latest(old)
    bench.broker.delete(bench.stream)
    with pytest.raises(SourceStopped) as gone:
        bench.tap.latest(old)
    assert gone.value.code == "source_not_ready"
    bench.made().write(4, 5, 6)
    with pytest.raises(SourceStopped, match="made anew") as anew:
        list(bench.tap.read(old, planned))
    assert anew.value.code == "source_went_back"
    begin = bench.tap.latest(old)
    assert list(bench.tap.read(old, begin)) == []
    more, end = bench.all(begin)
    assert (found, more) == ([1, 2], [4, 5, 6])
    assert len(places) == 2
    assert not set(places) & {one.place for one in bench.tap.read(begin, end)}


def test_a_batch_planned_on_a_stream_that_is_gone(bench: Bench, tmp_path: Path) -> None:
    bench.made().write(1)
    _, old = bench.all(bench.tap.first())
    bench.write(2)
    for folder, number, offset in (("offsets", 0, old), ("commits", 0, {}), ("offsets", 1, bench.tap.latest(old))):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / str(number)).write_text(f"v1\n{{}}\n{json.dumps(offset)}")
    Place(tmp_path).readable(bench.tap)
    bench.broker.delete(bench.stream)
    bench.made().write(3)
    with pytest.raises(SourceStopped, match=r"made anew.*Move the source's checkpoint folder away"):
        Place(tmp_path).readable(bench.tap)


def test_a_restart_is_rested_through(bench: Bench) -> None:
    bench.made().write(1, 2)
    found, start = bench.all(bench.tap.first())
    bench.write(3)
    bench.broker.stop()
    for look in (lambda: bench.tap.latest(start), bench.tap.verify):
        with pytest.raises(SourceStopped) as away:
            look()
        assert away.value.code == "source_unreachable"
        assert "sesame" not in str(away.value)
    bench.broker.start()
    when_it_answers(
        lambda: bench.tap.latest(start)
    )  # RabbitMQ confirms and forgets what is written to a stream before that
    bench.write(4)
    more, _ = when_it_answers(lambda: bench.all(start))
    assert found + more == [1, 2, 3, 4]


def when_it_answers(work: Callable[[], T]) -> T:
    """A server that listens is not yet one that has its streams."""
    end = time.monotonic() + 60
    while True:
        try:
            return work()
        except SourceStopped as stopped:
            if stopped.code != "source_unreachable" or time.monotonic() > end:
                raise
            time.sleep(0.2)


def test_a_wrong_password_is_told_apart_and_not_shown(bench: Bench) -> None:
    bench.made()
    url = bench.tap.wanted.connection.replace("sesame", "wrong-word").replace("guest:guest", "guest:wrong-word")
    tap = replace(bench.tap, wanted=replace(bench.tap.wanted, connection=url))
    assert "wrong-word" not in repr(tap)
    with pytest.raises(SourceStopped) as refused:
        tap.verify()
    assert refused.value.code == "source_denied"
    assert "wrong-word" not in str(refused.value)
    assert str(bench.broker.port) not in str(refused.value)


def test_an_address_that_is_none(bench: Bench) -> None:
    tap = replace(bench.tap, wanted=replace(bench.tap.wanted, connection="sesame"))
    with pytest.raises(SourceStopped) as refused:
        tap.verify()
    assert refused.value.code == "source_not_ready"
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize("name", ["redis", "rabbitmq"])
def test_install_and_remove(brokers: dict[str, Broker], name: str) -> None:
    bench = bench_of(brokers, name)
    bench.broker.create(bench.stream)
    with pytest.raises(SourceStopped, match="Run `tidings source install crm`") as first:
        bench.tap.verify()
    assert first.value.code == "source_not_ready"
    done = bench.tap.statements()
    bench.tap.execute([do for do, _ in done])
    assert bench.tap.verify().startswith(bench.stream)
    bench.write(1, 2)
    bench.all(bench.tap.first())
    assert (
        numbers(bench.tap.read(bench.tap.first(), bench.tap.latest(bench.tap.first()))) == []
    )  # the server knows our place
    bench.tap.execute([undo for _, undo in reversed(done)])
    with pytest.raises(SourceStopped, match="install"):
        bench.tap.verify()


def told(bench: Bench, start: Offset) -> SourceStopped:
    with pytest.raises(SourceStopped) as stopped:
        bench.tap.latest(start)
    return stopped.value


def test_redis_entries_trimmed_unread_stop_the_source(brokers: dict[str, Broker]) -> None:
    bench = bench_of(brokers, "redis").made()
    bench.write(*range(10))
    _, start = bench.all(bench.tap.first())
    client = bench.broker.client()
    client.xtrim(bench.stream, maxlen=0, approximate=False)
    assert bench.tap.latest(start) == start  # all of them were read
    bench.write(10, 11, 12)
    planned = bench.tap.latest(start)
    client.xtrim(bench.stream, maxlen=1, approximate=False)
    assert "2 messages" in str(told(bench, start))
    with pytest.raises(SourceStopped, match="2 messages"):
        list(bench.tap.read(start, planned))
    goes_on_after_the_remedy(bench, start)
    assert bench.all(bench.tap.first())[0] == [12]
    client.close()


def goes_on_after_the_remedy(bench: Bench, start: Offset) -> None:
    """Run the very command that the error names."""
    command = told(bench, start).what_now.split("`")[1]
    with bench.broker.client() as client:
        client.execute_command(*shlex.split(command))


def test_redis_an_entry_deleted_unread_stops_the_source(brokers: dict[str, Broker]) -> None:
    bench = bench_of(brokers, "redis").made()
    bench.write(1, 2)
    _, start = bench.all(bench.tap.first())
    bench.write(3, 4, 5)
    with bench.broker.client() as client:
        client.xdel(bench.stream, client.xrange(bench.stream)[3][0])
    assert "1 messages" in str(told(bench, start))
    goes_on_after_the_remedy(bench, start)
    assert bench.all(bench.tap.first())[0] == [3, 5]


def test_redis_that_lost_what_was_read(brokers: dict[str, Broker]) -> None:
    bench = bench_of(brokers, "redis").made()
    bench.write(1, 2)
    _, start = bench.all(bench.tap.first())
    at = start[bench.stream]
    ahead = {bench.stream: at | {"id": "99999999999999-0", "count": at["count"] + 1}}
    assert told(bench, ahead).code == "source_went_back"
    goes_on_after_the_remedy(bench, ahead)
    bench.write(3)
    assert bench.all(bench.tap.first())[0] == [3]


def test_redis_reads_fields_as_debezium_and_people_write_them() -> None:
    extended = {b"key": b'{"id": 7}', b"value": b'{"op": "c"}', b"kind": b"told"}
    assert redis.message_of(extended) == (b'{"id": 7}', b'{"op": "c"}', {"kind": "told"})
    assert redis.message_of({b'{"id": 7}': b'{"op": "c"}'}) == (b'{"id": 7}', b'{"op": "c"}', {})
    assert redis.message_of({b"id": b"7", b"email": b"a"}) == (None, b'{"id": "7", "email": "a"}', {})


def test_redis_ids_that_are_no_times(brokers: dict[str, Broker]) -> None:
    bench = bench_of(brokers, "redis").made()
    with bench.broker.client() as client:
        for entry in ("1-1", "18446744073709551615-5"):
            client.xadd(bench.stream, {"value": '{"n": 1}'}, id=entry)
    start = bench.tap.first()
    taken = list(bench.tap.read(start, bench.tap.latest(start)))
    assert [one.micros for one in taken] == [1000, streams.LAST_MICROS]
    assert taken[0].rank < taken[1].rank


def test_nats_messages_expired_unread_stop_the_source(brokers: dict[str, Broker]) -> None:
    bench = bench_of(brokers, "nats").made(max_msgs=3)
    bench.write(1, 2)
    _, start = bench.all(bench.tap.first())
    bench.write(3)
    planned = bench.tap.latest(start)
    bench.write(4, 5, 6)
    assert "1 messages" in str(told(bench, start))
    with pytest.raises(SourceStopped, match="1 messages"):
        list(bench.tap.read(start, planned))
    assert bench.all(bench.tap.first())[0] == [4, 5, 6]


def test_nats_a_deleted_last_message_ends_a_batch(brokers: dict[str, Broker]) -> None:
    bench = bench_of(brokers, "nats").made()
    bench.write(1, 2, 3)
    start = bench.tap.first()
    end = bench.tap.latest(start)
    bench.broker.ask(lambda js: js.delete_msg(bench.stream, 3))
    assert numbers(bench.tap.read(start, end)) == [1, 2]


def test_nats_that_went_back_and_queues_of_work(brokers: dict[str, Broker]) -> None:
    bench = bench_of(brokers, "nats").made()
    bench.write(1)
    _, start = bench.all(bench.tap.first())
    ahead = {bench.stream: start[bench.stream] | {"seq": 9}}
    assert told(bench, ahead).code == "source_went_back"
    work = bench_of(brokers, "nats")
    work.broker.create(work.stream, retention="workqueue")
    with pytest.raises(SourceStopped, match="keeps messages by workqueue"):
        work.tap.verify()


def test_rabbitmq_messages_removed_unread_stop_the_source(brokers: dict[str, Broker]) -> None:
    bench = bench_of(brokers, "rabbitmq").made(x_max_length_bytes=20_000, x_stream_max_segment_size_bytes=10_000)
    bench.write(1, 2)
    _, start = bench.all(bench.tap.first())
    bench.broker.write(bench.stream, *[json.dumps({"n": n, "fill": "x" * 400}).encode() for n in range(3, 200)])
    planned = start | {bench.stream: start[bench.stream] | {"next": 9}}
    stopped = told(bench, start)
    assert "removed before they were read" in str(stopped)
    with pytest.raises(SourceStopped, match="removed before"):
        list(bench.tap.read(start, planned))
    bench.tap.execute([undo for _, undo in bench.tap.statements()])
    bench.install()
    left = bench.all(start)[0]
    assert left == list(range(left[0], 200))


def test_rabbitmq_that_went_back(brokers: dict[str, Broker]) -> None:
    bench = bench_of(brokers, "rabbitmq").made()
    bench.write(1)
    _, start = bench.all(bench.tap.first())
    assert told(bench, {bench.stream: start[bench.stream] | {"next": 9}}).code == "source_went_back"
