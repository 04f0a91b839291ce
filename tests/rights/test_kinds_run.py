"""Rights that the contract has no field for, from the ask to what recipients get and no longer get: one story, real runs."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))
from lane_stage import Endpoint, operator, serving
from test_erasure_run import change, person, request_of, run

from tidings.report.account import reconcile
from tidings.rights import intake
from tidings.rights.asks import Ask, Identifier, Word
from tidings.settings import Settings, load
from tidings.store import Store

ENTITY = """\
kind: customer
version: '1'
key: [id]
identifiers: {email: email}
lawful_basis: contract
fields:
  email: {type: email, normalise: email, class: personal}
  tier: {type: tier, class: personal}
"""
ROLES = {"shopdesk": "service", "mailer": "marketing", "concierge": "agent"}
RESTRICTED, OBJECTED, ALONE, AGAIN, LATE, SCORED, LIMITED = 1, 2, 3, 4, 5, 6, 7


def folder(root: Path, ends: dict[str, Endpoint]) -> Path:
    operator(root, {name: end.url for name, end in ends.items()})
    (root / "entities/customer.yaml").write_text(ENTITY)
    for name, role in ROLES.items():
        path = root / "subscribers" / f"{name}.yaml"
        path.write_text(path.read_text().replace("role: service", f"role: {role}") + "types: [insert, tier, consent]\n")
    path = root / "tidings.yaml"
    path.write_text(path.read_text() + "rights: {}\n")
    return root


def ask(settings: Settings, kind: str, who: int, minutes: int = 5, **more: Any) -> str:
    identifiers = (Identifier("email", f"person{who}@example.com"),)
    moment = datetime.now(UTC) - timedelta(minutes=minutes)
    return intake.hand_in(settings, Ask(kind, identifiers, "rest", moment, "verified", **more))


def got(end: Endpoint, who: int) -> list[str]:
    """The types of what an endpoint got of a person, in order."""
    mine = [one for one in end.bodies if one["data"]["key"] == {"id": str(who)}]
    return [one["type"].removesuffix(".changed").rsplit(".", 1)[1] for one in mine]


def known_of(settings: Settings, who: int) -> dict[str, str]:
    tag = settings.keyring.tag(settings.tenant, "customer", str(who))
    rows = Store(settings.data_path / "tables").lookup("subjects", [tag]).sort_by("version").to_pylist()
    return dict(rows[-1]["consents"]) if rows else {}


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_a_right_without_a_field_is_told_kept_and_lifted(tmp_path: Path) -> None:
    ends = {name: Endpoint() for name in ROLES}
    with serving(*ends.values()):
        root = folder(tmp_path, ends)
        people = (RESTRICTED, OBJECTED, ALONE, AGAIN, LATE, SCORED, LIMITED)
        first = [change(n, "c", None, person(n, tier="silver")) for n in people]
        (root / "drop/one.jsonl").write_text("\n".join(first) + "\n")
        run(root)
        settings = load(root)
        asked = {
            "restriction": ask(settings, "restriction", RESTRICTED),
            "objection": ask(settings, "objection", OBJECTED, scope=("marketing",)),
            "alone": ask(settings, "automated_decision", ALONE),
            "yes": ask(settings, "opt_in", AGAIN, 10, scope=("sms",)),
            "no": ask(settings, "opt_out", AGAIN, 20, scope=("sms",)),
            "last no": ask(settings, "opt_out", LATE, 10, scope=("sms",)),
            "scored": ask(settings, "consent_narrowing", SCORED, scope=("profiling",)),
            "limited": ask(settings, "limit_sensitive", LIMITED),
        }
        run(root)
        limited = known_of(settings, LIMITED)["is:limited"]
        intake.say(settings, Word(asked["limited"], "lift", "ann", "the person said so"))
        intake.say(settings, Word(asked["limited"], "done", "ann", "", "letter:lifting", "ab" * 32))
        late = ask(settings, "opt_in", LATE, 20, scope=("sms",))
        # Everybody changes afterwards: what a right forbids does not leave.
        after = [change(100 + n, "u", person(n, tier="silver"), person(n, tier="gold")) for n in people]
        (root / "drop/two.jsonl").write_text("\n".join(after) + "\n")
        run(root)
    told = {name: {who: got(end, who) for who in people} for name, end in ends.items()}
    states = {name: request_of(settings, one).state for name, one in asked.items()}
    assert states == dict.fromkeys(asked, "fulfilled") | {"alone": "working"}, "a human still has to review"
    refused = request_of(settings, late)
    assert (refused.state, refused.happened("refused")[0].reason) == ("refused", "older_than_opt_out")
    for name in ROLES:  # told whatever they subscribed to; and then nothing but what the person is owed
        assert told[name][RESTRICTED] == ["insert", "restriction"], name
        assert told[name][OBJECTED][:2] == ["insert", "objection"], name
        assert told[name][ALONE][:2] == ["insert", "automated_decision"], name
        assert told[name][AGAIN][:3] == ["insert", "consent", "consent"], name
        assert told[name][LATE].count("consent") == 1, name
    assert {name: "tier" in told[name][OBJECTED] for name in ROLES} == {
        "shopdesk": True, "mailer": False, "concierge": True
    }  # fmt: skip
    assert {name: "tier" in told[name][ALONE] for name in ROLES} == {
        "shopdesk": True, "mailer": True, "concierge": False
    }  # fmt: skip
    assert known_of(settings, AGAIN)["sms"] == "granted"
    assert known_of(settings, LATE)["sms"] == "withdrawn"
    assert known_of(settings, SCORED)["for:profiling"] == "withdrawn"
    assert known_of(settings, RESTRICTED)["is:restricted"] == "granted", "a change of the record says nothing of it"
    assert (limited, known_of(settings, LIMITED)["is:limited"]) == ("granted", "withdrawn")
    assert all(told[name][LIMITED].count("limit_sensitive") == 2 for name in ROLES), "that it was lifted is told too"
    assert reconcile(Store(settings.data_path / "tables"), {})["balanced"]
