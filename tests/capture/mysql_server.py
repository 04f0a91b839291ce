"""A MariaDB server from Debian, on loopback and a free port, with a folder of its own; it can be stopped and started again."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
from at_hand import unavailable

OPTIONS = (
    "--log-bin=binlog", "--binlog-format=ROW", "--binlog-row-metadata=FULL", "--gtid-strict-mode=ON", "--log-slave-updates",
    "--innodb-flush-log-at-trx-commit=2", "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M", "--skip-name-resolve",
)  # fmt: skip


def programs() -> tuple[str, str]:
    """The server and the program that makes its folder; installed from Debian when that is possible and they are missing."""
    if not shutil.which("mariadbd") and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-q"], check=False, timeout=300, env=env, **quiet)
        packages = ["apt-get", "install", "-qy", "--no-install-recommends", "mariadb-server"]
        subprocess.run(packages, check=False, timeout=600, env=env, **quiet)
    server, maker = shutil.which("mariadbd"), shutil.which("mariadb-install-db")
    if not server or not maker:
        unavailable("MariaDB is not installed, and Debian's could not be")
    return str(server), str(maker)


@dataclass
class MariaDb:
    """One server; `number` is what its replicas know it by."""

    folder: Path
    port: int
    number: int = 1
    options: tuple[str, ...] = OPTIONS
    process: subprocess.Popen[bytes] | None = None

    def url(self, user: str = "root", password: str = "") -> str:
        return f"mysql://{user}:{password}@127.0.0.1:{self.port}/"

    def connect(self, **more: Any) -> Any:
        given = {"autocommit": True, "charset": "utf8mb4", **more}
        return pymysql.connect(host="127.0.0.1", port=self.port, user="root", password="", **given)

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Statements of one session, each true at once; the rows of the last."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def start(self) -> None:
        user = ["--user=mysql"] if os.geteuid() == 0 else []
        where = [f"--datadir={self.folder / 'data'}", f"--socket={self.folder / 'socket'}", f"--port={self.port}"]
        where += [f"--pid-file={self.folder / 'pid'}", "--bind-address=127.0.0.1", f"--server-id={self.number}"]
        with (self.folder / "log").open("ab") as log:
            command = [programs()[0], "--no-defaults", *user, *where, *self.options]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        end = time.monotonic() + 60
        while True:
            try:
                self.connect().close()
                return
            except pymysql.err.OperationalError:
                said = (self.folder / "log").read_text(errors="replace")[-2000:]
                assert self.process.poll() is None, said
                assert time.monotonic() < end, said
                time.sleep(0.1)

    def stop(self, *, crash: bool = False) -> None:
        if self.process is not None:
            self.process.kill() if crash else self.process.terminate()
            self.process.wait(60)
            self.process = None


@contextmanager
def mariadb(number: int = 1, *options: str) -> Iterator[MariaDb]:
    _, maker = programs()
    folder = Path(tempfile.mkdtemp(prefix="tidings-my-"))
    user = ["--user=mysql"] if os.geteuid() == 0 else []
    if user:
        shutil.chown(folder, "mysql")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    make = [maker, "--no-defaults", *user, f"--datadir={folder / 'data'}", "--auth-root-authentication-method=normal"]
    subprocess.run([*make, "--skip-test-db"], check=True, capture_output=True, cwd=folder, timeout=120)
    server = MariaDb(folder, port, number, (*OPTIONS, *options))
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
