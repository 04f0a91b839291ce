"""How an identifier of a person can stand in bytes. Wide on purpose: what is not spelled here is not looked for.

`plain` spellings are looked for whatever their case; `exact` ones (base64, raw digests) as they are.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import unicodedata
from collections.abc import Iterator
from urllib.parse import quote

SHORTEST = 8  # bytes; a shorter spelling would be found by chance, so of short values only digests are looked for
Spelling = tuple[str, bytes]


def plain(value: str) -> Iterator[Spelling]:
    """Spellings in which upper and lower case mean the same."""
    for name, text in _texts(value):
        raw = text.encode()
        yield name, raw
        yield f"{name}, percent-encoded", quote(text, safe="").encode()
        yield f"{name}, every byte percent-encoded", "".join(f"%{byte:02x}" for byte in raw).encode()
        yield f"{name}, hex", raw.hex().encode()
        yield f"{name}, UTF-16", text.encode("utf-16-le")
        yield f"{name}, UTF-16 big end first", text.encode("utf-16-be")
        yield f"{name}, in JSON", json.dumps(text)[1:-1].encode()
        yield f"{name}, every character escaped", _escaped(text)
        yield f"{name}, backwards", text[::-1].encode()
    for name, digest in _digests(value):
        yield f"{name}, hex", digest.hex().encode()


def exact(value: str) -> Iterator[Spelling]:
    """Spellings that are only found as they are."""
    for name, text in _texts(value):
        for how, cased in _cases(text):
            for raw in (cased.encode(), cased.encode("utf-16-le")):
                for shift, alphabet in itertools.product(range(3), (b"+/", b"-_")):
                    yield f"{name}, {how}, base64 from byte {shift}", inside(raw, shift, alphabet)
    for name, digest in _digests(value):
        yield f"{name}, raw", digest
        yield f"{name}, base64", base64.b64encode(digest).rstrip(b"=")
        yield f"{name}, base64 for addresses", base64.urlsafe_b64encode(digest).rstrip(b"=")


def _texts(value: str) -> Iterator[tuple[str, str]]:
    """The value itself, in the two normal forms, and as other systems write an address or a number."""
    yield "as is", value
    yield "composed", unicodedata.normalize("NFC", value)
    yield "decomposed", unicodedata.normalize("NFD", value)
    if "@" in value:
        local, _, domain = value.rpartition("@")
        turned = ".".join(reversed(domain.split(".")))
        yield "without dots before the @", f"{local.replace('.', '')}@{domain}"
        yield "without separators", re.sub(r"[^\w]", "", value)
        yield "domain turned round", f"{turned}.{local}"
        yield "domain turned round, @", f"{turned}@{local}"
    elif digits := _number(value):
        yield from _numbers(digits)


def _number(value: str) -> str:
    return re.sub(r"\D", "", value) if re.fullmatch(r"\+[\d ().-]{8,20}", value) else ""


def _numbers(digits: str) -> Iterator[tuple[str, str]]:
    """A telephone number in the forms that people and systems write; the country code is one to three digits long."""
    yield "E.164", f"+{digits}"
    yield "digits", digits
    yield "dialled from abroad", f"00{digits}"
    for code in (1, 2, 3):
        national = digits[code:]
        parts = (national[:-7], national[-7:-4], national[-4:])
        yield "national", national
        yield "dialled at home", f"0{national}"
        for sign in (" ", "-", "."):
            yield f"national with {sign!r}", sign.join(parts)
            yield f"international with {sign!r}", f"+{digits[:code]}{sign}" + sign.join(parts)
        yield "with brackets", f"({parts[0]}) {parts[1]}-{parts[2]}"


def _cases(text: str) -> list[tuple[str, str]]:
    return [("as is", text), ("lower case", text.lower()), ("upper case", text.upper())]


def _digests(value: str) -> Iterator[tuple[str, bytes]]:
    """Digests that advertising and analytics systems use as an identifier, of the value as they normalise it."""
    digits = _number(value)
    forms = {value, value.strip().lower(), value.strip().upper(), *(f"{p}{digits}" for p in ("", "+", "00") if digits)}
    for form, name in itertools.product(sorted(forms), ("md5", "sha1", "sha256")):
        yield name, hashlib.new(name, form.encode()).digest()


def _escaped(text: str) -> bytes:
    units = text.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2)).encode()


def inside(raw: bytes, shift: int, alphabet: bytes) -> bytes:
    """The part of its base64 that does not depend on what stands before and after it."""
    first = -shift % 3  # bytes of it that share a group with what stands before
    whole = raw[first : first + (len(raw) - first) // 3 * 3]
    return base64.b64encode(whole, alphabet)
