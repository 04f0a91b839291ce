"""Carrying a request out: messages into the inbox of the source `rights`, and what they became. Comes after everything that stands in the way.

Requests of one person are carried out one after the other, in the order in which they were asked; `order` says which of two stands.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tidings.contract import Contract
from tidings.person_fields import SOURCE, own_field, spoken
from tidings.rights import lifting
from tidings.rights.asks import Ask
from tidings.rights.book import Request, Row
from tidings.rights.capsule import TASK
from tidings.rights.changing import message, said_now, wanted
from tidings.rights.erasing import Erasing
from tidings.rights.order import ERASURE_WINS, OLDER, Order
from tidings.rights.people import Person
from tidings.rights.steps import Steps
from tidings.shapes import ASK

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.sources.inbox import Named

ANSWERS = ("access", "portability", "know")
REVIEW = "human_review"  # the part of a request against automated decisions that a human answers


class Carrying:
    """What the desk does once nothing stands in the way."""

    def __init__(self, settings: Settings, erasing: Erasing, steps: Steps) -> None:
        self.settings, self.erasing, self.steps = settings, erasing, steps
        self.book, self.order = erasing.book, Order(erasing.book)
        self._said: list[Named] = []  # messages that are not on the disk yet

    def work(self, request: Request, ask: Ask, people: Mapping[bytes, Person]) -> Iterator[Row]:
        self._keyed(ask, people)
        if request.kind in ANSWERS:
            yield self.steps.row(request, "ready", "working", details={"bundle": "yes"})
        elif request.kind == "erasure":
            messages = [_erase(one) for one, _ in self._contracts(people)]
            held = self.steps.row(request, "held", "review", reason="no_key") if not messages else None
            yield from [held] if held else self._begun(request, messages)
        elif erasure := self.order.erasing(request, people):
            state = "refused" if request.kind == "opt_in" else "cancelled"
            what = "refused" if request.kind == "opt_in" else "overtaken"
            yield self.steps.row(request, what, state, reason=ERASURE_WINS, details={"same_as": erasure})
        elif ahead := self.order.ahead(request, people, datetime.now(UTC)):
            if not request.happened("queued"):
                yield self.steps.row(request, "queued", "received", details={"behind": ahead})
        else:
            yield from self._change(request, ask, people)

    def _change(self, request: Request, ask: Ask, people: Mapping[bytes, Person]) -> Iterator[Row]:
        known, late = False, set[str]()
        messages = []
        for person, contract in self._contracts(people):
            fields = self._fields(request.kind, ask, person, contract)
            older = self.order.too_late(ask, person, contract, fields) if request.kind == "opt_in" else set()
            known, late = known or bool(fields), late | older
            changed = said_now(person, contract, {k: v for k, v in fields.items() if k not in older})
            messages += [message(person, contract, changed)] if changed else []
        if late and not messages:
            yield self.steps.row(request, "refused", "refused", reason=OLDER)
            return
        if late:
            yield self.steps.row(request, "withheld", reason=OLDER, details={"withheld": ",".join(sorted(late))})
        if messages:
            yield from self._begun(request, messages)
        elif known and request.kind == "automated_decision":  # nothing changes, and a human looks all the same
            yield self.steps.row(request, "nothing_to_change", "working", details={"messages": "0"}, parts=[_review()])
            yield self.steps.row(request, "told")
        elif known:
            yield self.steps.row(request, "nothing_to_change", "fulfilled", reason="nothing_to_change")
        else:
            yield self.steps.row(request, "held", "review", reason="no_field")

    def _begun(self, request: Request, messages: list[dict[str, Any]]) -> Iterator[Row]:
        self._named(request, messages)
        parts = [_review()] if request.kind == "automated_decision" else []
        said: dict[str, Any] = {"parts": parts} if parts else {}
        yield self.steps.row(request, "begun", "working", details={"messages": str(len(messages))}, **said)

    def lift(self, request: Request) -> Iterator[Row]:
        """The right ends as it began: in the record, and with everybody who is told."""
        ask, messages = lifting.ask_again(request), []
        for person, contract in self._contracts(self.erasing.sight.closure(request.tags)):
            changed = said_now(person, contract, wanted(request.kind, ask, contract, says=False))
            messages += [message(person, contract, changed)] if changed else []
        told, first = len(request.happened("told")), int(request.details.get("messages", 0))
        if not messages:
            yield self.steps.row(request, "lift_begun", "fulfilled", reason="nothing_to_change")
            return
        self._named(request, messages, first)
        yield self.steps.row(request, "lift_begun", "working", details={"messages": str(told + len(messages))})

    def address(self, request: Request) -> str:
        """Where a letter reaches the person by what their records say; empty when they say nothing."""
        for person, contract in self._contracts(self.erasing.sight.closure(request.tags)):
            for path, kind in contract.identifiers.items():
                if kind == "email" and person.fields.get(path):
                    return str(person.fields[path])
        return ""

    def _keyed(self, ask: Ask, people: Mapping[bytes, Person]) -> None:
        """A record whose key nobody told us but the person."""
        for one in (one for one in ask.identifiers if one.kind in self.settings.entities):
            person = people.get(self.settings.keyring.tag(self.settings.tenant, one.kind, one.value))
            if person is not None and person.key is None:
                person.entity, person.key = one.kind, {self.settings.entities[one.kind].key[0]: one.value}

    def _contracts(self, people: Mapping[bytes, Person]) -> Iterator[tuple[Person, Contract]]:
        for person in people.values():
            if person.entity in self.settings.entities and person.key is not None:
                yield person, spoken(self.settings.entities[person.entity])

    @staticmethod
    def _fields(kind: str, ask: Ask, person: Person, contract: Contract) -> dict[str, Any]:
        found = wanted(kind, ask, contract)
        objected = own_field("no_marketing")
        if kind == "opt_in" and not ask.scope and person.fields.get(objected):
            found[objected] = False  # a yes to all marketing takes the objection to marketing back
        return found

    def _named(self, request: Request, messages: list[dict[str, Any]], first: int = 0) -> None:
        from tidings.sources.inbox import Named

        micros = int(datetime.now(UTC).timestamp() * 1_000_000)
        for number, one in enumerate(messages, first):
            own = {"id": micros + number, "event": f"{request.id}-{number}", "txid": request.id} | one
            body = json.dumps({"table": SOURCE, "micros": micros, "after": own}, ensure_ascii=False)
            self._said.append(Named(body, f"{ASK}{request.id}:{number}", micros))

    def hand_over(self) -> None:
        """Messages to the flow, on the disk; the steps that speak of them are committed after it."""
        from tidings.sources.inbox import accept

        if self._said:
            accept(self.settings.data_path / "inbox" / SOURCE, self.settings.keyring, self._said)
        self._said = []

    def journaled(self, row: Row) -> Iterator[Row]:
        """What one of our messages became: whoever is told of it must answer."""
        from tidings.gate.decisions import decided_in

        request = self.book.requests.get(row["causation"] or "")
        if request is None or not request.open or any(p.event_id == row["event_id"] for p in request.parts.values()):
            return
        decided = decided_in(self.erasing.store.decisions).recipients(row)
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


def _erase(person: Person) -> dict[str, Any]:
    return {"entity": person.entity, "op": "erase", "key": person.key, "before": None, "after": None}


def _review() -> dict[str, Any]:
    return {
        "recipient": REVIEW,
        "way": TASK,
        "event_id": "",
        "kid": None,
        "tag": None,
        "sealed": None,
        "deadline": None,
    }
