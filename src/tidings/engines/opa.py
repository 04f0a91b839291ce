"""Rego in an OPA server: `url` is a package's document, which holds `findings` and `revision`.

Built-in errors are asked to be strict. As in every Rego, a rule that compares null without asking for it first objects to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidings.engines.answers import Broken
from tidings.engines.server import asked, same


def connect(url: str, revision: str, timeout_s: float, allow: Sequence[str]) -> Callable[[Mapping[str, Any]], object]:
    def answer(question: Mapping[str, Any]) -> object:
        said = asked(f"{url}?strict-builtin-errors=true", {"input": question}, timeout_s, allow)
        result = said.get("result")
        if not isinstance(result, dict) or "findings" not in result:
            raise Broken("findings are undefined")
        same(result.get("revision"), revision)
        return result["findings"]

    return answer
