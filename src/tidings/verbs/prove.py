"""`tidings prove EVENT`: the one record of what was decided and done with an event, verifiable offline."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.errors import Damaged, Refused
from tidings.verbs.options import AsJson, Here, answer, note

if TYPE_CHECKING:
    from tidings.ledger.proof import Piece
    from tidings.store import Store

_UUID7 = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
# Clocks of the parts that stamp a row may differ by this much; statistics then still find the file.
_SLACK = timedelta(minutes=5)


def register(app: typer.Typer) -> None:
    app.command("prove")(prove)


def prove(
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The event's id.")],
    directory: Here = Path("."),
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the receipt here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the receipt of an event: what was decided, who acknowledged it, how it ended."""
    from tidings.ledger.proof import receipt
    from tidings.settings import load
    from tidings.store import Store

    data = load(directory, secrets=False).data_path
    document = receipt(data / "ledger", event, pieces(Store(data / "tables"), event))
    count = len(document["entries"])
    if output is None:
        answer(document)
    else:
        output.write_text(json.dumps(document, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        if as_json:
            answer({"receipt": str(output), "event_id": event, "entries": count, "vkey": document["vkey"]})
    note(f"{count} entries. Anyone can check it: tidings verify {output or 'FILE'} --vkey {document['vkey']}")


def pieces(store: Store, event: str) -> list[Piece]:
    """The event's entries in the order they happened: decided, every call that carried it, settled."""
    from tidings.ledger.proof import Piece

    row = _journal_row(store, event)
    found = [Piece("journal", row["entry"], feed=f"{row['source']}/{row['generation']}", batch=row["batch"])]
    settled = _settled_row(store, row)
    found += _calls(store, event, row["recorded"], settled["time"] if settled else None)
    if settled:
        found.append(Piece("settled", settled["entry"]))
    return found


def _journal_row(store: Store, event: str) -> dict[str, Any]:
    """The time inside the id prunes the files; an id of another make is looked for everywhere."""
    import pyarrow.dataset as ds

    wanted = ds.field("event_id") == event
    narrow = wanted
    if match := _UUID7.fullmatch(event):
        made = datetime.fromtimestamp(int(match[1] + match[2], 16) / 1000, UTC)
        narrow = wanted & _between("time", made, made)
    columns = ["event_id", "source", "generation", "batch", "offset", "recorded", "entry"]
    for look in (narrow, wanted):
        rows = store.arrow("journal", columns, filter=look).to_pylist()
        if rows and rows[0]["entry"]:
            return dict(rows[0])
    raise Refused(
        "unknown-event", "no event with this id in the journal", "an event id", "`tidings timeline` shows them."
    )


def _settled_row(store: Store, row: dict[str, Any]) -> dict[str, Any] | None:
    import pyarrow.dataset as ds

    # The offset has statistics, the id has none.
    same = (ds.field("source") == row["source"]) & (ds.field("generation") == row["generation"])
    look = same & (ds.field("offset") == row["offset"]) & (ds.field("event_id") == row["event_id"])
    rows = store.arrow("settled", ["entry", "time"], filter=look).to_pylist()
    return dict(rows[0]) if rows and rows[0]["entry"] else None


def _calls(store: Store, event: str, after: datetime, until: datetime | None) -> list[Piece]:
    import pyarrow.dataset as ds

    from tidings.ledger.attestation import members_root
    from tidings.ledger.proof import Piece

    look = _between("finished", after, until) & ds.field("entry").is_valid()
    found = []
    rows = store.arrow("attempts", ["finished", "members", "entry"], filter=look).to_pylist()
    for row in sorted(rows, key=lambda row: row["finished"]):
        members = [(member["event_id"], member["result"]) for member in row["members"] or []]
        if event not in {member for member, _ in members}:
            continue
        if json.loads(row["entry"])["members_root"] != members_root(members).hex():
            raise Damaged(
                "ledger-members", "a call whose members are not those it attested", "the same", "Restore the table."
            )
        found.append(Piece("attempts", row["entry"], members=tuple(members)))
    return found


def _between(column: str, low: datetime, high: datetime | None) -> Any:
    import pyarrow as pa
    import pyarrow.dataset as ds

    kind = pa.timestamp("us", tz="UTC")
    inside = ds.field(column) >= pa.scalar(low - _SLACK, kind)
    return inside if high is None else inside & (ds.field(column) <= pa.scalar(high + _SLACK, kind))
