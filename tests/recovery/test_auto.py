"""A source that says `dialect: auto`: a dialect heard for the first time makes a new plan, and the batch is read again, once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checker import check
from small import small
from warm import WarmJvm

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
MAXWELL = {
    "database": "public", "table": "customers", "type": "update", "ts": 1763280000, "xid": 9, "position": "binlog.000001:77",
    "primary_key": [1], "primary_key_columns": ["id"], "data": {"id": 1, "email": "c1.other@example.com", "tier": "basic"},
    "old": {"email": "c1.before@example.com"},
}  # fmt: skip


def test_a_dialect_is_learned_and_remembered(tmp_path: Path, jvm: WarmJvm) -> None:
    with small(tmp_path, "crm", jvm=jvm) as one:
        source = one.folder / "sources" / "crm.yaml"
        source.write_text(source.read_text().replace("dialect: debezium_postgresql", "dialect: auto"))
        one.world.round()
        one.finish()
        assert check(one) == []
        one.world.publish("crm", [json.dumps(MAXWELL)])
        one.finish()
        found = one.store.arrow("journal", ["epoch"])["epoch"].to_pylist()
        assert sum(epoch.startswith("maxwell") for epoch in found) == 1
        heard = one.data / "checkpoints" / "crm" / "heard.json"
        assert json.loads(heard.read_text()) == ["debezium_postgresql", "maxwell"]
