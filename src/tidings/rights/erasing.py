"""An erasure from its event to the last acknowledgement. Every step can be killed and is done again from the tables.

    event in the journal → one commit: tombstone and capsule → our own keys and rows of the person go → the ledger has it
    → one event per recipient out of the capsule → each answer destroys its part's key → nothing left: fulfilled

The tombstone's commit and the destruction happen behind the fence, so a batch in flight cannot bring anybody back.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidings import crash
from tidings.errors import Refused
from tidings.gate.decisions import decided_in
from tidings.report.people import hashes_of
from tidings.rights import capsule, fence, lifting, restore
from tidings.rights.applied import Applied
from tidings.rights.book import APP, TABLE, Book, Request, Row
from tidings.rights.changing import PERSON
from tidings.rights.order import ERASURE_WINS
from tidings.rights.people import Person, look_up
from tidings.rights.scrub import blank_lines, forget_quarantined, scrub
from tidings.rights.steps import Steps, write
from tidings.seal.keyfiles import KeyFiles
from tidings.seal.keyring import bucket
from tidings.session import BUCKETS
from tidings.stages.erased import tombstone
from tidings.stages.event import OFFSETS_PER_BATCH

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.store import Store

crash.POINTS["rights.capsule_keys"] = "an erasure: the capsule's keys are durable, nothing is committed"
crash.POINTS["rights.committed"] = "an erasure: tombstone and capsule are committed, the person's keys are still there"
crash.POINTS["rights.destroyed"] = "an erasure: the person's keys are gone, the step is not written"
crash.POINTS["rights.told"] = "an erasure: its events are in the journal, the step is not written"
crash.POINTS["rights.answered"] = "an erasure: an answer is known, the part's key is still there"
ASKED = [
    "event_id", "source", "generation", "offset", "tenant", "banner", "location", "locale", "routing_hint", "entity",
    "schema_version", "policy_version", "hlc", "lamport", "vector", "subjectseq", "decision", "consent", "time", "recorded",
    "change_type", "operation", "deadlines", "kid", "key_file", "causation", "flags",
]  # fmt: skip


@dataclass(frozen=True)
class Ready:
    """An erasure that may begin: the request, the event that asked for it, and the person's records."""

    request: Request
    event: Row
    people: tuple[Person, ...]


