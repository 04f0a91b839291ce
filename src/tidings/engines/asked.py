"""One engine as the gate sees it: which facts it is given, what names its answers, and that it never raises."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidings.engines.answers import Broken, Unanswered
from tidings.engines.findings import failed, rules_of, weighed
from tidings.gate.facts import DERIVED, FACTS, MANY, PAIRED, RECIPIENT_FACTS, UNKNOWN, Value, known
from tidings.gate.policy import ALWAYS
from tidings.gate.rules import RecipientFacts, Verdict
from tidings.gate.statutes import Statute

PATIENCE = 3  # unanswered questions in a row before the engine is left alone
REST_S = 10.0


@dataclass
class Asked:
    """`ask` turns a question into findings, or says why not. An engine that answers nobody is not asked again at once."""

    kind: str
    digest: str
    facts: frozenset[str]
    anchors: tuple[str, ...]
    statutes: Mapping[str, Statute] = field(repr=False)
    ask: Callable[[Mapping[str, Any]], object] = field(repr=False)
    _unanswered: int = 0
    _rests_until: float = 0.0

    def verdicts(self, facts: Mapping[str, Value], recipient: RecipientFacts) -> list[Verdict]:
        try:
            found = self._answer(question(self.facts, facts, recipient))
            return weighed(rules_of(found, self.anchors, self.statutes), facts, recipient)
        except Broken as broken:
            return failed(self.kind, self.anchors, str(broken))
        except Exception as error:
            return failed(self.kind, self.anchors, f"an unexpected {type(error).__name__}")

    def _answer(self, asked: Mapping[str, Any]) -> object:
        if self._unanswered >= PATIENCE and time.monotonic() < self._rests_until:
            raise Unanswered("it did not answer before and is left alone for a while")
        try:
            found = self.ask(asked)
        except Unanswered:
            self._unanswered += 1
            self._rests_until = time.monotonic() + REST_S
            raise
        self._unanswered = 0
        return found


def roots(names: frozenset[str]) -> frozenset[str]:
    """The facts that must be part of a situation for these to be: a derived one stands for what it follows from."""
    return frozenset(root for name in names for root in (DERIVED[name][1] if name in DERIVED else (name,)))


def question(given: frozenset[str], facts: Mapping[str, Value], recipient: RecipientFacts) -> dict[str, Any]:
    """What an engine is told. Only what makes the situation, so that the same situation always gets the same answer."""
    have = given | ALWAYS
    told: dict[str, Any] = {name: known(facts.get(name)) for name in FACTS if name in have}
    told |= {name: known(facts.get(name)) if have.issuperset(of) else None for name, (_, of) in DERIVED.items()}
    about: dict[str, Any] = {}
    for name in RECIPIENT_FACTS:
        value = recipient.get(name) if name == "approved" or have.issuperset(PAIRED.get(name, ())) else None
        if name in MANY:
            about[name] = list(value) if isinstance(value, list | tuple | frozenset) else []
        else:
            about[name] = None if value == UNKNOWN else value
    return {"facts": told, "recipient": about}
