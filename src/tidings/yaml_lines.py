"""YAML as an operator writes it: plain data with the line of every key, and nothing that surprises.

Only what YAML 1.2 calls the core schema is read (so `on:` and `no` stay text). Aliases, anchors, tags, duplicate keys and
oversized documents are refused here, before anything else looks at the data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from tidings.errors import Problem

MAX_BYTES = 1_000_000
MAX_DEPTH = 32
MAX_NODES = 100_000

# None, bool, int, float, str, and lists and text-keyed dicts of these.
Value: TypeAlias = Any
Place: TypeAlias = tuple[str | int, ...]

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,37})")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]{1,3})?")
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def dotted(place: Place) -> str:
    """`("banners", 0, "id")` → `banners[0].id`, as a person would say it."""
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else (f".{step}" if text else step)
    return text or "(document)"


@dataclass(frozen=True)
class Document:
    """One file's data and where each part of it stands."""

    file: str
    data: dict[str, Value]
    lines: dict[Place, int] = field(repr=False)

    def line(self, place: Place) -> int:
        """The line of the key at `place`, or of its nearest parent that exists."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)

    def problem(self, place: Place, code: str, found: str, expected: str, what_now: str) -> Problem:
        return Problem(self.file, self.line(place), dotted(place), code, found, expected, what_now)


class _Unreadable(Exception):
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(problem.code)


def read(path: Path, name: str) -> tuple[Document | None, list[Problem]]:
    """The document at `path`, called `name` in messages, or what keeps it from being read."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or "an I/O error").lower()
        return None, [
            Problem(name, 0, "(file)", "unreadable", reason, "a readable file", "Mend the file or its permissions.")
        ]
    if len(raw) > MAX_BYTES:
        found, expected = f"more than {MAX_BYTES:,} bytes", f"at most {MAX_BYTES:,}"
        return None, [Problem(name, 0, "(file)", "too_large", found, expected, "Split the file.")]
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        return None, [
            Problem(name, line, "(file)", "not_utf8", "bytes that are not UTF-8", "UTF-8 text", "Save it as UTF-8.")
        ]
    return parse(text, name)


def parse(text: str, name: str) -> tuple[Document | None, list[Problem]]:
    """The one mapping in `text`; duplicate keys are collected, everything else stops at the first."""
    reader = _Reader(name)
    try:
        data = reader.document(text)
    except _Unreadable as stop:
        return None, [*reader.problems, stop.problem]
    if reader.problems:
        return None, reader.problems
    return Document(name, data, reader.lines), []


class _Reader:
    """Builds plain data from parser events, never from constructed objects."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: dict[Place, int] = {(): 1}
        self.problems: list[Problem] = []
        self.nodes = 0

    def document(self, text: str) -> dict[str, Value]:
        events = self._events(text)
        first = next(events, None)
        if first is None:
            raise self._stop(1, (), "empty_file", "nothing", "a mapping of keys to values", "Fill it in or delete it.")
        if not isinstance(first, yaml.MappingStartEvent):
            raise self._stop(
                1, (), "not_a_mapping", _kind(first), "a mapping of keys to values", "Write `key: value` lines."
            )
        data = self._mapping(events, ())
        if next(events, None) is not None:
            raise self._stop(1, (), "several_documents", "more than one document", "one", "Remove the `---` line.")
        return data

    def _events(self, text: str) -> Iterator[yaml.Event]:
        """Node events only, refused as soon as one is not plain."""
        boring = (yaml.StreamStartEvent, yaml.StreamEndEvent, yaml.DocumentStartEvent, yaml.DocumentEndEvent)
        try:
            for event in yaml.parse(text, Loader=_LOADER):
                if isinstance(event, boring):
                    continue
                self._plain(event)
                yield event
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            found = (error.problem or "text the YAML parser cannot read").removeprefix("found ")
            raise self._stop(
                mark.line + 1 if mark else 1,
                (),
                "not_yaml",
                found,
                "YAML",
                "Mend the line; check indentation and quotes.",
            ) from None
        except yaml.YAMLError:
            raise self._stop(
                1, (), "not_yaml", "a character that YAML does not allow", "YAML text", "Remove control characters."
            ) from None

    def _plain(self, event: yaml.Event) -> None:
        line = _line(event)
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise self._stop(line, (), "too_large", f"more than {MAX_NODES:,} values", "fewer", "Split the file.")
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise self._stop(
                line,
                (),
                "alias",
                "an anchor or alias (& or *)",
                "values written out",
                "Write the value again; quote text that starts with & or *.",
            )
        if getattr(event, "tag", None):
            raise self._stop(
                line, (), "tag", "a tag (!)", "plain values", "Remove the tag; quote text that starts with !."
            )

    def _value(self, event: yaml.Event, events: Iterator[yaml.Event], place: Place) -> Value:
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event)
        if len(place) > MAX_DEPTH:
            line = _line(event)
            raise self._stop(
                line, place[:4], "too_deep", f"nesting deeper than {MAX_DEPTH}", "less", "Flatten the document."
            )
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(events, place)
        return self._sequence(events, place)

    def _mapping(self, events: Iterator[yaml.Event], place: Place) -> dict[str, Value]:
        result: dict[str, Value] = {}
        for event in events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            line = _line(event)
            if not isinstance(event, yaml.ScalarEvent):
                raise self._stop(
                    line, place, "not_a_text_key", "a list or mapping as a key", "text", "Write the key as plain text."
                )
            here = (*place, event.value)
            if event.value in result:
                first = self.lines[here]
                self._report(
                    line,
                    here,
                    "duplicate_key",
                    f"this key again (first on line {first})",
                    "each key once",
                    "Keep one of them.",
                )
            self.lines[here] = line
            result[event.value] = self._value(next(events), events, here)
        return result

    def _sequence(self, events: Iterator[yaml.Event], place: Place) -> list[Value]:
        result: list[Value] = []
        for event in events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            here = (*place, len(result))
            self.lines[here] = _line(event)
            result.append(self._value(event, events, here))
        return result

    def _report(self, line: int, place: Place, code: str, *says: str) -> None:
        self.problems.append(self._stop(line, place, code, *says).problem)

    def _stop(self, line: int, place: Place, code: str, *says: str) -> _Unreadable:
        found, expected, what_now = says
        return _Unreadable(Problem(self.name, line, dotted(place), code, found, expected, what_now))


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def _scalar(event: yaml.ScalarEvent) -> Value:
    text: str = event.value
    if not event.implicit[0]:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _kind(event: yaml.Event) -> str:
    return "a list" if isinstance(event, yaml.SequenceStartEvent) else "a single value"
