"""A certificate says what the ledger says, and nothing more; an open request gets none."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from certificate_story import ID, START, Story, whole_once

from tidings.errors import Refused
from tidings.ledger.note import Signer
from tidings.ledger.opening import PURPOSE, origin
from tidings.rights.certificate import _shown, issue
from tidings.rights.certificate_archive import pack, unpack
from tidings.rights.certificate_check import MANIFEST, SIGNER, evidence_of, manifest_text, verify_certificate
from tidings.rights.certificate_claims import claims
from tidings.rights.certificate_page import page, readme
from tidings.rights.certificate_pdf import pdf
from tidings.rights.certificate_person import digest, opening

Files = dict[str, bytes]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return whole_once(tmp_path_factory)


@pytest.fixture(scope="module")
def archive(story: Story) -> bytes:
    return story.issue().archive


def said(archive: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(unpack(archive)["certificate.json"])
    return found


def signed_again(story: Story, files: Files) -> bytes:
    """What an operator who lies would hand out: every signature in order."""
    settings = story.settings
    rest = {name: data for name, data in files.items() if name != MANIFEST}
    signer = Signer(f"{origin(settings.tenant)}/{SIGNER}", settings.keyring.derive(PURPOSE))
    return pack(rest | {MANIFEST: signer.sign(manifest_text(rest))})


def test_a_fulfilled_erasure_is_certified_and_verifies(story: Story, archive: bytes) -> None:
    verdict = verify_certificate(archive, story.key)
    assert (verdict.problems, verdict.document, verdict.request) == ([], "certificate", ID)
    assert any("unwitnessed" in caveat for caveat in verdict.caveats)
    document = said(archive)
    ends = {one["recipient"]: one["end"] for one in document["recipients"]}
    assert (ends["mail"]["outcome"], ends["mail"]["strength"]) == ("acknowledged", "A3")
    assert (ends["cleanroom"]["by"], ends["cleanroom"]["evidence"]) == ("ann", "12" * 32)
    assert (ends["oldcrm"]["outcome"], ends["oldcrm"]["approvers"]) == ("excepted", ["ann", "bob"])
    mail = next(one for one in document["recipients"] if one["recipient"] == "mail")
    assert [each["outcome"] for each in mail["attempts"]] == ["transient", "throttled", "acknowledged"]
    assert document["erasure"]["keys_destroyed"] == 17
    assert document["letters"][0]["letter"] == "completion"


def test_its_clock_is_counted_by_the_law_row_it_carries(archive: bytes) -> None:
    document = said(archive)
    clock = next(one for one in document["clocks"] if one["statute"] == "us-ca-ccpa-delete")
    assert (clock["due"], clock["met"], document["deadline"]["fits"]) == ("2026-11-15", "in time", "yes")
    assert any("45 days end on 2026-11-15" in step for step in clock["steps"])
    rows = json.loads(unpack(archive)["laws.json"])["statutes"]
    assert {"citation", "source", "confidence", "versions"} <= set(rows["us-ca-ccpa-delete"])


def test_the_same_state_gives_the_same_bytes(story: Story, archive: bytes) -> None:
    assert issue(story.settings, ID).archive == archive


def test_any_zip_tool_opens_it(archive: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        assert opened.testzip() is None
        assert {name: opened.read(name) for name in opened.namelist()} == unpack(archive)


def test_without_a_pinned_key_it_says_whose_trust_that_is(archive: bytes) -> None:
    verdict = verify_certificate(archive)
    assert verdict.good
    assert verdict.fingerprint.startswith("SHA256:")
    assert any(verdict.fingerprint in caveat and "yours" in caveat for caveat in verdict.caveats)


def test_under_another_key_it_is_refused(archive: bytes, story: Story) -> None:
    other = Signer(f"{origin(story.settings.tenant)}/root", bytes(32)).verifier.vkey
    assert "certificate_signature" in verify_certificate(archive, other).problems[0]


def test_the_verb_writes_it_and_verify_needs_no_folder(story: Story, tmp_path: Path) -> None:
    def tidings(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tidings.cli", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    made = tidings("rights", "certificate", ID, "-C", str(story.folder), "-o", "made.zip")
    assert (made.returncode, made.stdout) == (0, f"certificate of request {ID}: made.zip\n")
    (tmp_path / "kept").write_text(story.key)
    checked = tidings("verify", "made.zip", "--key", "kept")
    assert checked.returncode == 0
    assert f"certificate of request {ID}\nverified: " in checked.stdout
    assert "unwitnessed" in checked.stderr
    broken = bytearray((tmp_path / "made.zip").read_bytes())
    broken[len(broken) // 2] ^= 1
    (tmp_path / "broken.zip").write_bytes(broken)
    refused = tidings("verify", "broken.zip", "--json")
    assert (refused.returncode, json.loads(refused.stdout)["verified"]) == (6, False)


def interim(story: Story) -> list[str]:
    """What is missing, of a request that must get a statement that verifies and calls itself one."""
    issued = story.issue()
    verdict = verify_certificate(issued.archive, story.key)
    assert (verdict.problems, issued.certifies, issued.document) == ([], False, "interim statement")
    assert b"This is not a certificate" in unpack(issued.archive)["certificate.html"]
    assert any("not a certificate" in caveat for caveat in verdict.caveats)
    return list(issued.missing)


def test_an_open_request_gets_an_interim_statement(tmp_path: Path) -> None:
    story = Story(tmp_path / "op")
    story.step("verified", "working")
    story.erase({"mail": "lane", "late": "lane"})
    story.told("mail", "transient")
    none = "no acknowledgement and no exception that two people answer for"
    assert interim(story) == ["the request is working", f"late: {none}", f"mail: {none}"]


Act = Callable[[Story], None]


def weak(story: Story) -> None:
    story.told("mail", "acknowledged", strength="A1")


def alone(story: Story) -> None:
    story.told("mail", "terminal")
    story.step("exception_asked", actor="ann", details={"recipient": "mail"})
    story.step("excepted", actor="Ann", details={"recipient": "mail"})


def unproven(story: Story) -> None:
    story.told("mail", "terminal")
    story.step("acknowledged", details={"recipient": "mail", "evidence": "12" * 32})


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (weak, "a yes of strength A1, which does not prove that it was done"),
        (alone, "no acknowledgement and no exception that two people answer for"),
        (unproven, "no acknowledgement and no exception that two people answer for"),
    ],
    ids=["weak", "one person twice", "a step that no call bears out"],
)
def test_fulfilled_is_not_taken_on_the_desks_word(tmp_path: Path, act: Act, why: str) -> None:
    story = Story(tmp_path / "op")
    story.step("verified", "working")
    story.erase({"mail": "lane"})
    act(story)
    story.fulfilled()
    assert interim(story) == [f"mail: {why}"]


def test_a_refused_request_gets_a_closing_statement(tmp_path: Path) -> None:
    story = Story(tmp_path / "op")
    story.step("refused", "refused", actor="ann", reason="a legal duty to keep the data")
    issued = story.issue()
    assert (issued.document, verify_certificate(issued.archive).good) == ("closing statement", True)


@pytest.mark.parametrize(
    ("messages", "ended"),
    [(1, ("certificate", ())), (2, ("interim statement", ("1 of 2 messages became events",)))],
)
def test_an_opt_out_is_certified_by_the_events_it_became(tmp_path: Path, messages: int, ended: object) -> None:
    story = Story(tmp_path / "op", kind="opt_out_sale")
    part = {"recipient": "mail", "way": "lane", "event_id": "event-mail", "deadline": None}
    story.step("begun", "working", due=START + timedelta(days=10), details={"messages": str(messages)})
    story.step("told", details={"event": "event-mail"}, parts=[part])
    story.told("mail", "acknowledged", strength="A2")
    story.fulfilled()
    issued = story.issue()
    assert (issued.document, issued.missing) == ended
    assert [one["recipient"] for one in said(issued.archive)["recipients"]] == ["mail"]


def test_a_pause_and_an_extension_are_counted_from_their_steps(tmp_path: Path) -> None:
    story = Story(tmp_path / "op", kind="access", jurisdiction="GB")
    story.step("paused", "working", actor="ann", reason="asked which account")
    story.now += timedelta(days=4)
    story.step("resumed")
    story.step("extended", actor="ann", reason="many records")
    story.step("letter:extension", details={"digest": "ef" * 32}, due=START + timedelta(days=60))
    story.step("fulfilled", "fulfilled")
    document = said(story.issue().archive)
    assert document["pauses"] == ["2026-10-01T10:00:00.000000Z..2026-10-05T11:00:00.000000Z"]
    assert (document["extension"]["reason"], bool(document["extension"]["noticed"])) == ("many records", True)
    assert {clock["extended"] for clock in document["clocks"]} >= {"yes"}


def test_a_deadline_that_is_later_than_the_law_leaves_is_not_signed(tmp_path: Path) -> None:
    from tidings.errors import Damaged

    story = Story(tmp_path / "op")
    story.step("verified", "working", due=START + timedelta(days=80))
    with pytest.raises(Damaged, match="certificate_clock"):
        story.issue()


def test_it_names_nobody_and_opens_to_whoever_is_told(tmp_path: Path) -> None:
    story = Story(tmp_path / "op")
    mark = story.settings.keyring.identifier_hash("email", "ada@example.com")
    story.step("verified", "working", hashes=[mark])
    made = opening(story.settings, ID, "email: ada@example.com\n")
    files = unpack(story.issue(made).archive)
    assert not any(b"ada@" in data for data in files.values())
    one = json.loads(files["person.json"])[0]
    assert one["digest"] == digest(bytes.fromhex(one["salt"]), "email", "ada@example.com")
    with pytest.raises(Refused, match="not_the_person"):
        opening(story.settings, ID, "email: eve@example.com\n")


def test_what_could_lead_to_the_person_is_not_attested(tmp_path: Path) -> None:
    story = Story(tmp_path / "op")
    story.step("verified", "working", details={"reference": "ada@example.com", "offset": "7", "evidence": "12" * 32})
    assert said(story.issue().archive)["steps"][1]["details"] == {"evidence": "12" * 32}


def test_late_and_counted_by_another_law_is_said(story: Story, archive: bytes, tmp_path: Path) -> None:
    """Law rows are the operator's word: a longer window verifies, and its reader is told that it is another one."""
    files = unpack(archive)
    laws = json.loads(files["laws.json"])
    laws["statutes"]["us-ca-ccpa-delete"]["versions"][-1]["window"] = 50
    files["laws.json"] = json.dumps(laws).encode()
    evidence = evidence_of(files, origin(story.settings.tenant), _shown(files))
    counted = claims(evidence)
    files |= {"certificate.json": json.dumps(counted).encode(), "certificate.html": page(counted).encode()}
    files |= {"README.txt": readme(counted).encode(), "certificate.pdf": pdf(counted)}
    verdict = verify_certificate(signed_again(story, files), story.key)
    assert verdict.good
    assert any("other law rows" in caveat and "us-ca-ccpa-delete" in caveat for caveat in verdict.caveats)
    late = Story(tmp_path / "late")
    late.now += timedelta(days=50)
    late.step("unmatched", "refused", reason="no_match")
    told = verify_certificate(late.issue().archive).caveats
    assert any(caveat.startswith("not in time: ") and "us-ca-ccpa-delete" in caveat for caveat in told)


