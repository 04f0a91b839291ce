"""From a rule as written to a rule as decided with: every problem at once, each with its line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidings.errors import Problem
from tidings.gate.calendars import LIBRARY, Calendars
from tidings.gate.categories import kinds
from tidings.gate.clocks import MAX_AMOUNT, ORIGINS, Clock
from tidings.gate.facts import ANCHORS, FACTS, MANY, RECIPIENT_FACTS, Fact, Value, fact_named, nearest
from tidings.gate.rules import (
    ACKS,
    REACHES,
    SEMANTICS,
    VERDICTS,
    Compare,
    Condition,
    Effect,
    Either,
    Every,
    Example,
    Measure,
    Not,
    Rule,
)
from tidings.gate.statutes import Statute
from tidings.yaml_lines import Document, Place

MAX_DEPTH = 8
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_RULE_KEYS = {"id", "anchor", "statutes", "scope", "when", "effect", "examples", "why"}
_OUTCOMES = ("allow", "deny", "defer", "review")
_EFFECT_KEYS = {*_OUTCOMES, "redact", "semantics", "priority", "deadline", "ack", "retention", "reach", "tags"}
_DEADLINE_KEYS = {*MAX_AMOUNT, "business", "calendar", "from", "roll", "statute", "sla"}
_OPERATORS = ("is", "is_not", "in", "not_in")
_MEASURES = ("at_least", "below")
_TAG = re.compile(r"[a-z0-9][a-z0-9.-]{0,39}")
_SELECTOR = re.compile(r"(class|category|kind):[a-z_.]{1,100}")
MAX_TAGS = 12


@dataclass
class Reading:
    """One document being read; what is wrong piles up here so that a person sees all of it."""

    document: Document
    statutes: Mapping[str, Statute]
    calendars: Calendars = LIBRARY
    problems: list[Problem] = field(default_factory=list)

    def rule(self, place: Place, entry: object) -> Rule | None:
        """The rule at `place`; with problems beside it, it is only good for being looked at."""
        if not self._mapping(place, entry, _RULE_KEYS) or not isinstance(entry, dict):
            return None
        name, anchor = entry.get("id"), entry.get("anchor")
        if not isinstance(name, str) or not _ID.fullmatch(name):
            self._wrong((*place, "id"), "rule_id", repr(name), "lower-case words and dashes", "Give the rule a name.")
        if anchor not in ANCHORS:
            self._choice((*place, "anchor"), anchor, ANCHORS)
        scope = self._condition((*place, "scope"), entry["scope"]) if "scope" in entry else Every(())
        when = self._condition((*place, "when"), entry["when"]) if "when" in entry else Every(())
        if "when" not in entry and "scope" not in entry:
            self._wrong((*place, "when"), "missing", "no `when:` and no `scope:`", "a condition", "Say when it holds.")
        return Rule(
            id=str(name),
            anchor=str(anchor),
            scope=scope,
            when=when,
            effect=self._effect((*place, "effect"), entry.get("effect")),
            statutes=self._statutes((*place, "statutes"), entry.get("statutes", [])),
            examples=self._examples((*place, "examples"), entry.get("examples")),
            file=self.document.file,
            line=self.document.line(place),
            scoped="scope" in entry,
        )

    def _condition(self, place: Place, entry: object, depth: int = 0) -> Condition:
        if depth > MAX_DEPTH:
            self._wrong(place, "too_deep", f"conditions nested deeper than {MAX_DEPTH}", "less", "Split the rule.")
            return Every(())
        if not isinstance(entry, dict) or not entry:
            self._wrong(place, "condition", "no condition", "all, any, not, fact or recipient", "Write one of them.")
            return Every(())
        for word, make in (("all", Every), ("any", Either)):
            if word in entry:
                self._only(place, entry, {word})
                return make(self._conditions((*place, word), entry[word], depth))
        if "not" in entry:
            self._only(place, entry, {"not"})
            return Not(self._condition((*place, "not"), entry["not"], depth + 1))
        return self._comparison(place, entry)

    def _conditions(self, place: Place, entries: object, depth: int) -> tuple[Condition, ...]:
        if not isinstance(entries, list) or not entries:
            self._wrong(place, "condition", "an empty or missing list", "a list of conditions", "Write at least one.")
            return ()
        return tuple(self._condition((*place, index), entry, depth + 1) for index, entry in enumerate(entries))

    def _comparison(self, place: Place, entry: dict[str, object]) -> Condition:
        recipient = "recipient" in entry
        self._only(place, entry, {"recipient" if recipient else "fact", *_OPERATORS, *_MEASURES})
        name = str(entry.get("recipient" if recipient else "fact", ""))
        fact = fact_named(name, recipient)
        if fact is None:
            expected = nearest(name, recipient)
            self._wrong(place, "unknown_fact", name or "no fact", expected, "A rule can only ask what is known.")
            return Every(())
        if fact.kind == "number":
            return self._measure(place, entry, fact)
        used = [operator for operator in _OPERATORS if operator in entry]
        if len(used) != 1:
            found = " and ".join(used) or "no comparison"
            self._wrong(place, "comparison", found, "exactly one of is, is_not, in, not_in", "Keep one of them.")
            return Every(())
        value = entry[used[0]]
        if used[0] in ("in", "not_in") and not isinstance(value, list):
            self._wrong(
                (*place, used[0]), "not_a_list", repr(value), "a list of values", f"Write {used[0]}: [{value}]."
            )
            return Every(())
        values: list[Any] = value if isinstance(value, list) else [value]
        for item in values:
            self._value((*place, used[0]), fact, item)
        return Compare(name, tuple(values), used[0] in ("is_not", "not_in"), recipient)

    def _measure(self, place: Place, entry: dict[str, object], fact: Fact) -> Condition:
        used = [operator for operator in _MEASURES if operator in entry]
        line = entry.get(used[0]) if used else None
        if len(used) != 1 or not isinstance(line, int | float) or isinstance(line, bool):
            self._wrong(place, "comparison", str(line), "one of at_least, below with a number", "Write one of them.")
            return Every(())
        return Measure(fact.name, float(line), used[0] == "below")

    def _value(self, place: Place, fact: Fact, value: object) -> None:
        if not fact.accepts(value) and not (fact.name in MANY and value == "*"):
            self._wrong(place, "fact_value", f"{fact.name}: {value!r}", fact.expected(), "Mend the value.")

    def _effect(self, place: Place, entry: object) -> Effect:
        if not self._mapping(place, entry, _EFFECT_KEYS) or not isinstance(entry, dict) or not entry:
            if entry == {}:
                self._wrong(place, "missing", "an empty effect", "what the rule does", "Write an effect.")
            return Effect()
        outcomes = [word for word in _OUTCOMES if word in entry]
        if len(outcomes) > 1:
            self._wrong(place, "outcome", " and ".join(outcomes), "at most one outcome", "Split the rule.")
        outcome = outcomes[0] if outcomes else ""
        reason = entry.get(outcome, "")
        if outcome and (not isinstance(reason, str) or not reason.strip()):
            expected = "the reason in plain words"
            self._wrong((*place, outcome), "no_reason", repr(reason), expected, f'Write {outcome}: "because …".')
        clocks, sla = self._deadline((*place, "deadline"), entry["deadline"]) if "deadline" in entry else ((), False)
        return Effect(
            outcome="defer" if outcome == "review" else outcome,
            review=outcome == "review",
            tags=self._tags((*place, "tags"), entry.get("tags", [])),
            reason=str(reason),
            redact=self._redact((*place, "redact"), entry.get("redact", [])),
            semantics=self._optional((*place, "semantics"), entry.get("semantics"), SEMANTICS),
            priority=self._priority((*place, "priority"), entry.get("priority")),
            clocks=clocks,
            sla=sla,
            ack=self._optional((*place, "ack"), entry.get("ack"), ACKS),
            retention=str(entry.get("retention") or ""),
            reach=self._optional((*place, "reach"), entry.get("reach"), REACHES) or "subscribed",
        )

    def _deadline(self, place: Place, entry: object) -> tuple[tuple[Clock, ...], bool]:
        if not self._mapping(place, entry, _DEADLINE_KEYS) or not isinstance(entry, dict):
            return (), False
        origin, calendar = entry.get("from", "request"), entry.get("calendar", "weekends")
        if origin not in ORIGINS:
            self._choice((*place, "from"), origin, ORIGINS)
        if calendar not in self.calendars:
            self._choice((*place, "calendar"), calendar, tuple(self.calendars))
        units = [unit for unit in (*MAX_AMOUNT, "statute", "sla") if unit in entry]
        if len(units) != 1:
            expected = "exactly one of " + ", ".join((*MAX_AMOUNT, "statute", "sla"))
            self._wrong(place, "deadline", " and ".join(units) or "no amount", expected, "Keep one of them.")
            return (), False
        if units[0] == "sla":
            return (), True
        if units[0] == "statute":
            statute = self.statutes.get(str(entry["statute"]))
            if statute is None:
                self._unknown_statute((*place, "statute"), entry["statute"])
                return (), False
            if statute.bound != "deadline":
                found = f"{statute.id}, whose window is no deadline but a {statute.bound}"
                self._wrong((*place, "statute"), "deadline", found, "a statute with a deadline", "Cite it only.")
            return statute.clocks(str(origin)), statute.needs_sla
        unit, amount = units[0], entry[units[0]]
        if type(amount) is not int or not 0 < amount <= MAX_AMOUNT[unit]:
            wants = f"a whole number from 1 to {MAX_AMOUNT[unit]:,}"
            self._wrong((*place, unit), "amount", repr(amount), wants, "Mend the amount.")
            return (), False
        if entry.get("business"):
            if unit != "days" or amount > MAX_AMOUNT["business_days"]:
                expected = f"days up to {MAX_AMOUNT['business_days']}"
                self._wrong(place, "business", f"business with {amount} {unit}", expected, "Mend the deadline.")
            unit = "business_days"
        return (Clock(unit, amount, str(origin), str(calendar), bool(entry.get("roll"))),), False

    def _statutes(self, place: Place, entries: object) -> tuple[str, ...]:
        if not isinstance(entries, list):
            self._wrong(place, "not_a_list", repr(entries), "a list of statute ids", "Write it as a list.")
            return ()
        for index, name in enumerate(entries):
            if name not in self.statutes:
                self._unknown_statute((*place, index), name)
        return tuple(str(name) for name in entries)

    def _unknown_statute(self, place: Place, name: object) -> None:
        expected = "a statute of the catalogue or of policy/statutes/"
        self._wrong(place, "unknown_statute", str(name), expected, "Mend the id or add the statute with its source.")

    def _redact(self, place: Place, entries: object) -> tuple[str, ...]:
        if not isinstance(entries, list) or not all(isinstance(name, str) and name for name in entries):
            self._wrong(place, "redact", repr(entries), "a list of field names", "Name the fields.")
            return ()
        for index, name in enumerate(entries):
            word, colon, _ = name.partition(":")
            if colon and (not _SELECTOR.fullmatch(name) or (word == "kind" and name[5:] not in kinds())):
                expected = f"a field, class:NAME, category:LABEL or kind:NAME ({', '.join(kinds())})"
                self._wrong((*place, index), "redact", name, expected, "Mend the selector.")
        return tuple(sorted(set(entries)))

    def _tags(self, place: Place, entries: object) -> tuple[str, ...]:
        fits = isinstance(entries, list) and len(entries) <= MAX_TAGS
        if not fits or not all(isinstance(tag, str) and _TAG.fullmatch(tag) for tag in entries):  # type: ignore[attr-defined]
            expected = f"at most {MAX_TAGS} tags of small letters, digits, dots and dashes"
            self._wrong(place, "tags", repr(entries), expected, "Mend the tags.")
            return ()
        return tuple(sorted(set(entries)))  # type: ignore[call-overload]

    def _priority(self, place: Place, value: object) -> int | None:
        if value is None or (type(value) is int and 0 <= value <= 9):
            return value
        self._wrong(place, "priority", repr(value), "a whole number from 0 (first) to 9", "Mend the priority.")
        return None

    def _examples(self, place: Place, entries: object) -> tuple[Example, ...]:
        if not isinstance(entries, list) or not entries:
            self._wrong(place, "no_examples", "no examples", "at least one", "Examples are a rule's tests; write one.")
            return ()
        return tuple(e for i, entry in enumerate(entries) if (e := self._example((*place, i), entry)) is not None)

    def _example(self, place: Place, entry: object) -> Example | None:
        if not self._mapping(place, entry, {"given", "to", "gives"}) or not isinstance(entry, dict):
            return None
        given, to, gives = entry.get("given", {}), entry.get("to", {}), entry.get("gives")
        for key, facts, words in (("given", given, FACTS), ("to", to, RECIPIENT_FACTS)):
            if not isinstance(facts, dict):
                self._wrong((*place, key), "not_a_mapping", repr(facts), "facts and their values", "Write them.")
                return None
            for name, value in facts.items():
                if name not in words:
                    expected = nearest(name, key == "to")
                    self._wrong((*place, key, name), "unknown_fact", name, expected, "Mend the example.")
                elif name not in MANY:
                    self._value((*place, key, name), words[name], value)
        if gives not in VERDICTS:
            self._choice((*place, "gives"), gives, VERDICTS)
        plain: dict[str, Value] = dict(given)
        return Example(plain, to, str(gives), self.document.line(place))

    def _mapping(self, place: Place, entry: object, keys: set[str]) -> bool:
        if not isinstance(entry, dict):
            found = "nothing" if entry is None else "a plain value or a list"
            self._wrong(place, "not_a_mapping", found, "keys: " + ", ".join(sorted(keys)), "Write it as a mapping.")
            return False
        self._only(place, entry, keys)
        return True

    def _only(self, place: Place, entry: Mapping[str, object], keys: set[str]) -> None:
        for key in entry:
            if key not in keys:
                expected = "one of " + ", ".join(sorted(keys))
                self._wrong((*place, key), "unknown_key", key, expected, "Remove or rename it.")

    def _optional(self, place: Place, value: object, choices: tuple[str, ...]) -> str:
        if value is None or value in choices:
            return str(value or "")
        self._choice(place, value, choices)
        return ""

    def _choice(self, place: Place, value: object, choices: tuple[str, ...]) -> None:
        self._wrong(place, "choice", repr(value), "one of " + ", ".join(choices), "Choose one of them.")

    def _wrong(self, place: Place, code: str, found: str, expected: str, what_now: str) -> None:
        self.problems.append(self.document.problem(place, code, found, expected, what_now))
