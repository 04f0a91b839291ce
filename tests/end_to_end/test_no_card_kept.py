"""Hostile messages of two dialects: while the operator runs and afterwards no card number is in any file, log or sealed value of ours."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import sys
import threading
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "recovery"))

from small import Small, small

# Published test numbers of the schemes; each stands in the messages in one spelling only.
VISA, MASTER, AMEX, DISCOVER, JCB, DINERS, UNION = CARDS = (
    "4012888888881881", "5555555555554444", "378282246310005", "6011000990139424", "3530111333300000", "30569309025904", "6200000000000005",
)  # fmt: skip
MAIL = "card.holder@planted.example"


def fullwidth(digits: str) -> str:
    return digits.translate({ord("0") + n: 0xFF10 + n for n in range(10)})


def escaped(digits: str) -> str:
    """As JSON escapes of mathematical digits, outside the first plane."""
    return "".join(f"\\ud835\\u{0xDFCE + int(d):x}" for d in digits)


def rows() -> list[dict[str, Any]]:
    """Images: text with gaps, another script, a number, deep inside, as a name, in a text that is JSON itself."""
    return [
        {"note": f"card {VISA[:4]} {VISA[4:8]} - {VISA[8:12]}\n{VISA[12:]} by 12/29, order 77"},
        {"note": fullwidth(MASTER), "amount": int(AMEX)},
        {"deep": [{"er": {"est": "\u200b".join(DISCOVER)}}], UNION: "a name"},
        {"raw": json.dumps({"pan": DINERS, "cvv": "737"})},
    ]


def messages() -> list[str]:
    made = []
    for number, more in enumerate(rows(), 1):
        lsn = 95_000_000 + number
        after = {"id": 955, "email": MAIL, "tier": f"t{number}", **more, "big": "@power", "odd": "@escaped"}
        source = {
            "connector": "postgresql",
            "schema": "public",
            "table": "customers",
            "snapshot": "false",
            "txId": number,
        }
        source |= {"ts_us": 1_772_443_000_000_000 + number, "lsn": lsn, "sequence": json.dumps([str(lsn), str(lsn)])}
        value = {"before": None, "after": after, "source": source, "op": "c" if number == 1 else "u", "ts_ms": 1}
        made.append(json.dumps({"topic": "crm.public.customers", "key": {"id": 955}, "value": value}))
    by_card = made[0].replace('"id": 955', f'"id": "{VISA}"')
    elsewhere = made[1].replace('"customers"', f'"t{MASTER}"')
    broken = made[2][: len(made[2]) // 2]
    spelled = [text.replace('"@power"', "3.5301113333e15").replace("@escaped", escaped(AMEX)) for text in made]
    return [
        *spelled,
        by_card,
        elsewhere,
        broken,
        f"<pay><card>{DISCOVER[:4]}-{DISCOVER[4:]}</card></pay>",
        f"paid {UNION}",
    ]


def hook() -> str:
    headers = {"X-Shopify-Topic": "customers/create", "X-Shopify-Shop-Domain": "small.myshopify.com"}
    headers |= {"X-Shopify-Event-Id": f"event {MASTER}", "X-Shopify-Triggered-At": "2026-03-02T09:16:05Z"}
    body = {"id": 77, "email": MAIL, "note": f"{VISA[:4]}.{VISA[4:8]}.{VISA[8:12]}.{VISA[12:]}", "tags": [DINERS]}
    return json.dumps({"headers": headers, "body": body | {"updated_at": "2026-03-02T09:16:05Z"}})


def digits(text: str) -> str:
    """The digits of a text, whatever their script and whatever stands between them."""
    plain = re.sub(r"\\+u([0-9a-fA-F]{4})", lambda m: chr(int(m[1], 16)), text)
    plain = plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return re.sub("[^0-9]", "", "".join(str(unicodedata.decimal(c, c)) for c in plain))


def forms(card: str) -> list[bytes]:
    """How a card could stand in bytes: plain, grouped, backwards, in another encoding, inside base64 wherever it begins."""
    raw = card.encode()
    grouped = [sign.join(re.findall(".{1,4}", card)) for sign in (" ", "-", ".")]
    inside = [base64.b64encode(b"x" * shift + raw)[4 if shift else 0 : -4] for shift in range(3)]
    return [raw, raw[::-1], raw.hex().encode(), card.encode("utf-16-le"), fullwidth(card).encode(), *inside] + [
        text.encode() for text in grouped
    ]


def contents(path: Path) -> Iterator[bytes]:
    """A file's bytes, and what they are when they are unpacked."""
    yield str(path).encode()
    try:
        raw = path.read_bytes()
    except OSError:
        return  # gone while we looked
    yield raw
    if raw[:2] == b"\x1f\x8b":
        yield gzip.decompress(raw)
    if raw[:4] == b"\x28\xb5\x2f\xfd":
        yield pa.input_stream(pa.py_buffer(raw), compression="zstd").read()
    if raw[:4] == b"PAR1" == raw[-4:]:
        found = pq.ParquetFile(pa.BufferReader(raw))
        yield repr(found.metadata.to_dict()).encode()
        yield repr(found.read().to_pylist()).encode()


