"""What people ask of the gate, with real tables: let an event pass after a review, may somebody be contacted, who received their data, why."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lane_stage import Endpoint, Journal, arrow_schema, operator, serving, until
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tidings.cli import application
from tidings.errors import Refused
from tidings.gate.again import Again
from tidings.gate.decisions import DecisionTable, decided_in
from tidings.gate.loading import load_policy
from tidings.lanes import control
from tidings.lanes.cycle import Cycle
from tidings.lanes.disputes import resolutions
from tidings.ledger.vocabulary import validate_entry
from tidings.settings import Settings, load
from tidings.store import Store

pytestmark = [
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
POLICY = """\
version: "1"
include: [starter]
rules:
  - id: look-first
    anchor: governance
    statutes: [eu-gdpr-erase]
    when: {all: [{recipient: role, is: analytics}, {fact: change_type, is: email}]}
    effect: {review: "somebody has to look at what goes to analytics"}
    examples:
      - {given: {change_type: email}, to: {role: analytics}, gives: defer}
      - {given: {change_type: email}, to: {role: service}, gives: nothing}
  - id: place-first
    anchor: governance
    when: {all: [{recipient: role, is: loyalty}, {fact: jurisdiction, is: unknown}]}
    effect: {defer: "nobody knows where the person lives"}
    examples:
      - {given: {change_type: email}, to: {role: loyalty}, gives: defer}
      - {given: {change_type: email, jurisdiction: DE}, to: {role: loyalty}, gives: nothing}
"""
EVENT = {"change_type": "email", "operation": "update", "entity": "customer", "personal": True}
SUBJECT = 'customer:["ann"]'


def tag_of(settings: Settings, who: str) -> bytes:
    return settings.keyring.tag("shop", "customer", json.dumps([who]))


def staged(folder: Path, **urls: str) -> tuple[Settings, Store]:
    """Subscribers named by their role."""
    operator(folder, urls)
    for name in urls:
        path = folder / f"subscribers/{name}.yaml"
        path.write_text(path.read_text().replace("role: service", f"role: {name}"))
    (folder / "policy/own.yaml").write_text(POLICY)
    settings = load(folder)
    return settings, Store(settings.data_path / "tables")


def decided(settings: Settings, store: Store, **facts: Any) -> tuple[DecisionTable, str, dict[str, str]]:
    table = DecisionTable(store.decisions, load_policy(settings))
    before = set(table.rows)
    table.extend([{**EVENT, **facts}])
    (name,) = set(table.rows) - before
    return table, name, {one["subscriber"]: one["outcome"] for one in table.rows[name]["recipients"]}


def verb(folder: Path, *arguments: str) -> tuple[int, Any]:
    """A verb's exit code and what it says in JSON; its refusal when it refuses."""
    result = CliRunner().invoke(application(arguments[0]), [*arguments, "-C", str(folder), "--json"])
    if isinstance(result.exception, Refused):
        return result.exception.exit_code, result.exception.code
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, json.loads(result.stdout)


def remembered(store: Store, tag: bytes, history: list[tuple[int, dict[str, str], str]]) -> None:
    """Rows of `subjects` as the journal's stage writes them: (milliseconds, consents, jurisdiction)."""
    rows = [
        {"tag": tag, "bucket": 0, "offset": n, "source": "crm", "generation": "g1", "batch": n, "jurisdiction": place}
        | {"version": f"{at:013d}-000000", "consents": list(consents.items())}
        for n, (at, consents, place) in enumerate(history)
    ]
    folder = Path(store.fresh("subjects"))
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=arrow_schema("subjects")), folder / "part-0.parquet")
    store.commit("subjects", str(folder), app=f"crm/{tag.hex()[:8]}", version=1)


# Review


@pytest.mark.spark
def test_a_review_lets_pass_what_waits_for_it_alone(spark: SparkSession, tmp_path: Path) -> None:
    analytics, loyalty, clock = Endpoint(), Endpoint(), [time.time()]
    with serving(analytics, loyalty):
        settings, store = staged(tmp_path, analytics=analytics.url, loyalty=loyalty.url)
        table, name, owed = decided(settings, store)
        assert owed == {"analytics": "defer", "loyalty": "defer"}
        journal = Journal(settings, store)
        first, second = journal.batch([("ann", owed), ("bob", owed)], row={"decision": name})

        def cycle() -> Cycle:
            again = Again(store, table, resolved=lambda: resolutions(settings.data_path))
            return Cycle(
                spark, store, settings, settings.keyring, clock=lambda: clock[0], regate=again, redecide=again.deferred
            )

        lanes = cycle()
        lanes.step()
        assert (analytics.got, loyalty.got) == ([], [])
        _, listed = verb(tmp_path, "gate", "review")
        assert [(one["event"], one["waiting"], one["state"]) for one in listed] == [
            (first, ["analytics"], "open"),
            (second, ["analytics"], "open"),
        ]
        by = ("--by", "Data office", "--reason", "read it")
        assert verb(tmp_path, "gate", "review", first, "--approve", *by)[0] == 0
        assert verb(tmp_path, "gate", "review", second, "--refuse", *by)[0] == 0
        clock[0] += 10
        until(lambda: analytics.got == [first], lanes.step)
        lanes.close()
        assert verb(tmp_path, "gate", "review")[1] == []
        again = cycle()  # what was released stays released, what was refused stays refused, what lacks a fact waits
        clock[0] += 10
        again.step()
        assert (analytics.got, loyalty.got) == ([first], [])
        assert set(again.lanes["loyalty"].state.unsettled) == {first, second}
        again.close()
    rows = store.arrow("attempts", ["lane", "members", "entry"]).to_pylist()
    ends = {m["event_id"]: (m["final"], m["code"]) for row in rows for m in row["members"] if m["final"]}
    assert (ends[first][0], ends[second]) == ("acknowledged", ("refused", "review_refused"))
    words = [validate_entry(row["entry"]) for row in rows if row["lane"] == control.WORDS]
    assert [(w["kind"], w["event_id"], w["outcome"], w["reason"]) for w in words] == [
        ("reviewed", first, "release", "read it (Data office)"),
        ("reviewed", second, "refuse", "read it (Data office)"),
    ]


