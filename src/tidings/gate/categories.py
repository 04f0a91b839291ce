"""What a contract says about its data, as facts of its events: labels, kinds of sensitive data, lawful basis, materiality.

A step of a life cycle (insert, delete, …) carries the whole record, so it is of every kind that any field is of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from tidings.contract import Contract, FieldRule

_WHOLE = ("insert", "update", "delete", "soft_delete", "restore", "reparent", "rekey", "truncate", "tombstone")
_IMPERSONAL = ("location", "inventory")


@cache
def _taxonomy() -> Mapping[str, Any]:
    text = files("tidings").joinpath("catalog/taxonomy/categories.yaml").read_text(encoding="utf-8")
    data: Mapping[str, Any] = yaml.safe_load(text)
    return data


def categories() -> tuple[str, ...]:
    """Every label of the taxonomy."""
    return tuple(_taxonomy()["categories"])


def kinds() -> tuple[str, ...]:
    """The kinds of data that laws treat apart."""
    return tuple(_taxonomy()["kinds"])


def under(category: str, label: str) -> bool:
    """Is a category this label, or one below it?"""
    return category == label or category.startswith(f"{label}.")


def kinds_of(category: str) -> frozenset[str]:
    return frozenset(kind for kind, labels in _taxonomy()["kinds"].items() if any(under(category, x) for x in labels))


def personal(contract: Contract) -> bool:
    """Does the contract hold somebody's data? Places and stock do not unless a field says so itself."""
    rules = list(contract.fields.values())
    if contract.kind in _IMPERSONAL:
        rules = [rule for rule in rules if "class_" in rule.model_fields_set]
    return any(rule.class_ in ("personal", "sensitive") for rule in rules)


def sensitive_types(contract: Contract) -> frozenset[str]:
    """The change types that a sensitive field makes, in its own event or in a signal."""
    fields = {path for path, rule in contract.fields.items() if rule.class_ == "sensitive"}
    signals = {
        signal.type
        for signal in contract.signals.values()
        if signal.type == "sensitive_data" or any(condition.field in fields for condition in signal.conditions)
    }
    return frozenset(kind for path in fields if (kind := contract.fields[path].type)) | signals


def labels_by_type(contract: Contract) -> dict[str, str]:
    """Change type → the labels of its fields, in one text; types without labels are left out."""
    found = {kind: sorted({r.category for r in rules if r.category}) for kind, rules in _by_type(contract)}
    return {kind: " ".join(labels) for kind, labels in found.items() if labels}


def types_of_kind(contract: Contract) -> dict[str, frozenset[str]]:
    """Kind of data → the change types whose fields are of it."""
    labels = {kind: text.split() for kind, text in labels_by_type(contract).items()}
    return {
        kind: frozenset(change for change, said in labels.items() if any(kind in kinds_of(label) for label in said))
        for kind in kinds()
    }


def bases_by_type(contract: Contract) -> dict[str, str]:
    """Change type → the lawful basis its fields name; the contract's own where they name none, nothing where two disagree."""
    found: dict[str, str] = {}
    for kind, rules in _by_type(contract):
        said = {rule.lawful_basis or contract.lawful_basis for rule in rules} or {contract.lawful_basis}
        basis = said.pop() if len(said) == 1 else None
        if basis:
            found[kind] = basis
    return found


def material_types(contract: Contract) -> frozenset[str]:
    """The change types of fields that matter to what a listed company has to publish."""
    return frozenset(kind for kind, rules in _by_type(contract) if any(rule.material for rule in rules))


def facts_of(contract: Contract, change: str) -> dict[str, str | bool | None]:
    """What is true of every event of a type of this contract, whoever it is about."""
    said: dict[str, str | bool | None] = {kind: change in types for kind, types in types_of_kind(contract).items()}
    said |= {"sensitive": change in sensitive_types(contract), "material": change in material_types(contract)}
    said |= {"personal": personal(contract), "entity_kind": contract.kind}
    return said | {
        "categories": labels_by_type(contract).get(change, "none"),
        "lawful_basis": bases_by_type(contract).get(change),
    }


def selected(contract: Contract, selector: str) -> tuple[str, ...]:
    """The fields a redaction means: a path, `class:NAME`, `category:LABEL` or `kind:NAME`."""
    word, _, name = selector.partition(":")
    if word == "class":
        return tuple(path for path, rule in contract.fields.items() if rule.class_ == name)
    if word == "category":
        return tuple(path for path, rule in contract.fields.items() if rule.category and under(rule.category, name))
    if word == "kind":
        return tuple(path for path, r in contract.fields.items() if r.category and name in kinds_of(r.category))
    return (selector,)


def read_from(contract: Contract, paths: Collection[str]) -> set[str]:
    """`attribute:NAME` for what an envelope says that was read from one of these fields, or from inside it."""
    made = {"locale": contract.locale, "location": contract.location}
    return {
        f"attribute:{name}"
        for name, rule in made.items()
        if rule and any(f"{rule.field}.".startswith(f"{path}.") for path in paths)
    }


def _by_type(contract: Contract) -> Iterator[tuple[str, list[FieldRule]]]:
    """Each change type with the fields it tells about."""
    for kind in contract.change_types:
        watched = {c.field for signal in contract.signals.values() if signal.type == kind for c in signal.conditions}
        yield kind, [rule for path, rule in contract.fields.items() if rule.type == kind or path in watched]
    for kind in _WHOLE:
        yield kind, list(contract.fields.values())
