"""The process of a policy engine; started by `worker.Worker`, spoken to over its own input and output.

Its time is kept by the kernel: an alarm that nobody catches ends the process, also in the middle of foreign code.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO

from tidings.engines.answers import Broken

LOAD_S = 20.0


def serve(questions: IO[bytes], answers: IO[bytes]) -> None:
    """Read the policy, then answer until the input ends."""
    setup = json.loads(questions.readline())
    engine: list[Callable[[object], object]] = []

    def load() -> object:
        engine.append(import_module(f"tidings.engines.{setup['kind']}").load(setup["files"]))
        return []

    answers.write(_told(load, LOAD_S))
    answers.flush()
    for line in questions if engine else ():
        answers.write(_told(partial(_answered, engine[0], line), setup["timeout_s"]))
        answers.flush()


def _answered(engine: Callable[[object], object], line: bytes) -> object:
    return engine(json.loads(line))


def _told(work: Callable[[], object], seconds: float) -> bytes:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        text = json.dumps({"found": work()})
    except Broken as broken:
        text = json.dumps({"broken": str(broken)})
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0][:200]
        text = json.dumps({"broken": f"{type(error).__name__}: {first}"})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return text.encode() + b"\n"


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    # When memory runs out this process goes first. A limit would not do: allocators reserve far more addresses than they fill.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Engines print what they like; only answers may reach the pipe.
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    serve(os.fdopen(0, "rb"), pipe)
