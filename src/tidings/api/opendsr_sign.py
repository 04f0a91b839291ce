"""Our signature under everything that OpenDSR hears from us: RSA with SHA-256 over the bytes as sent, and the certificate for it.

What is wrong with certificate or key is refused when the server starts, not when a controller complains.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tidings.errors import Refused
from tidings.opendsr_shapes import OpenDsr

if TYPE_CHECKING:
    from tidings.settings import Settings


@dataclass(frozen=True)
class Signer:
    domain: str
    chain: bytes
    _key: RSAPrivateKey = field(repr=False)

    def headers(self, body: bytes) -> dict[str, str]:
        """Under the names of both versions: version 2 must honour those of version 1."""
        signature = base64.b64encode(self._key.sign(body, PKCS1v15(), SHA256())).decode()
        pairs = {"Processor-Domain": self.domain, "Signature": signature}
        return {f"X-{name}-{end}": value for name in ("OpenDSR", "OpenGDPR") for end, value in pairs.items()}


def signer(settings: Settings, processor: OpenDsr) -> Signer:
    try:
        chain = (settings.directory / processor.certificate).read_bytes()
        leaf = x509.load_pem_x509_certificates(chain)[0]
        key = load_pem_private_key(settings.secret(processor.signing_key).reveal_bytes(), None)
    except (OSError, ValueError, TypeError, IndexError):
        raise _refused("a certificate or key that cannot be read", "two PEM files") from None
    if not isinstance(key, RSAPrivateKey) or key.key_size < 2048:
        raise _refused("another key", "an RSA key of 2048 bits or more")
    if leaf.public_key() != key.public_key():
        raise _refused("a certificate for another key", "the certificate of the signing key")
    if leaf.issuer == leaf.subject:
        raise _refused("a certificate that signed itself", "one issued by an authority")
    if not leaf.not_valid_before_utc <= datetime.now(UTC) <= leaf.not_valid_after_utc:
        raise _refused("a certificate that does not hold today", "one in force")
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        issued_to = names.get_values_for_type(x509.DNSName)
    except x509.ExtensionNotFound:
        issued_to = []
    if processor.domain not in issued_to:
        raise _refused("a certificate for another domain", "rights.opendsr.domain among its alternative names")
    return Signer(processor.domain, chain, key)


def _refused(found: str, expected: str) -> Refused:
    return Refused("opendsr_certificate", found, expected, "Mend rights.opendsr. Nothing was started.")
