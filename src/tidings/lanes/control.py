"""What an operator asks of a lane: a small append-only file per lane, written by a verb, picked up by the running process.

    data/control/<lane>.jsonl       one request a line: serial, action, reason, by, at; event for dead letters; events, strength and
                                    evidence for the answers that accepted deliveries wait for; order for replays
    data/control/_words.jsonl       the same for what people say of single events, which concerns no lane alone: a change held in a
                                    dispute between masters is kept or dropped, one that waits for a review released or refused

The process commits an attested row for each request, under the application `control/<lane>` at the request's serial.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from tidings import durable
from tidings.errors import Damaged
from tidings.ledger.attestation import (
    ConflictResolved,
    ExceptionApproved,
    LanePaused,
    LaneResumed,
    LetterExpired,
    Replayed,
    Reviewed,
)

Action = Literal[
    "pause", "resume", "retry", "approve", "expire", "keep", "drop", "release", "refuse", "acknowledge", "reject",
    "replay", "replay_pause", "replay_resume", "replay_cancel", "move",
]  # fmt: skip
WORDS = "_words"  # no subscriber can have this name


@dataclass(frozen=True)
class Request:
    serial: int
    lane: str
    action: Action
    reason: str
    by: str
    at: str
    event: str = ""
    source: str = ""
    generation: str = ""
    offset: int = -1
    strength: str = ""  # of an acknowledgement: what it proves
    evidence: str = ""  # digest of what a person shows for it
    events: tuple[str, ...] = ()  # an answer may speak of many
    order: Mapping[str, Any] = field(default_factory=dict)  # of a replay, or where a cursor moves

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", tuple(self.events))

    @property
    def name(self) -> str:
        """What a replay is called from then on."""
        return f"{self.lane}-{self.serial}"

    def entry(self, attestor: str) -> bytes | None:
        """Ledger bytes."""
        said = {"attestor": attestor, "timestamp": self.at, "reason": f"{self.reason} ({self.by})"}
        if self.action == "pause":
            return LanePaused(lane=self.lane, **said).encode()
        if self.action == "resume":
            return LaneResumed(lane=self.lane, **said).encode()
        if self.action == "retry":
            return Replayed(subscriber=self.lane, range=self.event, count=1, **said).encode()
        if self.action == "replay":
            count, words = int(self.order.get("count", 0)), str(self.order.get("range", ""))
            return Replayed(subscriber=self.lane, range=f"{self.name}: {words}", count=count, **said).encode()
        if self.action.startswith("replay_"):
            words = f"{self.event} {self.action.removeprefix('replay_')}"
            return Replayed(subscriber=self.lane, range=words, count=0, **said).encode()
        if self.action == "move":
            words = ", ".join(f"{feed} to {offset}" for feed, offset in sorted(self.order["to"].items()))
            count = int(self.order["count"])
            return Replayed(subscriber=self.lane, range=f"cursor moved: {words}", count=count, **said).encode()
        if self.action == "approve":
            by = {"approver": self.by, "reason": self.reason}
            return ExceptionApproved(event_id=self.event, subscriber=self.lane, **said | by).encode()
        if self.action == "expire":
            return LetterExpired(event_id=self.event, subscriber=self.lane, **said).encode()
        if self.action in ("keep", "drop"):
            return ConflictResolved(event_id=self.event, outcome=self.action, **said).encode()
        if self.action in ("release", "refuse"):
            return Reviewed(event_id=self.event, outcome=self.action, **said).encode()
        return None


def folder_of(data: Path) -> Path:
    return data / "control"


def answer(
    data: Path,
    lane: str,
    events: Iterable[str],
    done: bool,
    reason: str,
    by: str = "",
    strength: str = "A3",
    evidence: str = "",
) -> Request:
    """A later answer about accepted deliveries: a callback, a pull or a person says what became of them."""
    action: Action = "acknowledge" if done else "reject"
    return ask(data, lane, action, reason, by, events=tuple(events), strength=strength, evidence=evidence)


def ask(data: Path, lane: str, action: Action, reason: str, by: str = "", /, **event: Any) -> Request:
    """Append one request; durable on return."""
    return ask_all(data, lane, action, reason, by, [event])[0]


def ask_all(
    data: Path,
    lane: str,
    action: Action,
    reason: str,
    by: str,
    events: Sequence[Mapping[str, Any]],
) -> list[Request]:
    """Append a request for each of these; all of them are durable on return, at the price of one."""
    folder = folder_of(data)
    durable.make_folder(folder)
    path = folder / f"{lane}.jsonl"
    new = not path.exists()
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _cut_torn_line(path, file.fileno())
        first = len(_parse(path)) + 1
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        requests = [
            Request(serial, lane, action, reason, by or _who(), now, **event)
            for serial, event in enumerate(events, first)
        ]
        file.writelines(json.dumps(asdict(request), sort_keys=True) + "\n" for request in requests)
        file.flush()
        os.fsync(file.fileno())
    if new:
        durable.sync_folder(folder)
    return requests


def asked(data: Path, lane: str) -> list[Request]:
    """Every request to a lane, in order."""
    return _parse(folder_of(data) / f"{lane}.jsonl")


def paused(requests: Iterable[Request]) -> str:
    """The reason of a pause that nothing followed; empty when the lane runs."""
    reason = ""
    for request in requests:
        if request.action in ("pause", "resume"):
            reason = request.reason if request.action == "pause" else ""
    return reason


def marks(data: Path, lanes: Sequence[str]) -> tuple[int, ...]:
    """Sizes of the lanes' files: cheap to compare, and different after any request."""
    return tuple(_size(folder_of(data) / f"{lane}.jsonl") for lane in lanes)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@dataclass
class _Read:
    """A file as far as it was read. It only grows, so what is read is read once, however many answers a subscriber gives.

    `last` is the last line that was read: when it is not there any more, somebody has mended the file and it is read anew.
    """

    upto: int = 0
    last: bytes = b""
    found: list[Request] = field(default_factory=list)


_files: dict[Path, _Read] = {}
_reading = threading.Lock()


def _parse(path: Path) -> list[Request]:
    with _reading:
        try:
            with path.open("rb") as file:
                known = _files.setdefault(path, _Read())
                file.seek(known.upto - len(known.last))
                if file.read(len(known.last)) != known.last:
                    known = _files[path] = _Read()
                    file.seek(0)
                lines = file.read().splitlines(keepends=True)
        except FileNotFoundError:
            _files.pop(path, None)
            return []
        for number, line in enumerate(lines, 1):
            if number == len(lines) and not line.endswith(b"\n"):
                break  # being written, or torn by a crash before anybody was told that it is there
            try:
                known.found.append(Request(**json.loads(line)))
            except (ValueError, TypeError):
                place = f"{path}:{len(known.found) + 1} cannot be read"
                raise Damaged("control_file", place, "a request", "Mend the line.") from None
            known.upto, known.last = known.upto + len(line), line
        return list(known.found)


def _cut_torn_line(path: Path, descriptor: int) -> None:
    """What a crash tore was never promised to anybody; what is written next must not stand on the same line."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        if file.read() in (b"", b"\n"):
            return
        file.seek(0)
        os.ftruncate(descriptor, file.read().rfind(b"\n") + 1)


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
