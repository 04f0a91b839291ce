"""A policy engine in a process of its own: what loops or crashes ends there and not here.

The process ends itself by the clock (SIGALRM), so it cannot outlive its time even when it is stuck in foreign code or its parent is
gone. Questions and answers are JSON, one a line; what the engine prints goes nowhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from tidings.engines.answers import Broken, Unanswered

MAX_LINE = 1_000_000


class Worker:
    """Starts the process when it is needed, and again after it ended."""

    def __init__(self, kind: str, files: Mapping[str, str], timeout_s: float) -> None:
        self._setup = {"kind": kind, "files": dict(files), "timeout_s": timeout_s}
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def __call__(self, question: Mapping[str, Any]) -> object:
        with self._lock:
            if self._process is None:
                self._start()
            return self._exchange(question)

    def load(self) -> None:
        """Raises Broken when the policy cannot be read."""
        with self._lock:
            if self._process is None:
                self._start()

    def close(self) -> None:
        with self._lock:
            self._end()

    def _start(self) -> None:
        # Nothing of our environment: there may be secrets in it, and an engine has no business with them.
        surroundings = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PATH": os.defpath}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tidings.engines.inside"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=surroundings,
            start_new_session=True,
        )
        self._finalizer = weakref.finalize(self, _close, self._process)
        try:
            self._exchange(self._setup)
        except Broken:
            self._end()
            raise

    def _exchange(self, question: Mapping[str, Any]) -> object:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise Unanswered("its process is not there")
        line = b""
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline(MAX_LINE)
        except OSError:
            pass  # it is gone; told below
        except BaseException:
            self._end()  # its answer may still come, and would be taken for that of the next question
            raise
        if not line.endswith(b"\n"):
            raise Unanswered(self._obituary())
        answer = json.loads(line)
        if "broken" in answer:
            raise Broken(str(answer["broken"]))
        return answer["found"]

    def _obituary(self) -> str:
        process = self._process
        self._end()
        if process is not None and process.returncode == -signal.SIGALRM:
            return f"no answer within {self._setup['timeout_s']:g} seconds"
        return "its process ended"

    def _end(self) -> None:
        if self._process is not None:
            self._finalizer()
            self._process = None


def _close(process: subprocess.Popen[bytes]) -> None:
    """Ends it by closing its input; what does not end then is killed."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    try:
        process.wait(timeout=0.5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
