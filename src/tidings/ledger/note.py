"""C2SP signed-note and tlog-checkpoint: what a log says about itself, and who said it."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tidings.errors import Damaged
from tidings.ledger.merkle import HASH_SIZE

ED25519 = b"\x01"
MAX_NOTE = 1_000_000
MAX_SIGNATURES = 100
_SIGNATURE_LINE = re.compile(r"— ([^\s+]+) ([A-Za-z0-9+/]+=*)")
_SIZE = re.compile(r"0|[1-9][0-9]{0,18}")


def _malformed(what: str, expected: str) -> Damaged:
    return Damaged("ledger-note", what, expected, "Do not trust what this note claims.")


def decode(text: str) -> bytes:
    """Standard base64, canonical spelling only: two spellings of one hash would be two notes."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _malformed("a value that is not base64", "RFC 4648 section 4 base64") from None
    if base64.b64encode(data).decode() != text:
        raise _malformed("base64 with stray bits", "its canonical spelling")
    return data


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _checked_name(name: str) -> str:
    if not name or "+" in name or re.search(r"\s", name) or not name.isprintable():
        raise _malformed(
            "a key name with a space, a plus or a control character", "a schema-less URL such as example.com/log"
        )
    return name


@dataclass(frozen=True)
class Verifier:
    """A public key under a name; `vkey` is its one-line form."""

    name: str
    public: bytes

    @classmethod
    def parse(cls, vkey: str) -> Verifier:
        name, _, rest = vkey.strip().partition("+")
        key_id, _, key = rest.partition("+")
        typed = decode(key)
        if typed[:1] != ED25519 or len(typed) != 33:
            raise _malformed("a verifier key of another kind", "an Ed25519 verifier key, <name>+<id>+<key>")
        found = cls(_checked_name(name), typed[1:])
        if found.key_id.hex() != key_id:
            raise _malformed(f"key id {key_id[:16]}", f"{found.key_id.hex()}, the id of this name and key")
        return found

    @property
    def key_id(self) -> bytes:
        return sha256(self.name.encode() + b"\n" + ED25519 + self.public).digest()[:4]

    @property
    def vkey(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{encode(ED25519 + self.public)}"

    def named(self, name: str) -> Verifier:
        """The same key as it signs another log of the same ledger."""
        return Verifier(_checked_name(name), self.public)

    def open(self, note: bytes) -> str:
        """The text of a note this key signed; Damaged otherwise. Signatures of strangers are passed over."""
        text, signatures = split(note)
        ours = [signature for name, signature in signatures if name == self.name and signature[:4] == self.key_id]
        if not ours:
            raise _malformed(f"a note without a signature of {self.name}", f"one by key {self.key_id.hex()}")
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(ours[0][4:], text.encode())
        except (InvalidSignature, ValueError):
            raise _malformed(
                f"a signature of {self.name} that does not fit", "the signature of this very text"
            ) from None
        return text


class Signer:
    """A private key under a name. Ed25519 is deterministic: the same text gives the same note."""

    def __init__(self, name: str, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.verifier = Verifier(_checked_name(name), self._key.public_key().public_bytes_raw())

    def sign(self, text: str) -> bytes:
        if not text.endswith("\n") or "\n\n" in text:
            raise ValueError("a note's text is lines, each ended by a newline, none empty")
        signature = self.verifier.key_id + self._key.sign(text.encode())
        return join(text, [(self.verifier.name, signature)])


def join(text: str, signatures: list[tuple[str, bytes]]) -> bytes:
    lines = "".join(f"— {name} {encode(signature)}\n" for name, signature in signatures)
    return f"{text}\n{lines}".encode()


def split(note: bytes) -> tuple[str, list[tuple[str, bytes]]]:
    """Text and signatures (name, key id ‖ signature), none of them verified."""
    try:
        whole = note.decode()
    except UnicodeDecodeError:
        raise _malformed("a note that is not UTF-8", "text") from None
    if len(note) > MAX_NOTE or any(c < " " and c != "\n" for c in whole):
        raise _malformed("a note with control characters or beyond a megabyte", "plain lines")
    text, blank, tail = whole.rpartition("\n\n")
    lines = tail.removesuffix("\n").split("\n")
    if not blank or not tail.endswith("\n") or len(lines) > MAX_SIGNATURES:
        raise _malformed("a note without a signature block", "text, an empty line, signature lines")
    signatures = []
    for line in lines:
        match = _SIGNATURE_LINE.fullmatch(line)
        if match is None or len(signature := decode(match[2])) < 5:
            raise _malformed("a signature line of another form", "an em dash, a name, base64 of key id and signature")
        signatures.append((match[1], signature))
    return text + "\n", signatures


@dataclass(frozen=True)
class Checkpoint:
    """A tree head: `size` entries hash to `root` in the log named `origin`."""

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        return f"{self.origin}\n{self.size}\n{encode(self.root)}\n"

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        lines = text.split("\n")
        if len(lines) < 4 or lines[-1] or not all(lines[:-1]):
            raise _malformed("a checkpoint of another form", "origin, size and root, a line each")
        if not _SIZE.fullmatch(lines[1]) or len(root := decode(lines[2])) != HASH_SIZE:
            raise _malformed("a checkpoint with a bad size or root", "a decimal size and a base64 SHA-256 root")
        return cls(lines[0], int(lines[1]), root)

    @classmethod
    def open(cls, note: bytes, verifier: Verifier) -> Checkpoint:
        """The checkpoint in a note that `verifier` signed as its own log."""
        found = cls.parse(verifier.open(note))
        if found.origin != verifier.name:
            raise _malformed(f"a checkpoint of {found.origin}", f"one of {verifier.name}")
        return found
