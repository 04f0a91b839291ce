"""The envelope: an event in CloudEvents 1.0 form, rendered from a journal row for one subscriber.

The row never names the person: `wire_subject` is the subscriber's own pseudonym for them, and it is also the partition key.
`data` is the opened payload. Rendering is deterministic, so an attempt tomorrow carries the bytes of today's.

`sequence` sorts as text within `source` and one generation of it; `subjectseq` shows an older event, not a missing one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import quote

JSON_TYPE = "application/cloudevents+json"
BATCH_TYPE = "application/cloudevents-batch+json"
DATA_PARTS = ("key", "before", "after", "changed", "consent", "moved", "signal", "conflict")
LIFE_CYCLE = frozenset({"insert", "update", "delete", "soft_delete", "restore", "reparent", "rekey"})
SEQUENCE_WIDTH = 20
ATTRIBUTE = "attribute:"  # a redaction of what the envelope itself says, such as attribute:locale
_LABELS = ("class:", "category:", "kind:")

# These say more about a person than an address does; the words are those of the data-classification extension.
_RESTRICTED = frozenset(
    ("consent", "suppression", "payment_method", "household", "identity_merge", "identity_split", "sensitive_data")
)


def render(row: Mapping[str, Any], wire_subject: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """One CloudEvents dict. An attribute the row has no value for is left out; only inside `data` may a null stand."""
    change_type, entity = str(row["change_type"]), str(row["entity"])
    attributes = {
        "specversion": "1.0",
        "id": row["event_id"],
        "source": "/" + "/".join(_segment(row[part]) for part in ("tenant", "source") if row.get(part)),
        "type": event_type(change_type, entity),
        "subject": wire_subject,
        "time": timestamp(row.get("time")),
        "datacontenttype": "application/json",
        "dataschema": f"urn:tidings:{_segment(entity)}:{_segment(row.get('schema_version') or '1')}",
        "sequence": sequence(row.get("offset")),
        "partitionkey": wire_subject,
        "correlationid": row.get("correlation"),
        "causationid": row.get("causation"),
        "recordedtime": timestamp(row.get("recorded")),
        "dataclassification": "restricted" if change_type in _RESTRICTED else "confidential",
        "dataregulation": ",".join(row.get("regulations") or ()),
        "traceparent": traceparent(str(row["event_id"])),
        "tenant": row.get("tenant"),
        "banner": row.get("banner"),
        "location": row.get("location"),
        "locale": row.get("locale"),
        "routinghint": row.get("routing_hint"),
        "hlctime": row.get("hlc"),
        "subjectseq": sequence(row.get("subjectseq")),
        "causality": causality(row.get("vector")),
        "schemaversion": row.get("schema_version"),
        "policyversion": row.get("policy_version"),
    }
    envelope: dict[str, Any] = {name: str(value) for name, value in attributes.items() if value not in (None, "")}
    envelope["data"] = data_of(row, data)
    return envelope


def event_type(change_type: str, entity: str) -> str:
    """`tidings.email.changed` for a typed change, `tidings.customer.delete` for a step of a life cycle."""
    return f"tidings.{entity}.{change_type}" if change_type in LIFE_CYCLE else f"tidings.{change_type}.changed"


def addressed(
    row: Mapping[str, Any], wire_subject: str, data: Mapping[str, Any], paths: Sequence[str]
) -> dict[str, Any]:
    """The envelope for a recipient that must not see these fields: neither they nor what was made of them is in it."""
    # Out of a capsule the person's tag is gone; what the recipient calls them was put down while it was there.
    return render(bare(row, data, paths), str(data.get("subject") or wire_subject), redacted(data, paths))


def redacted(data: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """The payload without these fields: from the key, both images, the lists of changes, moves and disputes; `consent` as a whole."""
    result = dict(data)
    if "consent" in paths:
        result["consent"] = None
    if any(path.startswith(_LABELS) for path in paths):
        # A label that no contract could resolve may mean any field.
        result |= {part: None for part in ("before", "after") if part in result} | {"changed": [], "moved": []}
    for path in paths:
        steps = tuple(path.split("."))
        for image in ("key", "before", "after"):
            if isinstance(result.get(image), Mapping):
                result[image] = _without(result[image], steps)
        if isinstance(result.get("changed"), list):
            result["changed"] = [name for name in result["changed"] if not _covers(path, str(name))]
        for part in ("moved", "conflict"):
            if isinstance(result.get(part), list):
                said = [one for one in result[part] if not _covers(path, str(one["field"]))]
                result[part] = [_moved(one, path) for one in said]
    return result


def sequence(number: int | None) -> str | None:
    """A number as text that sorts as the number does."""
    return None if number is None else f"{int(number):0{SEQUENCE_WIDTH}d}"


def timestamp(value: Any) -> str | None:
    """RFC 3339 in UTC, with as many digits as the value has."""
    if value is None or isinstance(value, str):
        return value or None
    moment: datetime = value if value.tzinfo else value.replace(tzinfo=UTC)
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def traceparent(event_id: str) -> str:
    """A W3C trace that is the same at each attempt: its ids are digests of the event's."""
    digest = hashlib.sha256(f"traceparent\x1f{event_id}".encode()).hexdigest()
    return f"00-{digest[:32]}-{digest[32:48]}-01"


