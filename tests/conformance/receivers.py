"""Programs at the other end of a channel, each a process of its own: `python receivers.py KIND PORT FOLDER`, the secret in SECRET.

    loader   a warehouse's loader as catalog/subscribers/warehouse_http.yaml describes it: each id once, durable before the answer
    hook     a webhook's endpoint out of the receiver kit, whose handler writes through the turn's connection
    mail     a mail server with a password

A place is a folder under FOLDER that is there; what a place took stands in it, in the order in which it came.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import threading
from contextlib import closing
from email.utils import parseaddr
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOOK = "CREATE TABLE IF NOT EXISTS took (n INTEGER PRIMARY KEY, id TEXT, subject TEXT, body TEXT)"
TAKE = "INSERT INTO took (id, subject, body) VALUES (?, ?, ?)"


def opened(place: Path) -> sqlite3.Connection:
    db = sqlite3.connect(place / "took.db", timeout=30)
    db.execute(TOOK)
    return db


def loader(port: int, folder: Path, secret: str) -> None:
    turn = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            place, rest = self.where()
            if place is not None and rest == "events":
                self.load(place, json.loads(body)["events"])

        def do_GET(self) -> None:
            place, rest = self.where()
            if place is None:
                return
            with closing(opened(place)) as db:
                known = db.execute("SELECT 1 FROM took WHERE id = ?", (rest.removeprefix("events/"),)).fetchone()
            self.say(200 if known or rest == "health" else 404)

        def where(self) -> tuple[Path | None, str]:
            name, _, rest = self.path.strip("/").partition("/")
            if self.headers.get("Authorization") != f"Bearer {secret}":
                self.say(401)
            elif not (folder / name).is_dir():
                self.say(404)
            else:
                return folder / name, rest
            return None, ""

        def load(self, place: Path, events: list[dict[str, Any]]) -> None:
            with turn, closing(opened(place)) as db:
                for event in events:
                    if not db.execute("SELECT 1 FROM took WHERE id = ?", (event["id"],)).fetchone():
                        db.execute(TAKE, (event["id"], event["subject"], json.dumps(event)))
                db.commit()
            self.say(200)

        def say(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def hook(port: int, folder: Path, secret: str) -> None:
    import uvicorn
    from tidings_receiver import Event, Receiver, SqliteStore, asgi

    def handle(event: Event, connection: sqlite3.Connection) -> None:
        if event.type != "tidings.ping":
            connection.execute(TAKE, (event.id, event.subject, json.dumps(dict(event.attributes))))

    ends: dict[str, Any] = {}

    def end_of(name: str) -> Any:
        with closing(opened(folder / name)):
            return asgi(Receiver([secret], handle, SqliteStore(folder / name / "took.db")), f"/{name}")

    nobody = asgi(Receiver([secret], handle), "/?")

    async def application(scope: Any, receive: Any, send: Any) -> None:
        name = scope["path"].strip("/")
        if name not in ends and (folder / name).is_dir():
            ends[name] = end_of(name)
        await ends.get(name, nobody)(scope, receive, send)

    uvicorn.run(application, host="127.0.0.1", port=port, lifespan="off", log_level="error")


def mail(port: int, folder: Path, secret: str) -> None:
    from aiosmtpd.controller import Controller
    from aiosmtpd.smtp import AuthResult, LoginPassword

    class Inbox:
        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
            for address in envelope.rcpt_tos:
                place = folder / parseaddr(address)[1].partition("@")[0]
                number = len(list(place.glob("*.eml")))
                (place / "coming").write_bytes(envelope.content)
                (place / "coming").rename(place / f"{number:06d}.eml")
            return "250 taken"

    def may(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        good = isinstance(data, LoginPassword) and data.password == secret.encode()
        return AuthResult(success=good, handled=False)

    own = {"authenticator": may, "auth_required": True, "auth_require_tls": False}
    Controller(Inbox(), hostname="127.0.0.1", port=port, **own).start()  # type: ignore[arg-type]
    signal.pause()


if __name__ == "__main__":
    kinds = {"loader": loader, "hook": hook, "mail": mail}
    kinds[sys.argv[1]](int(sys.argv[2]), Path(sys.argv[3]), os.environ["SECRET"])