def test_a_word_that_is_no_review_is_refused(tmp_path: Path) -> None:
    settings, store = staged(tmp_path, analytics="http://127.0.0.1:1/", loyalty="http://127.0.0.1:1/")
    _, name, owed = decided(settings, store)
    (event,) = Journal(settings, store).batch([("ann", owed)], row={"decision": name})
    by = ("--by", "me", "--reason", "so")
    _, plain, allowed = decided(settings, store, change_type="tier", jurisdiction="DE")
    (other,) = Journal(settings, store, number=1).batch([("ann", allowed)], row={"decision": plain})
    assert verb(tmp_path, "gate", "review", event, "--approve", "--refuse", *by) == (3, "approve_or_refuse")
    assert verb(tmp_path, "gate", "review", event, *by) == (3, "approve_or_refuse")
    assert verb(tmp_path, "gate", "review", event, "--approve", "--by", "me") == (3, "no_reason")
    assert verb(tmp_path, "gate", "review", other, "--approve", *by) == (3, "unknown_review")
    assert verb(tmp_path, "gate", "review", "nobody", "--approve", *by) == (3, "unknown_review")
    assert verb(tmp_path, "gate", "review", "--approve", *by) == (3, "unknown_review")
    assert control.asked(settings.data_path, control.WORDS) == []
    assert verb(tmp_path, "gate", "review", event, "--approve", *by)[0] == 0
    assert verb(tmp_path, "gate", "review", event, "--refuse", *by) == (3, "unknown_review")
    assert [one["state"] for one in verb(tmp_path, "gate", "review")[1]] == ["released"]


def test_a_word_on_a_dispute_is_no_review_and_the_other_way_round(tmp_path: Path) -> None:
    settings, store = staged(tmp_path, analytics="http://127.0.0.1:1/")
    table, name, _ = decided(settings, store, conflict=True)
    again = Again(store, table)
    for said, outcome in (
        (set(), "defer"),
        ({"keep"}, "defer"),
        ({"release"}, "defer"),
        ({"keep", "release"}, "allow"),
    ):
        assert again._judged(name, (), "analytics", frozenset(said)).outcome == outcome, said
    assert again._judged(name, (), "analytics", frozenset({"keep"})).review


# Contact

NOON = "2026-11-16T20:00:00Z"  # in California
YES, NO = {"sms": "granted"}, {"sms": "withdrawn"}
Ask = Callable[..., tuple[int, Any]]


@pytest.fixture(params=["starter", "privacy, channel"])
def ask(tmp_path: Path, request: pytest.FixtureRequest) -> Ask:
    """Four people and a question, under the small bundle and under the large ones."""
    staged(tmp_path, service="http://127.0.0.1:1/")
    policy = tmp_path / "policy/own.yaml"
    policy.write_text(policy.read_text().replace("starter", request.param))
    contract = tmp_path / "entities/customer.yaml"
    contract.write_text(contract.read_text() + "lawful_basis: consent\n")
    settings = load(tmp_path)
    store = Store(settings.data_path / "tables")
    journal = Journal(settings, store)
    journal.batch([(who, {}) for who in ("ann", "bob", "cem", "dee")], row={"decision": decided(settings, store)[1]})
    stories = {
        "ann": [(1_700_000_000_000, NO, "US-CA"), (1_750_000_000_000, YES, "US-CA"), (1_760_000_000_000, YES, "US-CA")],
        "bob": [
            (1_700_000_000_000, YES | {"phone": "granted", "email": "granted"}, "US-CA"),
            (1_750_000_000_000, NO, "US-CA"),
        ],
        "cem": [(1_700_000_000_000, {"email": "granted"}, "DE")],
    }
    for who, story in stories.items():
        remembered(store, tag_of(settings, who), story)

    def asked(who: str, channel: str = "sms", purpose: str = "marketing", *more: str) -> tuple[int, Any]:
        subject = f'customer:["{who}"]'
        more = more or ("--at", NOON)
        return verb(tmp_path, "gate", "may", "--subject", subject, "--channel", channel, "--purpose", purpose, *more)

    return asked


