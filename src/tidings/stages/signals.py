"""What an event says besides its images: the rule that gave a signal, and what a relation moved from and to.

A signal is compiled from the contract and speaks of a transition only: it compares what was known with what is now said, so an
insert, a snapshot row, a repeated or a stale message gives none.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidings.contract import Condition, Contract, Scalar
from tidings.stages.functions import let
from tidings.stages.once import built_once
from tidings.stages.subject import choose

# Types and steps that tie one subject to another, or to a household, an account, a parent: whoever acts needs both ends.
RELATIONS = ("identity_merge", "identity_split", "household", "account", "reparent", "rekey")


def signal_units(contract: Contract) -> Column:
    """`type|rule` of every signal that this update gives."""
    given = []
    for name, signal in contract.signals.items():
        tests = [F.coalesce(_holds(condition), F.lit(False)) for condition in signal.conditions]
        given.append(F.when(reduce(lambda a, b: a & b, tests), F.lit(f"{signal.type}|{name}")))
    return F.array_compact(F.array(*given))


def _holds(condition: Condition) -> Column:
    path = condition.field
    then, said = F.try_element_at(F.col("base"), F.lit(path)), F.try_element_at(F.col("fields_after"), F.lit(path))
    if condition.is_ is not None:
        stands = F.when(F.map_contains_key("fields_after", path), said).otherwise(then)
        return _among(stands, condition.is_)
    return F.array_contains("changed", path) & _happens(condition, then, said)


def _happens(condition: Condition, then: Column, now: Column) -> Column:
    if condition.crosses is not None:
        above, below = condition.crosses.above, condition.crosses.below
        if above is not None:
            return (_number(then) <= _exact(above)) & (_number(now) > _exact(above))
        return (_number(then) >= _exact(below)) & (_number(now) < _exact(below))
    if condition.moves is not None:
        before, after = (_step(value, condition.order) for value in (then, now))
        return after > before if condition.moves == "up" else after < before
    if condition.gains is not None:
        return F.size(F.array_except(_listed(now, condition.gains), _listed(then, condition.gains))) > 0
    if condition.loses is not None:
        return F.size(F.array_except(_listed(then, condition.loses), _listed(now, condition.loses))) > 0
    left = F.lit(True) if condition.from_ is None else _among(then, condition.from_)
    if condition.becomes is None:
        return left & ~_among(now, condition.from_ or ())
    return left & _among(now, condition.becomes) & ~_among(then, condition.becomes)


def _word(value: Scalar) -> str:
    return str(value).strip().lower()


def _among(value: Column, values: tuple[Scalar, ...]) -> Column:
    """Is the text one of these? Case and outer blanks do not count; nothing is none of them."""
    return F.coalesce(F.lower(F.trim(value)).isin(*[_word(one) for one in values]), F.lit(False))


def _number(value: Column) -> Column:
    return value.try_cast("decimal(38,10)")


def _exact(value: float | None) -> Column:
    return F.lit(repr(value)).cast("decimal(38,10)")


def _step(value: Column, order: tuple[Scalar, ...] | None) -> Column:
    """A number, or the place in the order; null for anything else, which is neither up nor down from anywhere."""
    if order is None:
        return _number(value)
    place = F.array_position(F.array(*[F.lit(_word(one)) for one in order]), F.lower(F.trim(value)))
    return F.when(place > 0, place)


def _listed(value: Column, wanted: tuple[Scalar, ...]) -> Column:
    """Which of the wanted entries a list holds; a list is a JSON array, or text with commas between."""
    parts = F.coalesce(F.from_json(value, "array<string>"), F.split(value, ","))
    words = F.transform(F.coalesce(parts, F.array().cast("array<string>")), lambda part: F.lower(F.trim(part)))
    return F.array_intersect(words, F.array(*[F.lit(_word(one)) for one in wanted]))


@built_once
def details(contracts: Mapping[str, Contract]) -> dict[str, Column]:
    """`detail`, the rest of an event's payload as JSON text, and for a signal's `changed` only the fields that its rule looks at."""
    parts = F.split("unit", "\\|")
    mine, kind = F.col("out") == "journal", parts[0]
    fields = choose(F.col("contract"), {name: _related(kind, contract) for name, contract in contracts.items()})
    signalling = {name: contract for name, contract in contracts.items() if contract.signals}
    if not signalling:
        return {"detail": F.when(mine, _moved(kind, fields))}
    rule = F.when(kind != "consent", F.get(parts, F.lit(1)))
    looked = choose(F.col("contract"), {name: _looked(rule, contract) for name, contract in signalling.items()})
    named = F.when(rule.isNotNull(), F.concat(F.lit(',"signal":"'), rule, F.lit('"'))).otherwise(F.lit(""))
    changed = F.when(looked.isNotNull(), F.array_intersect("changed", looked)).otherwise(F.col("changed"))
    detail = F.concat(_moved(kind, F.coalesce(looked, fields)), named)
    return {"detail": F.when(mine, detail), "changed": F.when(mine, changed)}


def _looked(rule: Column, contract: Contract) -> Column:
    """The fields that a rule looks at; null when it is no rule of this contract."""
    found = F.when(F.lit(False), F.array().cast("array<string>"))
    for name, signal in contract.signals.items():
        found = found.when(rule == name, F.array(*[F.lit(condition.field) for condition in signal.conditions]))
    return found


def _moved(kind: Column, fields: Column) -> Column:
    """`,"moved":[{field, from, to}]` of the fields that make this relation; nothing of an event that is none."""
    names = F.array_intersect(F.array_sort("changed"), fields)
    # A column named inside a function would be the new one of its projection, where `fields_after` is dropped: it is handed in.
    known = F.struct(names.alias("names"), F.col("base").alias("then"), F.col("fields_after").alias("now"))
    ends = let(known, lambda said: F.transform(said["names"], lambda name: _ends(said, name)))
    text = F.coalesce(F.to_json(ends, {"ignoreNullFields": "false"}), F.lit("[]"))
    return F.when(kind.isin(*RELATIONS), F.concat(F.lit(',"moved":'), text)).otherwise(F.lit(""))


def _ends(said: Column, name: Column) -> Column:
    then, now = F.try_element_at(said["then"], name), F.try_element_at(said["now"], name)
    return F.struct(name.alias("field"), then.alias("from"), now.alias("to"))


def _related(unit: Column, contract: Contract) -> Column:
    """The fields whose change is this relation."""
    by_unit: dict[str, list[str]] = {"rekey": list(contract.key)}
    for path, rule in contract.fields.items():
        if (kind := rule.type or rule.lifecycle) in RELATIONS:
            by_unit.setdefault(kind, []).append(path)
    found = F.when(F.lit(False), F.array().cast("array<string>"))
    for kind, names in by_unit.items():
        found = found.when(unit == kind, F.array(*[F.lit(name) for name in names]))
    return found
