"""What a run shows while it works: one moving line on a terminal, a line now and then in a log, JSON lines for a machine."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner

EVERY_S = 5.0  # between two lines of a log
_ADDED = ("sent", "acknowledged", "dead", "settled")  # told per step; the rest is how things stand


class Board:
    """Takes what a run says of itself, from any of its threads."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json, self.began, self.shown = as_json, time.monotonic(), ""
        self.read: dict[str, int] = {}
        self.lanes: dict[str, int] = {}
        self._next, self._lock = self.began + EVERY_S, threading.Lock()
        console = Console(stderr=True)
        self.live = (
            Live(self._spinner(), console=console, transient=True) if console.is_terminal and not as_json else None
        )

    def __enter__(self) -> Board:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()
        if kind is None and not self.as_json:
            self._print(self.line())

    def __call__(self, said: Mapping[str, Mapping[str, Any]]) -> None:
        with self._lock:
            if self.as_json:
                self._print(json.dumps({name: value for name, value in said.items() if self._moved(value)}))
            self.read |= said.get("emitted", {})
            for name, value in said.get("lanes", {}).items():
                self.lanes[name] = self.lanes.get(name, 0) + value if name in _ADDED else value
            if self.live is not None:
                self.live.update(self._spinner())
            elif not self.as_json and time.monotonic() >= self._next:
                self._next = time.monotonic() + EVERY_S
                self._print(self.line())

    def line(self) -> str:
        """How far it has come, in the nine nouns."""
        read, lanes = self.read, self.lanes
        parts = [f"{read.get('messages', 0):,} messages", f"{read.get('events', 0):,} events"]
        parts += [f"{read['quarantined']:,} in quarantine"] if read.get("quarantined") else []
        parts += [
            f"{lanes.get('acknowledged', 0):,} deliveries acknowledged",
            f"{lanes.get('unsettled', 0):,} under way",
        ]
        parts += [f"{lanes['dead']:,} dead letters"] if lanes.get("dead") else []
        return f"{time.monotonic() - self.began:4.0f} s  " + " · ".join(parts)

    def _moved(self, value: Mapping[str, Any]) -> bool:
        return any(value.get(name) for name in (*_ADDED, "taken", "ended", "messages"))

    def _spinner(self) -> Spinner:
        return Spinner("dots", self.line() if self.read else "starting Spark")

    def _print(self, text: str) -> None:
        if text not in ("{}", self.shown):
            self.shown = text
            print(text, file=sys.stderr, flush=True)
