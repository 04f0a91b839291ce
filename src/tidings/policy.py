"""The operator's policy documents as data: rules with their file and line, and what they include from the catalogue."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from tidings import bundles, yaml_lines
from tidings.errors import Problem
from tidings.reading import did_you_mean, listed, shown
from tidings.yaml_lines import Document, Place, Value

# What a document can contribute; the gate gives each its meaning.
PARTS = ("rules", "recipients", "rollout", "engines", "clocks", "retention", "holds")
KEYS = ("version", "include", "privileged", "title", "note", *PARTS)


@dataclass(frozen=True)
class RuleDocument:
    """One rule as written; the gate gives it meaning."""

    id: str
    data: dict[str, Value]
    document: Document = field(repr=False, compare=False)
    place: Place

    @property
    def file(self) -> str:
        return self.document.file

    @property
    def privileged(self) -> bool:
        """What the document says is between the operator and counsel: its reasons are never told."""
        return self.document.data.get("privileged") is True

    @property
    def line(self) -> int:
        return self.document.line(self.place)

    def problem(self, path: Place, code: str, found: str, expected: str, what_now: str) -> Problem:
        """A problem at a path inside this rule, with its own line."""
        return self.document.problem((*self.place, *path), code, found, expected, what_now)


@dataclass(frozen=True)
class Policies:
    """Every rule in force: the operator's own, then what is included and not replaced by an own rule of that id."""

    versions: tuple[str, ...]
    rules: tuple[RuleDocument, ...]
    documents: tuple[Document, ...] = field(repr=False, compare=False)

    @property
    def version(self) -> str:
        """A digest of what the rules say; comments and spacing do not change it."""
        said: dict[str, object] = {"versions": list(self.versions), "rules": [rule.data for rule in self.rules]}
        said["parts"] = [{part: one.data[part] for part in PARTS[1:] if part in one.data} for one in self.documents]
        text = json.dumps(said, sort_keys=True, default=str, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def read(folder: Path, label: str, always: tuple[str, ...] = ()) -> tuple[Policies, list[Problem]]:
    """All documents of the policy folder and what they include; `always` names catalogue documents in force without being included."""
    own, problems = [], []
    for path in sorted(folder.glob("*.yaml")):
        document, wrong = yaml_lines.read(path, f"{label}/{path.name}")
        problems += wrong
        if document:
            own.append(document)
            problems += shape(document)
    if any("recipients" in document.data for document in own):
        always = (*always, "recipients")
    included, wrong = _included(own, always, folder / bundles.FOLDER, f"{label}/{bundles.FOLDER}")
    problems += [*wrong, *bundles.wrong(folder, label)]
    mine = [rule for document in own for rule in rules_of(document)]
    theirs = [rule for document in included for rule in rules_of(document)]
    problems += _twice(mine)
    first = {rule.id: rule for rule in reversed([*mine, *theirs])}  # own before taken in, taken in before shipped
    rules = (*mine, *(rule for rule in theirs if first[rule.id] is rule))
    versions = tuple(str(document.data.get("version", "")) for document in (*own, *included))
    return Policies(versions, rules, (*own, *included)), problems


def _included(
    own: list[Document], always: tuple[str, ...], folder: Path, label: str
) -> tuple[list[Document], list[Problem]]:
    """What the documents include, each once: bundles that were taken in, then the catalogue's; a document may include another."""
    shipped = files("tidings").joinpath("catalog/anchors")
    shelf = {one.name.removesuffix(".yaml"): one for one in shipped.iterdir() if one.name.endswith(".yaml")}
    taken = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    found: dict[str, Document] = {}
    problems: list[Problem] = []
    waiting = [(document, *entry) for document in own for entry in _includes(document)]
    if own:
        waiting += [(own[0], (), name) for name in always]
    while waiting:
        document, place, name = waiting.pop(0)
        if name in found:
            continue
        entry = taken.get(name) or shelf.get(name)
        if entry is None:
            names = {**shelf, **taken}
            told = (shown(place, name), f"one of {listed(names)}", f"Name one of them.{did_you_mean(name, names)}")
            problems.append(document.problem(place, "unknown_include", *told))
            continue
        file = f"{label}/{name}.yaml" if name in taken else f"catalog/anchors/{name}.yaml"
        included, wrong = yaml_lines.parse(entry.read_text(encoding="utf-8"), file)
        problems += wrong
        if included:
            problems += shape(included)
            found[name] = included
            waiting += [(included, *entry) for entry in _includes(included)]
    return sorted(found.values(), key=lambda one: not one.file.startswith(label)), problems


def _includes(document: Document) -> Iterator[tuple[Place, str]]:
    value = document.data.get("include")
    if isinstance(value, str):
        yield ("include",), value
    for index, name in enumerate(value if isinstance(value, list) else ()):
        if isinstance(name, str):
            yield ("include", index), name


def rules_of(document: Document) -> Iterator[RuleDocument]:
    rules = document.data.get("rules")
    for index, rule in enumerate(rules if isinstance(rules, list) else ()):
        if isinstance(rule, dict) and isinstance(rule.get("id"), str):
            yield RuleDocument(rule["id"], rule, document, ("rules", index))


def shape(document: Document) -> list[Problem]:
    """Only the frame is checked here; what a rule may say is the gate's to know."""
    say, data = document.problem, document.data
    problems = [
        say(
            (key,),
            "unknown_key",
            "a key nobody reads",
            f"one of {listed(KEYS)}",
            f"Remove it.{did_you_mean(key, KEYS)}",
        )
        for key in data
        if key not in KEYS
    ]
    if not {"include", "note", *PARTS} & set(data):
        expected = f"one of {listed(('include', 'note', *PARTS))}"
        problems.append(say((), "missing_key", "a document that says nothing", expected, "Add `rules:` or `include:`."))
    if not isinstance(data.get("privileged", False), bool):
        problems.append(say(("privileged",), "wrong_type", "another value", "true or false", "Mend it."))
    engines = data.get("engines", [])
    if not isinstance(engines, list) or not all(isinstance(engine, dict) for engine in engines):
        problems.append(say(("engines",), "wrong_type", "another shape", "a list of engines", "Write `- kind: …`."))
    if "version" in data and not isinstance(data["version"], str):
        problems.append(say(("version",), "wrong_type", "a value that is not text", "text", "Put it in quotes."))
    include = data.get("include", [])
    if not isinstance(include, str) and not (isinstance(include, list) and all(isinstance(n, str) for n in include)):
        problems.append(
            say(("include",), "wrong_type", "another shape", "a name or a list of names", "Name documents.")
        )
    rules = data.get("rules", [])
    if not isinstance(rules, list):
        return [*problems, say(("rules",), "wrong_type", "another shape", "a list of rules", "Write `- id: …`.")]
    for index, rule in enumerate(rules):
        if not isinstance(rule, dict) or not isinstance(rule.get("id"), str):
            problems.append(say(("rules", index), "missing_key", "a rule without an id", "an id", "Add `id:` as text."))
    return problems


def _twice(rules: list[RuleDocument]) -> list[Problem]:
    first: dict[str, RuleDocument] = {}
    problems = []
    for rule in rules:
        if rule.id in first:
            where = f"{first[rule.id].file}:{first[rule.id].line}"
            problems.append(
                rule.problem(("id",), "duplicate_id", f"{rule.id}, already at {where}", "each id once", "Rename one.")
            )
        first.setdefault(rule.id, rule)
    return problems
