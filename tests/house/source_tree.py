"""The package's source as syntax trees, for the rules of the house."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "tidings"


def files(under: str = "") -> list[Path]:
    """Python files of the package, or of one room of it."""
    return sorted(path for path in (PACKAGE / under).rglob("*.py") if "__pycache__" not in path.parts)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def module_name(path: Path) -> str:
    """`src/tidings/gate/rules.py` → `gate.rules`; a room's `__init__` is the room."""
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def calls(root: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Every call with the last part of the called name."""
    for node in ast.walk(root):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            yield name, node


def imports(root: ast.Module, *, lazy: bool = True) -> Iterator[str]:
    """Imported module names; `lazy=False` leaves out what is imported inside functions or only for types."""
    for node in ast.walk(root) if lazy else _at_import(root):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _at_import(root: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(root):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _at_import(node)