def test_an_unknown_request_is_refused(story: Story) -> None:
    with pytest.raises(Refused, match="unknown_request"):
        issue(story.settings, "nobody")


class Outline(HTMLParser):
    """What a screen reader needs: one h1, headings in order, tables with captions and scopes, nothing from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.outside: list[str] = []
        self.scopes: list[str | None] = []
        self.language = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.append(tag)
        self.outside += [str(named[name]) for name in ("src", "href") if name in named]
        self.language = str(named["lang"]) if tag == "html" else self.language
        self.scopes += [named.get("scope")] if tag == "th" else []


def test_the_page_can_be_read_by_everybody(archive: bytes) -> None:
    outline = Outline()
    outline.feed(unpack(archive)["certificate.html"].decode())
    assert (outline.language, outline.tags.count("h1"), outline.tags.count("title")) == ("en", 1, 1)
    assert outline.tags.count("caption") == outline.tags.count("table") > 0
    assert None not in outline.scopes
    assert outline.outside == []
    assert not {"script", "img", "iframe", "link"} & set(outline.tags)


def test_a_reason_cannot_write_into_the_page(tmp_path: Path) -> None:
    story = Story(tmp_path / "op")
    story.step("refused", "refused", actor="<b>ann</b>", reason="<script>alert(1)</script>\nsecond line")
    page = unpack(story.issue().archive)["certificate.html"]
    assert b"<script" not in page
    assert b"&lt;script&gt;" in page


def test_the_paper_has_a_title_a_language_and_tagged_headings(archive: bytes) -> None:
    paper = unpack(archive)["certificate.pdf"]
    assert paper.startswith(b"%PDF-")
    assert all(word in paper for word in (b"/Lang (en)", b"/Outlines", b"/StructTreeRoot", b"/Marked true"))


def reworded(files: Files, change: Callable[[dict[str, Any]], None]) -> Files:
    document = json.loads(files["certificate.json"])
    change(document)
    return files | {"certificate.json": json.dumps(document).encode()}


def lies(files: Files) -> dict[str, Files]:
    """What somebody with the operator's own key might hand out."""
    entry = next(name for name in files if name.endswith(".json") and b'"what":"excepted"' in files[name])
    laws = json.loads(files["laws.json"])
    laws["statutes"]["us-ca-ccpa-delete"]["versions"][-1]["window"] = 20
    parts = json.loads(files["parts.json"])
    fewer = {step: leaves[1:] for step, leaves in parts.items()}
    stem = entry.removesuffix(".json")
    dropped = {name: data for name, data in files.items() if not name.startswith(stem)}
    late = json.loads(files["laws.json"])
    late["used"][0]["start"] = "2026-11-01T09:00:00.000000Z"
    return {
        "another kind": reworded(files, lambda one: one["asked"].update(kind="access")),
        "fewer keys": reworded(files, lambda one: one["erasure"].update(keys_destroyed=18)),
        "a stronger yes": reworded(files, lambda one: one["recipients"][1]["end"].update(strength="A4")),
        "one recipient less": reworded(files, lambda one: one["recipients"].pop()),
        "another approver": files | {entry: files[entry].replace(b'"bob"', b'"eve"')},
        "a shorter law": files | {"laws.json": json.dumps(laws).encode()},
        "a later start": files | {"laws.json": json.dumps(late).encode()},
        "a capsule with one less": files | {"parts.json": json.dumps(fewer).encode()},
        "a step left out": dropped,
    }


def test_a_signed_lie_is_found(story: Story, archive: bytes) -> None:
    files = unpack(archive)
    assert verify_certificate(signed_again(story, files), story.key).good
    believed = [
        name for name, lie in lies(files).items() if verify_certificate(signed_again(story, lie), story.key).good
    ]
    assert believed == []


def test_the_digest_of_every_file_is_signed(archive: bytes) -> None:
    files = unpack(archive)
    note = files[MANIFEST].decode()
    assert all(f"{sha256(data).hexdigest()} {name}\n" in note for name, data in files.items() if name != MANIFEST)
