"""How far each anchor's rules count: shadow (recorded only), canary (for a share of the people), enforce (for everybody).

A policy document says it, newest last:

    rollout:
      vertical:
        - {mode: shadow, from: "2026-11-01"}
        - {mode: canary, from: "2026-12-02", share: 0.1}
        - {mode: enforce, from: "2026-12-09"}

An anchor that is not named is enforced. Rules that were only watched may count after thirty days; sooner with counsel's name
(`counsel:`), which is attested with the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date

from tidings.errors import Problem
from tidings.gate.facts import ANCHORS
from tidings.gate.policy import Mode
from tidings.yaml_lines import Document, Place

MODES = ("shadow", "canary", "enforce")
WATCHED_DAYS = 30  # how long rules are watched before they count, unless counsel says otherwise
_KEYS = ("mode", "from", "share", "counsel", "reason")


@dataclass(frozen=True)
class Step:
    """One change of one anchor's mode."""

    anchor: str
    mode: str
    since: date
    share: float
    counsel: str
    reason: str

    @property
    def in_force(self) -> Mode:
        return Mode(self.mode, self.share if self.mode == "canary" else 1.0)


def read_rollout(
    documents: Iterable[Document], today: date | None = None
) -> tuple[dict[str, tuple[Step, ...]], list[Problem]]:
    """Anchor → its steps, oldest first; `today` refuses steps that are still to come."""
    steps: dict[str, tuple[Step, ...]] = {}
    problems: list[Problem] = []
    for document in documents:
        said = document.data.get("rollout", {})
        if not isinstance(said, dict):
            problems.append(document.problem(("rollout",), "wrong_type", "another shape", "anchor: steps", "Mend it."))
            continue
        for anchor, entries in said.items():
            place: Place = ("rollout", anchor)
            if anchor not in ANCHORS:
                expected = "one of " + ", ".join(ANCHORS)
                problems.append(document.problem(place, "choice", str(anchor), expected, "Name an anchor."))
                continue
            if anchor in steps:
                problems.append(document.problem(place, "duplicate_id", anchor, "each anchor once", "Merge the two."))
                continue
            steps[anchor], wrong = _steps(document, place, anchor, entries)
            problems += wrong + ([] if wrong else _order(document, place, steps[anchor], today))
    return steps, problems


def modes(steps: Mapping[str, tuple[Step, ...]]) -> dict[str, Mode]:
    """What holds now: the last step of each anchor; enforcing for everybody is what goes without saying."""
    last = {anchor: entries[-1].in_force for anchor, entries in steps.items() if entries}
    return {anchor: mode for anchor, mode in last.items() if mode.mode != "enforce"}


def _steps(document: Document, place: Place, anchor: str, entries: object) -> tuple[tuple[Step, ...], list[Problem]]:
    if not isinstance(entries, list) or not entries:
        return (), [document.problem(place, "not_a_list", "no steps", "a list of steps", "Write `- {mode: …}`.")]
    steps: list[Step] = []
    problems: list[Problem] = []
    for index, entry in enumerate(entries):
        step = _step(document, (*place, index), anchor, entry)
        if isinstance(step, Step):
            steps.append(step)
        else:
            problems.append(step)
    return tuple(steps), problems


def _step(document: Document, place: Place, anchor: str, entry: object) -> Step | Problem:
    if not isinstance(entry, dict) or not set(entry) <= set(_KEYS):
        return document.problem(place, "unknown_key", "other keys", "keys: " + ", ".join(_KEYS), "Mend the step.")
    mode, share = entry.get("mode"), entry.get("share")
    if mode not in MODES:
        return document.problem((*place, "mode"), "choice", repr(mode), "one of " + ", ".join(MODES), "Choose one.")
    try:
        since = date.fromisoformat(str(entry.get("from")))
    except ValueError:
        return document.problem(
            (*place, "from"), "date", repr(entry.get("from")), "a date as YYYY-MM-DD", "Mend the date."
        )
    wants_share = mode == "canary"
    fits = isinstance(share, int | float) and not isinstance(share, bool) and 0 < share < 1
    if wants_share != (share is not None) or (wants_share and not fits):
        expected = "a share between 0 and 1 for canary, none otherwise"
        return document.problem((*place, "share"), "share", repr(share), expected, "Mend the share.")
    counsel, reason = str(entry.get("counsel") or ""), str(entry.get("reason") or "")
    return Step(anchor, str(mode), since, float(share) if wants_share else 1.0, counsel, reason)  # type: ignore[arg-type]


def _order(document: Document, place: Place, steps: tuple[Step, ...], today: date | None) -> list[Problem]:
    """Dates rise, none is still to come, and nothing counts before it was watched long enough."""
    problems = []
    watched: date | None = None
    for index, step in enumerate(steps):
        here: Place = (*place, index, "from")
        if index and step.since < steps[index - 1].since:
            expected = f"{steps[index - 1].since} or later"
            problems.append(document.problem(here, "date", str(step.since), expected, "Put the newest last."))
        if today is not None and step.since > today:
            expected = f"a date up to {today}"
            problems.append(document.problem(here, "date", str(step.since), expected, "Add the step on its day."))
        watched = (watched or step.since) if step.mode == "shadow" else watched
        if step.mode != "shadow" and watched and (step.since - watched).days < WATCHED_DAYS and not step.counsel:
            found = f"{step.mode} after {(step.since - watched).days} days of shadow"
            expected = f"{WATCHED_DAYS} days, or counsel's name"
            what_now = f"Wait until {date.fromordinal(watched.toordinal() + WATCHED_DAYS)}, or add `counsel: NAME`."
            problems.append(document.problem(here, "too_soon", found, expected, what_now))
        watched = None if step.mode == "enforce" else watched
    return problems
