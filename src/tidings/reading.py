"""A document becomes a model, or every reason why it does not, each with its line and what was expected there."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tidings.contract import Model, Wrong
from tidings.errors import Problem
from tidings.yaml_lines import Document, Place, Value

M = TypeVar("M", bound=Model)

_SECRET_PLACE = re.compile(r"secret|key|password|token|auth|url|vars|smtp|header|user", re.IGNORECASE)
_TYPES = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping of keys to values",
    "null": "nothing",
}


def into(model: type[M], document: Document, name: str = "") -> tuple[M | None, list[Problem]]:
    """The model of this document; `name` is the file's own name where the shape carries one."""
    named = "name" in model.model_fields
    data = {key: value for key, value in document.data.items() if not (named and key == "name")}
    problems = []
    if len(data) < len(document.data):
        problems.append(_unknown_key(document, ("name",), schema_of(model)))
    try:
        instance = model.model_validate({**data, "name": name} if named else data)
    except ValidationError as error:
        seen: dict[tuple[str, str], Problem] = {}
        for detail in error.errors(include_url=False):
            problem = _problem(document, detail, schema_of(model))
            seen.setdefault((problem.path, problem.code), problem)
        return None, [*problems, *seen.values()]
    return (None if problems else instance), problems


@cache
def schema_of(model: type[Model]) -> dict[str, Any]:
    """The JSON Schema of a file, without what the file does not say itself."""
    schema = model.model_json_schema(by_alias=True)
    schema["properties"] = {k: v for k, v in schema["properties"].items() if not v.get("internal")}
    return schema


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence that points at the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]}?" if near else ""


def listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words)) or "none"


def shown(place: Place, value: Value) -> str:
    """A value as a message may repeat it: its kind alone wherever a secret could stand."""
    if isinstance(value, dict | list):
        return "a list" if isinstance(value, list) else "a mapping"
    if value is None or value == "":
        return "nothing" if value is None else "empty text"
    if any(_SECRET_PLACE.search(step) for step in place if isinstance(step, str)):
        return "text that does not fit" if isinstance(value, str) else f"a {type(value).__name__} value"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    text = "".join(c if c.isprintable() else "·" for c in text)
    return text if len(text) <= 40 else text[:37] + "…"


def _problem(document: Document, detail: ErrorDetails, schema: dict[str, Any]) -> Problem:
    place, value = _resolve(document.data, detail["loc"])
    kind = detail["type"]
    if kind == "extra_forbidden":
        return _unknown_key(document, place, schema)
    if kind == "missing":
        expected = _expectation(schema, place)
        what_now = f"Add `{place[-1]}:`." if place else "Add it."
        return document.problem(place, "missing_key", "nothing", expected, what_now)
    if detail["loc"][-1:] == ("[key]",):
        return document.problem(place, "wrong_key", "a key that does not fit", "another spelling", "Rename the key.")
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, Wrong):
        return document.problem(place, cause.code, shown(place, value), cause.expected, cause.what_now)
    return _misfit(document, place, value, detail, schema)


def _misfit(document: Document, place: Place, value: Value, detail: ErrorDetails, schema: dict[str, Any]) -> Problem:
    kind = detail["type"]
    choices = [c for node in _nodes(schema, place) for c in _choices(node)]
    hint = did_you_mean(value, choices) if isinstance(value, str) else ""
    code = "wrong_type" if kind.endswith("_type") or kind in ("int_from_float", "int_parsing") else "wrong_value"
    expected = listed(choices) if choices else _expectation(schema, place)
    if kind in ("string_type",) and isinstance(value, int | float):
        return document.problem(
            place, code, "a number" if not isinstance(value, bool) else "true or false", expected, "Put it in quotes."
        )
    return document.problem(place, code, shown(place, value), expected, f"Change the value.{hint}")


def _unknown_key(document: Document, place: Place, schema: dict[str, Any]) -> Problem:
    known = {key for node in _nodes(schema, place[:-1]) for key in node.get("properties", {})}
    hint = did_you_mean(str(place[-1]), known)
    return document.problem(place, "unknown_key", "a key nobody reads", f"one of {listed(known)}", f"Remove it.{hint}")


def _resolve(data: Value, loc: tuple[int | str, ...]) -> tuple[Place, Value]:
    """pydantic's location without the union tags it puts between, and the value standing there."""
    place: list[str | int] = []
    for index, step in enumerate(loc):
        inside = (isinstance(data, dict) and step in data) or (
            isinstance(data, list) and isinstance(step, int) and step < len(data)
        )
        if inside:
            data = data[step]
            place.append(step)
        elif index == len(loc) - 1 and isinstance(data, dict) and isinstance(step, str) and step != "[key]":
            return (*place, step), None
    return tuple(place), data


def _nodes(schema: dict[str, Any], place: Place) -> list[dict[str, Any]]:
    """The schema nodes that may govern `place`: several when the shape has alternatives."""
    nodes = list(_flat(schema, schema))
    for step in place:
        below = []
        for node in nodes:
            if isinstance(step, int):
                child = node.get("items")
            else:
                child = node.get("properties", {}).get(step, node.get("additionalProperties"))
                patterns = node.get("patternProperties")
                child = next(iter(patterns.values())) if child in (None, False) and patterns else child
            if isinstance(child, dict):
                below += list(_flat(child, schema))
        nodes = below
    return nodes


def _flat(node: dict[str, Any], root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "$ref" in node:
        target = root["$defs"][node["$ref"].rsplit("/", 1)[-1]]
        text = {"description": node["description"]} if "description" in node else {}
        yield from _flat({**target, **text}, root)
        return
    yield {k: v for k, v in node.items() if k not in ("anyOf", "oneOf")}
    for branch in [*node.get("anyOf", ()), *node.get("oneOf", ())]:
        yield from _flat(branch, root)


def _choices(node: dict[str, Any]) -> list[str]:
    if "const" in node:
        return [str(node["const"])]
    return [str(choice) for choice in node.get("enum", ())]


def _expectation(schema: dict[str, Any], place: Place) -> str:
    nodes = _nodes(schema, place)
    for node in nodes:
        if node.get("description"):
            return str(node["description"]).split(": ", 1)[-1] if "$defs" in node else str(node["description"])
    kinds = {_TYPES[node["type"]] for node in nodes if node.get("type") in _TYPES}
    return " or ".join(sorted(kinds)) or "a value"
