"""A real Pulsar: broker, bookie and metadata in one process, from the distribution on Maven Central, on loopback and free ports.

Its one user is known by a token, signed with a key that is made for the run.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

VERSION = "4.0.8"
PLACE = f"org/apache/pulsar/pulsar-server-distribution/{VERSION}/pulsar-server-distribution-{VERSION}-bin.tar.gz"
PLUGIN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
PROVIDER = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"


def distribution() -> Path | None:
    """The unpacked distribution; None when it cannot be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidings-tests"
    target = cache / f"apache-pulsar-{VERSION}"
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        try:
            with tempfile.TemporaryDirectory(dir=cache) as fresh:
                packed = Path(fresh, "packed")
                url = f"https://repo1.maven.org/maven2/{PLACE}"
                with urllib.request.urlopen(url, timeout=60) as answer, packed.open("wb") as file:
                    shutil.copyfileobj(answer, file)
                with tarfile.open(packed) as archive:
                    archive.extractall(fresh, filter="data")
                Path(fresh, target.name).rename(target)
        except (OSError, urllib.error.URLError, tarfile.TarError):
            return None
    return target


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _part(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


@dataclass
class PulsarServer:
    """Can be ended and started again on the same ports with what it held."""

    program: Path
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="tidings-pulsar-")))
    port: int = field(default_factory=free_port)
    web: int = field(default_factory=free_port)
    bookie: int = field(default_factory=free_port)
    key: bytes = field(default_factory=lambda: os.urandom(32))
    process: subprocess.Popen[bytes] | None = None

    @property
    def token(self) -> str:
        said = [_part(json.dumps(part).encode()) for part in ({"alg": "HS256"}, {"sub": "admin"})]
        return ".".join([*said, _part(hmac.digest(self.key, ".".join(said).encode(), hashlib.sha256))])

    def start(self) -> None:
        own = {
            "brokerServicePort": self.port,
            "webServicePort": self.web,
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "allowAutoTopicCreation": "false",
            "brokerDeduplicationEnabled": "true",
            "authenticationEnabled": "true",
            "authenticationProviders": PROVIDER,
            "superUserRoles": "admin",
            "brokerClientAuthenticationPlugin": PLUGIN,
            "brokerClientAuthenticationParameters": f"token:{self.token}",
            "tokenSecretKey": f"data:;base64,{base64.b64encode(self.key).decode()}",
            "tlsEnabled": "false",
        }
        lines = (self.program / "conf" / "standalone.conf").read_text().splitlines()
        kept = [line for line in lines if line.split("=", 1)[0].strip() not in own]
        conf = self.folder / "standalone.conf"
        conf.write_text("\n".join([*kept, *(f"{name}={value}" for name, value in own.items())]) + "\n")
        env = os.environ | {
            "PULSAR_STANDALONE_CONF": str(conf),
            "PULSAR_MEM": "-Xms192m -Xmx384m -XX:MaxDirectMemorySize=384m",
            "PULSAR_GC": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "PULSAR_GC_LOG": "-Xlog:disable",
            "PULSAR_LOG_DIR": str(self.folder / "logs"),
        }
        places = ["--metadata-dir", str(self.folder / "metadata"), "--bookkeeper-dir", str(self.folder / "bookies")]
        command = [str(self.program / "bin" / "pulsar"), "standalone", "-nfw", "-nss", *places]
        command += ["--bookkeeper-port", str(self.bookie)]
        with (self.folder / "said").open("ab") as said:
            self.process = subprocess.Popen(command, stdout=said, stderr=said, cwd=self.folder, env=env)
        end = time.monotonic() + 180
        while not self._answers():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < end, self.said()
            time.sleep(0.3)

    def said(self) -> str:
        return (self.folder / "said").read_text(errors="replace")[-3000:]

    def _answers(self) -> bool:
        try:
            return b"public/default" in self.admin("GET", "namespaces/public")
        except OSError:
            return False

    def admin(self, method: str, path: str) -> bytes:
        headers = {"Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.web}/admin/v2/{path}", method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            found: bytes = answer.read()
        return found

    def create(self, topic: str) -> None:
        self.admin("PUT", f"persistent/public/default/{topic}")

    def end(self, *, kill: bool = False) -> None:
        if self.process is not None:
            self.process.kill() if kill else self.process.terminate()
            self.process.wait(120)
            self.process = None
