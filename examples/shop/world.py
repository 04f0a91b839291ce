"""The shop's people and things. Pure: the same seed makes the same world."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]

HEROINE = 1001
SHOPIFY_IDS = 706405506930370000  # beyond 2^53, as Shopify's are: a reader that uses doubles merges neighbours
CUSTOMERS = 200
SHOPPERS = 16
TEST_CARD = "4111 1111 1111 1111"  # the networks' published test number
STORES = ("online", "sf-01", "oak-01", "nyc-01", "outlet-online", "dub-01", "gal-01")
TIERS = ("bronze", "silver", "gold", "platinum")
SEGMENTS = ("new", "regular", "lapsing", "champion")
CHANNELS = ("email", "sms", "post")
# (country, locale, area code, postal form): published fictional number ranges only.
PLACES = (
    ("US", "en-US", "+1415555", "Oakland, CA 946{:02d}, US"),
    ("US", "en-US", "+1212555", "New York, NY 100{:02d}, US"),
)


@dataclass(frozen=True)
class Act:
    """One committed row change, before any dialect has written it down."""

    source: str
    table: str
    op: str  # insert | update | delete | snapshot
    key: Row
    before: Row | None
    after: Row | None
    types: tuple[str, ...]  # the change types a reader must find in it
    case: str = ""  # why this act is in the story, when it is there on purpose


def customer(number: int, rng: random.Random) -> Row:
    """One CRM row. The two named people are the samples'; everybody else is a number."""
    country, locale, area, city = PLACES[number % len(PLACES)]
    return {
        "id": number,
        "first_name": "Customer",
        "last_name": str(number),
        "email": f"c{number}@example.com",
        "phone": f"{area}{100 + number % 100:04d}",
        "address": f"{number} Example St, {city.format(number % 100)}",
        "country": country,
        "locale": locale,
        "store_id": STORES[number % 4],
        "tier": rng.choice(TIERS[:3]),
        "segment": rng.choice(SEGMENTS),
        "cohort": f"2026-{number % 9 + 1:02d}",
        "household_id": number // 3,
        "account_status": "active",
        "subscription": rng.choice(("none", "monthly", "yearly")),
        "preferred_channel": rng.choice(CHANNELS),
        "marketing_consent": rng.random() < 0.75,
        "sms_consent": rng.random() < 0.4,
        "ads_consent": rng.random() < 0.7,
        "suppressed": False,
        "payment_method": f"tok_{rng.randrange(16**12):012x}",
        "merged_into": None,
        "split_from": None,
        "deleted_at": None,
        "bio": "Trail runner",
    }


def named(row: Row) -> Row:
    """The two people every sample speaks of."""
    if row["id"] == HEROINE:
        maya = {
            "first_name": "Maya",
            "last_name": "Okafor",
            "email": "maya.okafor@example.com",
            "phone": "+14155550101",
        }
        return (
            row
            | maya
            | {
                "marketing_consent": True,
                "sms_consent": True,
                "ads_consent": True,
                "tier": "silver",
                "store_id": "sf-01",
            }
        )
    if row["id"] == HEROINE + 1:
        liam = {"first_name": "Liam", "last_name": "Byrne", "email": "liam.byrne@example.com", "phone": "+353855550102"}
        away = {"address": "4 Quay Rd, Galway, H91 AB12, IE", "country": "IE", "locale": "en-IE", "store_id": "gal-01"}
        return row | liam | away | {"marketing_consent": False, "tier": "gold"}
    return row


