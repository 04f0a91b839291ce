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
import difflib
import hashlib
import hmac
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tidings.errors import Problem, Refused
from tidings.rights.asks import ASSURANCES, Ask, BadAsk, Identifier
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
        except BadAsk as bad:  # what only the folder knows; the columns were checked against it
            told = [_bad(name, line.number, one.path, one.found, one.expected) for one in bad.problems]
            problems = (*problems, *told)
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
    """Every line, in order; what is wrong with the list as a whole comes first, and then nothing of it is taken."""
    rows, broken = _rows(raw, name)
    if not rows:
        yield Line(0, None, tuple(broken))
        return
    (_, header), today = rows[0], datetime.now(UTC)
    wrong = list(_headed(settings, header, name))
    yield from (Line(one.line, None, (one,)) for one in (*wrong, *broken))
    if "kind" not in header:
        return
    key = hmac.new(settings.keyring.derive("list"), raw, hashlib.sha256).digest()
    for number, cells in rows[1:]:
        if len(cells) != len(header):
            wide = _bad(name, number, "(line)", f"{len(cells)} columns", f"{len(header)} columns")
            yield Line(number, None, (wide,))
            continue
        pairs = reversed(list(zip(header, cells, strict=True)))  # the first column of a name counts
        said = {column: cell.strip() for column, cell in pairs if _known(settings, column)}
        found = _line(said, (name, number), (key, most), today)
        yield found if not wrong else replace(found, ask=None)


def _headed(settings: Settings, header: Sequence[str], name: str) -> Iterator[Problem]:
    """What is wrong with the names of the columns. They are not shown: a list without them begins with somebody's address."""
    for number, column in enumerate(header, 1):
        expected = ", ".join(COLUMNS) + ", id:ENTITY, value:FIELD"
        if not _known(settings, column):
            near = difflib.get_close_matches(column.strip().lower()[:40], COLUMNS, n=1)
            expected = f"{near[0]}, perhaps" if near else expected
            yield _bad(name, 1, f"(header) column {number}", "a name that no column has", expected)
        elif column in header[: number - 1]:
            yield _bad(name, 1, f"(header) column {number}", "a name that another column has", "each name once")
    if "kind" not in header:
        yield _bad(name, 1, "(header)", "no column kind", "the names of the columns in the first line, kind among them")


def _rows(raw: bytes, name: str) -> tuple[list[tuple[int, list[str]]], list[Problem]]:
    """The lines that can be read, the header first, and what is wrong with the others; no line where it is no list at all."""
    if len(raw) > MOST_BYTES:
        return [], [_bad(name, 0, "(file)", f"{len(raw)} bytes", f"at most {MOST_BYTES}")]
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        return [], [_bad(name, line, "(file)", "a byte that is not UTF-8", "text in UTF-8")]
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows, broken, begun = list[tuple[int, list[str]]](), list[Problem](), 1
    while True:
        try:
            cells = next(reader, None)
        except csv.Error:
            found = f"a quote that does not close, text after one, or more than {csv.field_size_limit()} characters"
            broken.append(_bad(name, begun, "(line)", found, "CSV"))
        else:
            if cells is None:
                break
            if any(cell.strip() for cell in cells):
                rows.append((begun, cells))
        begun = reader.line_num + 1
    many = max(0, len(rows) - 1)
    if not 0 < many + len(broken) <= MOST_LINES:
        return [], [_bad(name, 0, "(file)", f"{many} requests", f"1 to {MOST_LINES}")]
    return rows, broken


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
