"""Callbacks to controllers: each change of a request's status is owed to each address once, on disk before it is sent, and tried again.

`step` looks which requests stand otherwise than their askers were told, and sends what is due; `tidings serve` calls it about once a
second, one process at a time. An address hears the changes of one request in their order. At least once: a crash after the send and
before the note sends it again. What breaks it: an address that takes nothing for three days; the status can be asked for all the same.
"""

from __future__ import annotations

import asyncio
import fcntl
import ipaddress
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tidings.api.opendsr_register import Register, Row
from tidings.channels.addresses import BadTarget, check_addresses, parse_target
from tidings.channels.client import Answer, Client, Request, shared_client
from tidings.rights import book as requests
from tidings.rights import drp
from tidings.rights import opendsr_bodies as bodies
from tidings.rights.book import Book
from tidings.rights.opendsr import VERSIONS

if TYPE_CHECKING:
    from tidings.api.opendsr_sign import Signer
    from tidings.settings import Settings

WAITS_S = (60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 24 * 3600)
AT_ONCE = 50
TIMEOUT_S = 10.0
FORGET_S = 30 * 86_400  # after the end: addresses and group


def agreed(url: str, hosts: Sequence[str], allow: Sequence[str]) -> bool:
    """Whether an address is on a host that was agreed on and not inside; a name is looked up again when it is sent to."""
    try:
        target = parse_target(url)
        if target.host not in hosts:
            return False
        if _is_address(target.host):
            check_addresses(target, [target.host], [ipaddress.ip_network(one) for one in allow])
    except BadTarget:
        return False
    return True


def _is_address(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def known(book: Book, name: str) -> requests.Request | None:
    """The request of this id, or the one of the same person that it was merged into."""
    request = book.requests.get(name)
    if request is not None and request.happened("merged") and (same := request.details.get("same_as")):
        return book.requests.get(same, request)
    return request


def stands(row: Row, request: requests.Request | None) -> str:
    """How a request stands, in its asker's words."""
    return drp.status_of(request) if row.protocol == "drp" else bodies.status_of(request)


@dataclass
class CallbacksOut:
    settings: Settings
    register: Register
    book: Book
    signer: Signer | None = None  # of OpenDSR; the Data Rights Protocol signs no callback
    clock: Callable[[], float] = time.time
    client: Client | None = None
    sent: int = field(default=0, init=False)

    def step(self) -> int:
        """How many were sent; 0 as well while another process is at it."""
        with self.register.path.with_name("sending.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return 0
            self.book.refresh()
            self._owe()
            return self._send()

    def _owe(self) -> None:
        now = self.clock()
        with self.register.open() as connection:
            for row in self.register.open_rows(connection):
                request = known(self.book, row.request)
                status = stands(row, request)
                if status == row.told:
                    continue
                for place in range(len(row.callbacks)):
                    said = (row.request, place, status, now)
                    connection.execute("INSERT INTO owed (request, place, status, at) VALUES (?, ?, ?, ?)", said)
                over = now if request is not None and not request.open else None
                due = request.due.timestamp() if request is not None and request.due else None
                told = "UPDATE asked SET told = ?, ended = ?, expected = coalesce(?, expected) WHERE request = ?"
                connection.execute(told, (status, over, due, row.request))
                if over or (row.kind == "erasure" and request is not None and request.state == "working"):
                    blank = "UPDATE asked SET salt = NULL, digest = NULL, likeness = NULL WHERE request = ?"
                    connection.execute(blank, (row.request,))
            connection.execute("UPDATE asked SET sealed = NULL, grouped = NULL WHERE ended < ?", (now - FORGET_S,))
            connection.execute("DELETE FROM owed WHERE over != '' AND at < ?", (now - FORGET_S,))

    def _send(self) -> int:
        now, sent = self.clock(), 0
        with self.register.open() as connection:
            due = connection.execute(
                "SELECT * FROM owed AS one WHERE over = '' AND at <= ? AND NOT EXISTS (SELECT 1 FROM owed AS before WHERE"
                " before.request = one.request AND before.place = one.place AND before.over = ''"
                " AND before.number < one.number) ORDER BY at LIMIT ?",
                (now, AT_ONCE),
            ).fetchall()
            rows = {one["request"]: self.register.one(connection, one["request"]) for one in due}
        for one in due:
            row = rows[one["request"]]
            taken = row is not None and one["place"] < len(row.callbacks) and self._post(row, one)
            self._noted(one, bool(taken))
            sent += bool(taken)
        return sent

    def _post(self, row: Row, one: Mapping[str, Any]) -> bool:
        url = row.callbacks[one["place"]]
        body = json.dumps(self.document(row, one["status"], url)).encode()
        signed = self.signer.headers(body) if self.signer and row.protocol == "opendsr" else {}
        headers = {"Content-Type": "application/json", **signed}
        client = self.client or shared_client(self.settings.network.allow)
        answer = client.request(Request("POST", url, headers, body), TIMEOUT_S, cap=4096)
        return isinstance(answer, Answer) and 200 <= answer.status < 300

    def document(self, row: Row, status: str, url: str = "") -> dict[str, Any]:
        """The status body of a row."""
        request, third = known(self.book, row.request), row.version == "3.0"
        if row.protocol == "drp":
            return drp.status_body(request, row) | {"status": status}
        told: dict[str, Any] = {
            "controller_id": row.agent,
            "expected_completion_time": bodies.rfc3339((request and request.due) or row.expected),
            "subject_request_id": row.reference,
            "request_status": status,
            "api_version": row.version,
        }
        results = bodies.fetched_from(request, self._answer_of(row), datetime.fromtimestamp(self.clock(), UTC))
        if third or results:
            told["results_url"] = results
        if third:
            told["group_id"] = row.group or None
            told["extensions"] = bodies.forwarded(request, self.signer.domain if self.signer else "")
        return told | ({"status_callback_url": url} if url else {})

    def _answer_of(self, row: Row) -> str:
        """Where the controller fetches what an access request brought together."""
        domain = self.signer.domain if self.signer else ""
        path = next((one.path for one in VERSIONS.values() if one.api == row.version), "v2")
        return f"https://{domain}/{path}/requests/{row.reference}/results"

    def _noted(self, one: Mapping[str, Any], taken: bool) -> None:
        tries = one["tries"] + 1
        over = "sent" if taken else "given_up" if tries > len(WAITS_S) else ""
        at = self.clock() + (0 if over else WAITS_S[tries - 1])
        with self.register.open() as connection:
            said = (tries, over, at, one["number"])
            connection.execute("UPDATE owed SET tries = ?, over = ?, at = ? WHERE number = ?", said)

    async def calling(self, stopping: asyncio.Event) -> None:
        """Step until the server stops."""
        while not stopping.is_set():
            await asyncio.to_thread(self.step)
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), 1.0)
