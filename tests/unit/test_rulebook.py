"""Every rule that is shipped: tested from both sides, missed when it is gone, and on the pages that list it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidings.gate.decide import Policy, decide
from tidings.gate.facts import PAIRED
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
    assert True in caught, "an example that it catches"
    assert False in caught, "an example that it does not"


def test_no_two_rules_share_a_name() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)


BLOCKING = [(rule, example) for rule in RULES for example in rule.examples if example.gives in ("deny", "defer")]


@pytest.mark.parametrize(("rule", "example"), BLOCKING, ids=lambda one: getattr(one, "id", ""))
def test_a_rule_that_is_gone_is_missed(rule: Rule, example: Example) -> None:
    """Nothing else says for it what it says: its objection vanishes with it."""
    recipient = Given(dict(example.to))
    whole = decide(Policy("all", tuple(RULES)), example.given, recipient)
    alone = decide(Policy("one", (rule,)), example.given, recipient)
    without = decide(Policy("rest", tuple(each for each in RULES if each is not rule)), example.given, recipient)
    assert alone.outcome == example.gives
    assert whole.outcome in ("deny", "defer")
    assert whole.outcome == "deny" or rule.id in whole.rules
    assert rule.id not in without.rules
    assert decide(Policy("none", ()), example.given, recipient).outcome == "allow"


def test_the_pages_say_what_the_catalogue_says() -> None:
    page = "\n".join([PAGE, *summary(RULES), *listed(RULES)]) + "\n"
    assert (DOCS / "rules.md").read_text() == page, "run `tidings gate rules --page > docs/rules.md`"
    gate = (DOCS / "gate.md").read_text()
    shown = gate[gate.index(START) + len(START) : gate.index(END)]
    assert shown == "\n".join(summary(RULES)) + "\n", "copy the table of `tidings gate rules --page`"
