"""Jars are fetched only for who needs them, and their absence says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tidings.errors import Refused
from tidings.jars import KAFKA, given, jars
from tidings.session import jvm
from tidings.settings import load
from tidings.verbs.init import write

SOURCE = """\
kind: kafka
connection: file:master.key
streams: [crm]
entities: {customers: customer}
banner: shop
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An operator on a machine that reaches nobody: no cache, and no Java to fetch with."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    write(tmp_path / "shop")
    return tmp_path / "shop"


def test_without_a_kafka_source_nothing_is_fetched(folder: Path) -> None:
    assert jars(load(folder)) == []
    assert not (folder.parent / "cache").exists()


def test_what_cannot_be_fetched_is_asked_for(folder: Path) -> None:
    with_kafka(folder)
    with pytest.raises(Refused) as refused:
        jars(load(folder))
    assert refused.value.code == "jars_missing"
    assert all(f"{jar.group}:{jar.name}:{jar.version}" in refused.value.expected for jar in KAFKA)
    assert "run: {jars: FOLDER}" in refused.value.what_now


def test_a_folder_of_the_operator_is_taken_as_it_is(folder: Path) -> None:
    with_kafka(folder)
    own = folder / "own"
    own.mkdir()
    text = (folder / "tidings.yaml").read_text()
    (folder / "tidings.yaml").write_text(text.replace("run: {", "run: {jars: own, "))
    for jar in KAFKA[1:]:
        (own / f"{jar.name}-9.9.jar").write_bytes(b"")
    with pytest.raises(Refused, match=f"no {KAFKA[0].name} in the folder"):
        jars(load(folder))
    (own / f"{KAFKA[0].name}-9.9.jar").write_bytes(b"")
    assert jars(load(folder)) == given(own, KAFKA) == sorted(own.glob("*.jar"))


def with_kafka(folder: Path) -> None:
    (folder / "sources" / "stream.yaml").write_text(SOURCE)


@pytest.mark.spark
def test_an_exception_of_another_jvm_is_what_that_jvm_says(spark: SparkSession) -> None:
    """PySpark would ask the session's JVM about an object of ours, by a number that it gave to something else or to nothing."""
    assert spark.range(1).count() == 1
    other = jvm([])
    for _ in range(100):
        with pytest.raises(Py4JJavaError) as caught:
            other.java.lang.Integer.parseInt("no number")
        assert str(caught.value.java_exception.getClass().getName()) == "java.lang.NumberFormatException"
