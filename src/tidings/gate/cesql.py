"""CloudEvents SQL filters: text → tree. `cesql_values` answers from it for one event, `cesql_columns` compiles it to Spark.

The language is read as its standard (version 1.0.0) says, and two of its rules surprise people who know SQL: AND, OR and XOR share
one precedence and go from left to right, and NOT binds tighter than `=`. In an operator's folder, where that would matter, the
text is refused and parentheses are asked for; so is an attribute that no event has and a function that does not exist.

What breaks the promise: a text that is longer or deeper than the limits below is refused, though the standard knows no limit.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tidings.gate.cesql_tree import (
    FUNCTIONS,
    INT_MAX,
    INT_MIN,
    Attribute,
    Binary,
    Call,
    Exists,
    In,
    Like,
    Literal,
    Node,
    Unary,
    depth,
    function,
    like_tokens,
    result_type,
)

MAX_LENGTH = 16_384
MAX_TOKENS = 4_000
MAX_DEPTH = 100

# What an envelope carries and the journal knows; a filter that names anything else would never match and is refused.
ATTRIBUTES = (
    "id", "source", "specversion", "type", "time", "datacontenttype", "dataschema", "sequence", "correlationid", "causationid",
    "recordedtime", "tenant", "banner", "location", "locale", "routinghint", "hlctime", "subjectseq", "schemaversion",
)  # fmt: skip
_UNSEEN = {
    "subject": "each subscriber is given its own pseudonym when the event is sent",
    "partitionkey": "each subscriber is given its own pseudonym when the event is sent",
    "policyversion": "filters are looked at before the decision",
    "data": "filters look at attributes only",
}


class CesqlError(ValueError):
    """What is wrong with an expression and at which column (1 is the first character)."""

    def __init__(self, column: int, message: str) -> None:
        self.column, self.message = column, message
        super().__init__(f"column {column}: {message}")


_KEYWORDS = frozenset({"AND", "OR", "XOR", "NOT", "LIKE", "IN", "EXISTS", "TRUE", "FALSE"})
_TOKEN = re.compile(
    r"(?P<space>[ \t\r\n]+)"
    r"|(?P<text>'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\")"
    r"|(?P<word>[A-Za-z0-9_]+)"
    r"|(?P<sign><>|!=|<=|>=|[=<>+\-*/%(),])",
    re.DOTALL,
)
_LEVELS = {
    **dict.fromkeys(("AND", "OR", "XOR"), 1),
    **dict.fromkeys(("=", "!=", "<>", "<", "<=", ">", ">="), 2),
    **dict.fromkeys(("+", "-"), 3),
    **dict.fromkeys(("*", "/", "%"), 4),
    **dict.fromkeys(("LIKE", "IN", "NOT"), 5),
}
_ARTICLES = {"integer": "an integer", "string": "a string", "boolean": "a boolean"}


def read_filter(expression: str, attributes: Sequence[str] = ATTRIBUTES) -> Node:
    """The tree of a filter of the operator's folder, which must be able to match; or CesqlError."""
    tree = parse(expression, attributes)
    kind = result_type(tree, dict.fromkeys(attributes, "string"))
    if kind != "boolean":
        raise CesqlError(1, f"this gives {_ARTICLES[kind]}; a filter must give true or false")
    return tree


def parse(expression: str, attributes: Sequence[str] | None = None) -> Node:
    """The tree, or CesqlError. With `attributes` only these can be named, and what surprises is refused."""
    if len(expression) > MAX_LENGTH:
        raise CesqlError(MAX_LENGTH + 1, f"longer than {MAX_LENGTH:,} characters")
    return _Parser(expression, attributes).whole()


@dataclass(frozen=True)
class _Token:
    kind: str  # text | word | integer | key | sign | end
    value: str
    column: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f"'{self.value[:24]}'"


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            found = "a string that is not closed" if text[at] in "'\"" else f"unexpected character {text[at]!r}"
            raise CesqlError(at + 1, found)
        if match.lastgroup != "space":
            tokens.append(_token(str(match.lastgroup), match.group(), at + 1))
        if len(tokens) > MAX_TOKENS:
            raise CesqlError(at + 1, f"more than {MAX_TOKENS:,} words and signs")
        at = match.end()
    return [*tokens, _Token("end", "", len(text) + 1)]


def _token(kind: str, value: str, column: int) -> _Token:
    if kind == "word" and value.isdigit():
        return _Token("integer", value, column)
    if kind == "word" and value.upper() in _KEYWORDS:
        return _Token("key", value.upper(), column)
    return _Token(kind, value, column)


