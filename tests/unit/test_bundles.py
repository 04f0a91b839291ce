"""Rules of other people: signed, taken in with where they came from, refused when they are not what they were; and privileged ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidings.cli import application
from tidings.errors import ConfigurationError, Damaged, Refused
from tidings.gate.decide import decide
from tidings.gate.loading import PRIVILEGED, load_policy
from tidings.ledger.note import Signer
from tidings.settings import load

SEED = "7b" * 32
OVERLAY = """\
version: "overlay-1"
title: A state's overlay
rules:
  - id: no-agreement
    anchor: privacy
    when: {recipient: region, is: US-VT}
    effect: {deny: "the overlay says no to Vermont"}
    examples:
      - {given: {change_type: email}, to: {region: US-VT}, gives: deny}
      - {given: {change_type: email}, to: {region: US-CA}, gives: nothing}
"""
SECRET = "because our counsel expects a lawsuit"
PRIVATE = f"""\
privileged: true
note: Kept between us and counsel.
rules:
  - id: quiet
    anchor: governance
    when: {{fact: change_type, is: tier}}
    effect: {{deny: "{SECRET}"}}
    examples:
      - {{given: {{change_type: tier}}, gives: deny}}
      - {{given: {{change_type: email}}, gives: nothing}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "shop"
    said = CliRunner().invoke(application("init"), ["init", str(made)])
    assert said.exit_code == 0, said.output
    monkeypatch.setenv("BUNDLE_KEY", SEED)
    (tmp_path / "vermont.yaml").write_text(OVERLAY)
    return made


def gate(folder: Path, *words: str) -> str:
    said = CliRunner().invoke(application("gate"), ["gate", *words, "-C", str(folder)], catch_exceptions=True)
    if said.exception is not None and not isinstance(said.exception, SystemExit):
        raise said.exception
    assert said.exit_code == 0, said.output
    return said.stdout


def included(folder: Path, name: str) -> None:
    page = folder / "policy" / "overlay.yaml"
    page.write_text(f"include: [{name}]\n")


def test_signed_taken_in_and_in_force(folder: Path, tmp_path: Path) -> None:
    key = gate(folder, "sign", str(tmp_path / "vermont.yaml"), "--as", "example.org/policy", "--key", "env:BUNDLE_KEY").strip()  # fmt: skip
    gate(folder, "import", str(tmp_path / "vermont.yaml"), "--key", key, "--by", "the privacy team")
    included(folder, "vermont")
    settings = load(folder, secrets=False)
    rules = {rule.id: rule for rule in load_policy(settings).rules}
    assert rules["no-agreement"].file == "policy/bundles/vermont.yaml", "the overlay replaces the catalogue's rule"
    listed = json.loads(gate(folder, "bundles", "--json"))
    assert [(one["name"], one["signed_by"], one["taken_by"]) for one in listed] == [
        ("vermont", key, "the privacy team")
    ]


def test_what_is_not_what_was_taken_in_is_refused(folder: Path, tmp_path: Path) -> None:
    gate(folder, "import", str(tmp_path / "vermont.yaml"), "--unsigned")
    included(folder, "vermont")
    load(folder, secrets=False)
    path = folder / "policy/bundles/vermont.yaml"
    path.write_text(OVERLAY.replace("US-VT", "US-CA"))
    with pytest.raises(ConfigurationError) as caught:
        load(folder, secrets=False)
    assert [p.code for p in caught.value.problems] == ["bundle_changed"]


def test_a_signature_over_something_else(folder: Path, tmp_path: Path) -> None:
    file = str(tmp_path / "vermont.yaml")
    key = gate(folder, "sign", file, "--as", "example.org/policy", "--key", "env:BUNDLE_KEY").strip()
    (tmp_path / "vermont.yaml").write_text(OVERLAY + "# one more line\n")
    with pytest.raises(Damaged):
        gate(folder, "import", file, "--key", key)
    stranger = Signer("example.org/policy", b"\x01" * 32).verifier.vkey
    (tmp_path / "vermont.yaml").write_text(OVERLAY)
    with pytest.raises(Damaged):
        gate(folder, "import", file, "--key", stranger)
    with pytest.raises(Refused):
        gate(folder, "import", file)
    gate(folder, "import", file, "--key", key)
    with pytest.raises(Refused):
        gate(folder, "import", file, "--unsigned")
    (folder / "policy/bundles/vermont.note").unlink()
    with pytest.raises(ConfigurationError) as caught:
        load(folder, secrets=False)
    assert [p.code for p in caught.value.problems] == ["bundle_signature"]


def test_a_bundle_whose_example_fails_is_not_taken_in(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "vermont.yaml").write_text(OVERLAY.replace("gives: nothing", "gives: deny"))
    with pytest.raises(ConfigurationError) as caught:
        gate(folder, "import", str(tmp_path / "vermont.yaml"), "--unsigned")
    assert [p.code for p in caught.value.problems] == ["example_failed"]
    assert not (folder / "policy/bundles").exists()


def test_a_privileged_reason_never_leaves_the_policy_folder(folder: Path) -> None:
    (folder / "policy/private.yaml").write_text(PRIVATE)
    policy = load_policy(load(folder, secrets=False))
    told = decide(policy, {"change_type": "tier", "entity": "customer"}, policy.recipients[0])
    assert (told.outcome, PRIVILEGED in told.reasons) == ("deny", True)
    said = CliRunner().invoke(
        application("try"),
        ["try", "gate", "-", "--recipient", '{"role": "service"}', "-C", str(folder), "--json"],
        input='{"change_type": "tier"}\n',
    )
    assert "quiet" in said.stdout
    assert SECRET not in said.stdout
    assert SECRET not in repr(policy.rules)
