"""What a subscriber may write as its filter: a CESQL text, or the dialects of CloudEvents Subscriptions, all as one tree.

A dialect always says yes or no: an attribute that the event lacks is no match, so `not` around it is one; a `sql` that fails or
gives something other than true is no match either. A list means that all of it must match, and an empty list always does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from tidings.errors import Problem
from tidings.gate import cesql
from tidings.gate.cesql_tree import Attribute, Binary, Exists, Holds, Like, Literal, Node, Unary, depth
from tidings.yaml_lines import Document, dotted

MAX_DEPTH = 32
MAX_PARTS = 500
MAX_NATIVE = 60  # How deep Spark may have to descend; `a AND b AND …` and `a OR b OR …` are no deeper than their parts.

Place = tuple[str | int, ...]


class FilterError(ValueError):
    """What is wrong, and where: the keys that lead there, and for a CESQL text its column."""

    def __init__(self, place: Place, message: str, text: str = "", column: int = 0) -> None:
        self.place, self.message, self.text, self.column = place, message, text, column
        super().__init__(message)

    def pointed(self) -> str:
        """The line of the text that is wrong, with a caret under the place."""
        if not self.column:
            return ""
        start = self.text.rfind("\n", 0, self.column - 1) + 1
        line = self.text[start:].split("\n")[0]
        left = max(self.column - 1 - start - 60, 0)
        return f"{line[left : left + 100]}\n{'^':>{self.column - start - left}}"


def read(said: Any, attributes: Sequence[str] | None = None) -> Node:
    """The tree of a filter, or FilterError. With `attributes` as in the operator's folder: only these can be named."""
    tree = _Reader(attributes).whole(said)
    if attributes is not None and depth(tree, _one_chain) > MAX_NATIVE:
        raise FilterError((), f"more than {MAX_NATIVE} operators within each other")
    return tree


def problems(said: Any, file: str, document: Document | None) -> list[Problem]:
    """What is wrong with a subscriber's filter, at its line and under its column; nothing when there is none."""
    try:
        if said is not None:
            read(said, cesql.ATTRIBUTES)
    except FilterError as error:
        place = ("filter", *error.place)
        line = document.line(place) if document else 0
        expected = "a CESQL expression or a dialect of CloudEvents Subscriptions"
        return [
            Problem(file, line, dotted(place), "cesql", error.message, expected, "Mend the filter.", error.pointed())
        ]
    return []


class _Reader:
    def __init__(self, attributes: Sequence[str] | None) -> None:
        self.attributes, self.parts = attributes, 0

    def whole(self, said: Any) -> Node:
        if isinstance(said, str):
            return self._sql((), said)
        if isinstance(said, list | tuple):
            found = [self._filter((number,), one) for number, one in enumerate(said)]
            return _joined("AND", found) if found else Literal(True)
        return self._filter((), said)

    def _filter(self, place: Place, said: Any) -> Node:
        self.parts += 1
        if len(place) > MAX_DEPTH * 2 or self.parts > MAX_PARTS:
            raise FilterError(place, f"more than {MAX_DEPTH} levels or {MAX_PARTS} filters")
        if not isinstance(said, Mapping) or len(said) != 1:
            raise FilterError(place, f"expected one dialect and what it takes; dialects are {', '.join(_DIALECTS)}")
        ((name, what),) = said.items()
        if name not in _DIALECTS:
            raise FilterError(place, f"no dialect is called '{str(name)[:24]}'; there are {', '.join(_DIALECTS)}")
        return _DIALECTS[name](self, (*place, name), what)

    def _several(self, place: Place, what: Any) -> Node:
        if not isinstance(what, list | tuple) or not what:
            raise FilterError(place, "expected a list of at least one filter")
        found = [self._filter((*place, number), one) for number, one in enumerate(what)]
        return _joined("AND" if place[-1] == "all" else "OR", found)

    def _not(self, place: Place, what: Any) -> Node:
        return Unary("NOT", self._filter(place, what))

    def _sql(self, place: Place, what: Any) -> Node:
        if not isinstance(what, str):
            raise FilterError(place, "expected a CESQL text")
        try:
            tree = cesql.parse(what) if self.attributes is None else cesql.read_filter(what, self.attributes)
        except cesql.CesqlError as error:
            raise FilterError(place, str(error), what, error.column) from None
        return Holds(tree) if place else tree

    def _texts(self, place: Place, what: Any) -> Node:
        if not isinstance(what, Mapping) or not what:
            raise FilterError(place, "expected at least one attribute and its text")
        return _joined("AND", [self._text((*place, name), str(name), text) for name, text in what.items()])

    def _text(self, place: Place, name: str, text: Any) -> Node:
        if not isinstance(text, str) or not text or not name:
            raise FilterError(place, "expected an attribute and a text in quotes, neither of them empty")
        if self.attributes is not None and name not in self.attributes:
            raise FilterError(place, cesql.unknown_attribute(name, self.attributes))
        literal = tuple("=" + letter for letter in text)
        match place[-2]:
            case "prefix":
                test: Node = Like(Attribute(name), (*literal, "%"))
            case "suffix":
                test = Like(Attribute(name), ("%", *literal))
            case _:
                test = Binary("=", Attribute(name), Literal(text))
        return Binary("AND", Exists(name), test)


_DIALECTS: Mapping[str, Callable[[_Reader, Place, Any], Node]] = {
    "exact": _Reader._texts,
    "prefix": _Reader._texts,
    "suffix": _Reader._texts,
    "all": _Reader._several,
    "any": _Reader._several,
    "not": _Reader._not,
    "sql": _Reader._sql,
}


def _one_chain(upper: Binary, lower: Binary) -> bool:
    return upper.name == lower.name in ("AND", "OR")


def _joined(name: str, parts: list[Node]) -> Node:
    return reduce(lambda left, right: Binary(name, left, right), parts)
