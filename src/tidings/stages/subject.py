"""change → change with its subject: which contract, who it is about, what its fields say. Built once, in the stream's plan."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidings.contract import Consent, Contract, FieldRule, FromField
from tidings.gate.facts import PURPOSES, filed
from tidings.seal.cards import mask
from tidings.seal.columns import bucket_column, tag_column
from tidings.session import BUCKETS
from tidings.stages.normal import COMPOSED, by_rule, composed, country_plan, fixed_plan, truthy

SCHEMA = (
    "source string, place string, ordinal int, arrived timestamp, rank string, op string, entity string, contract string, kind string,"
    " tag binary, bucket int, keytext string, key_json string, before_json string, after_json string, before_kind string,"
    " fields_before map<string,string>, fields_after map<string,string>, consent map<string,string>, request_time timestamp,"
    " source_channel string, jurisdiction string, location string, locale string, commit_time timestamp, position string,"
    " ordering string, ordered boolean, epoch string, txn string, reason string, skip string,"
    " problem struct<code:string,path:string,detail:string>, masked boolean, body string, file string, line bigint"
)
NAMES = tuple(re.findall(r"(?:^|, )(\w+) ", SCHEMA))


def choose(contract: Column, options: Mapping[str, Column]) -> Column:
    """One column per contract: only the branch of the row's own contract is computed."""
    return reduce(
        lambda chain, one: chain.when(contract == one[0], one[1]), options.items(), F.when(F.lit(False), F.lit(None))
    )


def lookup(key: Column, table: Mapping[str, str]) -> Column:
    """The text that a small table gives for a key; null when it has none."""
    return F.try_element_at(F.create_map(*[F.lit(x) for pair in table.items() for x in pair]), key)


def _path(name: str) -> str:
    return "$" + "".join(f"['{part}']" for part in name.split("."))


def field_map(image: Column, contract: Contract, jurisdiction: str) -> Column:
    """The contract's fields that this image holds, as compared text: absent is absent, null is null."""
    wanted = contract.compared
    flat = F.try_variant_get(image, "$", "map<string,string>")
    nested = [name for name in wanted if "." in name]
    for name in nested:
        held = F.try_variant_get(image, _path(name), "variant")
        flat = F.when(
            held.isNotNull(),
            F.map_concat(flat, F.create_map(F.lit(name), F.try_variant_get(image, _path(name), "string"))),
        ).otherwise(flat)
    kept = F.map_filter(flat, lambda k, _: k.isin(*wanted))
    rules = {name: rule for name, rule in contract.fields.items() if rule.normalise and name in wanted}
    if not rules:
        return kept
    if any(rule.normalise in COMPOSED for rule in rules.values()):
        kept = composed(kept)
    return F.transform_values(
        kept, lambda k, v: by_rule(k, v, rules, lambda r: _plan(image, contract, r, jurisdiction))
    )


def _plan(image: Column, contract: Contract, rule: FieldRule, jurisdiction: str) -> Column:
    """How numbers are written where this record's phone is at home: the rule's country, the record's, the source's."""
    if rule.country:
        return fixed_plan(rule.country)
    said = contract.jurisdiction
    if rule.country_field:
        said = FromField(field=rule.country_field)
    if said is None:
        return fixed_plan(jurisdiction)
    told = F.try_variant_get(image, _path(said.field), "string")
    meant = reduce(lambda rest, one: F.when(told == one[0], F.lit(one[1])).otherwise(rest), said.map.items(), told)
    return F.when(F.length(told) > 0, country_plan(meant)).otherwise(fixed_plan(jurisdiction))


def consent_key(class_: str, channel: str, purpose: str = "") -> str:
    """How a consent is filed: marketing consents by channel alone, the rest with their class; see `Contract.purposes`."""
    filed = channel if class_ == "marketing" else f"{class_}:{channel}"
    return f"{filed}/{purpose}" if purpose else filed


def states_of(contract: Contract) -> Iterator[tuple[str, str]]:
    """(what is filed of a person, the field that says it): consents, consents to a purpose, and what is known beside them."""
    named: set[str] = set()
    for path, consent in contract.consents:
        yield consent_key(consent.class_, consent.channel, contract.purposes.get(path, "")), path
        if consent.purpose in PURPOSES and consent.purpose not in named:
            named.add(consent.purpose)
            yield filed(f"consent_{consent.purpose}"), path
    for path, word in contract.persons:
        yield filed(word), path


def consent_map(fields: Column, contract: Contract) -> Column:
    """What the image says about consent and the person: granted, withdrawn or unknown per word; silence says nothing."""
    consents = dict(contract.consents)
    entries: list[Column] = []
    for word, path in states_of(contract):
        value = F.try_element_at(fields, F.lit(path))
        said = _granted(value, consents[path]) if path in consents and not word.startswith("is:") else _true(value)
        entries += [F.lit(word), F.when(F.map_contains_key(fields, path), said)]
    if not entries:
        return F.lit(None).cast("map<string,string>")
    return F.map_filter(F.create_map(*entries), lambda _, v: v.isNotNull())


def _granted(value: Column, consent: Consent) -> Column:
    low = F.lower(F.trim(value))
    granted = low.isin(*[_text(v) for v in consent.granted]) if consent.granted else truthy(value)
    known = F.when(value.isNull(), F.lit("unknown")).when(granted, F.lit("granted"))
    if consent.withdrawn:
        gone = low.isin(*[_text(v) for v in consent.withdrawn])
        return known.when(gone, F.lit("withdrawn")).otherwise(F.lit("unknown"))
    return known.otherwise(F.lit("withdrawn"))


