"""CloudEvents 1.0 over HTTP: one in structured form, one in binary form, or a batch. What is none of these is one event of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote


class BadEvent(Exception):
    """The body is not what its headers say. `code`: not_json, not_an_event, too_many."""

    def __init__(self, code: str) -> None:
        self.code = code
        super().__init__(code)


MOST_EVENTS = 1_000


@dataclass(frozen=True)
class Event:
    """One event. `attributes` are all of CloudEvents' and of Tidings' own, as text; `data` may be personal and is not shown."""

    id: str
    source: str
    type: str
    subject: str
    attributes: Mapping[str, str] = field(repr=False)
    data: Any = field(repr=False)

    @property
    def key(self) -> str:
        """What makes it the same event: CloudEvents says source and id together."""
        return f"{self.source}\x1f{self.id}"

    @property
    def sequence(self) -> str:
        """Sorts as text among the events of one subject; empty when the sender says nothing."""
        return self.attributes.get("subjectseq") or self.attributes.get("sequence", "")

    @property
    def causality(self) -> str:
        return self.attributes.get("causality", "")


def read_events(headers: Mapping[str, str], body: bytes, message_id: str) -> list[Event]:
    """Every event of a request, in its order."""
    lower = {name.lower(): value for name, value in headers.items()}
    kind = lower.get("content-type", "").split(";")[0].strip().lower()
    document = _json(body)
    if kind == "application/cloudevents-batch+json":
        if not isinstance(document, list) or len(document) > MOST_EVENTS:
            raise BadEvent("too_many" if isinstance(document, list) else "not_an_event")
        return [_event(one) for one in document]
    if kind == "application/cloudevents+json":
        return [_event(document)]
    if "ce-id" in lower:
        said = {name[3:]: unquote(value) for name, value in lower.items() if name.startswith("ce-")}
        return [_event({**said, "data": document})]
    return [Event(message_id, "", "", "", {}, document)]


def _json(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except (ValueError, RecursionError):
        raise BadEvent("not_json") from None


def _event(document: Any) -> Event:
    wanted = ("id", "source", "type")
    if not isinstance(document, dict) or not all(isinstance(document.get(n), str) and document[n] for n in wanted):
        raise BadEvent("not_an_event")
    said = {name: str(value) for name, value in document.items() if name != "data" and value is not None}
    return Event(said["id"], said["source"], said["type"], said.get("subject", ""), said, document.get("data"))
