"""From the operator's folder to a policy: rules compiled, laws at hand, recipients known, examples run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Any

from tidings import yaml_lines
from tidings.abilities import abilities
from tidings.errors import ConfigurationError, Problem
from tidings.gate import cesql
from tidings.gate.facts import PAIRED, RECIPIENT_FACTS, complete, derive
from tidings.gate.policy import Engine, Policy, Recipient
from tidings.gate.rule_reader import Reading
from tidings.gate.rules import Rule, judge
from tidings.gate.statutes import Statute, read_statutes
from tidings.policy import RuleDocument

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.shapes import Subscriber

MAX_RULES = 500
DEFAULT_SLA = 900  # seconds; what a subscriber that promises nothing is held to


def load_policy(settings: Settings) -> Policy:
    """The policy in force, or every problem at once."""
    policy, problems = examine_policy(settings)
    if problems:
        raise ConfigurationError(problems)
    return policy


def examine_policy(settings: Settings) -> tuple[Policy, list[Problem]]:
    """The policy as far as it can be read, and what is wrong with it: for `check`."""
    statutes, problems = catalogue_statutes(settings)
    rules, wrong = compile_rules(settings.policies.rules, statutes)
    problems += wrong
    for name, subscriber in sorted(settings.subscribers.items()):
        for said in cesql.check(subscriber.filter or "true"):
            document = settings.documents.get(f"subscribers/{name}.yaml")
            line = document.line(("filter",)) if document else 0
            file = f"subscribers/{name}.yaml"
            problems.append(Problem(file, line, "filter", "cesql", said, "a CESQL expression", "Mend the filter."))
    version = next((text for text in settings.policies.versions if text), "unversioned")
    people = tuple(recipient(settings, name) for name in sorted(settings.subscribers))
    cited = {name for rule in rules for name in rule.statutes}
    engines, wrong = _engines(settings, statutes)
    problems += wrong
    kept = {name: statute for name, statute in sorted(statutes.items()) if engines or name in cited}
    return Policy(version, tuple(rules), kept, people, settings.entities, engines=engines), problems


def _engines(settings: Settings, statutes: Mapping[str, Statute]) -> tuple[tuple[Engine, ...], list[Problem]]:
    """Most folders have none, and should not wait for what reads them."""
    if not any("engines" in document.data for document in settings.policies.documents):
        return (), []
    from tidings.engines.configured import configured

    return configured(settings, statutes)


def starter_policy() -> Policy:
    """The catalogue's starter bundle alone, without recipients."""
    text = files("tidings").joinpath("catalog/anchors/starter.yaml").read_text(encoding="utf-8")
    document, problems = yaml_lines.parse(text, "catalog/anchors/starter.yaml")
    statutes, wrong = catalogue_statutes()
    written = document.data["rules"] if document else []
    places = [RuleDocument(str(data["id"]), data, document, ("rules", n)) for n, data in enumerate(written) if document]
    rules, more = compile_rules(places, statutes)
    if problems or wrong or more:
        raise ConfigurationError([*problems, *wrong, *more])
    return Policy("starter", tuple(rules), statutes)


def catalogue_statutes(settings: Settings | None = None) -> tuple[dict[str, Statute], list[Problem]]:
    """The catalogue's laws; the operator's own in policy/statutes/ replace those of the same id."""
    with as_file(files("tidings").joinpath("catalog/statutes")) as shelf:
        folders = {"catalog/statutes": shelf}
        if settings is not None:
            folders["policy/statutes"] = settings.directory / "policy" / "statutes"
        return read_statutes(folders)


def compile_rules(
    documents: Iterable[RuleDocument], statutes: Mapping[str, Statute]
) -> tuple[list[Rule], list[Problem]]:
    """Rules in the order given; a rule whose example does not give what it says is a problem like any other."""
    rules: list[Rule] = []
    problems: list[Problem] = []
    for written in documents:
        reading = Reading(written.document, statutes)
        rule = reading.rule(written.place, written.data)
        problems += reading.problems
        if rule is None:
            continue
        if not reading.problems:
            problems += failed_examples(rule)
        rules.append(rule)
    if len(rules) > MAX_RULES:
        file, line = rules[MAX_RULES].file, rules[MAX_RULES].line
        told = (f"{len(rules)} rules", f"at most {MAX_RULES}", "Merge some of them.")
        problems.append(Problem(file, line, "rules", "too_many_rules", *told))
    return rules, problems


def failed_examples(rule: Rule) -> list[Problem]:
    """The examples of a rule that do not come out as written."""
    problems = []
    for index, example in enumerate(rule.examples):
        facts = derive(complete(example.given))
        verdict = judge(rule, facts, described(example.to).facts(facts) | dict(example.to))
        if verdict.says != example.gives:
            path = f"{rule.id}.examples[{index}]"
            says = f"{verdict.says}" + (f" ({verdict.reason})" if verdict.reason else "")
            what_now = "Mend the rule or its example."
            problems.append(Problem(rule.file, example.line, path, "example_failed", says, example.gives, what_now))
    return problems


def recipient(settings: Settings, name: str) -> Recipient:
    """What the gate needs to know of a subscriber."""
    subscriber, able = settings.subscribers[name], abilities(settings, name)
    return Recipient(
        subscriber=name,
        role=subscriber.role,
        region=subscriber.region,
        dpa=subscriber.dpa,
        types=tuple(subscriber.types),
        entities=tuple(subscriber.entities),
        semantics=dict(subscriber.semantics),
        sla={"default": DEFAULT_SLA, **{kind: int(seconds) for kind, seconds in subscriber.sla.items()}},
        terms=_terms(subscriber) | ({"rate": able.rate} if able.rate else {}),
        acks=able.acks,
        once=able.once,
    )


def _terms(subscriber: Subscriber) -> dict[str, object]:
    plain = ("acts_as", "baa", "transfer_mechanism", "sells", "zero_retention", "high_risk_ai", "human_oversight")
    many = ("purposes", "channels", "certifications")
    said: dict[str, object] = {name: getattr(subscriber, name) for name in (*plain, "impact_assessed")}
    said |= {name: tuple(getattr(subscriber, name)) for name in many}
    said["purposes"] = said["purposes"] or (subscriber.role,)
    return said | {"llm": subscriber.role == "agent" if subscriber.llm is None else subscriber.llm}


def described(facts: Mapping[str, object], name: str = "recipient") -> Recipient:
    """A recipient that exists only in words: an example's, or one that somebody asks about."""
    plain: dict[str, Any] = {fact.name: fact.default for fact in RECIPIENT_FACTS.values() if fact.default is not None}
    plain |= {key: tuple(v) if isinstance(v, list) else v for key, v in facts.items() if key not in PAIRED}
    own = {key: plain.pop(key) for key in ("role", "region", "dpa", "types", "entities") if key in plain}
    terms = {key: value for key, value in plain.items() if key not in (*PAIRED, "subscriber")}
    return Recipient(str(facts.get("subscriber", name)), **own, terms=terms)
