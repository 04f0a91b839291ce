"""python -m examples.shop.vendors --books data/vendors.sqlite --secrets secrets --announce data/vendors.json [--port 0] [--script FILE]"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

from . import keys
from .books import Books
from .faults import Fault, Faults
from .server import VENDORS, Server, Simulator, announce


def build(books: Path, secrets: Path, script: dict[str, Any], port: int = 0) -> Server:
    """A server ready to serve; `script` is {"seed": n, "faults": […], "rates": {vendor: [per second, burst]}}."""
    held = Books(books)
    faults = Faults(held, tuple(Fault.read(each) for each in script.get("faults", ())), int(script.get("seed", 0)))
    rates = {name: (float(pair[0]), float(pair[1])) for name, pair in script.get("rates", {}).items()}
    return Server(Simulator(held, keys.make(secrets, tuple(VENDORS)), faults, rates), port)


def main() -> None:
    parser = argparse.ArgumentParser(prog="vendors", description="twelve vendors on one loopback port")
    parser.add_argument("--books", type=Path, required=True)
    parser.add_argument("--secrets", type=Path, required=True)
    parser.add_argument("--announce", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", type=Path)
    parser.add_argument("--with-parent", action="store_true", help="end when the process that started this one ends")
    given = parser.parse_args()
    given.books.parent.mkdir(parents=True, exist_ok=True)
    script = json.loads(given.script.read_text()) if given.script else {}
    server = build(given.books, given.secrets, script, given.port)
    done = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: done.set())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    announce(given.announce, server)
    parent = os.getppid()
    while not done.wait(0.5):
        if given.with_parent and os.getppid() != parent:
            break
    simulator: Simulator = server.RequestHandlerClass.simulator  # type: ignore[attr-defined]
    simulator.stopping.set()
    server.shutdown()
    server.server_close()
    simulator.books.close()


if __name__ == "__main__":
    main()
