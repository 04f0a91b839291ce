"""Does a text name one of many people? Each text is read once, however many they are. Pure.

    text, its escapes undone ─at every beginning of a word→ first letters known? → the whole, with nothing of a longer word around it
                             ─runs of digits→ groups side by side that make a number, whatever stands between them
                             ─members of an object→ the key of a record

Found are addresses and other identifiers in any case and either normal form, also escaped in JSON (twice over) or for an address bar, telephone
numbers as people write them, MD5, SHA-1 and SHA-256 of them in hex, and records by their keys. What it does not see: a value that is cut in
pieces, in base64 or encrypted.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from tidings.phones import plans

ANCHOR = 5  # letters by which a text is looked up; what is shorter would be found in everything
SHORTEST, LONGEST = 7, 20  # digits of what may be a number
_WORD = re.compile(rf"(?<![^\W_])(?=([^\W_].{{{ANCHOR - 1}}}))", re.DOTALL)
_RUN = re.compile(r"\d(?:[\d().+/ \u00a0\u2010-\u2015-]*\d)?")
_DIGITS = re.compile(r"\d+")
_NUMBER = re.compile(r"\+?[\d\s()./\u00a0\u2010-\u2015-]+")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_MEANT = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_MEMBER = re.compile(r'"([^"]{1,200})"\s*:\s*(?:"([^"]{1,200})"|(-?[0-9][0-9.eE+-]{0,40}))')
Pair = tuple[str, str]


@dataclass(frozen=True)
class Record:
    """A record by its key (column → value) in messages of these sources; of one that tells of several entities by a word of `tables`."""

    entity: str
    key: Mapping[str, str] = field(repr=False)
    tables: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # source → words; none are needed where it tells of this alone

    def about(self, form: str, source: str) -> bool:
        """May this text of this source be about the entity?"""
        words = self.tables.get(source)
        return words is not None and (not words or any(word in form for word in words))

    def pairs(self) -> frozenset[Pair]:
        """As they stand in a message of the entity itself."""
        return frozenset((name.rpartition(".")[2].lower(), _folded(value)) for name, value in self.key.items())

    def elsewhere(self) -> Iterator[Pair]:
        """As messages of other entities refer to it, where its key is one column: `customer_id`, `customerId`."""
        if len(self.key) == 1:
            ((name, value),) = self.pairs()
            yield from ((f"{self.entity.lower()}{joint}{name}", value) for joint in ("_", ""))


class Mentions:
    """Many identifiers and records, to be looked for in messages."""

    def __init__(self, people: Iterable[str | Record]) -> None:
        self.looks = 0  # how often a piece of a text was compared with what is known
        self.texts: set[str] = set()
        self.numbers: set[str] = set()
        self.pairs: set[Pair] = set()
        self.records: dict[Pair, list[tuple[Record, frozenset[Pair]]]] = {}
        for one in people:
            self._record(one) if isinstance(one, Record) else self._value(one)
        lengths: dict[str, set[int]] = {}
        for text in self.texts:
            lengths.setdefault(text[:ANCHOR], set()).add(len(text))
        self.lengths = {anchor: tuple(sorted(many)) for anchor, many in lengths.items()}

    def __bool__(self) -> bool:
        return bool(self.texts or self.numbers or self.pairs or self.records)

    def named_in(self, body: bytes | str, source: str = "") -> bool:
        """Is one of them named in this message?"""
        text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
        return any(self._texts(form) or self._numbers(form) or self._members(form, source) for form in _forms(text))

    def _value(self, value: str) -> None:
        text = _core(value)
        spelled = {text, "".join(text.split())} if "@" in text else {text}
        if _NUMBER.fullmatch(value.strip()):
            digits = {one for one in _dialled(value.strip()) if SHORTEST <= len(one) <= LONGEST}
            self.numbers |= digits
            spelled |= digits | {f"+{one}" for one in digits}
        for form in {*spelled, value.strip()} if text else ():
            self.texts |= {hashlib.new(name, form.encode()).hexdigest() for name in ("md5", "sha1", "sha256")}
        self.texts |= {one for one in spelled if len(one) >= ANCHOR and not one.startswith("+")}

    def _record(self, record: Record) -> None:
        values = [_core(value) for value in record.key.values()]
        if len(values) == 1 and len(values[0]) >= ANCHOR and not values[0].isdigit():
            self.texts.add(values[0])  # not a mere number: nothing else is called so
            return
        pairs = record.pairs()
        self.pairs.update(record.elsewhere())
        for pair in sorted(pairs)[:1]:
            self.records.setdefault(pair, []).append((record, pairs))

    def _texts(self, form: str) -> bool:
        words = _WORD.findall(form) if self.texts else []
        self.looks += len(words)
        if self.lengths.keys().isdisjoint(words):  # nearly every text ends here
            return False
        for found in _WORD.finditer(form):
            lengths, at = self.lengths.get(found[1], ()), found.start()
            self.looks += len(lengths)
            if any(form[at : at + size] in self.texts and _alone(form, at, at + size) for size in lengths):
                return True
        return False

    def _numbers(self, form: str) -> bool:
        for run in _RUN.findall(form) if self.numbers else ():
            groups = _DIGITS.findall(run) if len(run) >= SHORTEST else []
            for first in range(len(groups)):
                digits = ""
                for group in groups[first : first + LONGEST]:
                    digits += group
                    self.looks += 1
                    if len(digits) > LONGEST:
                        break
                    if digits in self.numbers:
                        return True
        return False

    def _members(self, form: str, source: str) -> bool:
        if not self.pairs and not self.records:
            return False
        told = {(one[1], one[2] or one[3]) for one in _MEMBER.finditer(form)}
        self.looks += len(told)
        if not self.pairs.isdisjoint(told):
            return True
        known = (one for pair in told if pair in self.records for one in self.records[pair])
        return any(pairs <= told and record.about(form, source) for record, pairs in known)


def _forms(text: str) -> Iterator[str]:
    """A text as it stands, and with the escapes of JSON and of addresses undone."""
    yield _folded(text)
    for _ in range(3):
        if "\\" not in text:
            break
        text = _unescaped(text)
        yield _folded(text)
    if "%" in text and (plain := unquote(text)) != text:
        yield _folded(plain)


def _unescaped(text: str) -> str:
    def meant(found: re.Match[str]) -> str:
        return chr(int(found[1], 16)) if found[1] else _MEANT.get(found[2], found[2])

    plain = _ESCAPE.sub(meant, text)
    if any("\ud800" <= one <= "\udfff" for one in plain):
        plain = plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return plain


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", text).lower()


def _core(value: str) -> str:
    """Without what is no letter and no digit around it, which another system may leave out or replace."""
    return re.sub(r"^[\W_]+|[\W_]+$", "", _folded(value))


def _dialled(value: str) -> Iterator[str]:
    """A number's digits as they are dialled: from anywhere, from abroad, and at home."""
    digits = re.sub(r"\D", "", value)
    yield digits
    if not value.startswith("+"):
        yield digits.lstrip("0") if len(digits) > SHORTEST + 1 else digits
        return
    yield f"00{digits}"
    codes = {plan.code for plan in plans().values()}
    for national in (digits[size:] for size in (1, 2, 3) if digits[:size] in codes):
        if len(national) > SHORTEST:
            yield national
            yield f"0{national}"


def _alone(form: str, start: int, end: int) -> bool:
    """Does it stand by itself there? `ann@x.example` is nobody in `jo.ann@x.example.org`."""
    after = form[end : end + 2]
    if after[:1].isalnum():
        return False
    if "@" not in form[start:end]:
        return True
    before = form[max(0, start - 2) : start]
    longer = len(before) == 2 and before[0].isalnum() and before[1] in "._+-"
    return not longer and not (len(after) == 2 and after[0] in ".-" and after[1].isalnum())
