"""How each of the shop's systems writes a change down. Field names are the vendors'; the times come from the caller."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from .world import HEROINE, SHOPIFY_IDS, Act, Row

Message = dict[str, Any]
STEP_US = 40_000  # time between two commits


def _iso(at_us: int, form: str = "%Y-%m-%dT%H:%M:%S.%fZ") -> str:
    return datetime.fromtimestamp(at_us / 1_000_000, UTC).strftime(form)


@dataclass
class _Log:
    """A log that ends at `at` microseconds and holds `length` commits; positions of a later round are higher."""

    round: int
    at: int
    length: int
    written: int = 0

    def tick(self) -> tuple[int, int]:
        """(number of this commit in the round, its time)"""
        self.written += 1
        return self.written, self.at - max(0, self.length - self.written) * STEP_US


class PostgresLog(_Log):
    """Debezium 3 for PostgreSQL, replica identity full."""

    def write(self, act: Act, ahead_s: int = 0, toast: bool = False) -> Message:
        number, at = self.tick()
        after = act.after
        if toast and after:  # the row's long text was not in the log; Debezium says so with a placeholder
            after = after | {"bio": "__debezium_unavailable_value"}
        op = {"insert": "c", "update": "u", "delete": "d", "snapshot": "r"}[act.op]
        value = {
            "before": None if toast else act.before,
            "after": after,
            "source": self._source(
                act.table, number, at + ahead_s * 1_000_000, "true" if act.op == "snapshot" else "false"
            ),
            "transaction": None,
            "op": op,
            "ts_ms": at // 1000 + 7,
            "ts_us": at + 7_000,
        }
        return {"topic": f"crm.public.{act.table}", "key": act.key, "value": value}

    def _source(self, table: str, number: int, at: int, snapshot: str) -> Row:
        lsn = self.round * 100_000_000 + number * 56
        return {
            "version": "3.1.2.Final",
            "connector": "postgresql",
            "name": "crm",
            "ts_ms": at // 1000,
            "snapshot": snapshot,
            "db": "crm",
            "sequence": f'["{lsn - 56}", "{lsn}"]',
            "ts_us": at,
            "ts_ns": at * 1000,
            "schema": "public",
            "table": table,
            "txId": self.round * 100_000 + number,
            "lsn": lsn,
            "xmin": None,
        }

    def tombstone(self, act: Act) -> Message:
        return {"topic": f"crm.public.{act.table}", "key": act.key, "value": None}

    def heartbeat(self) -> Message:
        return {"topic": "__debezium-heartbeat.crm", "key": {"serverName": "crm"}, "value": {"ts_ms": self.at // 1000}}

    def transaction(self) -> Message:
        name = f"{self.round * 100_000 + self.written}:{self.round * 100_000_000}"
        value = {"status": "BEGIN", "id": name, "ts_ms": self.at // 1000, "event_count": None, "data_collections": None}
        return {"topic": "crm.transaction", "key": {"id": name}, "value": value}


class MaxwellLog(_Log):
    """Maxwell: seconds, only the changed columns of the row before."""

    def write(self, act: Act) -> Message:
        number, at = self.tick()
        after = act.after or {}
        value: Row = {"database": "loyalty", "table": act.table, "type": act.op, "ts": at // 1_000_000}
        if act.op == "snapshot":
            value |= {"type": "bootstrap-insert", "data": after}
        else:
            xid = self.round * 100_000 + number
            value |= {"xid": xid, "commit": True, "position": f"binlog.{self.round:06d}:{4 + number * 300}"}
            value |= {
                "server_id": 23042,
                "thread_id": 108,
                "primary_key": list(act.key.values()),
                "primary_key_columns": list(act.key),
            }
            value |= {
                "data": after,
                "old": {name: old for name, old in (act.before or {}).items() if after.get(name) != old},
            }
        key = {"database": "loyalty", "table": act.table, **{f"pk.{name}": of for name, of in act.key.items()}}
        return {"topic": "maxwell", "key": key, "value": value}


class ShopifyHooks(_Log):
    """Shopify webhooks: what is, never what was; the topic is in a header."""

    def _hook(self, topic: str, body: Row, at: int) -> Message:
        event = uuid.uuid5(uuid.NAMESPACE_URL, f"shop/{self.round}/{self.written}")
        headers = {
            "X-Shopify-Topic": topic,
            "X-Shopify-Shop-Domain": "acme-dtc.myshopify.com",
            "X-Shopify-API-Version": "2026-01",
            "X-Shopify-Webhook-Id": str(uuid.uuid5(event, "delivery")),
            "X-Shopify-Event-Id": str(event),
            "X-Shopify-Triggered-At": _iso(at),
        }
        return {"headers": headers, "body": body}

    def write(self, act: Act) -> Message:
        _, at = self.tick()
        if act.case == "redact":
            before = act.before or {}
            person = {name: before[name] for name in ("id", "email", "phone")}
            shop = {"shop_id": 954889, "shop_domain": "acme-dtc.myshopify.com"}
            return self._hook("customers/redact", {**shop, "customer": person, "orders_to_redact": []}, at)
        if act.op == "delete":
            return self._hook(
                "customers/delete", {**act.key, "phone": None, "addresses": [], "email_marketing_consent": None}, at
            )
        # The webhook's own second is all Shopify keeps of when a customer changed.
        times = {"created_at": "2026-03-01T04:16:05-05:00", "updated_at": _iso(at, "%Y-%m-%dT%H:%M:%S+00:00")}
        body = {
            **(act.after or {}),
            **times,
            "state": "enabled",
            "verified_email": True,
            "currency": "USD",
            "addresses": [],
        }
        return self._hook("customers/create" if act.op == "insert" else "customers/update", body, at)

    def data_request(self) -> Message:
        _, at = self.tick()
        person = {"id": SHOPIFY_IDS + HEROINE + 1, "email": "liam.byrne@example.com", "phone": "+353855550102"}
        shop = {"shop_id": 954889, "shop_domain": "acme-dtc.myshopify.com"}
        return self._hook(
            "customers/data_request", {**shop, "customer": person, "data_request": {"id": 9000 + self.round}}, at
        )


def legacy(act: Act, round: int, at: int) -> Message:
    """The old point of sale is copied by three tools at once; each line is recognised by itself."""
    row = act.after or {}
    if act.case == "maxwell":
        place: Row = {"database": "pos", "table": act.table, "ts": at // 1_000_000, "xid": round, "commit": True}
        keys: Row = {"primary_key": [row["id"]], "primary_key_columns": ["id"], "position": f"pos.{round:06d}:4"}
        key = {"database": "pos", "table": act.table, "pk.id": row["id"]}
        return {"topic": "maxwell", "key": key, "value": {"type": "insert", **place, **keys, "data": row}}
    if act.case == "flattened":
        told: Row = {"__op": "c", "__schema": "pos", "__table": act.table, "__lsn": 51_200 + round, "__txId": round}
        value = {**row, **told, "__source_ts_ms": at // 1000, "__deleted": "false"}
        return {"topic": f"pos.pos.{act.table}", "key": act.key, "value": value}
    source = {
        "version": "3.1.2.Final",
        "connector": "mysql",
        "name": "pos",
        "ts_ms": at // 1000,
        "snapshot": "false",
        "db": "pos",
    }
    source |= {"sequence": None, "ts_us": at, "ts_ns": at * 1000, "table": act.table, "server_id": 1, "gtid": None}
    source |= {"file": f"mysql-bin.{round:06d}", "pos": 154, "row": 0, "thread": None, "query": None}
    value = {
        "before": None,
        "after": row,
        "source": source,
        "transaction": None,
        "op": "c",
        "ts_ms": at // 1000,
        "ts_us": at,
    }
    return {"topic": f"pos.pos.{act.table}", "key": act.key, "value": value}
