"""A throw-away operator for a measurement: one file source, many subscribers, many rules, messages made from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from tidings.seal.keyring import new_master
from tidings.settings import Settings, load

RULES, STARTER = 60, 29
CONTRACT = """\
kind: customer
version: "1"
key: [id]
identifiers: {email: email}
fields:
  email: {type: email, normalise: email, class: personal}
  phone: {type: phone, normalise: phone, class: personal}
  address: {type: address, normalise: text, class: personal}
  tier: {type: tier, class: internal}
  marketing_consent: {type: consent, class: internal, consent: {class: marketing, channel: email, purpose: marketing}}
"""
# Engine → a policy that looks at what ours look at, and the document that puts it in force.
ENGINES: dict[str, tuple[str, str]] = {}
ROLES = ("service", "marketing", "ads", "analytics", "loyalty", "warehouse")


def operator(
    root: Path,
    subscribers: int,
    *,
    url: str = "http://127.0.0.1:9",
    images: str = "full",
    rules: int = RULES,
    engine: str = "",
) -> Settings:
    """An operator's folder under `root`, ready to run."""
    for name in ("sources", "entities", "subscribers", "policy", "secrets", "drop/crm"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tidings.yaml").write_text(
        "tenant: bench\nbanners: [{id: shop, locale: en-US, routing_hint: us, locations: [{id: online}]}]\njurisdiction: US-CA\n"
        "master_key: file:master.key\nnetwork: {allow: [127.0.0.0/8]}\nrun: {batch_files: 4}\n"
    )
    (root / "secrets" / "master.key").write_text(new_master().hex())
    (root / "secrets" / "hook.key").write_text("whsec_" + "A" * 32)
    for path in (root / "secrets").iterdir():
        path.chmod(0o600)
    (root / "sources" / "crm.yaml").write_text(
        "kind: files\npath: drop/crm\ndialect: debezium_postgresql\nentities: {public.customers: customer}\n"
        f"banner: shop\nlocation: online\nafter: delete\nimages: {images}\n"
    )
    (root / "entities" / "customer.yaml").write_text(CONTRACT)
    for number in range(subscribers):
        role = ROLES[number % len(ROLES)]
        (root / "subscribers" / f"s{number:02d}.yaml").write_text(
            f"manifest: webhook\nurl: {url}/s{number:02d}\nsigning_secret: file:hook.key\nrole: {role}\nregion: US\ndpa: true\n"
            'types: ["*"]\nentities: [customer]\n'
        )
    (root / "policy" / "rules.yaml").write_text(_rules(rules))
    if engine:
        policy, engines = ENGINES[engine]
        (root / "policy" / f"gate.{engine}").write_text(policy)
        (root / "policy" / "engine.yaml").write_text(engines)
    return load(root)


def _rules(count: int) -> str:
    """The starter bundle and enough rules of our own to make so many; none at all for none."""
    if not count:
        return 'version: "bench"\nrules: []\n'
    lines = ['version: "bench"', "include: starter", "rules:"]
    for number in range(count - STARTER):
        lines += [
            f"  - id: bench-{number}",
            "    anchor: governance",
            "    scope: {recipient: role, is: analytics}",
            f"    when: {{all: [{{fact: change_type, is: tier}}, {{fact: banner, is: never-{number}}}]}}",
            '    effect: {deny: "never happens"}',
            f"    examples: [{{given: {{change_type: tier, banner: never-{number}}}, to: {{role: analytics}}, gives: deny}}]",
        ]
    return "\n".join(lines) + "\n"


def messages(count: int, subjects: int, *, seed: int = 1, start: int = 0) -> Iterator[str]:
    """Debezium updates with whole images, one changed field each, in commit order."""
    rng = random.Random(seed + start)
    for number in range(start, start + count):
        who, lsn, micros = rng.randrange(subjects), 10_000_000 + number * 8, 1_772_443_000_000_000 + number * 1000
        before = {
            "id": who,
            "first_name": "Maya",
            "last_name": f"Okafor{who}",
            "email": f"c{who}.{number}@example.com",
            "phone": f"+1415555{who % 10000:04d}",
            "address": f"{who} Alder St, Oakland, CA 94607, US",
            "tier": ("silver", "gold", "basic")[number % 3],
            "marketing_consent": who % 3 != 0,
            "bio": "Trail runner",
        }
        after = {**before, **({"email": f"c{who}.{number + 1}@example.net"} if number % 4 else {"tier": "platinum"})}
        source = {
            "version": "3.1.2.Final", "connector": "postgresql", "name": "crm", "ts_ms": micros // 1000, "snapshot": "false",
            "db": "crm", "sequence": f'["{lsn - 4}", "{lsn}"]', "ts_us": micros, "ts_ns": micros * 1000, "schema": "public",
            "table": "customers", "txId": 500 + number, "lsn": lsn, "xmin": None,
        }  # fmt: skip
        value = {
            "before": before,
            "after": after,
            "source": source,
            "transaction": None,
            "op": "u",
            "ts_ms": micros // 1000 + 700,
        }
        yield json.dumps({"topic": "crm.public.customers", "key": {"id": who}, "value": value})


def drop(folder: Path, lines: Iterator[str], per_file: int) -> int:
    """Lines as files in a drop folder; returns how many bytes."""
    size = number = 0
    batch: list[str] = []
    for line in lines:
        batch.append(line)
        if len(batch) == per_file:
            size += _write(folder / f"{number:06d}.jsonl", batch)
            number, batch = number + 1, []
    return size + (_write(folder / f"{number:06d}.jsonl", batch) if batch else 0)


def _write(path: Path, lines: list[str]) -> int:
    temporary = path.with_suffix(".part")
    temporary.write_text("\n".join(lines) + "\n")
    temporary.rename(path)
    return path.stat().st_size
