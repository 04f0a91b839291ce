"""The operator's folder: a right one is read whole, a wrong one gives every problem with its line and no secret."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings import yaml_lines
from tidings.contract import CHANGE_TYPES, LIFE_CYCLE
from tidings.errors import ConfigurationError, Refused
from tidings.secret import Secret, resolve
from tidings.settings import examine, load, master_key
from tidings.verbs.init import write

CANARY = "hunter2-canary"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "shop")
    return tmp_path / "shop"


def swap(file: str, old: str, new: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        text = (root / file).read_text()
        assert old in text, f"{file} no longer holds {old!r}"
        (root / file).write_text(text.replace(old, new, 1))

    return change


def put(file: str, content: str | bytes) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def drop(path: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        target = root / path
        if target.is_dir():
            for child in sorted(target.rglob("*"), reverse=True):
                child.rmdir() if child.is_dir() else child.unlink()
            target.rmdir()
        else:
            target.unlink()

    return change


def link_out(root: Path) -> None:
    (root.parent / "outside").write_text(CANARY)
    (root / "secrets" / "hook.key").unlink()
    (root / "secrets" / "hook.key").symlink_to(root.parent / "outside")


HOOK, CRM, CUSTOMER, TOP = "subscribers/hook.yaml", "sources/crm.yaml", "entities/customer.yaml", "tidings.yaml"
TAPPED = "connection: file:hook.key\nentities: {public.customers: customer}\nbanner: shop\n"
BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"


def masters(said: str, *others: str) -> Callable[[Path], None]:
    """The contract's masters, and other sources that write it."""

    def change(root: Path) -> None:
        swap(CUSTOMER, "key: [id]", f"key: [id]\nmasters: {{{said}}}")(root)
        for name in others:
            text = "kind: inbox\ndialect: debezium_postgresql\nentities: {public.customers: customer}\nbanner: shop\n"
            put(f"sources/{name}.yaml", text)(root)

    return change


