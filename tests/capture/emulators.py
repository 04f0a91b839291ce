"""Servers that others wrote to stand in for a vendor's: DynamoDB Local (Amazon's own) and mongo-java-server from Maven Central, moto from PyPI."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
from at_hand import unavailable

IVY_SETTINGS = """\
<ivysettings><settings defaultResolver="central"/><caches defaultCacheDir="{cache}"/>
<resolvers><ibiblio name="central" m2compatible="true"/></resolvers></ivysettings>
"""
# One version for every part of the SDK it rests on: the ones it asks for are not all kept everywhere.
DYNAMODB_LOCAL = """\
<ivy-module version="2.0"><info organisation="tidings" module="tests"/><dependencies>
<dependency org="software.amazon.dynamodb" name="DynamoDBLocal" rev="3.3.1" conf="default"/>
<override org="software.amazon.awssdk" module=".*" matcher="regexp" rev="2.54.15"/></dependencies></ivy-module>
"""
MONGO_JAVA_SERVER = """\
<ivy-module version="2.0"><info organisation="tidings" module="tests"/><dependencies>
<dependency org="de.bwaldvogel" name="mongo-java-server" rev="1.47.0" conf="default"/></dependencies></ivy-module>
"""
# It speaks what a newer driver asks for and names an older version, so it is told to name another.
MONGO_MAIN = """\
import de.bwaldvogel.mongo.*;
import de.bwaldvogel.mongo.backend.memory.MemoryBackend;
import java.util.List;
public class Main {
    public static void main(String[] given) throws Exception {
        MemoryBackend backend = new MemoryBackend();
        backend.version(new MongoVersion() {
            public List<Integer> getVersionArray() { return List.of(5, 0, 0); }
            public int getWireVersion() { return 9; }
        });
        MongoServer server = new MongoServer(backend);
        server.enableOplog();
        server.bind("127.0.0.1", Integer.parseInt(given[0]));
        Thread.currentThread().join();
    }
}
"""


@dataclass
class Endpoint:
    """A server on loopback; it can be stopped and started again on its port."""

    command: list[str]
    port: int
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def connection(self) -> str:
        told = {
            "region": "eu-west-1",
            "endpoint": f"http://127.0.0.1:{self.port}",
            "key_id": "AKIAHERE",
            "secret": "hush",
        }
        return json.dumps(told)

    def client(self, service: str) -> Any:
        from tidings.sources.aws import Account

        return Account("test", self.connection).client(service)

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, cwd=self.folder)
        end = time.monotonic() + 90
        while True:
            assert self.process.poll() is None, (self.folder / "log").read_text(errors="replace")[-2000:]
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert time.monotonic() < end, (self.folder / "log").read_text(errors="replace")[-2000:]
                time.sleep(0.1)

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def from_maven(name: str, module: str, timeout: float = 600) -> Path:
    """A folder with the jars of an Ivy module and everything they need; fetched once and kept beside other temporary files."""
    folder = Path(tempfile.gettempdir()) / f"tidings-{name}-{os.geteuid()}"
    if (folder / "whole").exists():
        return folder
    folder.mkdir(exist_ok=True)
    settings, wanted = folder / "settings.xml", folder / "ivy.xml"
    settings.write_text(IVY_SETTINGS.format(cache=folder / "cache"))
    wanted.write_text(module)
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    command = ["java", "-jar", str(ivy), "-settings", str(settings), "-ivy", str(wanted), "-retrieve"]
    command.append(str(folder / "[artifact]-[revision].[ext]"))
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout)
    except (OSError, subprocess.TimeoutExpired):
        done = None
    if done is None or done.returncode or not list(folder.glob("*.jar")):
        unavailable(f"{name} could not be fetched from Maven Central")
    (folder / "whole").touch()
    return folder


@contextmanager
def running(command: list[str], port: int) -> Iterator[Endpoint]:
    with tempfile.TemporaryDirectory(prefix="tidings-emulator-") as folder:
        endpoint = Endpoint(command, port, Path(folder))
        endpoint.start()
        try:
            yield endpoint
        finally:
            endpoint.stop()


@contextmanager
def dynamodb_local() -> Iterator[Endpoint]:
    """Amazon's own server for developers: its tables are files, so it survives a restart."""
    jars, port = from_maven("dynamodb-local", DYNAMODB_LOCAL), free_port()
    command = ["java", "-XX:TieredStopAtLevel=1", "-Xmx300m", f"-Dsqlite4java.library.path={jars}", "-cp", f"{jars}/*"]
    command += ["software.amazon.dynamodb.services.local.main.ServerRunner", "-port", str(port)]
    with running([*command, "-sharedDb", "-dbPath", ".", "-disableTelemetry"], port) as endpoint:
        yield endpoint


@contextmanager
def moto() -> Iterator[Endpoint]:
    port = free_port()
    with running([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port) as endpoint:
        yield endpoint


@contextmanager
def mongo_java_server() -> Iterator[Endpoint]:
    """A server with an oplog in memory; it knows neither `hello` nor the time of an operation."""
    jars, port = from_maven("mongo-java-server", MONGO_JAVA_SERVER), free_port()
    if shutil.which("javac") is None:
        unavailable("no Java compiler to start mongo-java-server with")
    main = jars / "Main.java"
    main.write_text(MONGO_MAIN)
    with running(["java", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", str(main), str(port)], port) as endpoint:
        yield endpoint
