"""The hold store: what must be kept of people who are erased, sealed so that counsel opens it and this process cannot.

    data/holds/<opaque>.hold       one file for each commit of erasures; per hold two lines: what it is, and what is sealed
    {"hold": …, "request": …, "grounds": […], "until": …, "items": […], "scope": {…}, "sealed_for": …, "key": …, "digest": …}
    <base64>

Each hold is sealed for counsel's X25519 key: a key pair drawn for it alone, the shared secret through HKDF-SHA256, AES-256-GCM with the first
line as associated data. The drawn private half is never written. Holds are only ever added; one that is released is taken out by writing the
file again without it. `items` are keyed digests of names (an event id, a place), so that what was sealed before a crash is not
sealed twice; nothing in the first line or the file's name comes from the person.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from tidings import durable
from tidings.errors import Damaged, Refused
from tidings.ledger.vocabulary import canonical

FOLDER, SUFFIX = "holds", ".hold"
_INFO = b"tidings/hold/1"


@dataclass(frozen=True)
class Scope:
    """What a hold in force is compared with before this one is released: nothing of it is one person's."""

    classes: tuple[str, ...]
    sources: tuple[str, ...]
    entities: tuple[str, ...]
    first: str
    last: str


@dataclass(frozen=True)
class Held:
    """One hold as everybody may see it. `until` is its last day, empty when only people can end it."""

    hold: str
    request: str
    grounds: tuple[str, ...]
    until: str
    items: tuple[str, ...]
    scope: Scope
    sealed_for: str
    key: str = ""
    digest: str = ""
    path: Path = field(default=Path(), compare=False)

    def bound(self) -> bytes:
        """What the seal is bound to."""
        said = {name: value for name, value in asdict(self).items() if name not in ("digest", "path")}
        return canonical(json.loads(json.dumps(said)))

    def line(self) -> bytes:
        return canonical(json.loads(json.dumps({k: v for k, v in asdict(self).items() if k != "path"}))) + b"\n"

    @classmethod
    def from_line(cls, line: bytes, path: Path) -> Held:
        said: dict[str, Any] = json.loads(line)
        scope = said["scope"]
        classes, sources, entities = (tuple(scope[name]) for name in ("classes", "sources", "entities"))
        said["scope"] = Scope(classes, sources, entities, scope["first"], scope["last"])
        return cls(**said | {name: tuple(said[name]) for name in ("grounds", "items")}, path=path)


def counsel_key(text: bytes) -> X25519PublicKey:
    """Counsel's public key; the private half is refused, so that nobody keeps both in one place."""
    try:
        found = load_pem_public_key(text)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        found = None
    if not isinstance(found, X25519PublicKey):
        expected = "an X25519 public key in PEM (-----BEGIN PUBLIC KEY-----)"
        what_now = "Make one: openssl genpkey -algorithm X25519, then openssl pkey -pubout. Nothing was started."
        raise Refused("counsel_key", "another text in rights.holds.counsel_key", expected, what_now)
    return found


def fingerprint(key: X25519PublicKey) -> str:
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:32]


class HoldStore:
    """The files of data/holds. `mac` keys the opaque names; one process writes (it holds the run lock)."""

    def __init__(self, data: Path, mac: bytes) -> None:
        self.folder, self._mac = data / FOLDER, mac
        self._known: dict[Path, tuple[int, list[Held]]] = {}  # what is sealed is not read again each minute

    def opaque(self, *parts: str) -> str:
        return hmac.new(self._mac, "\x1f".join(parts).encode(), hashlib.sha256).hexdigest()[:32]

    def all(self) -> list[Held]:
        found = {}
        for path in self._files():
            made = path.stat().st_mtime_ns
            known = self._known.get(path)
            found[path] = known if known and known[0] == made else (made, [held for held, _ in records(path)])
        self._known = found
        return [held for _, many in found.values() for held in many]

    def append(self, commit: str, counsel: X25519PublicKey, holds: Iterable[tuple[Held, bytes]]) -> list[Held]:
        """Seal these for counsel in the file of one commit; durable on return."""
        sealed = [_sealed(counsel, held, plain) for held, plain in holds]
        if not sealed:
            return []
        path = self.folder / f"{self.opaque('commit', commit)}{SUFFIX}"
        durable.make_folder(self.folder, 0o700)
        _put(path, [*(records(path) if path.exists() else ()), *sealed])
        return [held for held, _ in sealed]

    def remove(self, names: Iterable[str]) -> int:
        """Take these holds out of their files; they are gone from the disk's names on return. Done again it does nothing."""
        gone, wanted = 0, set(names)
        for path in self._files() if wanted else ():
            there = list(records(path))
            kept = [(held, text) for held, text in there if held.hold not in wanted]
            if len(kept) == len(there):
                continue
            gone += len(there) - len(kept)
            if not kept:
                path.unlink()
                durable.sync_folder(self.folder)
                continue
            _put(path, kept)
        return gone

    def tidy(self) -> None:
        """What a killed process left half-written."""
        for path in self.folder.glob(".*.new") if self.folder.is_dir() else ():
            path.unlink()

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob(f"*{SUFFIX}")) if self.folder.is_dir() else []


