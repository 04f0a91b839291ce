"""HTTP Message Signatures (RFC 9421) as Tidings makes them: method, address, digest of the body, webhook-id and webhook-timestamp.

A signature over fewer parts, with another algorithm than its key's, or made at another time does not count. The address is the one
the sender was given; behind a proxy the receiver has to be told it (`url` of `Receiver`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence

from tidings_receiver.signatures import TOLERANCE_S, BadSignature, Key, check_time

COVERED = ("@method", "@target-uri", "content-digest", "webhook-id", "webhook-timestamp")
MOST_SIGNATURES = 8
_INPUT = re.compile(r'([a-z*][a-z0-9_.*-]*)=(\(([^()]*)\)((?:;[^,";]*(?:"[^"]*")?)*))')
_SIGNATURE = re.compile(r"([a-z*][a-z0-9_.*-]*)=:([A-Za-z0-9+/=]*):")
_PARAMETER = re.compile(r';([a-z]+)=(?:"([^"]*)"|([0-9]+))')


def verify_message(
    keys: Sequence[Key],
    request: tuple[str, str, Mapping[str, str], bytes],
    now: float,
    tolerance: int = TOLERANCE_S,
) -> str:
    """The message's id. `request` is method, whole address, headers and body; raises BadSignature."""
    method, target, headers, body = request
    parts = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
    if not {"content-digest", "webhook-id", "webhook-timestamp", "signature", "signature-input"} <= set(parts):
        raise BadSignature("missing_header")
    digest = f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"
    if not hmac.compare_digest(parts["content-digest"].encode(), digest.encode()):
        raise BadSignature("wrong_digest")
    check_time(parts["webhook-timestamp"], now, tolerance)
    parts |= {"@method": method, "@target-uri": target}
    given = dict(_SIGNATURE.findall(parts["signature"]))
    found = _INPUT.findall(parts["signature-input"])[:MOST_SIGNATURES]
    fits = [_fits(keys, parts, one, given.get(one[0], ""), (now, tolerance)) for one in found]
    if not any(fits):
        raise BadSignature("no_match")
    return parts["webhook-id"]


def signature_base(lines: Sequence[tuple[str, str]], params: str) -> bytes:
    """The bytes that are signed (RFC 9421, 2.5)."""
    return "\n".join([*(f'"{name}": {value}' for name, value in lines), f'"@signature-params": {params}']).encode()


def _fits(
    keys: Sequence[Key],
    parts: Mapping[str, str],
    found: tuple[str, str, str, str],
    given: str,
    when: tuple[float, int],
) -> bool:
    _, params, covered, rest = found
    names = [word.strip('"') for word in covered.split()]
    if not set(COVERED) <= set(names) <= set(parts) or len(set(names)) != len(names):
        return False
    said = {name: text or number for name, text, number in _PARAMETER.findall(rest)}
    now, tolerance = when
    created = said.get("created", "")
    if not created.isdigit() or len(created) > 12 or abs(now - int(created)) > tolerance:
        return False
    expires = said.get("expires")
    if expires is not None and (not expires.isdigit() or len(expires) > 12 or now > int(expires)):
        return False
    try:
        signature = base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        return False
    content = signature_base([(name, parts[name]) for name in names], params)
    return any(key.fits(signature, content) for key in keys if said.get("alg", key.algorithm) == key.algorithm)