def test_may_i_contact_this_person(ask: Ask) -> None:
    code, said = ask("ann")
    assert (code, said["may"], said["consent"], said["since"]) == (0, "yes", "granted", "2025-06-15T15:06:40+00:00")
    code, said = ask("bob")
    assert (code, said["may"]) == (3, "no")
    assert [law for law in said["statutes"] if law["id"].startswith("us-tcpa")] != []
    assert len(said["rules"]) > 0
    assert ask("cem", "email")[1]["may"] == "yes"
    assert ask("cem", "sms")[1]["may"] == "no"  # a yes to e-mail is none to texts
    assert ask("bob", "sms", "transactional")[1]["may"] == "yes"
    assert ask("dee")[1]["may"] == "no"  # known, and nothing was ever said
    code, said = ask("eve")
    assert (code, said["may"], said["recipients"]) == (4, "unknown", [])


def test_may_i_as_it_was_known_then(ask: Ask) -> None:
    assert ask("bob", "sms", "marketing", "--at", "2024-01-01T20:00:00Z")[1]["may"] == "yes"
    assert ask("ann", "sms", "marketing", "--at", "2024-01-01T20:00:00Z")[1]["may"] == "no"
    assert ask("ann", "sms", "marketing", "--at", "yesterday") == (3, "date")
    assert ask("ann", "pigeon") == (3, "choice")


def test_may_i_at_this_hour(ask: Ask) -> None:
    code, said = ask("ann", "sms", "marketing", "--at", "2026-11-16T15:59:00Z")  # a minute before eight in California
    assert (code, said["may"], said["statutes"][0]["citation"]) == (3, "no", "47 CFR 64.1200(c)(1)")
    assert said["reason"].endswith("again from 2026-11-16T16:00+00:00")
    assert ask("ann", "sms", "marketing", "--at", "2026-11-16T16:00:00Z")[1]["may"] == "yes"
    assert ask("bob", "sms", "transactional", "--at", "2026-11-16T10:00:00Z")[1]["may"] == "yes"
    assert ask("cem", "email", "marketing", "--at", "2026-11-16T03:00:00Z")[1]["may"] == "yes"


def test_a_withdrawal_is_a_no_under_a_policy_that_says_nothing(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "policy/own.yaml").write_text('version: "1"\nrules: []\n')
    assert (ask("bob")[1]["may"], ask("ann")[1]["may"]) == ("no", "yes")


def test_the_answer_takes_milliseconds_and_no_jvm(ask: Ask) -> None:
    ask("ann")
    assert (
        min(ask("ann")[1]["took_ms"] for _ in range(10)) < 250
    )  # six on an idle machine; this only catches a scan or a JVM


# Who received it, and why


@pytest.mark.spark
def test_who_received_this_persons_data(spark: SparkSession, tmp_path: Path) -> None:
    def doubtful(event_id: str, times: int) -> int:
        time.sleep(4)
        return 200

    service, warehouse, ads = Endpoint(), Endpoint(doubtful), Endpoint()
    with serving(service, warehouse, ads):
        settings, store = staged(tmp_path, service=service.url, warehouse=warehouse.url, ads=ads.url, analytics=ads.url)
        path = tmp_path / "subscribers/service.yaml"
        path.write_text(path.read_text() + "onward: [a print shop]\n")
        settings = load(tmp_path)
        _, name, owed = decided(settings, store, jurisdiction="DE")
        assert owed == {"service": "allow", "warehouse": "allow", "ads": "deny", "analytics": "defer"}
        journal = Journal(settings, store)
        (mine,) = journal.batch([("ann", owed)], row={"decision": name})
        journal.batch([("bob", {"service": "allow"})], row={"decision": name})
        lanes = Cycle(spark, store, settings, settings.keyring)
        until(lambda: len(service.got) == 2 and warehouse.got != [], lanes.step, 60)
        lanes.close()
    decided_in.cache_clear()
    _, said = verb(tmp_path, "report", "recipients", "--subject", SUBJECT)
    one, other = sorted(said["recipients"], key=lambda each: each["subscriber"])
    assert (one["subscriber"], one["received"], one["ack"], one["events"]) == ("service", "acknowledged", "A2", 1)
    assert (one["change_types"], one["onward"], one["in_doubt"]) == (["email"], ["a print shop"], 0)
    assert (other["subscriber"], other["received"], other["ack"]) == ("warehouse", "possibly", "A0")
    assert verb(tmp_path, "report", "recipients", "--subject", SUBJECT, "--until", "2020-01-01")[1] == {
        "recipients": []
    }
    assert verb(tmp_path, "report", "recipients", "--subject", 'customer:["eve"]')[1] == {"recipients": []}
    _, why = verb(tmp_path, "explain", mine)
    told = {each["subscriber"]: each for each in why["recipients"]}
    assert (told["ads"]["decision"], told["ads"]["laws"][0]["citation"]) == ("deny", "Art. 13(1)-(2)")
    assert [each["outcome"] for each in told["ads"]["would_change"]][:1] == ["allow"]
    assert told["analytics"]["review"] is True
    assert told["service"]["outcome"] == "acknowledged"
