"""Why a message was refused: every code a row can carry, in one line each, and the limits they speak of. No Spark."""

from __future__ import annotations

LINE_LIMIT = 1_048_576
# Spark's JSON reader stops at 1,000 levels and the guard array around the body takes one of them.
DEPTH_LIMIT = 999

CODES = {
    "truncated_json": "the text ends inside a value; the writer was probably cut off",
    "malformed_json": "the text is not JSON",
    "trailing_content": "a whole JSON value is followed by something else on the same line",
    "not_an_object": "the line is JSON, but a message is a JSON object",
    "duplicate_key": "an object names the same field twice, so the value is ambiguous",
    "not_a_number": "NaN or Infinity stands where JSON has no such number",
    "number_not_exact": "a number has more than 38 digits, or an exponent no double can hold",
    "lone_surrogate": "a \\u escape names half of a surrogate pair",
    "nul_byte": "a NUL byte stands in the line",
    "invalid_utf8": "the bytes are not UTF-8",
    "line_too_long": f"the line is longer than {LINE_LIMIT:,} bytes",
    "too_deep": f"values are nested deeper than {DEPTH_LIMIT} levels",
    "unknown_dialect": "no dialect recognises the message, or it belongs to another dialect than the source names",
    "unknown_operation": "the message names an operation its dialect does not have",
    "unknown_table": "no contract is configured for the entity",
    "wrong_type": "a field holds another JSON type than its dialect says",
    "missing_field": "a field that its dialect needs is absent or null",
    "card_in_key": "the record's key holds a card number; masked, it would name other records too",
    "card_in_position": "a card number stands where the message says its place in the log",
    "missing_key": "the message carries no key and no key columns are configured or present",
}