class _Parser:
    """Climbs by precedence: an operator takes to its right all that binds tighter than itself."""

    def __init__(self, text: str, attributes: Sequence[str] | None) -> None:
        self.tokens, self.at, self.depth = _tokens(text), 0, 0
        self.attributes = attributes

    @property
    def now(self) -> _Token:
        return self.tokens[self.at]

    def _take(self, *values: str) -> _Token | None:
        token = self.now
        if token.kind not in ("sign", "key") or token.value not in values:
            return None
        self.at += 1
        return token

    def _need(self, sign: str) -> None:
        if not self._take(sign):
            raise CesqlError(self.now.column, f"expected '{sign}', found {self.now}")

    def whole(self) -> Node:
        tree = self._expression(0)
        if self.now.kind != "end":
            raise CesqlError(self.now.column, f"expected an operator or the end, found {self.now}")
        if depth(tree, lambda upper, lower: True) > MAX_DEPTH:
            raise CesqlError(1, f"nested deeper than {MAX_DEPTH}")
        return tree

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise CesqlError(self.now.column, f"nested deeper than {MAX_DEPTH}")

    def _expression(self, above: int) -> Node:
        """All that binds tighter than `above`."""
        self._deeper()
        tree, logic = self._signed(), ""
        while self.now.kind in ("sign", "key") and _LEVELS.get(self.now.value, 0) > above:
            token = self.now
            self.at += 1
            level = _LEVELS[token.value]
            if level == 5:
                tree = self._member(tree, token)
                continue
            if level == 1 and self.attributes is not None and logic not in ("", token.value):
                what = f"{logic} and {token.value} are mixed"
                raise CesqlError(token.column, f"{what}; say with parentheses which goes first")
            logic = token.value if level == 1 else logic
            tree = Binary("!=" if token.value == "<>" else token.value, tree, self._expression(level))
        self.depth -= 1
        return tree

    def _member(self, tree: Node, token: _Token) -> Node:
        negated = token.value == "NOT"
        verb = token if not negated else self._take("LIKE", "IN")
        if verb is None:
            raise CesqlError(self.now.column, f"expected LIKE or IN after NOT, found {self.now}")
        if verb.value == "IN":
            items = self._list()
            if not items:
                raise CesqlError(self.now.column, "IN needs at least one value")
            return In(tree, tuple(items), negated)
        pattern = self.now
        if pattern.kind != "text":
            raise CesqlError(pattern.column, f"LIKE takes a string in quotes, found {pattern}")
        self.at += 1
        return Like(tree, like_tokens(_unquoted(pattern.value)), negated)

    def _prefix(self) -> Node:
        self._deeper()
        tree = self._signed()
        self.depth -= 1
        return tree

    def _signed(self) -> Node:
        sign = self._take("-", "+")
        number = self.now
        if sign and number.kind == "integer" and number.column == sign.column + 1:
            self.at += 1
            return _integer(sign.value, number.value, sign.column)
        if sign and sign.value == "+":
            raise CesqlError(sign.column, "'+' stands before digits only")
        if sign:
            return Unary("-", self._prefix())
        token = self._take("NOT")
        if token is None:
            return self._atom()
        part = self._prefix()
        if self.attributes is not None and _LEVELS.get(self.now.value, 0) > 1 and self.now.kind in ("sign", "key"):
            raise CesqlError(token.column, f"NOT binds tighter than {self.now}; write NOT (…)")
        return Unary("NOT", part)

    def _atom(self) -> Node:
        token = self.now
        self.at += token.kind != "end"
        if token.kind == "integer":
            return _integer("", token.value, token.column)
        if token.kind == "text":
            return Literal(_unquoted(token.value))
        if token.kind == "key" and token.value in ("TRUE", "FALSE"):
            return Literal(token.value == "TRUE")
        if token.kind == "key" and token.value == "EXISTS":
            name = self.now
            self.at += name.kind != "end"
            return Exists(self._attribute(name))
        if token.kind == "sign" and token.value == "(":
            tree = self._expression(0)
            self._need(")")
            return tree
        if token.kind == "word":
            called = self.now.kind == "sign" and self.now.value == "("
            return self._call(token) if called else Attribute(self._attribute(token))
        raise CesqlError(token.column, f"expected a value, found {token}")

    def _attribute(self, token: _Token) -> str:
        # The standard writes names in small letters and yet shows one with a capital; such a name is read and no event has it.
        letters = "A-Za-z" if self.attributes is None else "a-z"
        if token.kind not in ("word", "integer") or not re.fullmatch(f"[{letters}0-9]+", token.value):
            expected = "an attribute name (small letters and digits)"
            raise CesqlError(token.column, f"expected {expected}, found {token}")
        if self.attributes is not None and token.value not in self.attributes:
            raise CesqlError(token.column, unknown_attribute(token.value, self.attributes))
        return token.value

    def _list(self) -> list[Node]:
        self._need("(")
        items: list[Node] = []
        if self._take(")"):
            return items
        while True:
            items.append(self._expression(0))
            if self._take(")"):
                return items
            self._need(",")

    def _call(self, token: _Token) -> Node:
        name = token.value.upper()
        if not re.fullmatch(r"[A-Z][A-Z_]*", name):
            raise CesqlError(token.column, f"expected a function name (letters and _), found {token}")
        if self.attributes is not None and name not in FUNCTIONS:
            raise CesqlError(token.column, f"no function is called {token}; there are {', '.join(FUNCTIONS)}")
        parts = self._list()
        if self.attributes is not None and function(name, len(parts)) is None:
            found = FUNCTIONS[name]
            most = "" if found.most == found.least else " or more" if found.most is None else f" to {found.most}"
            raise CesqlError(token.column, f"{name} takes {found.least}{most} argument(s), found {len(parts)}")
        return Call(name, tuple(parts))


def unknown_attribute(name: str, attributes: Sequence[str]) -> str:
    """Why a filter cannot name it."""
    if name in _UNSEEN:
        return f"a filter cannot see '{name}': {_UNSEEN[name]}"
    near = difflib.get_close_matches(name, attributes, 1)
    hint = f"did you mean {near[0]}?" if near else "expected one of " + ", ".join(attributes)
    return f"no attribute is called '{name[:24]}'; {hint}"


def _integer(sign: str, digits: str, column: int) -> Literal:
    number = int(sign + (digits.lstrip("0")[:11] or "0"))
    if not INT_MIN <= number <= INT_MAX:
        raise CesqlError(column, "a number beyond 32 bits")
    return Literal(number)


def _unquoted(text: str) -> str:
    """Only the quote itself is escaped in a string; other backslashes stay for LIKE."""
    return text[1:-1].replace("\\" + text[0], text[0])
