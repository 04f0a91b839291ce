"""Every error a person can meet has a heading in docs/errors.md that says what to do."""

from __future__ import annotations

import ast
import re

from source_tree import ROOT, calls, files, module_name, tree

DOCUMENT = ROOT / "docs" / "errors.md"
# Which argument holds the code; -1 means the first literal that looks like one (methods that put a problem on a pile).
WHERE = {
    "TidingsError": 0,
    "Refused": 0,
    "SourceStopped": 0,
    "SubscriberError": 0,
    "Damaged": 0,
    "Problem": 3,
    "Wrong": 2,
    "problem": -1,
    "say": -1,
    "_problem": -1,
    "_wrong": 1,
    "_stop": -1,
    "_report": -1,
    "known_name": -1,
}
CODE = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")


def codes(root: ast.AST) -> set[str]:
    found = set()
    for name, call in calls(root):
        if name not in WHERE or (name == "_wrong" and ast.unparse(call.args[0]) == "subscriber"):
            continue  # a channel's `_wrong` is given a path; its one code stands in a Problem
        texts = [
            node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "" for node in call.args
        ]
        at = WHERE[name]
        picked = texts[at : at + 1] if at >= 0 else [text for text in texts if CODE.fullmatch(text)][:1]
        found |= {text for text in picked if text}
    return found


def headings() -> set[str]:
    return set(re.findall(r"^### `([a-z0-9_-]+)`$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE))


def test_every_code_is_explained() -> None:
    known = headings()
    assert {module_name(path): missing for path in files() if (missing := codes(tree(path)) - known)} == {}


def test_no_heading_explains_what_is_gone() -> None:
    used = {node.value for path in files() for node in ast.walk(tree(path)) if isinstance(node, ast.Constant)}
    assert headings() - {str(value) for value in used} == set()


def test_codes_are_found_where_they_are_used() -> None:
    planted = "Refused('gone_wrong', 'x'); document.problem(('a',), 'bad_key', 'f', 'e', 'w'); Problem('f', 1, 'p', 'odd', 'f', 'e', 'w')"
    assert codes(ast.parse(planted)) == {"gone_wrong", "bad_key", "odd"}
