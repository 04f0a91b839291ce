"""Manifests and their mapping language: what the shipped ones promise, and what a written one may not say."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.channels.call import Member
from tidings.channels.manifest import Manifest, load_manifest, manifest_names, read_manifest, shipped_manifest
from tidings.channels.mapping import DEFAULT_FIELDS, Scope
from tidings.channels.normalise import ABSENT, FUNCTIONS
from tidings.contract import CHANGE_TYPES, LIFE_CYCLE
from tidings.errors import ConfigurationError


def scope(**data: Any) -> Scope:
    body = {"id": "e1", "time": "2026-11-15T12:00:00Z", "data": data}
    return Scope(
        Member("e1", "s", "email", "1", body, "k1", 1), {"list": "L"}, {"mail": ("after.mail", "before.mail")}, "sss"
    )


DATA: dict[str, Any] = {
    "key": {"a": 1, "b": "x"},
    "after": {"email": "a@example.com", "n": None, "deep": {"x": [5]}},
    "before": {"mail": "m"},
}
EXPRESSIONS: list[tuple[str, Any]] = [
    ("=email", "a@example.com"),
    ("=after.n", None),
    ("=after.missing", ABSENT),
    ("=after.n.deeper", ABSENT),
    ("=after.deep.x.0", 5),
    ("=after.deep.x.9", ABSENT),
    ("=key", "1:x"),
    ("=key.b", "x"),
    ("=mail", "m"),
    ("=var.list", "L"),
    ("=var.none", ABSENT),
    ("=event.id", "e1"),
    ("=event.time | unix", 1794744000),
    ("=event.time | unix_ms", 1794744000000),
    ("=event.id | unix", ABSENT),
    ("=member.idempotency_key", "k1"),
    ("=member.nothing", ABSENT),
    ("=secret", "sss"),
    ("=nobody", ABSENT),
    ("=after.missing | or_empty", ""),
    ("=after.missing | or_null", None),
    ("=after.n | not_null", ABSENT),
    ("==email", "=email"),
    ("plain", "plain"),
    ("=key.a | text", "1"),
    ("=key.a | number", 1),
    ("=key.b | number", ABSENT),
    ("=after.deep | json", '{"x":[5]}'),
    ("=after.deep | text", ABSENT),
]


@pytest.mark.parametrize(("text", "expected"), EXPRESSIONS)
def test_an_expression_means(text: str, expected: Any) -> None:
    assert scope(**DATA).fill(text) == expected


def test_what_is_not_there_leaves_no_trace_and_null_stays() -> None:
    template = {
        "a": "=email",
        "b": "=gone",
        "c": {"d": "=gone"},
        "e": ["=gone", "=email"],
        "f": "=after.n",
        "g": [],
        "h": {},
        "i": 1,
    }
    expected = {"a": "a@example.com", "e": ["a@example.com"], "f": None, "g": [], "h": {}, "i": 1}
    assert scope(**DATA).fill(template) == expected
    assert scope(**DATA).fill({"a": {"b": "=gone"}}) is ABSENT


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
    )
)
def test_literals_pass_through(value: Any) -> None:
    def quoted(one: Any) -> Any:
        if isinstance(one, list):
            return [quoted(inner) for inner in one]
        return f"={one}" if isinstance(one, str) and one.startswith("=") else one

    assert scope().fill(quoted(value)) == value


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


HASHED = [
    # Published by the platforms themselves.
    ("meta_email", "mary@example.com", "f1904cf1a9d73a55fa5de0ac823c4403ded71afd4c3248d00bdcd0866552bb79"),
    ("meta_phone", "15559876543", "1ef970831d7963307784fa8688e8fce101a15685d62aa765fed23f3a2c576a4e"),
    ("google_email", "cloudy.sanfrancisco+shopping@gmail.com", sha("cloudysanfrancisco@gmail.com")),
    ("google_email", "user.name+NYC@Example.com", sha("user.name+nyc@example.com")),
    ("google_phone", "+1 (800) 555-0100", sha("+18005550100")),
    # Their rules, on harder values.
    ("meta_email", "  Mary@Example.com ", sha("mary@example.com")),
    ("meta_email", "a.b+c@gmail.com", sha("a.b+c@gmail.com")),
    ("meta_phone", "+1 (555) 987-6543", sha("15559876543")),
    ("meta_phone", "0049 30 123456", sha("4930123456")),
    ("google_email", "a b.c @ googlemail.com", sha("abc@googlemail.com")),
    ("tiktok_email", "A.b+C@gmail.com", sha("a.b+c@gmail.com")),
    ("tiktok_phone", "+14155550100", sha("+14155550100")),
    ("meta_name", "O'Neil-Smith ", sha("oneilsmith")),
    ("meta_name", "Valéry", sha("valéry")),
    ("meta_name", " Mary  Ann - J. ", sha("mary ann j")),
    ("meta_city", "St. Louis", sha("stlouis")),
    ("meta_state", "New York", sha("ny")),
    ("meta_state", "CA", sha("ca")),
    ("meta_state", "Nordrhein-Westfalen", sha("nordrheinwestfalen")),
    # An extension and the 0 in brackets are no part of the number; 00 is a plus.
    ("google_phone", "+1 800 555 0100 ext. 5", sha("+18005550100")),
    ("google_phone", "+49 (0)170 1234567", sha("+491701234567")),
    ("google_phone", "0049 170 1234567", sha("+491701234567")),
    ("meta_phone", "+1 (555) 987-6543 x12", sha("15559876543")),
    ("meta_phone", "+49 (0)170 1234567", sha("491701234567")),
    ("meta_postcode", "94111-1234", sha("94111")),
    ("meta_postcode", "SW1A 1AA", sha("sw1a1")),
    ("meta_postcode", "m1 1ae", sha("m11")),
    ("meta_postcode", "1012 AB", sha("1012ab")),
    ("meta_postcode", "K1A 0B1", sha("k1a0b1")),
    ("meta_country", "US", sha("us")),
    ("google_name", " Dr. Jo Smith Jr. ", sha("jo smith")),
    # What is hashed already is not hashed again, and what has no normal form is dropped.
    ("meta_email", sha("x").upper(), sha("x")),
    ("google_phone", sha("x"), sha("x")),
    ("meta_email", "", ABSENT),
    ("meta_email", "not an address", ABSENT),
    ("meta_email", None, ABSENT),
    ("google_email", "+tag@gmail.com", ABSENT),
    ("google_phone", "(800) 555-0100", ABSENT),
    ("google_phone", "+0000000000", ABSENT),
    ("meta_phone", "+0000000000", ABSENT),
    ("meta_country", "USA", ABSENT),
    ("meta_name", "...", ABSENT),
    ("meta_email", {"a": 1}, ABSENT),
    ("meta_email", True, ABSENT),
    ("meta_email", "\ud800@example.com", ABSENT),
]


@pytest.mark.parametrize(("function", "value", "expected"), HASHED)
def test_each_platform_gets_its_own_digest(function: str, value: Any, expected: Any) -> None:
    assert FUNCTIONS["sha256"](FUNCTIONS[function](value)) == expected


# A record, an expression of it, and the number before it is hashed.
NUMBERS = [
    ({"after": {"phone": "(800)555-0100", "country": "US"}}, "phone | google_phone", "+18005550100"),
    ({"after": {"phone": "(800)555-0100", "country": "us"}}, "phone | meta_phone", "18005550100"),
    ({"after": {"phone": 8005550100, "address": {"country": "US"}}}, "phone | tiktok_phone", "+18005550100"),
    ({"after": {"phone": "0170 1234567", "country": "DE"}}, "any_phone | e164", "+491701234567"),
    ({"after": {"phone": "+44 20 7946 0000", "country": "US"}}, "phone | google_phone", "+442079460000"),
    ({"after": {"phone": "(800)555-0100"}}, "phone | google_phone", ABSENT),
    ({"after": {"phone": "(800)555-0100", "country": "Narnia"}}, "phone | google_phone", ABSENT),
    ({"after": {"phone": "(800)555-0100", "country": 7}}, "phone | google_phone", ABSENT),
    ({"after": {"phone": True, "country": "US"}}, "phone | google_phone", ABSENT),
    ({"after": {"phone": sha("x"), "country": "US"}}, "phone | google_phone | sha256", sha("x")),
    # Where a person moved, the old number is of the old country; a deletion knows only that one.
    ({"before": {"phone": "020 7946 0000", "country": "GB"}, "after": {"country": "US"}}, "old_phone | e164", "+442079460000"),
    ({"before": {"phone": "020 7946 0000", "country": "GB"}}, "any_phone | e164", "+442079460000"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "text", "expected"), NUMBERS)
def test_a_number_takes_the_country_of_its_record(data: dict[str, Any], text: str, expected: Any) -> None:
    assert scope(**data).evaluate(text) == expected


@given(
    st.sampled_from(sorted(FUNCTIONS)),
    st.none() | st.text(max_size=20) | st.integers() | st.floats() | st.booleans() | st.lists(st.text()),
)
def test_no_function_raises(function: str, value: Any) -> None:
    FUNCTIONS[function](value)
    FUNCTIONS[function](ABSENT)


@given(
    st.sampled_from([name for name in FUNCTIONS if name.startswith(("meta_", "google_", "tiktok_"))]),
    st.text(max_size=30),
)
def test_a_normal_form_is_its_own_normal_form(function: str, value: str) -> None:
    once = FUNCTIONS[function](value)
    if once is not ABSENT and function != "google_name":
        assert FUNCTIONS[function](once) == once


OWN_URL = ("webhook", "agent_webhook", "warehouse_http", "opendsr")  # nobody but the operator knows where


@pytest.mark.parametrize("name", manifest_names())
def test_a_shipped_manifest_says_where_it_is_from_and_what_it_promises(name: str) -> None:
    manifest = shipped_manifest(name)
    assert manifest.name == name
    assert manifest.source
    assert manifest.docs
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", manifest.checked_on)
    assert manifest.url.startswith("https://") or manifest.sink or name in OWN_URL
    types = (*CHANGE_TYPES, *LIFE_CYCLE)
    assert manifest.webhook or manifest.sink or any(manifest.routed(one) for one in types)
    for one in types:
        assert manifest.strength(one) in ("A0", "A1", "A2", "A3", "A4")
        assert {"at-most-once", "at-least-once"} <= manifest.capabilities(one).semantics


@pytest.mark.parametrize("name", [name for name in manifest_names() if shipped_manifest(name).channel == "http"])
def test_every_name_in_a_manifest_is_one_the_language_knows(name: str) -> None:
    text = files("tidings").joinpath(f"catalog/subscribers/{name}.yaml").read_text()
    manifest = shipped_manifest(name)
    known = {*manifest.fields, *DEFAULT_FIELDS, "key", "envelope", "secret", "reference"}
    for found in re.findall(r"(?:[\s\[]=|\{)([a-z_]+(?:\.[A-Za-z_]+)?)(?=[\s|,}\]])", text):
        root, _, rest = found.partition(".")
        if root == "var":
            assert rest in manifest.vars, found
        elif root not in ("after", "before", "consent", "moved", "event", "member", "key"):
            assert found in known, found


def klaviyo(old: str, new: str) -> str:
    text = files("tidings").joinpath("catalog/subscribers/klaviyo.yaml").read_text()
    assert old in text
    return text.replace(old, new, 1)


WRONG = [
    ("=first_name", "=first_name | shell", "'shell' is not a function"),
    ("=first_name", "=__class__.__init__ | lower()", "is not `name`"),
    ("=first_name", "={{ 7*7 }}", "is not `name`"),
    ("path: /api/profile-import", "path: /api/../admin", "dot segment"),
    ("path: /api/profile-import", "path: api", "must start with /"),
    ("path: /api/profile-import", "path: /api?x={email}", "query"),
    ("path: /api/profile-import", "path: /api/{email", "braces"),
    ("verb: erase}", "verb: erased}", "routes to the verbs"),
    ("  upsert:\n", "  import:\n", "verbs called upsert, rectify"),
    ("    ack: A3", "    ack: A3\n    verify: {path: /x, rules: []}", "A0 or A1"),
    ("  properties: {tier", "  =tier | shell: 1\n          properties: {tier", "'shell' is not a function"),
    ("ack: A3", "ack: A7", "A0, A1, A2, A3, A4"),
    ("confidence: high", "confidence: sure", "high, low, med"),
    ("idempotency: natural", "idempotency: maybe", "natural"),
    ("kind: esp", "kind: esp\nextra: 1", "one of"),
    ("ping: {method: GET, path: /api/accounts, success: {status: [200]}}", "", "`ping`"),
    ("channel: http", "channel: webhook", "webhook"),
    ("path: /api/profile-suppression-bulk-create-jobs\n", "path: /api/{any_email}\n", "batched path"),
]


@pytest.mark.parametrize(("old", "new", "says"), WRONG, ids=[row[1] for row in WRONG])
def test_a_manifest_that_cannot_work_is_refused_with_its_line(old: str, new: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_manifest(klaviyo(old, new), "manifests/mine.yaml", "mine")
    assert any(says in str(problem) for problem in caught.value.problems), str(caught.value)
    assert all(problem.file == "manifests/mine.yaml" and problem.line > 0 for problem in caught.value.problems)


def test_all_problems_come_at_once() -> None:
    text = klaviyo("ack: A3", "ack: A7").replace("kind: esp", "kinds: esp").replace("per_second: 75", "per_second: -1")
    with pytest.raises(ConfigurationError) as caught:
        read_manifest(text, "m.yaml", "m")
    assert {problem.path for problem in caught.value.problems} >= {
        "verbs.upsert.ack",
        "kinds",
        "kind",
        "limits.per_second",
    }


def test_the_operators_own_manifest_comes_first(tmp_path: Path) -> None:
    (tmp_path / "klaviyo.yaml").write_text(klaviyo("title: Klaviyo", "title: Our Klaviyo"))
    assert load_manifest("klaviyo", tmp_path).title == "Our Klaviyo"
    assert load_manifest("hubspot", tmp_path).title == "HubSpot CRM"
    assert load_manifest("klaviyo").title == "Klaviyo"
    with pytest.raises(ConfigurationError, match="unknown_manifest"):
        load_manifest("../klaviyo", tmp_path)


def test_a_promise_is_only_as_good_as_the_weakest_verb() -> None:
    text = klaviyo("    idempotency: natural\n    ack: A3", "    idempotency: none\n    ack: A3")
    manifest: Manifest = read_manifest(text, "m.yaml", "m")
    assert "exactly-once" not in manifest.capabilities("email").semantics
    assert "exactly-once" in manifest.capabilities("delete").semantics
    assert "exactly-once" not in manifest.capabilities().semantics
    assert (manifest.strength("consent"), manifest.strength("delete")) == ("A1", "A1")
