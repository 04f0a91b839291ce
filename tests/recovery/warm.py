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


class WarmJvm:
    """One JVM, used by one driver after the other."""

    def __init__(self, gateway: Any) -> None:
        self._gateway = gateway

    def free(self) -> Mapping[str, str]:
        """The environment of the next driver, once nothing of the one before is left."""
        companion = getattr(getattr(self._gateway.jvm.org.apache.spark, "SparkContext$"), "MODULE$")
        active = companion.getActive()
        if active.isDefined():
            active.get().stop()
        known = self._gateway.gateway_parameters if hasattr(self._gateway, "gateway_parameters") else None
        found = known or self._gateway.java_parameters
        return {"PYSPARK_GATEWAY_PORT": str(found.port), "PYSPARK_GATEWAY_SECRET": found.auth_token}


@contextmanager
def warm_jvm(memory: str = "1g") -> Iterator[WarmJvm]:
    """Short runs never repay the second compiler."""
    options = f"{QUIET} {JVM} -XX:TieredStopAtLevel=1 -Xlog:disable"
    settings = {"spark.driver.memory": memory, "spark.driver.extraJavaOptions": options}
    gateway = launch_gateway(SparkConf(loadDefaults=False).setAll(list(settings.items())))
    try:
        yield WarmJvm(gateway)
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=60)
