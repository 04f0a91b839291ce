"""The executor's part: rows of a planned call in, one attempts row per call out. Nothing here raises for a row.

A task tried again does not send again: what its first try did is not known, so every member is in doubt. A call that was not
begun when its time to begin was over says so and is not an attempt. A call that was cut is in doubt.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyspark import TaskContext

from tidings.channels import open_channel
from tidings.channels.call import Buries, Call, Channel, Member, Outcome
from tidings.errors import TidingsError
from tidings.lanes.attempts import Stamp, made_row, table_of
from tidings.lanes.exchanges import sealed
from tidings.lanes.member import Feed, PlannedCall, Rules, Sent
from tidings.lanes.retry import moment
from tidings.lanes.semantics import NOT_STARTED, judge
from tidings.seal.keyring import associated, open_payload
from tidings.shapes import NetworkRules, Subscriber
from tidings.stages.envelope import addressed, sequence

GRACE_S = 1.0  # a channel keeps its own time; this is for one that does not


@dataclass(frozen=True)
class LaneJob:
    """What one lane's calls need on an executor. Travels inside the task, never as a literal of a plan."""

    subscriber: Subscriber
    secrets: Mapping[str, str] = field(repr=False)
    rules: Rules
    by: Stamp
    network: NetworkRules
    manifests: str
    form: Literal["", "structured", "batched"] = ""  # how a webhook takes events that are already rendered


@dataclass(frozen=True)
class Job:
    """All lanes of one Spark job. Calls begin within `begin_s`; each may then use what is left of `budget_s`."""

    lanes: Mapping[str, LaneJob]
    tasks: Mapping[str, int]  # lane → how many tasks share its concurrency
    budget_s: float
    begin_s: float


_channels: dict[str, Channel] = {}
_lock = threading.Lock()


def channel_of(lane: LaneJob) -> Channel:
    """One channel per settings and worker process, so that connections outlive a cycle."""
    said = json.dumps(
        [lane.subscriber.model_dump(mode="json", by_alias=True), sorted(lane.secrets.items())], default=str
    )
    key = lane.subscriber.name + sha256(said.encode()).hexdigest()
    with _lock:
        if key not in _channels:
            manifests = Path(lane.manifests) if lane.manifests else None
            _channels[key] = open_channel(lane.subscriber, lane.secrets, lane.network, manifests=manifests)
        return _channels[key]


