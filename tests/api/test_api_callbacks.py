"""Signed callbacks: what is good is taken once, and everything else has a status and a code of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_stage import SECRET, Served, Shop, serving, shop
from standardwebhooks import Webhook
from tidings_receiver import CallbackFailed, Taken, send_callback

from tidings.api.nonces import KEEP_S, Full, Nonces, Replayed
from tidings.api.rates import Rates
from tidings.channels.message_signatures import Message, sign_message
from tidings.channels.signing import Ed25519PrivateKey, decode_secrets, new_pair, new_secret, sign
from tidings.lanes import control

PATH = "/v1/callbacks/alpha"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[tuple[Shop, Served]]:
    place = shop(tmp_path)
    with serving(place.settings) as served:
        yield place, served


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shop, Served]]:
    """One server for what is never taken."""
    place = shop(tmp_path_factory.mktemp("shop"))
    with serving(place.settings, failed=Rates(1000, 1000)) as served:
        yield place, served


def signed(body: bytes, *, secret: str = SECRET, name: str = "cb_1", at: float | None = None) -> dict[str, str]:
    return sign(decode_secrets(secret), name, int(time.time() if at is None else at), body)


def said(*acks: Any) -> bytes:
    return json.dumps({"acks": [{"id": one, "status": "ok"} if isinstance(one, str) else one for one in acks]}).encode()


def post(served: Served, body: bytes, headers: dict[str, str], path: str = PATH) -> tuple[int, Any]:
    found = served.ask("POST", path, headers={"Content-Type": "application/json", **headers}, content=body)
    told = found.json()
    return found.status_code, told["error"]["code"] if "error" in told else told["results"]


def test_a_good_callback_is_the_strongest_answer_and_counts_once(world: tuple[Shop, Served]) -> None:
    place, served = world
    first, second = place.happens("ann", "bob")
    body = said(first, {"id": second, "status": "failed", "reason": "gone"}, "never")
    status, results = post(served, body, headers := signed(body))
    assert (status, [one["result"] for one in results]) == (202, ["taken", "taken", "unknown"])
    asked = control.asked(place.settings.data_path, "alpha")
    assert [(one.action, one.events, one.strength, one.by) for one in asked] == [
        ("acknowledge", (first,), "A4", "callback of alpha"),
        ("reject", (second,), "A0", "callback of alpha"),
    ]
    assert len(asked[0].evidence) == 64
    assert post(served, body, headers) == (409, "replayed")
    # Signed anew under another id it is no replay, and the answers stand all the same.
    status, results = post(served, body, signed(body, name="cb_2"))
    assert (status, [one["result"] for one in results]) == (202, ["already", "already", "unknown"])
    assert len(control.asked(place.settings.data_path, "alpha")) == 2


def test_a_replay_is_known_after_a_restart(tmp_path: Path) -> None:
    place = shop(tmp_path)
    [event] = place.happens("ann")
    body = said(event)
    headers = signed(body)
    with serving(place.settings) as served:
        assert post(served, body, headers)[0] == 202
    with serving(place.settings) as served:
        assert post(served, body, headers) == (409, "replayed")


NOW = time.time
BODY = said("e")
REFUSED = [
    ("no signature", BODY, {}, 401, "wrong_signature"),
    ("another secret", BODY, lambda: signed(BODY, secret=new_secret()), 401, "wrong_signature"),
    ("another body", said("f"), lambda: signed(BODY), 401, "wrong_signature"),
    ("a signature cut off", BODY, lambda: signed(BODY) | {"webhook-signature": "v1,"}, 401, "wrong_signature"),
    ("no number for a time", BODY, lambda: signed(BODY) | {"webhook-timestamp": "soon"}, 401, "wrong_signature"),
    ("too old", BODY, lambda: signed(BODY, at=NOW() - 301), 401, "stale"),
    ("too new", BODY, lambda: signed(BODY, at=NOW() + 301), 401, "stale"),
    ("an unknown event", BODY, lambda: signed(BODY, name="cb_unknown"), 404, "unknown_id"),
    ("not JSON", b"{", lambda: signed(b"{"), 400, "not_json"),
    ("no acks", b"{}", lambda: signed(b"{}"), 400, "no_acks"),
    ("too large", b" " * 300_000, lambda: signed(b" " * 300_000), 413, "too_large"),
]


@pytest.mark.parametrize(("case", "body", "headers", "status", "code"), REFUSED, ids=[row[0] for row in REFUSED])
def test_a_callback_that_is_not_taken(
    quiet: tuple[Shop, Served], case: str, body: bytes, headers: Any, status: int, code: str
) -> None:
    place, served = quiet
    found = post(served, body, headers() if callable(headers) else headers)
    assert found == (status, code)
    assert control.asked(place.settings.data_path, "alpha") == []


@pytest.mark.parametrize("who", ["nobody", "hook"])
def test_who_has_no_secret_is_told_the_same_as_who_signs_wrongly(quiet: tuple[Shop, Served], who: str) -> None:
    _, served = quiet
    assert post(served, BODY, signed(BODY), f"/v1/callbacks/{who}") == (401, "wrong_signature")


def test_an_event_of_another_subscriber_is_unknown(world: tuple[Shop, Served]) -> None:
    place, served = world
    [theirs] = place.happens("ann", to="beta")
    body = said(theirs)
    assert post(served, body, signed(body)) == (404, "unknown_id")
    assert control.asked(place.settings.data_path, "beta") == []


def test_both_secrets_hold_while_one_replaces_the_other(world: tuple[Shop, Served]) -> None:
    place, served = world
    events, new = place.happens("ann", "bob", "cid", "dee"), new_secret()
    file = place.folder / "secrets/hook.key"
    steps = [
        (SECRET, SECRET, 202),
        (f"{new}\n{SECRET}", SECRET, 202),
        (f"{new}\n{SECRET}", new, 202),
        (new, SECRET, 401),
    ]
    for event, (ours, theirs, status) in zip(events, steps, strict=True):
        file.write_text(ours)
        body = said(event)
        assert post(served, body, signed(body, secret=theirs, name=f"cb_{event}"))[0] == status


def test_a_subscribers_own_key_signs_too(world: tuple[Shop, Served]) -> None:
    place, served = world
    [event] = place.happens("ann")
    private, public = new_pair()
    (place.folder / "secrets/hook.key").write_text(public)
    body = said(event)
    assert post(served, body, signed(body, secret=new_pair()[0])) == (401, "wrong_signature")
    (place.folder / "secrets/hook.key").write_text(private)  # our own key proves nothing about them
    assert post(served, body, signed(body, secret=private)) == (401, "wrong_signature")
    (place.folder / "secrets/hook.key").write_text(public)
    assert isinstance(decode_secrets(private)[0], Ed25519PrivateKey)
    assert post(served, body, signed(body, secret=private))[0] == 202


def test_a_message_signature_is_as_good(tmp_path: Path) -> None:
    place = shop(tmp_path)
    first, second = place.happens("ann", "bob")

    def made(target: str, event: str) -> tuple[bytes, dict[str, str]]:
        body, now = said(event), int(time.time())
        own = {"webhook-id": f"cb_{event}", "webhook-timestamp": str(now)}
        return body, own | sign_message(decode_secrets(SECRET), Message("POST", target, own, body), now)

    with serving(place.settings) as served:
        assert post(served, *made(served.url + PATH, first))[0] == 202
        assert post(served, *made("https://other.example" + PATH, second)) == (401, "wrong_signature")
    with serving(place.settings, public_url="https://api.shop.example") as served:
        assert post(served, *made("https://api.shop.example" + PATH, second))[0] == 202


def test_the_receiver_kit_and_the_official_library_are_understood(world: tuple[Shop, Served]) -> None:
    place, served = world
    first, second = place.happens("ann", "bob")
    name = send_callback(served.url + PATH, SECRET, [Taken(first, "duplicate")])
    assert send_callback(served.url + PATH, SECRET, [Taken(first, "ok")], message_id=name) == name
    with pytest.raises(CallbackFailed) as caught:
        send_callback(served.url + PATH, new_secret(), [Taken(first, "ok")])
    assert caught.value.status == 401
    from datetime import UTC, datetime

    now, body = datetime.now(UTC), said(second)
    headers = {"webhook-id": "w1", "webhook-timestamp": str(int(now.timestamp()))}
    headers["webhook-signature"] = Webhook(SECRET).sign("w1", now, body.decode())
    assert post(served, body, headers)[0] == 202


def test_nothing_of_a_request_comes_back(quiet: tuple[Shop, Served]) -> None:
    _, served = quiet
    body = said("ann@example.com")
    found = httpx.post(served.url + PATH, content=body, headers=signed(body), trust_env=False)
    assert "ann" not in found.text
    assert "server" not in found.headers


def test_what_is_remembered_is_bounded_by_time_and_number(tmp_path: Path) -> None:
    nonces = Nonces(tmp_path, most=2)
    for name in ("a", "b"):
        with nonces.once("alpha", name, 1000):
            pass
    with pytest.raises(Replayed), nonces.once("alpha", "a", 1000 + KEEP_S):
        raise AssertionError("a replay was taken")
    with pytest.raises(Full), nonces.once("alpha", "c", 1001):
        raise AssertionError("more were taken than can be remembered")
    with nonces.once("alpha", "c", 1001 + KEEP_S):
        pass
    with nonces.once("beta", "c", 1001 + KEEP_S):
        pass


def test_a_message_whose_effect_failed_may_come_again(tmp_path: Path) -> None:
    nonces = Nonces(tmp_path)
    with pytest.raises(OSError, match="disk"), nonces.once("alpha", "a", 1000):
        raise OSError("disk")
    with nonces.once("alpha", "a", 1000):
        pass
