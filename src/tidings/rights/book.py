"""The book of requests: every step of every request, folded into how each one stands. Read from the table alone; no JVM.

    received → verifying → waiting → review → working → fulfilled
                   refused, cancelled: ends as well

A step says `what` happened and the state after it; a step that changes nothing of the state (a letter, an extension, a recipient that
answered) repeats it. Rows are only ever added. Who the person is stands nowhere but in `sealed`, under the request's own key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from tidings.store import TABLES, Store

STATES = ("received", "verifying", "waiting", "review", "working", "fulfilled", "refused", "cancelled")
FINAL = ("fulfilled", "refused", "cancelled")
TABLE = "rights_requests"
APP = "desk"
FOLDED = 10_000  # rows at once
Row = dict[str, Any]
Answer = tuple[str, str]  # event, subscriber
_STANDING = (
    "state", "jurisdiction", "regulation", "assurance", "due", "fingerprint", "tags", "hashes", "kid", "key_file", "sealed",
)  # fmt: skip

# What a step says of a recipient → the state of its part.
_ANSWERS = {"acknowledged": "acknowledged", "excepted": "excepted", "not_concerned": "not_concerned"}
_ANSWERS |= {"recipient_held": "held", "recipient_released": "open"}


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened to a request."""

    number: int
    what: str
    state: str
    at: datetime
    actor: str
    reason: str
    details: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Part:
    """One recipient of an erasure: told by its lane (`way` lane), or by a human (`way` task), out of the capsule."""

    recipient: str
    way: str
    event_id: str
    kid: bytes = field(repr=False)
    tag: bytes = field(repr=False)
    deadline: datetime | None = None
    state: str = "open"  # open, acknowledged, excepted, not_concerned; held while it is under the same hold as our copy

    @property
    def answer(self) -> Answer:
        """What the lanes call it when it ends."""
        return self.event_id, self.recipient.partition("#")[0]


@dataclass(slots=True)
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

    def lately(self, what: str) -> list[Step]:
        """As `happened`, of the time since an appeal opened it again."""
        again = max((step.number for step in self.happened("appealed")), default=0)
        return [step for step in self.steps if step.what == what and step.number > again]


