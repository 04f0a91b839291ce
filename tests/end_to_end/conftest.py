"""A Spark standalone master with two worker processes, started from PySpark's own classes."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


def unused() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1", "SPARK_DAEMON_MEMORY": "256m"}
    with log.open("wb") as sink:
        child = subprocess.Popen([str(CLASS), *arguments], stdout=sink, stderr=sink, env=environment)
    try:
        yield child
    finally:
        child.terminate()
        child.wait(30)


def wait_for(log: Path, words: str, child: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + 120
    while words not in log.read_text(errors="replace"):
        assert child.poll() is None, log.read_text(errors="replace")[-2000:]
        assert time.monotonic() < limit, f"{words!r} never came: {log.read_text(errors='replace')[-2000:]}"
        time.sleep(0.2)


@pytest.fixture
def free_port() -> int:
    return unused()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    port = unused()
    url = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    log = tmp_path / "master.log"
    options = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(unused()))
    with process(log, f"{deploy}.master.Master", *options) as head:
        wait_for(log, "I have been elected leader", head)
        workers = [tmp_path / f"worker{n}.log" for n in (1, 2)]
        sizes = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--host", "127.0.0.1")
        first = process(workers[0], f"{deploy}.worker.Worker", url, *sizes, "--work-dir", str(tmp_path / "w1"))
        second = process(workers[1], f"{deploy}.worker.Worker", url, *sizes, "--work-dir", str(tmp_path / "w2"))
        with first as one, second as two:
            for path, child in zip(workers, (one, two), strict=True):
                wait_for(path, "Successfully registered with master", child)
            yield url
