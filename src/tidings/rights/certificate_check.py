"""Checking a certificate: from its bytes alone, without a folder, a network or trust in whoever packed it.

In this order, each step before the next: the archive, the signature over every file, the inclusion of every entry in a head that the root
log recorded, the claims computed again from those entries, the clocks counted again from the law rows, and the words for people against
the claims. It finds; it does not raise. The work is bounded by the size of the archive.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from tidings.errors import Damaged, TidingsError
from tidings.ledger.attestation import member_leaf
from tidings.ledger.classes import ROOT, checkpoint_note
from tidings.ledger.merkle import leaf_hash, verify_inclusion
from tidings.ledger.note import Checkpoint, Verifier
from tidings.ledger.proof import Proof
from tidings.ledger.verification import LOCAL, UNWITNESSED, Verdict
from tidings.ledger.vocabulary import canonical, validate_entry
from tidings.rights import certificate_laws, certificate_words
from tidings.rights.attested import Leaf
from tidings.rights.certificate_archive import unpack
from tidings.rights.certificate_claims import CERTIFICATE, Evidence, Shown, claims
from tidings.rights.certificate_laws import Rows
from tidings.strict import strict_value

ISSUED = "tidings-certificate/1"
SIGNER = "certificates"
MANIFEST, CHECKPOINT, VKEY, LAWS, PARTS, CLAIMS = (
    "manifest.note",
    "checkpoint",
    "vkey",
    "laws.json",
    "parts.json",
    "certificate.json",
)
YOURS = (
    "trust in this key is yours: {} was read in the archive; compare it with the operator's, or give that with --key"
)
NOT_ONE = "this is an {}, not a certificate: {}"
LATE = "not in time: {}"
OTHER_LAW = "counted by other law rows than this installation's catalogue holds: {}; read their source in laws.json"


@dataclass
class CertificateVerdict(Verdict):
    """What was found, and what the document is."""

    document: str = ""
    request: str = ""
    fingerprint: str = ""


def verify_certificate(data: bytes, vkey: str = "") -> CertificateVerdict:
    """A certificate or statement by itself; with `vkey`, as issued under that key and no other."""
    verdict = CertificateVerdict("certificate", caveats=[LOCAL, UNWITNESSED])
    try:
        _verify(unpack(data), vkey, verdict)
    except TidingsError as error:
        verdict.wrong(str(error))
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        AssertionError,
        RecursionError,
    ) as error:
        found = f"a part that is missing or of another form ({type(error).__name__})"
        verdict.wrong(str(Damaged("certificate_form", found, "a document that Tidings issued")))
    return verdict


def _verify(files: dict[str, bytes], vkey: str, verdict: CertificateVerdict) -> None:
    verifier = Verifier.parse(vkey or _file(files, VKEY).decode())
    verdict.fingerprint = fingerprint(verifier)
    if not vkey:
        verdict.caveats.append(YOURS.format(verdict.fingerprint))
    if files[VKEY] != (verifier.vkey + "\n").encode():
        raise Damaged(
            "certificate_signature", "another key than the one given", verdict.fingerprint, "Ask whose it is."
        )
    signed(files, verifier)
    entries = _entries(files, verifier, verdict)
    evidence = evidence_of(files, verifier.name.removesuffix(f"/{ROOT}"), entries)
    said, again = strict_value(_file(files, CLAIMS)), claims(evidence)
    if comparable(said) != comparable(again):
        found = "claims that the entries do not bear out: " + ", ".join(_differing(said, again))
        raise Damaged("certificate_claim", found, "what the entries say", "Do not rely on this document.")
    verdict.document, verdict.request = again["document"], again["request"]
    _clocks(again, evidence, verdict)
    _caveats(again, evidence.laws, verdict)
    certificate_words.compared(files, said, again, verdict)


def fingerprint(verifier: Verifier) -> str:
    """Of the public key, as it can be read out on the telephone or printed on a letter."""
    return "SHA256:" + base64.b64encode(sha256(verifier.public).digest()).decode().rstrip("=")


def manifest_text(files: Mapping[str, bytes]) -> str:
    """What is signed: every file of the archive by its digest."""
    lines = [f"{sha256(data).hexdigest()} {name}" for name, data in sorted(files.items()) if name != MANIFEST]
    return "\n".join([ISSUED, *lines]) + "\n"


def signed(files: Mapping[str, bytes], verifier: Verifier) -> None:
    signer = verifier.named(f"{verifier.name.removesuffix(f'/{ROOT}')}/{SIGNER}")
    if signer.open(_file(files, MANIFEST)) != manifest_text(files):
        found = "files that are not those the operator signed"
        raise Damaged("certificate_signature", found, "each file as it was signed", "Ask for it again.")


def _entries(files: Mapping[str, bytes], verifier: Verifier, verdict: Verdict) -> list[Shown]:
    """Every entry, proven into a class log's head, and that head into the one root head."""
    root_note = _file(files, CHECKPOINT)
    root = Checkpoint.open(root_note, verifier)
    verdict.logs = [{"log": ROOT, "origin": root.origin, "size": root.size, "root": root.root.hex()}]
    heads: dict[bytes, Verifier] = {}
    for name in _numbered(files, "heads/"):
        entry, proof = files[name], Proof.parse(_file(files, _beside(name, "tlog")).decode())
        if proof.checkpoint != root_note:
            raise Damaged("certificate_proof", f"{name} under another head", "the one in `checkpoint`")
        proof.verify(entry, verifier)
        note = checkpoint_note(entry)
        heads[note] = verifier.named(validate_entry(entry)["origin"])
        Checkpoint.open(note, heads[note])
        verdict.checkpoints += 1
    shown = []
    for number, name in enumerate(_numbered(files, "entries/"), 1):
        proof = Proof.parse(_file(files, _beside(name, "tlog")).decode())
        if proof.checkpoint not in heads:
            raise Damaged("certificate_proof", f"{name}, whose head the root log did not record", "a recorded head")
        proof.verify(files[name], heads[proof.checkpoint])
        shown.append(_shown(number, validate_entry(files[name]), files.get(_beside(name, "member.json"))))
        verdict.entries += 1
    return shown


