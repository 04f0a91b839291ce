"""Card numbers, found and masked before anything of ours is written; `docs/cards.md` says what this cannot see.

The columns and the Python twin `mask_text` give the same answer: they share the patterns and walk the same windows.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F

SHORTEST, LONGEST = 14, 19
_LENGTHS = range(SHORTEST, LONGEST + 1)

# Issuer prefix and length together: Luhn alone flags nearly every second message without a card.
_ISSUERS = "|".join(
    [
        "4[0-9]{15}(?:[0-9]{3})?",
        "5[1-5][0-9]{14}",
        "2(?:22[1-9]|2[3-9][0-9]|[3-6][0-9]{2}|7[01][0-9]|720)[0-9]{12}",
        "3[47][0-9]{13}",
        "3(?:0[0-5]|[689][0-9])[0-9]{11}(?:[0-9]{2})?",
        "3095[0-9]{10}(?:[0-9]{2})?",
        "(?:6011|64[4-9][0-9]|65[0-9]{2})[0-9]{12}(?:[0-9]{3})?",
        "35(?:2[89]|[3-8][0-9])[0-9]{12,15}",
        "62[0-9]{14,17}",
        "(?:5018|5020|5038|5893|6304|6759|676[1-3])[0-9]{10,15}",
        "220[0-4][0-9]{12,15}",
        "(?:60|81|82)[0-9]{14}",
        "508[0-9]{13}",
        "9792[0-9]{12}",
    ]
)
CARD = f"^(?:{_ISSUERS})$"

_GAP = "[ ._/\u00a0\u2000-\u200b\u2010-\u2015-]{0,2}"
# Possessive, so that a long run of digits is walked once.
_RUN = f"[0-9](?:{_GAP}[0-9]){{{SHORTEST - 1},}}+"
# A UUID has enough digits for a card number by chance, and is none.
_UUID = "(?<![0-9a-fA-F])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![0-9a-fA-F])"
_TOKEN = f"{_UUID}|{_RUN}"
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_NUMBER = r"(?<![0-9.eE])[0-9]{14,19}(?![0-9])"
_CODE_NAME = (
    r"(?:(?:card|cc|credit_?card|payment|debit_?card)[-_. ]?)?(?:cvv2?|cvc2?|cvn2?|cav2|security_?code|verification_?value"
    r"|track_?(?:[12]_?(?:data)?|data)|mag(?:netic)?_?stripe(?:_?data)?|pin_?block)(?:[-_. ]?(?:code|value|number))?"
)
_SCALAR = rf"(?:{_STRING}|-?[0-9][-+.0-9eE]*+)"
# A code or a stripe may not be kept at all: the field goes, with the comma that belonged to it.
_CODE = rf'(?<![\\])"(?i:{_CODE_NAME})"\s*+:\s*+{_SCALAR}'
_CODE_FIELD = rf"{_CODE}\s*+,|,\s*+{_CODE}|{_CODE}"
# The first letter is looked at before the long list of names: this runs over every message.
_CODE_HINT = rf'"(?=[cdmpstvCDMPSTV])(?i:{_CODE_NAME})"\s*+:'
# Where a run is long enough, its first fourteen digits are: begun at its start only, not at each of its digits.
_RUN_HINT = f"(?<![0-9])[0-9](?:{_GAP}[0-9]){{{SHORTEST - 1}}}"
_ESCAPES = (
    (r"3([0-9])", "$1"),
    ("20", " "),
    ("2[dD]", "-"),
    ("2[eE]", "."),
    ("2[fF]", "/"),
    ("[aA]0", " "),
)
_ESCAPE = r"(?<!\\)((?:\\\\)*+)\\u00"


def suspect(text: Column) -> Column:
    """Whether a closer look is due: enough digits in a row, or the name of a code; cheap, and null-safe."""
    return F.coalesce(text.rlike(_RUN_HINT) | text.rlike(_CODE_HINT), F.lit(False))


def has_card(text: Column) -> Column:
    """Whether `mask` would change the text."""
    return F.coalesce(mask(text) != text, F.lit(False))


def mask(text: Column) -> Column:
    """The text with card numbers masked and codes removed; the very same text when it holds neither.

    Digits become `*` inside strings and 9 in JSON numbers (so that the JSON stays JSON), except the last four.
    """
    plain = F.when(F.contains(text, F.lit("\\u00")), _unescaped(text)).otherwise(text)
    return F.when(suspect(plain), _let(plain, lambda p: _changed(text, p))).otherwise(text)


def masked_body(body: Column) -> Column:
    """A message that goes to quarantine, as it may be written."""
    return mask(body)


def masked_states(states: Column) -> Column:
    """`{state, masked}` for a struct of variants: the same fields as they may be kept, and whether anything changed.

    The struct is masked as one text, so that the plan holds this machinery once.
    """

    def kept(text: Column) -> Column:
        return _let(mask(text), lambda m: F.struct(F.try_parse_json(m).alias("state"), (m != text).alias("masked")))

    return _let(F.to_json(states), kept)


def _changed(text: Column, plain: Column) -> Column:
    """The masked text where masking did something, else the text as it came (its escapes untouched)."""
    return _let(_mask_pieces(_without_codes(plain)), lambda masked: F.when(masked != plain, masked).otherwise(text))


def _unescaped(text: Column) -> Column:
    for code, meant in _ESCAPES:
        text = F.regexp_replace(text, _ESCAPE + code, "$1" + meant.replace("$1", "$2"))
    return text


def _without_codes(text: Column) -> Column:
    return F.when(text.rlike(_CODE_HINT), F.regexp_replace(text, _CODE_FIELD, "")).otherwise(text)


def _mask_pieces(text: Column) -> Column:
    """Strings and what stands between them are masked by different rules, then put together again."""
    between, strings = F.split(text, _STRING, -1), F.regexp_extract_all(text, F.lit(_STRING), F.lit(0))
    pieces = F.flatten(F.zip_with(between, strings, lambda a, b: F.array(a, F.coalesce(b, F.lit("")))))
    return F.when(text.rlike(_RUN), F.array_join(F.transform(pieces, _mask_piece), "")).otherwise(text)


def _mask_piece(piece: Column) -> Column:
    """Between strings numbers are whole values; a quotation mark there is a broken line, treated as a string."""
    numbers = F.transform(
        F.regexp_extract_all(piece, F.lit(_NUMBER), F.lit(0)),
        lambda n: F.when(_is_card(n), F.concat(_nines(n), F.right(n, F.lit(4)))).otherwise(n),
    )
    whole = _interleaved(F.split(piece, _NUMBER, -1), numbers)
    return F.when(F.contains(piece, F.lit('"')), _mask_runs(piece)).otherwise(whole)


def _nines(number: Column) -> Column:
    return F.repeat(F.lit("9"), F.length(number) - 4)


def _mask_runs(text: Column) -> Column:
    masked = F.transform(F.regexp_extract_all(text, F.lit(_TOKEN), F.lit(0)), _mask_run)
    return F.when(text.rlike(_RUN), _interleaved(F.split(text, _TOKEN, -1), masked)).otherwise(text)


def _mask_run(run: Column) -> Column:
    """One run of digits and gaps: every window that is a card hides its digits but the last four."""

    def with_ends(both: Column) -> Column:
        digits, ends = both["digits"], both["ends"]
        shown = F.transform(F.split(digits, ""), lambda digit, k: F.when(_hidden(ends, k), "*").otherwise(digit))
        rebuilt = _interleaved(F.split(run, "[0-9]", -1), shown)
        return F.when(F.exists(ends, lambda end: end > 0), rebuilt).otherwise(run)

    def with_digits(digits: Column) -> Column:
        return _let(F.struct(digits.alias("digits"), _hidden_until(digits).alias("ends")), with_ends)

    return F.when(run.rlike(_UUID), run).otherwise(_let(F.regexp_replace(run, "[^0-9]", ""), with_digits))


def _hidden_until(digits: Column) -> Column:
    """For each place, where the hiding of the longest card that starts there ends; 0 where none starts."""

    def from_place(start: Column) -> Column:
        def until(length: Column) -> Column:
            fits = start + length <= F.length(digits)
            return F.when(fits & _is_card(F.substr(digits, start + 1, length)), start + length - 4).otherwise(0)

        return F.array_max(F.transform(F.array(*[F.lit(n) for n in _LENGTHS]), until))

    return F.transform(F.sequence(F.lit(0), F.length(digits) - SHORTEST), from_place)


def _hidden(ends: Column, place: Column) -> Column:
    first = F.greatest(place - LONGEST, F.lit(0))
    near = F.when(first < F.size(ends), F.slice(ends, first + 1, F.lit(LONGEST + 1)))
    starts_before = F.filter(near, lambda end, offset: (end > place) & (first + offset <= place))
    return F.size(starts_before) > 0


def _is_card(digits: Column) -> Column:
    return F.when(digits.rlike(CARD), F.call_function("luhn_check", digits)).otherwise(F.lit(False))


def _interleaved(outer: Column, inner: Column) -> Column:
    """`outer[0] inner[0] outer[1] …`: what split and extract took apart."""
    return F.array_join(F.zip_with(outer, inner, lambda a, b: F.concat(a, F.coalesce(b, F.lit("")))), "")


def _let(value: Column, body: Callable[[Column], Column]) -> Column:
    return F.get(F.transform(F.array(value), body), F.lit(0))


def _python(pattern: str) -> re.Pattern[str]:
    """The same pattern without possessive quantifiers: Java needs them, and Python before 3.11.5 gets groups of them wrong.

    ASCII, as Java reads white space.
    """
    return re.compile(re.sub(r"(?<=[*+?}])\+", "", pattern), re.ASCII)


_RUN_RE, _STRING_RE, _NUMBER_RE, _CARD_RE = map(_python, (_RUN, _STRING, _NUMBER, CARD))
_TOKEN_RE, _UUID_RE = _python(_TOKEN), _python(_UUID)
_CODE_HINT_RE, _CODE_FIELD_RE = _python(_CODE_HINT), _python(_CODE_FIELD)
_ESCAPE_RES = [(_python(_ESCAPE + code), meant) for code, meant in _ESCAPES]


def mask_text(text: str) -> tuple[str, bool]:
    """The Python twin of `mask`: the text as it may be written, and whether that differs."""
    plain = text
    if "\\u00" in text:
        for pattern, meant in _ESCAPE_RES:
            plain = pattern.sub(r"\1\2" if meant == "$1" else r"\1" + meant, plain)
    masked = _CODE_FIELD_RE.sub("", plain) if _CODE_HINT_RE.search(plain) else plain
    if _RUN_RE.search(masked):
        masked = _pieces(masked)
    return (masked, True) if masked != plain else (text, False)


def _pieces(text: str) -> str:
    made, last = [], 0
    for found in _STRING_RE.finditer(text):
        made += [_between(text[last : found.start()]), _runs(found[0])]
        last = found.end()
    return "".join([*made, _between(text[last:])])


def _between(piece: str) -> str:
    if '"' in piece:
        return _runs(piece)
    return _NUMBER_RE.sub(lambda n: "9" * (len(n[0]) - 4) + n[0][-4:] if is_card(n[0]) else n[0], piece)


def _runs(text: str) -> str:
    return _TOKEN_RE.sub(lambda found: found[0] if _UUID_RE.search(found[0]) else _run(found[0]), text)


def _run(run: str) -> str:
    digits = re.sub("[^0-9]", "", run)
    hidden: set[int] = set()
    for start in range(len(digits) - SHORTEST + 1):
        fits = [n for n in _LENGTHS if start + n <= len(digits) and is_card(digits[start : start + n])]
        hidden.update(range(start, start + max(fits) - 4) if fits else ())
    places = iter(range(len(digits)))
    return "".join(("*" if next(places) in hidden else c) if c in "0123456789" else c for c in run)


def is_card(digits: str) -> bool:
    """Issuer prefix, length and Luhn."""
    if not _CARD_RE.match(digits):
        return False
    doubled = [int(d) * 2 if i % 2 else int(d) for i, d in enumerate(reversed(digits))]
    return sum(d - 9 if d > 9 else d for d in doubled) % 10 == 0