@dataclass
class World:
    """What every table holds now. `story.play` moves it on; a later round starts where the one before ended."""

    seed: int
    crm: dict[int, Row] = field(default_factory=dict)
    members: dict[int, Row] = field(default_factory=dict)
    shoppers: dict[int, Row] = field(default_factory=dict)
    places: dict[str, dict[Any, Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = random.Random(f"{self.seed}/world")
        for number in range(HEROINE, HEROINE + CUSTOMERS):
            self.crm[number] = named(customer(number, rng))
        for number in range(HEROINE, HEROINE + 60):
            self.members[number] = {
                "id": number,
                "points": rng.randrange(50, 5000),
                "tier": self.crm[number]["tier"],
                "active": 1,
            }
        for number in range(HEROINE, HEROINE + SHOPPERS):
            self.shoppers[SHOPIFY_IDS + number] = shopper(self.crm[number])
        self.places = furniture(rng)

    def snapshot(self) -> Iterator[Act]:
        """The first read of every table that is copied before it is followed."""
        for number, row in self.crm.items():
            yield Act("crm", "customers", "snapshot", {"id": number}, None, dict(row), ())
        for table, rows in self.places.items():
            for row in rows.values():
                yield Act("crm", table, "snapshot", key_of(table, row), None, dict(row), ())
        for number, row in self.members.items():
            yield Act("loyalty", "members", "snapshot", {"id": number}, None, dict(row), ())
        for number, row in self.shoppers.items():
            yield Act("shop", "customers", "insert", {"id": number}, None, dict(row), ("insert",))

    def change(self, number: int, types: str, case: str = "", **values: Any) -> Act:
        """One CRM customer changes; the row before is kept as PostgreSQL's full replica identity keeps it."""
        before = self.crm[number]
        after = before | values
        self.crm[number] = after
        return Act("crm", "customers", "update", {"id": number}, dict(before), dict(after), tuple(types.split()), case)

    def move(self, source: str, table: str, key: Any, types: str, **values: Any) -> Act:
        """The same for every other table."""
        rows = {"members": self.members, "shoppers": self.shoppers}.get(table) or self.places[table]
        before, after = rows[key], rows[key] | values
        rows[key] = after
        name = "customers" if table == "shoppers" else table
        return Act(source, name, "update", key_of(table, after), dict(before), dict(after), tuple(types.split()))


def key_of(table: str, row: Row) -> Row:
    return {"sku": row["sku"], "store_id": row["store_id"]} if table == "inventory" else {"id": row["id"]}


def shopper(row: Row) -> Row:
    """The same person as Shopify knows them: another id, no tier, consent as a state."""
    state = "subscribed" if row["marketing_consent"] else "not_subscribed"
    consent = {"state": state, "opt_in_level": "single_opt_in", "consent_updated_at": None}
    names = {name: row[name] for name in ("first_name", "last_name", "email", "phone")}
    return {
        "id": SHOPIFY_IDS + row["id"],
        **names,
        "email_marketing_consent": consent,
        "tags": row["segment"],
        "note": None,
    }


def furniture(rng: random.Random) -> dict[str, dict[Any, Row]]:
    """Stores, staff, suppliers and stock."""
    stores = {
        name: {
            "id": name,
            "address": f"{n} Market St",
            "phone": f"+1415555{180 + n:04d}",
            "hours": "9-18",
            "closed_at": None,
        }
        for n, name in enumerate(STORES, 1)
    }
    employees = {
        n: {"id": n, "name": f"Employee {n}", "email": f"e{n}@example.com", "store_id": STORES[n % 7], "role": "sales"}
        for n in range(1, 13)
    }
    suppliers = {
        n: {
            "id": n,
            "name": f"Supplier {n}",
            "email": f"s{n}@example.org",
            "phone": f"+1646555{110 + n:04d}",
            "account_status": "active",
        }
        for n in range(1, 6)
    }
    # The warehouse counts in its own units, well past what a double can hold.
    inventory = {
        (f"SKU-{n:03d}", STORES[n % 7]): {
            "sku": f"SKU-{n:03d}",
            "store_id": STORES[n % 7],
            "on_hand": 9_007_199_254_740_993 + rng.randrange(1000) * 2,
            "supplier_id": n % 5 + 1,
        }
        for n in range(1, 21)
    }
    return {"stores": stores, "employees": employees, "suppliers": suppliers, "inventory": inventory}
