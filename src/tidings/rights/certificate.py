"""Certificates: one signed archive per request that shows what was asked, what the law left, who was told and how it ended.

Everything in it is read off the ledger: entries as they are, their proofs, the law rows, and claims that anybody can compute again from
these. The same state gives the same bytes. It names nobody: the ledger holds no identifiers. What breaks the promise: a reason typed by
a person that names the subject, and a step that was never attested.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidings.errors import Damaged, Refused
from tidings.ledger.classes import ROOT
from tidings.ledger.log import CHECKPOINT as HEAD
from tidings.ledger.note import Signer
from tidings.ledger.opening import PURPOSE, origin
from tidings.ledger.proof import Piece, receipt
from tidings.ledger.vocabulary import canonical, encode_entry
from tidings.rights import certificate_laws
from tidings.rights.attested import leaf, stamp
from tidings.rights.book import TABLE, Book, Request, Row
from tidings.rights.certificate_archive import pack
from tidings.rights.certificate_check import (
    CHECKPOINT,
    CLAIMS,
    LAWS,
    MANIFEST,
    PARTS,
    SIGNER,
    VKEY,
    evidence_of,
    manifest_text,
    verify_certificate,
)
from tidings.rights.certificate_claims import CERTIFICATE, Shown, claims
from tidings.rights.certificate_page import page, readme
from tidings.rights.certificate_pdf import pdf
from tidings.rights.clocks import Laws, clocks_of

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.store import Store

FEED = "rights"  # the source of every event that a request became
# What a kind of request is called in the statutes.


@dataclass(frozen=True)
class Issued:
    """A certificate or statement, checked as a stranger would."""

    document: str
    request: str
    archive: bytes
    missing: tuple[str, ...]

    @property
    def certifies(self) -> bool:
        return self.document == CERTIFICATE

    @property
    def name(self) -> str:
        return f"{self.document.partition(' ')[0]}-{self.request}.zip"


def issue(settings: Settings, request_id: str, for_person: bytes = b"") -> Issued:
    """The certificate of a request as its steps stand in the ledger now; Refused where there is no such request."""
    from tidings.store import Store

    store = Store(settings.data_path / "tables")
    request = _request(store, request_id)
    rows = _rows(store, request)
    files = _proven(settings.data_path / "ledger", store, request, rows)
    files[PARTS] = _json({str(row["step"]): sorted(map(leaf, row["parts"])) for row in rows if row["parts"]})
    files[LAWS] = _json(certificate_laws.as_json(laws_of(settings, request)))
    said = claims(evidence_of(files, origin(settings.tenant), _shown(files)))
    files[CLAIMS] = _json(said)
    files["certificate.html"] = page(said).encode()
    files["certificate.pdf"] = pdf(said)
    files["README.txt"] = readme(said).encode()
    if for_person:
        files["person.json"] = for_person
    signer = Signer(f"{origin(settings.tenant)}/{SIGNER}", settings.keyring.derive(PURPOSE))
    files[MANIFEST] = signer.sign(manifest_text(files))
    archive = pack(files)
    verdict = verify_certificate(archive, files[VKEY].decode())
    if not verdict.good:
        raise Damaged("certificate_unsound", verdict.problems[0], "one that verifies", "Nothing was written.")
    return Issued(said["document"], request.id, archive, tuple(said["standing"]["missing"]))


def _request(store: Store, request_id: str) -> Request:
    found = Book(store).refresh().requests.get(request_id)
    if found is None:
        what_now = "`tidings rights` lists the requests."
        raise Refused("unknown_request", "no request with this id", "the id of a request", what_now)
    return found


def _rows(store: Store, request: Request) -> list[Row]:
    """The attested steps."""
    import pyarrow.dataset as ds

    wanted = (ds.field("request") == request.id) & (ds.field("opened") == request.opened)
    columns = ["request", "step", "what", "changed", "parts", "entry"]
    found = store.arrow(TABLE, columns, filter=wanted).to_pylist()
    rows = {row["step"]: row for row in found if row["entry"]}
    if not rows:
        raise Refused("ledger-unknown", "a request without an attested step", "one", "Let `tidings run` record it.")
    return [rows[step] for step in sorted(rows)]


def _proven(folder: Path, store: Store, request: Request, rows: Sequence[Row]) -> dict[str, bytes]:
    """Entries, proofs and heads as files, all under one root head."""
    root_head = (folder / ROOT / HEAD).read_bytes() if (folder / ROOT / HEAD).is_file() else b""
    files: dict[str, bytes] = {CHECKPOINT: root_head}
    heads: dict[bytes, bytes] = {}
    number = 0
    for event, pieces in _pieces(store, request, rows):
        document = receipt(folder, event, pieces, root_head)
        files[VKEY] = (document["vkey"] + "\n").encode()
        for proven in document["entries"]:
            number += 1
            name = f"entries/{number:04d}"
            files[f"{name}.json"] = encode_entry(proven["entry"])
            files[f"{name}.tlog"] = proven["proof"].encode()
            if "member" in proven:
                files[f"{name}.member.json"] = canonical(proven["member"])
        heads |= {encode_entry(head["entry"]): head["proof"].encode() for head in document["heads"]}
    for place, (entry, proof) in enumerate(sorted(heads.items()), 1):
        files[f"heads/{place:04d}.json"], files[f"heads/{place:04d}.tlog"] = entry, proof
    return files


def _pieces(store: Store, request: Request, rows: Sequence[Row]) -> Iterator[tuple[str, Sequence[Piece]]]:
    """What is to be proven: the steps, then what became of each event of the request."""
    yield "", [Piece(TABLE, row["entry"]) for row in rows]
    events = {part["event_id"] for row in rows for part in row["parts"] or () if part["way"] == "lane"}
    if events:
        yield from sorted(_trails(store, request, events).items())


def _trails(store: Store, request: Request, events: set[str]) -> dict[str, list[Piece]]:
    """Event → decided, every call that carried it, settled; each table is looked at once, from the request on."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    found: dict[str, list[Piece]] = defaultdict(list)
    begin = pa.scalar(request.opened, pa.timestamp("us", tz="UTC"))
    ours, attested = ds.field("source") == FEED, ds.field("entry").is_valid()
    mine = ours & attested & ds.field("event_id").isin(sorted(events))
    places = ["event_id", "source", "generation", "batch", "entry"]
    for row in store.arrow("journal", places, filter=mine & (ds.field("recorded") >= begin)).to_pylist():
        feed = f"{row['source']}/{row['generation']}"
        found[row["event_id"]].append(Piece("journal", row["entry"], feed=feed, batch=row["batch"]))
    calls = store.arrow("attempts", ["finished", "members", "entry"], filter=attested & (ds.field("finished") >= begin))
    for row in sorted(calls.to_pylist(), key=lambda row: row["finished"]):
        members = tuple((member["event_id"], member["result"]) for member in row["members"] or ())
        for event in sorted({event for event, _ in members} & events):
            found[event].append(Piece("attempts", row["entry"], members=members))
    for row in store.arrow("settled", ["event_id", "entry"], filter=mine & (ds.field("time") >= begin)).to_pylist():
        found[row["event_id"]].append(Piece("settled", row["entry"]))
    return found


def _shown(files: Mapping[str, bytes]) -> list[Shown]:
    """The entries that were just proven, as claims are made from them."""
    shown = []
    names = sorted(name for name in files if name.startswith("entries/") and name.count(".") == 1)
    for number, name in enumerate([one for one in names if one.endswith(".json")], 1):
        values = json.loads(files[name])
        member = json.loads(files.get(name.replace(".json", ".member.json"), b"{}"))
        event = member.get("event_id") or values.get("event_id", "")
        shown.append(Shown(number, values, event, member.get("outcome", "")))
    return shown


def laws_of(settings: Settings, request: Request) -> certificate_laws.Rows:
    """The laws whose clocks this request started, as the desk counts them."""
    laws = Laws.of(settings)
    clocks = [one for one in clocks_of(request, laws, datetime.now(UTC)) if one.statute in laws.statutes]
    used = [(one.statute, one.place, stamp(one.start)) for one in clocks]
    return certificate_laws.in_force(laws.statutes, used, laws.calendars)


def _json(said: Any) -> bytes:
    return (json.dumps(said, ensure_ascii=False, indent=1, sort_keys=True) + "\n").encode()
