"""`tidings try render`: the requests an event would become, without a secret and without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tidings.channels.manifest import manifest_names
from tidings.cli import application
from tidings.verbs.init import write

EVENT = {
    "specversion": "1.0",
    "id": "0190a1b2-c3d4-7e5f-8a9b-000000000001",
    "type": "tidings.email.changed",
    "source": "/shop/crm",
    "subject": "p",
    "time": "2026-11-15T12:00:00Z",
    "data": {"key": {"id": 1}, "before": {"email": "a@example.com"}, "after": {"email": "b@example.com"}},
}


def render(*words: str, given: Any = EVENT) -> Result:
    text = given if isinstance(given, str) else json.dumps(given)
    return CliRunner().invoke(application("try"), ["try", "render", *words], input=text)


def test_both_verbs_of_a_route_in_their_order() -> None:
    found = render("--manifest", "hubspot", "--json")
    assert found.exit_code == 0
    [event] = json.loads(found.stdout)
    assert event["outcome"] == "acknowledged at A3 if taken"
    first, second = event["requests"]
    assert (first["verb"], first["method"]) == ("rectify_email", "PATCH")
    assert first["url"] == "https://api.hubapi.com/crm/v3/objects/contacts/a%40example.com?idProperty=email"
    assert first["headers"]["Authorization"] == "Bearer <the secret>"
    assert second["body"]["inputs"][0]["id"] == "b@example.com"


def test_a_persons_view_of_it(tmp_path: Path) -> None:
    (tmp_path / "event.json").write_text(json.dumps([EVENT, {**EVENT, "id": "2", "type": "tidings.customer.delete"}]))
    found = render("--manifest", "klaviyo", str(tmp_path / "event.json"))
    lines = found.stdout.splitlines()
    assert "POST https://a.klaviyo.com/api/profile-import" in lines
    assert "POST https://a.klaviyo.com/api/data-privacy-deletion-jobs" in lines
    assert "Authorization: Klaviyo-API-Key <the secret>" in lines


@pytest.mark.parametrize("name", manifest_names())
def test_every_shipped_manifest_can_be_looked_at(name: str) -> None:
    found = render("--manifest", name, "--json")
    if found.exit_code:
        assert getattr(found.exception, "code", "") == "nothing_to_render"
    else:
        assert [one["event"] for one in json.loads(found.stdout)] == [EVENT["id"]]


def test_what_would_not_be_sent_says_why() -> None:
    found = render("--manifest", "mailchimp", given={**EVENT, "data": {}})
    assert "refused: missing_field (the event has no email)" in found.stdout


def test_a_var_is_told_and_a_path_is_not_left() -> None:
    found = render("--manifest", "mailchimp", "--var", "list_id=L1")
    assert "/3.0/lists/L1/members/" in found.stdout
    found = render("--manifest", "mailchimp", "--var", "list_id=../x")
    assert "refused: unsafe_path" in found.stdout


@pytest.mark.parametrize(
    "given", ["", "[]", "\n\n", "nonsense", "7", "{}", '{"id": 1, "type": "x"}', "[1]", "[" * 100_000]
)
def test_what_is_no_event_is_refused(given: str) -> None:
    found = render("--manifest", "hubspot", given=given)
    assert found.exit_code != 0
    assert getattr(found.exception, "code", "") == "event_file"


@pytest.mark.parametrize(
    "words", [(), ("--subscriber", "a", "--manifest", "b"), ("--manifest", "hubspot", "--var", "x")]
)
def test_a_question_that_cannot_be_meant_is_refused(words: tuple[str, ...]) -> None:
    assert render(*words).exit_code == 2


@pytest.mark.parametrize(
    ("signing", "there"),
    [
        ("standard", {"webhook-signature"}),
        ("rfc9421", {"Content-Digest", "Signature-Input", "Signature"}),
        ("both", {"webhook-signature", "Content-Digest", "Signature-Input", "Signature"}),
    ],
)
def test_a_webhook_is_shown_with_the_headers_it_is_signed_with(tmp_path: Path, signing: str, there: set[str]) -> None:
    folder = tmp_path / "shop"
    write(folder)
    hook = folder / "subscribers" / "hook.yaml"
    hook.write_text(hook.read_text() + f"vars: {{signing: {signing}}}\n")
    found = render("--subscriber", "hook", "-C", str(folder), "--json", "-")
    [[request]] = [one["requests"] for one in json.loads(found.stdout)]
    signed = {"webhook-signature", "Content-Digest", "Signature-Input", "Signature"}
    assert signed & request["headers"].keys() == there
    assert {"webhook-id", "webhook-timestamp"} <= request["headers"].keys()
    for secret in (folder / "secrets").iterdir():
        assert secret.read_text().strip() not in found.stdout


def requests(manifest: str, kind: str, data: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    found = render("--manifest", manifest, "--json", given={**EVENT, "type": kind, "data": data})
    [said] = json.loads(found.stdout)
    return said["outcome"], said["requests"]


NOBODY = {"email": "not an address", "phone": "12"}


@pytest.mark.parametrize(
    ("manifest", "kind", "data"),
    [
        ("klaviyo", "tidings.consent.changed", {"after": NOBODY, "consent": {"channel": "sms", "state": "withdrawn"}}),
        ("braze", "tidings.consent.changed", {"after": NOBODY, "consent": {"channel": "sms", "state": "withdrawn"}}),
        ("twilio", "tidings.customer.delete", {"key": {"id": 1}, "before": NOBODY}),
        ("tiktok_audiences", "tidings.customer.delete", {"key": {"id": 1}, "before": NOBODY}),
        ("meta_audiences", "tidings.customer.delete", {"key": {"id": 1}, "before": NOBODY}),
        ("google_customer_match", "tidings.customer.delete", {"key": {"id": 1}, "before": NOBODY}),
        ("google_conversions", "tidings.customer.insert", {"key": {"id": 1}, "after": NOBODY}),
    ],
)
def test_no_request_is_about_nobody(manifest: str, kind: str, data: dict[str, Any]) -> None:
    """An address without a normal form would leave a request that a vendor takes and that does nothing."""
    outcome, sent = requests(manifest, kind, data)
    assert outcome.startswith("refused: missing_field")
    assert sent == []


@pytest.mark.parametrize(
    ("manifest", "verbs"),
    [
        ("klaviyo", ["suppress_sms", "suppress_email"]),
        ("iterable", ["suppress_email", "suppress_sms"]),
        ("braze", ["suppress_email", "suppress_sms"]),
        ("salesforce", ["suppress_email", "suppress_phone"]),
        ("mparticle", ["suppress_all"]),
    ],
)
def test_a_withdrawal_without_a_channel_is_of_all_of_them(manifest: str, verbs: list[str]) -> None:
    after = {"email": "a@example.com", "phone": "+15559876543"}
    for consent in ({"state": "withdrawn"}, {"state": "withdrawn", "channel": None}):
        _, sent = requests(manifest, "tidings.consent.changed", {"key": {"id": 1}, "after": after, "consent": consent})
        assert [one["verb"] for one in sent] == verbs
    _, sent = requests(manifest, "tidings.suppression.changed", {"key": {"id": 1}, "after": after})
    assert [one["verb"] for one in sent] == verbs


@pytest.mark.parametrize("manifest", ["mparticle_privacy", "opendsr"])
def test_an_identity_without_a_value_is_left_out(manifest: str) -> None:
    _, [sent] = requests(manifest, "tidings.customer.delete", {"key": {"id": 1}})
    assert "email" not in json.dumps(sent["body"]["subject_identities"])


def test_json_lines_end_at_a_line_feed_alone() -> None:
    two = [
        {**EVENT, "id": number, "data": {"after": {"email": "a@example.com", "first_name": "A\u2028n"}}}
        for number in "12"
    ]
    found = render("--manifest", "braze", "--json", given="\n".join(json.dumps(one, ensure_ascii=False) for one in two))
    assert [one["event"] for one in json.loads(found.stdout)] == ["1", "2"]