def records(path: Path) -> Iterator[tuple[Held, bytes]]:
    """Every hold of a file with its sealed line."""
    lines = path.read_bytes().split(b"\n")
    if len(lines) % 2 == 0 or lines.pop():
        raise _damaged(path)
    for number in range(0, len(lines), 2):
        try:
            held = Held.from_line(lines[number], path)
        except (ValueError, KeyError, TypeError):
            raise _damaged(path) from None
        if hashlib.sha256(lines[number + 1]).hexdigest() != held.digest:
            raise _damaged(path)
        yield held, lines[number + 1] + b"\n"


def _put(path: Path, holds: Iterable[tuple[Held, bytes]]) -> None:
    """Readers and a power cut find the old holds or the new ones, never half of one."""
    draft = path.with_name(f".{path.name}.new")
    draft.touch(0o600)
    draft.write_bytes(b"".join(held.line() + text for held, text in holds))
    durable.sync_file(draft)
    durable.replace(draft, path)


def _damaged(path: Path) -> Damaged:
    what_now = "Put the file back from its copy. Nothing was shown or changed."
    return Damaged("hold_file", f"another text in {path.name}", "the holds that were written there", what_now)


def _sealed(counsel: X25519PublicKey, held: Held, plain: bytes) -> tuple[Held, bytes]:
    own = X25519PrivateKey.generate()
    public = own.public_key().public_bytes_raw()
    said = Held(**held.__dict__ | {"sealed_for": fingerprint(counsel), "key": public.hex()})
    key = _derived(own.exchange(counsel), public, counsel.public_bytes_raw())
    # One key seals one text, so a fixed nonce is used once.
    text = base64.b64encode(AESGCM(key).encrypt(bytes(12), plain, said.bound()))
    return Held(**said.__dict__ | {"digest": hashlib.sha256(text).hexdigest()}), text + b"\n"


def _derived(shared: bytes, public: bytes, counsel: bytes) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=_INFO + public + counsel).derive(shared)


def private_key(text: bytes) -> X25519PrivateKey:
    """Counsel's own half, for opening."""
    try:
        found = load_pem_private_key(text, password=None)
    except (ValueError, TypeError):
        found = None
    if not isinstance(found, X25519PrivateKey):
        expected = "counsel's X25519 private key in PEM, without a passphrase"
        raise Refused("counsel_key", "another text in the key file", expected, "Nothing was opened.")
    return found


def opened(path: Path, private: X25519PrivateKey) -> Iterator[Mapping[str, Any]]:
    """Every hold of a file as counsel reads it."""
    public = private.public_key()
    for held, text in records(path):
        try:
            drawn = bytes.fromhex(held.key)
            shared = private.exchange(X25519PublicKey.from_public_bytes(drawn))
            key = _derived(shared, drawn, public.public_bytes_raw())
            plain = AESGCM(key).decrypt(bytes(12), base64.b64decode(text), held.bound())
        except (InvalidTag, ValueError):
            mine = held.sealed_for == fingerprint(public)
            found = "a hold that was changed" if mine else f"a hold that is sealed for the key {held.sealed_for[:8]}…"
            raise Refused(
                "hold_not_opened", found, "a hold as it was sealed, and its key", "Nothing was shown."
            ) from None
        yield {
            "hold": held.hold,
            "request": held.request,
            "until": held.until,
            "grounds": list(held.grounds),
        } | json.loads(plain)


def told_of(holds: Sequence[Held]) -> dict[str, str]:
    """What a step and the ledger say of these: how many, why, until when, and a digest of what was sealed."""
    ends = {held.until for held in holds}
    digests = "".join(sorted(held.digest for held in holds))
    return {
        "holds": str(len(holds)),
        "grounds": ",".join(sorted({ground for held in holds for ground in held.grounds})),
        "hold_until": "" if "" in ends else max(ends),
        "records": str(sum(len(held.items) for held in holds)),
        "digest": hashlib.sha256(digests.encode()).hexdigest(),
    }
