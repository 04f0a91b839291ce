"""The named functions of the mapping language: each vendor's normal form before hashing, and plain conversions.

A function takes a value or ABSENT and gives one. What cannot be normalised becomes ABSENT: the field is dropped, never
the batch. Nothing empty is hashed and nothing is hashed twice. `NORMALISER_VERSION` changes when any form does, since a
removal only finds what was added under the same form.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any, Final

from tidings import phones

NORMALISER_VERSION = "3"


_STATES = {
    "alabama": "al", "alaska": "ak", "arizona": "az", "arkansas": "ar", "california": "ca", "colorado": "co",
    "connecticut": "ct", "delaware": "de", "districtofcolumbia": "dc", "florida": "fl", "georgia": "ga",
    "hawaii": "hi", "idaho": "id", "illinois": "il", "indiana": "in", "iowa": "ia", "kansas": "ks", "kentucky": "ky",
    "louisiana": "la", "maine": "me", "maryland": "md", "massachusetts": "ma", "michigan": "mi", "minnesota": "mn",
    "mississippi": "ms", "missouri": "mo", "montana": "mt", "nebraska": "ne", "nevada": "nv", "newhampshire": "nh",
    "newjersey": "nj", "newmexico": "nm", "newyork": "ny", "northcarolina": "nc", "northdakota": "nd", "ohio": "oh",
    "oklahoma": "ok", "oregon": "or", "pennsylvania": "pa", "rhodeisland": "ri", "southcarolina": "sc",
    "southdakota": "sd", "tennessee": "tn", "texas": "tx", "utah": "ut", "vermont": "vt", "virginia": "va",
    "washington": "wa", "westvirginia": "wv", "wisconsin": "wi", "wyoming": "wy",
}  # fmt: skip


class _Absent:
    """The value of what is not there; unlike None it leaves no trace in a body."""

    def __repr__(self) -> str:
        return "ABSENT"

    def __bool__(self) -> bool:
        return False


ABSENT: Final[Any] = _Absent()

Function = Callable[[Any], Any]
_HEX64 = re.compile(r"[0-9a-f]{64}", re.IGNORECASE)
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_INTERNATIONAL = re.compile(r"\+[1-9][0-9]{7,14}")
_GMAIL = ("gmail.com", "googlemail.com")
_BRITISH = re.compile(r"([a-z]{1,2}[0-9][a-z0-9]?[0-9])[a-z]{2}")
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TITLES = re.compile(r"\b(mr|mrs|ms|miss|dr|prof|jr|sr|ii|iii|iv)\b\.?")


def _of_text(function: Callable[[str], str]) -> Function:
    """Absent and null stay absent; an empty result is absent, and so is text that is not well-formed."""

    def apply(value: Any) -> Any:
        if value is ABSENT or value is None or isinstance(value, (dict, list, bool)):
            return ABSENT
        try:
            return function(str(value)) or ABSENT
        except UnicodeEncodeError:
            return ABSENT

    return apply


def _hashed_once(function: Callable[[str], str]) -> Function:
    """Like `_of_text`, but what is already a SHA-256 digest passes untouched."""
    inner = _of_text(function)

    def apply(value: Any) -> Any:
        if isinstance(value, str) and _HEX64.fullmatch(value.strip()):
            return value.strip().lower()
        return inner(value)

    return apply


def _plain_email(text: str) -> str:
    found = text.strip().lower()
    return found if _EMAIL.fullmatch(found) else ""


def _google_email(text: str) -> str:
    found = "".join(text.split()).lower()
    if not _EMAIL.fullmatch(found):
        return ""
    local, _, domain = found.rpartition("@")
    if domain in _GMAIL:
        local = local.split("+", 1)[0].replace(".", "")
    return f"{local}@{domain}" if local else ""


def _spaceless_email(text: str) -> str:
    return _plain_email("".join(text.split()))


def _digits(text: str) -> str:
    return "".join(letter for letter in text if letter in "0123456789")


def _dialled(text: str) -> str:
    """The number without its extension and the 0 in brackets; with a plus where it says its country."""
    return phones.e164(text).partition(";")[0]


def _e164(text: str) -> str:
    """Plus and 8 to 15 digits. A number that does not say its country is dropped; `mapping` adds the one the record names."""
    number = _dialled(text)
    return number if _INTERNATIONAL.fullmatch(number) else ""


def _meta_phone(text: str) -> str:
    digits = _digits(_dialled(text)).lstrip("0")
    return digits if 8 <= len(digits) <= 15 else ""


def _letters(text: str) -> str:
    """Lowercase without spaces and punctuation; letters of any alphabet stay."""
    return "".join(letter for letter in text.lower() if unicodedata.category(letter)[0] in "LMN")


def _meta_name(text: str) -> str:
    """As `_letters`, but the words of a name stay apart: of names the platform says no more than "no punctuation"."""
    return " ".join(word for part in text.split() if (word := _letters(part)))


def _meta_state(text: str) -> str:
    """A state of the United States by its two letters, whichever way it is told."""
    found = _letters(text)
    return _STATES.get(found, found)


def _google_name(text: str) -> str:
    return " ".join(_TITLES.sub(" ", text.strip().lower()).split())


def _meta_postcode(text: str) -> str:
    """The first five digits in the United States; area, district and sector in the United Kingdom; else all of it."""
    found = "".join(text.lower().split()).replace("-", "")
    american, british = re.fullmatch(r"(\d{5})(\d{4})?", found), _BRITISH.fullmatch(found)
    short = american or british
    return short[1] if short else found


def _meta_gender(text: str) -> str:
    return {"m": "m", "male": "m", "f": "f", "female": "f"}.get(text.strip().lower(), "")


def _date_part(form: str) -> Callable[[str], str]:
    def part(text: str) -> str:
        try:
            return date.fromisoformat(text.strip()[:10]).strftime(form).zfill(2)
        except ValueError:
            return ""

    return part


def _iso2(text: str) -> str:
    found = text.strip().upper()
    return found if re.fullmatch(r"[A-Z]{2}", found) else ""


def _ulid(text: str) -> str:
    """A UUID's 128 bits in the letters of a ULID; of version 7 the leading bits are the time, as a ULID wants."""
    try:
        number = uuid.UUID(text).int
    except ValueError:
        return ""
    return "".join(_CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5))


