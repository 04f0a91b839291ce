"""Subscribers that are no longer in the operator's folder: what they were still owed ends refused, recorded and attested.

Nothing is sent to them and nothing waits for them. A subscriber that comes back under the same name starts behind what was
refused; what it missed is a replay's business.
"""

from __future__ import annotations

from typing import Any

from tidings.lanes.attempts import Stamp, ended_row
from tidings.lanes.books import Books
from tidings.lanes.member import Final, Rules
from tidings.lanes.retry import moment
from tidings.store import Store

REMOVED = "lane.subscriber_removed"


class Removed:
    """`numbers` goes on counting where the lane that is gone stopped."""

    def __init__(self, store: Store, books: Books) -> None:
        self.store, self.books = store, books
        self.numbers: dict[str, int] = {}

    def step(self, now: float) -> list[dict[str, Any]]:
        """The rows of what ended since the last look."""
        rows = []
        for event_id, name in self.books.strangers:
            page = self.books.pages.get(event_id)
            if page is None or name not in page.open:
                continue
            if name not in self.numbers:
                self.numbers[name] = self.store.transaction_version("attempts", f"lane/{name}") or 0
            self.numbers[name] += 1
            final = Final(name, event_id, page.feed, page.offset, "refused", REMOVED, moment(now))
            by = Stamp(self.books.attestor, "none", f"removed:{name}")
            rows.append(ended_row(Rules(name), final, self.numbers[name], by))
            self.books.note(final, "A0")
        self.books.strangers.clear()
        return rows

    def transactions(self) -> dict[str, int]:
        """Cursors past all that was refused, so that a subscriber that comes back is not told it after all."""
        found: dict[str, int] = {}
        for name, number in self.numbers.items():
            base = f"lane/{name}"
            found |= {base: number, f"{base}/since": number + 1}
            for feed, cursor in self.books.cursors.items():
                found |= {f"{base}/{feed}": cursor, f"{base}/{feed}/oldest": cursor + 1}
        return {app: value for app, value in found.items() if value >= 0}
