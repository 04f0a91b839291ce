"""What happens in a round: every change type at least once, and the acts a demo points at."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from .world import (
    CHANNELS,
    HEROINE,
    SEGMENTS,
    SHOPIFY_IDS,
    STORES,
    TEST_CARD,
    TIERS,
    Act,
    Row,
    World,
    customer,
    shopper,
)


def play(world: World, number: int) -> list[Act]:
    """Everything that happens in round `number`, each source in its commit order; the world moves on."""
    rng = random.Random(f"{world.seed}/round/{number}")
    return [
        *customers(world, rng, number),
        *loyalty(world, rng, number),
        *shop(world, number),
        *things(world, rng, number),
        *legacy(number),
    ]


@dataclass
class Pool:
    """Hands out CRM customers, each once a round, so that what is expected of a subject stays readable."""

    world: World
    rng: random.Random
    used: set[int] = field(default_factory=lambda: {HEROINE, HEROINE + 1})

    def take(self, wanted: Callable[[Row], bool] = lambda row: True) -> int:
        free = [n for n, row in self.world.crm.items() if n not in self.used and live(row) and wanted(row)]
        number = self.rng.choice(sorted(free))
        self.used.add(number)
        return number


def live(row: Row) -> bool:
    return row["deleted_at"] is None and row["merged_into"] is None


def other(rng: random.Random, values: tuple[str, ...], now: str) -> str:
    return rng.choice([value for value in values if value != now])


def customers(world: World, rng: random.Random, number: int) -> Iterator[Act]:
    """The CRM's day: every change type at least once, and the acts a demo points at."""
    pool = Pool(world, rng)
    yield world.change(HEROINE, "email", "heroine", email=heroine_email(number))
    for _ in range(6):
        who = pool.take()
        yield world.change(who, "phone", phone=f"+1628555{100 + (who + number) % 100:04d}")
        yield world.change(
            pool.take(), "address", address=f"{number}-{rng.randrange(1, 999)} New Rd, Oakland, CA 94601, US"
        )
        who = pool.take()
        yield world.change(who, "tier", tier=other(rng, TIERS, world.crm[who]["tier"]))
        who = pool.take()
        yield world.change(who, "segment", segment=other(rng, SEGMENTS, world.crm[who]["segment"]))
    for _ in range(3):
        who = pool.take()
        yield world.change(
            who,
            "email phone",
            "two_at_once",
            email=f"c{who}.r{number}@example.net",
            phone=f"+1628555{(who + number) % 100 + 100:04d}",
        )
        who = pool.take()
        yield world.change(
            who, "preference", preferred_channel=other(rng, CHANNELS, world.crm[who]["preferred_channel"])
        )
        who = pool.take()
        yield world.change(
            who, "subscription", subscription=other(rng, ("none", "monthly", "yearly"), world.crm[who]["subscription"])
        )
        yield world.change(pool.take(), "cohort", cohort=f"2026-1{number % 3}-r{number}")
        yield world.change(pool.take(), "household", household_id=90_000 + number * 10 + rng.randrange(9))
    yield from permissions(world, pool, number)
    yield from lifecycle(world, pool, number)


def permissions(world: World, pool: Pool, number: int) -> Iterator[Act]:
    """Consent given and withdrawn, suppressions, payment methods, and people we may not market to."""
    for _ in range(5):
        who = pool.take(lambda row: bool(row["marketing_consent"]))
        yield world.change(who, "consent", "opt_out", marketing_consent=False)
    for _ in range(2):
        who = pool.take(lambda row: not row["marketing_consent"])
        yield world.change(who, "consent", "opt_in", marketing_consent=True)
        who = pool.take(lambda row: bool(row["sms_consent"]))
        yield world.change(who, "consent", "sms_opt_out", sms_consent=False)
        yield world.change(pool.take(lambda row: not row["suppressed"]), "suppression", "suppressed", suppressed=True)
    for _ in range(4):
        who = pool.take(lambda row: not row["marketing_consent"])
        yield world.change(who, "email", "no_consent", email=f"c{who}.quiet{number}@example.net")
    yield world.change(pool.take(), "payment_method", payment_method=f"tok_{pool.rng.randrange(16**12):012x}")
    # Somebody typed a card number where a token belongs; the field still changes, the number must go nowhere.
    yield world.change(pool.take(), "payment_method", "card", payment_method=TEST_CARD)
    yield world.change(pool.take(), "account", account_status="locked")