def causality(vector: Mapping[str, int] | Sequence[tuple[str, int]] | None) -> str | None:
    """The version vector as `source=count,…`, sorted, so that equal vectors are equal texts."""
    if not vector:
        return None
    pairs = vector.items() if isinstance(vector, Mapping) else vector
    return ",".join(f"{quote(str(name), safe='')}={int(count)}" for name, count in sorted(pairs))


def structured(envelope: Mapping[str, Any]) -> tuple[dict[str, str], bytes]:
    """Headers and body of the structured form: one JSON document."""
    return {"Content-Type": f"{JSON_TYPE}; charset=utf-8"}, _json(envelope)


def batched(envelopes: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], bytes]:
    """Headers and body of the batched form: a JSON array of events."""
    return {"Content-Type": f"{BATCH_TYPE}; charset=utf-8"}, _json(list(envelopes))


def binary(envelope: Mapping[str, Any]) -> tuple[dict[str, str], bytes]:
    """Headers and body of the binary form: attributes as `ce-` headers, the data as the body."""
    kept = (item for item in envelope.items() if item[0] not in ("data", "datacontenttype"))
    headers = {f"ce-{name}": header_value(str(value)) for name, value in kept}
    headers["Content-Type"] = str(envelope.get("datacontenttype", "application/json"))
    return headers, _json(envelope.get("data"))


def header_value(text: str) -> str:
    """Percent-encoded as the HTTP binding asks: space, quote, percent and all that is not printable ASCII."""
    return "".join(
        letter if "!" <= letter <= "~" and letter not in '"%' else "".join(f"%{byte:02X}" for byte in letter.encode())
        for letter in text
    )


def data_of(row: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    found = {part: data[part] for part in DATA_PARTS if part in data}
    consent = row.get("consent")
    if "consent" not in found and isinstance(consent, Mapping):
        found["consent"] = {
            name: timestamp(value) if isinstance(value, datetime) else value for name, value in consent.items()
        }
    return found


def bare(row: Mapping[str, Any], data: Mapping[str, Any], paths: Sequence[str]) -> Mapping[str, Any]:
    """The row without what was read from these fields. A withdrawn consent stays: who must obey it has to be told."""
    gone = {path.removeprefix(ATTRIBUTE) for path in paths if path.startswith(ATTRIBUTE)}
    consent = row.get("consent")
    if consent and consent.get("state") != "withdrawn":
        changed = [str(name) for name in data.get("changed") or ()]
        gone |= {"consent"} if any(_covers(path, name) for path in paths for name in changed) else set()
    return {name: None if name in gone else value for name, value in row.items()} if gone else row


def _covers(path: str, name: str) -> bool:
    """Is a field this one, or inside it?"""
    return f"{name}.".startswith(f"{path}.")


def _moved(move: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A move of something that has the field inside."""
    inside = tuple(path.removeprefix(f"{move['field']}.").split(".")) if _covers(str(move["field"]), path) else ()
    return {
        name: _without(value, inside) if inside and name in ("from", "to") else value for name, value in move.items()
    }


def _without(value: Any, steps: tuple[str, ...]) -> Any:
    """A value without the field that lies at these steps, also in lists, in text that is JSON, and under names that have dots."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        return _without_in_text(value, steps)
    if isinstance(value, list):
        if steps[0].isdigit():
            return [
                (_without(one, steps[1:]) if steps[1:] else None) if n == int(steps[0]) else one
                for n, one in enumerate(value)
            ]
        return [_without(one, steps) for one in value]
    if not isinstance(value, Mapping):
        return value
    kept = {}
    for name, inner in value.items():
        parts = tuple(name.split("."))
        if parts[: len(steps)] == steps:
            continue
        kept[name] = _without(inner, steps[len(parts) :]) if steps[: len(parts)] == parts else inner
    return kept


def _without_in_text(text: str, steps: tuple[str, ...]) -> str:
    try:
        inner = json.loads(text)
    except (ValueError, RecursionError):
        return text
    less = _without(inner, steps)
    return text if less == inner else _json(less).decode()


def _segment(value: Any) -> str:
    return _quoted(str(value))


@lru_cache(maxsize=4096)  # names of tenants, sources and entities: few, and asked for with every event
def _quoted(text: str) -> str:
    return quote(text, safe="")


encoded = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def _json(value: Any) -> bytes:
    return encoded(value).encode()