def sender(job: Job) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function Spark maps over the planned rows."""

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [row for batch in batches for row in batch.to_pylist()]
        context = TaskContext.get()
        again = context is not None and context.attemptNumber() > 0
        made = [] if not rows else _run(job, _calls(rows), again)
        yield from table_of(made).to_batches()

    return send


@dataclass(frozen=True)
class _Ready:
    """One call with its rows."""

    call: PlannedCall
    rows: list[dict[str, Any]]


def _calls(rows: Sequence[dict[str, Any]]) -> list[_Ready]:
    grouped: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault((row["lane"], row["seq"]), []).append(row)
    return [_Ready(_planned(members), members) for _, members in sorted(grouped.items())]


def _planned(rows: list[dict[str, Any]]) -> PlannedCall:
    first = rows[0]
    members = tuple(
        Sent(
            event_id=row["event_id"],
            offset=row["offset"],
            semantics=row["semantics"],
            attempt=row["attempt"],
            change_type=row["change_type"],
            tries=row["tries"],
            first=row["first"],
            limit=row["limit"],
            doubted=row["doubted"],
            sent_in=row["sent_in"],
            awaiting=row["awaiting"],
            reference=row["reference"] or "",
            predicted=row["predicted"],
        )
        for row in sorted(rows, key=lambda row: row["place"])
    )
    feed = Feed(first["source"], first["generation"])
    return PlannedCall(first["lane"], first["seq"], feed, first["kind"], members, first["at"], first["intent"])


def _run(job: Job, ready: list[_Ready], again: bool) -> list[dict[str, Any]]:
    """All calls of this task, each lane with its own threads. What is not back in time is in doubt."""
    if again:
        doubt = ("in_doubt", "lane.task_again", "a task was tried again; what its first try did is not known")
        return [_told(job, one.call, _all(one.call, *doubt), (time.time(), time.time())) for one in ready]
    begin, pools = time.monotonic(), {}
    for name in {one.call.lane for one in ready}:
        share = max(1, job.lanes[name].rules.concurrency // job.tasks.get(name, 1))
        pools[name] = ThreadPoolExecutor(max_workers=share, thread_name_prefix=f"lane-{name}")
    futures = [(one, pools[one.call.lane].submit(_one, job, one, begin)) for one in ready]
    made = []
    for one, future in futures:
        left = begin + job.budget_s + GRACE_S - time.monotonic()
        try:
            made.append(future.result(timeout=max(0.0, left)))
        except Exception:  # a hung channel or a fault of ours: the request may have left
            cut = ("in_doubt", "lane.cut", "the time of this cycle was over before the call came back")
            made.append(_told(job, one.call, _all(one.call, *cut), (one.call.at, time.time())))
    for pool in pools.values():
        pool.shutdown(wait=False, cancel_futures=True)
    return made


def _one(job: Job, one: _Ready, begin: float) -> dict[str, Any]:
    lane, started = job.lanes[one.call.lane], time.time()
    elapsed = time.monotonic() - begin
    if elapsed > job.begin_s:
        words = ("transient", NOT_STARTED, "its turn did not come in this cycle")
        return _told(job, one.call, _all(one.call, *words), (started, started))
    members, unreadable = _members(one)
    outcomes = list(unreadable)
    if members:
        call = Call(one.call.lane, tuple(members), min(lane.rules.timeout_s, job.budget_s - elapsed), one.call.seq)
        try:
            channel = channel_of(lane)
        except TidingsError as error:
            return _told(job, one.call, _all(one.call, "transient", error.code, "no channel"), (started, time.time()))
        outcomes += channel.probe(call) if one.call.kind == "probe" else channel.send(call)
    row = _told(job, one.call, outcomes, (started, time.time()))
    if members and isinstance(channel, Buries):
        _bury(channel, members, row["members"])
    return row | {"exchanges": sealed(row["members"], outcomes, one.rows) or None}


def _bury(channel: Buries, members: Sequence[Member], told: Sequence[Mapping[str, Any]]) -> None:
    """A copy of a dead letter for the broker's own place for them. Ours is the one that counts, so a failure changes nothing."""
    dead = {one["event_id"]: one["code"] or "" for one in told if one["final"] == "dead_lettered"}
    for member in members:
        if member.event_id in dead:
            with suppress(Exception):
                channel.bury(member, dead[member.event_id])


def _members(one: _Ready) -> tuple[list[Member], list[Outcome]]:
    """The members as the channel takes them; a row that does not open is terminal for itself alone."""
    members, unreadable = [], []
    for row in sorted(one.rows, key=lambda row: row["place"]):
        try:
            plain = open_payload(row["key"], associated("journal", row["event_id"], "payload"), row["payload"])
            body = addressed(row, row["wire"], json.loads(plain), row["redact"])
        except (TidingsError, ValueError, KeyError, TypeError):
            unreadable.append(
                Outcome(row["event_id"], "terminal", "lane.unreadable", detail="the sealed row does not open")
            )
            continue
        members.append(
            Member(
                event_id=row["event_id"],
                subject=row["wire"],
                change_type=row["change_type"],
                sequence=sequence(row["offset"]) or "",
                body=body,
                idempotency_key=row["event_id"],
                attempt=row["attempt"],
                reference=row["reference"] or "",
                sent_in=row["sent_in"],
                withheld=tuple(row["redact"]),
            )
        )
    return members, unreadable


def _all(call: PlannedCall, result: Any, code: str, detail: str) -> list[Outcome]:
    return [Outcome(sent.event_id, result, code, detail=detail) for sent in call.members]


def _told(job: Job, call: PlannedCall, outcomes: list[Outcome], times: tuple[float, float]) -> dict[str, Any]:
    lane = job.lanes[call.lane]
    started, finished = moment(times[0]), moment(times[1])
    told = judge(lane.rules, call, outcomes, started, finished)
    return made_row(lane.rules, call, told, (started, finished), lane.by)
