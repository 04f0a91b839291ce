"""A real PostgreSQL from Debian, on loopback and a free port, with a folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from at_hand import unavailable


def postgresql_programs() -> Path:
    """The folder of PostgreSQL's programs; installed from Debian when that is possible and they are missing."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-q"], check=False, timeout=300, env=env, **quiet)
        packages = ["apt-get", "install", "-qy", "--no-install-recommends", "postgresql"]
        subprocess.run(packages, check=False, timeout=600, env=env, **quiet)
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        unavailable("PostgreSQL is not installed, and Debian's could not be")
    return found[-1].parent


@dataclass
class Database:
    """A PostgreSQL server with a logical log, in a folder of its own; it can be stopped and started."""

    folder: Path
    programs: Path = field(default_factory=postgresql_programs)
    server: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        # The server refuses to run as root.
        self.as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if self.as_user:
            shutil.chown(self.folder, "postgres")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        initdb = [str(self.programs / "initdb"), "-D", str(self.data), "-U", "tidings", "-A", "trust", "--no-sync"]
        subprocess.run([*self.as_user, *initdb], check=True, capture_output=True, cwd=self.folder, timeout=120)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def address(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=tidings dbname=postgres"

    def start(self) -> None:
        options = ["-D", str(self.data), "-p", str(self.port), "-k", str(self.folder), "-h", "127.0.0.1"]
        for setting in (
            "wal_level=logical",
            "max_replication_slots=20",
            "max_wal_senders=20",
            "fsync=off",
            "max_prepared_transactions=5",
        ):
            options += ["-c", setting]
        command = [*self.as_user, str(self.programs / "postgres"), *options]
        with (self.folder / "log").open("ab") as log:
            self.server = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        _wait_for(self.address, self.server, self.folder / "log")

    def stop(self) -> None:
        """A fast shutdown: sessions are ended, nothing committed is lost."""
        assert self.server is not None
        (postmaster, *_) = (self.data / "postmaster.pid").read_text().splitlines()
        os.kill(int(postmaster), signal.SIGINT)
        self.server.wait(60)


def _wait_for(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    import psycopg

    end = time.monotonic() + 60
    while True:
        assert server.poll() is None, log.read_text(errors="replace")[-2000:]
        try:
            psycopg.connect(address, connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            assert time.monotonic() < end, log.read_text(errors="replace")[-2000:]
            time.sleep(0.1)
