"""The `engines:` of the operator's policy documents: read, checked and compiled before anything starts."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidings.engines.answers import Broken
from tidings.engines.asked import Asked, roots
from tidings.engines.worker import Worker
from tidings.errors import Problem
from tidings.gate.facts import ANCHORS, DERIVED, FACTS, RECIPIENT_FACTS, nearest
from tidings.gate.statutes import Statute
from tidings.reading import did_you_mean, listed
from tidings.yaml_lines import Document, Place

if TYPE_CHECKING:
    from tidings.settings import Settings

LOCAL = ("rego", "cedar", "casbin", "oso")
SERVED = ("opa", "cerbos")
KEYS = ("kind", "facts", "anchor", "timeout_ms", "files", "url", "revision")
TIMEOUT_MS = 1_000
MAX_TIMEOUT_MS = 30_000
MAX_BYTES = 1_000_000


def configured(settings: Settings, statutes: Mapping[str, Statute]) -> tuple[tuple[Asked, ...], list[Problem]]:
    """Every engine that can be asked, and what is wrong with the others."""
    engines, problems = [], []
    for document in settings.policies.documents:
        entries = document.data.get("engines")
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            if isinstance(entry, dict):
                reading = _Reading(document, ("engines", index), entry, settings)
                engine = reading.engine(statutes)
                problems += reading.problems
                engines += [engine] if engine is not None else []
    return tuple(engines), problems


class _Reading:
    def __init__(self, document: Document, place: Place, entry: dict[str, Any], settings: Settings) -> None:
        self.document, self.place, self.entry, self.settings = document, place, entry, settings
        self.problems: list[Problem] = []

    def engine(self, statutes: Mapping[str, Statute]) -> Asked | None:
        kind = self.entry.get("kind")
        if kind not in (*LOCAL, *SERVED):
            self._wrong(("kind",), "choice", repr(kind), f"one of {listed((*LOCAL, *SERVED))}", "Choose one of them.")
            return None
        for key in self.entry:
            if key not in KEYS or key in (("url", "revision") if kind in LOCAL else ("files",)):
                what_now = f"Remove it.{did_you_mean(key, KEYS)}"
                self._wrong(
                    (key,), "unknown_key", f"a key that {kind} does not take", f"one of {listed(KEYS)}", what_now
                )
        facts, anchors, seconds = self._facts(), self._anchors(), self._timeout()
        source = self._files() if kind in LOCAL else {key: self._text(key) for key in ("url", "revision")}
        if self.problems:
            return None
        if kind in LOCAL:
            ask = self._compiled(kind, source, facts, seconds)
        else:
            connect = import_module(f"tidings.engines.{kind}").connect
            ask = connect(source["url"], source["revision"], seconds, self.settings.network.allow)
        if ask is None:
            return None
        # The laws too: what a finding cites is looked up when it is found.
        said = [kind, sorted(facts), anchors, source, repr(sorted(statutes.items()))]
        digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
        return Asked(kind, digest, roots(facts), anchors, statutes, ask)

    def _compiled(self, kind: str, files: dict[str, str], facts: frozenset[str], seconds: float) -> Worker | None:
        adapter = import_module(f"tidings.engines.{kind}")
        if find_spec(adapter.MODULE) is None:
            what_now = f"pip install 'tidings[{adapter.EXTRA}]'"
            self._wrong(("kind",), "extra_missing", f"no {kind} engine", f"the extra `{adapter.EXTRA}`", what_now)
            return None
        if kind == "rego":
            self._named(files, adapter.NAMES, facts)
        worker = Worker(kind, files, seconds)
        try:
            worker.load()
        except Broken as broken:
            self._wrong(("files",), "policy_broken", str(broken), f"a policy that {kind} can read", "Mend the policy.")
        return None if self.problems else worker

    def _named(self, files: Mapping[str, str], names: re.Pattern[str], facts: frozenset[str]) -> None:
        """In Rego a name that does not exist is undefined, and what is undefined objects to nothing: it must not get that far."""
        told = {"facts": {*facts, *roots(facts), *DERIVED, "change_type", "operation", "entity"}}
        told["recipient"] = set(RECIPIENT_FACTS)
        for file, text in files.items():
            for found in names.finditer(text):
                part, name = found[1], found[2] or found[3]
                if not found[0].startswith("input") or (part is not None and name in told[part]):
                    continue
                line = text.count("\n", 0, found.start()) + 1
                expected = f"input.facts or input.recipient and one of {listed(told[part or 'facts'])}"
                what_now = "Mend the name, or add the fact to `facts:`."
                self.problems.append(Problem(file, line, found[0], "unknown_fact", found[0], expected, what_now))

    def _facts(self) -> frozenset[str]:
        names = self.entry.get("facts")
        if not isinstance(names, list):
            self._wrong(
                ("facts",), "missing_key", "no list of facts", "the facts the policy looks at", "Write `facts:`."
            )
            return frozenset()
        for index, name in enumerate(names):
            if name not in FACTS and name not in DERIVED:
                self._wrong(
                    ("facts", index), "unknown_fact", str(name), nearest(str(name), recipient=False), "Mend the name."
                )
        return frozenset(str(name) for name in names)

    def _anchors(self) -> tuple[str, ...]:
        value = self.entry.get("anchor", "privacy")
        names = value if isinstance(value, list) and value else [value]
        for name in names:
            if name not in ANCHORS:
                self._wrong(("anchor",), "choice", repr(name), f"one of {listed(ANCHORS)}", "Choose one of them.")
        return tuple(map(str, names))

    def _timeout(self) -> float:
        value = self.entry.get("timeout_ms", TIMEOUT_MS)
        if type(value) is not int or not 0 < value <= MAX_TIMEOUT_MS:
            wants = f"a whole number from 1 to {MAX_TIMEOUT_MS:,}"
            self._wrong(("timeout_ms",), "wrong_value", repr(value), wants, "Mend the number.")
            return 0.0
        return value / 1000

    def _text(self, key: str) -> str:
        value = self.entry.get(key)
        if not isinstance(value, str) or not value:
            self._wrong((key,), "missing_key", f"no {key}", f"`{key}:` as text", "Add it.")
        return str(value)

    def _files(self) -> dict[str, str]:
        names = self.entry.get("files")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            self._wrong(
                ("files",), "missing_key", "no list of files", "the policy's files", "Write `files: [policy/…]`."
            )
            return {}
        found = {}
        for index, name in enumerate(names):
            try:
                found[name] = self._read(self.settings.directory, name)
            except (OSError, ValueError) as error:
                said = str(error) if type(error) is ValueError else "a file that cannot be read as text"
                expected = "a text file inside the operator's folder"
                self._wrong(("files", index), "unreadable", f"{name}: {said}", expected, "Mend the path or the file.")
        return found

    @staticmethod
    def _read(folder: Path, name: str) -> str:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise ValueError("a path that leads outside")
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES:,} bytes")
        return path.read_text(encoding="utf-8")

    def _wrong(self, path: Place, code: str, found: str, expected: str, what_now: str) -> None:
        self.problems.append(self.document.problem((*self.place, *path), code, found, expected, what_now))
