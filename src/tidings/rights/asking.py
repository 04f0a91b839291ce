"""From an ask to work: who is meant, are we sure, does anything stand in the way; then messages into the inbox of the source `rights`.

Nothing here tells a caller whether somebody is known. A person nobody knows is answered and not dropped; one who was erased before is told so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidings.contract import Contract
from tidings.rights.asks import ASSURANCES, IDENTIFIERS, SHOP, Ask, Identifier, enough
from tidings.rights.book import Request, Row
from tidings.rights.capsule import put
from tidings.rights.clocks import Laws, due_of
from tidings.rights.erasing import Erasing, fingerprint, hashed
from tidings.rights.people import Person
from tidings.rights.steps import Steps
from tidings.seal.keyring import associated, kid, new_secret, open_payload, seal_payload, subject_key
from tidings.shapes import ASK

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.store import Store

SOURCE = "rights"
# Kind → what is said of the person (contract field with `person:`), or which consents are withdrawn.
PERSON = {
    "restriction": "restricted",
    "objection": "objected",
    "automated_decision": "no_automated",
    "limit_sensitive": "limited",
}
CONSENTS = ("opt_out", "opt_in", "consent_narrowing", "opt_out_sale")
ANSWERS = ("access", "portability", "know")


class Asking:
    """What the desk does with asks."""

    def __init__(self, settings: Settings, store: Store, erasing: Erasing, steps: Steps) -> None:
        self.settings, self.store, self.erasing, self.steps = settings, store, erasing, steps
        self.book, self.keys, self.ring = erasing.book, erasing.keys, settings.keyring
        self.laws = Laws.of(settings)

    def received(self, name: str, ask: Ask) -> Iterator[Row]:
        """A slip becomes a request, or part of one that is open already."""
        if name in self.book.requests:
            return
        tags = self.tags(ask.identifiers)
        hashes = self.hashes(ask.identifiers)
        print_ = fingerprint(self.ring.derive("request"), ask.kind, tags or hashes, ask.scope)
        request = Request(name, ask.kind, ask.way, ask.received)
        home, _, others = ask.jurisdiction.partition(",")
        said: dict[str, Any] = {
            "jurisdiction": home,
            "regulation": ask.regulation,
            "assurance": ask.assurance,
        }
        details = {"reference": ask.reference, "scope": ",".join(ask.scope), "agent": ask.agent, "about": ask.about}
        details["jurisdictions"] = others
        details |= {name: "yes" for name in ("child", "at_once") if getattr(ask, name)}
        details = {k: v for k, v in details.items() if v}
        same = self.book.by_fingerprint.get(print_)
        if same is not None:
            yield self.steps.row(request, "merged", "cancelled", details=details | {"same_as": same}, **said)
            yield from self._joined(self.book.requests[same], ask, name)
            return
        request.jurisdiction, request.regulation, request.details = home, ask.regulation, dict(details)
        said |= {"due": due_of(request, self.laws, datetime.now(UTC)), "hashes": hashes, "tags": tags}
        sealed = self._sealed(request, ask)
        yield self.steps.row(request, "received", "received", details=details, fingerprint=print_, **said, **sealed)
        yield from self.begin(self.book.requests[name])

    def _joined(self, first: Request, ask: Ask, name: str) -> Iterator[Row]:
        """The same is asked again: a place that was not named before brings its clocks, and a proof counts for both."""
        before = [first.jurisdiction, *first.details.get("jurisdictions", "").split(",")]
        more = [one for one in ask.jurisdiction.split(",") if one and one not in before]
        places = {"jurisdictions": ",".join([one for one in before[1:] if one] + more)} if more else {}
        first.details |= places
        due: dict[str, Any] = {"due": due_of(first, self.laws, datetime.now(UTC))} if more else {}
        yield self.steps.row(first, "merged", details={"with": name} | places, **due)
        if ASSURANCES.index(ask.assurance) > ASSURANCES.index(first.assurance):
            yield self.steps.row(first, "verified", assurance=ask.assurance, details={"with": name})
            if first.state == "verifying":
                yield from self.begin(first)

    def _sealed(self, request: Request, ask: Ask) -> dict[str, Any]:
        """What the person gave, under a key of the request's own."""
        secret, tag = new_secret(), self.tag_of(request)
        own, key, name = kid(secret, tag), subject_key(secret, tag), f"rights-ask-{self.steps.next}-{secret.hex()[:8]}"
        self.keys.write(pa.Table.from_pylist([{"tag": tag, "kid": own, "key": key}]), name)
        aad = associated("rights_requests", request.id, "sealed")
        return {
            "kid": own,
            "key_file": name,
            "sealed": seal_payload(ask.as_json().encode(), key, self.ring.derive("iv"), aad),
        }

    def tag_of(self, request: Request) -> bytes:
        """Under which the request's own key is filed."""
        return self.ring.tag(self.settings.tenant, "rights/request", request.id)

    def ask_of(self, request: Request) -> Ask | None:
        """What the person gave; None when its key is gone, or nobody asked us directly."""
        found = self.keys.load([request.key_file], {request.kid}) if request.key_file else {}
        if request.kid not in found:
            return None
        aad = associated("rights_requests", request.id, "sealed")
        return Ask.from_json(open_payload(found[request.kid][1], aad, request.sealed))

    def hashes(self, identifiers: tuple[Identifier, ...]) -> list[bytes]:
        return sorted({found for one in identifiers for found in hashed(self.settings, one.kind, one.value)})

    def tags(self, identifiers: tuple[Identifier, ...]) -> list[bytes]:
        """The records that these identifiers name."""
        keyed = [one for one in identifiers if one.kind in self.settings.entities]
        found = {self.ring.tag(self.settings.tenant, one.kind, one.value) for one in keyed}
        hashes = self.hashes(tuple(one for one in identifiers if one.kind in IDENTIFIERS))
        if hashes and self.store.files("identities"):
            found |= set(self.store.lookup("identities", hashes)["tag"].to_pylist())
        return sorted(found)

    def begin(self, request: Request) -> Iterator[Row]:
        """As far as it can go now; comes here again after every word."""
        ask = self.ask_of(request)
        if ask is None:
            return
        people = self.erasing.closure(request.tags)
        if any(one.kind == SHOP for one in ask.identifiers):
            yield self.steps.row(request, "held", "review", reason="whole_shop", details={"by_hand": "yes"})
        elif not people:
            yield from self._nobody(request, ask)
        elif not enough(request.kind, request.assurance):
            if request.state != "verifying":
                yield self.steps.row(request, "identity_needed", "verifying")
        elif request.kind == "appeal":
            yield self.steps.row(request, "held", "review", reason="an appeal is looked at by a human")
        elif hurdle := self.hurdle(request, people):
            yield self.steps.row(request, "held", "review", reason=hurdle)
        elif request.kind == "erasure" and self._must_wait(request):
            until = request.opened + timedelta(days=self._days())
            yield self.steps.row(request, "waiting", "waiting", details={"until": until.astimezone(UTC).isoformat()})
        else:
            yield from self._work(request, ask, people)

    def _nobody(self, request: Request, ask: Ask) -> Iterator[Row]:
        stone = next(
            (self.book.stones[h] for h in (*request.tags, *self.hashes(ask.identifiers)) if h in self.book.stones), ""
        )
        if stone and stone != request.id:
            yield self.steps.row(request, "already_erased", "fulfilled", details={"same_as": stone})
        else:
            yield self.steps.row(request, "unmatched", "refused", reason="no_match")

    def _days(self) -> int:
        return self.settings.operator.rights.waiting_days if self.settings.operator.rights else 0

    def _must_wait(self, request: Request) -> bool:
        until = request.opened + timedelta(days=self._days())
        return self._days() > 0 and datetime.now(UTC) < until and request.details.get("at_once") != "yes"

    def hurdle(self, request: Request, people: Mapping[bytes, Person]) -> str:
        """What only a human can decide, unless one has; empty when nothing stands in the way."""
        approved = {step.details.get("hurdle", "") for step in request.happened("approved")}
        rows = self.store.lookup("subjects", list(people)).to_pylist() if self.store.files("subjects") else []
        newest = {row["tag"]: dict(row["consents"] or ()) for row in sorted(rows, key=lambda row: row["version"] or "")}
        held = any(said.get("is:legal_hold") == "granted" for said in newest.values())
        child = request.details.get("child") == "yes" or any(s.get("is:child") == "granted" for s in newest.values())
        if request.kind == "erasure" and held and "legal_hold" not in approved:
            return "legal_hold"
        if child and request.kind != "opt_out" and "child" not in approved:
            return "child"
        if request.kind in ("erasure", *ANSWERS) and self._shared(people) and "shared_identifier" not in approved:
            return "shared_identifier"
        return ""

    def _shared(self, people: Mapping[bytes, Person]) -> bool:
        """Are two records of one kind, which nobody merged, found by the same e-mail or phone? Then they may be two people."""
        hashes = self.erasing.hashes(people.values())
        if not hashes or not self.store.files("identities"):
            return False
        found: dict[tuple[bytes, str], set[bytes]] = {}
        for row in self.store.lookup("identities", hashes).to_pylist():
            found.setdefault((row["hash"], row["entity"]), set()).add(row["tag"])
        many = set().union(*(tags for tags in found.values() if len(tags) > 1))
        live = {tag for tag, *_ in self.keys.about(sorted(many))} if many else set()
        return any(len(tags & live) > 1 and not _merged(tags & live, people) for tags in found.values())

    def _work(self, request: Request, ask: Ask, people: Mapping[bytes, Person]) -> Iterator[Row]:
        if request.kind in ANSWERS:
            yield self.steps.row(request, "ready", "working", details={"bundle": "yes"})
            return
        messages = [m for person in people.values() for m in self._messages(request, ask, person)]
        if not messages and request.kind != "erasure":
            why = "nothing_to_change" if self._says(request, ask, people) else ""
            state = "fulfilled" if why else "review"
            yield self.steps.row(request, why or "held", state, reason=why or "no_field")
            return
        self._hand_over(request, messages)
        yield self.steps.row(request, "begun", "working", details={"messages": str(len(messages))})

    def _says(self, request: Request, ask: Ask, people: Mapping[bytes, Person]) -> bool:
        contracts = [
            self.settings.entities[one.entity] for one in people.values() if one.entity in self.settings.entities
        ]
        return any(dict(_wanted(request.kind, ask, contract)) for contract in contracts)

    def _messages(self, request: Request, ask: Ask, person: Person) -> Iterator[dict[str, Any]]:
        contract = self.settings.entities.get(person.entity)
        if contract is None or person.key is None:
            return
        if request.kind == "erasure":
            yield {"entity": person.entity, "op": "erase", "key": person.key, "before": None, "after": None}
            return
        wanted = {path: _like(person.fields.get(path), value) for path, value in _wanted(request.kind, ask, contract)}
        changed = {path: value for path, value in wanted.items() if person.fields.get(path) != value}
        if changed:
            key = person.key if isinstance(person.key, dict) else {contract.key[0]: person.key}
            before, after = {**key}, {**key}
            for path, value in changed.items():
                put(before, path, person.fields.get(path))
                put(after, path, value)
            yield {"entity": person.entity, "op": "update", "key": person.key, "before": before, "after": after}

    def _hand_over(self, request: Request, messages: list[dict[str, Any]]) -> None:
        from tidings.sources.inbox import Named, accept

        micros = int(datetime.now(UTC).timestamp() * 1_000_000)
        named = []
        for number, message in enumerate(messages):
            own = {"id": micros + number, "event": f"{request.id}-{number}", "txid": request.id} | message
            body = json.dumps({"table": SOURCE, "micros": micros, "after": own}, ensure_ascii=False)
            named.append(Named(body, f"{ASK}{request.id}:{number}", micros))
        accept(self.settings.data_path / "inbox" / SOURCE, self.ring, named)

    def journaled(self, row: Row) -> Iterator[Row]:
        """What one of our messages became: whoever is told of it must answer."""
        from tidings.gate.decisions import decided_in

        request = self.book.requests.get(row["causation"] or "")
        if request is None or not request.open or any(p.event_id == row["event_id"] for p in request.parts.values()):
            return
        decided = decided_in(self.store.decisions).recipients(row)
        told = [one for one in decided if one["outcome"] != "deny"]
        names = {one["subscriber"]: one["deadline"] for one in told}
        parts = [
            {"recipient": name if name not in request.parts else f"{name}#{row['event_id'][:8]}", "way": "lane",
             "event_id": row["event_id"], "kid": None, "tag": None, "sealed": None, "deadline": due}
            for name, due in sorted(names.items())
        ]  # fmt: skip
        yield self.steps.row(request, "told", details={"event": row["event_id"]}, parts=parts)
        if not parts and not any(part.state == "open" for part in request.parts.values()):
            yield self.steps.row(request, "fulfilled", "fulfilled")


