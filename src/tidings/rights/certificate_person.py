"""The holder's copy: salted digests of the identifiers that the person gave, which open to whoever is told the identifier.

The digest is signed with the rest of the archive, so the holder can show that the certificate is about them; the archive itself still
names nobody. Only identifiers that the request was asked with are opened. What breaks it: whoever has this copy can try out guesses.
"""

from __future__ import annotations

import json
import secrets
from hashlib import sha256
from typing import TYPE_CHECKING

from tidings.errors import Refused
from tidings.report.people import hashes_of

if TYPE_CHECKING:
    from tidings.settings import Settings

SALT_BYTES = 16


def opening(settings: Settings, request_id: str, text: str) -> bytes:
    """person.json for the lines `kind: value` of a file; Refused for an identifier that the request was not asked with."""
    from tidings.rights.book import Book
    from tidings.store import Store

    request = Book(Store(settings.data_path / "tables")).refresh().requests.get(request_id)
    known = {*request.hashes, *request.tags} if request else set()
    opened = []
    for number, line in enumerate(filter(str.strip, text.splitlines()), 1):
        kind, colon, value = line.partition(":")
        if not colon or not known & set(_filed(settings, kind.strip(), value.strip())):
            found = f"line {number}, which is no identifier of this request"
            raise Refused("not_the_person", found, "kind: value, as it was given", "Nothing was written.")
        salt = secrets.token_bytes(SALT_BYTES)
        opened.append({"kind": kind.strip(), "salt": salt.hex(), "digest": digest(salt, kind.strip(), value.strip())})
    return (json.dumps(opened, indent=1, sort_keys=True) + "\n").encode()


def _filed(settings: Settings, kind: str, value: str) -> list[bytes]:
    if kind in settings.entities:
        return [settings.keyring.tag(settings.tenant, kind, value)]
    return hashes_of(settings, value)


def digest(salt: bytes, kind: str, value: str) -> str:
    """SHA-256 of the salt, the kind and the value as it was given, each behind a zero byte."""
    return sha256(salt + b"\0" + kind.encode() + b"\0" + value.encode()).hexdigest()
