"""A ledger, a receipt or a certificate that somebody changed: never a yes, never a crash, and an end in bounded time. No JVM."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from certificate_story import Story, whole_once
from test_certificate import signed_again

from tidings.errors import Refused
from tidings.ledger.note import Checkpoint, Signer
from tidings.ledger.opening import PURPOSE, origin
from tidings.ledger.proof import read_receipt, verify_receipt
from tidings.ledger.verification import MAX_PROBLEMS, verify_ledger
from tidings.rights.certificate_archive import unpack
from tidings.rights.certificate_check import verify_certificate

Files = Mapping[str, bytes]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    made = whole_once(tmp_path_factory)
    made.attest()
    return made


@pytest.fixture
def ledger(story: Story, tmp_path: Path) -> Path:
    shutil.copytree(story.settings.data_path / "ledger", tmp_path / "ledger")
    assert verify_ledger(tmp_path / "ledger", story.key).good
    return tmp_path / "ledger"


def test_a_file_of_the_ledger_that_was_changed_or_replaced_is_seen(story: Story, ledger: Path) -> None:
    """Also the narrow tiles by which older heads were proven. What a crash may leave behind a record's end is not one."""
    believed = []
    for path in [one for one in sorted(ledger.rglob("*")) if one.is_file() and one.name != "lock"]:
        whole = path.read_bytes()
        for changed in (whole[:-1] + bytes([whole[-1] ^ 1]), None):
            path.unlink()
            path.write_bytes(changed) if changed is not None else path.mkdir()
            if verify_ledger(ledger, story.key).good:
                believed.append((str(path.relative_to(ledger)), changed))
            path.unlink() if changed is not None else path.rmdir()
            path.write_bytes(whole)
    assert believed == []


def test_a_head_that_claims_more_than_there_can_be_ends_the_walk(story: Story, ledger: Path) -> None:
    name = f"{origin(story.settings.tenant)}/root"
    signer, begun = Signer(name, story.settings.keyring.derive(PURPOSE)), time.monotonic()
    (ledger / "root" / "checkpoint").write_bytes(signer.sign(Checkpoint(name, 10**18, bytes(32)).text))
    verdict = verify_ledger(ledger)
    assert (verdict.good, len(verdict.problems)) == (False, MAX_PROBLEMS)
    assert time.monotonic() - begun < 30  # it is under a second; without the bound it is never


@pytest.mark.parametrize(
    "raw", [b"[" * 100_000, b"NaN", b"9" * 5_000, b'{"a":1,"a":2}', b'"\\ud800"', b" " * 9_000_000]
)
def test_what_is_no_receipt_is_refused(raw: bytes) -> None:
    with pytest.raises(Refused, match="ledger-receipt"):
        read_receipt(raw)


@pytest.mark.parametrize("said", [{}, {"vkey": 7}, {"vkey": "a+b+c", "heads": 7}, {"heads": [[]], "entries": {"a": 1}}])
def test_a_receipt_of_another_form_has_a_code(said: dict[str, object]) -> None:
    (problem,) = verify_receipt({"format": "tidings-receipt/1"} | said).problems
    assert problem.endswith("]")


def without_layout(files: Files) -> Files:
    return {"certificate.html": files["certificate.html"].replace(b"layout 1", b"layout 0")}


def other_sentence(files: Files) -> Files:
    said = json.loads(files["certificate.json"])
    said["clocks"][0]["steps"][-1] = "Act by 2099-01-01."
    return {"certificate.json": json.dumps(said).encode()}


CHANGES: dict[str, tuple[Callable[[Files], Files], str]] = {
    "the page": (lambda f: {"certificate.html": f["certificate.html"].replace(b"fulfilled", b"refused")}, "words"),
    "the paper": (lambda f: {"certificate.pdf": f["certificate.pdf"].replace(b"fulfilled", b"forgotten")}, "words"),
    "another paper": (lambda f: {"certificate.pdf": b"%PDF-1.4 all is well"}, "words"),
    "the readme": (lambda f: {"README.txt": b"all is well"}, "words"),
    "a sentence behind the page's back": (other_sentence, "words"),
    "a name twice": (
        lambda f: {"certificate.json": f["certificate.json"].replace(b"{", b'{"document": "certificate",', 1)},
        "form",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_words_for_people_that_say_something_else_are_refused_though_they_are_signed(story: Story, name: str) -> None:
    files = unpack(story.issue().archive)
    change, code = CHANGES[name]
    changed = change(files)
    assert changed.items() - files.items(), "the change changes something"
    verdict = verify_certificate(signed_again(story, {**files, **changed}), story.key)
    assert f"[certificate_{code}]" in verdict.problems[0]


def test_pages_of_another_version_are_not_compared_and_that_is_said(story: Story) -> None:
    files = unpack(story.issue().archive)
    verdict = verify_certificate(signed_again(story, {**files, **without_layout(files)}), story.key)
    assert verdict.good
    assert any("not compared" in caveat for caveat in verdict.caveats)
