"""`python -m tidings_receiver --port 8088 --secret-file hook.key`: an endpoint to try things with.

It checks, drops duplicates and stale events, and prints one line per event: its type and id, nothing of the person. The server is
the standard library's, for a bench and not for the Internet.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from tidings_receiver.events import Event
from tidings_receiver.middleware import wsgi
from tidings_receiver.receiver import Receiver
from tidings_receiver.stores import MemoryStore, SqliteStore


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """What is worth a line is printed by the handler."""


def show(event: Event, connection: Any) -> None:
    print(json.dumps({"id": event.id, "type": event.type, "sequence": event.sequence}), flush=True)


def server(arguments: list[str]) -> WSGIServer:
    parser = argparse.ArgumentParser(prog="python -m tidings_receiver", description=__doc__.split("\n")[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8088)
    parser.add_argument("--path", default="/")
    parser.add_argument("--secret-file", type=Path, required=True, help="whsec_… or whpk_…, one to a line")
    parser.add_argument("--store", help="an SQLite file; memory when it is left out")
    parser.add_argument("--url", default="", help="the address the sender has, for RFC 9421 behind a proxy")
    parser.add_argument("--origin", action="append", default=[], help="an origin that the handshake allows; * is any")
    given = parser.parse_args(arguments)
    store = SqliteStore(given.store) if given.store else MemoryStore()
    secrets = given.secret_file.read_text().split()
    receiver = Receiver(secrets, show, store, url=given.url, origins=given.origin)
    return make_server(given.host, given.port, wsgi(receiver, given.path), _Server, _Quiet)


def main() -> None:
    made = server(sys.argv[1:])
    host, port = made.server_address[:2]
    print(f"listening on http://{host!s}:{port}", file=sys.stderr, flush=True)
    try:
        made.serve_forever()
    except KeyboardInterrupt:
        made.server_close()


if __name__ == "__main__":
    main()
