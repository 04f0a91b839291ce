"""Full exports: what is new, different and gone, once, whenever the comparison is killed; what cannot be the whole table is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checker import history_of
from small import Small, small

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
SOURCE = """\
kind: exports
path: drop/crm
entities: {customers: customer}
banner: shop
location: online
after: delete
"""


def export(one: Small, name: str, *rows: tuple[int, str], more: str = "") -> None:
    lines = [json.dumps({"tier": "basic", "id": who, "email": mail}) for who, mail in rows]
    hidden = one.folder / "drop" / "crm" / f".{name}"
    hidden.write_text("\n".join(lines) + f"\n{more}")
    hidden.rename(hidden.with_name(f"{name}.jsonl"))


def told(one: Small) -> list[tuple[str, str]]:
    return sorted((event.change_type, event.marker) for event in history_of(one).journal)


def test_each_difference_once(tmp_path: Path) -> None:
    with small(tmp_path, "crm") as one:
        (one.folder / "sources" / "crm.yaml").write_text(SOURCE)
        export(one, "monday", (1, "a@example.com"), (2, "b@example.com"), (3, "c@example.com"))
        one.finish()
        assert told(one) == [], "what was there already makes no event"
        export(
            one, "tuesday", (3, "c@example.com"), (1, "a2@example.com"), (4, "d@example.com"), more='{"email": "x"}\n'
        )
        one.killed_at("exports.compared")
        one.killed_at("exports.told")
        one.finish()
        assert told(one) == [("delete", "b@example.com"), ("email", "a2@example.com"), ("insert", "d@example.com")]
        assert len(one.store.arrow("quarantine", ["code"]).to_pylist()) == 1
        assert len(list((one.folder / "drop" / "crm" / "claimed").iterdir())) == 1, "only the last export is kept"
        export(one, "wednesday", (4, "d@example.com"))
        code, said = one.run()
        assert code == 4
        assert "2 of 3 rows are gone" in said
        assert "[export_refused]" in said
        assert len(told(one)) == 3
