"""What an operator asks of a lane: a small append-only file per lane, written by a verb, picked up by the running process.

    data/control/<lane>.jsonl       one request a line: serial, action, reason, by, at; event for dead letters
    data/control/_words.jsonl       the same for what people say of single events, which concerns no lane alone: a change held in a
                                    dispute between masters is kept or dropped, one that waits for a review released or refused

The process commits an attested row for each request, under the application `control/<lane>` at the request's serial.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from tidings import durable
from tidings.errors import Damaged
from tidings.ledger.attestation import ConflictResolved, LanePaused, LaneResumed, Replayed, Reviewed

Action = Literal["pause", "resume", "retry", "approve", "keep", "drop", "release", "refuse"]
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

    def entry(self, attestor: str) -> bytes | None:
        """Ledger bytes; an approved exception has no kind of its own there."""
        said = {"attestor": attestor, "timestamp": self.at, "reason": f"{self.reason} ({self.by})"}
        if self.action == "pause":
            return LanePaused(lane=self.lane, **said).encode()
        if self.action == "resume":
            return LaneResumed(lane=self.lane, **said).encode()
        if self.action == "retry":
            return Replayed(subscriber=self.lane, range=self.event, count=1, **said).encode()
        if self.action in ("keep", "drop"):
            return ConflictResolved(event_id=self.event, outcome=self.action, **said).encode()
        if self.action in ("release", "refuse"):
            return Reviewed(event_id=self.event, outcome=self.action, **said).encode()
        return None


def folder_of(data: Path) -> Path:
    return data / "control"


def ask(data: Path, lane: str, action: Action, reason: str, by: str = "", /, **event: str | int) -> Request:
    """Append one request; durable on return."""
    folder = folder_of(data)
    durable.make_folder(folder)
    path = folder / f"{lane}.jsonl"
    new = not path.exists()
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        before = _parse(path)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        request = Request(len(before) + 1, lane, action, reason, by or _who(), now, **event)  # type: ignore[arg-type]
        file.write(json.dumps(asdict(request), sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())
    if new:
        durable.sync_folder(folder)
    return request


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


def _parse(path: Path) -> list[Request]:
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(Request(**json.loads(line)))
        except (ValueError, TypeError):
            if number == len(lines):
                break  # being written, or torn by a crash before anybody was told that it is there
            raise Damaged("control_file", f"{path}:{number} cannot be read", "a request", "Mend the line.") from None
    return found


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
