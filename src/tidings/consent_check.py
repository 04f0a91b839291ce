"""Whether the consent platforms of `rights:` fit the folder: each has a source of its dialect, and can be proved."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from importlib.resources import files
from typing import TYPE_CHECKING

import yaml

from tidings.errors import Problem
from tidings.yaml_lines import Document, Place

if TYPE_CHECKING:
    from tidings.crosscheck import Folder
    from tidings.shapes import Operator


def consent_problems(folder: Folder, page: Document, operator: Operator) -> Iterator[Problem]:
    hooks = operator.rights.consent if operator.rights else ()
    text = files("tidings").joinpath("catalog/signals/platforms.yaml").read_text(encoding="utf-8") if hooks else "{}"
    known = yaml.safe_load(text).get("platforms", {})
    for at, hook in enumerate(hooks):
        place = ("rights", "consent", at)
        source = folder.sources.get(hook.source)
        if source is None or source.kind != "inbox" or source.dialect not in (hook.platform, "auto"):
            expected = f"a source with `kind: inbox` and `dialect: {hook.platform}`"
            now = f"Write sources/{hook.source}.yaml."
            yield page.problem((*place, "source"), "consent_platform", f"the source {hook.source}", expected, now)
        if known[hook.platform].get("networks_needed") and not hook.networks:
            found, expected = "no networks", f"the networks {hook.platform} calls from, which signs nothing"
            yield page.problem(place, "consent_platform", found, expected, "Add networks.")
        if not all(map(_is_network, hook.networks)):
            found, expected = "a network that is none", "networks such as 192.0.2.0/24"
            yield page.problem((*place, "networks"), "consent_platform", found, expected, "Mend it.")
        if [one.platform for one in hooks].count(hook.platform) > 1:
            yield page.problem(place, "consent_platform", f"{hook.platform} twice", "each once", "Remove one.")


def consent_references(operator: Operator) -> Iterator[tuple[str, Place, str]]:
    for at, hook in enumerate(operator.rights.consent if operator.rights else ()):
        yield "tidings.yaml", ("rights", "consent", at, "secret"), hook.secret


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True
