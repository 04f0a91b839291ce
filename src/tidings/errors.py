"""The error tree, by who can act.

TidingsError
├── ConfigurationError   the operator: the folder is wrong; carries every problem at once
├── Refused              the operator: the request is understood and not allowed (second runner, unknown id, …)
├── SourceStopped        the operator: a source cannot go on without a person (epoch went back, situations explode, …)
├── SubscriberError      the subscriber: what it answered, as data; never raised for a row
└── Damaged              us: stored state contradicts itself, or the disk failed; nothing is retried
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, order=True)
class Problem:
    """One thing a person can mend: where it is, what was found, what was expected, what to do now."""

    file: str
    line: int
    path: str
    code: str
    found: str
    expected: str
    what_now: str
    shown: str = ""  # the text in question with a caret under the place, where that helps

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        said = f"{where} {self.path}: found {self.found}; expected {self.expected}. {self.what_now} [{self.code}]"
        return "\n    ".join([said, *self.shown.splitlines()])

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


class TidingsError(Exception):
    """Three parts: found, expected, what now; `code` is a heading in docs/errors.md."""

    exit_code = 1

    def __init__(self, code: str, found: str, expected: str = "", what_now: str = "") -> None:
        self.code, self.found, self.expected, self.what_now = code, found, expected, what_now
        super().__init__(code, found, expected, what_now)

    def __str__(self) -> str:
        parts = [self.found, f"expected {self.expected}" if self.expected else "", self.what_now]
        return "; ".join(part for part in parts if part) + f" [{self.code}]"

    def as_dict(self) -> dict[str, object]:
        return {"code": self.code, "found": self.found, "expected": self.expected, "what_now": self.what_now}


class ConfigurationError(TidingsError):
    """The operator's folder is wrong. Every problem at once; nothing was started."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems))
        super().__init__("configuration", f"{len(self.problems)} problem(s)", "none", "Nothing was started.")

    def __str__(self) -> str:
        return "\n".join([*map(str, self.problems), f"{len(self.problems)} problem(s). Nothing was started."])

    def as_dict(self) -> dict[str, object]:
        return {"code": self.code, "problems": [p.as_dict() for p in self.problems]}


class Refused(TidingsError):
    exit_code = 3


class SourceStopped(TidingsError):
    exit_code = 4


class SubscriberError(TidingsError):
    exit_code = 5


class Damaged(TidingsError):
    exit_code = 6
