"""The form of a value that is compared, so that formatting is not a change. What is kept and sent stays as it was told.

A value of which nothing is left is no value: under a rule, empty text and null are the same. Unicode is composed (NFC) by the
ICU library that Spark carries; what is ASCII never meets it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidings import phones
from tidings.contract import FieldRule
from tidings.stages.functions import let

_FALSE = ("", "0", "false", "f", "no", "n", "off", "none", "null")
COMPOSED = ("email", "address", "lower", "text")
_BLANK = r"[\s\p{Z}]+"
_MARKS = r"[\s\p{Z}\p{P}]+"


def truthy(value: Column) -> Column:
    """Does a field's text say yes? Null, empty, zero and the usual words for no do not."""
    return value.isNotNull() & ~F.lower(F.trim(value)).isin(*_FALSE)


def normalised(value: Column, rule: str) -> Column:
    """The compared form under one rule; a phone's needs its country, see `phone`."""
    return _formed(_composed(value) if rule in COMPOSED else value, rule)


def _formed(value: Column, rule: str) -> Column:
    match rule:
        case "email":
            found = F.lower(F.regexp_replace(value, _BLANK, ""))
        case "address":
            found = F.trim(F.lower(F.regexp_replace(value, _MARKS, " ")))
        case "lower":
            found = F.trim(F.lower(F.regexp_replace(value, _BLANK, " ")))
        case "text":
            found = F.trim(F.regexp_replace(value, _BLANK, " "))
        case "digits":
            found = F.regexp_replace(value, "[^0-9]", "")
        case "number":
            found = _number(value)
        case "flag":
            found = F.when(F.length(F.trim(value)) > 0, truthy(value).cast("string"))
        case _:
            raise AssertionError(rule)
    return F.when(F.length(found) > 0, found)


def by_rule(
    key: Column, value: Column, rules: Mapping[str, FieldRule], country: Callable[[FieldRule], Column]
) -> Column:
    """A map's value under the rule of its key, in a map that `composed` made; `country` says where a phone's field is at home."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, rule in rules.items():
        if rule.normalise:
            groups.setdefault((rule.normalise, rule.country or "", rule.country_field or ""), []).append(name)
    result = value
    for (kind, *_), names in groups.items():
        form = phone(value, country(rules[names[0]])) if kind == "phone" else _formed(value, kind)
        result = F.when(key.isin(*names), form).otherwise(result)
    return result


def composed(values: Column) -> Column:
    """A map with its values composed, all in one text: Spark does not make a Java call inside a lambda ready, and one `ë` ended the source.

    Where a mark would melt into the text's own syntax (a line break before it) the values stay as they were told.
    """
    foreign = F.exists(F.map_values(values), lambda one: F.length(one) < F.octet_length(one))
    text = F.from_json(_icu(F.to_json(F.map_values(values))), "array<string>")
    return F.when(foreign, F.coalesce(F.map_from_arrays(F.map_keys(values), text), values)).otherwise(values)


def _composed(value: Column) -> Column:
    return F.when(F.length(value) < F.octet_length(value), _icu(value)).otherwise(value)


def _icu(text: Column) -> Column:
    return F.java_method(F.lit("com.ibm.icu.text.Normalizer"), F.lit("compose"), text, F.lit(False))


def _number(value: Column) -> Column:
    """By value where it is a number that fits, else as text: 1, 1.0 and 1e0 are one."""
    exact = value.try_cast("decimal(38,10)").cast("string")
    return F.coalesce(F.regexp_replace(exact, r"\.?0+$", ""), F.trim(value))


def country_plan(place: Column) -> Column:
    """What `phones.Plan` says of a country, as text; null when nobody knows the country."""
    table = ";".join(f"{name}={plan.as_text()}" for name, plan in phones.plans().items())
    known = F.str_to_map(F.lit(table), F.lit(";"), F.lit("="))
    return F.try_element_at(known, F.substring_index(F.upper(F.trim(place)), "-", 1))


def fixed_plan(country: str) -> Column:
    """The same of a country that is known beforehand: a literal."""
    plan = phones.plans().get(phones.country_of(country))
    return F.lit(plan.as_text() if plan else None).cast("string")


def phone(value: Column, plan: Column) -> Column:
    """`phones.e164` in columns, step by step the same; each step is worked out once and named."""
    told = F.regexp_replace(_trimmed(F.translate(value, phones.TYPED, phones.MEANT)), phones.PREFIX, "")
    spoken = let(F.struct(told.alias("told"), F.split(plan, r"\|").alias("plan")), lambda said: _spoken(value, said))
    return F.when(value.rlike(phones.READY), value).otherwise(spoken)


def _spoken(value: Column, said: Column) -> Column:
    told = said["told"]
    extension = F.regexp_extract(told, phones.EXTENSION, 2)
    suffix = F.when(F.length(extension) > 0, F.concat(F.lit(";ext="), extension)).otherwise(F.lit(""))
    body = F.regexp_replace(F.regexp_replace(told, phones.EXTENSION, "$1"), phones.PARAMETERS, "")
    return let(
        body,
        lambda text: F.when(text.rlike(phones.LETTERS), normalised(value, "lower")).otherwise(
            F.concat(_number_of(text, said["plan"]), suffix)
        ),
    )


def _number_of(body: Column, plan: Column) -> Column:
    abroad = body.rlike(phones.ABROAD)
    plain = F.when(abroad, F.regexp_replace(body, phones.OPTIONAL_TRUNK, "")).otherwise(body)
    digits = F.regexp_replace(plain, "[^0-9]", "")
    return let(digits, lambda d: F.when(F.length(d) > 0, _dialled(d, body.rlike(phones.INTERNATIONAL), plan)))


def _dialled(digits: Column, plus: Column, plan: Column) -> Column:
    out, zeros = plan[2], F.lit("00")
    abroad = (
        F.when(plus, digits)
        .when(_leads_out(digits, out), _from(digits, out))
        .when(_leads_out(digits, zeros), _from(digits, zeros))
    )
    return let(
        abroad,
        lambda number: F.when(number.isNull(), _national(digits, plan)).otherwise(
            F.concat(F.lit("+"), _untrunked(number, plan[0], plan[1]))
        ),
    )


def _national(digits: Column, plan: Column) -> Column:
    code, trunk, short, long = plan[0], plan[1], plan[3].cast("int"), plan[4].cast("int")
    many = F.length(digits)
    drops = (F.length(trunk) > 0) & digits.startswith(trunk) & (trunk.startswith("0") | (many > long))
    rest = F.when(drops, _from(digits, trunk)).otherwise(digits)
    whole = F.when(digits.startswith(code) & (many > long), F.concat(F.lit("+"), digits))
    fitting = let(rest, lambda r: F.when(F.length(r).between(short, long), F.concat(F.lit("+"), code, r)))
    return F.coalesce(whole, fitting, digits)


def _leads_out(digits: Column, out: Column) -> Column:
    return digits.startswith(out) & (F.length(digits) >= F.length(out) + phones.SHORTEST)


def _untrunked(digits: Column, code: Column, trunk: Column) -> Column:
    doubled = trunk.startswith("0") & digits.startswith(F.concat(code, trunk))
    return F.when(doubled, F.concat(code, _from(digits, F.concat(code, trunk)))).otherwise(digits)


def _from(text: Column, start: Column) -> Column:
    """What comes after `start`."""
    return F.substring(text, F.length(start) + 1, F.length(text))


def _trimmed(value: Column) -> Column:
    return F.regexp_replace(value, r"^[\s\p{Z}]+|[\s\p{Z}]+$", "")
