"""An operator that is a processor of OpenDSR, with a certificate of an authority made here; and the desk's steps, written by hand."""

from __future__ import annotations

import socket
import sys
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))
from lane_stage import arrow_schema, operator

from tidings.settings import Settings, load
from tidings.store import Store

DOMAIN = "dsr.shop.example"
USER, PASSWORD = "key-1", "a:long secret"
RIGHTS = """\
rights:
  opendsr:
    domain: dsr.shop.example
    certificate: dsr.pem
    signing_key: file:dsr.key
    controllers:
      acme: {credentials: file:acme.basic, callback_hosts: ["127.0.0.1", 10.0.0.5, hooks.acme.example]}
      other: {credentials: file:other.basic, types: [erasure]}
"""


def pem(key: rsa.RSAPrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def issued(folder: Path, domain: str = DOMAIN, *, days: int = 2, itself: bool = False) -> None:
    """An authority, and a certificate that it issued to the domain."""
    now = datetime.now(UTC)

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    keys = [rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2)]

    def made(subject: str, issuer: str, public: Any, signing: Any) -> x509.CertificateBuilder:
        built = x509.CertificateBuilder().subject_name(named(subject)).issuer_name(named(issuer)).public_key(public)
        built = built.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=9))
        return built.not_valid_after(now + timedelta(days=days))

    authority = made("authority", "authority", keys[0].public_key(), keys[0])
    authority = authority.add_extension(x509.BasicConstraints(True, 0), True).sign(keys[0], SHA256())
    issuer, key = (domain, keys[1]) if itself else ("authority", keys[0])
    names = x509.SubjectAlternativeName([x509.DNSName(domain)])
    leaf = made(domain, issuer, keys[1].public_key(), key).add_extension(names, False).sign(key, SHA256())
    (folder / "ca.pem").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    (folder / "dsr.pem").write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    (folder / "secrets/dsr.key").write_bytes(pem(keys[1]))


def processor(folder: Path, rights: str = RIGHTS) -> Settings:
    operator(folder, {"hook": "http://127.0.0.1:1/hook"})
    (folder / "tidings.yaml").write_text((folder / "tidings.yaml").read_text() + rights)
    issued(folder)
    (folder / "secrets/acme.basic").write_text(f"{USER}:{PASSWORD}")
    (folder / "secrets/other.basic").write_text("key-2:other secret")
    for file in (folder / "secrets").iterdir():
        file.chmod(0o600)
    return load(folder)


class Steps:
    """What the desk would write."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.store, self.number = settings, Store(settings.data_path / "tables"), 0

    def step(self, request: str, state: str, **given: Any) -> None:
        self.number += 1
        now = datetime.now(UTC)
        row: dict[str, Any] = dict.fromkeys(arrow_schema("rights_requests").names)
        row |= {"request": request, "step": self.number, "what": state, "kind": "erasure", "state": state}
        row |= {
            "way": "opendsr",
            "opened": now,
            "changed": now,
            "actor": "desk",
            "fingerprint": request.encode(),
        } | given
        name = self.store.fresh("rights_requests")
        folder = Path(name)
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist([row], schema=arrow_schema("rights_requests")), folder / "part-0.parquet")
        self.store.commit("rights_requests", name, app="desk", version=self.number)


def body(**given: Any) -> dict[str, Any]:
    return {
        "regulation": "gdpr",
        "subject_request_id": str(uuid.uuid4()),
        "subject_request_type": "erasure",
        "submitted_time": "2025-11-03T15:00:00Z",
        "subject_identities": [
            {"identity_type": "email", "identity_value": "ann@example.com", "identity_format": "raw"}
        ],
    } | given


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])
