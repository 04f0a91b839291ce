"""From an ask to work: who is meant, are we sure, does anything stand in the way; then messages into the inbox of the source `rights`.

Nothing here tells a caller whether somebody is known. A person nobody knows is answered and not dropped; one who was erased before is told so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidings.rights import lifting
from tidings.rights.asks import ASSURANCES, IDENTIFIERS, SHOP, Ask, Identifier, enough
from tidings.rights.book import Request, Row
from tidings.rights.carrying import ANSWERS, Carrying
from tidings.rights.clocks import Laws, due_of
from tidings.rights.corrections import for_a_human
from tidings.rights.erasing import Erasing, fingerprint
from tidings.rights.mentions import Mentions
from tidings.rights.named_by import hashed
from tidings.rights.people import Person
from tidings.rights.steps import Steps
from tidings.seal.keyring import associated, kid, new_secret, open_payload, seal_payload, subject_key

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.store import Store

MANY = 50  # records of one person
# What only protects the person is done for a child as for anybody, without a parent's word.
PROTECTS = ("opt_out", "opt_out_sale", "consent_narrowing", "limit_sensitive", "restriction", "objection", "automated_decision")  # fmt: skip


class Asking:
    """What the desk does with asks."""

    def __init__(self, settings: Settings, store: Store, erasing: Erasing, steps: Steps) -> None:
        self.settings, self.store, self.erasing, self.steps = settings, store, erasing, steps
        self.book, self.keys, self.ring = erasing.book, erasing.keys, settings.keyring
        self.laws, self.carrying = Laws.of(settings), Carrying(settings, erasing, steps)
        self.sight = erasing.sight
        self._drawn: list[Row] = []  # keys of asks that are not on the disk yet
        self._at_hand: dict[str, Ask] = {}

    def foresee(self, asks: Sequence[Ask], requests: Sequence[Request] = ()) -> None:
        """Look up what these need in one go; each then finds it at hand."""
        hashes = {found for ask in asks for found in self.hashes(ask.identifiers)}
        tags = {row["tag"] for row in self.sight.identities(hashes)} | {tag for one in requests for tag in one.tags}
        keyed = [one for ask in asks for one in ask.identifiers if one.kind in self.settings.entities]
        tags |= {self.ring.tag(self.settings.tenant, one.kind, one.value) for one in keyed}
        self.look_at(self.sight.closure(tags))
        self._at_hand |= self._opened(requests)

    def look_at(self, people: Mapping[bytes, Person]) -> None:
        """What stands in the way of each of these people, in one go."""
        self.sight.subjects(people)
        rows = self.sight.identities(self.erasing.hashes(people.values()))
        self.sight.live(_shared_by(rows))

    def hand_over(self) -> None:
        """Keys of new asks and messages to the flow, on the disk; the steps that speak of them are committed after it."""
        if self._drawn:
            self.keys.write(pa.Table.from_pylist([row["row"] for row in self._drawn]), self._drawn[0]["name"])
        self.carrying.hand_over()
        self._drawn, self._at_hand = [], {}

    def received(self, name: str, ask: Ask) -> Iterator[Row]:
        """A slip becomes a request, or part of one that is open already."""
        if name in self.book.requests:
            return
        tags = self.tags(ask.identifiers)
        hashes = self.hashes(ask.identifiers)
        print_ = fingerprint(self.ring.derive("request"), ask.kind, tags or hashes, _sought(ask))
        request = Request(name, ask.kind, ask.way, ask.received)
        home, _, others = ask.jurisdiction.partition(",")
        said: dict[str, Any] = {
            "jurisdiction": home,
            "regulation": ask.regulation,
            "assurance": ask.assurance,
        }
        details = {"reference": ask.reference, "scope": ",".join(ask.scope), "agent": ask.agent, "about": ask.about}
        # A caller's own words outlive the erasure, and some stand in the ledger: what names the person is left out of them.
        named = Mentions([ask.contact, *(one.value for one in ask.identifiers)])
        details = {k: v for k, v in details.items() if v and not named.named_in(v)}
        details |= {name: "yes" for name in ("child", "at_once") if getattr(ask, name)}
        # Where the person says that they live, and where their records say so.
        if places := dict.fromkeys([*filter(None, others.split(",")), *self._lives_in(tags)]):
            details["jurisdictions"] = ",".join(places)
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
        own, key = kid(secret, tag), subject_key(secret, tag)
        name = self._drawn[0]["name"] if self._drawn else f"rights-ask-{self.steps.next}-{new_secret().hex()[:8]}"
        self._drawn.append({"name": name, "row": {"tag": tag, "kid": own, "key": key}})
        self._at_hand[request.id] = ask
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
        return self._at_hand.get(request.id) or self._opened([request]).get(request.id)

    def _opened(self, requests: Iterable[Request]) -> dict[str, Ask]:
        held = {one.kid: one for one in requests if one.key_file and one.sealed}  # else forgotten, or erased since
        keys = self.keys.load({one.key_file for one in held.values()}, held.keys()) if held else {}
        found = {}
        for own, (_, key) in keys.items():
            aad = associated("rights_requests", held[own].id, "sealed")
            found[held[own].id] = Ask.from_json(open_payload(key, aad, held[own].sealed))
        return found

    def hashes(self, identifiers: tuple[Identifier, ...]) -> list[bytes]:
        return sorted({found for one in identifiers for found in hashed(self.settings, one.kind, one.value)})

    def tags(self, identifiers: tuple[Identifier, ...]) -> list[bytes]:
        """The records that these identifiers name."""
        keyed = [one for one in identifiers if one.kind in self.settings.entities]
        found = {self.ring.tag(self.settings.tenant, one.kind, one.value) for one in keyed}
        hashes = self.hashes(tuple(one for one in identifiers if one.kind in IDENTIFIERS))
        return sorted(found | {row["tag"] for row in self.sight.identities(hashes)})

    def _lives_in(self, tags: list[bytes]) -> list[str]:
        """Where the records say that the person lives: each of these laws has its clock, and the shortest acts."""
        rows = self.sight.subjects(tags)
        newest = {row["tag"]: row["jurisdiction"] for row in sorted(rows, key=lambda row: row["version"] or "")}
        return sorted({place for place in newest.values() if place})

    def begin(self, request: Request) -> Iterator[Row]:
        """As far as it can go now; comes here again after every word."""
        ask = self.ask_of(request)
        if ask is None:
            return
        if request.kind == "appeal":
            yield from self._appeal(request, ask)
            return
        people = self.sight.closure(request.tags)
        if any(one.kind == SHOP for one in ask.identifiers):
            yield self.steps.row(request, "held", "review", reason="whole_shop", details={"by_hand": "yes"})
        elif not people:
            yield from self._nobody(request, ask)
        elif not enough(request.kind, request.assurance):
            if request.state != "verifying":
                yield self.steps.row(request, "identity_needed", "verifying")
        elif hurdle := self.hurdle(request, people) or self._decided(request, ask, people):
            yield self.steps.row(request, "held", "review", reason=hurdle)
        elif request.kind == "erasure" and self._must_wait(request):
            until = request.opened + timedelta(days=self._days())
            yield self.steps.row(request, "waiting", "waiting", details={"until": until.astimezone(UTC).isoformat()})
        else:
            yield from self.carrying.work(request, ask, people)

    def _appeal(self, request: Request, ask: Ask) -> Iterator[Row]:
        """A human looks, if there is something to look at: a request of this person that was refused."""
        about = self.book.requests.get(ask.about)
        theirs = about is not None and {*about.tags, *about.hashes} & {*request.tags, *request.hashes}
        if about is None or about.state != "refused" or not theirs:
            yield self.steps.row(request, "refused", "refused", reason="nothing_to_appeal")
        elif not enough(request.kind, request.assurance):
            if request.state != "verifying":
                yield self.steps.row(request, "identity_needed", "verifying")
        else:
            yield self.steps.row(request, "held", "review", reason="an appeal is looked at by a human")

    def appealed(self, appeal: Request) -> Iterator[Row]:
        """The appeal is granted: what was refused goes on, with what the person gave now where the first is forgotten."""
        about, ask = self.book.requests[appeal.details["about"]], self.ask_of(appeal)
        sealed: dict[str, Any] = {}
        if self.ask_of(about) is None and ask is not None:
            again = replace(lifting.ask_again(about), identifiers=ask.identifiers, contact=ask.contact)
            sealed = self._sealed(about, again)
        yield self.steps.row(about, "appealed", "received", details={"appeal": appeal.id}, **sealed)
        yield from self.begin(about)

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
        rows = self.sight.subjects(people)
        newest = {row["tag"]: dict(row["consents"] or ()) for row in sorted(rows, key=lambda row: row["version"] or "")}
        held = any(said.get("is:legal_hold") == "granted" for said in newest.values())
        child = request.details.get("child") == "yes" or any(s.get("is:child") == "granted" for s in newest.values())
        if request.kind == "erasure" and "legal_hold" not in approved and self._kept(people, held):
            return "legal_hold"
        if child and request.kind not in PROTECTS and "child" not in approved:
            return "child"
        if request.kind in ("erasure", *ANSWERS) and self._shared(people) and "shared_identifier" not in approved:
            return "shared_identifier"
        if request.kind in ("erasure", *ANSWERS) and len(people) > MANY and "many_records" not in approved:
            return "many_records"  # merges that a source got wrong would take everybody along
        return ""

    def _decided(self, request: Request, ask: Ask, people: Mapping[bytes, Person]) -> str:
        """A correction of what the operator decides is a human's to make."""
        entities = {one.entity for one in people.values()} & self.settings.entities.keys()
        approved = any(step.details.get("hurdle") == "decided_field" for step in request.happened("approved"))
        wanted = request.kind == "rectification" and not approved
        contracts = [self.settings.entities[name] for name in entities]
        return "decided_field" if wanted and any(for_a_human(one, ask.values) for one in contracts) else ""

    def _kept(self, people: Mapping[bytes, Person], flagged: bool) -> bool:
        """Would the erasure destroy what is held? Where counsel has a key it moves to the hold store instead."""
        holding = self.erasing.holding
        return holding.counsel is None and (flagged or holding.bound(people))

    def _shared(self, people: Mapping[bytes, Person]) -> bool:
        """Are two records of one kind, which nobody merged, found by the same e-mail or phone? Then they may be two people."""
        rows = self.sight.identities(self.erasing.hashes(people.values()))
        live = self.sight.live(_shared_by(rows))
        found: dict[tuple[bytes, str], set[bytes]] = {}
        for row in rows:
            found.setdefault((row["hash"], row["entity"]), set()).add(row["tag"])
        return any(len(tags & live) > 1 and not _merged(tags & live, people) for tags in found.values())


def _sought(ask: Ask) -> tuple[str, ...]:
    """What makes two asks of one kind the same: two corrections of other fields, or appeals of other requests, are two."""
    values = [f"{path}\x1e{value}" for path, value in sorted(ask.values.items())]
    return (*ask.scope, *values, *([ask.about] if ask.kind == "appeal" else []))


def _shared_by(rows: Iterable[Row]) -> set[bytes]:
    """Records of one kind that are found by the same thing as another."""
    found: dict[tuple[bytes, str], set[bytes]] = {}
    for row in rows:
        found.setdefault((row["hash"], row["entity"]), set()).add(row["tag"])
    return set().union(*(tags for tags in found.values() if len(tags) > 1))


def _merged(tags: set[bytes], people: Mapping[bytes, Person]) -> bool:
    """Do merges lead from each of these records to all the others?"""
    reached, new = set[bytes](), {min(tags)}
    while new:
        reached |= new
        near = {tag for one in new if one in people for tag in people[one].same}
        new = (near | {tag for tag, one in people.items() if one.same & reached}) - reached
    return tags <= reached
