"""The receiver kit's signatures against published vectors, the official library and our own sender's code."""

from __future__ import annotations

import base64
import json
import os
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError
from tidings_receiver.causality import compare
from tidings_receiver.messages import signature_base, verify_message
from tidings_receiver.signatures import BadSignature, Key, read_keys, sign, verify

from tidings.channels import message_signatures, signing

SECRET, OTHER = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_" + base64.b64encode(bytes(range(32))).decode()
MESSAGE, TIME, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
HEADERS = {"webhook-id": MESSAGE, "webhook-timestamp": str(TIME), "webhook-signature": SIGNATURE}
URL = "https://shop.example/hooks?a=1"


def vectors(name: str) -> Any:
    home = Path(os.environ.get("TIDINGS_VECTORS", Path(__file__).parents[2].parent / "shared" / "vectors"))
    if not (home / name).exists():
        pytest.skip(f"no vectors at {home / name}; set TIDINGS_VECTORS")
    return json.loads((home / name).read_text())


def test_the_published_vector_verifies() -> None:
    assert verify(read_keys([SECRET]), HEADERS, BODY, TIME) == MESSAGE
    assert sign(Key.read(SECRET), MESSAGE, TIME, BODY) == HEADERS


REFUSED = [
    ({"webhook-id": None}, TIME, "missing_header"),
    ({"webhook-timestamp": None}, TIME, "missing_header"),
    ({"webhook-signature": None}, TIME, "missing_header"),
    ({"webhook-signature": "v1,"}, TIME, "no_match"),
    ({"webhook-signature": SIGNATURE[3:]}, TIME, "no_match"),
    ({"webhook-signature": SIGNATURE.replace("v1", "v2")}, TIME, "no_match"),
    ({"webhook-signature": SIGNATURE.replace("v1", "v1a")}, TIME, "no_match"),
    ({"webhook-id": "msg_other"}, TIME, "no_match"),
    ({"webhook-timestamp": str(TIME + 1)}, TIME, "no_match"),
    ({"webhook-timestamp": "١٦١٤٢٦٥٣٣٠"}, TIME, "bad_timestamp"),
    ({"webhook-timestamp": "1e9"}, TIME, "bad_timestamp"),
    ({}, TIME + 301, "outside_tolerance"),
    ({}, TIME - 301, "outside_tolerance"),
]


@pytest.mark.parametrize(("change", "now", "code"), REFUSED)
def test_what_the_sender_did_not_send_is_refused(change: dict[str, str | None], now: int, code: str) -> None:
    headers = {name: value for name, value in {**HEADERS, **change}.items() if value is not None}
    with pytest.raises(BadSignature, match=f"^{code}$"):
        verify(read_keys([SECRET]), headers, BODY, now)


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_AAAA", SECRET[6:], "whpk_AAAA", "whsk_" + SECRET[6:]])
def test_a_key_of_another_form_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="key") as caught:
        read_keys([text])
    assert "MfKQ" not in str(caught.value)
    assert "MfKQ" not in repr(Key.read(SECRET))


def test_both_keys_hold_while_one_replaces_the_other() -> None:
    """The sender holds both, a receiver the old one, the new one or both: nobody loses a message."""
    headers = signing.sign(signing.decode_secrets(f"{OTHER}\n{SECRET}"), "e1", TIME, BODY)
    for known in ([SECRET], [OTHER], [SECRET, OTHER], [f"{SECRET} {OTHER}"]):
        verify(read_keys(known), headers, BODY, TIME)
    alone = signing.sign(signing.decode_secrets(OTHER), "e1", TIME, BODY)
    verify(read_keys([SECRET, OTHER]), alone, BODY, TIME)
    with pytest.raises(BadSignature):
        verify(read_keys([SECRET]), alone, BODY, TIME)


def test_ed25519_goes_from_our_sender_to_the_kit() -> None:
    ours, theirs = signing.new_pair()
    headers = signing.sign(signing.decode_secrets(f"{ours} {SECRET}"), "e1", TIME, BODY)
    assert [word.split(",")[0] for word in headers["webhook-signature"].split()] == ["v1a", "v1"]
    for known in ([theirs], [SECRET], [signing.new_pair()[1], theirs]):
        verify(read_keys(known), headers, BODY, TIME)
    for bad in (signing.new_pair()[1], OTHER):
        with pytest.raises(BadSignature, match="no_match"):
            verify(read_keys([bad]), headers, BODY, TIME)
    signing.verify(signing.decode_checks(theirs), headers, BODY, TIME)


