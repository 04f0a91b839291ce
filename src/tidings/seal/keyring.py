"""Every key of this installation comes from one master; the Python twins of the sealing columns live here, without Spark."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tidings.errors import Damaged, Refused
from tidings.seal import kek

KEY_BYTES = 32
TAG_BYTES = 16
IV_BYTES = 12
SEPARATOR = b"\x1f"
# The first part of every AAD's last element: a new sealed layout gets a new number, so an old row can never open as a new one.
FORMAT = "1"


def new_master() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def new_secret() -> bytes:
    """The secret of one batch: drawn in memory, handed to Spark as a column, never stored."""
    return secrets.token_bytes(KEY_BYTES)


class Keyring:
    """Derives one independent key per purpose; shows nothing of itself when printed and cannot be pickled into a job."""

    __slots__ = ("__kek", "__keys", "__master")

    def __init__(self, master: bytes, kek_version: int = 1) -> None:
        if len(master) != KEY_BYTES:
            raise Refused(
                "master_key_length",
                f"a master key of {len(master)} bytes",
                f"{KEY_BYTES} bytes",
                "Restore the master key from its backup; a different one cannot open what is stored.",
            )
        self.__master = bytes(master)
        self.__kek = kek.purpose(kek_version)
        self.__keys: dict[str, bytes] = {}

    def wrapping(self, version: int) -> bytes:
        """One version of the key-encryption key, for a rotation alone."""
        return self._derived(kek.purpose(version))

    @classmethod
    def from_hex(cls, text: str) -> Keyring:
        try:
            return cls(bytes.fromhex(text.strip()))
        except ValueError:
            raise Refused("master_key_format", "a master key that is not hex", "64 hex digits") from None

    def derive(self, purpose: str) -> bytes:
        """HKDF-SHA256 without salt: the master is already uniform, the purpose separates the keys.

        `kek` is the version in force, so that who wraps or opens a key never asks which one that is.
        """
        return self._derived(self.__kek if purpose == "kek" else purpose)

    def _derived(self, purpose: str) -> bytes:
        if purpose not in self.__keys:
            kdf = HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=None, info=f"tidings/{purpose}".encode())
            self.__keys[purpose] = kdf.derive(self.__master)
        return self.__keys[purpose]

    def tag(self, tenant: str, kind: str, key_json: str) -> bytes:
        return _mac(self.derive("tag"), joined(tenant, kind, key_json))[:TAG_BYTES]

    def identifier_hash(self, kind: str, value: str) -> bytes:
        return _mac(self.derive("tag"), joined("identifier", kind, value))[:TAG_BYTES]

    def __repr__(self) -> str:
        return "Keyring()"

    def __reduce__(self) -> str:
        raise TypeError("a keyring stays in the process that opened it; hand a job the one key it needs as a column")


def joined(*parts: str) -> bytes:
    return SEPARATOR.join(part.encode() for part in parts)


def associated(table: str, event_id: str, field: str, fmt: str = FORMAT) -> bytes:
    """What a sealed value is bound to: moved to another row, field or table, it does not open."""
    return joined(table, event_id, field, fmt)


def kid(secret: bytes, tag: bytes) -> bytes:
    return _mac(secret, b"kid" + tag)[:TAG_BYTES]


def subject_key(secret: bytes, tag: bytes) -> bytes:
    return _mac(secret, b"key" + tag)


def seal_payload(plain: bytes, key: bytes, k_iv: bytes, aad: bytes) -> bytes:
    """The IV follows from what is sealed, so a repeated batch writes equal bytes and no IV is used for two plaintexts."""
    iv = _mac(k_iv, aad + plain)[:IV_BYTES]
    return iv + AESGCM(key).encrypt(iv, plain, aad)


def open_payload(key: bytes, aad: bytes, sealed: bytes) -> bytes:
    try:
        return AESGCM(key).decrypt(sealed[:IV_BYTES], sealed[IV_BYTES:], aad)
    except (InvalidTag, ValueError):
        raise Damaged(
            "sealed_value",
            "a sealed value that does not open under its own key and place",
            "the bytes that were sealed there",
            "Nothing was shown. The row, its key file or the master key was changed outside Tidings.",
        ) from None


def bucket(tag: bytes, buckets: int = 256) -> int:
    """From the first byte of a tag: tags are uniform, so a power of two up to 256 gives even buckets without another hash."""
    return tag[0] % buckets


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()
