"""From the operator's folder to a policy: rules compiled, laws at hand, recipients known, examples run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Any

from tidings import yaml_lines
from tidings.abilities import abilities
from tidings.errors import ConfigurationError, Problem
from tidings.gate import filters
from tidings.gate.approvals import read_approvals
from tidings.gate.calendars import LIBRARY, Calendars, missing_years, read_calendars
from tidings.gate.contradictions import contradictions
from tidings.gate.facts import PAIRED, RECIPIENT_FACTS, Value, complete, derive
from tidings.gate.own_clocks import with_own_clocks
from tidings.gate.policy import Engine, Policy, Recipient
from tidings.gate.retention_reader import read_retention
from tidings.gate.rollout import modes, read_rollout
from tidings.gate.rule_reader import Reading
from tidings.gate.rules import Rule, judge
from tidings.gate.statute_reader import read_statutes
from tidings.gate.statutes import Statute
from tidings.policy import RuleDocument, rules_of

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.shapes import Subscriber

MAX_RULES = 500
PRIVILEGED = "the reason is privileged; counsel can tell it"
DEFAULT_SLA = 900  # seconds; what a subscriber that promises nothing is held to


def load_policy(settings: Settings) -> Policy:
    """The policy in force, or every problem at once."""
    policy, problems = examine_policy(settings)
    if problems:
        raise ConfigurationError(problems)
    return policy


def examine_policy(settings: Settings) -> tuple[Policy, list[Problem]]:
    """The policy as far as it can be read, and what is wrong with it: for `check`."""
    calendars, problems = own_calendars(settings)
    statutes, wrong = catalogue_statutes(settings)
    problems += wrong
    rules, wrong = compile_rules(settings.policies.rules, statutes, calendars)
    problems += wrong or contradictions(rules)
    for name, subscriber in sorted(settings.subscribers.items()):
        file = f"subscribers/{name}.yaml"
        problems += filters.problems(subscriber.filter, file, settings.documents.get(file))
    version = next((text for text in settings.policies.versions if text), "unversioned")
    approvals, wrong = read_approvals(settings.policies.documents, settings.subscribers)
    problems += wrong
    steps, wrong = read_rollout(settings.policies.documents, datetime.now(UTC).date())
    problems += wrong
    _, wrong = read_retention(settings.policies.documents, rules, statutes)
    problems += wrong
    people = tuple(
        replace(recipient(settings, name), approvals=None if approvals is None else approvals[name])
        for name in sorted(settings.subscribers)
    )
    cited = {name for rule in rules for name in rule.statutes}
    engines, wrong = _engines(settings, statutes)
    problems += wrong
    kept = {name: statute for name, statute in sorted(statutes.items()) if engines or name in cited}
    policy = Policy(version, tuple(rules), kept, people, settings.entities, modes(steps), engines, calendars)
    return policy, [*problems, *_short_calendars(policy)]


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
    rules, more = compile_rules(rules_of(document) if document else (), statutes)
    if problems or wrong or more:
        raise ConfigurationError([*problems, *wrong, *more])
    return Policy("starter", tuple(rules), statutes)


def catalogue_statutes(settings: Settings | None = None) -> tuple[dict[str, Statute], list[Problem]]:
    """The catalogue's laws; the operator's own in policy/statutes/ replace those of the same id."""
    with as_file(files("tidings").joinpath("catalog/statutes")) as shelf:
        folders = {"catalog/statutes": shelf}
        if settings is None:
            return read_statutes(folders)
        folders["policy/statutes"] = settings.directory / "policy" / "statutes"
        calendars, _ = own_calendars(settings)
        statutes, problems = read_statutes(folders, calendars)
        statutes, wrong = with_own_clocks(statutes, settings.policies.documents, calendars)
        return statutes, [*problems, *wrong]


def own_calendars(settings: Settings) -> tuple[Calendars, list[Problem]]:
    """The operator's calendars in policy/calendars/, and those of the library."""
    return read_calendars(settings.directory / "policy" / "calendars", "policy/calendars")


def _short_calendars(policy: Policy) -> Iterator[Problem]:
    """A calendar that a rule counts by must know this year and the next: a year that is not there is never guessed."""
    today = date.today()
    for name in sorted(policy.counted):
        gone = missing_years(policy.calendars[name], today, today.replace(year=today.year + 1, day=1))
        if gone:
            file = f"policy/calendars/{name}.yaml"
            found = "no " + " and ".join(map(str, gone))
            yield Problem(file, 1, "years", "calendar_year", found, "this year and the next", "Add their free days.")


def compile_rules(
    documents: Iterable[RuleDocument],
    statutes: Mapping[str, Statute],
    calendars: Calendars = LIBRARY,
    most: int = MAX_RULES,
) -> tuple[list[Rule], list[Problem]]:
    """Rules in the order given; a rule whose example does not give what it says is a problem like any other."""
    rules: list[Rule] = []
    problems: list[Problem] = []
    for written in documents:
        reading = Reading(written.document, statutes, calendars)
        rule = reading.rule(written.place, written.data)
        problems += reading.problems
        if rule is None:
            continue
        if not reading.problems:
            problems += failed_examples(rule)
        rules.append(_discreet(rule) if written.privileged else rule)
    if len(rules) > most:
        file, line = rules[most].file, rules[most].line
        told = (f"{len(rules)} rules", f"at most {most}", "Merge some of them.")
        problems.append(Problem(file, line, "rules", "too_many_rules", *told))
    return rules, problems


def _discreet(rule: Rule) -> Rule:
    """A privileged rule keeps its reason to itself: what is decided with it is recorded, explained and proved without it."""
    return replace(rule, effect=replace(rule.effect, reason=PRIVILEGED if rule.effect.outcome else ""))


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


def operator_facts(settings: Settings, banner: str = "") -> dict[str, Value]:
    """What the folder says of every event, or of every event of a banner."""
    operator = settings.operator
    vertical = next(
        (each.vertical for each in operator.banners if each.id == banner and each.vertical), operator.vertical
    )
    return {
        "test_mode": settings.test_mode.enabled,
        "public_company": operator.public_company,
        "ai_routing": operator.ai_routing,
        "vertical": vertical,
    }


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
