"""What every channel hands over of a delivery that was not taken: this member's part of the request, no credential, nobody else."""

from __future__ import annotations

import json

import pytest
from test_channels import HOOK, NAMES, SECRET, call, opened, several
from vendor import always, reset, serving

ANSWER = b'{"error": "new1@example.com and new2@example.com are not known here"}'


def emails(number: int) -> tuple[str, ...]:
    return (f"new{number}@example.com", f"old{number}@example.com")


@pytest.mark.parametrize("name", NAMES)
def test_a_refused_member_is_handed_over_alone_and_without_credentials(name: str) -> None:
    with serving(always(400, {}, ANSWER)) as vendor:
        outcomes = opened(name, vendor.url).send(call(*several(name)))
    sent = [outcome for outcome in outcomes if outcome.status == 400]
    assert sent
    for outcome in sent:
        assert outcome.exchange is not None
        said = json.loads(outcome.exchange.encode())
        number = int(outcome.event_id[-2:], 16)
        # A secret in the address is added after the copy is taken.
        address = said["request"]["url"].rstrip("/")
        requests = [one for one in vendor.received if (vendor.url + one.target).startswith(address)]
        assert requests, "the address is the one that was called"
        assert said["response"]["status"] == 400
        text = json.dumps(said["request"])
        assert SECRET not in text
        assert HOOK.removeprefix("whsec_") not in text
        assert "uthorization" not in text
        others = [one for n in (1, 2, 3) if n != number for one in emails(n)]
        assert not [one for one in others if one in text]
        alone = said["request"]["body"].encode() in [one.body.replace(SECRET.encode(), b"[secret]") for one in requests]
        # An answer to several members may speak of any of them.
        assert said["response"]["body"].encode() == (ANSWER if alone else b"")


@pytest.mark.parametrize("name", NAMES)
def test_a_request_without_an_answer_is_handed_over_with_its_fault(name: str) -> None:
    with serving(reset) as vendor:
        [outcome] = opened(name, vendor.url).send(call(*several(name, 1)))
    assert outcome.exchange is not None
    assert (outcome.exchange.fault, outcome.exchange.status, outcome.exchange.answer) == ("reset", 0, b"")
    assert SECRET not in outcome.exchange.encode().decode()