def files(folder: Path) -> Iterator[Path]:
    """Every file below; what vanishes meanwhile is no matter."""
    for home, _, names in os.walk(folder):
        yield from (Path(home) / name for name in names)


def leaks(folder: Path) -> set[str]:
    wanted = [(card, form) for card in CARDS for form in forms(card)]
    return {
        f"{card} in {path.name}"
        for path in files(folder)
        for piece in contents(path)
        for card, form in wanted
        if form in piece
    }


class Watch(threading.Thread):
    """Looks through Spark's scratch files as long as they are there."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self.seen, self.found, self.over = folder, set[str](), set[str](), threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.2):
            self.seen |= {path.name for path in self.folder.glob("*")}
            self.found |= leaks(self.folder)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Small, Watch, str]]:
    with small(tmp_path_factory.mktemp("cards")) as one:
        one.world.publish("crm", messages())
        one.world.publish("shop", [hook()])
        watch = Watch(one.data / "spark")
        watch.start()
        process = one.start("--until-idle")
        said = process.communicate(timeout=600)[1]
        watch.over.set()
        watch.join()
        assert process.returncode == 0, said[-2000:]
        yield one, watch, said


def test_no_card_is_on_disk_or_in_the_log(ran: tuple[Small, Watch, str]) -> None:
    one, watch, said = ran
    assert leaks(one.data) == set()
    assert watch.found == set()
    assert any(name.startswith("blockmgr-") for name in watch.seen)  # Spark's shuffle and spill files would stand here
    assert not any(form.decode("latin-1") in said for card in CARDS for form in forms(card))


def test_no_sealed_value_holds_one(ran: tuple[Small, Watch, str]) -> None:
    """What is sealed is opened: a cipher hides a card from this test, not from whoever has the key."""
    from tidings.report.people import events_of, tags_of
    from tidings.verbs.quarantine import body_of

    one, _, _ = ran
    settings, store = one.settings, one.store
    events = events_of(settings, store, tags_of(settings, store, MAIL))
    refused = store.arrow("quarantine").to_pylist()
    opened = [json.dumps(event["data"]) for event in events]
    opened += [body_of(settings.keyring, row).decode() for row in refused]
    assert len(events) >= 4
    assert all("card_masked" in event["flags"] for event in events)
    assert {"card_in_key", "card_in_position", "unknown_table"} <= {row["code"] for row in refused}
    assert [text for text in opened if any(card in digits(text) for card in CARDS)] == []
    assert not any("737" in text for text in opened)


def test_what_subscribers_were_told_holds_none(ran: tuple[Small, Watch, str]) -> None:
    one, _, _ = ran
    told = one.book.read_text()
    assert MAIL in told
    assert not any(card in digits(line) for line in told.splitlines() for card in CARDS)


def test_the_look_sees_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "x.gz").write_bytes(gzip.compress(VISA.encode()))
    (tmp_path / "y").write_bytes(b"ab" + base64.b64encode(b"?" + MASTER.encode() + b"?"))
    pq.write_table(pa.table({"a": ["4012-8888-8888-1881"]}), tmp_path / "z.parquet", compression="snappy")
    assert {text.rpartition(" ")[2] for text in leaks(tmp_path)} == {"x.gz", "y", "z.parquet"}
    assert all(any(card in digits(text) for text in [*messages(), hook()]) for card in CARDS if card != JCB)
