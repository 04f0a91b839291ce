"""The rules of the catalogue as pages: per anchor how many rules and tests there are, and every rule in a line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.resources import files

from tidings import yaml_lines
from tidings.errors import ConfigurationError, Problem
from tidings.gate.facts import ANCHORS
from tidings.gate.loading import catalogue_statutes, compile_rules
from tidings.gate.rules import Effect, Rule
from tidings.policy import RuleDocument, rules_of

CATCHES = ("deny", "defer", "applies")


def shipped_rules() -> list[Rule]:
    """Every rule of every bundle of the catalogue, compiled, its examples run."""
    statutes, problems = catalogue_statutes()
    written: list[RuleDocument] = []
    for entry in sorted(files("tidings").joinpath("catalog/anchors").iterdir(), key=lambda each: each.name):
        document, wrong = yaml_lines.parse(entry.read_text(encoding="utf-8"), f"catalog/anchors/{entry.name}")
        problems += wrong
        written += rules_of(document) if document else ()
    rules, more = compile_rules(written, statutes, most=len(written))
    found: list[Problem] = [*problems, *more]
    if found:
        raise ConfigurationError(found)
    return rules


def summary(rules: Sequence[Rule]) -> list[str]:
    """Anchors × rules × tests, as a table."""
    lines = ["| anchor | rules | that block | laws cited | examples that are caught | examples that pass |"]
    lines.append("|---|---|---|---|---|---|")
    for anchor in (*ANCHORS, "all"):
        mine = [rule for rule in rules if anchor in ("all", rule.anchor)]
        laws = {name for rule in mine for name in rule.statutes}
        given = [example.gives in CATCHES for rule in mine for example in rule.examples]
        blocking = sum(rule.effect.blocks for rule in mine)
        cells = (anchor, len(mine), blocking, len(laws), sum(given), len(given) - sum(given))
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def listed(rules: Iterable[Rule]) -> list[str]:
    """Every rule in a line, by bundle."""
    lines: list[str] = []
    bundle = ""
    for rule in rules:
        if rule.file != bundle:
            bundle = rule.file
            lines += ["", f"## `{bundle.removeprefix('catalog/anchors/')}`", ""]
            lines += ["| rule | anchor | does | why | laws | tests |", "|---|---|---|---|---|---|"]
        laws = ", ".join(rule.statutes[:6]) + (f" and {len(rule.statutes) - 6} more" if len(rule.statutes) > 6 else "")
        does, why = "; ".join(does_what(rule.effect)), rule.effect.reason.replace("|", "\\|")
        lines.append(f"| `{rule.id}` | {rule.anchor} | {does} | {why} | {laws} | {len(rule.examples)} |")
    return lines


def does_what(effect: Effect) -> Iterable[str]:
    """An effect in words."""
    if effect.outcome:
        yield "human review" if effect.review else effect.outcome
    if effect.clocks or effect.sla:
        yield "deadline"
    if effect.redact:
        yield "redact " + ", ".join(effect.redact)
    if effect.semantics:
        yield effect.semantics
    if effect.priority is not None:
        yield f"priority {effect.priority}"
    if effect.ack:
        yield f"acknowledgement {effect.ack}"
    if effect.retention:
        yield f"keep as {effect.retention}"
    if effect.reach != "subscribed":
        yield f"reaches {effect.reach}"
    if effect.tags:
        yield "tag " + ", ".join(effect.tags)