def test_wycheproofs_ed25519_cases() -> None:
    seen = {"valid": 0, "invalid": 0}
    for group in vectors("wycheproof/ed25519_test.json")["testGroups"]:
        raw = bytes.fromhex(group["publicKey"]["pk"])
        key = Key.read("whpk_" + base64.b64encode(raw).decode())
        (ours,) = signing.decode_checks("whpk_" + base64.b64encode(raw).decode())
        for case in group["tests"]:
            good, content = case["result"] == "valid", bytes.fromhex(case["msg"])
            signature = bytes.fromhex(case["sig"])
            assert key.fits(signature, content) is good, case["tcId"]
            assert signing.raw_fits(ours, signature, content) is good, case["tcId"]
            seen[case["result"]] += 1
    assert min(seen.values()) > 20


def test_wycheproofs_hmac_cases() -> None:
    seen = 0
    for group in vectors("wycheproof/hmac_sha256_test.json")["testGroups"]:
        for case in group["tests"]:
            raw, whole = bytes.fromhex(case["key"]), group["tagSize"] == 256
            if not whole or not 24 <= len(raw) <= 64:
                continue
            key = Key.read("whsec_" + base64.b64encode(raw).decode())
            assert key.fits(bytes.fromhex(case["tag"]), bytes.fromhex(case["msg"])) is (case["result"] == "valid")
            seen += 1
    assert seen > 20


def test_the_official_library_and_the_kit_accept_each_other() -> None:
    now, official = datetime.now(UTC), Webhook(SECRET)
    stamp = int(now.timestamp())
    for made in (
        sign(Key.read(SECRET), "e1", stamp, BODY),
        signing.sign(signing.decode_secrets(SECRET), "e1", stamp, BODY),
    ):
        assert official.verify(BODY, made) == {"test": 2432232314}
    theirs = official.sign("e2", now, BODY.decode())
    headers = {"webhook-id": "e2", "webhook-timestamp": str(stamp), "webhook-signature": theirs}
    assert verify(read_keys([SECRET]), headers, BODY, stamp) == "e2"
    signing.verify(signing.decode_checks(SECRET), headers, BODY, stamp)
    with pytest.raises(WebhookVerificationError):
        official.verify(BODY, sign(Key.read(OTHER), "e1", stamp, BODY))


# HTTP Message Signatures


def test_the_examples_of_rfc_9421_verify() -> None:
    told = vectors("http_signing/rfc9421.json")
    shared = told["B.2.5"]
    key = Key("whsec", base64.b64decode(shared["shared_secret_b64"]))
    assert key.fits(base64.b64decode(shared["signature_b64"]), shared["signature_base"].encode())
    signed = told["B.2.6"]
    public = base64.b64decode(signed["public_key_spki_b64"])[-32:]
    key = Key("whpk", public)
    assert key.fits(base64.b64decode(signed["signature_b64"]), signed["signature_base"].encode())
    for case in (shared, signed):  # our base is built as the RFC's is
        *lines, params = case["signature_base"].split("\n")
        pairs = [(name.strip('"'), value) for name, _, value in (line.partition(": ") for line in lines)]
        for build in (signature_base, message_signatures.signature_base):
            assert build(pairs, params.partition(": ")[2]) == case["signature_base"].encode()


def nine(keys: str, body: bytes = BODY, **change: str) -> dict[str, str]:
    """A request as our sender signs it, with headers changed afterwards."""
    said = {"webhook-id": "e1", "webhook-timestamp": str(TIME), "Content-Type": "application/json"}
    message = message_signatures.Message("POST", URL, said, body)
    made = message_signatures.sign_message(signing.decode_secrets(keys), message, TIME)
    return {**said, **made, **change}


def test_a_signed_message_goes_from_our_sender_to_the_kit_with_either_kind_of_key() -> None:
    ours, theirs = signing.new_pair()
    headers = nine(f"{ours} {SECRET}")
    assert headers["Signature-Input"].count("t1=(") == 1
    for known in ([theirs], [SECRET]):
        assert verify_message(read_keys(known), ("POST", URL, headers, BODY), TIME) == "e1"
    for text in (theirs, SECRET):
        message = message_signatures.Message("POST", URL, headers, BODY)
        message_signatures.verify_message(signing.decode_checks(text), message, TIME)


def ours(method: str, target: str, headers: dict[str, str], body: bytes) -> None:
    """The same check as our own server makes it."""
    message = message_signatures.Message(method, target, headers, body)
    message_signatures.verify_message(signing.decode_checks(SECRET), message, TIME)


def drop(part: str) -> str:
    return nine(SECRET)["Signature-Input"].replace(f'"{part}" ', "")


