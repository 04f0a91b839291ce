"""Casbin in this machine: a model (.conf) and its policy (.csv); every line that the matcher meets is a finding.

The model's columns are named like the parts of a finding (`p = rule, when, outcome, reason, …`); others serve its matcher, which is
asked for each line by itself: the engine alone would stop at the first line that decides. Unknown facts are None. A condition that
names a fact nobody declared, or compares what cannot be compared, is an error, and an error is no answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from tidings.engines.answers import Broken, from_text

EXTRA = "casbin"
MODULE = "casbin"
COLUMNS = (
    "rule", "anchor", "outcome", "reason", "statutes", "missing", "redact", "semantics", "priority", "deadline", "ack",
    "retention", "reach", "tags",
)  # fmt: skip


def load(files: Mapping[str, str]) -> Callable[[Mapping[str, Any]], object]:
    import casbin
    from casbin.persist.adapters.string_adapter import StringAdapter

    logging.disable(logging.CRITICAL)  # it logs every request it refuses, facts included
    models = [text for name, text in files.items() if name.endswith(".conf")]
    lines = [line.strip() for name, text in files.items() if name.endswith(".csv") for line in text.splitlines()]
    if len(models) != 1 or not any(lines):
        raise Broken("it takes one model (.conf) and policy lines (.csv)")
    model = casbin.Model()
    model.load_model_from_text(models[0])
    width = len(model["p"]["p"].tokens)
    names = [token.removeprefix("p_") for token in model["p"]["p"].tokens]
    if "rule" not in names:
        raise Broken("the model's policy definition has no column `rule`")
    findings, enforcers = [], []
    for line in (line for line in lines if line and not line.startswith("#")):
        enforcer = casbin.Enforcer(_copy(models[0]), StringAdapter(line))
        rows = enforcer.get_policy()
        if len(rows) != 1 or len(rows[0]) != width:
            raise Broken(f"a line that is not {width} columns of p: {line[:60]}")
        columns = dict(zip(names, rows[0], strict=True))
        findings.append(from_text({key: columns[key] for key in COLUMNS if key in columns}))
        enforcers.append(enforcer)

    def answer(question: Mapping[str, Any]) -> object:
        asked = question["facts"], question["recipient"]
        return [found for found, one in zip(findings, enforcers, strict=True) if one.enforce(*asked)]

    return answer


def _copy(text: str) -> Any:
    import casbin

    model = casbin.Model()
    model.load_model_from_text(text)
    return model
