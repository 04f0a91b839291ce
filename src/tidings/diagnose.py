"""The exact cause of a refused message, with line and column, and without a word of what the message says. No Spark."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidings.json_walk import Finding, Walk, line_and_column, spot
from tidings.stages.codes import CODES, LINE_LIMIT

# The codes that are about the text itself; the others are about what it means.
OF_THE_TEXT = tuple(CODES)[: tuple(CODES).index("unknown_dialect")]

_SURROGATES = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u(?P<half>[dD][89a-fA-F][0-9a-fA-F]{2})|.)"
)
_PATH_PART = re.compile(r"[^.\[\]]+|\[[0-9]+\]")


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong and where (from 1, in characters); `detail` is both in one sentence."""

    cause: str
    line: int | None
    column: int | None
    detail: str


def diagnose(body: str | bytes, code: str, path: str = "", said: str = "") -> Diagnosis:
    """Explain the code a row was given; `path` and `said` are what the stage that refused it added, if anything."""
    raw = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    text = raw.decode("utf-8", "surrogateescape")
    if code not in OF_THE_TEXT:
        about = CODES.get(code, "this code is not one of a message")
        where = ", ".join(part for part in (path, said) if part)
        return _placed(text, Finding(_place_of(text, path), f"{about}: {where}" if where else about))
    if code == "line_too_long":
        return _placed(text, _too_long(raw))
    if code == "invalid_utf8":
        return _placed(text, _damage(raw, text))
    found = _findings(text, code)
    return _placed(text, found.get(code) or _first(found) or Finding(None, CODES[code]))


def _placed(text: str, finding: Finding) -> Diagnosis:
    if finding.at is None:
        return Diagnosis(finding.cause, None, None, finding.cause)
    line, column = line_and_column(text, finding.at)
    return Diagnosis(finding.cause, line, column, f"{spot(text, finding.at)}: {finding.cause}")


def _first(found: dict[str, Finding]) -> Finding | None:
    """What comes first in the text; that a line is no object matters only when it was refused for that."""
    wrong = [finding for code, finding in found.items() if code != "not_an_object"]
    return min(wrong, key=lambda finding: finding.at or 0, default=None)


def _too_long(raw: bytes) -> Finding:
    at = len(raw[:LINE_LIMIT].decode("utf-8", "surrogateescape"))
    return Finding(at, f"the line has {len(raw):,} bytes and passes {LINE_LIMIT:,} here")


def _damage(raw: bytes, text: str) -> Finding:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        wide = raw[:2] in (b"\xff\xfe", b"\xfe\xff")
        cause = "the bytes look like UTF-16" if wide else f"byte {error.start + 1:,} of the line is not UTF-8"
        return Finding(len(raw[: error.start].decode("utf-8")), cause)
    # A reader before us put U+FFFD where it could not read on.
    at = text.find("\ufffd")
    return Finding(at if at >= 0 else None, CODES["invalid_utf8"])


def _findings(text: str, code: str) -> dict[str, Finding]:
    """The first finding for every code: what a look at the whole text shows, then what a walk through it does."""
    walk = Walk(text, until=code)
    if "\0" in text:
        walk.note("nul_byte", text.index("\0"), "a NUL byte")
    if "\\u" in text:
        half = next((match for match in _SURROGATES.finditer(text) if match["half"]), None)
        if half:
            walk.note("lone_surrogate", half.start(), "a \\u escape that is half of a surrogate pair")
    walk.go()
    return walk.found


def _place_of(text: str, path: str) -> int | None:
    """Where the field of this path stands; a message that came without its wrapping has a shorter path."""
    parts = tuple(_PATH_PART.findall(path))
    for wanted in (parts, parts[1:]):
        if wanted and "@" not in wanted:
            walk = Walk(text, wanted)
            walk.go()
            if walk.place is not None:
                return walk.place
    return None
