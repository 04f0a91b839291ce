"""After a run no planted e-mail, phone or card number stands in clear in anything we wrote."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "recovery"))

from small import Small, small

EMAIL = "very.unusual.person@planted.example"
PHONE = "+14155550177"
CARD = "4111111111111111"
BROKEN = "broken.line.person@planted.example"


def forms(text: str) -> list[bytes]:
    """How a value could stand in a file: as it is, in upper case, in another encoding."""
    raw = text.encode()
    return [raw, raw.upper(), text.encode("utf-16-le"), base64.b64encode(raw).rstrip(b"=")[:-2], raw.hex().encode()]


def planted() -> list[str]:
    """Messages with the planted values in every place a value can be: images, keys, free text, a broken line."""
    source = {"connector": "postgresql", "schema": "public", "table": "customers", "snapshot": "false", "txId": 9}
    lines = []
    for number, note in enumerate(("first", f"card {CARD[:4]} {CARD[4:8]} {CARD[8:12]} {CARD[12:]} on file"), 1):
        row = {"id": 901, "email": EMAIL, "phone": PHONE, "tier": f"t{number}", "note": note, "card": int(CARD)}
        lsn = 90_000_000 + number
        where = source | {
            "ts_us": 1_772_443_000_000_000 + number,
            "lsn": lsn,
            "sequence": json.dumps([str(lsn), str(lsn)]),
        }
        value = {"before": None, "after": row, "source": where, "op": "c" if number == 1 else "u", "ts_ms": 1}
        lines.append(json.dumps({"topic": "crm.public.customers", "key": {"id": 901}, "value": value}))
    return [*lines, '{"topic": "crm.public.customers", "key": {"id": 1}, "value": {"after": {"email": "' + BROKEN]


def values(path: Path) -> Iterator[bytes]:
    """Every text and byte string of a Parquet file, and what its footer says of them."""
    found = pq.ParquetFile(path)
    yield repr(found.metadata.to_dict()).encode()
    yield repr(found.read().to_pylist()).encode()


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    with small(tmp_path_factory.mktemp("clear")) as one:
        one.world.round()
        one.world.publish("crm", planted())
        one.finish()
        yield one


def test_nothing_of_the_planted_person_is_on_disk(ran: Small) -> None:
    leaks = []
    files = [path for path in ran.data.rglob("*") if path.is_file()]
    assert len(files) > 20
    for path in files:
        found = [path.read_bytes(), str(path).encode(), *(values(path) if path.suffix == ".parquet" else ())]
        for name, text in (("e-mail", EMAIL), ("phone", PHONE), ("card", CARD), ("quarantined e-mail", BROKEN)):
            if any(form in piece for form in forms(text) for piece in found):
                leaks.append(f"{name} in {path.relative_to(ran.data)}")
    assert leaks == []


def test_the_scan_would_see_it(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"..." + EMAIL.encode() + b"...")
    assert any(form in (tmp_path / "x").read_bytes() for form in forms(EMAIL))


def test_the_person_is_found_all_the_same(ran: Small) -> None:
    from tidings.report.people import events_of, tags_of

    settings, store = ran.settings, ran.store
    rows = events_of(settings, store, tags_of(settings, store, EMAIL.upper()))
    assert {row["change_type"] for row in rows} >= {"insert", "tier"}
    images = [row["data"]["after"] for row in rows]
    assert all(image["email"] == EMAIL for image in images)
    assert not any(CARD in json.dumps(image).replace(" ", "") for image in images)
    assert any("card_masked" in row["flags"] for row in rows)