def _uuid4(text: str) -> str:
    """The same UUID told as version 4, for those who take no other."""
    try:
        found = str(uuid.UUID(text))
    except ValueError:
        return ""
    return f"{found[:14]}4{found[15:]}"


def _sha256(text: str) -> str:
    if _HEX64.fullmatch(text):
        return text.lower()
    return hashlib.sha256(text.encode()).hexdigest()


def _md5_lower(text: str) -> str:
    # Mailchimp's resource key, not a privacy hash.
    return hashlib.md5(text.strip().lower().encode(), usedforsecurity=False).hexdigest()


def _klaviyo_email_filter(text: str) -> str:
    """Klaviyo's filter text for one address; what could end the quotes is dropped."""
    return f'equals(email,"{text}")' if _EMAIL.fullmatch(text) and not set(text) & set('"\\') else ""


def _klaviyo_phone_filter(text: str) -> str:
    number = _e164(text)
    return f'equals(phone_number,"{number}")' if number else ""


def _instant(value: Any) -> datetime | None:
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _unix(value: Any) -> Any:
    found = _instant(value)
    return ABSENT if found is None else int(found.timestamp())


def _unix_ms(value: Any) -> Any:
    found = _instant(value)
    return ABSENT if found is None else int(found.timestamp() * 1000)


def _unix_us(value: Any) -> Any:
    found = _instant(value)
    return ABSENT if found is None else int(found.timestamp() * 1000) * 1000


def _number(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    try:
        return int(str(value))
    except ValueError:
        return ABSENT


def _json(value: Any) -> Any:
    return ABSENT if value is ABSENT else json.dumps(value, separators=(",", ":"), ensure_ascii=False)


# Those that give a telephone number and so want to know its country.
PHONES = frozenset({"e164", "meta_phone", "google_phone", "tiktok_phone", "klaviyo_phone_filter"})

FUNCTIONS: dict[str, Function] = {
    "text": _of_text(str),
    "trim": _of_text(str.strip),
    "lower": _of_text(str.lower),
    "upper": _of_text(str.upper),
    "digits": _of_text(_digits),
    "dashless": _of_text(lambda text: text.replace("-", "")),
    "number": _number,
    "unix": _unix,
    "unix_ms": _unix_ms,
    "unix_us": _unix_us,
    "json": _json,
    "or_empty": lambda value: "" if value is ABSENT or value is None else value,
    "or_null": lambda value: None if value is ABSENT else value,
    "or_object": lambda value: {} if value is ABSENT or value is None else value,
    "not_null": lambda value: ABSENT if value is None else value,
    "sha256": _of_text(_sha256),
    "md5_lower": _of_text(_md5_lower),
    "ulid": _of_text(_ulid),
    "uuid4": _of_text(_uuid4),
    "klaviyo_email_filter": _of_text(_klaviyo_email_filter),
    "klaviyo_phone_filter": _of_text(_klaviyo_phone_filter),
    "email": _of_text(_plain_email),
    "e164": _of_text(_e164),
    "meta_email": _hashed_once(_plain_email),
    "meta_phone": _hashed_once(_meta_phone),
    "meta_name": _hashed_once(_meta_name),
    "meta_city": _hashed_once(_letters),
    "meta_state": _hashed_once(_meta_state),
    "meta_postcode": _hashed_once(_meta_postcode),
    "meta_country": _hashed_once(lambda text: text.strip().lower() if len(text.strip()) == 2 else ""),
    "meta_gender": _hashed_once(_meta_gender),
    "meta_birth_year": _hashed_once(_date_part("%Y")),
    "meta_birth_month": _hashed_once(_date_part("%m")),
    "meta_birth_day": _hashed_once(_date_part("%d")),
    "meta_birth_date": _hashed_once(_date_part("%Y%m%d")),
    "google_region": _of_text(_iso2),
    "google_email": _hashed_once(_google_email),
    "google_phone": _hashed_once(_e164),
    "google_name": _hashed_once(_google_name),
    "microsoft_email": _hashed_once(_plain_email),
    "tiktok_email": _hashed_once(_spaceless_email),
    "tiktok_phone": _hashed_once(_e164),
    "linkedin_email": _hashed_once(_spaceless_email),
}
