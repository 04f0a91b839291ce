"""Many people ask to be forgotten: from their asks to the last acknowledgement, with the flow and the lanes played by hand. No JVM.

What is timed is the desk alone, a thousand requests at a time: asks taken in, people found, capsules made, tables and keys without them,
recipients told, answers taken up. Beside it stands the least that a thousand erasures cost: every table and key file written once.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidings.benches.operator import operator
from tidings.benches.past import ERASURE, KEY_BYTES, Past, Shape, answered, make, random_bytes, sealed
from tidings.benches.usage import memory_mb
from tidings.rights import intake
from tidings.rights.asks import Ask, Identifier
from tidings.rights.desk import AT_ONCE, Desk
from tidings.seal.keyring import TAG_BYTES
from tidings.settings import load
from tidings.stages.event import OFFSETS_PER_BATCH

Say = Callable[[str], None]


def measure(requests: int, subjects: int, recipients: int, *, say: Say = lambda text: None) -> dict[str, Any]:
    """Seconds and memory of the desk for all of them; the first and the last thousand beside each other."""
    root = Path(tempfile.mkdtemp(prefix="tidings-bench-"))
    try:
        operator(root, recipients)
        shape = Shape(subjects, subjects, read=requests)
        say(f"making {subjects:,} subjects known")
        apart(made, root, shape)
        limit = apart(_bare, root)
        past = Past(load(root))
        before = memory_mb()
        say(f"every table and key file written once: {limit:.1f} s")
        took, fulfilled = _erased(past, shape, requests, say)
        return {
            "requests": requests,
            "subjects": subjects,
            "recipients": recipients,
            "fulfilled": fulfilled,
            "seconds": round(sum(took), 1),
            "per_s": round(requests / sum(took), 1),
            "first_thousand_s": round(took[0], 2),
            "last_thousand_s": round(took[-1], 2),
            "ratio": round(took[-1] / took[0], 3),
            "rewritten_once_s": round(limit, 2),
            "memory_mb": [before, memory_mb()],
        }
    finally:
        shutil.rmtree(root, ignore_errors=True)


def apart(work: Callable[..., Any], *given: Any) -> Any:
    """In a process of its own, so that its memory is not counted."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *given).result()


def made(root: Path, shape: Shape) -> None:
    make(load(root), shape)


def _bare(root: Path) -> float:
    """Read and write every file that a thousand people scattered over all the others are in."""
    past = Past(load(root))
    tables = ("journal", "last_seen", "subjects", "identities")
    paths = [file.path for table in tables for file in past.store.files(table)] + past.keys.paths()
    draft = past.settings.data_path / "bare.parquet"
    start = time.perf_counter()
    for path in paths:
        file = pq.ParquetFile(path)
        with pq.ParquetWriter(draft, file.schema_arrow, compression="zstd") as sink:
            for group in range(file.num_row_groups):
                sink.write_table(file.read_row_group(group))
    draft.unlink()
    return time.perf_counter() - start


def _erased(past: Past, shape: Shape, requests: int, say: Say) -> tuple[list[float], int]:
    desk = Desk(past.settings, past.store, past.store.version)
    desk.recover()
    took: list[float] = []
    people = list(shape.chosen())[:requests]
    for number, first in enumerate(range(0, requests, AT_ONCE)):
        mine = people[first : first + AT_ONCE]
        names = {_ask(past, person): person for person in mine}
        spent = _timed(desk)  # taken in
        journaled(past, names, number)
        spent += _timed(desk)  # committed, destroyed, told
        _acknowledged(past, names, number)
        spent += _timed(desk)  # answered
        past.tend()
        took.append(spent * AT_ONCE / len(mine))
        say(f"{first + len(mine):,} requests: {spent:.1f} s, {memory_mb()} MB")
    done = sum(one.state == "fulfilled" for one in desk.book.requests.values())
    return took, done


def _timed(desk: Desk) -> float:
    start = time.perf_counter()
    desk.step()
    return time.perf_counter() - start


def _ask(past: Past, person: int) -> str:
    who = (Identifier("email", past.address(person)),)
    return intake.hand_in(past.settings, Ask("erasure", who, "rest", datetime.now(UTC), "verified"))


def journaled(past: Past, names: dict[str, int], number: int) -> None:
    """What the flow makes of the desk's messages."""
    count, now, name = len(names), datetime.now(UTC), f"rights-g1-{number}-00000000"
    kids, keys = random_bytes(count, TAG_BYTES), random_bytes(count, KEY_BYTES)
    tags = pa.array([past.tag(person) for person in names.values()], pa.binary())
    past.keys.write(pa.table({"tag": tags, "kid": kids, "key": keys}), name)
    events = [f"{request[:24]}-{number:08x}" for request in names]
    payload = [
        sealed(past, person, event, key.as_py(), after=None)
        for person, event, key in zip(names.values(), events, keys, strict=True)
    ]
    base = number * OFFSETS_PER_BATCH
    columns = {
        "offset": pa.array(range(base, base + count), pa.int64()), "source": "rights", "generation": "g1", "batch": number,
        "event_id": events, "entity": "customer", "change_type": "delete", "operation": ERASURE["operation"],
        "tenant": past.settings.tenant, "time": now, "recorded": now, "causation": list(names), "flags": ("erasure",),
        "kid": kids, "key_file": name, "payload": payload, "decision": past.decisions["delete"],
        "recipients": past.recipients,
    }  # fmt: skip
    past.commit("journal", past.shaped("journal", columns, count), "rights/g1", number)


def _acknowledged(past: Past, names: Iterable[str], number: int) -> None:
    """What the lanes write when every recipient says yes, a call of many members at a time."""
    told = {name: [f"{request}-{name}" for request in names] for name in past.recipients}
    answered(past, told, number + 1_000_000)
