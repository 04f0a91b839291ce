"""The book of requests: every step of every request, folded into how each one stands. Read from the table alone; no JVM.

    received → verifying → waiting → review → working → fulfilled
                   refused, cancelled: ends as well

A step says `what` happened and the state after it; a step that changes nothing of the state (a letter, an extension, a recipient that
answered) repeats it. Rows are only ever added. Who the person is stands nowhere but in `sealed`, under the request's own key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tidings.store import Store

STATES = ("received", "verifying", "waiting", "review", "working", "fulfilled", "refused", "cancelled")
FINAL = ("fulfilled", "refused", "cancelled")
TABLE = "rights_requests"
APP = "desk"
Row = dict[str, Any]
_STANDING = (
    "state", "jurisdiction", "regulation", "assurance", "due", "fingerprint", "tags", "hashes", "kid", "key_file", "sealed",
)  # fmt: skip

# What a step says of a recipient → the state of its part.
_ANSWERS = {"acknowledged": "acknowledged", "excepted": "excepted", "not_concerned": "not_concerned"}
_ANSWERS |= {"recipient_held": "held", "recipient_released": "open"}


@dataclass(frozen=True)
class Step:
    """One thing that happened to a request."""

    number: int
    what: str
    state: str
    at: datetime
    actor: str
    reason: str
    details: Mapping[str, str]


@dataclass(frozen=True)
class Part:
    """One recipient of an erasure: told by its lane (`way` lane), or by a human (`way` task), out of the capsule."""

    recipient: str
    way: str
    event_id: str
    kid: bytes = field(repr=False)
    tag: bytes = field(repr=False)
    deadline: datetime | None = None
    state: str = "open"  # open, acknowledged, excepted, not_concerned; held while it is under the same hold as our copy


@dataclass
class Request:
    """How a request stands."""

    id: str
    kind: str
    way: str
    opened: datetime
    state: str = "received"
    jurisdiction: str = ""
    regulation: str = ""
    assurance: str = "none"
    due: datetime | None = None
    fingerprint: bytes = b""
    tags: tuple[bytes, ...] = ()
    hashes: tuple[bytes, ...] = ()
    kid: bytes = b""
    key_file: str = ""
    sealed: bytes = field(default=b"", repr=False)
    parts: dict[str, Part] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    details: dict[str, str] = field(default_factory=dict)

    @property
    def open(self) -> bool:
        return self.state not in FINAL

    def happened(self, what: str) -> list[Step]:
        return [step for step in self.steps if step.what == what]


class Book:
    """Folds new versions of the table as they are committed; what was folded is not read again."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.requests: dict[str, Request] = {}
        self.by_fingerprint: dict[bytes, str] = {}  # open requests only
        self.stones: dict[bytes, str] = {}  # tag or keyed identifier of an erased person → the request
        self._open: dict[str, Request] = {}
        self._version = -1

    @property
    def open(self) -> list[Request]:
        """Requests that are not over."""
        return list(self._open.values())

    def refresh(self) -> Book:
        """The first time all rows, then what was added; files that were written again meanwhile mean all rows once more."""
        head = self.store.version(TABLE)
        if head is None or head == self._version:
            return self
        try:
            if self._version < 0:
                self.fold(self.store.arrow(TABLE).to_pylist())
            for version in range(self._version + 1, head + 1) if self._version >= 0 else ():
                if files := self.store.added(TABLE, version):
                    self.fold(self.store.arrow(TABLE, files=files).to_pylist())
        except FileNotFoundError:
            self.fold(self.store.arrow(TABLE).to_pylist())
        self._version = head
        return self

    def forget(self, names: Iterable[str]) -> None:
        """These requests lead to nobody any more."""
        for name in names:
            request = self.requests[name]
            self.by_fingerprint.pop(request.fingerprint, None)
            request.tags, request.hashes, request.fingerprint, request.sealed = (), (), b"", b""

    def fold(self, rows: Iterable[Row]) -> None:
        for row in sorted(rows, key=lambda row: (row["request"], row["step"])):
            self._fold(row)

    def _fold(self, row: Row) -> None:
        request = self.requests.get(row["request"])
        if request is None:
            request = Request(row["request"], row["kind"], row["way"], row["opened"])
            self.requests[request.id] = request
        if request.steps and row["step"] <= request.steps[-1].number:
            return  # the table was compacted: this step is known
        for name in _STANDING:
            if row[name] is not None:
                setattr(request, name, tuple(row[name]) if name in ("tags", "hashes") else row[name])
        for part in row["parts"] or ():
            request.parts[part["recipient"]] = Part(**{k: v for k, v in part.items() if k != "sealed"})
        details = dict(row["details"] or ())
        request.details |= details
        if recipient := details.get("recipient"):
            self._answered(request, recipient, row["what"])
        said = (row["actor"] or "", row["reason"] or "", details)
        request.steps.append(Step(row["step"], row["what"], request.state, row["changed"], *said))
        self._filed(request, row["what"])

    def _filed(self, request: Request, what: str) -> None:
        """Where it is looked up by what."""
        if what == "committed":
            self.stones |= dict.fromkeys((*request.tags, *request.hashes), request.id)
        if request.open:
            self._open[request.id] = request
            self.by_fingerprint[request.fingerprint] = request.id
            return
        self._open.pop(request.id, None)
        if self.by_fingerprint.get(request.fingerprint) == request.id:
            del self.by_fingerprint[request.fingerprint]

    @staticmethod
    def _answered(request: Request, recipient: str, what: str) -> None:
        part = request.parts.get(recipient)
        if part is not None and what in _ANSWERS:
            request.parts[recipient] = Part(**part.__dict__ | {"state": _ANSWERS[what]})
        elif part is not None and what == "unanswered":  # its lane is at an end: a human goes on
            request.parts[recipient] = Part(**part.__dict__ | {"way": "task"})
