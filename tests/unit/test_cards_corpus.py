"""Messages without a card: how often each kind of number is taken for one, against what docs/cards.md says.

`pytest -s tests/unit/test_cards_corpus.py` prints the table.
"""

from __future__ import annotations

import json
import random
import re
import uuid
from collections.abc import Callable
from pathlib import Path

from tidings.seal.cards import mask_text

DOCUMENT = Path(__file__).parents[2] / "docs" / "cards.md"
MESSAGES = 4000
START = 1_700_000_000  # autumn 2023; ids and times spread over the ten years from there
TEN_YEARS = 315_360_000


def _digits(dice: random.Random, count: int) -> str:
    return "".join(dice.choices("0123456789", k=count))


def _seconds(dice: random.Random) -> int:
    return START + dice.randrange(TEN_YEARS)


def _snowflake(dice: random.Random) -> int:
    """Milliseconds since 2010-11-04, then 22 bits of machine and sequence."""
    return (_seconds(dice) * 1000 + dice.randrange(1000) - 1_288_834_974_657) << 22 | dice.randrange(1 << 22)


def _imei(dice: random.Random) -> str:
    body = dice.choice(("35", "86")) + _digits(dice, 12)
    return next(body + d for d in "0123456789" if _luhn(body + d))


def _luhn(digits: str) -> bool:
    doubled = [int(d) * 2 if place % 2 else int(d) for place, d in enumerate(reversed(digits))]
    return sum(d - 9 if d > 9 else d for d in doubled) % 10 == 0


def _iban(dice: random.Random) -> str:
    body = _digits(dice, 18)
    check = 98 - int(body + "131400") % 97
    return " ".join(re.findall(".{1,4}", f"DE{check:02d}{body}"))


KINDS: dict[str, Callable[[random.Random], object]] = {
    "snowflake id, number": _snowflake,
    "snowflake id, text": lambda dice: str(_snowflake(dice)),
    "epoch microseconds, number": lambda dice: _seconds(dice) * 1_000_000 + dice.randrange(1_000_000),
    "epoch microseconds, text": lambda dice: str(_seconds(dice) * 1_000_000 + dice.randrange(1_000_000)),
    "random 16-digit id, number": lambda dice: dice.randrange(10**15, 10**16),
    "random 16-digit id, text": lambda dice: str(dice.randrange(10**15, 10**16)),
    "order number (day and sequence), text": lambda dice: f"2026{dice.randint(1, 12):02d}{dice.randint(1, 28):02d}{dice.randrange(10**8):08d}",
    "IMEI": _imei,
    "tracking number, 12 digits": lambda dice: _digits(dice, 12),
    "tracking number, 22 digits": lambda dice: "94" + _digits(dice, 20),
    "UUID": lambda dice: str(uuid.UUID(int=dice.getrandbits(128), version=4)),
    "phone, E.164": lambda dice: f"+1{dice.randrange(2 * 10**9, 10**10)}",
    "German IBAN, in fours": _iban,
    "date and time": lambda dice: f"2026-{dice.randint(1, 12):02d}-{dice.randint(1, 28):02d} {dice.randint(0, 23):02d}:{dice.randint(0, 59):02d}:{dice.randint(0, 59):02d}.{dice.randrange(10**6):06d}",
    "latitude and longitude": lambda dice: f"{dice.uniform(-90, 90):.6f},{dice.uniform(-180, 180):.6f}",
}  # fmt: skip


def rates() -> dict[str, float]:
    """Kind → share of messages that are flagged, in percent."""
    dice = random.Random(16)
    found = {}
    for kind, make in KINDS.items():
        texts = [json.dumps({"id": make(dice), "name": "somebody", "n": n}) for n in range(MESSAGES)]
        found[kind] = 100 * sum(mask_text(text)[1] for text in texts) / MESSAGES
    return found


def documented() -> dict[str, float]:
    """Kind → at most this share, from the page."""
    rows = re.findall(r"^\| ([^|]+) \| ([0-9.]+) % \|$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    return {kind: float(share) for kind, share in rows}


def test_no_kind_is_flagged_more_often_than_the_page_says() -> None:
    found, said = rates(), documented()
    for kind, share in found.items():
        print(f"| {kind} | {share:.1f} % |")
    assert said.keys() == found.keys()
    assert {kind: share for kind, share in found.items() if share > said[kind]} == {}
    # A page that promises far less than is kept would say nothing.
    assert {kind: share for kind, share in found.items() if said[kind] > max(2 * share, share + 1)} == {}
