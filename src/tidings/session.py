"""The one place that builds a Spark session; every setting has its reason."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.errors.exceptions import captured
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

JVM = "-XX:+UseParallelGC -XX:-DontCompileHugeMethods"  # generated code of a wide row is one huge method; HotSpot would interpret it
QUIET = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"
JARS = "spark.jars"
BUCKETS = 16  # subjects are spread over this many buckets; part of the offset layout, so never changed in place

SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",  # a page with plans on it is a page with table names on it
    "spark.ui.showConsoleProgress": "false",
    "spark.eventLog.enabled": "false",  # event logs hold plans and are never cleaned
    "spark.log.level": "FATAL",  # a failing task logs its row; the driver reports the failure itself, without it
    "spark.io.encryption.enabled": "true",  # shuffle and spill files held e-mails in clear without it
    "spark.speculation": "false",  # a send must not be started twice on purpose
    "spark.task.maxFailures": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.adaptive.enabled": "false",  # batches are small and the plan is known; re-planning costs more than it saves
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.requireAllClusterKeysForCoPartition": "false",  # what is divided by bucket is joined by tag without being moved again
    "spark.sql.maxConcurrentOutputFileWriters": "16",  # one pass writes several tables without a sort
    "spark.sql.files.maxPartitionBytes": str(128 << 20),
    # One file, one partition: a row's number inside its partition is then its line, natively.
    "spark.sql.files.openCostInBytes": str(128 << 20),
    "spark.sql.codegen.cache.maxEntries": "3000",  # a batch's plan has hundreds of classes; the default of 100 compiles them all again
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # halves the time to build a plan from Python
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.authenticate.socketTimeout": "60s",  # a reader's process may start slowly on a busy machine; 15 s end the stream
    # The row number inside a partition is refused in streams because a retried shuffle could change it; ours is taken at the scan.
    "spark.sql.streaming.unsupportedOperationCheck": "false",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.streaming.pollingDelay": "20ms",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",  # images are merged: the later value wins
    "spark.sql.constraintPropagation.enabled": "false",  # finds no filter to push here and costs a fifth of the planning
    "spark.sql.autoBroadcastJoinThreshold": str(64 << 20),
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",  # folders are fresh; the commit is ours
    "spark.sql.debug.maxToStringFields": "5",
    "spark.sql.redaction.options.regex": "(?i)url|^kafka",  # where a broker is and how we are let in is in a source's options
    "spark.cleaner.periodicGC.interval": "5min",
}


def session(
    work: Path | None = None,
    *,
    master: str | None = None,
    slots: int | None = None,
    memory: str | None = None,
    jars: Sequence[Path] = (),
) -> SparkSession:
    """A session whose scratch files stay under `work`; `master` defaults to this machine with `slots` slots."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    scratch = work or Path(tempfile.mkdtemp(prefix="tidings-"))
    (scratch / "spark").mkdir(parents=True, exist_ok=True)
    place = master or os.environ.get("TIDINGS_MASTER") or f"local[{slots or (os.cpu_count() or 2) + 2}]"
    builder = SparkSession.builder.appName("tidings").master(place)
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    builder = (
        builder.config("spark.driver.memory", memory or os.environ.get("TIDINGS_DRIVER_MEMORY", "2g"))
        .config("spark.local.dir", str(scratch / "spark"))
        .config("spark.sql.warehouse.dir", str(scratch / "spark" / "warehouse"))
        .config("spark.executor.extraJavaOptions", JVM)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={scratch / 'spark'} {QUIET} {JVM}")
    )
    if jars:
        builder = builder.config(JARS, ",".join(map(str, jars)))
    spark = builder.getOrCreate()
    _remember_functions(spark)
    if not place.startswith("local"):
        spark.sparkContext.addPyFile(str(_package(scratch)))
    return spark


def jvm(jars: Sequence[Path]) -> Any:
    """The JVM of the running session when it has these jars; else one that has them and ends with this process."""
    running = SparkContext._active_spark_context
    wanted = ",".join(map(str, jars))
    if running is not None and running.getConf().get(JARS) == wanted:
        return running._jvm
    return _own_gateway(wanted).jvm


@cache
def _own_gateway(jars: str) -> Any:
    """Kept as long as this process lives: the JVM ends when nobody holds the other end of its standard input."""
    _translate_only_its_own()
    conf = SparkConf().set(JARS, jars).set("spark.driver.memory", "256m").set("spark.driver.extraJavaOptions", QUIET)
    return launch_gateway(conf, {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL})  # type: ignore[no-untyped-call]


@cache
def _translate_only_its_own() -> None:
    """PySpark asks the session's JVM what an exception is; one of another JVM has a number that means something else there."""
    translate = captured.convert_exception

    def own(e: Any) -> captured.CapturedException:
        gateway = SparkContext._gateway
        mine = gateway is not None and e._gateway_client is gateway._gateway_client
        return translate(e) if mine else captured.UnknownException(desc="", stackTrace="")

    captured.convert_exception = own


class _Remembered:
    """A Java class whose members are looked up once."""

    def __init__(self, java: Any) -> None:
        self._java = java

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._java, name)
        setattr(self, name, found)
        return found


def _remember_functions(spark: SparkSession) -> None:
    """Every call of a column function asks the JVM twice where the function is, a third of all it is asked while a plan is built."""
    jvm = spark.sparkContext._jvm
    for name in ("org.apache.spark.sql.functions", "functions", "PythonUtils", "PythonSQLUtils"):
        if jvm is not None and name not in vars(jvm):
            setattr(jvm, name, _Remembered(getattr(jvm, name)))


def _package(scratch: Path) -> Path:
    """The running package as one zip, so that executors on other machines run the same code as the driver."""
    root = Path(__file__).parent
    target = scratch / "spark" / "tidings.zip"
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, Path("tidings") / path.relative_to(root))
    return target
