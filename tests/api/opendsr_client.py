"""A controller that speaks OpenDSR, written from the protocol alone: it imports nothing of the product.

    python opendsr_client.py --server URL --domain D --user U --password P --ca ca.pem --path v2 --id UUID --body body.json

Creates a request, asks for its status, waits for its callback, and prints what it found as JSON. Every answer and every callback is
checked in the protocol's order before it is parsed: allow-list of domains, certificate (chain, dates, name), signature over the raw bytes.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import http.server
import json
import queue
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.hashes import SHA256

PREFIX = {"v1": "X-OpenGDPR", "v2": "X-OpenDSR", "v3": "X-OpenDSR"}
ROUTE = {"v1": "opengdpr_requests", "v2": "requests", "v3": "requests"}


class Untrusted(Exception):
    """The word of somebody who is not the processor."""


class Processor:
    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.place = given, urlsplit(given.server)
        self.trusted = x509.load_pem_x509_certificates(Path(given.ca).read_bytes())
        self.leaf: x509.Certificate | None = None

    def call(self, method: str, path: str, body: bytes | None = None) -> tuple[int, dict[str, str], bytes]:
        line = http.client.HTTPConnection(self.place.hostname or "", self.place.port, timeout=20)
        user = base64.b64encode(f"{self.given.user}:{self.given.password}".encode()).decode()
        headers = {"Authorization": f"Basic {user}", "Content-Type": "application/json", "Accept": "application/json"}
        line.request(method, path, body, headers)
        answer = line.getresponse()
        found = answer.status, dict(answer.getheaders()), answer.read()
        line.close()
        return found

    def certificate(self) -> x509.Certificate:
        """Found through discovery, fetched from the processor's own domain, and believed for its chain, dates and name."""
        if self.leaf is None:
            _, _, said = self.call("GET", f"/{self.given.path}/discovery")
            where = urlsplit(json.loads(said)["processor_certificate"])
            if where.hostname != self.given.domain or where.scheme != "https":
                raise Untrusted("the certificate is offered at another domain")
            chain = x509.load_pem_x509_certificates(self.call("GET", where.path)[2])
            self.leaf = self._believed(chain)
        return self.leaf

    def _believed(self, chain: list[x509.Certificate]) -> x509.Certificate:
        leaf, now = chain[0], datetime.now(UTC)
        if leaf.issuer == leaf.subject:
            raise Untrusted("a certificate that signed itself")
        if not leaf.not_valid_before_utc <= now <= leaf.not_valid_after_utc:
            raise Untrusted("a certificate out of date")
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if self.given.domain not in names.get_values_for_type(x509.DNSName):
            raise Untrusted("a certificate for another name")
        for authority in self.trusted:
            try:
                leaf.verify_directly_issued_by(authority)
                return leaf
            except (InvalidSignature, ValueError):
                continue
        raise Untrusted("no trusted authority issued it")

    def checked(self, headers: dict[str, str], body: bytes) -> dict:
        named = {name.lower(): value for name, value in headers.items()}
        prefix = PREFIX[self.given.path].lower()
        if named.get(f"{prefix}-processor-domain") != self.given.domain:
            raise Untrusted("a domain that is not on the list")
        signature = base64.b64decode(named[f"{prefix}-signature"])
        try:
            self.certificate().public_key().verify(signature, body, padding.PKCS1v15(), SHA256())
        except InvalidSignature:
            raise Untrusted("a signature that does not fit the bytes") from None
        return json.loads(body)


def listening(processor: Processor, port: int) -> tuple[http.server.HTTPServer, queue.Queue]:
    heard: queue.Queue = queue.Queue()

    class Callbacks(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            try:
                said = processor.checked(dict(self.headers.items()), body)
                fits = said["status_callback_url"] == f"http://127.0.0.1:{port}{self.path}"
            except Untrusted:
                fits = False
            self.send_response(202 if fits else 403)
            self.end_headers()
            if fits:
                heard.put(said)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", port), Callbacks)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, heard


def main() -> None:
    words = argparse.ArgumentParser()
    for name in ("server", "domain", "user", "password", "ca", "path", "id", "body", "port", "until"):
        words.add_argument(f"--{name}", required=True)
    given = words.parse_args()
    processor = Processor(given)
    server, heard = listening(processor, int(given.port))
    route = f"/{given.path}/{ROUTE[given.path]}"
    body = Path(given.body).read_bytes()
    status, headers, raw = processor.call("POST", route, body)
    made = processor.checked(headers, raw)
    assert status == 201, (status, made)
    assert base64.b64decode(made.pop("encoded_request")) == body
    status, headers, raw = processor.call("GET", f"{route}/{given.id}")
    stands = processor.checked(headers, raw)
    assert status == 200, (status, stands)
    callbacks = []
    print(json.dumps({"created": made, "status": stands}), flush=True)
    while not callbacks or callbacks[-1]["request_status"] != given.until:
        callbacks.append(heard.get(timeout=30))
    server.shutdown()
    print(json.dumps({"callbacks": callbacks}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
