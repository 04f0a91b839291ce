"""`tidings gate rules`: every rule in force with its anchor, effect, reason, laws and tests; or every rule that is shipped, as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.verbs.options import AsJson, Here, answer

if TYPE_CHECKING:
    from tidings.gate.rules import Rule

PAGE = """\
# The rules of the catalogue

Written by `tidings gate rules --page`; a test compares this page with the catalogue. What a rule means, and how it is weighed, is in
[gate.md](gate.md). Law as data, not legal advice: an operator's counsel decides which bundles are in force.
"""


def register(app: typer.Typer) -> None:
    app.command("rules")(rules)


def rules(
    page: Annotated[bool, typer.Option("--page", help="The catalogue's rules, as the page docs/rules.md.")] = False,
    shipped: Annotated[bool, typer.Option("--shipped", help="Every rule of the catalogue, in force or not.")] = False,
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """List the rules in force, or all that come with Tidings, and count them by anchor."""
    from tidings.gate import rulebook

    found = rulebook.shipped_rules() if page or shipped else _in_force(directory)
    if page:
        print("\n".join([PAGE, *rulebook.summary(found), *rulebook.listed(found)]))
    elif as_json:
        answer([_plain(rule) for rule in found])
    else:
        print("\n".join(rulebook.summary(found)))
        for rule in found:
            print(f"{rule.anchor:11} {rule.id}: {'; '.join(rulebook.does_what(rule.effect))} {rule.effect.reason}")


def _in_force(directory: Path) -> list[Rule]:
    from tidings.gate.loading import load_policy
    from tidings.settings import load

    return list(load_policy(load(directory, secrets=False)).rules)


def _plain(rule: Rule) -> dict[str, Any]:
    from tidings.gate.rulebook import does_what

    return {
        "id": rule.id,
        "anchor": rule.anchor,
        "does": list(does_what(rule.effect)),
        "reason": rule.effect.reason,
        "statutes": list(rule.statutes),
        "examples": len(rule.examples),
        "place": f"{rule.file}:{rule.line}",
    }
