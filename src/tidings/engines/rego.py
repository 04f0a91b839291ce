"""Rego in this machine (regopy): every `findings` of `package tidings.gate`.

Breaks when: a rule reads a fact that was not declared (it would be undefined, and an undefined rule objects to nothing), so the
names are checked when the policy is read; and when a rule compares an unknown fact, which is null, without asking for null first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from tidings.engines.answers import Broken

PACKAGE = "tidings.gate"
ENTRY = "tidings/gate/findings"
EXTRA = "rego"
MODULE = "regopy"
# How a policy names what it reads; anything else that begins with `input` could hide a name from the check. Texts and comments
# are met first, so that the word may stand in them.
NAMES = re.compile(
    r"#[^\n]*|`[^`]*`|\"(?:[^\"\\\n]|\\.)*\"|\binput\b(?:\.(facts|recipient)(?:\.([A-Za-z_]\w*)|\[\"([^\"]*)\"\]))?"
)


def load(files: Mapping[str, str]) -> Callable[[Mapping[str, object]], object]:
    from regopy import Interpreter, RegoError

    rego = Interpreter()
    # Otherwise a failing built-in is undefined, and what is undefined objects to nothing.
    rego.strict_built_in_errors = True
    for name, text in files.items():
        try:
            rego.add_module(name, text)
        except RegoError as error:
            raise Broken(_place(name, text, str(error))) from None
    try:
        bundle = rego.build(None, [ENTRY])
        silent = str(rego.query(f"data.{PACKAGE}")) == "undefined"
    except Exception:
        raise Broken(f"{PACKAGE} could not be compiled") from None
    if silent:
        raise Broken(f"no package {PACKAGE}")

    def answer(question: Mapping[str, object]) -> object:
        rego.set_input(question)
        output = rego.query_bundle_entrypoint(bundle, ENTRY)
        if not output.ok():
            raise Broken("an error while it was evaluated")
        text = str(output)
        found = json.loads(text) if text != "undefined" else {}
        values = found.get("expressions", []) if isinstance(found, dict) else []
        if len(values) != 1:
            raise Broken("findings are undefined")
        return values[0]

    return answer


def _place(name: str, text: str, said: str) -> str:
    """The engine names an offset; a person wants a line."""
    offset = re.search(r"\|(\d+)\|\d+", said)
    message = re.search(r"errormsg \d+:([^()\n]*)", said)
    line = text.count("\n", 0, int(offset[1])) + 1 if offset else 1
    return f"{name}:{line}: {message[1] if message else 'it cannot be read'}"
