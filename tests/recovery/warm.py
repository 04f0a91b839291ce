"""A JVM that outlives the drivers that die beside it: starting one for each of many crashes takes longer than all the rest.

What a crash point proves is in the driver, which is killed for real. Whatever Spark still does for it is stopped before the next
driver starts, as it stops by itself when the JVM dies with its driver (`test_kills.py`, the demo).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from tidings.session import JVM, QUIET

DRIVERS = 10  # one that is killed gives nothing back: after some thirty of them a gigabyte is full and the collector all that runs


class WarmJvm:
    """A JVM, used by one driver after the other; after some of them the next one gets a new JVM."""

    def __init__(self, memory: str) -> None:
        # Short runs never repay the second compiler.
        options = f"{QUIET} {JVM} -XX:TieredStopAtLevel=1 -Xlog:disable"
        self._settings = {"spark.driver.memory": memory, "spark.driver.extraJavaOptions": options}
        self._gateway: Any = None
        self._drivers = 0

    def free(self) -> Mapping[str, str]:
        """The environment of the next driver, once nothing of the one before is left."""
        if self._drivers == DRIVERS:
            self.end()
        if self._gateway is None:
            self._gateway = launch_gateway(SparkConf(loadDefaults=False).setAll(list(self._settings.items())))
        self._drivers += 1
        companion = getattr(getattr(self._gateway.jvm.org.apache.spark, "SparkContext$"), "MODULE$")
        active = companion.getActive()
        if active.isDefined():
            active.get().stop()
        known = self._gateway.gateway_parameters if hasattr(self._gateway, "gateway_parameters") else None
        found = known or self._gateway.java_parameters
        return {"PYSPARK_GATEWAY_PORT": str(found.port), "PYSPARK_GATEWAY_SECRET": found.auth_token}

    def end(self) -> None:
        if self._gateway is not None:
            self._gateway.shutdown()
            self._gateway.proc.stdin.close()
            self._gateway.proc.wait(timeout=60)
        self._gateway, self._drivers = None, 0


@contextmanager
def warm_jvm(memory: str = "1g") -> Iterator[WarmJvm]:
    one = WarmJvm(memory)
    try:
        yield one
    finally:
        one.end()
