"""Services that take many records: what a request left out comes again alone and in order, and what a code means is not guessed."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from sinks import LOOPBACK, call, member, members
from vendor import Received, Reply, always, hang, reset, serving, success_then_reset

from tidings.channels import DIGEST_KEY, open_channel
from tidings.channels.call import Channel, Outcome
from tidings.errors import Refused
from tidings.shapes import NetworkRules, Subscriber

QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/q.fifo"
PLACES = {
    "sqs_fifo": {"queue": QUEUE},
    "sqs": {"queue": QUEUE.removesuffix(".fifo")},
    "sns_fifo": {"topic": "arn:aws:sns:eu-west-1:123456789012:t.fifo"},
    "kinesis": {"stream": "s"},
    "eventbridge": {"bus": "b"},
    "google_pubsub": {"topic": "projects/shop/topics/changes"},
}


def opened(name: str, url: str, secret: str = "canary-77", **place: str) -> Channel:
    said: dict[str, Any] = {"manifest": name, "name": "someone", "role": "service", "region": "US"}
    said["vars"] = {**PLACES[name], **place}
    if name == "google_pubsub":
        said |= {"url": url, "auth": {"kind": "bearer", "secret": "file:key"}}
    else:
        said["connection"] = "file:key"
        secret = json.dumps({"region": "eu-west-1", "endpoint": url, "key_id": "AKIA1", "secret": secret})
    secrets = {"file:key": secret, DIGEST_KEY: "00" * 32}
    return open_channel(Subscriber.model_validate(said), secrets, NetworkRules(allow=LOOPBACK))


def told(outcomes: list[Outcome]) -> list[tuple[str, str]]:
    return [(outcome.result, outcome.code) for outcome in outcomes]


def answer(body: Any) -> Reply:
    return 200, {"Content-Type": "application/x-amz-json-1.1"}, json.dumps(body).encode()


def kinesis(left_out: dict[str, str]) -> Callable[[Received, socket.socket], Reply]:
    """PutRecords, where these events are left out with these codes."""

    def behave(request: Received, sock: socket.socket) -> Reply:
        records = []
        for record in request.json["Records"]:
            event = json.loads(base64.b64decode(record["Data"]))["id"]
            code = left_out.get(event)
            taken = {"SequenceNumber": "1", "ShardId": "shardId-000000000000"}
            records.append({"ErrorCode": code, "ErrorMessage": "no"} if code else taken)
        failed = sum("ErrorCode" in record for record in records)
        return answer({"FailedRecordCount": failed, "Records": records})

    return behave


def test_a_record_that_was_left_out_holds_its_subject_and_nobody_else() -> None:
    those = [member(1, "anna"), member(2, "anna"), member(3, "ben"), member(4, "ben"), member(5, "cleo")]
    slow = {those[0].event_id: "ProvisionedThroughputExceededException", those[4].event_id: "InternalFailure"}
    with serving(kinesis(slow)) as service:
        outcomes = opened("kinesis", service.url).send(call(*those))
    assert told(outcomes) == [
        ("throttled", "ProvisionedThroughputExceededException"),
        ("transient", "held_behind"),
        ("acknowledged", "ok"),
        ("acknowledged", "ok"),
        ("transient", "InternalFailure"),
    ]
    sent = [[record["PartitionKey"] for record in request.json["Records"]] for request in service.received]
    assert sent == [["anna", "ben", "cleo"], ["ben"]]


def sqs(left_out: dict[str, tuple[str, bool]], digest: str = "") -> Callable[[Received, socket.socket], Reply]:
    def behave(request: Received, sock: socket.socket) -> Reply:
        good, bad = [], []
        for entry in request.json["Entries"]:
            event = json.loads(entry["MessageBody"])["id"]
            if event in left_out:
                code, mine = left_out[event]
                bad.append({"Id": entry["Id"], "Code": code, "SenderFault": mine, "Message": "no"})
            else:
                whole = digest or hashlib.md5(entry["MessageBody"].encode()).hexdigest()
                good.append({"Id": entry["Id"], "MessageId": "m", "MD5OfMessageBody": whole})
        return answer({"Successful": good, "Failed": bad})

    return behave


def test_whose_fault_an_entry_is_decides_whether_it_comes_again() -> None:
    those = members(1, 4)
    codes = {those[0].event_id: ("InvalidMessageContents", True), those[1].event_id: ("InternalError", False)}
    with serving(sqs(codes)) as service:
        outcomes = opened("sqs_fifo", service.url).send(call(*those))
    assert [outcome.result for outcome in outcomes] == ["terminal", "transient", "acknowledged", "acknowledged"]
    entries = service.received[0].json["Entries"]
    assert [entry["MessageGroupId"] for entry in entries] == [one.subject for one in those]
    assert [entry["MessageDeduplicationId"] for entry in entries] == [one.event_id for one in those]


def test_other_bytes_than_ours_in_the_queue_are_a_doubt() -> None:
    with serving(sqs({}, digest="0" * 32)) as service:
        assert told(opened("sqs", service.url).send(call(member(1)))) == [("in_doubt", "digest_differs")]


def test_an_entry_too_large_for_the_bus_is_told_by_its_code() -> None:
    def behave(request: Received, sock: socket.socket) -> Reply:
        entries = [{"ErrorCode": "InvalidArgument"}, {"ErrorCode": "ThrottlingException"}, {"EventId": "e"}]
        return answer({"FailedEntryCount": 2, "Entries": entries})

    with serving(behave) as service:
        outcomes = opened("eventbridge", service.url).send(call(*members(1, 3)))
    assert [outcome.result for outcome in outcomes] == ["terminal", "throttled", "acknowledged"]
    entry = service.received[0].json["Entries"][0]
    assert (entry["Source"], entry["DetailType"], entry["EventBusName"]) == ("tidings", "tidings.email.changed", "b")


def test_an_answer_that_does_not_speak_of_every_record_leaves_a_doubt() -> None:
    with serving(always(200, {}, json.dumps({"Records": [{"SequenceNumber": "1"}]}).encode())) as service:
        outcomes = opened("kinesis", service.url).send(call(*members(1, 3)))
    assert [outcome.result for outcome in outcomes] == ["acknowledged", "in_doubt", "in_doubt"]


def failing(status: int, code: str) -> Callable[[Received, socket.socket], Reply]:
    return always(status, {"Content-Type": "application/x-amz-json-1.1"}, json.dumps({"__type": code}).encode())


AWS = [name for name in PLACES if name not in ("google_pubsub", "sns_fifo")]
FAILURES: list[tuple[str, Callable[..., Reply | None], set[str]]] = [
    ("hangs", hang, {"in_doubt"}),
    ("resets", reset, {"in_doubt"}),
    ("says yes, then resets", success_then_reset, {"in_doubt"}),
    ("breaks", failing(500, "InternalFailure"), {"transient"}),
    ("is busy", failing(400, "ThrottlingException"), {"throttled"}),
    ("does not know us", failing(403, "SignatureDoesNotMatch"), {"transient"}),
    ("has let our token expire", failing(400, "ExpiredTokenException"), {"transient"}),
    ("does not have the place", failing(400, "ResourceNotFoundException"), {"transient"}),
    ("does not like it", failing(400, "ValidationException"), {"terminal"}),
]


@pytest.mark.parametrize("name", AWS)
@pytest.mark.parametrize(("case", "behave", "results"), FAILURES, ids=[row[0] for row in FAILURES])
def test_a_service_that(name: str, case: str, behave: Any, results: set[str]) -> None:
    with serving(behave) as service:
        channel = opened(name, service.url)
        begun = time.monotonic()
        outcomes = channel.send(call(*members(1, 3), timeout=0.6))
        took = time.monotonic() - begun
    assert {outcome.result for outcome in outcomes} <= results
    assert took < 1.5
    assert "canary-77" not in f"{channel!r} {outcomes!r}"
    assert all(outcome.strength == "A0" for outcome in outcomes)


def test_a_request_refused_as_a_whole_is_made_again_for_each_alone() -> None:
    bad = member(2, "ben")

    def behave(request: Received, sock: socket.socket) -> Reply:
        ids = [json.loads(base64.b64decode(record["Data"]))["id"] for record in request.json["Records"]]
        if bad.event_id in ids:
            return failing(400, "ValidationException")(request, sock)
        return kinesis({})(request, sock)

    with serving(behave) as service:
        outcomes = opened("kinesis", service.url).send(call(member(1, "anna"), bad, member(3, "cleo")))
    assert [outcome.result for outcome in outcomes] == ["acknowledged", "terminal", "acknowledged"]
    assert [len(request.json["Records"]) for request in service.received] == [3, 1, 1, 1]


def test_pubsub_messages_are_what_the_binding_says() -> None:
    def behave(request: Received, sock: socket.socket) -> Reply:
        return answer({"messageIds": [str(number) for number, _ in enumerate(request.json["messages"])]})

    with serving(behave) as service:
        outcomes = opened("google_pubsub", service.url).send(call(*members(1, 2)))
    assert told(outcomes) == [("acknowledged", "ok")] * 2
    (request,) = service.received
    assert (request.method, request.path) == ("POST", "/v1/projects/shop/topics/changes:publish")
    assert request.headers["authorization"] == "Bearer canary-77"
    first = request.json["messages"][0]
    assert set(first) == {"data", "attributes", "orderingKey"}
    assert first["orderingKey"] == "subject-1"
    assert first["attributes"] == {"content-type": "application/cloudevents+json; charset=utf-8"}
    assert json.loads(base64.b64decode(first["data"])) == member(1).body


STATUSES = [
    (401, "transient"),
    (403, "transient"),
    (404, "transient"),
    (400, "terminal"),
    (429, "throttled"),
    (500, "transient"),
]


@pytest.mark.parametrize(("status", "result"), STATUSES)
def test_pubsub_speaks_by_status(status: int, result: str) -> None:
    with serving(always(status)) as service:
        channel = opened("google_pubsub", service.url)
        outcomes = channel.send(call(*members(1, 3)))
        assert channel.ping().result != "acknowledged"
    assert {outcome.result for outcome in outcomes} == {result}
    assert "canary-77" not in f"{channel!r} {outcomes!r}"


@pytest.mark.parametrize("behave", [hang, reset, success_then_reset])
def test_pubsub_that_does_not_answer_is_a_doubt(behave: Any) -> None:
    with serving(behave) as service:
        outcomes = opened("google_pubsub", service.url).send(call(*members(1, 3), timeout=0.6))
    assert {outcome.result for outcome in outcomes} == {"in_doubt"}


def test_pubsub_without_an_id_for_each_is_a_doubt() -> None:
    with serving(always(200, {}, b'{"messageIds": ["1"]}')) as service:
        outcomes = opened("google_pubsub", service.url).send(call(*members(1, 2)))
    assert told(outcomes) == [("in_doubt", "answer_unreadable")] * 2


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("sqs", {"queue": QUEUE}),
        ("sqs_fifo", {"queue": QUEUE.removesuffix(".fifo")}),
        ("sns_fifo", {"topic": "arn:aws:sns:eu-west-1:1:t"}),
        ("google_pubsub", {"topic": "shop/../changes"}),
    ],
)
def test_a_place_of_another_kind_is_refused_at_the_start(name: str, place: dict[str, str]) -> None:
    with pytest.raises(Refused, match="sink_place"):
        opened(name, "http://127.0.0.1:9", **place)