def lifecycle(world: World, pool: Pool, number: int) -> Iterator[Act]:
    """Rows that come, go, come back, move and become one."""
    for n in range(5):
        who = 20_000 + number * 100 + n
        world.crm[who] = customer(who, pool.rng) | {"marketing_consent": n != 0}
        pool.used.add(who)
        yield Act("crm", "customers", "insert", {"id": who}, None, dict(world.crm[who]), ("insert",), "newcomer")
    who = pool.take()
    yield world.change(who, "soft_delete", "soft_delete", deleted_at="2026-11-15T10:00:00Z")
    yield world.change(who, "restore", "restore", deleted_at=None)
    yield world.change(pool.take(), "soft_delete", "soft_delete", deleted_at="2026-11-15T10:05:00Z")
    for _ in range(2):
        who = pool.take(lambda row: row["store_id"] != "nyc-01")
        yield world.change(who, "reparent", "reparent", store_id="nyc-01")
    kept, gone = pool.take(), pool.take()
    yield world.change(gone, "identity_merge", "merge", merged_into=kept)
    yield world.change(pool.take(), "identity_split", "split", split_from=kept)
    who = pool.take()
    yield world.change(who, "tier", "toast", tier=other(pool.rng, TIERS, world.crm[who]["tier"]))
    yield world.change(pool.take(), "update", "untyped", bio=f"Rewritten in round {number}")
    who = pool.take()
    yield world.change(who, "segment", "late", segment=other(pool.rng, SEGMENTS, world.crm[who]["segment"]))
    yield world.change(who, "segment", "newer", segment=other(pool.rng, SEGMENTS, world.crm[who]["segment"]))
    yield world.change(pool.take(), "phone", "clock_ahead", phone=f"+1917555{100 + number % 100:04d}")
    who = pool.take()
    yield Act("crm", "customers", "delete", {"id": who}, world.crm.pop(who), None, ("delete",), "delete")


def heroine_email(number: int) -> str:
    return "maya.o@example.net" if number == 1 else f"maya.o.{number}@example.net"


def loyalty(world: World, rng: random.Random, number: int) -> Iterator[Act]:
    """Points move for a dozen members; one is given another number, which is a rekey."""
    ordinary = sorted(n for n in world.members if n > HEROINE + 1)
    for who in rng.sample(ordinary, 12):
        yield world.move(
            "loyalty", "members", who, "loyalty_points", points=world.members[who]["points"] + rng.randrange(1, 500)
        )
    who = rng.choice(ordinary)
    row = world.members[who]
    yield world.move(
        "loyalty",
        "members",
        who,
        "loyalty_points tier",
        points=row["points"] + 5000,
        tier=other(rng, TIERS, row["tier"]),
    )
    old = rng.choice([n for n in ordinary if n != who])
    before, new = world.members.pop(old), old + 1_000_000 * number
    world.members[new] = before | {"id": new}
    yield Act("loyalty", "members", "update", {"id": new}, before, dict(world.members[new]), ("rekey",), "rekey")


def shop(world: World, number: int) -> Iterator[Act]:
    """Shopify says what is, never what was: the heroine again, an opt-out, a departure and a privacy request."""
    maya = SHOPIFY_IDS + HEROINE
    yield replace(world.move("shop", "shoppers", maya, "email", email=heroine_email(number)), case="heroine")
    ordinary = sorted(n for n in world.shoppers if n > maya + 1)
    quiet, tagged, gone, erased = (ordinary[(number * 5 + step) % len(ordinary)] for step in range(4))
    state = world.shoppers[quiet]["email_marketing_consent"]
    turned = "subscribed" if state["state"] != "subscribed" else "unsubscribed"
    yield world.move("shop", "shoppers", quiet, "consent", email_marketing_consent=state | {"state": turned})
    yield world.move("shop", "shoppers", tagged, "segment", tags=f"vip-{number}")
    for who, case in ((gone, "delete"), (erased, "redact")):
        yield Act("shop", "customers", "delete", {"id": who}, world.shoppers.pop(who), None, ("delete",), case)
    joined = SHOPIFY_IDS + 50_000 + number * 10
    for who in (joined, joined + 1):  # two newcomers replace the two who left
        world.shoppers[who] = shopper(customer(who - SHOPIFY_IDS, random.Random(who)))
        yield Act("shop", "customers", "insert", {"id": who}, None, dict(world.shoppers[who]), ("insert",), "newcomer")


def things(world: World, rng: random.Random, number: int) -> Iterator[Act]:
    """Stores, staff, suppliers and stock change too: the same flow, other subjects."""
    store = STORES[number % 4]
    yield world.move("crm", "stores", store, "preference", hours=f"{8 + number % 3}-{19 + number % 3}")
    yield world.move("crm", "stores", "dub-01", "phone", phone=f"+3531555{100 + number % 100:04d}")
    staff = sorted(world.places["employees"])
    mover, renamed = rng.sample(staff, 2)
    there = world.places["employees"][mover]["store_id"]
    yield world.move("crm", "employees", mover, "reparent", store_id=other(rng, STORES, there))
    yield world.move("crm", "employees", renamed, "email", email=f"e{renamed}.r{number}@example.com")
    firm = rng.choice(sorted(world.places["suppliers"]))
    yield world.move("crm", "suppliers", firm, "email", email=f"orders{number}.s{firm}@example.org")
    for key in rng.sample(sorted(world.places["inventory"]), 8):
        held = world.places["inventory"][key]["on_hand"]
        yield world.move("crm", "inventory", key, "update", on_hand=held + 2 * rng.randrange(1, 50))


def legacy(number: int) -> Iterator[Act]:
    """Three people of the point-of-sale system that nobody has dared to switch off, one per dialect it speaks."""
    for n in range(3):
        who = 50_000 + number * 10 + n
        row = {
            "id": who,
            "email": f"pos{who}@example.com",
            "phone": f"+1510555{100 + who % 100:04d}",
            "marketing_consent": n != 1,
            "sms_consent": False,
            "ads_consent": n == 0,
        }
        yield Act(
            "legacy", "customers", "insert", {"id": who}, None, row, ("insert",), ("mysql", "maxwell", "flattened")[n]
        )
