"""What both sides of an engine need: why there is no answer, and findings out of plain text. Light, because every process loads it."""

from __future__ import annotations

from collections.abc import Mapping

LISTS = ("statutes", "redact", "tags", "missing")


class Broken(Exception):
    """Why a policy gave no answer we can use, in words fit for a decision's reason."""


class Unanswered(Broken):
    """Nobody answered: the process died, the time was over, the server is not there. May pass by itself."""


def from_text(columns: Mapping[str, str]) -> dict[str, object]:
    """A finding of engines that only have texts: lists are words, a deadline is `statute ID` or `days 45 from event`."""
    said: dict[str, object] = {key: text for key, text in columns.items() if text != ""}
    said |= {key: str(said[key]).split() for key in LISTS if key in said}
    if "priority" in said:
        said["priority"] = _plain(str(said["priority"]))
    if "deadline" in said:
        words = str(said["deadline"]).split()
        if len(words) % 2:
            raise Broken("a deadline that is not pairs of words")
        said["deadline"] = {key: _plain(word) for key, word in zip(words[::2], words[1::2], strict=True)}
    return said


def _plain(word: str) -> object:
    if word in ("true", "false"):
        return word == "true"
    return int(word) if word.isascii() and word.isdigit() else word