CHANGED = [
    ("another body", {}, ("POST", URL, b"{}"), "wrong_digest"),
    ("another address", {}, ("POST", "https://shop.example/hooks?a=2", BODY), "no_match"),
    ("another method", {}, ("PUT", URL, BODY), "no_match"),
    ("another id", {"webhook-id": "e2"}, ("POST", URL, BODY), "no_match"),
    ("another time", {"webhook-timestamp": str(TIME + 1)}, ("POST", URL, BODY), "no_match"),
    ("a part not covered", {"Signature-Input": drop("@target-uri")}, ("POST", URL, BODY), "no_match"),
    ("another algorithm", {"Signature-Input": nine(SECRET)["Signature-Input"].replace("hmac-sha256", "ed25519")},
     ("POST", URL, BODY), "no_match"),
    ("made later", {"Signature-Input": nine(SECRET)["Signature-Input"].replace(f"created={TIME}", f"created={TIME + 9}")},
     ("POST", URL, BODY), "no_match"),
    ("no created", {"Signature-Input": nine(SECRET)["Signature-Input"].replace(f";created={TIME}", "")},
     ("POST", URL, BODY), "no_match"),
    ("no signature", {"Signature": ""}, ("POST", URL, BODY), "no_match"),
    ("under another name", {"Signature": nine(SECRET)["Signature"].replace("t0", "t9")}, ("POST", URL, BODY), "no_match"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "change", "asked", "code"), CHANGED, ids=[row[0] for row in CHANGED])
def test_a_message_that_was_changed_is_refused_by_both_sides(
    case: str, change: dict[str, str], asked: tuple[str, str, bytes], code: str
) -> None:
    method, target, body = asked
    headers = nine(SECRET, **change)
    with pytest.raises(BadSignature, match=f"^{code}$"):
        verify_message(read_keys([SECRET]), (method, target, headers, body), TIME)
    with pytest.raises(signing.BadSignature, match=f"^{code}$"):
        ours(method, target, headers, body)


@pytest.mark.parametrize("gone", ["Content-Digest", "Signature", "Signature-Input", "webhook-id", "webhook-timestamp"])
def test_a_message_without_a_part_is_refused_by_both_sides(gone: str) -> None:
    headers = {name: value for name, value in nine(SECRET).items() if name != gone}
    with pytest.raises(BadSignature, match=r"missing_header|no_match"):
        verify_message(read_keys([SECRET]), ("POST", URL, headers, BODY), TIME)
    with pytest.raises(signing.BadSignature, match=r"missing_header|no_match"):
        ours("POST", URL, headers, BODY)


def test_a_message_of_another_time_is_refused() -> None:
    for now in (TIME - 301, TIME + 301):
        with pytest.raises(BadSignature, match="outside_tolerance"):
            verify_message(read_keys([SECRET]), ("POST", URL, nine(SECRET), BODY), now)


@pytest.mark.parametrize(("ends", "good"), [(TIME + 60, True), (TIME, True), (TIME - 1, False)])
def test_a_signature_ends_when_it_says_so(ends: int, good: bool) -> None:
    """Both sides keep to an end that another sender sets, even within the tolerance."""
    headers = nine(SECRET)
    params = headers["Signature-Input"].partition("=")[2].replace(";keyid", f";expires={ends};keyid")
    message = message_signatures.Message("POST", URL, headers, BODY)
    lines = [(name, message.component(name)) for name in message_signatures.COVERED]
    [key] = signing.decode_secrets(SECRET)
    made = base64.b64encode(signing.raw_signature(key, signature_base(lines, params))).decode()
    headers |= {"Signature-Input": f"t0={params}", "Signature": f"t0=:{made}:"}
    for refused, check in (
        (BadSignature, lambda: verify_message(read_keys([SECRET]), ("POST", URL, headers, BODY), TIME)),
        (signing.BadSignature, lambda: ours("POST", URL, headers, BODY)),
    ):
        with nullcontext() if good else pytest.raises(refused, match="no_match"):
            check()


@given(st.text(max_size=200), st.text(max_size=200))
def test_no_header_makes_either_side_do_anything_but_refuse(one: str, other: str) -> None:
    headers = nine(SECRET) | {"Signature-Input": one, "Signature": other}
    with pytest.raises(BadSignature):
        verify_message(read_keys([SECRET]), ("POST", URL, headers, BODY), TIME)
    with pytest.raises(signing.BadSignature):
        ours("POST", URL, headers, BODY)


@pytest.mark.parametrize(
    ("one", "other", "order"),
    [
        ("crm=1", "crm=2", "before"),
        ("crm=2,shop=1", "crm=2", "after"),
        ("crm=2", "crm=2", "equal"),
        ("crm=2", "shop=1", "concurrent"),
        ("a%2Cb=1", "a%2Cb=2", "before"),
        ("", "crm=1", "before"),
    ],
)
def test_causality(one: str, other: str, order: str) -> None:
    assert compare(one, other) == order
