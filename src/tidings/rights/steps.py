"""Steps of requests as rows of the table, each with its ledger entry, committed together under one version of the desk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidings.rights.attested import entry_of
from tidings.rights.book import APP, TABLE, Book, Request, Row
from tidings.store import Store

_COLUMNS = ("kind", "way", "opened")


class Steps:
    """Writes what happened; the only writer of the table. A commit that was made before a crash is not made again."""

    def __init__(self, store: Store, book: Book, attestor: str) -> None:
        self.store, self.book, self.attestor = store, book, attestor

    @property
    def next(self) -> int:
        """The version under which the next commit stands."""
        done = self.store.transaction_version(TABLE, APP)
        return 0 if done is None else done + 1

    def row(
        self,
        request: Request,
        what: str,
        state: str = "",
        *,
        actor: str = "",
        reason: str = "",
        details: Mapping[str, str] | None = None,
        erased: Mapping[str, Any] | None = None,
        **columns: Any,
    ) -> Row:
        """One step after the last; a request that is written to twice in one commit is folded in between."""
        now = datetime.now(UTC)
        number = request.steps[-1].number + 1 if request.steps else 1
        state, previous = state or request.state, request.state if request.steps else "none"
        row = {name: getattr(request, name) for name in _COLUMNS}
        row |= {"request": request.id, "step": number, "what": what, "state": state, "previous": previous}
        row |= {"changed": now, "actor": actor or self.attestor, "reason": reason}
        row |= {"details": list((details or {}).items())} | columns
        row["entry"] = entry_of({**dict.fromkeys(_NAMES), "due": request.due, **row}, self.attestor, erased)
        self.book.fold([{**dict.fromkeys(_NAMES), **row}])
        return row

    def commit(self, rows: Sequence[Row], cursors: Mapping[str, int] | None = None) -> None:
        if not rows and not cursors:
            return
        folder = write(self.store, TABLE, rows) if rows else None
        self.store.commit(TABLE, folder, app=APP, version=self.next, cursors=cursors)


def schema_of(store: Store, table: str) -> pa.Schema:
    return store.arrow(table, files=[]).schema


def write(store: Store, table: str, rows: Sequence[Row]) -> str:
    """Rows of the driver's own, into a fresh folder of the store."""
    folder = Path(store.fresh(table))
    folder.mkdir(parents=True)
    pq.write_table(
        pa.Table.from_pylist(list(rows), schema=schema_of(store, table)), folder / "part-0.parquet", compression="zstd"
    )
    return str(folder)


_NAMES = (
    "jurisdiction", "regulation", "assurance", "due", "fingerprint", "tags", "hashes", "parts", "kid", "key_file", "sealed",
)  # fmt: skip