def _shown(number: int, values: dict[str, Any], member: bytes | None) -> Shown:
    if values["kind"] != "acknowledged":
        return Shown(number, values, str(values.get("event_id", "")))
    if member is None:
        raise Damaged("certificate_proof", f"call {number} without its member", "the member that it is shown for")
    said = strict_value(member)
    leaf = leaf_hash(member_leaf((said["event_id"], said["outcome"])))
    path = [bytes.fromhex(step) for step in said["path"]]
    fits = said["size"] == values["count"] and said["outcome"] in values["outcomes"]
    if not fits or not verify_inclusion(said["index"], said["size"], leaf, path, bytes.fromhex(values["members_root"])):
        raise Damaged("certificate_proof", f"a member that call {number} did not have", "one of its members")
    return Shown(number, values, said["event_id"], said["outcome"])


def evidence_of(files: Mapping[str, bytes], origin: str, entries: list[Shown]) -> Evidence:
    parts: dict[str, list[Leaf]] = {}
    for step, leaves in strict_value(_file(files, PARTS)).items():
        parts[step] = [(str(who), str(way), str(event), str(until)) for who, way, event, until in leaves]
    laws = certificate_laws.read(strict_value(_file(files, LAWS)))
    requests = {str(one.values["request"]) for one in entries if "request" in one.values}
    return Evidence(origin, min(requests, default=""), tuple(entries), parts, laws)


def comparable(said: Any) -> bytes:
    """The claims without their sentences: a later version may word the same arithmetic otherwise."""
    quiet = dict(said) | {"asked": {**said["asked"], "meaning": ""}}
    quiet["clocks"] = [{name: value for name, value in one.items() if name != "steps"} for one in said["clocks"]]
    return canonical(quiet)


def _differing(said: Any, again: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in {*again, *said} if said.get(name) != again.get(name))


def _clocks(said: Mapping[str, Any], evidence: Evidence, verdict: Verdict) -> None:
    """Clocks start where a step says so, and the deadline that was attested is no later than the law leaves."""
    moments = {said["asked"].get("received", ""), *(one.values["timestamp"] for one in evidence.steps)}
    for clock in said["clocks"]:
        if clock["start"] not in moments:
            found = f"the clock of {clock['statute']}, which starts at no step"
            verdict.wrong(str(Damaged("certificate_clock", found, "a start that is attested")))
    if said["deadline"]["fits"].startswith("later"):
        found = f"a deadline at {said['deadline']['attested']}, later than the law rows leave"
        verdict.wrong(str(Damaged("certificate_clock", found, "one that is no later")))


def _caveats(again: Mapping[str, Any], laws: Rows, verdict: CertificateVerdict) -> None:
    if again["document"] != CERTIFICATE:
        verdict.caveats.append(NOT_ONE.format(again["document"], "; ".join(again["standing"]["missing"][:10])))
    late = [clock["statute"] for clock in again["clocks"] if clock["met"] == "late"]
    if late:
        verdict.caveats.append(LATE.format(", ".join(late)))
    if strange := certificate_laws.unlike_ours(laws):
        verdict.caveats.append(OTHER_LAW.format(", ".join(strange)))
    if not again["clocks"]:
        verdict.caveats.append("no law row was used: nothing is said about time")


def _file(files: Mapping[str, bytes], name: str) -> bytes:
    if name not in files:
        raise Damaged("certificate_form", f"no {name}", "every file of a certificate", "Ask for it again.")
    return files[name]


def _numbered(files: Mapping[str, bytes], folder: str) -> list[str]:
    found = [name for name in files if name.startswith(folder) and not name.endswith((".tlog", ".member.json"))]
    return sorted(found)


def _beside(name: str, ending: str) -> str:
    return name.removesuffix("json") + ending
