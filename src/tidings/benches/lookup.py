"""What it takes to find whom one person's data went to, as the journal grows: files opened of all there are, counted by the kernel.

The same look in a journal of one size and of five times that size, each person with as many events: as `tidings report recipients` looks,
and as the desk looks at somebody who is to be erased.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from tidings.benches.opened import files_in, opened
from tidings.benches.operator import operator
from tidings.benches.past import Past, Shape
from tidings.benches.rights import apart, made
from tidings.gate.loading import load_policy
from tidings.report.recipients import recipients_of
from tidings.rights.sight import Sight
from tidings.settings import load

EVENTS, PEOPLE, TIMES = 5, 8, 5  # events a person, people looked up, how much the second journal is larger
Say = Callable[[str], None]


def measure(rows: int, recipients: int, *, say: Say = lambda text: None) -> dict[str, Any]:
    """Files opened for one person: the median of several, in both journals."""
    small, large = (_one(count, recipients, say) for count in (rows, TIMES * rows))
    return {
        "journal_rows": [small["rows"], large["rows"]],
        "files": [small["files"], large["files"]],
        "pending_key_files": [small["pending_key_files"], large["pending_key_files"]],
        "recipients_files": [small["recipients_files"], large["recipients_files"]],
        "recipients_s": [small["recipients_s"], large["recipients_s"]],
        "desk_files": [small["desk_files"], large["desk_files"]],
        "desk_s": [small["desk_s"], large["desk_s"]],
    }


def _one(rows: int, recipients: int, say: Say) -> dict[str, Any]:
    root = Path(tempfile.mkdtemp(prefix="tidings-bench-"))
    try:
        operator(root, recipients)
        shape = Shape(rows, rows // EVENTS, read=PEOPLE, told=True)
        say(f"making {rows:,} journal rows")
        apart(made, root, shape)
        return {"rows": rows} | looked(Past(load(root)), shape, say)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def looked(past: Past, shape: Shape, say: Say = lambda text: None) -> dict[str, Any]:
    """Each person once, in a sight that remembers nobody."""
    policy, roots = load_policy(past.settings), (past.store.root, past.keys.root)
    report, desk = [], []
    for person in list(shape.chosen())[:PEOPLE]:
        with opened(*roots) as files:
            start = time.perf_counter()
            told = recipients_of(past.settings, past.store, policy, past.address(person))
            took = time.perf_counter() - start
        report.append((len(files), took, len(told)))
        with opened(*roots) as files:
            start = time.perf_counter()
            people = Sight(past.settings, past.store, past.keys).closure([past.tag(person)])
            took = time.perf_counter() - start
        desk.append((len(files), took, len(people[past.tag(person)].told)))
        assert told, "somebody who is known was not found"
    total = files_in(*roots)
    say(
        f"{median(one[0] for one in report):g} files for a report, {median(one[0] for one in desk):g} for the desk, of {total}"
    )
    return {
        "files": total,
        "pending_key_files": files_in(past.keys.root / "new"),  # of batches that are not compacted yet: all are opened
        "recipients": median(one[2] for one in report),
        "recipients_files": median(one[0] for one in report),
        "recipients_s": round(median(one[1] for one in report), 3),
        "desk_files": median(one[0] for one in desk),
        "desk_s": round(median(one[1] for one in desk), 3),
    }
