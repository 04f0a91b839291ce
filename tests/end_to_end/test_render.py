"""`tidings try render` on a stored event: as the lane would hand it over, opened, redacted, with no secret in it."""

from __future__ import annotations

import json
from pathlib import Path

from lane_stage import Journal, operator
from typer.testing import CliRunner

from tidings.cli import application
from tidings.settings import load
from tidings.store import Store


def test_a_stored_event_is_shown_as_its_subscriber_would_get_it(tmp_path: Path) -> None:
    operator(tmp_path, {"hook": "http://127.0.0.1:9/", "other": "http://127.0.0.1:9/"})
    settings = load(tmp_path)
    journal = Journal(settings, Store(settings.data_path / "tables"))
    (event,) = journal.batch([("ann", {"hook": "allow"})], redact=["email"])

    def render(event: str, subscriber: str) -> tuple[int, str]:
        words = ["try", "render", "--subscriber", subscriber, event, "-C", str(tmp_path), "--json"]
        found = CliRunner().invoke(application("try"), words)
        return found.exit_code, found.stdout if found.exit_code == 0 else str(getattr(found.exception, "code", ""))

    code, said = render(event, "hook")
    assert code == 0
    [[request]] = [one["requests"] for one in json.loads(said)]
    assert (request["method"], request["url"]) == ("POST", "http://127.0.0.1:9/")
    assert request["body"]["id"] == event
    assert request["body"]["subject"] != settings.keyring.tag("shop", "customer", '["ann"]').hex()
    assert "ann@example.com" not in said, "what the decision hides from it is not in it"
    secret = settings.secrets_of("hook")
    assert all(value not in said for value in secret.values())
    assert render(event, "other") == (1, "nothing_to_render")
    assert render("no-such-event", "hook") == (1, "unknown-event")
    assert render(event, "nobody") == (1, "unknown_subscriber")