def _true(value: Column) -> Column:
    """What a field says of the person beside consent: kept as a consent is, granted when the value is a yes."""
    return F.when(F.coalesce(truthy(value), F.lit(False)), F.lit("granted")).otherwise(F.lit("withdrawn"))


def _text(value: object) -> str:
    return str(value).lower()


def _from(fields: Column, rule: FromField | None, default: Column) -> Column:
    default = default.cast("string")  # a source without a location has none, and that is a text too
    if rule is None:
        return default
    value = F.try_element_at(fields, F.lit(rule.field))
    for found, meaning in rule.map.items():
        value = F.when(F.try_element_at(fields, F.lit(rule.field)) == found, F.lit(meaning)).otherwise(value)
    return F.coalesce(value, default)


def _first(fields: Column, names: Sequence[str]) -> Column:
    values = [F.try_element_at(fields, F.lit(name)) for name in names]
    return F.coalesce(*values) if values else F.lit(None).cast("string")


def _times(fields: Column, contract: Contract) -> Column:
    names = [consent.time_field for _, consent in contract.consents if consent.time_field]
    return F.try_to_timestamp(_first(fields, names))


def _keytext(contract: Contract) -> Column:
    """The record's key as text, values in the contract's order; null when a part is missing."""
    parts = []
    for name in contract.key:
        tries = [F.try_variant_get(F.col(image), _path(name), "string") for image in ("key", "after", "before")]
        parts.append(F.coalesce(*tries))
    return (
        F.concat_ws("\x1f", *parts)
        if len(parts) == 1
        else F.when(reduce(lambda a, b: a & b, [p.isNotNull() for p in parts]), F.concat_ws("\x1f", *parts))
    )


@dataclass(frozen=True)
class SubjectRules:
    """What this stage needs to know of a source: its contracts by table, and where its records belong by default."""

    tenant: str
    entities: Mapping[str, str]
    contracts: Mapping[str, Contract]
    jurisdiction: str
    location: str | None
    locale: str | None


def subject(changes: DataFrame, source: SubjectRules, keys: DataFrame) -> DataFrame:
    """SUBJECT rows. `keys` is the one-row frame with `k_tag`; nothing in the plan shows it."""
    fine = F.col("problem").isNull() & F.col("skip").isNull()
    table = reduce(
        lambda acc, item: acc.when(F.col("entity") == item[0], F.lit(item[1])),
        source.entities.items(),
        F.when(F.lit(False), F.lit("")),
    )
    rows = changes.crossJoin(F.broadcast(keys)).withColumn("contract", F.when(fine, table))
    rows = rows.withColumns(_read(source))
    contract, problem = F.col("contract"), _refused(fine)
    tag = tag_column(F.col("k_tag"), F.lit(source.tenant), contract, F.col("keytext"))
    made = {
        "tag": tag,
        "bucket": F.coalesce(bucket_column(tag) % BUCKETS, F.lit(0)),
        "ordering": F.coalesce("ordering", "rank"),
        "ordered": F.col("ordering").isNotNull(),
        "epoch": F.concat_ws("/", "dialect", "epoch"),
        "problem": problem,
        "body": F.when(problem.isNotNull(), mask(F.col("body"))),
        **_said(source),
    }
    return rows.select(*[made[name].alias(name) if name in made else F.col(name) for name in NAMES])


def _each(source: SubjectRules, make: Callable[[Contract], Column]) -> Column:
    """What each contract makes of the row, for the row's own."""
    return choose(F.col("contract"), {name: make(contract) for name, contract in source.contracts.items()})


def _read(source: SubjectRules) -> dict[str, Column]:
    """What the row's contract reads from its images."""
    keytext = _each(source, lambda c: _blank(_keytext(c)))
    return {
        "keytext": F.when(F.col("op") == "truncate", F.lit("*")).otherwise(keytext),
        "fields_before": _each(source, lambda c: field_map(F.col("before"), c, source.jurisdiction)),
        "fields_after": _each(source, lambda c: field_map(F.col("after"), c, source.jurisdiction)),
        "kind": _each(source, lambda c: F.lit(c.kind)),
    }


def _said(source: SubjectRules) -> dict[str, Column]:
    """What the newest image says besides: consent, when and where it was given, where the record belongs."""
    latest = F.coalesce(F.col("fields_after"), F.col("fields_before"))
    spoken = _each(source, lambda c: _first(latest, [x.source_field for _, x in c.consents if x.source_field]))
    return {
        "consent": _each(source, lambda c: consent_map(F.col("fields_after"), c)),
        "request_time": F.coalesce(_each(source, lambda c: _times(latest, c)), F.col("commit_time"), F.col("arrived")),
        "source_channel": F.coalesce(spoken, F.col("source")),
        "jurisdiction": _each(source, lambda c: _from(latest, c.jurisdiction, F.lit(source.jurisdiction))),
        "location": _each(source, lambda c: _from(latest, c.location, F.lit(source.location))),
        "locale": _each(source, lambda c: _from(latest, c.locale, F.lit(source.locale))),
    }


def _refused(fine: Column) -> Column:
    """The message's own problem, or that no contract or no key is known for it."""
    unknown = fine & F.col("contract").isNull()
    keyless = fine & F.col("contract").isNotNull() & F.col("keytext").isNull()
    return (
        F.when(unknown, _problem("unknown_table", "entity", "the source maps no contract to this table"))
        .when(keyless, _problem("missing_key", "key", "a key field of the contract is missing or null"))
        .otherwise(F.col("problem"))
    )


def _blank(text: Column) -> Column:
    return F.when(F.length(text) > 0, text)


def _problem(code: str, path: str, detail: str) -> Column:
    return F.struct(F.lit(code).alias("code"), F.lit(path).alias("path"), F.lit(detail).alias("detail"))
