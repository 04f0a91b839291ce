"""A subscriber of its own process: every request is on disk before it is answered. `python receiver.py BOOK ANNOUNCE`

A line of the book: which endpoint, under which key, which event, about whom, and what it said.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Book:
    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, line: dict[str, Any]) -> None:
        with self._lock:
            os.write(self._handle, json.dumps(line).encode() + b"\n")
            os.fsync(self._handle)


def told(endpoint: str, key: str, event: dict[str, Any]) -> dict[str, Any]:
    image = event["data"].get("after") or event["data"].get("before") or {}
    names = {name: event[name] for name in ("id", "type", "source", "subject", "sequence")}
    return {"endpoint": endpoint, "key": key, **names, "marker": image.get("email"), "data": event["data"]}


def main(book: Path, announce: Path) -> None:
    written = Book(book)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            written.write(told(self.path.strip("/"), self.headers["Idempotency-Key"], event))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_: Any) -> None:
            """A caller that is killed hangs up."""

    server = Server(("127.0.0.1", 0), Handler)
    part = announce.with_suffix(".part")
    part.write_text(f"http://127.0.0.1:{server.server_port}")
    part.rename(announce)
    parent = os.getppid()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while os.getppid() == parent:
        threading.Event().wait(0.5)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
