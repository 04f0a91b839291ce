"""Signals and consent platforms over the API: who may, what is durable, what is counted, what is refused."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from api_stage import Served, serving, shop

from tidings.api.access import Tokens
from tidings.api.rates import Rates
from tidings.errors import ConfigurationError
from tidings.rights import intake
from tidings.settings import Settings, load

RIGHTS = """
rights:
  gpc_since: "2026-11-16"
  consent:
    - {platform: onetrust, source: consents, secret: "file:consent.key"}
    - {platform: ketch, source: forwarded, secret: "file:consent.key", proof: hmac, header: X-Signature, prefix: "sha256="}
    - {platform: trustarc, source: preferences, secret: "file:consent.key", networks: [192.0.2.0/24]}
"""
SOURCES = {"consents": "onetrust", "forwarded": "ketch", "preferences": "trustarc"}
SECRET = "a-secret-of-the-webhook"
GPC = {"gpc": True, "jurisdiction": "US-CA", "identifiers": {"email": "maya@example.com"}}
RECEIPT = {
    "identifier": "maya@example.com",
    "receiptId": "r1",
    "purposes": [{"Id": "p", "TransactionType": "WITHDRAWN"}],
}
DELETE = {"requestTypes": ["Delete"], "email": "maya@example.com", "requestQueueId": "q1", "status": "New"}


def folder(path: Path) -> Path:
    shop(path)
    (path / "tidings.yaml").write_text((path / "tidings.yaml").read_text() + RIGHTS)
    (path / "secrets/consent.key").write_text(SECRET)
    (path / "secrets/consent.key").chmod(0o600)
    crm = [
        line
        for line in (path / "sources/crm.yaml").read_text().splitlines()
        if line.split(":")[0] in ("banner", "entities")
    ]
    for name, dialect in SOURCES.items():
        text = f"kind: inbox\ndialect: {dialect}\n" + "\n".join(crm) + "\n"
        (path / f"sources/{name}.yaml").write_text(text)
    return path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Settings, Served, dict[str, str]]]:
    settings = load(folder(tmp_path_factory.mktemp("signals")))
    tokens = {name: Tokens(settings.data_path).make(name)[0] for name in ("signals:site", "alpha")}
    with serving(settings, failed=Rates(1000, 1000), asked=Rates(1000, 1000)) as served:
        yield settings, served, tokens


def slips(settings: Settings) -> list[Any]:
    return [slip.body for slip in intake.waiting(settings)]


def segments(settings: Settings, source: str) -> int:
    return sum(pq.read_metadata(path).num_rows for path in (settings.data_path / "inbox" / source).glob("*.parquet"))


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/signals"), ("GET", "/v1/signals")])
def test_only_a_token_for_signals_opens_them(world: Any, method: str, path: str) -> None:
    _, served, tokens = world
    assert served.ask(method, path).json()["error"]["code"] == "no_token"
    assert served.ask(method, path, "tdgs_x").json()["error"]["code"] == "wrong_token"
    assert served.ask(method, path, tokens["alpha"]).json()["error"]["code"] == "not_yours"
    other = served.ask("GET", "/v1/subscribers/alpha/events", tokens["signals:site"])
    assert (other.status_code, other.json()["error"]["code"]) == (403, "not_yours")


def test_a_signal_is_durable_before_the_answer_and_asked_once(world: Any) -> None:
    settings, served, tokens = world
    before = len(slips(settings))
    first = served.ask("POST", "/v1/signals", tokens["signals:site"], json=GPC)
    assert first.status_code == 202
    assert [one["kind"] for one in first.json()["requests"]] == ["opt_out_sale"]
    (ask,) = slips(settings)[before:]
    assert (ask.way, ask.agent, ask.assurance, ask.jurisdiction) == ("signal", "site", "none", "US-CA")
    again = served.ask("POST", "/v1/signals", tokens["signals:site"], json=GPC).json()
    assert (again["requests"], again["again"]) == ([], 1)
    assert len(slips(settings)) == before + 1
    raw = b"".join(path.read_bytes() for path in (settings.data_path / "rights").rglob("*") if path.is_file())
    assert b"maya@example.com" not in raw


def test_a_signal_of_nobody_is_counted(world: Any) -> None:
    settings, served, tokens = world
    token, before = tokens["signals:site"], len(slips(settings))
    headers = {"Sec-GPC": "1"}
    for _ in range(2):
        told = served.ask("POST", "/v1/signals", token, json={"jurisdiction": "US-TX"}, headers=headers).json()
        assert (told["known"], told["requests"]) == (False, [])
    assert len(slips(settings)) == before
    rows = served.ask("GET", "/v1/signals", token).json()["applied"]
    (row,) = [row for row in rows if row["place"] == "US-TX"]
    assert (row["what"], row["known"], row["count"], len(row["digest"])) == ("opt_out_sale:ads sale", 0, 2, 64)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "not_json"),
        (b"[" * 60_000, 400, "not_json"),
        (b'{"gpc": "1"}', 400, "bad_signal"),
        (b'{"gpc": true, "jurisdiction": "nowhere", "identifiers": {"email": "a@x"}}', 400, "bad_signal"),
        (b'{"gpc": true, "jurisdiction": "maya@example.com"}', 400, "bad_signal"),
        (b'{"gpc": true, "identifiers": {"nobody": "7"}}', 400, "bad_signal"),
        (b'{"gpp": "\\ud800"}', 400, "not_json"),
        (b'{"gpc": false, "gpc": true}', 400, "not_json"),
        (b'{"gpp": "' + b"D" * 70_000 + b'"}', 413, "too_large"),
    ],
)
def test_bad_signals_are_refused(world: Any, body: bytes, status: int, code: str) -> None:
    _, served, tokens = world
    told = served.ask("POST", "/v1/signals", tokens["signals:site"], content=body)
    assert (told.status_code, told.json()["error"]["code"]) == (status, code)


def test_the_site_says_that_it_honours_gpc(world: Any) -> None:
    told = world[1].ask("GET", "/.well-known/gpc.json")
    assert told.headers["content-type"] == "application/json"
    assert told.json() == {"gpc": True, "lastUpdate": "2026-11-16"}


def test_a_change_of_consent_goes_to_its_source_once(world: Any) -> None:
    settings, served, _ = world
    headers = {"Authorization": SECRET}
    told = served.ask("POST", "/v1/consent/onetrust", json=RECEIPT, headers=headers)
    assert (told.status_code, told.json()["changes"]) == (202, 1)
    assert segments(settings, "consents") == 1
    assert served.ask("POST", "/v1/consent/onetrust", json=RECEIPT, headers=headers).json()["already"]
    assert segments(settings, "consents") == 1


def test_a_request_at_a_platform_goes_to_the_desk(world: Any) -> None:
    settings, served, _ = world
    before = segments(settings, "consents")
    told = served.ask("POST", "/v1/consent/onetrust", json=DELETE, headers={"Authorization": SECRET}).json()
    (ask,) = [one for one in slips(settings) if one.way == "consent"]
    assert (ask.kind, ask.agent, ask.reference, ask.assurance) == ("erasure", "onetrust", "q1", "claimed")
    assert len(told["requests"]) == 1
    assert segments(settings, "consents") == before


def test_a_ticket_of_two_kinds_is_two_requests_and_one_that_names_nobody_is_not_taken_in_silence(world: Any) -> None:
    _, served, _ = world
    headers = {"Authorization": SECRET}
    both = DELETE | {"requestTypes": ["Delete", "Access"], "requestQueueId": "q7"}
    told = served.ask("POST", "/v1/consent/onetrust", json=both, headers=headers).json()
    assert len(set(told["requests"])) == 2
    lost = served.ask("POST", "/v1/consent/onetrust", json=both | {"email": None}, headers=headers)
    assert (lost.status_code, lost.json()["error"]["code"]) == (400, "bad_signal")


def test_a_digest_is_checked_over_the_bytes(world: Any) -> None:
    settings, served, _ = world
    body = json.dumps({"apiVersion": "consent/v1", "kind": "ConsentRequest", "metadata": {"uid": "u"}}).encode()
    mac = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    refused = served.ask("POST", "/v1/consent/ketch", content=body + b" ", headers={"X-Signature": f"sha256={mac}"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "wrong_signature")
    taken = served.ask("POST", "/v1/consent/ketch", content=body, headers={"X-Signature": f"sha256={mac}"})
    assert (taken.status_code, segments(settings, "forwarded")) == (202, 1)


def test_a_flood_and_half_a_character_have_a_name(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, served, tokens = world
    headers = {"Authorization": SECRET}
    half = served.ask("POST", "/v1/consent/onetrust", content=b'{"receiptId": "\\ud800"}', headers=headers)
    assert (half.status_code, half.json()["error"]["code"]) == (400, "not_json")
    monkeypatch.setattr(intake, "MOST_WAITING", 0)
    full = served.ask("POST", "/v1/consent/onetrust", json=DELETE | {"requestQueueId": "q9"}, headers=headers)
    person = GPC | {"identifiers": {"email": "zoe@example.com"}}
    signal = served.ask("POST", "/v1/signals", tokens["signals:site"], json=person)
    assert {(one.status_code, one.json()["error"]["code"], one.headers["retry-after"]) for one in (full, signal)} == {
        (503, "busy", "60")
    }


@pytest.mark.parametrize(
    ("platform", "proof"),
    [("onetrust", ""), ("onetrust", SECRET + "x"), ("trustarc", SECRET), ("securiti", SECRET), ("nobody", SECRET)],
    ids=["no secret", "wrong secret", "another network", "not declared", "no platform"],
)
def test_whoever_proves_nothing_is_told_the_same(world: Any, platform: str, proof: str) -> None:
    told = world[1].ask("POST", f"/v1/consent/{platform}", content=b"not even JSON", headers={"Authorization": proof})
    assert (told.status_code, told.json()["error"]["code"]) == (401, "wrong_signature")


def test_a_platform_that_does_not_fit_stops_the_start(tmp_path: Path) -> None:
    place = folder(tmp_path)
    text = (
        (place / "tidings.yaml")
        .read_text()
        .replace(", networks: [192.0.2.0/24]", "")
        .replace("source: consents", "source: crm")
    )
    (place / "tidings.yaml").write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load(place)
    assert [one.path for one in caught.value.problems if one.code == "consent_platform"] == [
        "rights.consent[0].source",
        "rights.consent[2]",
    ]
