"""Every way to show a secret: against published vectors, other people's signers, and token servers that misbehave."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from hypothesis import given
from hypothesis import strategies as st

from tidings.channels.auth import Asks, Auth, Signing, Unfit, merged, scheme_of, shown
from tidings.channels.client import MAX_ANSWER_BYTES, Answer, Fault, Request
from tidings.channels.oauth import client_credentials, service_account
from tidings.channels.signatures import Hmac, SigV4
from tidings.shapes import Auth as OwnAuth

NOW = 1440938160  # 2015-08-30T12:36:00Z, the moment of AWS's published vectors
REQUEST = Request("POST", "https://api.example.com/v1/things?b=2&a=1", {"Content-Type": "application/json"}, b'{"x":1}')


class Scripted:
    """A client that answers as it is told and keeps what it was asked."""

    def __init__(self, *answers: Answer | Fault) -> None:
        self.answers, self.asked = list(answers), list[Request]()

    def request(self, request: Request, timeout_s: float, cap: int = MAX_ANSWER_BYTES) -> Answer | Fault:
        self.asked.append(request)
        return self.answers.pop(0)


def token(text: str = "tok", life: Any = 3600, status: int = 200) -> Answer:
    return Answer(status, {}, json.dumps({"access_token": text, "expires_in": life}).encode())


def signed(auth: dict[str, Any], secret: str, client: Asks | None = None) -> Request:
    found = scheme_of(Auth(**auth), secret, client or Scripted(), "https://api.example.com").sign(REQUEST, 5)
    assert isinstance(found, Request)
    return found


def encoded(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


PLAIN: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"kind": "none"}, {}),
    ({"kind": "body"}, {}),
    ({"kind": "bearer"}, {"Authorization": "Bearer s3"}),
    ({"kind": "header", "header": "Api-Key"}, {"Api-Key": "s3"}),
    ({"kind": "header", "prefix": "Klaviyo-API-Key "}, {"Authorization": "Klaviyo-API-Key s3"}),
    ({"kind": "basic"}, {"Authorization": encoded("s3")}),
    ({"kind": "basic", "user": "me"}, {"Authorization": encoded("me:s3")}),
    ({"kind": "basic", "password": ""}, {"Authorization": encoded("s3:")}),
]


@pytest.mark.parametrize(("auth", "headers"), PLAIN)
def test_a_plain_secret_is_shown_as_declared(auth: dict[str, Any], headers: dict[str, str]) -> None:
    found = signed(auth, "s3")
    assert dict(found.headers) == {**REQUEST.headers, **headers}
    assert (found.url, found.body) == (REQUEST.url, REQUEST.body)


def test_a_secret_in_the_query_is_encoded_and_never_in_a_repr() -> None:
    found = signed({"kind": "query", "param": "api_secret"}, "a&b=c d")
    assert found.url == REQUEST.url + "&api_secret=a%26b%3Dc%20d"
    assert "a%26b" not in repr(found)


KINDS: list[dict[str, Any]] = [
    {"kind": "query", "param": "k"},
    {"kind": "basic", "user": "me"},
    {"kind": "bearer"},
    {"kind": "header", "header": "X"},
    {"kind": "oauth2", "token_url": "https://t.example.com/token"},
    {"kind": "hmac", "header": "X-Sign"},
    {"kind": "sigv4", "region": "eu-west-1", "service": "execute-api"},
    {"kind": "google"},
]


@pytest.mark.parametrize("auth", KINDS, ids=[one["kind"] for one in KINDS])
def test_what_is_shown_to_a_person_is_the_secrets_name(auth: dict[str, Any]) -> None:
    found = shown(Auth(**auth), REQUEST, "file:api.key")
    assert "file:api.key" in found.url + json.dumps(dict(found.headers))


# The suite AWS publishes: access key, region, service, moment and the signatures of its first two requests.
AWS = SigV4("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "", "us-east-1", "service", lambda: NOW)
VANILLA = [
    ("GET", "https://example.amazonaws.com/", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
    ("POST", "https://example.amazonaws.com/", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
]


@pytest.mark.parametrize(("method", "url", "signature"), VANILLA)
def test_the_published_aws_vectors(method: str, url: str, signature: str) -> None:
    found = AWS.sign(Request(method, url), 5)
    assert found.headers["X-Amz-Date"] == "20150830T123600Z"
    scope = "AKIDEXAMPLE/20150830/us-east-1/service/aws4_request"
    expected = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host;x-amz-date, Signature={signature}"
    assert found.headers["Authorization"] == expected


SEGMENT = st.text(st.sampled_from("abcXYZ019-_.~"), min_size=1, max_size=6).filter(lambda text: set(text) - {"."})
PATH = st.lists(SEGMENT | st.just("a%20b%2Fc%40"), max_size=4).map(lambda parts: "/" + "/".join(parts))
QUERY = st.lists(st.tuples(SEGMENT, SEGMENT | st.just("x%3D%26")), max_size=4)


@given(
    st.sampled_from(["GET", "POST", "PUT", "DELETE"]), PATH, QUERY, st.binary(max_size=40), st.sampled_from(["", "s"])
)
def test_the_aws_sdk_signs_alike(
    method: str, path: str, query: list[tuple[str, str]], body: bytes, session: str
) -> None:
    url = f"https://api.example.com:8443{path}" + ("?" + "&".join(f"{k}={v}" for k, v in query) if query else "")
    ours = scheme_of(
        Auth(kind="sigv4", region="eu-central-1", service="execute-api"),
        f"AKID:secret{':' + session if session else ''}",
        Scripted(),
        "",
    ).sign(Request(method, url, {"Content-Type": "application/json"}, body), 5)
    assert isinstance(ours, Request)
    theirs = AWSRequest(method, url, {"Content-Type": "application/json"}, body)
    theirs.context["timestamp"] = ours.headers["X-Amz-Date"]
    theirs.headers["X-Amz-Date"] = ours.headers["X-Amz-Date"]
    signer = SigV4Auth(Credentials("AKID", "secret", session or None), "execute-api", "eu-central-1")
    signer._modify_request_before_signing(theirs)
    text = signer.string_to_sign(theirs, signer.canonical_request(theirs))
    assert ours.headers["Authorization"].endswith(f"Signature={signer.signature(text, theirs)}")


HMACS: list[tuple[dict[str, Any], str, Callable[[], str]]] = [
    ({"header": "X-Sign"}, "k", lambda: hmac.new(b"k", REQUEST.body, "sha256").hexdigest()),
    (
        {"header": "X-Hub-Signature-256", "prefix": "sha256=", "signs": "{timestamp}.{body}"},
        "k",
        lambda: "sha256=" + hmac.new(b"k", str(NOW).encode() + b"." + REQUEST.body, "sha256").hexdigest(),
    ),
    (
        # mParticle's identity API: method, date and path with body, a line each.
        {
            "header": "x-mp-signature",
            "signs": "{method}\n{date}\n{path}{body}",
            "headers": {"x-mp-key": "{user}", "Date": "{date}"},
        },
        "id:k",
        lambda: hmac.new(b"k", b"POST\n20150830T123600Z\n/v1/things" + REQUEST.body, "sha256").hexdigest(),
    ),
    (
        {"header": "X-Sign", "algorithm": "sha512", "encoding": "base64", "signs": "{query}"},
        "k",
        lambda: base64.b64encode(hmac.digest(b"k", b"b=2&a=1", "sha512")).decode(),
    ),
]


@pytest.mark.parametrize(("auth", "secret", "expected"), HMACS)
def test_a_keyed_digest_of_what_the_receiver_wants(
    auth: dict[str, Any], secret: str, expected: Callable[[], str]
) -> None:
    scheme = scheme_of(Auth(kind="hmac", **auth), secret, Scripted(), "")
    assert isinstance(scheme, Hmac)
    found = Hmac(scheme.auth, scheme.user, scheme.key, lambda: NOW).sign(REQUEST, 5)
    assert found.headers[auth["header"]] == expected()
    if "headers" in auth:
        assert (found.headers["x-mp-key"], found.headers["Date"]) == ("id", "20150830T123600Z")


@pytest.mark.parametrize("kind", ["oauth2", "sigv4"])
@pytest.mark.parametrize("secret", ["alone", ":key", "user:"])
def test_a_secret_of_another_form_is_named_and_not_repeated(kind: Any, secret: str) -> None:
    with pytest.raises(Unfit) as caught:
        scheme_of(Auth(kind=kind), secret, Scripted(), "")
    assert "secret" not in repr(caught.value).replace("client secret", "").replace("the secret", "").replace(
        "secret key", ""
    )
    assert scheme_of(Auth(kind=kind, user="me", token_url="/t"), "alone", Scripted(), "https://x.example.com")


def test_a_token_is_asked_for_once_and_kept_until_shortly_before_its_end() -> None:
    now = [1000.0]
    client = Scripted(token("one", 100), token("two", 100))
    auth = Auth(kind="oauth2", scope="read", audience="us")
    scheme = client_credentials(auth, ("id", "key"), client, "https://t.example.com/token", lambda: now[0])

    def shows() -> str:
        found = scheme.sign(REQUEST, 5)
        assert isinstance(found, Request)
        return found.headers["Authorization"]

    assert [shows(), shows()] == ["Bearer one", "Bearer one"]
    now[0] += 89
    assert shows() == "Bearer one"
    now[0] += 2
    assert shows() == "Bearer two"
    [asked, _] = client.asked
    assert (asked.method, asked.url) == ("POST", "https://t.example.com/token")
    form = {name: values[0] for name, values in parse_qs(asked.body.decode()).items()}
    assert form == {
        "grant_type": "client_credentials",
        "scope": "read",
        "audience": "us",
        "client_id": "id",
        "client_secret": "key",
    }


def test_the_client_may_be_shown_as_basic() -> None:
    client = Scripted(token())
    signed({"kind": "oauth2", "credentials": "basic", "token_url": "/oauth/token"}, "i d:k:y", client)
    [asked] = client.asked
    assert asked.url == "https://api.example.com/oauth/token"
    assert asked.headers["Authorization"] == encoded("i%20d:k%3Ay")
    assert b"secret" not in asked.body


def oauth(*answers: Answer | Fault) -> tuple[Signing, Scripted]:
    client = Scripted(*answers)
    auth = Auth(kind="oauth2", token_url="/token")
    return Signing(client, scheme_of(auth, "id:key", client, "https://api.example.com")), client


def test_a_401_is_answered_with_a_new_token_once() -> None:
    refused, taken = Answer(401, {}, b""), Answer(200, {}, b"{}")
    signing, client = oauth(token("old"), refused, token("new"), taken, taken)
    assert signing.request(REQUEST, 5) is taken
    assert signing.request(REQUEST, 5) is taken
    shows = [one.headers.get("Authorization") for one in client.asked]
    assert shows == [None, "Bearer old", None, "Bearer new", "Bearer new"]
    signing, client = oauth(token("old"), refused, token("new"), refused)
    assert signing.request(REQUEST, 5) is refused
    assert client.answers == []


def test_a_plain_secret_is_not_shown_twice() -> None:
    client = Scripted(Answer(401, {}, b""))
    found = Signing(client, scheme_of(Auth(kind="bearer"), "s3", client, "")).request(REQUEST, 5)
    assert isinstance(found, Answer)
    assert found.status == 401


MISBEHAVES: list[tuple[str, Answer | Fault, tuple[str, str]]] = [
    ("refuses", token(status=401), ("shut", "token_refused")),
    ("says bad request", token(status=400), ("shut", "token_refused")),
    ("breaks", token(status=500), ("not_sent", "token_unreadable")),
    ("is busy", token(status=429), ("not_sent", "token_unreadable")),
    ("moved", token(status=302), ("not_sent", "token_unreadable")),
    ("speaks HTML", Answer(200, {}, b"<html>"), ("not_sent", "token_unreadable")),
    ("says nothing", Answer(200, {}, b""), ("not_sent", "token_unreadable")),
    ("forgets the token", Answer(200, {}, b"{}"), ("not_sent", "token_unreadable")),
    ("gives a number", Answer(200, {}, b'{"access_token":7}'), ("not_sent", "token_unreadable")),
    ("injects a header", token("a\r\nX: y"), ("not_sent", "token_unreadable")),
    ("never ends", Answer(200, {}, b'{"access_token":"a"}', cut=True), ("not_sent", "token_unreadable")),
    ("nests", Answer(200, {}, b"[" * 100_000), ("not_sent", "token_unreadable")),
    ("hangs", Fault("in_doubt", "timeout", ""), ("not_sent", "token_timeout")),
    ("is not there", Fault("not_sent", "connect", ""), ("not_sent", "token_connect")),
    ("is inside", Fault("refused", "blocked_address", ""), ("refused", "blocked_address")),
]


@pytest.mark.parametrize(("case", "answer", "expected"), MISBEHAVES, ids=[row[0] for row in MISBEHAVES])
def test_a_token_server_that(case: str, answer: Answer | Fault, expected: tuple[str, str]) -> None:
    signing, client = oauth(answer)
    found = signing.request(REQUEST, 5)
    assert isinstance(found, Fault)
    assert (found.kind, found.code) == expected
    assert len(client.asked) == 1, "the request itself never left"
    assert "key" not in repr(found)


@pytest.mark.parametrize("life", [0, -5, True, "soon", None, 1e12])
def test_an_odd_life_is_short_or_at_most_a_day(life: Any) -> None:
    now = [0.0]
    client = Scripted(token("one", life), token("two"))
    scheme = client_credentials(Auth(), ("i", "k"), client, "https://t.example.com", lambda: now[0])
    scheme.sign(REQUEST, 5)
    now[0] = 86_400 if life == 1e12 else 300
    scheme.sign(REQUEST, 5)
    assert len(client.asked) == 2


KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PEM = KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
).decode()
ACCOUNT = {
    "client_email": "robot@example.com",
    "private_key": PEM,
    "private_key_id": "k1",
    "token_uri": "https://oauth2.example.com/token",
}


def test_a_service_account_signs_what_its_public_key_verifies() -> None:
    client = Scripted(token("goog"))
    found = service_account(Auth(kind="google", scope="a b"), json.dumps(ACCOUNT), client, lambda: NOW).sign(REQUEST, 5)
    assert isinstance(found, Request)
    assert found.headers["Authorization"] == "Bearer goog"
    [asked] = client.asked
    form = parse_qs(asked.body.decode())
    assert asked.url == ACCOUNT["token_uri"]
    assert form["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
    head, claims, signature = form["assertion"][0].split(".")

    def raw(part: str) -> bytes:
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))

    KEY.public_key().verify(raw(signature), f"{head}.{claims}".encode(), padding.PKCS1v15(), hashes.SHA256())
    assert json.loads(raw(head)) == {"alg": "RS256", "typ": "JWT", "kid": "k1"}
    assert json.loads(raw(claims)) == {
        "iss": "robot@example.com",
        "scope": "a b",
        "aud": ACCOUNT["token_uri"],
        "iat": NOW,
        "exp": NOW + 3600,
    }
    assert PEM not in repr(found) + repr(client.asked)


@pytest.mark.parametrize("secret", ["", "{}", "not json", "[]", json.dumps({**ACCOUNT, "private_key": "x"}), "7"])
def test_a_key_file_of_another_form_is_named_and_not_repeated(secret: str) -> None:
    with pytest.raises(Unfit, match="client_email"):
        service_account(Auth(kind="google"), secret, Scripted())


def test_the_operator_may_say_a_part_otherwise_or_another_kind() -> None:
    declared = Auth(kind="google", scope="datamanager")
    own = OwnAuth(kind="google", token_url="https://t.example.com/token")
    assert merged(declared, own) == Auth(kind="google", scope="datamanager", token_url="https://t.example.com/token")
    assert merged(declared, OwnAuth(kind="bearer")) == Auth(kind="bearer")
    assert merged(declared, None) is declared
    assert merged(Auth(kind="body"), OwnAuth(kind="bearer")).kind == "body"


def test_digests_are_of_the_bytes_that_leave() -> None:
    digest = hashlib.sha256(REQUEST.body).hexdigest()
    assert digest in AWS._canonical(REQUEST, {"host": "x"}, "host")
