"""Which fields a person may have put right: what describes them, not what they are known by, agreed to, or are held for. Pure.

A correction that could merge a record with somebody else's, lift a legal hold or grant a consent would be another request in disguise, with
less proof than that one needs. What the operator decides (a tier, a segment) is looked at by a human.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidings.contract import Contract, FieldRule

NOT_THIS_WAY = ("identity_merge", "identity_split", "consent", "suppression")
DECIDED = ("tier", "segment", "cohort", "household", "account", "payment_method")


def correctable(contract: Contract, path: str) -> bool:
    """May a rectification change this field at all?"""
    rule = contract.fields.get(path)
    return rule is not None and path not in contract.key and _describes(rule)


def _describes(rule: FieldRule) -> bool:
    other = (rule.consent, rule.person, rule.lifecycle, rule.token)
    return not any(one is not None for one in other) and rule.type not in NOT_THIS_WAY


def for_a_human(contract: Contract, paths: Iterable[str]) -> bool:
    """Is one of these the operator's decision rather than a fact about the person?"""
    rules = [contract.fields[path] for path in paths if correctable(contract, path)]
    return any(rule.class_ == "internal" or rule.type in DECIDED for rule in rules)


def offered(contract: Contract) -> list[str]:
    """What the form lets a person choose from."""
    return [path for path in contract.fields if correctable(contract, path) and not for_a_human(contract, [path])]
