"""Jars that a source needs and PySpark does not bring: fetched once from Maven Central and known by digest, or taken from a folder of the operator's.

The fetching is done by the Ivy that PySpark brings. What breaks its guarantee: a folder named by the operator is taken as it is.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyspark

from tidings.durable import replace
from tidings.errors import Refused
from tidings.kinds import KINDS

if TYPE_CHECKING:
    from tidings.settings import Settings

FETCH_S = 300.0


class Jar(NamedTuple):
    """One artifact, and the SHA-256 of its bytes."""

    group: str
    name: str
    version: str
    sha256: str

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}.jar"


# The newest connector that Maven Central held when these were pinned; tests/capture/test_kafka.py runs it on the PySpark we pin.
KAFKA = (
    Jar(
        "org.apache.spark",
        "spark-sql-kafka-0-10_2.13",
        "4.2.0",
        "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
    ),
    Jar(
        "org.apache.spark",
        "spark-token-provider-kafka-0-10_2.13",
        "4.0.0",
        "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
    ),
    Jar(
        "org.apache.kafka",
        "kafka-clients",
        "3.9.2",
        "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
    ),
    Jar(
        "org.apache.commons",
        "commons-pool2",
        "2.13.1",
        "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
    ),
)
SHELVES = {"kafka": KAFKA}


def jars(settings: Settings) -> list[Path]:
    """The jars that this operator's sources need; empty when Spark's own do."""
    shelves = {KINDS[source.kind].jars for source in settings.sources.values()} - {""}
    wanted = [jar for shelf in sorted(shelves) for jar in SHELVES[shelf]]
    if not wanted:
        return []
    if settings.run.jars is not None:
        return given((settings.directory / settings.run.jars).absolute(), wanted)
    return fetched(wanted)


def given(folder: Path, wanted: Sequence[Jar]) -> list[Path]:
    """Every jar of the operator's folder, in whatever version; each that is needed must be among them."""
    found = sorted(folder.glob("*.jar"))
    lacking = [jar for jar in wanted if not any(path.name.startswith(f"{jar.name}-") for path in found)]
    if lacking:
        raise _missing(f"no {', '.join(jar.name for jar in lacking)} in the folder of `run: {{jars: …}}`", wanted)
    return found


def fetched(wanted: Sequence[Jar]) -> list[Path]:
    """The pinned jars, from the cache or from Maven Central."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidings" / "jars"
    folder.mkdir(parents=True, exist_ok=True)
    lacking = [jar for jar in wanted if not _is(folder / jar.file, jar)]
    if lacking:
        with tempfile.TemporaryDirectory(dir=folder) as fresh:
            _fetch(Path(fresh), lacking, wanted)
            for jar in lacking:
                replace(Path(fresh) / jar.file, folder / jar.file)
    return [folder / jar.file for jar in wanted]


def _fetch(fresh: Path, lacking: Sequence[Jar], wanted: Sequence[Jar]) -> None:
    lines = [
        f'<dependency org="{jar.group}" name="{jar.name}" rev="{jar.version}" conf="default->master"/>'
        for jar in lacking
    ]
    info = '<info organisation="tidings" module="jars"/><configurations><conf name="default"/></configurations>'
    (fresh / "ivy.xml").write_text(
        f'<ivy-module version="2.0">{info}<dependencies>{"".join(lines)}</dependencies></ivy-module>'
    )
    own = Path(pyspark.__file__).parent / "jars"
    program = os.pathsep.join(str(path) for name in ("ivy", "commons-cli") for path in own.glob(f"{name}-*.jar"))
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"
    command = [str(java), "-cp", program, "org.apache.ivy.Main", "-cache", str(fresh / "cache")]
    command += ["-ivy", str(fresh / "ivy.xml"), "-retrieve", f"{fresh}/[artifact]-[revision].[ext]"]
    try:
        subprocess.run(command, capture_output=True, check=False, timeout=FETCH_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _missing(f"jars that could not be fetched from Maven Central ({type(error).__name__})", wanted) from None
    wrong = [jar.file for jar in lacking if not _is(fresh / jar.file, jar)]
    if wrong:
        raise _missing(f"jars that could not be fetched from Maven Central: {', '.join(wrong)}", wanted)


def _is(path: Path, jar: Jar) -> bool:
    return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == jar.sha256


def _missing(found: str, wanted: Sequence[Jar]) -> Refused:
    names = ", ".join(f"{jar.group}:{jar.name}:{jar.version}" for jar in wanted)
    return Refused(
        "jars_missing",
        found,
        names,
        "Put these jars into a folder on this machine and name it in tidings.yaml as `run: {jars: FOLDER}`. Nothing was started.",
    )
