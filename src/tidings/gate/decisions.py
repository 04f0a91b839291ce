"""The decision table: every situation a policy version has met and what was decided, kept as JSON Lines and only ever appended to.

The content is a function of the policy and the situations: a run that is repeated writes the same bytes. A line that was torn by a
crash is cut off when the table is opened, because nothing was built on it.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tidings.errors import Damaged, SourceStopped
from tidings.gate.decide import decide_all, situation_id
from tidings.gate.facts import Value, complete
from tidings.gate.policy import Policy

MAX_SITUATIONS = 10_000


class DecisionTable:
    """The decisions of one policy version. Open it once; `extend` it with what a batch met and did not know.

    `looking` is for whoever reads beside the process that extends it: a last line that is not whole is left to that process.
    """

    def __init__(self, folder: Path, policy: Policy, looking: bool = False) -> None:
        self.policy, self._looking = policy, looking
        self.path = folder / f"{policy.digest}.jsonl"
        self.rows: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            self._open()

    def extend(self, situations: Iterable[Mapping[str, Any]]) -> int:
        """Decides the situations that are new, makes them durable, and says how many there were."""
        kept = [{name: complete(each)[name] for name in self.policy.facts} for each in situations]
        fresh = {situation_id(self.policy.version, facts): facts for facts in kept}
        fresh = {name: fresh[name] for name in sorted(fresh) if name not in self.rows}
        if not fresh:
            return 0
        if len(self.rows) + len(fresh) > MAX_SITUATIONS:
            raise self._exploded(list(fresh.values()))
        rows = [decide_all(self.policy, facts) for facts in fresh.values()]
        self._append(rows)
        self.rows |= {row["situation"]: row for row in rows}
        return len(rows)

    def _open(self) -> None:
        raw = self.path.read_bytes()
        whole, _, torn = raw.rpartition(b"\n")
        if torn and not self._looking:
            with self.path.open("r+b") as file:
                file.truncate(len(whole) + 1 if whole else 0)
                os.fsync(file.fileno())
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                row = json.loads(line)
                self.rows[row["situation"]] = row
            except (ValueError, KeyError, TypeError):
                found = f"line {number} of {self.path.name} is not a decision"
                raise Damaged("decision_table", found, "one decision per line", "Restore the file.") from None

    def _append(self, rows: list[dict[str, Any]]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(row, separators=(",", ":"), ensure_ascii=False) + "\n" for row in rows)
        with self.path.open("ab") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _exploded(self, fresh: list[dict[str, Value]]) -> SourceStopped:
        every = [row["facts"] for row in self.rows.values()] + fresh
        spread = {name: len({facts[name] for facts in every}) for name in self.policy.facts}
        worst = max(spread, key=lambda name: spread[name])
        return SourceStopped(
            "situations_explode",
            f"{len(every):,} situations; the fact {worst} alone has {spread[worst]:,} values",
            f"at most {MAX_SITUATIONS:,} situations under one policy",
            f"Remove {worst} from the rules, or map its values to fewer, then start the source again.",
        )


class Decided:
    """Decisions by reference, of every policy version that a data folder has met; what was appended since is read when it is missed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows: dict[str, dict[str, Any]] = {}
        self._choices: dict[str, dict[str, dict[str, Any]]] = {}
        self._read: dict[Path, int] = {}
        self._lock = threading.Lock()

    def get(self, reference: str) -> dict[str, Any] | None:
        if reference not in self._rows:
            with self._lock:
                self._catch_up()
        return self._rows.get(reference)

    def every(self) -> Mapping[str, dict[str, Any]]:
        """All decisions of the folder as they now stand."""
        with self._lock:
            self._catch_up()
            return dict(self._rows)

    def choices(self, reference: str) -> Mapping[str, Mapping[str, Any]]:
        """Subscriber → what was decided for it."""
        if reference not in self._choices:
            row = self.get(reference)
            if row is None:
                found = f"a journal row that refers to the decision {reference}, which is not in {self.folder}"
                raise Damaged("decision_table", found, "the decision", "Restore the folder of decisions.")
            self._choices[reference] = {each["subscriber"]: each for each in row["recipients"]}
        return self._choices[reference]

    def recipients(self, row: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Everybody a journal row concerns, with what was decided and until when they must know."""
        due = dict(row["deadlines"] or ())
        chosen = self.choices(row["decision"])
        return [{**chosen[name], "deadline": due.get(name)} for name in row["recipients"] or ()]

    def retention(self) -> frozenset[str]:
        """The statutes that any decision here named for its proof."""
        with self._lock:
            self._catch_up()
        named = (each.get("retention") or () for row in self._rows.values() for each in row["recipients"])
        return frozenset(name for names in named for name in names)

    def _catch_up(self) -> None:
        for path in sorted(self.folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                whole = file.read().rpartition(b"\n")[0]
            rows = [json.loads(line) for line in whole.splitlines()]
            self._rows |= {row["situation"]: row for row in rows}
            self._read[path] = self._read.get(path, 0) + (len(whole) + 1 if whole else 0)


@cache
def decided_in(folder: Path) -> Decided:
    """One reader per folder and process: references stay valid for ever."""
    return Decided(folder)
