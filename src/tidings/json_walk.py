"""A walk through a text that should be JSON: everything wrong with it, and where, without a word of what it says.

The open brackets stand in a list, so depth costs memory and never the stack; and the walk goes on after whatever it can,
so that a second thing wrong is found too.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from tidings.stages.codes import DEPTH_LIMIT

DIGITS_KEPT, DIGITS_BEFORE_EXPONENT = 38, 17  # what a decimal and a double hold exactly
NAME_LIMIT = 50_000  # Spark's JSON reader takes no longer field name

# No possessive groups: Python before 3.11.5 forgets where a failed one began.
_BLANK = re.compile(r"[ \t\r\n]++")
_STRING = re.compile(r'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*"')
_LOOSE_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*"', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}|(?P<wrong>.))', re.DOTALL)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?")
_LOOSE_NUMBER = re.compile(r"[-+.0-9][-+.0-9eE]*+")
_NOT_A_NUMBER = re.compile(r"[-+]?(?:NaN|Infinity)\b")
_WORD = re.compile(r"[^\W\d][\w$]*+")
_WORDS = ("true", "false", "null")
# A name that a person chose for a column; anything else could be a person's own data used as a name.
_PLAIN_NAME = re.compile(r"(?!.*[0-9]{5})[A-Za-z_][A-Za-z0-9_]{0,39}")
_SAID = {"'": "a single quote (JSON has double quotes)", "/": "a slash (JSON has no comments)", '"': "a string"}


@dataclass(frozen=True)
class Finding:
    at: int | None
    cause: str


@dataclass
class Frame:
    """One open bracket: where it stands, the names seen so far (none for a list), and the name or number it is at."""

    at: int
    names: dict[str, int] | None
    now: str = "[0]"
    count: int = 0


@dataclass
class Walk:
    """One pass through the text. `go` ends at the end, or at the first thing after which nothing can be made out."""

    text: str
    wanted: tuple[str, ...] = ()  # the path whose place is asked for
    until: str = ""  # the code after which nothing more need be found
    at: int = 0
    open: list[Frame] = field(default_factory=list)
    found: dict[str, Finding] = field(default_factory=dict)
    place: int | None = None

    def note(self, code: str, at: int, cause: str) -> None:
        self.found.setdefault(code, Finding(at, cause))

    def go(self) -> None:
        if self.text.startswith("\ufeff"):
            self.note("malformed_json", 0, "a byte order mark before the message")
            self.at = 1
        self._blank()
        self._not_an_object()
        going = self._value()
        while going and self.open and self.until not in self.found and self.place is None:
            self._blank()
            going = self._next()
        self._blank()
        if going and not self.open and self.at < len(self.text):
            self.note("trailing_content", self.at, f"found {self._seen()} after the end of the message")

    def _blank(self) -> None:
        blank = _BLANK.match(self.text, self.at)
        self.at = blank.end() if blank else self.at

    def _not_an_object(self) -> None:
        kinds = {"[": "a list", '"': "a string", "t": "true", "f": "false", "n": "null"}
        found = self.text[self.at : self.at + 1]
        kind = kinds.get(found, "a number" if found and found in "-0123456789" else "")
        if kind:
            self.note("not_an_object", self.at, f"the line is {kind}, but a message is a JSON object")

    def _next(self) -> bool:
        """What may come after an opening bracket, a comma or a value; false when nothing more can be read."""
        frame, here = self.open[-1], self.text[self.at : self.at + 1]
        closing, fresh = "]" if frame.names is None else "}", frame.count == 0
        if here == closing:
            self.at += 1
            self.open.pop()
            self._closed()
            return True
        if not fresh:
            if here != ",":
                return self._stop(f", or {closing}")
            self.at += 1
            self._blank()
            if self.text[self.at : self.at + 1] == closing:
                self.note("malformed_json", self.at, f"a comma with nothing between it and {closing}")
                return True
        if frame.names is None:
            frame.now = f"[{frame.count}]"
            return self._value(f" or {closing}" if fresh else "")
        return self._name(frame, f" or {closing}" if fresh else "") and self._value()

    def _name(self, frame: Frame, otherwise: str) -> bool:
        """A field's name and its colon."""
        assert frame.names is not None
        start = self.at
        if self.text[start : start + 1] != '"':
            return self._stop(f"a field name in double quotes{otherwise}")
        if not self._string():
            return False
        name = _unescaped(self.text[start : self.at])
        shown = f"the field {name}" if _PLAIN_NAME.fullmatch(name) else "a field"
        if name in frame.names and "duplicate_key" not in self.found:
            first = spot(self.text, frame.names[name])
            self.note(
                "duplicate_key", start, f"{shown} stands here for the second time in one object; first at {first}"
            )
        if len(name) > NAME_LIMIT:
            self.note(
                "malformed_json", start, f"a field name of {len(name):,} characters; at most {NAME_LIMIT:,} are read"
            )
        frame.names.setdefault(name, start)
        frame.now = name
        self._blank()
        if self.text[self.at : self.at + 1] != ":":
            # Without its colon it may be a value that lost its place, so it is not shown.
            return self._stop(": after a field name")
        self.at += 1
        self._blank()
        return True

    def _value(self, otherwise: str = "") -> bool:
        if self.wanted and self.place is None and self._is_wanted():
            self.place = self.at
        here = self.text[self.at : self.at + 1]
        if here in ("{", "["):
            self.open.append(Frame(self.at, {} if here == "{" else None))
            if len(self.open) == DEPTH_LIMIT + 1:
                self.note("too_deep", self.at, f"nesting passes {DEPTH_LIMIT} levels here")
            self.at += 1
            return True
        read = self._string() if here == '"' else self._number_or_word(f"a value{otherwise}")
        if read:
            self._closed()
        return read

    def _is_wanted(self) -> bool:
        return len(self.wanted) == len(self.open) and tuple(frame.now for frame in self.open) == self.wanted

    def _closed(self) -> None:
        """A value is whole, so the bracket around it holds one more."""
        if self.open:
            self.open[-1].count += 1

    def _string(self) -> bool:
        start = self.at
        good = _STRING.match(self.text, start)
        if good:
            self.at = good.end()
            return True
        loose = _LOOSE_STRING.match(self.text, start)
        end = loose.end() if loose else len(self.text)
        control = _CONTROL.search(self.text, start, end)
        if control:
            name = f"U+{ord(control[0]):04X}"
            self.note(
                "malformed_json", control.start(), f"the control character {name} inside a string; it must be escaped"
            )
        wrong = next((escape for escape in _ESCAPE.finditer(self.text, start, end) if escape["wrong"]), None)
        if loose is None:
            self.note("truncated_json", end, f"the text ends inside a string that starts at {spot(self.text, start)}")
            return False
        if wrong:
            what = (
                "a \\u escape without four hexadecimal digits"
                if wrong["wrong"] == "u"
                else "an escape JSON does not have"
            )
            self.note("malformed_json", wrong.start(), what)
        self.at = end
        return True

    def _number_or_word(self, expected: str) -> bool:
        nan = _NOT_A_NUMBER.match(self.text, self.at)
        loose = nan or _LOOSE_NUMBER.match(self.text, self.at) or _WORD.match(self.text, self.at)
        if loose is None:
            return self._stop(expected)
        text, start, end = loose[0], loose.start(), loose.end()
        at_end = end == len(self.text)
        if nan:
            self.note("not_a_number", start, "NaN or Infinity, which JSON does not have")
        elif _NUMBER.fullmatch(text):
            self._inexact(text)
        elif text not in _WORDS:
            if at_end and (any(word.startswith(text) for word in _WORDS) or _NUMBER.fullmatch(text + "0")):
                self.note("truncated_json", end, "the text ends inside a value")
            else:
                self.note("malformed_json", start, _not_a_value(text))
            return False
        self.at = end
        return True

    def _inexact(self, number: str) -> None:
        mantissa, scaled, _ = number.replace("E", "e").partition("e")
        digits = len(mantissa.replace("-", "").replace(".", "").lstrip("0"))
        kept = DIGITS_BEFORE_EXPONENT if scaled else DIGITS_KEPT
        if digits > kept:
            self.note(
                "number_not_exact", self.at, f"a number of {digits:,} digits, of which {kept} can be kept exactly"
            )
        elif scaled and number[-1].isdigit() and digits and float(number) in (0.0, float("inf"), float("-inf")):
            self.note("number_not_exact", self.at, "a number with an exponent no double can hold")

    def _stop(self, expected: str) -> bool:
        if self.at < len(self.text):
            self.note("malformed_json", self.at, f"found {self._seen()}; expected {expected}")
            return False
        held = (
            f"; brackets open: {len(self.open):,}, the last since {spot(self.text, self.open[-1].at)}"
            if self.open
            else ""
        )
        self.note("truncated_json", self.at, f"the text ends; expected {expected}{held}")
        return False

    def _seen(self) -> str:
        """The kind of character that stands here; brackets and commas are JSON's own and may be named."""
        here = self.text[self.at]
        if here in "{}[],:":
            return here
        if here.isspace() or ord(here) < 32 or here == "\ufeff":
            return f"U+{ord(here):04X}"
        kind = "a digit" if here.isdigit() else "a letter" if here.isalpha() else "another character"
        return _SAID.get(here, kind)


def _not_a_value(text: str) -> str:
    if text[0] not in "-+.0123456789":
        return "a word that is none of true, false and null"
    if text[0] == "+":
        return "a number with a plus sign before it"
    if re.match(r"-?0[0-9]", text):
        return "a number with a zero before it"
    if re.fullmatch(r"-?\.[-+.0-9eE]*|-?[0-9]+\.(?:[eE].*)?", text):
        return "a decimal point without a digit on both sides"
    return "a number that is not written as JSON writes numbers"


def _unescaped(name: str) -> str:
    """A name as it is compared: `\\u0061` and `a` are the same field."""
    if "\\" not in name:
        return name[1:-1]
    try:
        return str(json.loads(name, strict=False))
    except ValueError:
        return name[1:-1]


def line_and_column(text: str, at: int) -> tuple[int, int]:
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def spot(text: str, at: int) -> str:
    """The place in words; a message on one line has only a column, since its line in a file is another number."""
    line, column = line_and_column(text, at)
    return f"line {line}, column {column}" if "\n" in text else f"column {column}"
