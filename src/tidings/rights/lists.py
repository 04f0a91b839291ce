"""Requests as a list: a CSV file with one request to a line.

| column | |
|---|---|
| `kind` | one of the kinds, in every line |
| `email`, `phone`, `id:ENTITY` | who it is about, at least one; `id:customer` is the key of a customer |
| `jurisdiction` `regulation` `received` `reference` `assurance` `contact` `agent` `about` | as of any request; `received` with its offset |
| `scope` | channels, purposes or fields, with `;` between |
| `value:FIELD` | of a rectification: what is right |
| `child` | `yes` or nothing |

UTF-8, commas, the names of the columns in the first line. Every problem is found at once, with its line and never with a value. With a
problem nothing is taken, unless the good lines are asked for; then the bad ones are reported. A line without a reference is known again by
the list it stands in, so a list that is taken twice asks once.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tidings.errors import Problem, Refused
from tidings.rights.asks import ASSURANCES, Ask, Identifier
from tidings.rights.intake import hand_in

if TYPE_CHECKING:
    from tidings.settings import Settings

MOST_LINES, MOST_BYTES = 10_000, 5_000_000
PLAIN = ("jurisdiction", "regulation", "reference", "assurance", "contact", "agent", "about")
COLUMNS = ("kind", "email", "phone", "received", "scope", "child", *PLAIN)


@dataclass(frozen=True)
class Line:
    """One line of the list and what is wrong with it, if anything is."""

    number: int
    ask: Ask | None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Taken:
    """What became of a list: line → request, and every problem."""

    requests: Mapping[int, str]
    problems: tuple[Problem, ...]

    def as_dict(self) -> dict[str, object]:
        told = [{"line": line, "request": name} for line, name in self.requests.items()]
        return {"taken": len(told), "requests": told, "problems": [one.as_dict() for one in self.problems]}


def take(
    settings: Settings, raw: bytes, name: str = "list", *, good_lines: bool = False, most: str = "strong"
) -> Taken:
    """Take a list in. `most` is how sure whoever brings it can be of the people in it."""
    lines = list(read(settings, raw, name, most))
    problems = tuple(problem for line in lines for problem in line.problems)
    if problems and not good_lines:
        return Taken({}, problems)
    done: dict[int, str] = {}
    for line in lines:
        if line.ask is None:
            continue
        try:
            done[line.number] = hand_in(settings, line.ask)
        except Refused as full:
            stopped = Problem(name, line.number, "(line)", full.code, full.found, full.expected, full.what_now)
            return Taken(done, (*problems, stopped))
    return Taken(done, problems)


def report(taken: Taken) -> str:
    """The problems as CSV: line, column, code, found, expected. It holds no value of the list."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["line", "column", "code", "found", "expected"])
    writer.writerows([one.line, one.path, one.code, one.found, one.expected] for one in taken.problems)
    return out.getvalue()


def read(settings: Settings, raw: bytes, name: str, most: str = "strong") -> Iterator[Line]:
    """Every line, in order; a list that is none as a whole is one line with its problems."""
    rows, wrong = _rows(raw, name)
    if wrong:
        yield Line(0, None, tuple(wrong))
        return
    header, today = rows[0][1], datetime.now(UTC)
    key = hmac.new(settings.keyring.derive("list"), raw, hashlib.sha256).digest()
    strange = [column for column in header if not _known(settings, column)]
    if strange or "kind" not in header or len(set(header)) < len(header):
        found = ", ".join(repr(one[:40]) for one in strange) or "a column twice, or no kind"
        yield Line(1, None, (_bad(name, 1, "(header)", found, ", ".join(COLUMNS) + ", id:ENTITY, value:FIELD"),))
        return
    for number, cells in rows[1:]:
        if len(cells) != len(header):
            wide = _bad(name, number, "(line)", f"{len(cells)} columns", f"{len(header)} columns")
            yield Line(number, None, (wide,))
            continue
        yield _line(dict(zip(header, map(str.strip, cells), strict=True)), (name, number), (key, most), today)


def _rows(raw: bytes, name: str) -> tuple[list[tuple[int, list[str]]], list[Problem]]:
    if len(raw) > MOST_BYTES:
        return [], [_bad(name, 0, "(file)", f"{len(raw)} bytes", f"at most {MOST_BYTES}")]
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        return [], [_bad(name, line, "(file)", "a byte that is not UTF-8", "text in UTF-8")]
    reader, rows = csv.reader(io.StringIO(text, newline=""), strict=True), []
    begun = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                rows.append((begun, cells))
            begun = reader.line_num + 1
    except csv.Error:
        return [], [_bad(name, begun, "(line)", "a quote that does not close, or text after one", "CSV")]
    if len(rows) < 2 or len(rows) > MOST_LINES + 1:
        return [], [_bad(name, 0, "(file)", f"{max(0, len(rows) - 1)} requests", f"1 to {MOST_LINES}")]
    return rows, []


def _known(settings: Settings, column: str) -> bool:
    head, mark, rest = column.partition(":")
    if head == "id" and mark:
        return rest in settings.entities
    return column in COLUMNS or (head == "value" and bool(mark and rest))


def _line(said: Mapping[str, str], place: tuple[str, int], ours: tuple[bytes, str], today: datetime) -> Line:
    (name, number), (key, most) = place, ours
    problems = []
    received = _time(said.get("received", ""), today)
    if received is None:
        problems.append(_bad(name, number, "received", "no time", "a time with its offset, like 2026-11-16T09:30:00Z"))
    if said.get("child", "") not in ("", "yes"):
        problems.append(_bad(name, number, "child", "another word", "yes or nothing"))
    plain: dict[str, Any] = {column: said[column] for column in PLAIN if said.get(column)}
    ask = Ask(
        kind=said["kind"],
        identifiers=tuple(_people(said)),
        way="csv",
        received=received or today,
        scope=tuple(one.strip() for one in said.get("scope", "").split(";") if one.strip()),
        values={column[6:]: text for column, text in said.items() if column.startswith("value:") and text},
        child=said.get("child") == "yes",
        **plain,
    )
    if ask.assurance in ASSURANCES and ASSURANCES.index(ask.assurance) > ASSURANCES.index(most):
        problems.append(_bad(name, number, "assurance", repr(ask.assurance), f"at most {most} from whoever sent it"))
    problems += [_bad(name, number, one.path, one.found, one.expected) for one in ask.problems()]
    if problems:
        return Line(number, None, tuple(problems))
    return Line(number, ask if ask.reference else _named(ask, said, key))


def _people(said: Mapping[str, str]) -> Iterator[Identifier]:
    for column, text in said.items():
        if text and (column in ("email", "phone") or column.startswith("id:")):
            yield Identifier(column.removeprefix("id:"), text)


def _time(text: str, usual: datetime) -> datetime | None:
    if not text:
        return usual
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _named(ask: Ask, said: Mapping[str, str], key: bytes) -> Ask:
    text = "\x1f".join(f"{column}={said[column]}" for column in sorted(said))
    return replace(ask, reference=hmac.new(key, text.encode(), hashlib.sha256).hexdigest())


def _bad(name: str, line: int, path: str, found: str, expected: str) -> Problem:
    return Problem(name, line, path, "bad_request", found, expected, "Mend the line and bring the list again.")
