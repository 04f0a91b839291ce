"""What an answer to many members says of each: no answer that is odd, short or contradicts itself is taken for a yes."""

from __future__ import annotations

from typing import Any

import pytest

from tidings.channels.call import Member, Outcome
from tidings.channels.client import Answer
from tidings.channels.manifest import shipped_manifest
from tidings.channels.mapping import Scope
from tidings.channels.members import by_item
from tidings.channels.verbs import Items, Success
from tidings.channels.verdict import Judge

WHOLE = Outcome("", "acknowledged", "ok", "A3", 200)
MEMBERS = [Member(f"e{n}", f"s{n}", "email", str(n), {"id": f"e{n}"}, f"k{n}", 1) for n in range(2)]
FAILURES = Items(style="failures", at="errors", match="index", code="type", transient_codes=("busy",))
SALESFORCE = shipped_manifest("salesforce")
[ALL] = [verb.items for verb in SALESFORCE.verbs.values() if verb.items]
YES, NO, DOUBT = "acknowledged", "terminal", "in_doubt"

# How the answer lists members, the answer, and what becomes of the two.
ROWS: list[tuple[Items, Any, list[str]]] = [
    (FAILURES, {}, [YES, YES]),
    (FAILURES, {"errors": None}, [YES, YES]),
    (FAILURES, {"errors": []}, [YES, YES]),
    (FAILURES, {"errors": [{"index": 1, "type": "bad"}]}, [YES, NO]),
    (FAILURES, {"errors": [{"index": "1", "type": "busy"}]}, [YES, "transient"]),
    (FAILURES, {"errors": [{"index": 7, "type": "bad"}]}, [DOUBT, DOUBT]),
    (FAILURES, {"errors": [{"type": "bad"}]}, [DOUBT, DOUBT]),
    (FAILURES, {"errors": [None, "x"]}, [DOUBT, DOUBT]),
    # Something is wrong with somebody, told in another form than was agreed.
    (FAILURES, {"errors": {"index": 1, "type": "bad"}}, [DOUBT, DOUBT]),
    (FAILURES, {"errors": "index 1 is bad"}, [DOUBT, DOUBT]),
    (FAILURES, {"errors": [{"index": 0, "type": "bad"}, {"index": 0, "type": "busy"}]}, [NO, YES]),
    (FAILURES, {"errors": [{"index": 0, "type": ["unhashable"]}]}, [NO, YES]),
    (ALL, [{"success": True}, {"success": True}], [YES, YES]),
    (ALL, [{"success": True}, {"success": False, "errors": [{"statusCode": "REQUIRED"}]}], [YES, NO]),
    (ALL, [{"success": True}], [YES, DOUBT]),
    (ALL, [{"success": True}, {}], [YES, DOUBT]),
    (ALL, [{"success": True}, None], [YES, DOUBT]),
    (ALL, [{"success": True}] * 3, [DOUBT, DOUBT]),
    (ALL, {"success": True}, [DOUBT, DOUBT]),
]


@pytest.mark.parametrize(("items", "body", "expected"), ROWS)
def test_each_member_is_told_what_was_said_of_it(items: Items, body: Any, expected: list[str]) -> None:
    said = by_item(items, MEMBERS, Scope(None), (WHOLE, body))
    assert [(one.event_id, one.result) for one in said] == [*zip(("e0", "e1"), expected, strict=True)]
    assert all(one.strength == ("A3" if one.result == YES else "A0") for one in said)


def test_told_of_twice_the_worse_counts() -> None:
    items = Items(style="all", at="items", match="id", failed={"path": "ok", "is": False})  # type: ignore[arg-type]
    for order in ([True, False], [False, True]):
        body = {"items": [{"id": "e0", "ok": ok} for ok in order] + [{"id": "e1", "ok": True}]}
        assert [one.result for one in by_item(items, MEMBERS, Scope(None), (WHOLE, body))] == [NO, YES]


@pytest.mark.parametrize(
    ("status", "text", "wait"),
    [(503, "9" * 400, 86_400.0), (429, "9" * 40, 86_400.0), (500, "60", 60.0), (502, "-60", None), (404, "60", None)],
)
def test_a_server_that_fails_may_say_how_long(status: int, text: str, wait: float | None) -> None:
    said = Judge().of_answer(Answer(status, {"retry-after": text}, b""), Success(status=(200,)), "A3", 1_000.0)
    assert said.retry_after == wait
