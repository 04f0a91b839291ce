"""A message: one record as the vendor wrote it, its parse, and the one code that says why it was refused."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidings.stages.codes import CODES as CODES
from tidings.stages.codes import DEPTH_LIMIT, LINE_LIMIT

MESSAGE = T.StructType(
    [
        T.StructField("source", T.StringType()),
        T.StructField("place", T.StringType()),
        T.StructField("arrived", T.TimestampType()),
        T.StructField("rank", T.StringType()),
        T.StructField("body", T.StringType()),
        T.StructField("file", T.StringType()),
        T.StructField("line", T.LongType()),
    ]
)

PROBLEM = T.StructType(
    [
        T.StructField("code", T.StringType()),
        T.StructField("path", T.StringType()),
        T.StructField("detail", T.StringType()),
    ]
)

_BLANK = " \t\r\n"
# Possessive quantifiers: Java's matcher recurses on the plain ones and a long string would overflow the stack.
STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_OPEN_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+\\?$'
_LONE_SURROGATE = r"(?<!\\)((?:\\\\)*+)(?:(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
_NOT_A_NUMBER = r"[-+]?\b(?:NaN|Infinity)\b"
# One walk over the text, and only three characters stop it.
_MAY_BE_INEXACT = r"[.EI](?:(?<=\.)0|(?<=E)-?[0-9]|(?<=I)nfinity)"
_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"


def problem(code: str | Column, path: str | Column = "", detail: str | Column = "") -> Column:
    """A verdict: the struct a refused row carries instead of being dropped."""
    as_column = [part if isinstance(part, Column) else F.lit(part) for part in (code, path, detail)]
    return F.struct(*[part.alias(name) for part, name in zip(as_column, PROBLEM.names, strict=True)])


def no_problem() -> Column:
    return F.lit(None).cast(PROBLEM)


def parse(body: Column) -> Column:
    """The body as `[body, digest]`, or NULL; the digest in second place proves nothing stood behind the body.

    Spark's parser stops after the first value, so trailing text is only seen when something known must follow it.
    """
    readable = (F.octet_length(body) <= LINE_LIMIT) & F.call_function("is_valid_utf8", body)
    return F.when(readable, _guarded("[", body, ","))


def parse_under(body: Column, name: str) -> Column:
    """The same parse, with the body as the one field of an object."""
    return _guarded(f'[{{"{name}":', body, "},")


def _guarded(opening: str, body: Column, closing: str) -> Column:
    digest = F.xxhash64(body).cast("string")
    return F.try_parse_json(F.concat(F.lit(opening), body, F.lit(closing), digest, F.lit("]")))


def whole(parsed: Column, body: Column) -> Column:
    """Whether the parse holds exactly the body."""
    return F.coalesce(F.try_variant_get(parsed, "$[1]", "bigint") == F.xxhash64(body), F.lit(False))


def is_blank(body: Column) -> Column:
    return F.coalesce(F.ltrim(body, F.lit(_BLANK)) == "", F.lit(True))


def is_object(body: Column) -> Column:
    """Whether a body that parses is an object."""
    return F.startswith(F.ltrim(body, F.lit(_BLANK)), F.lit("{"))


def is_list(body: Column) -> Column:
    """Whether a body that parses is a list."""
    return F.startswith(F.ltrim(body, F.lit(_BLANK)), F.lit("["))


def refusal(body: Column) -> Column:
    """The code for a body whose parse is not whole; costly, so it stands behind a CASE WHEN."""
    bare = _without_strings(body)
    # The lenient reader also takes duplicate keys, so something must have been taken out for this to say anything.
    paired = F.regexp_replace(body, _LONE_SURROGATE, "$1$2")
    return (
        F.when(F.octet_length(body) > LINE_LIMIT, "line_too_long")
        .when(~F.call_function("is_valid_utf8", body), "invalid_utf8")
        .when(F.contains(body, F.lit("\0")), "nul_byte")
        .when(_max_depth(bare) > DEPTH_LIMIT, "too_deep")
        .when(F.try_parse_json(body).isNotNull(), "trailing_content")
        .when((paired != body) & _parses(paired), "lone_surrogate")
        .when(_parses(F.regexp_replace(bare, _NOT_A_NUMBER, "0")) & bare.rlike(_NOT_A_NUMBER), "not_a_number")
        .when(bare.rlike("[0-9]{1000}"), "number_not_exact")
        .when(_parses(body) & _strict(body, bare), "duplicate_key")
        .when(_is_cut_off(body, bare), "truncated_json")
        .otherwise("malformed_json")
    )


def inexact_hint(text: Column) -> Column:
    """Whether canonical text may hold a number that lost digits when it was parsed; `inexact` then looks at the body.

    Such a number became a double: it shows an exponent, or a fraction of zero, or (like a card number) many digits.
    """
    return text.rlike(_MAY_BE_INEXACT)


def inexact(body: Column) -> Column:
    """Whether a number of a parsed body does not survive parsing: too many digits, or an exponent out of range."""
    return F.exists(F.regexp_extract_all(_without_strings(body), F.lit(_NUMBER), F.lit(0)), _lossy)


def _lossy(number: Column) -> Column:
    mantissa = F.regexp_replace(number, "[eE].*|[-.]", "")
    significant = F.regexp_replace(mantissa, "^0+", "")
    approximate = F.abs(number.try_cast("double"))
    has_exponent = number.rlike("[eE]")
    out_of_range = approximate.isNull() | (approximate == float("inf")) | ((approximate == 0) & (significant != ""))
    return F.when(has_exponent, out_of_range | (F.length(significant) > 17)).otherwise(F.length(significant) > 38)


def _without_strings(body: Column) -> Column:
    return F.regexp_replace(body, STRING, '""')


def _parses(text: Column) -> Column:
    """Whether Spark's lenient reader (duplicate keys, control characters) reads a whole value."""
    return F.get_json_object(text, "$").isNotNull()


def _strict(body: Column, bare: Column) -> Column:
    """Whether nothing stands here that only the lenient reader takes: single quotes, raw control characters."""
    controls = [F.regexp_replace(text, r"[^\x00-\x1f]++", "") for text in (body, bare)]
    odd = F.contains(bare, F.lit("'")) | bare.rlike(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
    return (controls[0] == controls[1]) & ~odd


def _max_depth(bare: Column) -> Column:
    """Deepest nesting, counted only when there are enough brackets to matter."""
    brackets = F.regexp_replace(bare, r'[^\[\]{}"]|"[^"]*+"', "")
    steps = F.transform(
        F.split(brackets, ""), lambda c: F.when(c.isin("[", "{"), 1).when(c.isin("]", "}"), -1).otherwise(0)
    )
    start = F.struct(F.lit(0).alias("now"), F.lit(0).alias("most"))
    walked = F.aggregate(
        steps,
        start,
        lambda seen, step: F.struct(
            (seen["now"] + step).alias("now"), F.greatest(seen["most"], seen["now"] + step).alias("most")
        ),
    )
    return F.when(F.length(brackets) <= DEPTH_LIMIT, F.length(brackets)).otherwise(walked["most"])


def _is_cut_off(body: Column, bare: Column) -> Column:
    """Ends inside a string, or with more brackets open than closed."""
    opened = F.length(F.regexp_replace(bare, r"[^\[{]", ""))
    closed = F.length(F.regexp_replace(bare, r"[^\]}]", ""))
    return F.regexp_replace(bare, '""', "").rlike(_OPEN_STRING) | (opened > closed)
