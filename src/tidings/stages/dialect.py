"""A dialect: what a vendor's message means, read from catalog/dialects/NAME.yaml and checked before Spark sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from tidings.errors import ConfigurationError, Problem, Refused
from tidings.stages.language import READ_AS, Expression, Grammar, Segments, Wrong, dotted, line_of, shown
from tidings.stages.shapes import FUNCTIONS, KINDS

FIELDS = {
    "op": "text",
    "entity": "text",
    "key": "json",
    "before": "json",
    "after": "json",
    "before_kind": "text",
    "commit_time": "time",
    "position": "text",
    "ordering": "text",
    "epoch": "text",
    "txn": "text",
    "reason": "text",
}
ABOUT = {"title", "fact", "confidence", "odd"}
RULES = {
    "include",
    "order",
    "recognise",
    "bare",
    "record",
    "define",
    "each",
    "list",
    "foreign",
    "skip",
    "op_from",
    "types",
    "needs",
    "placeholders",
    "sparse_before",
    "key_values",
    "spare_key",
    "usual_key",
}
KNOWN = ABOUT | RULES | set(FIELDS) | {"unwrap", "inside"}


@dataclass(frozen=True)
class Dialect:
    """One dialect, as expressions. One with `unwrap` only takes a wrapper off; what is inside speaks one of `inside`.

    `takes_list` lets a message be a JSON list; `usual_key` is for an operator who names no key columns; `record` says that from a
    broker it reads topic, key and value, and not the value alone.
    """

    name: str
    order: int
    recognise: Expression
    foreign: Expression
    bare: tuple[str, ...]
    record: bool
    each: Expression | None
    each_name: str
    takes_list: bool
    skips: tuple[tuple[Expression, str], ...]
    fields: Mapping[str, Expression]
    op_from: Expression
    op_from_name: str
    types: tuple[tuple[Segments, str], ...]
    needs: tuple[tuple[str, Segments], ...]
    placeholders: tuple[str, ...]
    sparse_before: bool
    key_values: Expression | None
    spare_key: Expression
    usual_key: tuple[str, ...]
    unwrap: tuple[tuple[str, Segments], ...]
    inside: tuple[str, ...]


class Branch(dict[str, Any]):
    """A YAML mapping that knows its line."""

    line = 0


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        made = Branch()
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in made:
                raise Wrong(f"{key} twice", "each name once", key_node.start_mark.line + 1)
            made[key] = self.construct_object(value_node, deep=True)
        made.line = node.start_mark.line + 1
        return made


_Loader.add_constructor("tag:yaml.org,2002:map", lambda loader, node: loader.construct_mapping(node))  # type: ignore[arg-type]


def names() -> list[str]:
    """The dialects the catalogue ships, in the order in which `auto` tries them."""
    files = resources.files("tidings").joinpath("catalog", "dialects").iterdir()
    found = sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml") and f.name[0] != "_")
    return sorted(found, key=lambda name: (load(name).order, name))


@cache
def load(name: str) -> Dialect:
    """The dialect of this name from the catalogue."""
    tree = _tree(name)
    if tree is None:
        raise Refused("unknown_dialect", f"the dialect {name}", "a name that `tidings try decode --help` lists", "")
    return read(name, tree)


def read(name: str, tree: Mapping[str, Any]) -> Dialect:
    """Check a dialect's tree; every mistake names its line."""
    file = f"catalog/dialects/{name}.yaml"
    try:
        return _checked(name, _included(tree))
    except Wrong as wrong:
        what_now = "Mend the dialect file."
        problem = Problem(file, wrong.at, name, "dialect", wrong.found, wrong.expected, what_now)
        raise ConfigurationError([problem]) from None


def _tree(name: str) -> Mapping[str, Any] | None:
    file = resources.files("tidings").joinpath("catalog", "dialects", f"{name}.yaml")
    if not file.is_file():
        return None
    # _Loader is a SafeLoader that also keeps lines.
    tree = yaml.load(file.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506
    if not isinstance(tree, Mapping):
        raise Wrong(shown(tree), "a mapping")
    return tree


def _included(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tree over what it includes: its own words win, definitions and types add up, skips come first."""
    name = tree.get("include")
    if name is None:
        return tree
    shared = _tree(f"_{name}")
    if shared is None:
        raise Wrong(f"include: {name}", "a file _NAME.yaml beside it", line_of(tree))
    merged = Branch({**_included(shared), **tree})
    for part in ("define", "types"):
        merged[part] = {**shared.get(part, {}), **tree.get(part, {})}
    merged["skip"] = [*tree.get("skip", []), *shared.get("skip", [])]
    return merged


def _checked(name: str, tree: Mapping[str, Any]) -> Dialect:
    unknown = sorted(set(tree) - KNOWN)
    if unknown:
        raise Wrong(", ".join(unknown), f"only {', '.join(sorted(KNOWN))}", line_of(tree))
    grammar = Grammar(FUNCTIONS, tree.get("define", {}))
    types = tuple((grammar.path(where), str(kind)) for where, kind in tree.get("types", {}).items())
    for where, kind in types:
        if kind not in KINDS:
            raise Wrong(f"types: {'.'.join(where)}: {kind}", f"one of {', '.join(KINDS)}", line_of(tree["types"]))
    return Dialect(
        name=name,
        order=int(tree.get("order", 100)),
        recognise=grammar.test(tree["recognise"]),
        foreign=grammar.test(tree.get("foreign")),
        bare=tuple(tree.get("bare", ())),
        record=bool(tree.get("record", False)),
        each=grammar.read(tree["each"], "list") if "each" in tree else None,
        each_name=_place(tree.get("each"), grammar) or _listed(grammar.read(tree.get("each"), "list")),
        takes_list=bool(tree.get("list", False)),
        skips=tuple((grammar.test(skip["when"]), str(skip["reason"])) for skip in tree.get("skip", ())),
        fields={field: grammar.read(tree.get(field), kind) for field, kind in FIELDS.items()},
        op_from=grammar.text(tree.get("op_from")),
        op_from_name=_place(tree.get("op_from"), grammar),
        types=types,
        needs=tuple((op, grammar.path(where)) for op, where in tree.get("needs", {}).items()),
        placeholders=tuple(tree.get("placeholders", ())),
        sparse_before=bool(tree.get("sparse_before", False)),
        key_values=grammar.read(tree["key_values"], "list") if "key_values" in tree else None,
        spare_key=grammar.json(tree.get("spare_key")),
        usual_key=tuple(str(name) for name in tree.get("usual_key", ())),
        unwrap=tuple((field, grammar.path(where)) for field, where in tree.get("unwrap", {}).items()),
        inside=tuple(tree.get("inside", ())),
    )


def _listed(each: Expression) -> str:
    """The place of the list that `each` walks."""
    return dotted(min((read.segments for read in each.reads if read.as_type == READ_AS["list"]), default=()))


def _place(tree: Any, grammar: Grammar) -> str:
    """How a person finds the place that an expression reads: a path, the name of a header, or the first of several."""
    if isinstance(tree, str) and isinstance(grammar.definitions.get(tree[1:]), Mapping):
        return _place(grammar.definitions[tree[1:]], grammar)
    if not isinstance(tree, Mapping):
        return dotted(grammar.path(tree)) if tree else ""
    name, body = next(iter(tree.items()))
    inner = {"coalesce": lambda: body[0], "case": lambda: body[-1].get("else"), "prefer": lambda: body["of"]}
    return f"headers.{body}" if name == "header" else _place(inner.get(name, lambda: None)(), grammar)
