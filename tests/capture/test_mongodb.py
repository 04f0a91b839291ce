"""Change streams from one place to another: the same events each time, in order, and what stops with which remedy."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pymongo
import pytest
from emulators import Endpoint, mongo_java_server

from tidings.errors import SourceStopped
from tidings.sources.mongodb import Watch, place_of
from tidings.sources.tap import Offset

NAMED = (("crm", "customers"),)  # the emulator watches one collection at a time


@pytest.fixture(scope="module")
def mongodb() -> Iterator[Endpoint]:
    with mongo_java_server() as endpoint:
        yield endpoint


@pytest.fixture
def client(mongodb: Endpoint) -> Iterator[Any]:
    with pymongo.MongoClient(address(mongodb)) as one:
        yield one


def address(endpoint: Endpoint) -> str:
    return f"mongodb://127.0.0.1:{endpoint.port}/?directConnection=true"


def now(tap: Watch) -> Offset:
    """A place like the first batch finds it; the emulator does not tell the time of its operations."""
    return {**tap.first(), "origin": tap.origin, "at": {"time": [int(time.time()), 0]}, "seen": int(time.time())}


def test_events_between_two_places(mongodb: Endpoint, client: Any) -> None:
    tap = Watch("crm", NAMED, address(mongodb), origin="rs0/a")
    start = now(tap)
    client.crm.customers.insert_one({"_id": 1, "email": "jo\u00e9@example.com", "seen": 2**40})
    client.crm.other.insert_one({"_id": 1})
    client.crm.customers.update_one({"_id": 1}, {"$set": {"email": "new@example.com"}})
    client.crm.customers.delete_one({"_id": 1})
    end = tap.latest(start)
    found = list(tap.read(start, end))
    assert list(tap.read(start, end)) == found
    told = [json.loads(one.body) for one in found]
    assert {one["origin"] for one in told} == {"rs0/a"}
    events = [one["value"] for one in told]
    assert [event["operationType"] for event in events] == ["insert", "update", "delete"]
    assert events[0]["fullDocument"] == {"_id": 1, "email": "jo\u00e9@example.com", "seen": 2**40}
    assert events[0]["clusterTime"]["$timestamp"]["t"] >= start["at"]["time"][0]
    assert len({one.place for one in found}) == 3
    assert [one.rank for one in found] == sorted(one.rank for one in found)
    client.crm.customers.insert_one({"_id": 2})
    more = tap.latest(end)
    assert [json.loads(one.body)["value"]["documentKey"] for one in tap.read(end, more)] == [{"_id": 2}]
    assert tap.latest(more) == more
    assert tap.size(start, more) > 400


def test_a_batch_that_lost_events_stops(mongodb: Endpoint, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidings.sources.mongodb.PATIENCE_S", 2.0)
    tap = Watch("crm", NAMED, address(mongodb), origin="rs0/a")
    start = now(tap)
    client.crm.customers.insert_one({"of": 1})
    end = tap.latest(start)
    assert list(tap.read(start, end))
    for wrong in ({"count": end["count"] + 1}, {"last": "00"}):
        with pytest.raises(SourceStopped) as stopped:
            list(tap.read(start, {**end, **wrong}))
        assert stopped.value.code == "source_purged"


def test_another_deployment_stops(mongodb: Endpoint) -> None:
    tap = Watch("crm", NAMED, address(mongodb), origin="rs0/a")
    with pytest.raises(SourceStopped) as stopped:
        replace(tap, origin="rs0/b").latest(now(tap))
    assert stopped.value.code == "source_went_back"
    assert "checkpoint folder" in stopped.value.what_now


@pytest.mark.parametrize(
    ("code", "wanted"),
    [(286, "source_purged"), (18, "source_denied"), (40573, "source_not_ready"), (189, "source_unreachable")],
)
def test_what_a_server_says_is_told_apart(code: int, wanted: str) -> None:
    assert Watch("crm", NAMED, "mongodb://host").stopped(code).code == wanted


def test_a_closed_stream_is_gone_on_with_otherwise() -> None:
    assert place_of({"_id": {"_data": "82"}, "operationType": "invalidate"}) == {"after": "82"}
    assert place_of({"_id": {"_data": "82"}, "operationType": "insert"}) == {"token": "82"}


def test_a_server_that_is_not_there() -> None:
    hidden = "mongodb://me:hunter2@127.0.0.1:1/?serverSelectionTimeoutMS=300"
    for connection, code in ((hidden, "source_unreachable"), ("http://hunter2", "source_not_ready")):
        tap = Watch("crm", NAMED, connection)
        with pytest.raises(SourceStopped) as stopped:
            tap.verify()
        assert stopped.value.code == code
        assert "hunter2" not in str(stopped.value) + repr(tap)
