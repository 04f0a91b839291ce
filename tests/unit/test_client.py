"""The guarded client: where it will not go, what it will not carry, and that a call's time is all its time."""

from __future__ import annotations

import contextlib
import datetime
import gzip
import ipaddress
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from tidings.channels.addresses import BadTarget, canonical, is_blocked, parse_target
from tidings.channels.client import Answer, Client, Fault, Request

LOOPBACK = ("127.0.0.0/8",)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Script = Callable[[socket.socket], None]


def read_request(sock: socket.socket) -> bytes:
    """One request, as far as its Content-Length says."""
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = sock.recv(65536)
        if not chunk:
            return data
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0
    )
    while len(body) < length:
        body += sock.recv(65536)
    return head + b"\r\n\r\n" + body


@contextlib.contextmanager
def serving(script: Script, context: ssl.SSLContext | None = None) -> Iterator[tuple[int, list[int]]]:
    """A raw server on loopback that runs `script` on every connection; gives its port and the count of connections."""
    listener = socket.create_server(("127.0.0.1", 0))
    accepted: list[int] = []

    def one(sock: socket.socket) -> None:
        with contextlib.suppress(OSError), sock:
            if context:
                sock = context.wrap_socket(sock, server_side=True)
            with sock:
                script(sock)

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            accepted.append(1)
            threading.Thread(target=one, args=(sock,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1], accepted
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def answering(reply: bytes) -> Script:
    def script(sock: socket.socket) -> None:
        while read_request(sock):
            sock.sendall(reply)

    return script


@pytest.fixture
def client() -> Iterator[Client]:
    found = Client(LOOPBACK)
    yield found
    found.close()


def post(client: Client, port: int, timeout: float = 5.0, host: str = "127.0.0.1") -> Answer | Fault:
    return client.request(Request("POST", f"http://{host}:{port}/x", {}, b"{}"), timeout)


def vectors() -> dict[str, Any]:
    home = Path(os.environ.get("TIDINGS_VECTORS", Path(__file__).parents[2].parent / "shared" / "vectors"))
    file = home / "ssrf" / "addresses.json"
    if not file.exists():
        pytest.skip(f"no vectors at {file}; set TIDINGS_VECTORS")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_published_addresses_are_blocked_and_allowed_as_told() -> None:
    told = vectors()
    assert [text for text in told["must_block_ip"] if not is_blocked(canonical(text))] == []
    assert [text for text in told["must_allow_ip"] if is_blocked(canonical(text))] == []


def test_no_published_spelling_reaches_loopback() -> None:
    client = Client(resolver=lambda host, port: ["127.0.0.1"])
    for spelling in vectors()["url_spellings_that_reach_loopback"]:
        found = client.request(Request("GET", spelling.split(" ")[0]), 1)
        assert isinstance(found, Fault), spelling
        assert found.kind == "refused", (spelling, found)


# Our own rows, so that the guard is tested where the published vectors are not at hand.
BLOCKED = ["10.0.0.1", "127.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "fd00::1", "fe80::1", "64:ff9b::a00:1"]
BLOCKED += [
    "2002:7f00:1::",
    "2001:0:1::1",
    "0.0.0.0",
    "100.64.0.1",
    "192.0.0.8",
    "5f00::1",
    "ff02::1",
    "255.255.255.255",
]
PUBLIC = ["1.1.1.1", "2606:4700::1111", "::ffff:9.9.9.9", "192.0.1.1", "172.32.0.1"]


@pytest.mark.parametrize("address", BLOCKED)
def test_an_inside_address_is_refused_by_name_and_by_number(address: str) -> None:
    literal = f"[{address}]" if ":" in address else address
    by_number = Client().request(Request("GET", f"https://{literal}/"), 1)
    by_name = Client(resolver=lambda host, port: ["1.1.1.1", address]).request(Request("GET", "https://a.example/"), 1)
    assert isinstance(by_number, Fault)
    assert isinstance(by_name, Fault)
    assert (by_number.kind, by_number.code) == (by_name.kind, by_name.code) == ("refused", "blocked_address")


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_not_blocked(address: str) -> None:
    assert not is_blocked(canonical(address))


@given(st.ip_addresses(v=6, network="::ffff:0:0/96"))
def test_a_mapped_address_is_judged_as_what_it_maps(address: ipaddress.IPv6Address) -> None:
    assert address.ipv4_mapped is not None
    assert is_blocked(canonical(str(address))) == is_blocked(address.ipv4_mapped)


BAD_URLS = [
    ("ftp://a.example/", "bad_url"),
    ("https://user@a.example/", "bad_url"),
    ("https://a.example/#x", "bad_url"),
    ("https://a.example./", "bad_url"),
    ("https://a..example/", "bad_url"),
    ("https://a.example\\@b.example/", "bad_url"),
    ("https://a.example/\r\nX: y", "bad_url"),
    ("https://a.example/a b", "bad_url"),
    ("https://a.example/ü", "bad_url"),
    ("https://exämple.com/", "bad_url"),
    ("https://127.1/", "bad_url"),
    ("https://0x7f000001/", "bad_url"),
    ("https://0177.0.0.1/", "bad_url"),
    ("https://[::1%25eth0]/", "bad_url"),
    ("https://[::1]x/", "bad_url"),
    ("https://a.example:99999/", "bad_url"),
    ("https://a.example:0/", "bad_url"),
    ("https:///x", "bad_url"),
    ("https://a.example/%2e%2e/admin", "bad_url"),
    ("https://a.example/../admin", "bad_url"),
    ("HTTPS://a.example/", "bad_url"),
    ("", "bad_url"),
]


@pytest.mark.parametrize(("url", "code"), BAD_URLS)
def test_an_odd_url_is_refused(url: str, code: str) -> None:
    found = Client(resolver=lambda host, port: ["1.1.1.1"]).request(Request("GET", url), 1)
    assert isinstance(found, Fault)
    assert (found.kind, found.code) == ("refused", code)


@given(st.text(max_size=40))
def test_no_text_makes_the_parser_do_anything_but_parse_or_refuse(text: str) -> None:
    with contextlib.suppress(BadTarget):
        target = parse_target("https://" + text)
        assert target.host
        assert "@" not in target.host


def test_cleartext_and_service_ports_are_only_for_allowed_networks() -> None:
    outside = Client(resolver=lambda host, port: ["1.1.1.1"])
    for url, code in (("http://a.example/", "cleartext"), ("https://a.example:25/", "blocked_port")):
        found = outside.request(Request("GET", url), 1)
        assert isinstance(found, Fault)
        assert (found.kind, found.code) == ("refused", code)


@pytest.mark.parametrize(
    ("name", "value"),
    [("X-A", "b\r\nX-C: d"), ("X-A", "b\x00"), ("X\r\nA", "b"), ("X A", "b"), ("X-A", "ü"), ("", "b")],
)
def test_a_header_cannot_carry_a_second_one(client: Client, name: str, value: str) -> None:
    found = client.request(Request("POST", "http://127.0.0.1:9/x", {name: value}, b""), 1)
    assert isinstance(found, Fault)
    assert (found.kind, found.code) == ("refused", "bad_header")


def test_rebinding_finds_nothing_to_rebind() -> None:
    """The name is looked up once per connection, and the connection goes to what was checked, whatever it says next."""
    asked: list[str] = []

    def resolver(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.99"]

    with serving(answering(OK)) as (port, accepted):
        client = Client(LOOPBACK, resolver=resolver)
        first, second = post(client, port, host="hook.example"), post(client, port, host="hook.example")
        client.close()
    assert isinstance(first, Answer)
    assert isinstance(second, Answer)
    assert (asked, len(accepted)) == (["hook.example"], 1)


def test_a_name_that_turns_inside_is_refused_on_the_next_connection() -> None:
    answers = iter([["127.0.0.1"], ["169.254.169.254"]])

    def close_after_one(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with serving(close_after_one) as (port, _):
        client = Client(LOOPBACK, resolver=lambda host, number: next(answers))
        assert isinstance(post(client, port, host="hook.example"), Answer)
        second = post(client, port, host="hook.example")
        client.close()
    assert isinstance(second, Fault)
    assert (second.kind, second.code) == ("refused", "blocked_address")


def test_the_host_header_keeps_the_name() -> None:
    heads: list[bytes] = []

    def script(sock: socket.socket) -> None:
        heads.append(read_request(sock))
        sock.sendall(OK)

    with serving(script) as (port, _):
        client = Client(LOOPBACK, resolver=lambda host, number: ["127.0.0.1"])
        assert isinstance(post(client, port, host="hook.example"), Answer)
        client.close()
    assert f"Host: hook.example:{port}".encode() in heads[0]


def _certificate(name: str, folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A self-signed certificate for `name`: the server's context, and a client's that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(
        now + datetime.timedelta(days=1)
    )
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    certificate = builder.sign(key, hashes.SHA256())
    pem = folder / f"{name}.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + private)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem)
    return server, ssl.create_default_context(cafile=str(pem))


@pytest.mark.parametrize(("host", "expected"), [("hook.example", 200), ("other.example", "tls")])
def test_the_certificate_is_checked_against_the_name(tmp_path: Path, host: str, expected: int | str) -> None:
    server, trust = _certificate("hook.example", tmp_path)
    with serving(answering(OK), server) as (port, _):
        client = Client(LOOPBACK, resolver=lambda name, number: ["127.0.0.1"], tls=trust)
        found = client.request(Request("POST", f"https://{host}:{port}/", {}, b"{}"), 5)
        client.close()
    assert (found.status if isinstance(found, Answer) else found.code) == expected
    if isinstance(found, Fault):
        assert found.kind == "not_sent"


def test_an_untrusted_certificate_is_refused(tmp_path: Path) -> None:
    server, _ = _certificate("hook.example", tmp_path)
    with serving(answering(OK), server) as (port, _):
        client = Client(LOOPBACK, resolver=lambda name, number: ["127.0.0.1"])
        found = client.request(Request("POST", f"https://hook.example:{port}/", {}, b"{}"), 5)
        client.close()
    assert found == Fault("not_sent", "tls", "no TLS session")


def test_proxies_and_trust_of_the_environment_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(answering(OK)) as (port, _):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent")
        client = Client(LOOPBACK)
        found = post(client, port)
        client.close()
    assert isinstance(found, Answer)


def test_a_redirect_is_an_answer_and_is_not_followed(client: Client) -> None:
    reply = b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"
    with serving(answering(reply)) as (port, accepted):
        found = post(client, port)
    assert isinstance(found, Answer)
    assert (found.status, len(accepted)) == (302, 1)


def trickle(head: bytes) -> Script:
    def script(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(head)
        for _ in range(200):
            sock.sendall(b"x")
            time.sleep(0.05)

    return script


def hang(sock: socket.socket) -> None:
    read_request(sock)
    time.sleep(5)


SLOW = {
    "hang": hang,
    "trickled head": trickle(b"HTTP/1.1 200 OK\r\nX-A: "),
    "trickled body": trickle(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"),
    "endless body": trickle(b"HTTP/1.1 200 OK\r\n\r\n"),
}


@pytest.mark.parametrize("case", SLOW)
def test_bytes_that_trickle_do_not_stretch_the_time(client: Client, case: str) -> None:
    with serving(SLOW[case]) as (port, _):
        begun = time.monotonic()
        found = post(client, port, timeout=0.4)
        took = time.monotonic() - begun
    assert found == Fault("in_doubt", "timeout", "the time for this call was over")
    assert 0.3 < took < 1.0


def test_a_reader_that_stops_reading_does_not_stretch_the_time(client: Client) -> None:
    with serving(lambda sock: time.sleep(5)) as (port, _):
        begun = time.monotonic()
        found = client.request(Request("POST", f"http://127.0.0.1:{port}/", {}, b"x" * 30_000_000), 0.4)
        took = time.monotonic() - begun
    assert isinstance(found, Fault)
    assert (found.kind, found.code) == ("in_doubt", "timeout")
    assert took < 1.0


def test_a_slow_look_up_does_not_stretch_the_time_and_nothing_was_sent() -> None:
    def resolver(host: str, port: int) -> list[str]:
        time.sleep(3)
        return ["127.0.0.1"]

    begun = time.monotonic()
    found = Client(LOOPBACK, resolver=resolver).request(Request("GET", "http://slow.example/"), 0.3)
    assert found == Fault("not_sent", "timeout", "the time for this call was over")
    assert time.monotonic() - begun < 1.0


def test_a_silent_tls_server_does_not_stretch_the_time() -> None:
    with serving(lambda sock: time.sleep(5)) as (port, _):
        client = Client(LOOPBACK)
        begun = time.monotonic()
        found = client.request(Request("POST", f"https://127.0.0.1:{port}/", {}, b"{}"), 0.4)
        client.close()
    assert isinstance(found, Fault)
    assert (found.kind, found.code) == ("not_sent", "timeout")
    assert time.monotonic() - begun < 1.0


@pytest.mark.parametrize("answers", [[], OSError()])
def test_a_name_without_an_address_was_not_sent(answers: list[str] | OSError) -> None:
    def resolver(host: str, port: int) -> list[str]:
        if isinstance(answers, OSError):
            raise answers
        return answers

    found = Client(LOOPBACK, resolver=resolver).request(Request("GET", "http://none.example/"), 1)
    assert found == Fault("not_sent", "dns", "the name has no address")


def test_a_closed_port_was_not_sent(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert post(client, port) == Fault("not_sent", "connect", "no connection")


def test_the_next_address_is_tried_when_one_is_dead() -> None:
    with serving(answering(OK)) as (port, _):
        client = Client(LOOPBACK, resolver=lambda host, number: ["127.0.0.77", "127.0.0.1"])
        assert isinstance(post(client, port, host="two.example"), Answer)
        client.close()


def reset(head: bytes) -> Script:
    def script(sock: socket.socket) -> None:
        read_request(sock)
        if head:
            sock.sendall(head)
            time.sleep(0.1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")

    return script


BROKEN = {
    "reset at once": (reset(b""), "reset"),
    "reset in the body": (reset(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"), "reset"),
    "closed at once": (lambda sock: read_request(sock) and None, "protocol"),
    "not HTTP": (answering(b"SSH-2.0-x\r\n\r\n"), "protocol"),
    "broken gzip": (
        answering(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"),
        "bad_encoding",
    ),
    "unknown encoding": (
        answering(b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 3\r\n\r\nabc"),
        "bad_encoding",
    ),
    "endless head": (answering(b"HTTP/1.1 200 OK\r\n" + b"X-A: " + b"a" * 300_000 + b"\r\n\r\n"), "protocol"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_an_answer_that_breaks_off_leaves_doubt(client: Client, case: str) -> None:
    script, code = BROKEN[case]
    with serving(script) as (port, _):
        found = post(client, port)
    assert isinstance(found, Fault)
    assert (found.kind, found.code) == ("in_doubt", code)


def test_a_large_answer_is_cut_also_when_it_was_small_on_the_wire(client: Client) -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    plain = b"HTTP/1.1 200 OK\r\nContent-Length: 5000000\r\n\r\n" + b"a" * 5_000_000
    for reply in (head + bomb, plain):
        with serving(answering(reply)) as (port, _):
            found = post(client, port)
        assert isinstance(found, Answer)
        assert (found.status, len(found.body), found.cut) == (200, 1_000_000, True)


def test_informational_answers_are_passed_over_within_the_time(client: Client) -> None:
    with serving(answering(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 50 + OK)) as (port, _):
        found = post(client, port)
    assert isinstance(found, Answer)
    assert found.status == 200


def test_connections_are_kept_and_shared_by_threads(client: Client) -> None:
    with serving(answering(OK)) as (port, accepted):
        workers = [threading.Thread(target=lambda: [post(client, port) for _ in range(50)]) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert len(accepted) <= 4


def test_a_fault_never_repeats_what_was_sent(client: Client) -> None:
    secret = "canary-7f3a"
    request = Request("POST", f"http://127.0.0.1:9/{secret}", {"Authorization": secret}, secret.encode())
    assert secret not in repr(client.request(request, 0.2))
    assert "Authorization" not in repr(request)
