"""Card numbers, found and masked before anything of ours is written; `docs/cards.md` says what this cannot see.

The columns and the Python twin `mask_text` give the same answer: they share the patterns and walk the same windows. A text in which
nothing is found comes back as it was, to the last byte.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidings.seal.digits import BACKSLASHES, DIGIT, GAP, ODD, PLAIN_GAP, digit, digits_of, python
from tidings.seal.tokens import shielded, unshielded

SHORTEST, LONGEST = 14, 19
_FARTHEST = 64  # digits of a number that are looked at; what is longer is no card
_LENGTHS = range(SHORTEST, LONGEST + 1)

CUT = "\uffff"  # no character, so no text has it; one that does loses it before it is cut there

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
_AHEAD = f"(?=([0-9]{{1,{LONGEST}}}))"

# Possessive, so that a long run of digits is walked once.
_RUN = f"{DIGIT}(?:{GAP}{DIGIT}){{{SHORTEST - 1},}}+"
# A UUID has enough digits for a card number by chance, and is none.
_UUID = "(?<![0-9a-fA-F])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![0-9a-fA-F])"
_TOKEN = f"{_UUID}|{_RUN}"
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_DECIMAL = r"[0-9]++(?:\.[0-9]++)?+"
_NUMBER = rf"(?<![0-9A-Za-z.*]){_DECIMAL}(?:[eE][-+]?+[0-9]{{1,3}}+)?+(?![0-9A-Za-z]|\.[0-9])"
_POWER = rf"(?<![0-9A-Za-z.*]){_DECIMAL}[eE]\+?+[0-9]{{1,2}}+(?![0-9A-Za-z-])"
_LONG = f"[0-9]{{{LONGEST + 1}}}"
# Nothing but JSON between two strings: every number has its comma, colon or bracket, so blanks between digits separate nothing.
_STRUCTURE = rf"^\s*+(?:(?:-?+{_NUMBER}|true|false|null)\s*+(?=[,}}\]]|$)|[\[\]{{}},:]\s*+)*+$"
_CODE_NAME = (
    r"(?:(?:card|cc|credit_?card|payment|debit_?card)[-_. ]?)?(?:cvv2?|cvc2?|cvn2?|cav2|security_?code|verification_?value"
    r"|track_?(?:[12]_?(?:data)?|data)|mag(?:netic)?_?stripe(?:_?data)?|pin_?block)(?:[-_. ]?(?:code|value|number))?"
)
_PLAIN_NUMBER = "-?[0-9][-+.0-9eE]*+"
# A code or a stripe may not be kept at all: the field goes, with the comma that belonged to it. JSON inside a string has a backslash
# or more before each of its quotation marks.
_CODE = (
    rf'(?:(?<![\\])"(?i:{_CODE_NAME})"\s*+:\s*+(?:{_STRING}|{_PLAIN_NUMBER})'
    rf'|{BACKSLASHES}"(?i:{_CODE_NAME})\\++"\s*+:\s*+(?:\\++"[^"\\]*+\\++"|{_PLAIN_NUMBER}))'
)
_CODE_FIELD = rf"{_CODE}\s*+,|,\s*+{_CODE}|{_CODE}"
# The first letter is looked at before the long list of names: this runs over every message.
_CODE_HINT = rf'"(?=[cdmpstvCDMPSTV])(?i:{_CODE_NAME})\\*+"\s*+:'
# Where a run is long enough, its first fourteen digits are: begun at its start only, not at each of its digits.
_RUN_HINT = f"(?<![0-9])[0-9](?:{PLAIN_GAP}[0-9]){{{SHORTEST - 1}}}+|{_POWER}"
# A place rarely has this, though it is full of digits: a number of a card's length that begins as a card does.
_PLACE_HINT = (
    rf"(?<![0-9])0*+[2-9](?:{PLAIN_GAP}[0-9]){{{SHORTEST - 1},{LONGEST - 1}}}+(?![0-9])|{_POWER}|[0-9]{{13}}\.|{ODD}"
)
_WIDE_HINT = f"{DIGIT}(?:{GAP}{DIGIT}){{{SHORTEST - 1}}}+"


def suspect(text: Column) -> Column:
    """Whether a closer look is due: enough digits in a row, or the name of a code; cheap, and null-safe."""
    odd = text.rlike(ODD) & text.rlike(_WIDE_HINT)
    return F.coalesce(text.rlike(_RUN_HINT) | text.rlike(_CODE_HINT) | odd, F.lit(False))


def mask(text: Column) -> Column:
    """The text with card numbers masked and codes removed; the very same text when it holds neither.

    Digits become `*` inside strings and 9 in JSON numbers (so that the JSON stays JSON), except the last four.
    """
    clean = F.translate(text, CUT, "\ufffd")
    return F.when(suspect(text), _let(_without_codes(clean), _mask_pieces)).otherwise(text)


def places_by_card(place: Column) -> Column:
    """Whether a card stands in a place in a log. Places are long numbers that must stay what they are, so only a number that is a card
    as a whole counts, behind zeros at most; a slash ends a number.
    """
    text = F.translate(place, "/", "|")
    runs = F.exists(F.regexp_extract_all(text, F.lit(_RUN), F.lit(0)), lambda run: _is_card(_bare(_digits_in(run))))
    numbers = F.exists(F.regexp_extract_all(text, F.lit(_NUMBER), F.lit(0)), lambda number: _is_card(_whole(number)))
    return F.when(text.rlike(_PLACE_HINT), runs | numbers).otherwise(F.lit(False))


def _digits_in(run: Column) -> Column:
    return digits_of(run, F.regexp_extract_all(run, F.lit(DIGIT), F.lit(0)))


def _bare(digits: Column) -> Column:
    return F.regexp_replace(digits, "^0+", "")


def masked_states(states: Column, entity: Column, tokens: Mapping[str, str]) -> Column:
    """`{state, masked}` for a struct of variants: the same fields as they may be kept, and whether anything changed.

    The struct is masked as one text, so that the plan holds this machinery once. `tokens` says per table where attested tokens stand.
    """

    def kept(text: Column) -> Column:
        return _let(mask(text), lambda m: F.struct(_parsed(m).alias("state"), (m != text).alias("masked")))

    def _parsed(masked: Column) -> Column:
        return F.try_parse_json(unshielded(masked, tokens))

    return _let(shielded(F.to_json(states), entity, tokens), kept)


def _without_codes(text: Column) -> Column:
    return F.when(text.rlike(_CODE_HINT), F.regexp_replace(text, _CODE_FIELD, "")).otherwise(text)


def _mask_pieces(text: Column) -> Column:
    """Strings and what stands between them are masked by different rules, then put together again."""
    between, strings = _cut(text, _STRING), F.regexp_extract_all(text, F.lit(_STRING), F.lit(0))
    pieces = F.flatten(F.zip_with(between, strings, lambda a, b: F.array(a, F.coalesce(b, F.lit("")))))
    return F.array_join(F.transform(pieces, _mask_piece), "")


def _mask_piece(piece: Column) -> Column:
    """Between strings numbers are whole values, unless what stands there is no JSON, or longer than any identifier is."""
    text = F.contains(piece, F.lit('"')) | ~piece.rlike(_STRUCTURE)

    def with_runs(runs: Column) -> Column:
        return _replaced(F.when(text, runs).otherwise(F.translate(runs, "*", "9")), _NUMBER, _mask_number)

    runs = F.when((text | piece.rlike(_LONG)) & piece.rlike(_RUN), _replaced(piece, _TOKEN, _mask_run)).otherwise(piece)
    return F.when(piece.rlike(_RUN) | piece.rlike(_POWER), _let(runs, with_runs)).otherwise(piece)


def _mask_number(number: Column) -> Column:
    """Nines for a number whose whole part is a card, in whatever notation."""

    def with_whole(whole: Column) -> Column:
        rest = F.regexp_extract(number, r"^[0-9]+(\.[0-9]+)$", 1)
        hidden = F.concat(F.repeat(F.lit("9"), F.length(whole) - 4), F.right(whole, F.lit(4)), rest)
        return F.when(_is_card(whole), hidden).otherwise(number)

    return _let(_whole(number), with_whole)


def _whole(number: Column) -> Column:
    """The digits before the decimal point of a number in any notation."""
    before, after = F.regexp_extract(number, "^[0-9]+", 0), F.regexp_extract(number, r"\.([0-9]+)", 1)
    power = F.coalesce(F.regexp_extract(number, r"[eE]\+?(-?[0-9]+)", 1).try_cast("int"), F.lit(0))
    point = F.least(F.length(before) + power, F.lit(_FARTHEST))
    return _bare(F.rpad(F.concat(before, after), point, F.lit("0")))


def _mask_run(run: Column) -> Column:
    """One run of digits and gaps: every window that is a card hides its digits but the last four."""

    def with_ends(found: Column) -> Column:
        units, ends = found["units"], found["ends"]
        shown = F.transform(units, lambda unit, k: F.when(_hidden(ends, k), "*").otherwise(unit))
        rebuilt = _interleaved(_cut(run, DIGIT), shown)
        return F.when(F.exists(ends, lambda end: end > 0), rebuilt).otherwise(run)

    def with_units(units: Column) -> Column:
        ends = _let(digits_of(run, units), _hidden_until)
        return _let(F.struct(units.alias("units"), ends.alias("ends")), with_ends)

    units = F.regexp_extract_all(run, F.lit(DIGIT), F.lit(0))
    return F.when(run.rlike(_UUID), run).otherwise(_let(units, with_units))


def _hidden_until(digits: Column) -> Column:
    """For each place, where the hiding of the longest card that starts there ends; 0 where none starts.

    Each place looks at its own few digits: taken from the whole, they would be counted out from its start every time.
    """

    def from_place(ahead: Column, start: Column) -> Column:
        def until(length: Column) -> Column:
            fits = length <= F.length(ahead)
            return F.when(fits & _is_card(F.substr(ahead, F.lit(1), length)), start + length - 4).otherwise(0)

        return F.array_max(F.transform(F.array(*[F.lit(n) for n in _LENGTHS]), until))

    return F.transform(F.regexp_extract_all(digits, F.lit(_AHEAD), F.lit(1)), from_place)


def _hidden(ends: Column, place: Column) -> Column:
    first = F.greatest(place - LONGEST, F.lit(0))
    near = F.when(first < F.size(ends), F.slice(ends, first + 1, F.lit(LONGEST + 1)))
    starts_before = F.filter(near, lambda end, offset: (end > place) & (first + offset <= place))
    return F.size(starts_before) > 0


def _is_card(digits: Column) -> Column:
    return F.when(digits.rlike(CARD), F.call_function("luhn_check", digits)).otherwise(F.lit(False))


def _replaced(text: Column, pattern: str, how: Callable[[Column], Column]) -> Column:
    """The text with everything that fits the pattern changed."""
    found = F.transform(F.regexp_extract_all(text, F.lit(pattern), F.lit(0)), how)
    return _interleaved(_cut(text, pattern), found)


def _cut(text: Column, pattern: str) -> Column:
    """What stands before, between and after the matches; `split` would compile the pattern anew for every text."""
    return F.split(F.regexp_replace(text, pattern, CUT), CUT, -1)


def _interleaved(outer: Column, inner: Column) -> Column:
    """`outer[0] inner[0] outer[1] …`: what split and extract took apart."""
    return F.array_join(F.zip_with(outer, inner, lambda a, b: F.concat(a, F.coalesce(b, F.lit("")))), "")


def _let(value: Column, body: Callable[[Column], Column]) -> Column:
    return F.get(F.transform(F.array(value), body), F.lit(0))


_RUN_RE, _STRING_RE, _NUMBER_RE, _POWER_RE, _CARD_RE = map(python, (_RUN, _STRING, _NUMBER, _POWER, CARD))
_TOKEN_RE, _UUID_RE, _DIGIT_RE, _STRUCTURE_RE, _LONG_RE = map(python, (_TOKEN, _UUID, DIGIT, _STRUCTURE, _LONG))
_CODE_HINT_RE, _CODE_FIELD_RE = python(_CODE_HINT), python(_CODE_FIELD)
_DOUBLED = str.maketrans("0123456789", "0246813579")
_PARTS_RE = python(r"([0-9]++)(?:\.([0-9]++))?+(?:[eE]\+?+(-?[0-9]++))?+")


def mask_text(text: str) -> tuple[str, bool]:
    """The Python twin of `mask`: the text as it may be written, and whether that differs."""
    coded = _CODE_HINT_RE.search(text)
    if not coded and not _RUN_RE.search(text) and not _POWER_RE.search(text):
        return text, False
    clean = text.replace(CUT, "\ufffd")
    masked = _pieces(_CODE_FIELD_RE.sub("", clean) if coded else clean)
    return masked, masked != text


def _pieces(text: str) -> str:
    made, last = [], 0
    for found in _STRING_RE.finditer(text):
        made += [_piece(text[last : found.start()]), _piece(found[0])]
        last = found.end()
    return "".join([*made, _piece(text[last:])])


def _piece(piece: str) -> str:
    if not _RUN_RE.search(piece) and not _POWER_RE.search(piece):
        return piece
    text = '"' in piece or not _STRUCTURE_RE.search(piece)
    if text or _LONG_RE.search(piece):
        piece = _TOKEN_RE.sub(lambda found: found[0] if _UUID_RE.search(found[0]) else _run(found[0]), piece)
    return _NUMBER_RE.sub(_number, piece if text else piece.replace("*", "9"))


def _parts(number: str) -> tuple[str, str, str]:
    """What stands before the point, after it, and in the exponent."""
    found = _PARTS_RE.match(number)
    assert found is not None
    return found[1], found[2] or "", found[3] or ""


def _number(found: re.Match[str]) -> str:
    before, after, power = _parts(found[0])
    digits, point = before + after, min(len(before) + int(power or 0), _FARTHEST)
    whole = digits[: max(point, 0)].ljust(point, "0").lstrip("0")
    if not is_card(whole):
        return found[0]
    return "9" * (len(whole) - 4) + whole[-4:] + (f".{after}" if after and not power else "")


def _run(run: str) -> str:
    units = _DIGIT_RE.findall(run)
    digits = "".join(map(digit, units))
    hidden: set[int] = set()
    for start in range(len(digits) - SHORTEST + 1):
        fits = [n for n in _LENGTHS if start + n <= len(digits) and is_card(digits[start : start + n])]
        hidden.update(range(start, start + max(fits) - 4) if fits else ())
    places = itertools.count()
    return _DIGIT_RE.sub(lambda unit: "*" if next(places) in hidden else unit[0], run)


def is_card(digits: str) -> bool:
    """Issuer prefix, length and Luhn."""
    if not _CARD_RE.match(digits):
        return False
    return (sum(map(int, digits[::-2])) + sum(map(int, digits[-2::-2].translate(_DOUBLED)))) % 10 == 0
