"""HTTP Message Signatures (RFC 9421), one profile of them: what a webhook or a callback covers is fixed, not negotiated.

    Content-Digest: sha-256=:…:
    Signature-Input: t0=("@method" "@target-uri" "content-digest" "webhook-id" "webhook-timestamp");created=…;keyid="…";alg="…"
    Signature: t0=:…:

One signature per key (`t0`, `t1`, … while one key replaces another), `hmac-sha256` or `ed25519` by the kind of key. A signature
over less than these five, with another algorithm than its key's, or made too long ago is refused.

What breaks it: a proxy that changes the address and does not tell the receiver which one was asked for.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tidings.channels.signing import TOLERANCE_S, BadSignature, Checker, Signer, check_time, raw_fits, raw_signature

COVERED = ("@method", "@target-uri", "content-digest", "webhook-id", "webhook-timestamp")
MOST_SIGNATURES = 8
_INPUT = re.compile(
    r'(?P<label>[a-z*][a-z0-9_.*-]*)=(?P<params>\((?P<covered>[^()]*)\)(?P<rest>(?:;[^,";]*(?:"[^"]*")?)*))'
)
_CREATED = re.compile(r";created=([0-9]{1,12})(?=;|$)")
_ALGORITHM = re.compile(r';alg="([a-z0-9-]+)"(?=;|$)')
_EXPIRES = re.compile(r";expires=([0-9]{1,12})(?=;|$)")
_SIGNATURE = re.compile(r"([a-z*][a-z0-9_.*-]*)=:([A-Za-z0-9+/=]*):")


@dataclass(frozen=True)
class Message:
    """The parts of a request that are signed. `target` is the whole address as the sender wrote it."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    def component(self, name: str) -> str:
        """The value of one covered component; BadSignature when the request has none."""
        if name == "@method":
            return self.method
        if name == "@target-uri":
            return self.target
        found = [value for key, value in self.headers.items() if key.lower() == name]
        if not found:
            raise BadSignature("missing_header")
        return ", ".join(" ".join(value.split()) for value in found)


def content_digest(body: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def signature_base(lines: Sequence[tuple[str, str]], params: str) -> bytes:
    """The bytes that are signed: a line per component and the parameters last (RFC 9421, 2.5)."""
    return "\n".join([*(f'"{name}": {value}' for name, value in lines), f'"@signature-params": {params}']).encode()


def sign_message(keys: Sequence[Signer], message: Message, created: int) -> dict[str, str]:
    """The three headers to add. The message must already carry `webhook-id` and `webhook-timestamp`."""
    digest = content_digest(message.body)
    whole = Message(message.method, message.target, {**message.headers, "Content-Digest": digest}, message.body)
    lines = [(name, whole.component(name)) for name in COVERED]
    covered = " ".join(f'"{name}"' for name in COVERED)
    inputs, signatures = [], []
    for number, key in enumerate(keys):
        params = f'({covered});created={created};keyid="{key_id(key)}";alg="{_algorithm(key)}"'
        made = base64.b64encode(raw_signature(key, signature_base(lines, params))).decode()
        inputs.append(f"t{number}={params}")
        signatures.append(f"t{number}=:{made}:")
    return {"Content-Digest": digest, "Signature-Input": ", ".join(inputs), "Signature": ", ".join(signatures)}


def verify_message(keys: Sequence[Checker], message: Message, now: float, tolerance: int = TOLERANCE_S) -> None:
    """Raise BadSignature unless one signature covers all five components, fits one key and was made just now."""
    if not keys:
        raise BadSignature("no_secret")
    if not hmac.compare_digest(message.component("content-digest").encode(), content_digest(message.body).encode()):
        raise BadSignature("wrong_digest")
    check_time(message.component("webhook-timestamp"), now, tolerance)
    given = dict(_SIGNATURE.findall(message.component("signature")))
    fits = [
        _fits(keys, message, found, given.get(found["label"], ""), (now, tolerance))
        for found in list(_INPUT.finditer(message.component("signature-input")))[:MOST_SIGNATURES]
    ]
    if not any(fits):
        raise BadSignature("no_match")


def _fits(keys: Sequence[Checker], message: Message, found: re.Match[str], given: str, when: tuple[float, int]) -> bool:
    covered = found["covered"].split()
    if not {f'"{name}"' for name in COVERED} <= set(covered) or len(set(covered)) != len(covered):
        return False
    made, ends, algorithm = (pattern.search(found["rest"]) for pattern in (_CREATED, _EXPIRES, _ALGORITHM))
    now, tolerance = when
    if made is None or abs(now - int(made[1])) > tolerance or (ends and now > int(ends[1])):
        return False
    try:
        signature = base64.b64decode(given, validate=True)
        lines = [(word.strip('"'), message.component(word.strip('"'))) for word in covered]
    except (binascii.Error, ValueError, BadSignature):
        return False
    content = signature_base(lines, found["params"])
    named = algorithm[1] if algorithm else None
    return any(raw_fits(key, signature, content) for key in keys if named in (None, _algorithm(key)))


def _algorithm(key: Signer | Checker) -> str:
    return "ed25519" if isinstance(key, Ed25519PrivateKey | Ed25519PublicKey) else "hmac-sha256"


def key_id(key: Signer) -> str:
    """A name for a key that says nothing about it."""
    public = key.public_key().public_bytes_raw() if isinstance(key, Ed25519PrivateKey) else key
    return hashlib.sha256(b"tidings/keyid\x1f" + public).hexdigest()[:16]