def _merged(tags: set[bytes], people: Mapping[bytes, Person]) -> bool:
    """Do merges lead from each of these records to all the others?"""
    reached, new = set[bytes](), {min(tags)}
    while new:
        reached |= new
        near = {tag for one in new if one in people for tag in people[one].same}
        new = (near | {tag for tag, one in people.items() if one.same & reached}) - reached
    return tags <= reached


def _wanted(kind: str, ask: Ask, contract: Contract) -> Iterator[tuple[str, Any]]:
    """(field, what it must say) of this contract; whether somebody agreed is True or False here."""
    if kind == "rectification":
        yield from ((path, value) for path, value in ask.values.items() if path in contract.fields)
    elif kind in PERSON:
        yield from ((path, True) for path, word in contract.persons if word == PERSON[kind])
    elif kind in CONSENTS:
        for path, consent in contract.consents:
            sale = consent.channel == "ads" or consent.purpose in ("sale", "advertising")
            asked = {consent.channel, consent.purpose, consent.class_} & set(ask.scope) or not ask.scope
            if (kind == "opt_out_sale" and sale) or (kind != "opt_out_sale" and asked):
                yield path, kind == "opt_in"


def _like(now: Any, value: Any) -> Any:
    """Yes or no in the way in which the field says it."""
    if not isinstance(value, bool):
        return value
    if isinstance(now, str):
        return "granted" if value else "withdrawn"
    return int(value) if isinstance(now, int) and not isinstance(now, bool) else value
