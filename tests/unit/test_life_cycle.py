"""What becomes of a record: odd turns of its life, each about its own subject, in one run of the flow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from test_detect import CONTRACT, image, message, of, said, told

from tidings.settings import Settings, load
from tidings.verbs.init import write as write_operator


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder: Path = tmp_path_factory.mktemp("life") / "operator"
    write_operator(folder)
    (folder / "entities" / "customer.yaml").write_text(CONTRACT)
    (folder / "subscribers" / "newsletter.yaml").unlink()
    return load(folder)


def headed(line: str, **headers: Any) -> str:
    return json.dumps({**json.loads(line), "headers": {f"__debezium.{name}": value for name, value in headers.items()}})


def payload(row: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(row["payload"])
    return found


def test_odd_turns(spark: SparkSession, settings: Settings) -> None:
    gone = {"deleted_at": "2026-03-02"}
    wrapped = {"schema": {"type": "struct"}, "payload": {"id": 30}}
    lines = [
        # the same key again after its end
        message(1, "c", None, image(1, email_ok=None, sms_ok=None), 10),
        message(1, "d", image(1), None, 20),
        message(1, "c", None, image(1, tier="gold", email_ok=None, sms_ok=None), 30),
        message(1, "u", None, image(1, tier="basic", email_ok=None, sms_ok=None), 40),
        # deleted softly, told again, changed while gone, taken back, gone for good
        message(2, "u", image(2), image(2, **gone), 50),
        message(2, "u", image(2, **gone), image(2, deleted_at="2026-03-03"), 60),
        message(2, "u", image(2, **gone), image(2, tier="gold", **gone), 70),
        message(2, "u", image(2, tier="gold", **gone), image(2, tier="gold"), 80),
        message(2, "d", image(2, tier="gold"), None, 90),
        # the key changed, told in one message: old key before, new key after
        message(4, "u", image(3), image(4, store_id=2), 100),
        # and told as Debezium does, by a delete and a create that name each other; with and without a schema
        headed(message(10, "d", image(10), None, 110), newkey={"id": 20}),
        headed(message(20, "c", None, image(20), 111), oldkey=json.dumps({"id": 10})),
        headed(message(30, "d", image(30), None, 120), newkey=json.dumps({"payload": {"id": 40}})),
        headed(message(40, "c", None, image(40), 121), oldkey=wrapped),
        message(40, "u", None, image(40, tier="gold"), 122),
        # a header that nobody can read: two lives, as before
        headed(message(50, "d", image(50), None, 130), newkey="Struct{id=60}"),
        headed(message(60, "c", None, image(60), 131), oldkey="Struct{id=50}"),
    ]
    rows = told(spark, settings, lines)
    assert [said(r) for r in of(rows, 1)] == ["insert", "delete", "insert", "tier"]
    assert [said(r) for r in of(rows, 2)] == ["soft_delete", "tier", "restore", "delete"]
    assert {said(r) for r in of(rows, 4)} == {"rekey", "reparent"}
    moves = {said(r): payload(r)["moved"] for r in of(rows, 4)}
    assert moves["rekey"] == [{"field": "id", "from": "3", "to": "4"}]
    assert moves["reparent"] == [{"field": "store_id", "from": "1", "to": "2"}]
    assert [said(r) for r in (*of(rows, 10), *of(rows, 30), *of(rows, 3))] == []
    assert [said(r) for r in of(rows, 20)] == ["rekey"]
    assert payload(of(rows, 20)[0])["moved"] == [{"field": "id", "from": "10", "to": "20"}]
    assert payload(of(rows, 20)[0])["after"]["email"] == "a@example.com"
    assert [said(r) for r in of(rows, 40)] == ["rekey", "tier"]
    assert payload(of(rows, 40)[0])["moved"] == [{"field": "id", "from": "30", "to": "40"}]
    assert [said(r) for r in of(rows, 50)] == ["delete"]
    assert said(of(rows, 60)[0]) == "insert"


# change → what it moved
RELATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "identity_merge": ({"merged_into": 7}, {"field": "merged_into", "from": None, "to": "7"}),
    "identity_split": ({"split_from": 7}, {"field": "split_from", "from": None, "to": "7"}),
    "household": ({"household_id": 2}, {"field": "household_id", "from": "1", "to": "2"}),
    "account": ({"account_id": None}, {"field": "account_id", "from": "1", "to": None}),
    "reparent": ({"store_id": "x"}, {"field": "store_id", "from": "1", "to": "x"}),
}


def test_a_relation_names_both_ends(spark: SparkSession, settings: Settings) -> None:
    lines = [
        message(n, "u", image(n), image(n, tier="gold", **what)) for n, (what, _) in enumerate(RELATIONS.values(), 1)
    ]
    # and without a before-image: what was last known is where it came from
    lines += [message(9, "c", None, image(9), 5_000), message(9, "u", None, image(9, household_id=2), 5_001)]
    rows = told(spark, settings, lines)
    for number, (kind, (_, moved)) in enumerate(RELATIONS.items(), 1):
        found = {row["change_type"]: payload(row) for row in of(rows, number)}
        assert found[kind]["moved"] == [moved]
        assert "moved" not in found["tier"]
        assert found["tier"]["changed"] == found[kind]["changed"] == sorted(["tier", moved["field"]])
    assert payload(of(rows, 9)[-1])["moved"] == [{"field": "household_id", "from": "1", "to": "2"}]
