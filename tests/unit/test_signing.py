"""Standard Webhooks: the published vector, rotation, and everything that must be refused; and safe path parameters."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.channels.call import Member
from tidings.channels.mapping import Scope, Unusable, path_parameter
from tidings.channels.signing import BadSignature, decode_secrets, new_secret, sign, verify
from tidings.errors import Refused

# The example that the specification's own libraries test with.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
MESSAGE, TIME, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def signed() -> dict[str, str]:
    return sign(decode_secrets(SECRET), MESSAGE, TIME, BODY)


def test_the_published_signature_comes_out() -> None:
    assert signed() == {"webhook-id": MESSAGE, "webhook-timestamp": str(TIME), "webhook-signature": SIGNATURE}


def test_the_stored_vector_is_the_one_written_here() -> None:
    home = Path(os.environ.get("TIDINGS_VECTORS", Path(__file__).parents[2].parent / "shared" / "vectors"))
    file = home / "http_signing" / "standard_webhooks.json"
    if not file.exists():
        pytest.skip(f"no vectors at {file}; set TIDINGS_VECTORS")
    told = json.loads(file.read_text())
    found = sign(decode_secrets(told["secret"]), told["webhook-id"], told["webhook-timestamp"], told["body"].encode())
    assert found["webhook-signature"] == told["webhook-signature"]


def test_every_secret_signs_and_either_side_of_a_rotation_accepts() -> None:
    old, new = new_secret(), new_secret()
    headers = sign(decode_secrets(f"{new}\n{old}"), "id-1", TIME, BODY)
    assert len(headers["webhook-signature"].split(" ")) == 2
    for side in (old, new, f"{old} {new}"):
        verify(decode_secrets(side), headers, BODY, TIME)
    with pytest.raises(BadSignature, match="no_match"):
        verify(decode_secrets(new_secret()), headers, BODY, TIME)


REFUSED = [
    ("missing id", {"webhook-id": None}, TIME, "missing_header"),
    ("missing time", {"webhook-timestamp": None}, TIME, "missing_header"),
    ("missing signature", {"webhook-signature": None}, TIME, "missing_header"),
    ("empty signature", {"webhook-signature": "v1,"}, TIME, "no_match"),
    ("no version", {"webhook-signature": SIGNATURE.removeprefix("v1,")}, TIME, "no_match"),
    (
        "other versions",
        {"webhook-signature": SIGNATURE.replace("v1", "v0") + " " + SIGNATURE.replace("v1", "v2")},
        TIME,
        "no_match",
    ),
    ("signature cut", {"webhook-signature": SIGNATURE[:-4]}, TIME, "no_match"),
    ("other id", {"webhook-id": "msg_other"}, TIME, "no_match"),
    ("other time", {"webhook-timestamp": str(TIME + 1)}, TIME, "no_match"),
    ("time not a number", {"webhook-timestamp": "now"}, TIME, "bad_timestamp"),
    ("time below zero", {"webhook-timestamp": "-1"}, TIME, "bad_timestamp"),
    ("time in other digits", {"webhook-timestamp": "١٦١٤٢٦٥٣٣٠"}, TIME, "bad_timestamp"),
    ("too old", {}, TIME + 301, "outside_tolerance"),
    ("too new", {}, TIME - 301, "outside_tolerance"),
]


@pytest.mark.parametrize(("case", "change", "now", "code"), REFUSED, ids=[row[0] for row in REFUSED])
def test_a_message_that_is_not_ours_is_refused(case: str, change: dict[str, str | None], now: int, code: str) -> None:
    headers = {name: value for name, value in {**signed(), **change}.items() if value is not None}
    with pytest.raises(BadSignature, match=f"^{code}$"):
        verify(decode_secrets(SECRET), headers, BODY, now)


def test_a_signature_among_others_is_found_whatever_the_case_of_the_header() -> None:
    headers = {**signed(), "webhook-signature": f"v1,AAAA v1a,BBBB {SIGNATURE}"}
    verify(decode_secrets(SECRET), {name.title(): value for name, value in headers.items()}, BODY, TIME + 299)


@given(st.binary(max_size=200), st.integers(0, 199), st.integers(1, 255))
def test_any_changed_byte_is_noticed(body: bytes, place: int, change: int) -> None:
    keys = decode_secrets(SECRET)
    headers = sign(keys, MESSAGE, TIME, body)
    verify(keys, headers, body, TIME)
    if place < len(body):
        other = bytearray(body)
        other[place] ^= change
        with pytest.raises(BadSignature):
            verify(keys, headers, bytes(other), TIME)


BAD_SECRETS = ["", "whsec_", "whsec_AAAA", "whsec_not base64", SECRET.removeprefix("whsec_"), "whsk_" + SECRET[6:]]
BAD_SECRETS += ["whsec_" + base64.b64encode(bytes(65)).decode(), f"{SECRET} x"]


@pytest.mark.parametrize("text", BAD_SECRETS)
def test_a_secret_of_another_form_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(Refused) as caught:
        decode_secrets(text)
    assert "MfKQ" not in str(caught.value)


@pytest.mark.parametrize("message_id", ["a.b", "", "a\r\nb", "ü"])
def test_an_id_that_could_be_read_two_ways_is_not_signed(message_id: str) -> None:
    with pytest.raises(Refused):
        sign(decode_secrets(SECRET), message_id, TIME, BODY)


CLIMBS = [
    "..",
    ".",
    "../regulations",
    "a/../b",
    "%2e%2e",
    "%2E.",
    "..%2fadmin",
    "a\\..\\b",
    "a%5c..",
    "x\r\nHost: y",
    "\x00",
    "\ud800",
    "",
]


@pytest.mark.parametrize("value", CLIMBS)
def test_an_identifier_cannot_climb_out_of_its_segment(value: str) -> None:
    with pytest.raises(Unusable) as caught:
        path_parameter(value, "key")
    assert caught.value.code in ("unsafe_path", "missing_field")
    assert not value or value not in caught.value.detail


@given(st.text(min_size=1, max_size=30))
def test_an_identifier_is_one_segment_that_decodes_to_itself(value: str) -> None:
    try:
        found = path_parameter(value, "key")
    except Unusable:
        return
    assert unquote(found) == value
    assert not set(found) & set("/?#\\ &")
    assert found not in (".", "..")


def test_a_path_is_filled_from_the_event_and_the_operator() -> None:
    member = Member("e", "s", "email", "1", {"data": {"after": {"email": "Jo+x@example.com"}}}, "e", 1)
    scope = Scope(member, {"list_id": "a b"})
    assert scope.fill_path("/lists/{var.list_id}/members/{email}") == "/lists/a%20b/members/Jo%2Bx%40example.com"
    assert scope.fill_path("/m/{email | md5_lower}") == "/m/0c602da4629e7ecca843634aaefaf846"
    with pytest.raises(Unusable, match="missing_field"):
        scope.fill_path("/m/{phone}")
