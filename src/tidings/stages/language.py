"""The closed language of dialect files: a YAML tree becomes a typed expression, an expression becomes a Column.

Nothing here evaluates text. A string is a path into the message (`value.source.lsn`; the empty one is the message itself),
`$name` stands for a definition of the same file, `@.kind` looks into one element of the list that `each` names, and a
mapping with one key calls one of the functions in functions.py, shapes.py and payloads.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

Segments = tuple[str, ...]
READ_AS = {"text": "string", "json": "variant", "list": "array<variant>"}
SPARK_TYPE = {**READ_AS, "time": "timestamp", "test": "boolean"}


class Wrong(Exception):
    """A dialect file says something the language does not have; `at` is the line, where the tree knows it."""

    def __init__(self, found: str, expected: str, at: int = 0) -> None:
        self.found, self.expected, self.at = found, expected, at
        super().__init__(found, expected, at)


@dataclass(frozen=True)
class Read:
    """One place of the message, wanted as one Spark type."""

    segments: Segments
    as_type: str

    @property
    def in_item(self) -> bool:
        """`@` starts a path into one element of the list that `each` names."""
        return self.segments[:1] == ("@",)


@dataclass(frozen=True)
class Scope:
    """What an expression sees: the parsed message (or one item of it) and the places already taken out of it."""

    root: Column
    prefix: str
    taken: Mapping[Read, Column]
    item: Column | None = None

    def at(self, read: Read) -> Column:
        return self.taken[read] if read in self.taken else self.direct(read)

    def direct(self, read: Read) -> Column:
        """Walk from the root; for rare branches, so that the common row does not pay."""
        if read.in_item and self.item is not None:
            return F.try_variant_get(self.item, "$" + json_path(read.segments[1:]), read.as_type)
        return F.try_variant_get(self.root, self.prefix + json_path(read.segments), read.as_type)


@dataclass(frozen=True)
class Expression:
    """What a tree means: its kind, the places it reads, and how its Column is made."""

    kind: str
    make: Callable[[Scope], Column]
    reads: frozenset[Read] = frozenset()
    constant: str | None = None


Function = Callable[[Any, "Grammar", str], Expression]


@dataclass(frozen=True)
class Grammar:
    """Reads trees: the functions there are, the file's definitions, and those being expanded (to catch a circle)."""

    functions: Mapping[str, Mapping[str, Function]]
    definitions: Mapping[str, Any] = field(default_factory=dict)
    busy: frozenset[str] = frozenset()

    def text(self, tree: Any) -> Expression:
        return self.read(tree, "text")

    def json(self, tree: Any) -> Expression:
        return self.read(tree, "json")

    def test(self, tree: Any) -> Expression:
        return self.read(tree, "test")

    def read(self, tree: Any, kind: str) -> Expression:
        """Check a tree and return its expression."""
        if tree is None:
            return Expression(kind, lambda scope: F.lit(None).cast(SPARK_TYPE[kind]))
        if isinstance(tree, str):
            return self._named_or_path(tree, kind)
        if not isinstance(tree, Mapping) or len(tree) != 1:
            raise Wrong(shown(tree), "a path, or a mapping with the one function it calls", line_of(tree))
        name, body = next(iter(tree.items()))
        known = self.functions[kind]
        if name not in known:
            raise Wrong(f"{name} where a {kind} is expected", f"one of {', '.join(sorted(known))}", line_of(tree))
        try:
            return known[name](body, self, kind)
        except Wrong as wrong:
            raise Wrong(wrong.found, wrong.expected, wrong.at or line_of(tree)) from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Wrong(f"{name}: {shown(body)}", f"what {name} takes ({error})", line_of(tree)) from None

    def path(self, tree: Any) -> Segments:
        """The place a string names; `$name.rest` continues a definition that is itself a path."""
        if not isinstance(tree, str):
            raise Wrong(shown(tree), "a path such as value.source.lsn", line_of(tree))
        head, _, rest = tree.partition(".")
        tail = _segments(rest)
        if not head.startswith("$"):
            return _segments(head) + tail
        inner, deeper = self._enter(head[1:])
        return deeper.path(inner) + tail

    def _named_or_path(self, tree: str, kind: str) -> Expression:
        if tree.startswith("$") and "." not in tree:
            inner, deeper = self._enter(tree[1:])
            if not isinstance(inner, str):
                return deeper.read(inner, kind)
        if kind not in READ_AS:
            raise Wrong(f"the path {tree} where a {kind} is expected", "a function that makes one")
        return reading(self.path(tree), kind)

    def _enter(self, name: str) -> tuple[Any, Grammar]:
        if name not in self.definitions:
            raise Wrong(f"${name}", f"one of the definitions {', '.join(sorted(self.definitions)) or '(none)'}")
        if name in self.busy:
            raise Wrong(f"${name} stands in its own definition", "definitions without a circle")
        return self.definitions[name], replace(self, busy=self.busy | {name})


def reading(segments: Segments, kind: str) -> Expression:
    read = Read(segments, READ_AS[kind])
    return Expression(kind, lambda scope: scope.at(read), frozenset([read]))


def over(kind: str, parts: Sequence[Expression], make: Callable[..., Column]) -> Expression:
    """An expression over others: it reads what they read."""
    reads = frozenset[Read]().union(*[part.reads for part in parts])
    return Expression(kind, lambda scope: make(*[part.make(scope) for part in parts]), reads)


def json_path(segments: Segments) -> str:
    """The Spark path of a place; names are quoted, so a dot or a blank in a name is harmless."""
    parts = []
    for name in segments:
        if name.startswith("["):
            parts.append(name)
        elif "'" in name and '"' in name:
            raise Wrong(f"the field name {name}", "a name without both kinds of quotation marks")
        else:
            parts.append(f'["{name}"]' if "'" in name else f"['{name}']")
    return "".join(parts)


def dotted(segments: Segments) -> str:
    return ".".join(segments).replace(".[", "[")


def line_of(tree: Any) -> int:
    return int(getattr(tree, "line", 0))


def shown(tree: Any) -> str:
    text = repr(tree)
    return text if len(text) <= 60 else text[:57] + "..."


def _segments(text: str) -> Segments:
    """`changes[0].kind` names a field, an element and a field."""
    found: list[str] = []
    for part in text.split(".") if text else []:
        name, bracket, index = part.partition("[")
        if bracket and not index.rstrip("]").isdigit():
            raise Wrong(f"the index [{index}", "a number in brackets")
        found += [name] if name else []
        found += ["[" + index] if bracket else []
    return tuple(found)