class Book:
    """Folds new versions of the table as they are committed; what was folded is not read again.

    Of requests for which nothing is left to be done (`over` says which) only what may still be asked stays in memory.
    """

    def __init__(self, store: Store, over: Callable[[Request], bool] | None = None) -> None:
        self.store, self._over = store, over
        self.requests: dict[str, Request] = {}
        self.by_fingerprint: dict[bytes, str] = {}  # open requests only
        self.stones: dict[bytes, str] = {}  # tag or keyed identifier of an erased person → the request
        # Kept as steps are folded, so that a desk with many requests looks only at those that something is to be done about.
        self.by_tag: dict[bytes, dict[str, None]] = {}  # record → its requests, in the order they came
        self.awaited: dict[Answer, tuple[str, str]] = {}  # → request and part; open parts of open requests
        self.moving: dict[str, Request] = {}  # erasures that are committed and not told
        self.pausing: dict[str, Request] = {}  # in the time in which they can be taken back
        self.queued: dict[str, Request] = {}  # behind another request of the same person
        self.ending: dict[str, Request] = {}  # somebody wants the right lifted, and it is not yet
        self.released: dict[str, Request] = {}  # recipients of theirs were under a hold that is over
        self.touched: set[str] = set()  # since somebody emptied it
        self._lanes: set[Answer] = set()  # those of `awaited` that a lane is to bring
        self._open: dict[str, Request] = {}
        self._version = -1

    @property
    def open(self) -> list[Request]:
        """Requests that are not over."""
        return list(self._open.values())

    @property
    def listening(self) -> bool:
        """Is there an answer that a lane is to bring?"""
        return bool(self._lanes)

    def refresh(self) -> Book:
        """The first time all rows, then what was added; files that were written again meanwhile mean all rows once more."""
        head = self.store.version(TABLE)
        if head is None or head == self._version:
            return self
        try:
            if self._version < 0:
                self._fold_all()
            for version in range(self._version + 1, head + 1) if self._version >= 0 else ():
                if files := self.store.added(TABLE, version):
                    self.fold(self.store.arrow(TABLE, files=files).to_pylist())
        except FileNotFoundError:
            self._fold_all()
        self._version = head
        return self

    def _fold_all(self) -> None:
        """Request by request, and never all rows as Python values at once."""
        columns = [name for name in TABLES[TABLE].fields if name != "entry"]
        rows = self.store.arrow(TABLE, columns).sort_by([("request", "ascending"), ("step", "ascending")])
        for first in range(0, rows.num_rows, FOLDED):
            self.fold(rows.slice(first, FOLDED).to_pylist())

    def forget(self, names: Iterable[str]) -> None:
        """These requests lead to nobody any more."""
        for name in names:
            request = self.requests[name]
            self.by_fingerprint.pop(request.fingerprint, None)
            for tag in request.tags:
                self.by_tag.get(tag, {}).pop(name, None)
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
        for tag in row["tags"] or ():
            self.by_tag.setdefault(tag, {})[request.id] = None
        for part in row["parts"] or ():
            self._part(request, Part(**{k: v for k, v in part.items() if k != "sealed"}))
        details = dict(row["details"] or ())
        request.details |= details
        if recipient := details.get("recipient"):
            self._answered(request, recipient, row["what"])
        said = (row["actor"] or "", row["reason"] or "", details)
        request.steps.append(Step(row["step"], row["what"], request.state, row["changed"], *said))
        self._filed(request, row["what"])

    def _filed(self, request: Request, what: str) -> None:
        """Where it is looked up by what."""
        self.touched.add(request.id)
        if what == "committed":
            self.stones |= dict.fromkeys((*request.tags, *request.hashes), request.id)
        _kept(self.pausing, request, request.state == "waiting")
        _kept(self.queued, request, request.state == "received" and bool(request.happened("queued")))
        ending = request.open and bool(request.happened("lift_asked")) and not request.happened("lift_begun")
        _kept(self.ending, request, ending)
        _kept(self.released, request, request.open and bool(request.happened("recipient_released")))
        _kept(
            self.moving, request, request.open and bool(request.happened("committed") and not request.happened("told"))
        )
        if request.open:
            for part in request.parts.values() if request.id not in self._open else ():
                self._waits(request, part, part.state == "open")
            self._open[request.id] = request
            self.by_fingerprint[request.fingerprint] = request.id
            return
        self._open.pop(request.id, None)
        for part in request.parts.values():
            self._waits(request, part, False)
        if self.by_fingerprint.get(request.fingerprint) == request.id:
            del self.by_fingerprint[request.fingerprint]
        if self._over is not None and self._over(request):
            _shorten(request)

    def _answered(self, request: Request, recipient: str, what: str) -> None:
        part = request.parts.get(recipient)
        if part is not None and what in _ANSWERS:
            self._part(request, replace(part, state=_ANSWERS[what]))
        elif part is not None and what == "unanswered":  # its lane is at an end: a human goes on
            self._part(request, replace(part, way="task"))

    def _part(self, request: Request, part: Part) -> None:
        request.parts[part.recipient] = part
        self._waits(request, part, part.state == "open")

    def _waits(self, request: Request, part: Part, waits: bool) -> None:
        if waits:
            self.awaited[part.answer] = (request.id, part.recipient)
        else:
            self.awaited.pop(part.answer, None)
        (self._lanes.add if waits and part.way == "lane" else self._lanes.discard)(part.answer)


def _shorten(request: Request) -> None:
    """Letters, words that may come twice, and where it stands; the table has the rest."""
    *others, last = request.steps
    kept = [step for step in others if step.what.startswith(("letter:", "ask_forgotten")) or "slip" in step.details]
    request.steps, request.parts, request.details, request.sealed = [*kept, last], {}, {}, b""


def _kept(shelf: dict[str, Request], request: Request, belongs: bool) -> None:
    if belongs:
        shelf[request.id] = request
    else:
        shelf.pop(request.id, None)
