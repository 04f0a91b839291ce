"""CloudEvents SQL filters: text → typed tree. `cesql_values` answers from it for one event, `cesql_columns` compiles it to Spark.

Every value has a static type (attributes are strings, operators and functions say what they give), so all casts stand in the tree.
An error anywhere on the path taken (a missing attribute, a cast that fails, a division by zero) means the filter does not match.

Two readings of the standard surprise people who know SQL: AND, OR and XOR share one precedence, and NOT binds tighter than `=`.
Where that would matter the text is refused and parentheses are asked for; everything else is read as the standard says.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tidings.gate.cesql_tree import (
    INT_MAX,
    INT_MIN,
    Attribute,
    Binary,
    Call,
    Cast,
    Exists,
    In,
    Like,
    Literal,
    Node,
    Unary,
)

MAX_LENGTH = 4096
MAX_DEPTH = 32
MAX_NODES = 500

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


# name → (types of the arguments, the last repeating; type of the result; how few and how many). "any" takes what comes.
FUNCTIONS: Mapping[str, tuple[tuple[str, ...], str, tuple[int, int]]] = {
    "LENGTH": (("string",), "integer", (1, 1)),
    "CONCAT": (("string",), "string", (1, 100)),
    "CONCAT_WS": (("string", "string"), "string", (1, 100)),
    "LOWER": (("string",), "string", (1, 1)),
    "UPPER": (("string",), "string", (1, 1)),
    "TRIM": (("string",), "string", (1, 1)),
    "LEFT": (("string", "integer"), "string", (2, 2)),
    "RIGHT": (("string", "integer"), "string", (2, 2)),
    "SUBSTRING": (("string", "integer", "integer"), "string", (2, 3)),
    "ABS": (("integer",), "integer", (1, 1)),
    "INT": (("any",), "integer", (1, 1)),
    "BOOL": (("any",), "boolean", (1, 1)),
    "STRING": (("any",), "string", (1, 1)),
    "IS_INT": (("any",), "boolean", (1, 1)),
    "IS_BOOL": (("any",), "boolean", (1, 1)),
}
_CASTS = {"INT": "integer", "BOOL": "boolean", "STRING": "string"}
_KEYWORDS = frozenset({"AND", "OR", "XOR", "NOT", "LIKE", "IN", "EXISTS", "TRUE", "FALSE"})
_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\")|(?P<word>[A-Za-z0-9_]+)|(?P<sign><>|!=|<=|>=|[=<>+\-*/%(),]))",
    re.DOTALL,
)
_ARTICLES = {"integer": "an integer", "string": "a string", "boolean": "a boolean"}


def check(expression: str, attributes: Sequence[str] = ATTRIBUTES) -> list[str]:
    """What is wrong with a filter, one sentence each; empty when it can be used."""
    try:
        tree = parse(expression, attributes)
    except CesqlError as error:
        return [str(error)]
    if tree.type != "boolean":
        return [f"column 1: this gives {_ARTICLES[tree.type]}; a filter must give true or false"]
    return []


def parse(expression: str, attributes: Sequence[str] | None = ATTRIBUTES) -> Node:
    """The typed tree, or CesqlError. `attributes=None` takes any attribute name."""
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
    tokens, at = [], 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            column = at + len(text[at:]) - len(text[at:].lstrip()) + 1
            found = text[column - 1]
            raise CesqlError(
                column, "a string that is not closed" if found in "'\"" else f"unexpected character {found!r}"
            )
        kind = str(match.lastgroup)
        value = match.group(kind)
        if kind == "word":
            kind = "integer" if value.isdigit() else "key" if value.upper() in _KEYWORDS else "word"
            value = value.upper() if kind == "key" else value
        tokens.append(_Token(kind, value, match.start(str(match.lastgroup)) + 1))
        at = match.end()
    tokens.append(_Token("end", "", len(text) + 1))
    return tokens


class _Parser:
    """Recursive descent, one method per precedence level, loosest first."""

    def __init__(self, text: str, attributes: Sequence[str] | None) -> None:
        self.tokens, self.at, self.depth = _tokens(text), 0, 0
        self.attributes = attributes
        if len(self.tokens) > MAX_NODES:
            raise CesqlError(self.tokens[MAX_NODES].column, f"more than {MAX_NODES} words and signs")

    @property
    def now(self) -> _Token:
        return self.tokens[self.at]

    def _take(self, *values: str, kind: str = "") -> _Token | None:
        token = self.now
        if (token.kind in ("sign", "key") and token.value in values) or (kind and token.kind == kind):
            self.at += 1
            return token
        return None

    def _need(self, sign: str) -> None:
        if not self._take(sign):
            raise CesqlError(self.now.column, f"expected '{sign}', found {self.now}")

    def whole(self) -> Node:
        tree = self._logic()
        if self.now.kind != "end":
            raise CesqlError(self.now.column, f"expected an operator or the end, found {self.now}")
        return tree

    def _logic(self) -> Node:
        parts, name = [self._comparison()], ""
        while token := self._take("AND", "OR", "XOR"):
            if name and token.value != name:
                raise CesqlError(
                    token.column, f"{name} and {token.value} are mixed; say with parentheses which goes first"
                )
            name = token.value
            parts.append(self._comparison())
        tree = parts.pop()
        while parts:
            tree = Binary(name, _cast(parts.pop(), "boolean"), _cast(tree, "boolean"), "boolean")
        return tree

    def _comparison(self) -> Node:
        tree = self._sum()
        while token := self._take("=", "!=", "<>", "<", "<=", ">", ">="):
            right = self._sum()
            if token.value in ("=", "!=", "<>"):
                tree = Binary("=" if token.value == "=" else "!=", _cast(tree, right.type), right, "boolean")
            else:
                tree = Binary(token.value, _cast(tree, "integer"), _cast(right, "integer"), "boolean")
        return tree

    def _sum(self) -> Node:
        return self._arithmetic(self._product, "+", "-")

    def _product(self) -> Node:
        return self._arithmetic(self._membership, "*", "/", "%")

    def _arithmetic(self, tighter: Callable[[], Node], *signs: str) -> Node:
        tree = tighter()
        while token := self._take(*signs):
            tree = Binary(token.value, _cast(tree, "integer"), _cast(tighter(), "integer"), "integer")
        return tree

    def _membership(self) -> Node:
        tree = self._unary()
        while True:
            mark = self.at
            negated = self._take("NOT") is not None
            if self._take("LIKE"):
                token = self._take(kind="text")
                if token is None:
                    raise CesqlError(self.now.column, f"LIKE takes a string in quotes, found {self.now}")
                tree = Like(_cast(tree, "string"), _unquoted(token.value), negated)
            elif self._take("IN"):
                items = self._list()
                if not items:
                    raise CesqlError(self.now.column, "IN needs at least one value")
                tree = In(tree, tuple(_cast(item, tree.type) for item in items), negated)
            else:
                self.at = mark
                return tree

    def _unary(self) -> Node:
        # Every way of nesting passes here once per level, so this is the only place that counts.
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise CesqlError(self.now.column, f"nested deeper than {MAX_DEPTH}")
        tree = self._signed()
        self.depth -= 1
        return tree

    def _signed(self) -> Node:
        sign = self._take("-", "+")
        if sign and (number := self._take(kind="integer")):
            return _integer(sign.value + number.value, sign.column)
        if sign and sign.value == "-":
            return Unary("negate", _cast(self._unary(), "integer"), "integer")
        if sign:
            raise CesqlError(sign.column, "'+' stands before digits only")
        token = self._take("NOT")
        if token is None:
            return self._atom()
        part = self._unary()
        follows = self.now
        if follows.kind == "sign" and follows.value not in "(),":
            raise CesqlError(token.column, f"NOT binds tighter than {follows}; write NOT (…)")
        if follows.kind == "key" and follows.value in ("LIKE", "IN", "NOT"):
            raise CesqlError(token.column, f"NOT binds tighter than {follows}; write NOT (…)")
        return Unary("not", _cast(part, "boolean"), "boolean")

    def _atom(self) -> Node:
        token = self.now
        self.at += 1
        if token.kind == "integer":
            return _integer(token.value, token.column)
        if token.kind == "text":
            return Literal("string", _unquoted(token.value))
        if token.kind == "key" and token.value in ("TRUE", "FALSE"):
            return Literal("boolean", token.value == "TRUE")
        if token.kind == "key" and token.value == "EXISTS":
            name = self.now
            self.at += 1
            return Exists(self._attribute(name))
        if token.kind == "sign" and token.value == "(":
            tree = self._logic()
            self._need(")")
            return tree
        if token.kind == "word":
            called = self.now.kind == "sign" and self.now.value == "("
            return self._call(token) if called else Attribute(self._attribute(token))
        raise CesqlError(token.column, f"expected a value, found {token}")

    def _attribute(self, token: _Token) -> str:
        if token.kind not in ("word", "integer") or not re.fullmatch(r"[a-z0-9]+", token.value):
            expected = "an attribute name (small letters and digits)"
            raise CesqlError(token.column, f"expected {expected}, found {token}")
        if self.attributes is not None and token.value not in self.attributes:
            if token.value in _UNSEEN:
                raise CesqlError(token.column, f"a filter cannot see {token}: {_UNSEEN[token.value]}")
            near = difflib.get_close_matches(token.value, self.attributes, 1)
            hint = f"did you mean {near[0]}?" if near else "expected one of " + ", ".join(self.attributes)
            raise CesqlError(token.column, f"no attribute is called {token}; {hint}")
        return token.value

    def _list(self) -> list[Node]:
        self._need("(")
        items: list[Node] = []
        if self._take(")"):
            return items
        while True:
            items.append(self._logic())
            if self._take(")"):
                return items
            self._need(",")

    def _call(self, token: _Token) -> Node:
        name = token.value.upper()
        if name not in FUNCTIONS:
            raise CesqlError(token.column, f"no function is called {token}; there are {', '.join(FUNCTIONS)}")
        types, result, (least, most) = FUNCTIONS[name]
        parts = self._list()
        if not least <= len(parts) <= most:
            wants = str(least) if least == most else f"{least} to {most}"
            raise CesqlError(token.column, f"{name} takes {wants} argument(s), found {len(parts)}")
        if name in _CASTS:
            return _cast(parts[0], _CASTS[name])
        wanted = [*types, *[types[-1]] * len(parts)]
        cast = tuple(part if want == "any" else _cast(part, want) for part, want in zip(parts, wanted, strict=False))
        return Call(name, cast, result)


def _integer(text: str, column: int) -> Literal:
    if not INT_MIN <= int(text[:24]) <= INT_MAX or len(text) > 24:
        raise CesqlError(column, "a number beyond 32 bits")
    return Literal("integer", int(text))


def _unquoted(text: str) -> str:
    """Only the quote itself is escaped in a string; other backslashes stay for LIKE."""
    return text[1:-1].replace("\\" + text[0], text[0])


def _cast(part: Node, to: str) -> Node:
    return part if part.type == to else Cast(to, part)
