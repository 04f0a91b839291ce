"""`check` of sinks: none of them needs a url, each is opened as far as that needs no server, and no promise goes beyond its manifest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidings.errors import ConfigurationError
from tidings.plan import verified
from tidings.verbs.init import write

SECRETS = {
    "pg": "postgresql://u:canary@127.0.0.1:5432/db",
    "aws": '{"region": "eu-west-1", "key_id": "AKIA1", "secret": "canary"}',
    "mail": "smtps://u:canary@127.0.0.1:465",
}
GOOD = {
    "tables": ("postgresql", "pg", "vars: {table: t, columns: 'email, tier = after.tier'}", "exactly-once"),
    "phases": ("postgresql_two_phase", "pg", "vars: {table: t}", "exactly-once"),
    "lake": ("delta_table", "", "vars: {path: lake}", "exactly-once"),
    "queue": ("sqs_fifo", "aws", "vars: {queue: 'https://sqs.eu-west-1.amazonaws.com/1/q.fifo'}", "exactly-once"),
    "stream": ("kinesis", "aws", "vars: {stream: s}", "at-least-once"),
    "bus": ("eventbridge", "aws", "vars: {bus: b}", "at-most-once"),
    "desk": ("manual", "", "vars: {}", "exactly-once"),
    "mail": ("email", "mail", "vars: {from: a@shop.example, to: b@shop.example}", "at-least-once"),
}
BAD = [
    (("kinesis", "aws", "vars: {stream: s}", "exactly-once"), "semantics_not_carried"),
    (
        ("sqs", "aws", "vars: {queue: 'https://sqs.eu-west-1.amazonaws.com/1/q'}", "exactly-once"),
        "semantics_not_carried",
    ),
    (("postgresql", "pg", "vars: {table: t, columns: 'email = no such'}", "exactly-once"), "sink_columns"),
    (("postgresql", "pg", "vars: {}", "exactly-once"), "subscriber_settings"),
    (("sqs", "aws", "vars: {queue: 'https://x.example/q.fifo'}", "at-least-once"), "sink_place"),
    (("email", "pg", "vars: {from: a@shop.example, to: b@shop.example}", "at-least-once"), "sink_connection"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "shop")
    for name, text in SECRETS.items():
        secret = tmp_path / f"shop/secrets/{name}.key"
        secret.write_text(text)
        secret.chmod(0o600)
    return tmp_path / "shop"


def subscribe(folder: Path, name: str, said: tuple[str, str, str, str]) -> None:
    manifest, secret, variables, semantics = said
    lines = [f"manifest: {manifest}", "role: service", "region: US", "dpa: true", variables]
    lines += [f"connection: file:{secret}.key"] if secret else []
    text = "\n".join([*lines, f"semantics: {{default: {semantics}}}"])
    (folder / f"subscribers/{name}.yaml").write_text(text + "\n")


def test_sinks_pass_without_a_url(folder: Path) -> None:
    for name, said in GOOD.items():
        subscribe(folder, name, said)
    assert set(GOOD) <= set(verified(folder).subscribers)
    assert not (folder / "lake").exists()


@pytest.mark.parametrize(("said", "code"), BAD, ids=[f"{said[0]} {code}" for said, code in BAD])
def test_what_a_sink_cannot_do_is_found_before_the_start(
    folder: Path, said: tuple[str, str, str, str], code: str
) -> None:
    subscribe(folder, "sink", said)
    with pytest.raises(ConfigurationError) as found:
        verified(folder)
    assert {problem.code for problem in found.value.problems} == {code}
    assert "canary" not in str(found.value)
