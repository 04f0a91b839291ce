"""The gate at send: the decision is taken again with what is known of the person now. No Spark.

What was allowed when the event was journaled may have been withdrawn since, or a stricter policy may have come into force. Only rows of `subjects` that were committed after the
oldest member was journaled are read: older ones were part of its decision already. What leaves all the same leaves without the fields
that the policy keeps from its recipient by now.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow.dataset as ds

from tidings.gate.decide import Decision, decide
from tidings.gate.decisions import DecisionTable, decided_in
from tidings.gate.facts import known_facts
from tidings.gate.policy import FAILED
from tidings.store import Store

SLACK_S = 60.0  # clocks of the disk and of the process may differ by this much


class Judged(NamedTuple):
    """What the policy says of one pair now."""

    outcome: str
    reason: str
    review: bool = False  # only a person is waited for
    redact: frozenset[str] = frozenset()


class Again:
    """Members about to be sent → those that may not leave any more, with the reason."""

    def __init__(
        self,
        store: Store,
        table: DecisionTable,
        resolved: Callable[[], Mapping[str, frozenset[str]]] = dict,
        in_force_since: float = 0.0,
    ) -> None:
        self.store, self.table, self.resolved, self.in_force_since = store, table, resolved, in_force_since
        self.recipients = {one.subscriber: one for one in table.policy.recipients}
        self._kept = lru_cache(maxsize=50_000)(self._judge)

    def __call__(self, members: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Any]:
        news = self._news({bytes(m["tag"]) for m in members}, min(m["since"] for m in members) - SLACK_S)
        # Something was learnt about the person, or the policy is another than the one it was decided with.
        asked = [m for m in members if bytes(m["tag"]) in news or m["since"] < self.in_force_since]
        decided = self._decisions(asked) if asked else {}
        verdicts: dict[tuple[str, str], Any] = {}
        for member in asked:
            decision = decided.get(member["event_id"])
            if decision is None:
                continue
            consents = news.get(bytes(member["tag"]), ())
            verdicts[member["lane"], member["event_id"]] = self.verdict(decision, consents, member["lane"])
        return verdicts

    def standing(self, people: Iterable[tuple[bytes, float]]) -> dict[bytes, tuple[tuple[str, str], ...]]:
        """Tag → consents as they now stand, of those about whom something was learnt since the oldest of these events."""
        asked = list(people)
        return self._news({tag for tag, _ in asked}, min(at for _, at in asked) - SLACK_S) if asked else {}

    def alike(self, since: float) -> bool:
        """Is the policy still the one that an event of that time was decided with?"""
        return since >= self.in_force_since

    def verdict(self, decision: str, consents: tuple[tuple[str, str], ...], lane: str) -> Any:
        """How a pair ends and why, "defer", or the fields that must not go with it."""
        judged = self._judged(decision, consents, lane)
        if judged.outcome == "deny":
            return ("refused", judged.reason)
        return "defer" if self._waits(decision, judged) else judged.redact

    def _waits(self, decision: str, judged: Judged) -> bool:
        """A situation of an older policy lacks facts that nobody can add; it waits only while an engine gives no answer."""
        return judged.outcome == "defer" and (decision in self.table.rows or judged.reason.startswith(FAILED))

    def newly(self, members: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Any]:
        """Pairs that nobody decided about when the event was journaled: they leave only when the policy in force allows it."""
        if not members:
            return {}
        news = self._news({bytes(m["tag"]) for m in members}, 0.0)
        decided, verdicts = self._decisions(members), {}
        for member in members:
            known = news.get(bytes(member["tag"]), ())
            judged = self._judged(decided[member["event_id"]], known, member["lane"])
            allowed = judged.outcome == "allow"
            verdicts[member["lane"], member["event_id"]] = judged.redact if allowed else ("refused", judged.reason)
        return verdicts

    def concerned(self, decision: str, entity: str, change_type: str, lane: str) -> Decision | None:
        """What the policy in force says of a subscriber that was not there; None when the event does not concern it."""
        row, recipient = self._row(decision), self.recipients.get(lane)
        if row is None or recipient is None or not recipient.holds(entity):
            return None
        found = decide(self.table.policy, row["facts"], recipient)
        return found if recipient.subscribed(change_type) or found.reach != "subscribed" else None

    def _row(self, decision: str) -> Mapping[str, Any] | None:
        return self.table.rows.get(decision) or decided_in(self.table.path.parent).get(decision)

    def deferred(self, members: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Any]:
        """Deferred pairs that can be decided by now: allowed, or refused with the reason; the rest goes on waiting."""
        news = self._news({bytes(m["tag"]) for m in members}, min(m["since"] for m in members) - SLACK_S)
        decided, resolved = self._decisions(members), self.resolved()
        verdicts: dict[tuple[str, str], Any] = {}
        for member in members:
            place, decision = (member["lane"], member["event_id"]), decided.get(member["event_id"])
            said = resolved.get(member["event_id"], frozenset())
            if decision is None:
                continue
            if "drop" in said:
                verdicts[place] = ("superseded", "conflict_dropped")
                continue
            judged = self._judged(decision, news.get(bytes(member["tag"]), ()), member["lane"], said)
            if judged.outcome != "defer":
                verdicts[place] = "allow" if judged.outcome == "allow" else ("refused", judged.reason)
            elif judged.review and "refuse" in said:
                verdicts[place] = ("refused", "review_refused")
        return verdicts

    def reviewable(self, members: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Judged]:
        """The deferred pairs that wait for a person's review alone."""
        if not members:
            return {}
        news = self._news({bytes(m["tag"]) for m in members}, min(m["since"] for m in members) - SLACK_S)
        words, found = self.resolved(), {}
        for member in members:
            said = words.get(member["event_id"], frozenset()) - {"release", "refuse"}
            judged = self._judged(member["decision"], news.get(bytes(member["tag"]), ()), member["lane"], said)
            if judged.review:
                found[member["lane"], member["event_id"]] = judged
        return found

    def _news(self, tags: set[bytes], since: float) -> dict[bytes, tuple[tuple[str, str], ...]]:
        """Tag → consents as they now stand, for people about whom something was learnt since."""
        files = [f for f in self.store.files("subjects") if os.stat(f.path).st_mtime >= since]
        if not files:
            return {}
        rows = self.store.lookup("subjects", tags, files).to_pylist()
        newest = {row["tag"]: row for row in sorted(rows, key=lambda row: row["version"] or "")}
        return {tag: tuple(sorted(dict(row["consents"] or ()).items())) for tag, row in newest.items()}

    def _decisions(self, members: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Event id → the situation it was decided in."""
        found: dict[str, str] = {}
        for source, generation in {(m["source"], m["generation"]) for m in members}:
            offsets = [m["offset"] for m in members if (m["source"], m["generation"]) == (source, generation)]
            files = self.store.files(
                "journal", "offset", min(offsets) - 1, where={"source": source, "generation": generation}
            )
            look = (
                (ds.field("source") == source)
                & (ds.field("generation") == generation)
                & ds.field("offset").isin(offsets)
            )
            rows = self.store.arrow("journal", ["event_id", "decision"], files=files, filter=look).to_pylist()
            found |= {row["event_id"]: row["decision"] for row in rows}
        return found

    def _judged(
        self, decision: str, consents: tuple[tuple[str, str], ...], lane: str, said: frozenset[str] = frozenset()
    ) -> Judged:
        """As `_judge`, remembered; but an engine that gave no answer may give one next time."""
        try:
            return self._kept(decision, consents, lane, said)
        except _NoAnswer as silent:
            return Judged("defer", str(silent))

    def _judge(
        self, decision: str, consents: tuple[tuple[str, str], ...], lane: str, said: frozenset[str] = frozenset()
    ) -> Judged:
        """What the policy in force says now, and why; `said` is what people said of this event. A situation of an older policy is found in its own table."""
        row = self._row(decision)
        recipient = self.recipients.get(lane)
        if row is None or recipient is None:
            return Judged("defer", "the situation or the subscriber is not known any more")
        facts = dict(row["facts"])
        facts |= {name: state for name, state in known_facts(dict(consents)).items() if name in facts}
        facts |= ({"conflict": False} if "keep" in said else {}) | ({"reviewed": True} if "release" in said else {})
        again = decide(self.table.policy, facts, recipient)
        if again.outcome == "defer" and any(reason.startswith(FAILED) for reason in again.reasons):
            raise _NoAnswer(again.reasons[0])
        return Judged(again.outcome, again.reasons[0], again.review, frozenset(again.redact))


class _NoAnswer(Exception):
    """What must not be remembered."""