class Erasing:
    """What the desk does about erasures."""

    def __init__(self, settings: Settings, store: Store, keys: KeyFiles, book: Book, steps: Steps) -> None:
        self.settings, self.store, self.keys, self.book, self.steps = settings, store, keys, book, steps

    def closure(self, tags: Iterable[bytes]) -> dict[bytes, Person]:
        """The records of one person: those named, and those they were merged with."""
        found: dict[bytes, Person] = {}
        new = set(tags)
        for _ in range(8):
            look = look_up(self.store, self.keys, self.settings.keyring, self.settings.tenant, new)
            found |= look.people
            new = {tag for one in look.people.values() for tag in one.same} - found.keys()
            if not new:
                break
        return found

    def commit(self, ready: list[Ready]) -> None:
        """Tombstones and capsules of these, in one commit; then nothing of the people is left with us but that."""
        if not ready:
            return
        batch = self.steps.next
        made = {one.request.id: self._parts(one) for one in ready}
        rows = [{"tag": p.tag, "kid": p.kid, "key": p.key} for parts in made.values() for p in parts]
        if rows:
            self.keys.write(pa.Table.from_pylist(rows), f"rights-capsule-{batch}-00000000")
        crash.point("rights.capsule_keys")
        said = self._identifying(person for one in ready for person in self._own(one.people))
        forget_quarantined(self.store, self.settings.keyring, said)
        blank_lines(self.settings, said)
        with fence.closed():
            self.steps.commit([self._committed(one, made[one.request.id], batch) for one in ready])
            crash.point("rights.committed")
            self.destroy([one.request for one in ready])

    def _committed(self, one: Ready, parts: list[capsule.Sealed], batch: int) -> Row:
        event, now = one.event, datetime.now(UTC)
        details = {"batch": str(batch), "asked": event["event_id"], "moment": str(int(now.timestamp() * 1000))}
        details |= {"feed": f"{event['source']}/{event['generation']}", "offset": str(event["offset"])}
        due = min((part.deadline for part in parts if part.deadline), default=None) or one.request.due
        said: dict[str, Any] = {
            "tags": [person.tag for person in one.people],
            "hashes": self.hashes(one.people),
            "due": due,
        }
        rows = [part.as_row() for part in parts]
        return self.steps.row(one.request, "committed", "working", details=details, parts=rows, **said)

    def hashes(self, people: Iterable[Person]) -> list[bytes]:
        """Keyed hashes of what the person is found by: the tombstone keeps them, so that they are recognised when they ask."""
        found: set[bytes] = set()
        for person in people:
            contract = self.settings.entities.get(person.entity)
            for path, kind in (contract.identifiers if contract else {}).items():
                for value in person.ever.get(path, ()):
                    found.update(hashed(self.settings, kind, value))
        return sorted(found)

    def _parts(self, one: Ready) -> list[capsule.Sealed]:
        chosen = decided_in(self.store.decisions).choices(one.event["decision"])
        allowed = {name for name, choice in chosen.items() if choice["outcome"] != "deny"}
        ever = {name for person in one.people for name in person.told}
        due = dict(one.event["deadlines"] or ())
        shortest = min(due.values(), default=None)
        lanes = {name for name in allowed | ever if name in self.settings.subscribers and name in allowed}
        tasks = (ever - lanes) | self._by_hand(lanes | ever)
        own = self._own(one.people)
        ways = [(name, capsule.LANE) for name in sorted(lanes)] + [(name, capsule.TASK) for name in sorted(tasks)]
        return [
            capsule.part(self.settings, one.request.id, name, way, own, due.get(name, shortest)) for name, way in ways
        ]

    def _identifying(self, people: Iterable[Person]) -> list[str]:
        """Every address and number that these people ever had, and that nobody else is found by."""
        found = []
        for person in people:
            contract = self.settings.entities.get(person.entity)
            paths = [path for path in (contract.identifiers if contract else ()) if path in person.fields]
            found += [value for path in paths for value in sorted(person.ever.get(path, ()))]
        return found

    def _own(self, people: tuple[Person, ...]) -> list[Person]:
        """The people without what somebody else is found by too: a recipient told of that would forget the other as well."""
        names = {person.tag for person in people}
        kept = []
        for person in people:
            contract = self.settings.entities.get(person.entity)
            held = {
                p: hashed(self.settings, k, str(person.fields[p]))
                for p, k in (contract.identifiers if contract else {}).items()
                if p in person.fields
            }
            every = sorted({one for many in held.values() for one in many})
            rows = (
                self.store.lookup("identities", every).to_pylist() if every and self.store.files("identities") else []
            )
            other = {r["hash"] for r in rows if r["tag"] not in names and r["entity"] == person.entity}
            drop = {path for path, many in held.items() if other.intersection(many)}
            kept.append(replace(person, fields={k: v for k, v in person.fields.items() if k not in drop}))
        return kept

    def _by_hand(self, told: set[str]) -> set[str]:
        """Whom no lane reaches: declared for the operator, or whom a subscriber passes the data on to."""
        rights = self.settings.operator.rights
        listed = {one.name for one in rights.by_hand if not one.via or told & set(one.via)} if rights else set()
        known = (self.settings.subscribers[name] for name in told if name in self.settings.subscribers)
        return listed | {f"{one.name}/{name}" for one in known for name in one.onward}

    def destroy(self, requests: list[Request]) -> None:
        """Tombstones where a batch looks for them, and the people's keys and rows gone; can be done again and again."""
        if not requests:
            return
        self._tombstones(requests)
        tags = {tag for request in requests for tag in request.tags}
        counted = {request.id: len(self.keys.about(request.tags)) for request in requests}
        stones = [self._stone(request) for request in requests]
        restore.note(self.settings, stones)
        scrub(self.store, self.keys, sorted(tags))
        restore.carried_out(self.settings, stones)
        crash.point("rights.destroyed")
        self.steps.commit([self._destroyed(request, counted[request.id]) for request in requests])

    def _unlink(self, tags: set[bytes], erasures: set[str]) -> None:
        """Earlier requests of these people lead to them no more; what the erasures themselves say is the tombstone."""
        theirs = {one.id for one in self.book.requests.values() if tags.intersection(one.tags)} - erasures
        if theirs:
            self._overtaken(theirs, erasures)
            names, who = pa.array(sorted(theirs), pa.string()), ("tags", "hashes", "fingerprint", "sealed")

            def blank(rows: pa.Table) -> pa.Table:
                mine = pc.is_in(rows["request"], names)
                for name in who:
                    at = rows.schema.get_field_index(name)
                    kept = pc.if_else(pc.invert(mine), rows[name], pa.nulls(rows.num_rows, rows.schema.field(at).type))
                    rows = rows.set_column(at, rows.schema.field(at), kept)
                return rows

            self.store.rewritten(TABLE, self.store.files(TABLE), blank)
            self.store.unlink_replaced(TABLE)
            self.book.forget(theirs)
        if (self.settings.data_path / "rights" / "signals.sqlite").exists():
            Applied(self.settings).forget()

    def _overtaken(self, names: set[str], erasures: set[str]) -> None:
        """What else these people asked for and nobody can do any more: the erasure is their answer."""
        ended = []
        for one in (self.book.requests[name] for name in sorted(names)):
            if one.open and one.kind != "erasure":
                by = next((name for name in sorted(erasures) if {*one.tags} & {*self.book.requests[name].tags}), "")
                told = self.steps.row(one, "overtaken", "cancelled", reason=ERASURE_WINS, details={"same_as": by})
                ended.append(told)
        self.steps.commit(ended)

    @staticmethod
    def _stone(request: Request) -> restore.Tombstone:
        keyed = ([one.hex() for one in many] for many in (request.tags, request.hashes))
        return restore.Tombstone(request.id, int(request.details["moment"]), 1, *map(tuple, keyed))

    def _destroyed(self, request: Request, count: int) -> Row:
        erased = {
            "subject_identifier": hashlib.sha256(request.id.encode()).hexdigest()[:32],
            "basis": request.regulation or request.way,
            "generation": 1,
            "keys_destroyed": count,
        }
        return self.steps.row(request, "keys_destroyed", details={"keys": str(count)}, erased=erased)

    def _tombstones(self, requests: list[Request]) -> None:
        version = int(requests[0].details["batch"])
        rows = []
        for number, request in enumerate(requests):
            millis = int(request.details["moment"])
            place = {"offset": number, "source": APP, "generation": "tombstones", "batch": version}
            said = {"version": f"{millis:013d}-999999", "consents": [], "flags": [tombstone(millis, 1)]}
            rows += [{"tag": tag, "bucket": bucket(tag) % BUCKETS, **place, **said} for tag in request.tags]
        folder = write(self.store, "subjects", rows) if rows else None
        self.store.commit("subjects", folder, app=APP, version=version)

    def recover(self) -> None:
        """What a crash left between the tombstone and the destruction, before anything else is done."""
        left: dict[str, list[Request]] = {}
        for request in self.book.open:
            if request.happened("committed") and not request.happened("keys_destroyed"):
                left.setdefault(request.details["batch"], []).append(request)
        for _, requests in sorted(left.items(), key=lambda item: int(item[0])):
            with fence.closed():
                self.destroy(requests)

    def dispatch(self, attested: Callable[[], bool]) -> None:
        """Hand the parts of the next commits to the lanes, once the ledger holds those commits."""
        waiting: dict[int, list[Request]] = {}
        for request in self.book.open:
            if request.state == "working" and request.happened("keys_destroyed") and not request.happened("told"):
                waiting.setdefault(int(request.details["batch"]), []).append(request)
        if not waiting or not attested():
            return
        new = [request for requests in waiting.values() for request in requests]
        self._unlink({tag for one in new for tag in one.tags}, {one.id for one in new})
        for batch, requests in sorted(waiting.items()):
            rows = self._events(batch, requests)
            folder = write(self.store, "journal", rows) if rows else None
            self.store.commit("journal", folder, app="/".join(capsule.FEED), version=batch)
            crash.point("rights.told")
            self.steps.commit([self.steps.row(one, "told", details=_counted(one)) for one in requests])
            self._fulfil(requests)

    def _events(self, batch: int, requests: list[Request]) -> list[Row]:
        sealed = self._sealed(batch)
        asked = {one.id: self.asked(one) for one in requests}
        rows: list[Row] = []
        now = datetime.now(UTC)
        for request in sorted(requests, key=lambda one: one.id):
            for part in sealed.get(request.id, ()):
                if part["way"] == capsule.LANE:
                    offset = batch * OFFSETS_PER_BATCH + len(rows)
                    rows.append(capsule.journal_row(asked[request.id], part, offset, batch, now))
        return rows

    def _sealed(self, batch: int) -> dict[str, list[Row]]:
        """Request → its parts as they were committed; the book does not keep what is sealed."""
        rows = self.store.arrow(TABLE, ["request", "what", "details", "parts"], filter=ds.field("what") == "committed")
        mine = [row for row in rows.to_pylist() if dict(row["details"]).get("batch") == str(batch)]
        return {row["request"]: row["parts"] or [] for row in mine}

    def asked(self, request: Request) -> Row:
        """The event that asked for it."""
        source, generation = request.details["feed"].split("/", 1)
        offset = int(request.details["offset"])
        where = {"source": source, "generation": generation}
        near = self.store.files("journal", "offset", offset - 1, where=where)
        look = (ds.field("source") == source) & (ds.field("generation") == generation) & (ds.field("offset") == offset)
        return dict(self.store.arrow("journal", ASKED, files=near, filter=look).to_pylist()[0])

    def answered(self, finals: Mapping[tuple[str, str], tuple[str, str]]) -> None:
        """(event, subscriber) → (final, code), as the lanes ended them: what is acknowledged loses its key, the rest stays open, seen."""
        rows: list[Row] = []
        gone: list[bytes] = []
        for request in [one for one in self.book.open if one.state == "working"]:
            for part in list(request.parts.values()):
                final = finals.get((part.event_id, part.recipient.partition("#")[0]))
                if part.state != "open" or final is None:
                    continue
                if final[0] in ("acknowledged", "superseded"):
                    gone += [part.tag] if part.tag else []
                    rows.append(self.steps.row(request, "acknowledged", details={"recipient": part.recipient}))
                elif final[0] == "refused" and request.kind != "erasure" and not _unsaid(request, final[1]):
                    said = {"recipient": part.recipient, "code": final[1]}
                    rows.append(self.steps.row(request, "not_concerned", details=said))
                elif final[0] != "erased" and part.way == capsule.LANE:
                    said = {"recipient": part.recipient, "final": final[0], "code": final[1]}
                    rows.append(self.steps.row(request, "unanswered", details=said))
        self.close(rows, gone)

    def close(self, rows: list[Row], tags: list[bytes]) -> None:
        """Commit answers, destroy their keys, and say which requests are fulfilled by them."""
        if not rows:
            return
        self.steps.commit(rows)
        crash.point("rights.answered")
        self.keys.erase(*tags) if tags else None
        self._fulfil([self.book.requests[name] for name in dict.fromkeys(row["request"] for row in rows)])

    def tidy(self) -> None:
        """Requests whose parts are all answered; after a crash also the keys of answered parts."""
        parts = [part for one in self.book.open for part in one.parts.values() if part.state != "open" and part.tag]
        held = {tag for tag, *_ in self.keys.about([part.tag for part in parts])} if parts else set()
        if held:
            self.keys.erase(*sorted(held))
        self._fulfil(self.book.open)

    def _fulfil(self, requests: Iterable[Request]) -> None:
        full = [
            one
            for one in requests
            if one.state == "working"
            and one.happened("told")
            and len(one.happened("told")) >= int(one.details.get("messages", 1) if one.kind != "erasure" else 1)
            and all(part.state != "open" for part in one.parts.values())
            and not lifting.pending(one)
        ]
        self.steps.commit([self.steps.row(one, "fulfilled", "fulfilled") for one in full])


def _unsaid(request: Request, code: str) -> bool:
    """Does the vendor have no verb for this right? Then somebody must see to it by hand."""
    return code == "no_verb" and request.kind in PERSON


def _counted(request: Request) -> dict[str, str]:
    ways = [part.way for part in request.parts.values()]
    return {"lanes": str(ways.count(capsule.LANE)), "tasks": str(ways.count(capsule.TASK))}


def hashed(settings: Settings, kind: str, value: str) -> list[bytes]:
    """The keyed hashes under which an identifier may be filed."""
    if kind in ("email", "phone"):
        try:
            return hashes_of(settings, value)
        except Refused:  # neither an address nor a number: nobody is filed under it
            return []
    return [settings.keyring.identifier_hash(kind, value.strip())]


def fingerprint(key: bytes, kind: str, tags: Iterable[bytes], scope: Iterable[str]) -> bytes:
    said = b"\x1f".join([kind.encode(), *sorted(tags), *(one.encode() for one in sorted(scope))])
    return hmac.new(key, said, hashlib.sha256).digest()[:16]
