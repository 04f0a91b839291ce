"""From message to journal there is no Python in any plan, and this test would see it if there were."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidings.benches.operator import messages, operator
from tidings.decisions import Decisions
from tidings.emit import one_row
from tidings.flow import Context, gathered, reading, writing
from tidings.known import Known
from tidings.rehearse import message_frame
from tidings.settings import Settings
from tidings.stages.event import Batch

SUBJECTS = (
    "bucket int, tag binary, known_consents map<string,string>, known_jurisdiction string, known_flags array<string>"
)
LAST_SEEN = "bucket int, tag binary, known_fields map<string,string>, known_image string, known_time timestamp"
PYTHON = ("Python", "ArrowEval", "MapInArrow", "MapInPandas", "FlatMapGroups", "TransformWithState")


def python_nodes(frame: DataFrame) -> list[str]:
    """Nodes of the physical plan that would leave the JVM."""
    plan = frame._jdf.queryExecution().executedPlan().toString()
    return [line.strip() for line in plan.splitlines() if any(word in line for word in PYTHON)]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    root: Path = tmp_path_factory.mktemp("plans")
    return operator(root, 3, images="kept")


def whole(spark: SparkSession, settings: Settings, dialect: str) -> tuple[DataFrame, DataFrame]:
    """The two halves of the flow for one dialect."""
    source = settings.sources["crm"].model_copy(update={"dialect": dialect})
    batch = Batch("crm", "g", 0, "keys")
    one = spark.createDataFrame(one_row(settings, batch))
    rows = reading(message_frame(spark, "crm", list(messages(2, 2))), settings, source, one.select("k_tag"))
    known = Known(spark.createDataFrame([], SUBJECTS), spark.createDataFrame([], LAST_SEEN))
    already = spark.createDataFrame([], "change_id binary, journalled boolean")
    context = Context(settings, source, Decisions.load(settings), already)
    return rows, writing(gathered(rows, one, known, 4), batch, context)


@pytest.mark.parametrize("dialect", ["debezium_postgresql", "auto"])
def test_no_stage_leaves_the_jvm(spark: SparkSession, settings: Settings, dialect: str) -> None:
    for half in whole(spark, settings, dialect):
        assert python_nodes(half) == []


def test_a_planted_python_node_is_found(spark: SparkSession, settings: Settings) -> None:
    shout = F.udf(lambda text: text.upper(), useArrow=False)
    rows, _ = whole(spark, settings, "debezium_postgresql")
    assert python_nodes(rows.withColumn("planted", shout("place")))


def test_no_plan_shows_a_key(spark: SparkSession, settings: Settings) -> None:
    _, frame = whole(spark, settings, "debezium_postgresql")
    plan = frame._jdf.queryExecution().toString()
    for purpose in ("tag", "id", "iv", "kek", "digest", "quarantine"):
        key = settings.keyring.derive(purpose)
        assert key.hex() not in plan.lower()
        assert str(list(key))[1:-1] not in plan
