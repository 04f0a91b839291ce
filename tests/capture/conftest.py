"""Real servers from Debian, on loopback and free ports, with folders of their own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "recovery"))


def unavailable(what: str) -> None:
    """Skip and say why; where everything must be there, that is a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)


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


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """A connection string to a server with a logical log."""
    programs = postgresql_programs()
    folder = Path(tempfile.mkdtemp(prefix="tidings-pg-"))
    # The server refuses to run as root.
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if as_user:
        shutil.chown(folder, "postgres")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = folder / "data"
    initdb = [str(programs / "initdb"), "-D", str(data), "-U", "tidings", "-A", "trust", "--no-sync"]
    subprocess.run([*as_user, *initdb], check=True, capture_output=True, cwd=folder, timeout=120)
    options = ["-D", str(data), "-p", str(port), "-k", str(folder), "-h", "127.0.0.1", "-c", "wal_level=logical"]
    options += [
        "-c",
        "max_replication_slots=20",
        "-c",
        "max_wal_senders=20",
        "-c",
        "fsync=off",
        "-c",
        "max_prepared_transactions=5",
    ]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([*as_user, str(programs / "postgres"), *options], stdout=log, stderr=log, cwd=folder)
    address = f"host=127.0.0.1 port={port} user=tidings dbname=postgres"
    try:
        _wait_for(address, server, folder / "log")
        yield address
    finally:
        server.terminate()
        server.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


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