# What is done to a good folder → the problems it must give, as (file, line, code).
WRONG: dict[str, tuple[Callable[[Path], None], set[tuple[str, int, str]]]] = {
    "no tidings.yaml": (drop(TOP), {(TOP, 0, "missing_file")}),
    "tidings.yaml is a folder": (lambda r: (drop(TOP)(r), (r / TOP).mkdir())[0], {(TOP, 0, "unreadable")}),
    "no subscribers": (drop("subscribers"), {("subscribers", 0, "missing_folder")}),
    "no policy file": (drop("policy/starter.yaml"), {("policy", 0, "missing_file")}),
    "not UTF-8": (put(HOOK, b"manifest: webhook\nurl: \xff\xfe\n"), {(HOOK, 2, "not_utf8")}),
    "UTF-16": (put(HOOK, "manifest: webhook".encode("utf-16")), {(HOOK, 1, "not_utf8")}),
    "NUL": (put(HOOK, b"manifest: web\x00hook\n"), {(HOOK, 1, "not_yaml")}),
    "tab": (put(HOOK, "manifest:\n\t- webhook\n"), {(HOOK, 2, "not_yaml")}),
    "empty": (put(HOOK, "# nothing yet\n"), {(HOOK, 1, "empty_file")}),
    "a list": (put(HOOK, "- manifest: webhook\n"), {(HOOK, 1, "not_a_mapping")}),
    "two documents": (put(HOOK, "a: 1\n---\nb: 2\n"), {(HOOK, 1, "several_documents")}),
    "alias bomb": (put(CUSTOMER, BOMB), {(CUSTOMER, 1, "alias")}),
    "tag": (put(CRM, "kind: !!python/object/apply:os.system [id]\n"), {(CRM, 1, "tag")}),
    "too deep": (put(CRM, "kind: " + "[" * 5000 + "]" * 5000), {(CRM, 1, "too_deep")}),
    "too long": (put(CRM, "kind: files\n" * 100_000), {(CRM, 0, "too_large")}),
    "too many values": (put(CRM, "kind: [" + "1," * 100_001 + "]"), {(CRM, 1, "too_large")}),
    "list as key": (put(CRM, "? [a]\n: 1\n"), {(CRM, 1, "not_a_text_key")}),
    "duplicate keys": (
        put(CRM, "kind: files\nkind: inbox\nbanner: shop\nbanner: shop\n"),
        {(CRM, 2, "duplicate_key"), (CRM, 4, "duplicate_key")},
    ),
    "unknown key": (swap(HOOK, "role:", "roll:"), {(HOOK, 5, "unknown_key"), (HOOK, 1, "missing_key")}),
    "unknown nested key": (swap(TOP, "idle_s: 1", "idle: 1"), {(TOP, 17, "unknown_key")}),
    "a name key": (swap(HOOK, "role:", "name: x\nrole:"), {(HOOK, 5, "unknown_key")}),
    "wrong types": (
        swap(CRM, "silent_after: 3600", "silent_after: soon\nsnapshot: 7"),
        {(CRM, 12, "duplicate_key")},
    ),
    "number for text": (swap(TOP, "tenant: shop", "tenant: 7"), {(TOP, 2, "wrong_type")}),
    "yes is text": (swap(HOOK, "dpa: true", "dpa: yes"), {(HOOK, 7, "wrong_type")}),
    "not a number": (swap(HOOK, "default: 900", "default: .nan"), {(HOOK, 11, "wrong_type")}),
    "unknown choice": (swap(CRM, "after: archive", "after: burn"), {(CRM, 10, "wrong_value")}),
    "unknown semantics": (swap(HOOK, "exactly-once", "exactly-twice"), {(HOOK, 10, "wrong_value")}),
    "unknown contract": (swap(CRM, "public.customers: customer", "public.customers: custmer"), {(CRM, 6, "unknown_contract")}),
    "unknown banner": (swap(CRM, "banner: shop", "banner: shp"), {(CRM, 7, "unknown_banner")}),
    "unknown location": (swap(CRM, "location: online", "location: mars"), {(CRM, 8, "unknown_location")}),
    "unknown manifest": (swap(HOOK, "manifest: webhook", "manifest: webhok"), {(HOOK, 2, "unknown_manifest")}),
    "unknown type": (swap(CUSTOMER, "type: tier", "type: teir"), {(CUSTOMER, 11, "unknown_type")}),
    "unknown subscriber type": (swap(HOOK, 'types: ["*"]', "types: [emial]"), {(HOOK, 8, "unknown_type"), (HOOK, 10, "unknown_type"), (HOOK, 11, "unknown_type")}),
    "own type shadows": (swap(CUSTOMER, "key: [id]", "key: [id]\ntypes: {email: {description: x}}"), {(CUSTOMER, 5, "duplicate_id")}),
    "unknown identifier": (swap(CUSTOMER, "identifiers: {email:", "identifiers: {emial:"), {(CUSTOMER, 5, "unknown_field")}),
    "quote in a path": (swap(CUSTOMER, "  tier: {", "  \"ti'er\": {"), {(CUSTOMER, 11, "wrong_key")}),
    "consent without words": (
        swap(CUSTOMER, ", consent: {class: marketing, channel: email, purpose: marketing}", ""),
        {(CUSTOMER, 10, "missing_key")},
    ),
    "unknown master": (masters("sources: [crm, shp], on_conflict: hold", "shop"), {(CUSTOMER, 5, "unknown_source"), (CUSTOMER, 5, "master_missing")}),
    "one master": (masters("sources: [crm], on_conflict: hold"), {(CUSTOMER, 5, "wrong_value")}),
    "no such policy": (masters("sources: [crm, shop], on_conflict: oldest", "shop"), {(CUSTOMER, 5, "wrong_value")}),
    "prefers a stranger": (masters("sources: [crm, shop], on_conflict: prefer erp", "shop"), {(CUSTOMER, 5, "unknown_source")}),
    "a master left out": (masters("sources: [crm, shop], on_conflict: newest", "shop", "till"), {(CUSTOMER, 5, "master_missing")}),
    "duplicate banner": (swap(TOP, "      - {id: online}", "      - {id: online}\n      - {id: online}"), {(TOP, 10, "duplicate_id")}),
    "duplicate rule": (
        put("policy/starter.yaml", "rules:\n  - {id: a}\n  - {id: a}\n"),
        {("policy/starter.yaml", 3, "duplicate_id")},
    ),
    "unknown include": (put("policy/starter.yaml", "include: startr\n"), {("policy/starter.yaml", 1, "unknown_include")}),
    "include climbs": (put("policy/starter.yaml", "include: ../anchors/starter\n"), {("policy/starter.yaml", 1, "unknown_include")}),
    "policy of nothing": (put("policy/starter.yaml", 'version: "1"\n'), {("policy/starter.yaml", 1, "missing_key")}),
    "drop folder missing": (swap(CRM, "path: drop/crm", "path: drop/nowhere"), {(CRM, 3, "missing_folder")}),
    "drop folder in data": (
        lambda r: (swap(CRM, "path: drop/crm", "path: data/in")(r), (r / "data/in").mkdir(parents=True))[0],
        {(CRM, 3, "path_overlaps")},
    ),
    "shared drop folder": (
        lambda r: put("sources/second.yaml", (r / CRM).read_bytes())(r),
        {("sources/second.yaml", 3, "path_overlaps")},
    ),
    "inbox with a path": (swap(CRM, "kind: files", "kind: inbox"), {(CRM, 3, "unknown_key")}),
    "outbox that archives": (put(CRM, f"{TAPPED}kind: outbox\nafter: archive\n"), {(CRM, 5, "wrong_value")}),
    "outbox in no schema": (put(CRM, f"{TAPPED}kind: outbox\ntable: outbox\n"), {(CRM, 5, "wrong_value")}),
    "polling without a column": (put(CRM, f"{TAPPED}kind: polling\n"), {(CRM, 1, "missing_key")}),
    "triggers with a mode": (put(CRM, f"{TAPPED}kind: triggers\nmode: push\n"), {(CRM, 5, "unknown_key")}),
    "yml": (lambda r: (r / HOOK).rename(r / "subscribers/hook.yml"), {("subscribers/hook.yml", 0, "unexpected_file")}),
    "capital file name": (
        lambda r: (r / HOOK).rename(r / "subscribers/Hook One.yaml"),
        {("subscribers/Hook One.yaml", 0, "wrong_name")},
    ),
    "secret in clear": (swap(HOOK, "file:hook.key", CANARY), {(HOOK, 4, "secret_in_clear")}),
    "secret in the address": (swap(HOOK, "http://127", f"http://me:{CANARY}@127"), {(HOOK, 3, "secret_in_clear")}),
    "secret as unknown key": (swap(HOOK, "role:", f"api_key: {CANARY}\nrole:"), {(HOOK, 5, "unknown_key")}),
    "secret in a list": (swap(HOOK, "signing_secret: file:hook.key", f"auth: [{CANARY}]"), {(HOOK, 4, "wrong_type")}),
    "secret missing": (drop("secrets/hook.key"), {(HOOK, 4, "secret_missing")}),
    "secret empty": (put("secrets/hook.key", "\n"), {(HOOK, 4, "secret_missing")}),
    "secret in bytes": (put("secrets/hook.key", b"\xff\xfe\x00"), {(HOOK, 4, "secret_missing")}),
    "secret escapes": (swap(HOOK, "file:hook.key", "file:../tidings.yaml"), {(HOOK, 4, "secret_escapes")}),
    "secret absolute": (swap(HOOK, "file:hook.key", "file:/etc/hostname"), {(HOOK, 4, "secret_escapes")}),
    "secret link leads out": (link_out, {(HOOK, 4, "secret_escapes")}),
    "variable not set": (swap(HOOK, "file:hook.key", "env:TIDINGS_TEST_NOT_SET"), {(HOOK, 4, "secret_missing")}),
    "short master key": (put("secrets/master.key", CANARY), {(TOP, 14, "master_key")}),
    "auth without secret": (swap(HOOK, "signing_secret: file:hook.key", "auth: {kind: bearer}"), {(HOOK, 4, "missing_key")}),
    "network": (swap(TOP, "127.0.0.0/8", "127.0.0.1/8"), {(TOP, 16, "wrong_value")}),
    "test subject": (swap(TOP, "customer:1001", "custmer:1001"), {(TOP, 15, "unknown_contract")}),
    "zero rate": (swap("subscribers/newsletter.yaml", "per_second: 5", "per_second: 0"), {("subscribers/newsletter.yaml", 11, "wrong_value")}),
    "several files at once": (
        lambda r: (swap(TOP, "tenant: shop", "tenant: 7")(r), put(CRM, "a: 1\na: 1\n")(r), swap(HOOK, "role:", "roll:")(r))[0],
        {(TOP, 2, "wrong_type"), (CRM, 2, "duplicate_key"), (HOOK, 5, "unknown_key"), (HOOK, 1, "missing_key")},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_folder_gives_every_problem_with_its_line(folder: Path, case: str) -> None:
    change, expected = WRONG[case]
    change(folder)
    with pytest.raises(ConfigurationError) as caught:
        load(folder)
    problems = caught.value.problems
    assert {(p.file, p.line, p.code) for p in problems} == expected
    assert list(problems) == sorted(problems)
    assert all(p.path and p.found and p.expected and p.what_now for p in problems)
    assert CANARY not in str(caught.value) + repr(problems) + repr(caught.value.as_dict())


def test_a_folder_that_is_not_there() -> None:
    with pytest.raises(ConfigurationError, match="missing_folder"):
        load("/nonexistent/operator")


def test_a_near_miss_is_named(folder: Path) -> None:
    swap(HOOK, "role:", "roll:")(folder)
    swap(CRM, "after: archive", "after: archiv")(folder)
    with pytest.raises(ConfigurationError) as caught:
        load(folder)
    said = {p.code: p.what_now for p in caught.value.problems}
    assert "Did you mean role?" in said["unknown_key"]
    assert "Did you mean archive?" in said["wrong_value"]


def test_a_right_folder_is_read_whole(folder: Path) -> None:
    shop = load(folder)
    assert shop.tenant == "shop"
    assert shop.locations[("shop", "sf-01")].jurisdiction == "US-CA"
    assert shop.locations[("shop", "online")].routing_hint == "us"
    assert set(shop.subscribers) == {"hook", "newsletter"}
    assert shop.change_types == (*CHANGE_TYPES, *LIFE_CYCLE)
    customer = shop.entities["customer"]
    assert customer.name == "customer"
    assert ("email", "email") in customer.typed_fields
    assert customer.change_types == ("email", "phone", "address", "consent", "tier")
    assert set(customer.event_types) == {*customer.change_types, *LIFE_CYCLE}
    assert customer.life_cycle("soft_delete") == ("deleted_at",)
    assert shop.subscribers["hook"].semantics_for("consent") == "exactly-once"
    assert shop.subscribers["hook"].sla_for("tier") == 900
    assert shop.subscribers["hook"].wants("consent", "customer")
    assert not shop.subscribers["newsletter"].wants("address", "customer")
    assert shop.warnings == ()
    assert len(master_key(shop)) == 32
    assert pickle.loads(pickle.dumps(shop)).tenant == "shop"


def test_reading_verbs_need_no_subscriber_secret(folder: Path) -> None:
    drop("secrets/hook.key")(folder)
    assert load(folder, secrets=False).tenant == "shop"


def test_a_secret_others_may_read_is_a_warning(folder: Path) -> None:
    (folder / "secrets/hook.key").chmod(0o644)
    assert [(w.file, w.line, w.code) for w in load(folder).warnings] == [(HOOK, 4, "secret_exposed")]


def test_the_policy_version_follows_what_is_said_and_nothing_else(folder: Path) -> None:
    before = load(folder).policy_version
    put("policy/starter.yaml", '# a comment\n\nversion:   "1"\ninclude: [starter]\n')(folder)
    assert load(folder).policy_version == before
    put("policy/own.yaml", "rules: [{id: mine, anchor: event}]\n")(folder)
    with_rule = load(folder).policy_version
    assert with_rule != before
    put("policy/statutes/own.yaml", "statutes: []\n")(folder)
    assert load(folder).policy_version != with_rule


def test_an_own_rule_replaces_an_included_one_of_its_id(folder: Path) -> None:
    included = load(folder).policies.rules
    assert included
    put("policy/own.yaml", f"rules: [{{id: {included[0].id}, anchor: event}}]\n")(folder)
    now = load(folder).policies.rules
    assert len(now) == len(included)
    assert [rule.file for rule in now if rule.id == included[0].id] == ["policy/own.yaml"]


def test_a_secret_never_shows_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDINGS_TEST_SECRET", CANARY)
    secret = resolve("env:TIDINGS_TEST_SECRET", tmp_path)
    assert CANARY not in f"{secret} {secret!r} {secret!s} {[secret]} {secret:>20}"
    assert secret.reveal() == CANARY
    assert Secret(b"a") == Secret(b"a")


@pytest.mark.parametrize(
    "reference", ["file:", "file:.", "file:..", "file:a/../../x", "http://x", "", "env:", "file:/"]
)
def test_only_references_into_the_folder_resolve(tmp_path: Path, reference: str) -> None:
    with pytest.raises(Refused):
        resolve(reference, tmp_path)


PLAIN = {
    "on": ("on", "on"), "no": ("no", "no"), "true": ("true", True), "null": ("null", None), "int": ("42", 42),
    "leading zero": ("007", "007"), "float": ("1.5", 1.5), "exponent": ("1e3", 1000.0), "version": ("1.2.3", "1.2.3"),
    "date": ("2026-11-15", "2026-11-15"), "time": ("12:30:45", "12:30:45"), "quoted": ("'1'", "1"), "hex": ("0x1F", "0x1F"),
}  # fmt: skip


@pytest.mark.parametrize("case", PLAIN)
def test_plain_values_mean_what_they_look_like(case: str) -> None:
    text, value = PLAIN[case]
    document, problems = yaml_lines.parse(f"key: {text}\n", "x.yaml")
    assert problems == []
    assert document is not None
    assert document.data == {"key": value}


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda raw: raw.decode("latin-1")))
def test_no_text_breaks_the_reader(text: str) -> None:
    document, problems = yaml_lines.parse(text, "x.yaml")
    assert (document is None) == bool(problems)


FILES = (TOP, CRM, CUSTOMER, HOOK, "subscribers/newsletter.yaml", "policy/starter.yaml")
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["*", "env:A", "file:../x", "-", "a.b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("operator") / "shop"
    write(root)
    return root


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_value_anywhere_is_a_problem_or_fine_and_never_a_crash(operator: Path, data: st.DataObject) -> None:
    file = operator / data.draw(st.sampled_from(FILES))
    text = file.read_text()
    document, _ = yaml_lines.parse(text, file.name)
    assert document is not None
    place = data.draw(st.sampled_from(sorted(document.lines, key=repr)))
    tree = {"": document.data}
    holder, step = tree, ""
    for part in place:
        holder, step = holder[step], part
    holder[step] = data.draw(ODD)
    try:
        file.write_text(json.dumps(tree[""]))
        found, problems = examine(operator)
        assert found is not None or problems
        assert all(p.code and p.found and p.expected and p.what_now for p in problems)
    finally:
        file.write_text(text)
