"""A shop with hundreds of people in two systems, told by three subscribers: what they are known by, what is said of them, what breaks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))
from lane_stage import operator

PEOPLE, STAY = 165, 15  # the last of them stay
MOVED, MERGED, PARTNER, REFUSED = (
    3,
    40,
    41,
    7,
)  # every third has another e-mail now; 40 became 41; every seventh is refused by beta
CUSTOMER = """\
kind: customer
version: '1'
key: [id]
identifiers: {email: email, phone: phone, card: loyalty}
fields:
  email: {type: email, normalise: email, class: personal}
  phone: {type: phone, normalise: phone, class: personal}
  card: {type: account, class: personal}
  name: {type: preference, class: personal}
  merged_into: {type: identity_merge, class: internal}
"""
CONTACT = """\
kind: contact
version: '1'
key: [Id]
identifiers: {Email: email, Phone: phone}
fields:
  Email: {type: email, normalise: email, class: personal}
  Phone: {type: phone, normalise: phone, class: personal}
  LastName: {type: preference, class: personal}
"""
CRM = "kind: files\npath: drop/crm\ndialect: debezium_postgresql\nentities: {public.customers: customer}\nbanner: shop\nafter: archive\n"
SALES = "kind: files\npath: drop/sales\ndialect: salesforce_cdc\nentities: {Contact: contact}\nbanner: shop\n"  # kept where it was read
DAY = 1_790_000_000_000


@dataclass(frozen=True)
class Somebody:
    """One person as two systems write them."""

    number: int

    @property
    def id(self) -> str:
        return f"KD-{70_000 + self.number}"

    @property
    def contact(self) -> str:
        return f"003Rj0000{self.number:06d}IAL"

    @property
    def old_email(self) -> str:
        return f"Früher.Quill{self.number}@planted-{self.number}.example"

    @property
    def email(self) -> str:
        return f"Zoë.Quill+{self.number}@planted-{self.number}.example" if self.moved else self.old_email

    @property
    def phone(self) -> str:
        return f"+1415556{self.number:04d}"

    @property
    def card(self) -> str:
        return f"LC {8_400_000 + self.number}-{self.number % 10}"

    @property
    def name(self) -> str:
        return f"Ysolde-{self.number:04d} Tängelmann"

    @property
    def married(self) -> str:
        return f"Ysolde-{self.number:04d} von Überall"

    @property
    def moved(self) -> bool:
        return self.number % MOVED == 0

    @property
    def in_sales(self) -> bool:
        return self.number != PARTNER

    @property
    def dialled(self) -> str:
        """The number as people at home write it."""
        return f"({self.phone[2:5]}) {self.phone[5:8]}-{self.phone[8:]}"

    def records(self) -> tuple[str, ...]:
        return (f"customer:{self.id}", f"contact:{self.contact}")[: 1 + self.in_sales]

    def known_by(self) -> set[str]:
        """Everything that a scan must not find."""
        own = {self.old_email, self.email, self.phone, self.card, self.name, self.id}
        return own | ({self.married, self.contact} if self.in_sales else set())


def everybody() -> list[Somebody]:
    return [Somebody(number) for number in range(PEOPLE)]


def leaving() -> list[Somebody]:
    return everybody()[: PEOPLE - STAY]


def staying() -> list[Somebody]:
    return everybody()[PEOPLE - STAY :]


def shop(root: Path, urls: Mapping[str, str]) -> Path:
    operator(root, urls)
    (root / "sources/crm.yaml").write_text(CRM)
    (root / "sources/sales.yaml").write_text(SALES)
    (root / "entities/customer.yaml").write_text(CUSTOMER)
    (root / "entities/contact.yaml").write_text(CONTACT)
    path = root / "tidings.yaml"
    path.write_text(path.read_text() + "rights: {by_hand: [{name: cleanroom, about: a clean room}]}\n")
    for name in ("crm", "sales"):
        (root / "drop" / name).mkdir(parents=True)
    return root


def put(root: Path, source: str, name: str, lines: Iterator[str]) -> None:
    hidden = root / "drop" / source / f".{name}.part"
    hidden.write_text("\n".join(lines) + "\n")
    hidden.rename(hidden.with_name(f"{name}.jsonl"))


def row(one: Somebody, **more: Any) -> dict[str, Any]:
    said = {"id": one.id, "email": one.old_email, "phone": one.dialled, "card": one.card, "name": one.name}
    return {**said, "merged_into": None, **more}


def change(number: int, op: str, before: Any, after: Any) -> str:
    place = {"schema": "public", "table": "customers", "lsn": number, "txId": number, "ts_ms": DAY + number}
    source = place | {"connector": "postgresql", "db": "shop", "snapshot": "false"}
    return json.dumps({"before": before, "after": after, "op": op, "ts_ms": DAY + number, "source": source})


def first_day() -> Iterator[str]:
    """Everybody comes; some lines are cut off, each in another way of naming somebody."""
    for one in everybody():
        yield change(1000 + one.number, "c", None, row(one))
    for one in everybody()[::5]:
        yield '{"before": null, "after": {"note": "' + (one.old_email.upper(), one.dialled, one.card)[one.number % 3]
        yield '{"after": {"id": "' + one.id + '", "name": "' + one.name


def second_day() -> Iterator[str]:
    """Every third has another address; one record becomes another."""
    for one in everybody():
        if one.moved:
            yield change(2000 + one.number, "u", row(one), row(one, email=one.email))
    gone, into = Somebody(MERGED), Somebody(PARTNER)
    yield change(2900, "u", row(gone), row(gone, merged_into=into.id))


def contacts() -> Iterator[str]:
    """The other system tells whole records first, then only what changed: the name, with nothing else to know the person by."""
    for number, one in enumerate(one for one in everybody() if one.in_sales):
        whole = {"LastName": one.name, "Email": one.email, "Phone": one.phone}
        yield _contact(one, number, "CREATE", whole)
        yield _contact(one, 5000 + number, "UPDATE", {"LastName": one.married})


def _contact(one: Somebody, number: int, kind: str, fields: Mapping[str, str]) -> str:
    header = {"entityName": "Contact", "recordIds": [one.contact], "changeType": kind, "commitTimestamp": DAY + number}
    payload = {"ChangeEventHeader": header | {"transactionKey": f"t{number}", "nulledFields": []}, **fields}
    return json.dumps({"data": {"payload": payload, "event": {"replayId": 10_000 + number}}})


def asked(people: list[Somebody]) -> str:
    """The list of erasures as an operator brings it: by the address of today, one line for a person."""
    lines = [f"erasure,{one.email},verified,case-{one.number}" for one in people if one.number != PARTNER]
    return "\n".join(["kind,email,assurance,reference", *lines]) + "\n"
