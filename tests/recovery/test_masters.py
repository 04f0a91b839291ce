"""Two systems write one customer through `tidings run`: a held change waits for a person, over a crash, and goes or stays as told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small import CONTRACT, CRM, SUBSCRIBERS, Small, small
from warm import WarmJvm

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


def said(one: Small, *words: str) -> Any:
    """A verb's answer."""
    command = [sys.executable, "-m", "tidings.cli", *words, "-C", str(one.folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def write(one: Small, source: str, lsn: int, before: str | None, after: str) -> None:
    """One message: the customer's address changes from `before` to `after` in this system."""
    images = {"before": before and {"id": 1, "email": before}, "after": {"id": 1, "email": after}}
    place = {"connector": "postgresql", "schema": "public", "table": "customers", "lsn": lsn, "txId": lsn}
    place |= {"sequence": json.dumps([str(lsn), str(lsn)]), "ts_us": 1_772_443_000_000_000 + lsn, "snapshot": "false"}
    value = {"op": "u" if before else "c", **images, "source": place}
    one.world.publish(source, [json.dumps({"topic": "x.public.customers", "key": {"id": 1}, "value": value})])


def arrived(one: Small) -> dict[str, list[str]]:
    """Subscriber → the addresses it was told, in order."""
    found: dict[str, list[str]] = {name: [] for name in SUBSCRIBERS}
    for row in one.arrivals():
        found[row["endpoint"]].append(row["marker"])
    return found


def everybody(*addresses: str) -> dict[str, list[str]]:
    return {name: list(addresses) for name in SUBSCRIBERS}


def test_a_held_change_waits_for_a_person(tmp_path: Path, jvm: WarmJvm) -> None:
    with small(tmp_path, "crm", "shop", jvm=jvm) as one:
        masters = "masters: {sources: [crm, shop], on_conflict: hold}\n"
        (one.folder / "entities" / "customer.yaml").write_text(CONTRACT + masters)
        (one.folder / "entities" / "shopper.yaml").unlink()
        (one.folder / "sources" / "shop.yaml").write_text(CRM.replace("drop/crm", "drop/shop"))

        write(one, "crm", 100, None, "a@example.com")
        one.finish()
        write(one, "shop", 110, "a@example.com", "b@example.com")
        one.finish()
        write(one, "crm", 120, "a@example.com", "c@example.com")
        one.killed_at("emit.journal")
        one.finish()
        assert arrived(one) == everybody("a@example.com", "b@example.com")
        it_goes_out_when_it_is_kept(one)
        it_never_goes_out_when_it_is_dropped(one)
        assert said(one, "status", "--reconcile")["books"]["balanced"]


def it_goes_out_when_it_is_kept(one: Small) -> None:
    (waiting,) = said(one, "conflicts")
    assert (waiting["source"], waiting["against"], waiting["fields"]) == ("crm", ["shop"], ["email"])
    assert sorted(waiting["waiting"]) == sorted(SUBSCRIBERS)
    said(one, "conflicts", "resolve", waiting["event"], "--keep", "--by", "data office", "--why", "the signed form")
    one.finish()
    assert arrived(one) == everybody("a@example.com", "b@example.com", "c@example.com")
    assert said(one, "conflicts") == []


def it_never_goes_out_when_it_is_dropped(one: Small) -> None:
    """What was kept stands: a change on top of it is no dispute. One that had not seen it is."""
    write(one, "crm", 130, "c@example.com", "e@example.com")
    write(one, "shop", 130, "b@example.com", "f@example.com")
    one.finish()
    (waiting,) = said(one, "conflicts")
    assert (waiting["source"], waiting["against"]) == ("shop", ["crm"])
    said(one, "conflicts", "resolve", waiting["event"], "--drop", "--by", "data office", "--why", "a typing error")
    one.finish()
    assert arrived(one) == everybody("a@example.com", "b@example.com", "c@example.com", "e@example.com")
    assert [each["state"] for each in said(one, "conflicts", "list", "--all")] == ["kept", "dropped"]
    entries = [json.loads(entry) for entry in one.store.arrow("attempts", ["entry"])["entry"].to_pylist() if entry]
    resolved = [(e["outcome"], e["reason"]) for e in entries if e["kind"] == "conflict_resolved"]
    assert sorted(resolved) == [("drop", "a typing error (data office)"), ("keep", "the signed form (data office)")]
