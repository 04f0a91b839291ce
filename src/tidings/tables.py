"""The table layout, declared once: Spark DDL, the columns that carry statistics, the order compaction writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

PRIMITIVES = {"bigint": "long", "int": "integer"} | {t: t for t in ("string", "binary", "boolean", "timestamp", "date")}


@dataclass(frozen=True)
class Table:
    """Only `statistics` columns reach the log in clear. They must never hold what a person could be found by."""

    ddl: str
    statistics: tuple[str, ...]
    sort: tuple[str, ...]
    key: str = ""  # rows are looked up by this column, among millions: it ends the sort, and row groups are small
    moment: str = (
        ""  # rows are kept by this time: compaction leaves every month its own files, so that whole files can go
    )

    @cached_property
    def fields(self) -> dict[str, Any]:
        """Column names and their Delta types, in order."""
        return {field["name"]: field["type"] for field in parsed(self.ddl)["fields"]}

    def as_json(self) -> str:
        """The schema as Delta and Spark both spell it."""
        return json.dumps(parsed(self.ddl))


def parsed(ddl: str) -> dict[str, Any]:
    """Our own DDL as a schema document; a JVM is not needed to know what a table looks like."""
    columns = re.sub(r"(\w) +(?=[a-z])", r"\1:", ddl)
    tokens = iter(re.findall(r"[a-z_]\w*|[<>:,]", f"struct<{columns}>"))
    found, _ = _type(tokens, next(tokens))
    assert isinstance(found, dict)
    return found


def _type(tokens: Iterator[str], name: str) -> tuple[Any, str]:
    """One type and the token after it."""
    if name in PRIMITIVES:
        return PRIMITIVES[name], next(tokens, "")
    assert next(tokens) == "<"
    if name == "array":
        element, _ = _type(tokens, next(tokens))
        return {"type": "array", "elementType": element, "containsNull": True}, next(tokens, "")
    if name == "map":
        key, _ = _type(tokens, next(tokens))
        value, _ = _type(tokens, next(tokens))
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}, next(tokens, "")
    assert name == "struct", name
    fields, after = [], ","
    while after == ",":
        label = next(tokens)
        assert next(tokens) == ":"
        kind, after = _type(tokens, next(tokens))
        fields.append({"name": label, "type": kind, "nullable": True, "metadata": {}})
    return {"type": "struct", "fields": fields}, next(tokens, "")


_PLACE = "offset bigint, source string, generation string, batch bigint"
_FEED = ("source", "generation", "batch", "offset")

TABLES: Mapping[str, Table] = {
    "journal": Table(
        f"{_PLACE}, event_id string, change binary, change_type string, operation string, entity string, tenant string, banner string,"
        " location string, locale string, routing_hint string, time timestamp, recorded timestamp, position string,"
        " ordering string, epoch string, correlation string, causation string, hlc string, lamport bigint,"
        " vector map<string,bigint>, subjectseq bigint, schema_version string, policy_version string, flags array<string>,"
        " consent struct<class:string,channel:string,purpose:string,source_channel:string,request_time:timestamp,state:string>,"
        " kid binary, key_file string, payload binary, decision string,"
        " recipients array<string>, deadlines map<string,timestamp>, entry binary",
        statistics=(*_FEED, "time", "recorded"),
        sort=("source", "generation", "offset"),
        moment="recorded",
    ),
    "quarantine": Table(
        "source string, generation string, batch bigint, place string, arrived timestamp, code string, path string,"
        " detail string, sealed binary, day date, masked boolean, file string, line bigint, entity string",
        statistics=("source", "generation", "batch", "arrived", "day"),
        sort=("source", "generation", "batch", "arrived"),
        moment="arrived",
    ),
    "last_seen": Table(
        f"tag binary, bucket int, {_PLACE}, version string, kid binary, key_file string, image binary, time timestamp, ordering string,"
        " vector map<string,bigint>",
        statistics=("bucket", *_FEED),
        sort=("bucket", "tag"),
        key="tag",
    ),
    "subjects": Table(
        f"tag binary, bucket int, {_PLACE}, version string, consents map<string,string>, jurisdiction string,"
        " flags array<string>",
        statistics=("bucket", *_FEED),
        sort=("bucket", "tag"),
        key="tag",
    ),
    "identities": Table(
        f"hash binary, bucket int, {_PLACE}, tag binary, kind string, entity string",
        statistics=("bucket", *_FEED),
        sort=("bucket", "hash"),
        key="hash",
    ),
    "attempts": Table(
        "lane string, cycle bigint, call string, subscriber string, channel string, intent boolean, started timestamp,"
        " finished timestamp, status int, latency_ms bigint, strength string, digest string,"
        " members array<struct<source:string,generation:string,offset:bigint,event_id:string,subject:binary,"
        "change_type:string,attempt:int,result:string,code:string,next_due:timestamp,final:string,"
        "ack:string,reference:string>>, entry binary,"
        " exchanges array<struct<event_id:string,sealed:binary>>, predicted array<timestamp>",
        statistics=("lane", "cycle", "started", "finished"),
        sort=("lane", "cycle", "started"),
        moment="finished",
    ),
    "settled": Table(
        "event_id string, offset bigint, source string, generation string, entry binary, time timestamp",
        statistics=("source", "generation", "offset", "time"),
        sort=("source", "generation", "offset"),
        moment="time",
    ),
    "counts": Table(
        "source string, generation string, batch bigint, counter string, value bigint, recorded timestamp",
        statistics=("source", "generation", "batch", "recorded"),
        sort=("source", "generation", "batch"),
    ),
    "rights_requests": Table(
        "request string, step bigint, what string, kind string, state string, previous string, way string,"
        " jurisdiction string, regulation string, assurance string, opened timestamp, due timestamp, changed timestamp,"
        " actor string, reason string, details map<string,string>, fingerprint binary, tags array<binary>,"
        " hashes array<binary>, parts array<struct<recipient:string,way:string,event_id:string,kid:binary,tag:binary,"
        "sealed:binary,deadline:timestamp>>, kid binary, key_file string, sealed binary, entry binary",
        statistics=("opened", "due", "changed"),
        sort=("opened", "changed"),
    ),
}

# What a session must set so that the files it writes are these tables' files. Each with its reason.
SPARK_SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",  # one meaning of a date, everywhere
    "spark.sql.timestampType": "TIMESTAMP_LTZ",  # a time without a zone cannot be compared between machines
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96 carries no statistics
    "spark.sql.parquet.writeLegacyFormat": "false",  # legacy lists are read differently by different readers
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",  # the commit is ours, not a marker file
}
