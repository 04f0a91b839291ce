"""Every rule that is shipped: tested from both sides, missed when it is gone, and on the pages that list it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidings.gate.decide import Policy, decide
from tidings.gate.facts import CHANNELS, PAIRED, PURPOSES, Value
from tidings.gate.loading import described
from tidings.gate.policy import Recipient
from tidings.gate.rulebook import CATCHES, listed, shipped_rules, summary
from tidings.gate.rules import Example, Rule
from tidings.verbs.gate_rules import PAGE

DOCS = Path(__file__).parents[2] / "docs"
RULES = shipped_rules()
START, END = "<!-- anchors: tidings gate rules --page -->\n", "<!-- /anchors -->"


class Given(Recipient):
    """A recipient that is just what an example says, also where a folder would work it out."""

    def __init__(self, to: dict[str, object]) -> None:
        made = described(to)
        super().__init__(made.subscriber, made.role, made.region, made.dpa, terms=made.terms)
        object.__setattr__(self, "said", {name: to[name] for name in PAIRED if name in to})

    def facts(self, situation):  # type: ignore[no-untyped-def]
        return super().facts(situation) | self.said  # type: ignore[attr-defined]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_tested_from_both_sides(rule: Rule) -> None:
    caught = [example.gives in CATCHES for example in rule.examples]
    assert any(caught), "an example that it catches"
    assert not all(caught), "an example that it does not"


def test_no_two_rules_share_a_name() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)


BLOCKING = [(rule, example) for rule in RULES for example in rule.examples if example.gives in ("deny", "defer")]


@pytest.mark.parametrize(("rule", "example"), BLOCKING, ids=lambda one: getattr(one, "id", ""))
def test_what_a_rule_blocks_stays_blocked_beside_all_others(rule: Rule, example: Example) -> None:
    recipient = Given(dict(example.to))
    alone = decide(Policy("one", (rule,)), example.given, recipient)
    whole = decide(Policy("all", tuple(RULES)), example.given, recipient)
    assert alone.outcome == example.gives
    assert whole.outcome == "deny" or (whole.outcome == "defer" and rule.id in whole.rules)


# An unremarkable change to an unremarkable recipient, for what an example leaves open and its rule does not read.
CALM: dict[str, Value] = {
    **{f"consent_{word}": "granted" for word in (*CHANNELS, *PURPOSES)},
    "operation": "update", "entity": "customer", "entity_kind": "customer", "personal": True, "jurisdiction": "US-NY",
    "vertical": "Store", "lawful_basis": "contract", "capture": "postgresql", "transactional": True,
}  # fmt: skip
PLAIN: dict[str, object] = {
    "role": "service", "region": "US", "dpa": True, "baa": True, "transfer_mechanism": "scc", "exactly_once": True, "ack": "A3",
    "rate": 100.0, "approved": True, "human_oversight": True, "impact_assessed": True, "zero_retention": True,
    "purposes": ["service"], "channels": [], "certifications": ["pci-dss"],
}  # fmt: skip


def family(rule: Rule) -> str:
    """The bundle a document belongs to: `privacy-us` is part of `privacy`."""
    return Path(rule.file).stem.partition("-")[0]


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.effect.blocks], ids=lambda rule: rule.id)
def test_a_rule_that_is_gone_is_missed(rule: Rule) -> None:
    """One of its examples is held back by it alone: without it, and with the rest of its bundle, the pair would leave."""
    mine = [each for each in RULES if family(each) == family(rule)]
    missed = False
    for example in rule.examples:
        if example.gives not in ("deny", "defer"):
            continue
        calm = {name: value for name, value in CALM.items() if name not in rule.facts()}
        given, to = calm | dict(example.given), Given(PLAIN | dict(example.to))
        with_it = decide(Policy("all", tuple(mine)), given, to)
        without = decide(Policy("rest", tuple(each for each in mine if each is not rule)), given, to)
        missed |= with_it.outcome in ("deny", "defer") and without.outcome == "allow"
    assert missed


def test_the_pages_say_what_the_catalogue_says() -> None:
    page = "\n".join([PAGE, *summary(RULES), *listed(RULES)]) + "\n"
    assert (DOCS / "rules.md").read_text() == page, "run `tidings gate rules --page > docs/rules.md`"
    gate = (DOCS / "gate.md").read_text()
    shown = gate[gate.index(START) + len(START) : gate.index(END)]
    assert shown == "\n".join(summary(RULES)) + "\n", "copy the table of `tidings gate rules --page`"
