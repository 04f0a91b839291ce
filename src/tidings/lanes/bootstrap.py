"""A subscriber that was added later: what it would have been owed is decided now, from the stored situation of each event.

Nothing personal is needed. Rows that name the subscriber were journaled after it was added and belong to the live lane; a bootstrap
takes only rows that do not, so the row itself is the seam. What the policy in force does not allow is not sent, and an answer that
is missing counts as no. The pairs are new: the wish that took them up is their record, and `status --reconcile` counts them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from tidings.gate.again import Again
from tidings.lanes.buffer import Newly, as_semantics
from tidings.lanes.slices import Owed


def newly(again: Again) -> Callable[[str], Newly]:
    """Subscriber → (decision, entity, change type) → what it is owed now."""

    def of(lane: str) -> Newly:
        @lru_cache(maxsize=50_000)
        def owed(decision: str, entity: str, change_type: str) -> Owed | None:
            found = again.concerned(decision, entity, change_type, lane)
            return None if found is None else Owed("allow", as_semantics(found.semantics), found.priority, None)

        return owed

    return of
