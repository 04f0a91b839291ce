"""Oso's Polar in this machine; legacy: the library is not developed any more. Every answer to `finding(facts, recipient, found)`.

Unknown facts are nil. A name that is not a fact raises in Polar, and so does a rule that runs for too long: both are no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from tidings.engines.answers import Broken

EXTRA = "oso"
MODULE = "oso"


def load(files: Mapping[str, str]) -> Callable[[Mapping[str, Any]], object]:
    from oso import Oso, OsoError, Variable

    oso: Any = Oso()
    try:
        oso.load_str("\n".join(files.values()))
    except OsoError as error:
        raise Broken(f"{', '.join(files)}: {_said(error)}") from None

    def answer(question: Mapping[str, Any]) -> object:
        # Objects, not dictionaries: of those a name that does not exist would only fail to match, and object to nothing.
        asked = SimpleNamespace(**question["facts"]), SimpleNamespace(**question["recipient"]), Variable("found")
        try:
            return [_plain(each["bindings"]["found"]) for each in oso.query_rule("finding", *asked)]
        except OsoError as error:
            raise Broken(_said(error)) from None

    return answer


def _said(error: Exception) -> str:
    """What went wrong without the way there, which would repeat the facts."""
    lines = [
        line for line in str(error).splitlines() if line and not line[0].isspace() and not line.startswith("trace")
    ]
    return (lines or ["an error"])[0][:200]


def _plain(value: Any) -> Any:
    """Polar hands back its own values; only plain data leaves here."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    raise Broken(f"a finding that holds a {type(value).__name__}")
