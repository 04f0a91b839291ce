"""`tidings serve`: tokens are shown once, and the server answers over TLS as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_stage import shop
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from typer.testing import CliRunner

from tidings.cli import application
from tidings.errors import Refused


def run(folder: Path, *words: str) -> Any:
    found = CliRunner().invoke(application("serve"), ["serve", *words, "-C", str(folder), "--json"])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return json.loads(found.stdout)


def test_tokens_are_made_listed_and_taken_back(tmp_path: Path) -> None:
    shop(tmp_path)
    made = run(tmp_path, "token", "--subscriber", "alpha")
    assert len(made["token"]) >= 43
    assert [(one["subscriber"], one["id"]) for one in run(tmp_path, "tokens")] == [("alpha", made["id"])]
    assert made["token"] not in json.dumps(run(tmp_path, "tokens"))
    with pytest.raises(Refused) as caught:
        run(tmp_path, "token", "--subscriber", "nobody")
    assert caught.value.code == "unknown_lane"
    assert [one["id"] for one in run(tmp_path, "revoke", "--subscriber", "alpha")] == [made["id"]]
    with pytest.raises(Refused) as caught:
        run(tmp_path, "revoke", "--subscriber", "alpha")
    assert caught.value.code == "unknown_token"


def test_a_token_of_a_scope_has_a_name_that_answers_for_it(tmp_path: Path) -> None:
    shop(tmp_path)
    run(tmp_path, "token", "--scope", "desk", "--name", "first")
    assert [one["subscriber"] for one in run(tmp_path, "tokens")] == ["desk:first"]
    for words in (("--scope", "desk"), ("--scope", "all", "--name", "first"), ("--scope", "desk", "--name", "a:b")):
        with pytest.raises(Refused) as caught:
            run(tmp_path, "token", *words)
        assert caught.value.code == "unknown_scope"
    assert len(run(tmp_path, "revoke", "--scope", "desk", "--name", "first")) == 1


def certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "shop")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), False)
        .sign(key, SHA256())
    )
    files = folder / "api.pem", folder / "api.key"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    kinds = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files[1].write_bytes(key.private_bytes(*kinds))
    return files


def test_a_process_serves_over_tls_and_stops_when_told(tmp_path: Path) -> None:
    place = shop(tmp_path)
    [event] = place.happens("ann")
    token = run(tmp_path, "token", "--subscriber", "alpha")["token"]
    pem, key = certificate(tmp_path)
    words = ["serve", "-C", str(tmp_path), "--port", "0", "--tls-cert", str(pem), "--tls-key", str(key), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tidings.cli", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        told = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        trust = ssl.create_default_context(cafile=str(pem))
        headers = {"Authorization": f"Bearer {token}"}
        url = f"{told['listening']}/v1/subscribers/alpha/events"
        found = httpx.get(url, headers=headers, verify=trust, trust_env=False, timeout=30)
        assert [one["id"] for one in found.json()] == [event]
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode in (0, -signal.SIGTERM)
    assert token not in out + err
    assert "Traceback" not in err
