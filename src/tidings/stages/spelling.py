"""Envelopes as bytes, many at a time: what a row shares with others is rendered once, its own values are set into that text.

The words and their order come from `envelope.render` itself, which is asked about a row of stand-ins; a test compares the bytes
of random rows with those of `envelope.structured`.
"""

from __future__ import annotations

import json.encoder
from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from typing import Any

from tidings.stages import envelope
from tidings.stages.envelope import sequence, timestamp

Pieces = tuple[bytes, bytes, bytes]  # before, between and after the two places of the wire subject
Row = Mapping[str, Any]

# Columns in which rows differ, and what stands for them. In all others most rows are alike.
STAND_INS: Mapping[str, Any] = {
    "event_id": "no-event", "time": "no-time", "offset": 10**19 + 1, "correlation": "no-correlation", "causation": "no-cause",
    "recorded": "no-recorded", "hlc": "no-hlc", "subjectseq": 10**19 + 2, "vector": [("no-source", 1)],
}  # fmt: skip
COMMON = (
    "tenant", "source", "entity", "change_type", "schema_version", "banner", "location", "locale", "routing_hint",
    "policy_version",
)  # fmt: skip
# The attributes that are made of the columns in which rows differ, in the order of the envelope.
_OWN: Mapping[str, Callable[[Row], Any]] = {
    "id": lambda row: row["event_id"],
    "time": lambda row: timestamp(row.get("time")),
    "sequence": lambda row: sequence(row.get("offset")),
    "correlationid": lambda row: row.get("correlation"),
    "causationid": lambda row: row.get("causation"),
    "recordedtime": lambda row: timestamp(row.get("recorded")),
    "traceparent": lambda row: envelope.traceparent(str(row["event_id"])),
    "hlctime": lambda row: row.get("hlc"),
    "subjectseq": lambda row: sequence(row.get("subjectseq")),
    "causality": lambda row: envelope.causality(row.get("vector")),
}
_quoted: Callable[[str], str] = json.encoder.encode_basestring


class Spelling:
    """Remembers the text around the values for every set of common columns it has seen."""

    def __init__(self) -> None:
        self._texts: dict[tuple[Any, ...], str] = {}
        self._subject = token_hex(16)

    def pieces(self, row: Row, data: Mapping[str, Any], redact: Sequence[str]) -> Pieces:
        """The structured form of `envelope.addressed`, without the two places that name the person."""
        if redact:
            row, data = envelope.bare(row, data, redact), envelope.redacted(data, redact)
        common = tuple([row.get(name) for name in COMMON])
        text = self._texts.get(common) or self._around(common)
        own = tuple([_attribute(name, make(row)) for name, make in _OWN.items()])
        body = f"{text % own}{envelope.encoded(envelope.data_of(row, data))}}}"
        before, between, after = body.encode().split(self._subject.encode())
        return before, between, after

    def _around(self, common: tuple[Any, ...]) -> str:
        row = {**dict(zip(COMMON, common, strict=True)), **STAND_INS}
        text = envelope.encoded(envelope.render(row, self._subject, {})).removesuffix("{}}").replace("%", "%%")
        for name, make in _OWN.items():
            text = text.replace(_attribute(name, make(row)), "%s", 1)
        self._texts[common] = text
        return text


def _attribute(name: str, value: Any) -> str:
    return "" if value in (None, "") else f',"{name}":{_quoted(str(value))}'
