"""Records under a hold move to counsel's key before their person is erased, and leave when the hold is over. No JVM."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from counsel import PRIVATE, erase, held_records, private_file, read, with_counsel
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from erased_history import BATCHES, Past, email
from history import LANE, NOW
from test_desk import asked, at_work, known_by, said_of, say, stands
from test_desk_killed import acknowledge
from typer.testing import CliRunner

from tidings.cli import application
from tidings.errors import ConfigurationError, Damaged, Refused
from tidings.ledger.vocabulary import VOCABULARY
from tidings.plan import verified
from tidings.rights import letters
from tidings.rights.book import Request
from tidings.rights.certificate import issue
from tidings.rights.holdstore import HoldStore, opened
from tidings.rights.restore import again
from tidings.settings import load

WHO, OTHER = 3, 5
LAW = "retention:\n  consent_events: {statutes: [us-tsr-records]}\n"


@pytest.fixture
def shop(tmp_path: Path, made: Past) -> Past:
    return made.copied(tmp_path / "operator")


def the_erasure(shop: Past, rounds: int = 3) -> Request:
    (request,) = [one for one in at_work(shop, rounds).book.requests.values() if one.kind == "erasure"]
    return request


def whats(request: Request) -> list[str]:
    return [step.what for step in request.steps]


def sweep(shop: Past, now: datetime) -> Request:
    desk = at_work(shop)
    desk.rounds.look(now)
    return the_erasure(shop)


def test_with_a_counsel_key_a_held_person_is_erased_at_once_and_counsel_has_the_records(shop: Past) -> None:
    with_counsel(shop).history.on_hold(WHO, version="9")
    known_by(shop, email(WHO), WHO)
    dropped = shop.history.archived(1)
    dropped.write_text(f'{{"n": 1}}\n{{"email": "{email(WHO)}"}}\n{{"email": "{email(OTHER)}"}}\n')
    erase(shop, WHO)
    request = the_erasure(shop)
    assert "held" not in whats(request), "nobody had to approve it"
    order = [whats(request).index(what) for what in ("committed", "hold_sealed", "keys_destroyed")]
    assert order == sorted(order)
    assert shop.keys.about([shop.tag(WHO)]) == []
    assert {(tuple(one["grounds"]), one["until"], one["request"]) for one in read(shop)} == {
        (("legal_hold",), "", request.id)
    }
    found = held_records(shop)
    assert len(found) == len(set(found)) == int(request.happened("hold_sealed")[0].details["records"])
    events = [what for table, what in found if table == "journal"]
    assert events[:BATCHES] == [f"event-{number}-{WHO}" for number in range(BATCHES)]
    assert {table for table, _ in found} == {"journal", "last_seen", "subjects", "quarantine", "archive"}
    assert email(WHO) not in dropped.read_text()
    told = json.dumps(read(shop))
    assert email(WHO) in told
    assert email(OTHER) not in told


def test_who_writes_cannot_read_and_a_file_names_nobody(shop: Past) -> None:
    with_counsel(shop).history.on_hold(WHO, version="9")
    erase(shop, WHO)
    the_erasure(shop)
    (path,) = (shop.data / "holds").iterdir()
    raw = path.read_bytes()
    for secret in (email(WHO), email(WHO).lower(), shop.tag(WHO).hex(), f"event-0-{WHO}"):
        assert secret.encode() not in raw
        assert secret not in path.name
    assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(Refused, match="hold_not_opened"):
        list(opened(path, X25519PrivateKey.generate()))
    first, sealed = raw.split(b"\n")[:2]
    path.write_bytes(first.replace(b'"until":""', b'"until":"2020-01-01"') + b"\n" + sealed + b"\n")
    with pytest.raises(Refused, match="hold_not_opened"):
        list(opened(path, PRIVATE))
    path.write_bytes(first + b"\n" + sealed[:-8] + b"AAAAAAA=\n")
    with pytest.raises(Damaged, match="hold_file"):
        list(opened(path, PRIVATE))


def test_a_law_keeps_its_class_until_the_duty_ends_and_nothing_else(shop: Past) -> None:
    with_counsel(shop).history.policy(LAW)
    said_of(shop, WHO, {"key": {"id": WHO}, "before": None, "after": {"email_ok": True}}, change_type="consent")
    consent = f"event-{shop.history.batches - 1}-{WHO}"
    erase(shop, WHO)
    request = the_erasure(shop)
    assert held_records(shop) == [("journal", consent)]
    (hold,) = read(shop)
    end = NOW.date().replace(year=NOW.year + 5)
    assert (hold["grounds"], hold["until"]) == (["us-tsr-records"], str(end))
    assert hold["records"][0]["row"]["payload"]["after"] == {"email_ok": True}
    sealed = request.happened("hold_sealed")[0].details
    assert (sealed["records"], sealed["hold_until"], sealed["grounds"]) == ("1", str(end), "us-tsr-records")


def test_a_hold_that_is_over_keeps_nothing_and_the_operators_own_number_neither(shop: Past) -> None:
    over = (NOW - timedelta(days=1)).date()
    shop.history.policy(
        "retention:\n  events: {years: 9}\n"
        f'holds:\n  - {{source: crm, until: "{over}", since: "2026-01-01", reason: "case", by: "counsel"}}\n'
    )
    with_counsel(shop)
    erase(shop, WHO)
    assert "hold_sealed" not in whats(the_erasure(shop))
    assert read(shop) == []


def test_without_a_key_a_policy_hold_waits_for_two_people(shop: Past) -> None:
    shop.history.policy('holds:\n  - {entity: customer, since: "2026-01-01", reason: "case", by: "counsel"}\n')
    known_by(shop, "held@example.com", WHO)
    name = asked(shop, "erasure", "held@example.com")
    assert stands(shop, name).state == "review"
    assert say(shop, name, "approve", "ann").state == "review"
    assert say(shop, name, "approve", "bob").state == "working"


def test_a_hold_ends_by_itself_on_the_day_after_its_last(shop: Past) -> None:
    with_counsel(shop, ", days: 30").history.on_hold(WHO, version="9")
    erase(shop, WHO)
    the_erasure(shop)
    assert "hold_released" not in whats(sweep(shop, datetime.now(UTC) + timedelta(days=30)))
    assert len(read(shop)) == 1
    request = sweep(shop, datetime.now(UTC) + timedelta(days=31))
    (released,) = request.happened("hold_released")
    assert (released.details["records"], released.reason) == (
        request.happened("hold_sealed")[0].details["records"],
        "its last day is over",
    )
    assert read(shop) == []
    assert list((shop.data / "holds").iterdir()) == []
    assert whats(sweep(shop, datetime.now(UTC) + timedelta(days=60))).count("hold_released") == 1


def test_a_hold_that_counsel_made_longer_in_the_policy_stays(shop: Past) -> None:
    text = 'holds:\n  - {{source: crm, until: "{}", since: "2026-01-01", reason: "case", by: "counsel"}}\n'
    soon, later = (NOW + timedelta(days=2)).date(), (NOW + timedelta(days=90)).date()
    with_counsel(shop).history.policy(text.format(soon))
    erase(shop, WHO)
    the_erasure(shop)
    shop.history.policy(text.format(later))
    assert "hold_released" not in whats(sweep(shop, datetime.now(UTC) + timedelta(days=40)))
    shop.history.policy(text.format(soon))
    assert "hold_released" in whats(sweep(shop, datetime.now(UTC) + timedelta(days=40)))


def released(shop: Past, request: Request, hold: str, by: str, reason: str = "settled out of court") -> Request:
    command = ["rights", "hold", "release", hold[:8], "--by", by, "--reason", reason, "-C", str(shop.history.folder)]
    ended = CliRunner().invoke(application("rights"), command)
    assert ended.exit_code == 0, ended.output
    return the_erasure(shop)


def test_before_its_time_a_hold_ends_by_two_people(shop: Past) -> None:
    with_counsel(shop).history.on_hold(WHO, version="9")
    erase(shop, WHO)
    request = the_erasure(shop)
    (hold,) = read(shop)
    for who in ("ann", "Ann "):
        assert "hold_released" not in whats(released(shop, request, hold["hold"], who))
    assert len(read(shop)) == 1
    over = released(shop, request, hold["hold"], "bob")
    (step,) = over.happened("hold_released")
    assert (step.details["approvers"], step.actor, step.reason) == ("ann,bob", "bob", "settled out of court")
    assert read(shop) == []
    entry = json.loads(shop.store.arrow("rights_requests", ["what", "entry"]).to_pylist()[-1]["entry"])
    assert entry["kind"] in VOCABULARY
    assert "word_refused" in whats(say(shop, request.id, "release", "carl", says={"hold": hold["hold"]}))


def test_recipients_under_the_same_hold_are_told_when_it_is_over(shop: Past) -> None:
    with_counsel(shop, f", days: 30, recipients: [{LANE}]").history.on_hold(WHO, version="9")
    erase(shop, WHO)
    the_erasure(shop)
    acknowledge(shop.store)
    request = the_erasure(shop)
    assert (request.parts[LANE].state, request.state) == ("held", "fulfilled")
    assert letters.outcome_of(request) == "partly"
    assert shop.keys.about([request.parts[LANE].tag]), "its part waits in the capsule"
    shop.history.attest()
    assert f"{LANE}: it keeps its copy under the same hold" in issue(shop.settings, request.id).missing
    sent = shop.store.arrow("journal", ["generation", "recipients"]).to_pylist()
    assert [LANE] not in [row["recipients"] for row in sent if row["generation"] == "capsule"]
    request = sweep(shop, datetime.now(UTC) + timedelta(days=31))
    assert (request.parts[LANE].state, request.state) == ("open", "working")
    assert whats(request).count("told_again") == 1
    acknowledge(shop.store)
    request = the_erasure(shop)
    assert (request.parts[LANE].state, request.state) == ("acknowledged", "fulfilled")
    assert shop.keys.about([request.parts[LANE].tag]) == []


def problems(shop: Past) -> dict[str, str]:
    try:
        verified(shop.history.folder)
    except ConfigurationError as error:
        return {problem.code: problem.path for problem in error.problems}
    return {}


def test_check_wants_counsels_key_where_something_is_held(shop: Past) -> None:
    page = shop.history.folder / "tidings.yaml"
    bare = page.read_text()
    shop.history.policy(LAW)
    page.write_text(bare + "\nrights: {}\n")
    assert problems(shop)["no_counsel_key"] == "rights"
    page.write_text(bare)
    with_counsel(shop, ", recipients: [nobody]")
    assert problems(shop) == {"hold_recipient": "rights.holds.recipients[0]"}
    (shop.history.folder / "secrets" / "counsel.pub").write_bytes(private_file(shop.history.folder.parent).read_bytes())
    assert problems(shop)["counsel_key"] == "rights.holds.counsel_key"
    with pytest.raises(Refused, match="counsel_key"):
        at_work(shop)


def test_counsel_reads_a_file_without_the_operators_folder(shop: Past, tmp_path: Path) -> None:
    with_counsel(shop).history.on_hold(WHO, version="9")
    erase(shop, WHO)
    the_erasure(shop)
    run: Any = lambda *words: CliRunner().invoke(application("rights"), ["rights", "hold", *words])  # noqa: E731
    (listed,) = json.loads(run("list", "-C", str(shop.history.folder), "--json").stdout)["holds"]
    shown = run("show", listed["hold"], "-C", str(shop.history.folder))
    assert listed["digest"] in shown.stdout
    assert email(WHO) not in shown.stdout
    copy = tmp_path / "elsewhere.hold"
    copy.write_bytes((shop.data / "holds" / listed["file"]).read_bytes())
    said = json.loads(run("open", str(copy), "--key", str(private_file(tmp_path))).stdout)
    assert email(WHO) in json.dumps(said)
    assert run("show", "ffff", "-C", str(shop.history.folder)).exception.code == "unknown_hold"


def test_restored_data_is_held_again_before_it_forgets(shop: Past, tmp_path: Path) -> None:
    with_counsel(shop).history.on_hold(WHO, version="9")
    shutil.copytree(shop.data, tmp_path / "backup")
    erase(shop, WHO)
    the_erasure(shop)
    events = [one for one in held_records(shop) if one[0] == "journal"][:BATCHES]
    shutil.rmtree(shop.data)
    shutil.copytree(tmp_path / "backup", shop.data)
    settings = load(shop.history.folder)
    again(settings, shop.store, shop.keys)
    assert [one for one in held_records(shop) if one[0] == "journal"] == events
    assert shop.keys.about([shop.tag(WHO)]) == []
    (hold,) = HoldStore(shop.data, b"").all()
    assert hold.request in at_work(shop).book.requests
