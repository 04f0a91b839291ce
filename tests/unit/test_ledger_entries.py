"""Entries: one canonical spelling, a closed vocabulary, and nothing that could hold a float or a novel."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from tidings.errors import Refused
from tidings.ledger.attestation import (
    MAX_LISTED,
    Ack,
    Acknowledged,
    ConflictResolved,
    Erased,
    ExceptionApproved,
    Expired,
    KeysRotated,
    LanePaused,
    LaneResumed,
    LetterExpired,
    PolicyChanged,
    QuarantineReleased,
    Replayed,
    Reviewed,
    RightsTransition,
    Settled,
    member_leaf,
    members_root,
    membership,
)
from tidings.ledger.merkle import leaf_hash, verify_inclusion
from tidings.ledger.vocabulary import MAX_TEXT, VOCABULARY, canonical, encode_entry, validate_entry

BY = {"attestor": "tidings", "timestamp": "2026-11-15T09:30:00.000000Z"}
MEMBERS = [(f"event-{i}", "acknowledged" if i % 3 else "refused") for i in range(11)]
CALL = BY | {
    "subscriber": "hook",
    "destination": "hook.example.com",
    "ack_strength": "A2",
    "retry_policy": {"tries": 10},
}
CALL |= {"idempotency_fingerprint": "ab" * 16}
HASH = "0f" * 32
DECIDED: dict[str, Any] = {
    "kind": "decided",
    "event_id": "019a8a1e-0000-7000-8000-000000000001",
    "change_type": "email",
    "subject_identifier": "ab" * 16,
    "before_state_hash": HASH,
    "after_state_hash": HASH,
    "schema_version": "1",
    "registry": "contract:1",
    "asyncapi_version": "3.0.0",
    "policy_version": "0123456789abcdef",
    "decision": {"anchors": {"event": "allow", "privacy": "deny"}, "reference": "ab" * 16},
    "timestamp": "2026-11-15T09:30:00.000000Z",
    "chain_of_custody": ["captured:crm", "journal:crm/1/7"],
}

json_values = st.recursive(
    st.text() | st.integers(-(2**53) + 1, 2**53 - 1),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(max_codepoint=127), max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def lone_surrogate(value: object) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in json.dumps(value, ensure_ascii=False))


@given(json_values.filter(lambda value: not lone_surrogate(value)))
def test_the_fast_form_is_the_canonical_form(value: Any) -> None:
    assert canonical(value) == rfc8785.dumps(value)


BUILT = {
    "acknowledged": Acknowledged.of(MEMBERS, **CALL, lane="hook-0", attempt=3),
    "settled": Settled.of("event-1", [Ack("hook", "acknowledged", "A2"), Ack("crm", "refused", "A0")], **BY),
    "settled by root": Settled.of("event-1", [Ack(f"s{i}", "refused", "A0") for i in range(MAX_LISTED + 1)], **BY),
    "lane_paused": LanePaused(lane="hook-0", reason="maintenance", **BY),
    "lane_resumed": LaneResumed(lane="hook-0", reason="done", **BY),
    "policy_changed": PolicyChanged(
        policy_version="b", previous_version="a", policy_digest=HASH, reason="new rule", **BY
    ),
    "quarantine_released": QuarantineReleased.of([("place/1", "released")], source="crm", reason="mended", **BY),
    "rights_transition": RightsTransition(request="r1", right="erasure", state="done", previous_state="open", **BY),
    "replayed": Replayed(subscriber="hook", range="crm/1:0-100", count=100, reason="lost data", **BY),
    "exception_approved": ExceptionApproved(
        event_id="event-1", subscriber="hook", approver="the privacy office", reason="told by post", **BY
    ),
    "letter_expired": LetterExpired(event_id="event-1", subscriber="hook", reason="24 months are over", **BY),
    "conflict_resolved": ConflictResolved(event_id="event-1", outcome="keep", reason="the newer form", **BY),
    "expired": Expired(
        record_class="proof",
        records="journal",
        goes="rows",
        count=6,
        files=2,
        range="2019-01-01T00:00:00Z/2019-02-01T00:00:00Z",
        keep_until="2025-02-01",
        duty="6 years",
        members_root=HASH,
        policy_version="b",
        feeds={"crm/1": {"rows": 6, "upto": 7}},
        **BY,
    ),
    "keys_rotated": KeysRotated(version=2, previous=1, count=900, files=64, **BY),
    "reviewed": Reviewed(event_id="event-1", outcome="release", reason="read and found harmless", **BY),
    "erased": Erased(subject_identifier="ab" * 16, basis="request", generation=1, keys_destroyed=4, **BY),
}


@pytest.mark.parametrize("entry", BUILT.values(), ids=BUILT.keys())
def test_what_is_built_is_valid_and_canonical(entry: Any) -> None:
    data = entry.encode()
    assert validate_entry(data)["kind"] == entry.KIND
    assert rfc8785.dumps(json.loads(data)) == data


def test_every_field_is_documented() -> None:
    said = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text(encoding="utf-8")
    words = set(re.findall(r"`([a-z_]+)`", said)) | set(re.findall(r"^### ([a-z]+)$", said, re.MULTILINE))
    fields = {name for shape in VOCABULARY.values() for part in shape for name in part}
    assert (fields | set(VOCABULARY)) - words == set()


def test_every_kind_is_built_somewhere() -> None:
    assert {entry.KIND for entry in BUILT.values()} | {"decided", "checkpoint"} == set(VOCABULARY)


def test_decided_is_valid_with_every_optional_field() -> None:
    every = DECIDED | {
        "capture": {"source": "crm"},
        "outbox_transaction": "77",
        "clocks": {"lamport": 4},
        "vertical": "x",
    }
    every |= {"envelope_digest": HASH, "window": {"due": "2026-12-01T00:00:00Z"}, "ai_provenance": {"model": "none"}}
    every |= {"fria_reference": "f-1", "master_record_snapshot": "m-1", "retry_policy": "standard"}
    assert validate_entry(encode_entry(every)) == every
    assert validate_entry(encode_entry({k: v for k, v in DECIDED.items() if not k.startswith("before")}))


WRONG: dict[str, dict[str, Any]] = {
    "float": {"clocks": {"hlc": 1.5}},
    "whole float": {"clocks": {"hlc": 1.0}},
    "boolean": {"clocks": {"hlc": True}},
    "null": {"vertical": None},
    "big integer": {"clocks": {"hlc": 2**53}},
    "long text": {"vertical": "x" * (MAX_TEXT + 1)},
    "long text in bytes": {"vertical": "é" * (MAX_TEXT // 2 + 1)},
    "newline": {"vertical": "a\nb"},
    "delete character": {"vertical": "a\x7fb"},
    "lone surrogate": {"vertical": "\ud800"},
    "key not ascii": {"clocks": {"é": "1"}},
    "key too long": {"clocks": {"k" * 65: "1"}},
    "empty key": {"clocks": {"": "1"}},
    "too deep": {"clocks": {"a": [[[[[["x"]]]]]]}},
    "unknown field": {"email": "x"},
    "unknown kind": {"kind": "guessed"},
    "kind of another type": {"kind": ["decided"]},
    "plain hash length": {"after_state_hash": "0f"},
    "hash in capitals": {"after_state_hash": "0F" * 32},
    "raw subject": {"subject_identifier": "jo@example.com"},
    "no anchors": {"decision": {"outcome": "allow"}},
    "anchor without a name": {"decision": {"anchors": {"": "allow"}}},
    "anchor in other letters": {"decision": {"anchors": {"Event": "allow"}}},
    "unknown outcome": {"decision": {"anchors": {"event": "allow"}, "outcome": "perhaps"}},
    "local time": {"timestamp": "2026-11-15T09:30:00+01:00"},
    "no custody": {"chain_of_custody": []},
    "too many bytes": {"flags": ["x" * 1000] * 70},
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_what_is_not_an_entry_is_refused_without_repeating_it(change: dict[str, Any]) -> None:
    with pytest.raises(Refused) as refusal:
        encode_entry(DECIDED | change)
    assert "jo@example.com" not in str(refusal.value)


@pytest.mark.parametrize("missing", [name for name in DECIDED if "state_hash" not in name])
def test_a_missing_field_is_refused(missing: str) -> None:
    with pytest.raises(Refused):
        encode_entry({name: value for name, value in DECIDED.items() if name != missing})


GOOD = encode_entry(DECIDED).decode()
SPELLINGS = {
    "space": GOOD.replace(",", ", ", 1),
    "order": json.dumps(dict(reversed(DECIDED.items())), separators=(",", ":")),
    "escape": GOOD.replace("email", "\\u0065mail"),
    "twice": GOOD.replace("{", '{"kind":"decided",', 1),
    "fraction": GOOD.replace('"3.0.0"', "3.0"),
    "not a number": GOOD.replace('"3.0.0"', "NaN"),
    "array": "[]",
    "half": GOOD[:-1],
    "empty": "",
    "deep": "[" * 100_000,
    "trailing": GOOD + " ",
}


@pytest.mark.parametrize("text", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_other_spellings_are_refused(text: str) -> None:
    with pytest.raises(Refused):
        validate_entry(text.encode())


def test_a_member_is_proven_without_the_others() -> None:
    entry = json.loads(BUILT["acknowledged"].encode())
    assert (entry["count"], entry["outcomes"]) == (11, {"acknowledged": 7, "refused": 4})
    root = bytes.fromhex(entry["members_root"])
    assert root == members_root(reversed(MEMBERS))
    for event, outcome in MEMBERS:
        found = membership(MEMBERS, event)
        leaf = leaf_hash(member_leaf((event, outcome)))
        assert verify_inclusion(found.index, found.size, leaf, found.path, root)
        forged = leaf_hash(member_leaf((event, "acknowledged" if outcome == "refused" else "refused")))
        assert not verify_inclusion(found.index, found.size, forged, found.path, root)
    with pytest.raises(Refused):
        membership(MEMBERS, "event-99")
    with pytest.raises(Refused):
        members_root([("a", "x"), ("a", "y")])
