"""`tidings schemas`: JSON Schemas of every file kind, so that an editor completes and checks while you type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from tidings.policy import PARTS
from tidings.verbs.options import AsJson, Here, answer


def register(app: typer.Typer) -> None:
    app.command("schemas")(schemas)


def schemas(directory: Here = Path("."), as_json: AsJson = False) -> None:
    """Write schemas/*.schema.json for editors."""
    written = write(directory / "schemas")
    if as_json:
        answer({"written": [str(path) for path in written]})
    else:
        print("\n".join(str(path) for path in written))


def write(folder: Path) -> list[Path]:
    """One schema per kind of file, under `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, schema in documents().items():
        path = folder / f"{name}.schema.json"
        path.write_text(json.dumps(schema, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        written.append(path)
    return written


def documents() -> dict[str, dict[str, Any]]:
    """Kind of file → its schema; the same models that read the files make them."""
    from tidings.contract import Contract
    from tidings.reading import schema_of
    from tidings.shapes import Operator, Saga, Source, Subscriber

    shapes = {"tidings": Operator, "source": Source, "entity": Contract, "subscriber": Subscriber, "saga": Saga}
    draft = "https://json-schema.org/draft/2020-12/schema"
    made = {name: {"$schema": draft, **schema_of(model)} for name, model in shapes.items()}
    return {**made, "policy": {"$schema": draft, **_POLICY}}


_TEXTS = {"type": "array", "items": {"type": "string"}, "minItems": 1}
# The frame of a policy document; what a rule may say is checked by the gate, which knows the facts.
_POLICY: dict[str, Any] = {
    "title": "Policy",
    "description": "policy/*.yaml: rules, and documents of the catalogue that hold as well",
    "type": "object",
    "additionalProperties": False,
    "anyOf": [{"required": [part]} for part in ("include", "note", *PARTS)],
    "properties": {
        "version": {"type": "string"},
        "title": {"type": "string"},
        "note": {"type": "string"},
        "privileged": {"type": "boolean"},
        "recipients": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["subscriber", "purposes", "jurisdictions", "approved_by", "on"],
                "properties": {
                    "subscriber": {"type": "string"},
                    "purposes": _TEXTS,
                    "jurisdictions": _TEXTS,
                    "approved_by": {"type": "string"},
                    "on": {"type": "string"},
                    "note": {"type": "string"},
                },
            },
        },
        "rollout": {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "object"}}},
        "engines": {"type": "array", "items": {"type": "object"}},
        "clocks": {"type": "object", "additionalProperties": {"type": "object"}},
        "include": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "rules": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["id", "anchor", "effect"],
                "properties": {
                    "id": {"type": "string"},
                    "anchor": {"enum": ["event", "privacy", "channel", "vertical", "governance"]},
                    "statutes": {"type": "array", "items": {"type": "string"}},
                    "scope": {"type": "object"},
                    "when": {"type": "object"},
                    "effect": {"type": "object"},
                    "examples": {"type": "array"},
                    "why": {"type": "string"},
                },
            },
        },
    },
}
