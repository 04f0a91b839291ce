"""Who may know whom: catalog ← settings ← stages, gate ← flow ← run; the ledger without Spark; channels without policy."""

from __future__ import annotations

import ast

import pytest
from source_tree import PACKAGE, files, imports, module_name, tree

SETTINGS = (
    "yaml_lines",
    "errors",
    "contract",
    "shapes",
    "reading",
    "secret",
    "policy",
    "crosscheck",
    "kinds",
    "settings",
)
ABOVE_SETTINGS = (
    "stages",
    "gate",
    "flow",
    "run",
    "store",
    "lanes",
    "channels",
    "sources",
    "rights",
    "report",
    "verbs",
    "cli",
)

# Who → what it must not import, wherever the import stands.
FORBIDDEN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(SETTINGS, ABOVE_SETTINGS),
    # A promise is checked against what the vendor's manifest carries, so this one file may look at manifests.
    "crosscheck": tuple(room for room in ABOVE_SETTINGS if room != "channels"),
    "stages": ("flow", "run", "lanes", "channels", "rights", "report", "verbs", "cli"),
    "gate": ("flow", "run", "lanes", "channels", "rights", "report", "verbs", "cli"),
    "engines": ("stages", "flow", "run", "lanes", "rights", "report", "verbs", "cli"),
    "flow": ("run", "lanes", "channels", "verbs", "cli"),
    "ledger": ("stages", "gate", "flow", "run", "lanes", "channels", "cli"),
    "channels": ("gate", "policy", "rights", "lanes", "flow", "run", "store", "ledger", "verbs", "cli"),
    "seal": ("gate", "flow", "run", "lanes", "channels", "verbs", "cli"),
    "run": ("verbs", "cli"),
    "lanes": ("run", "verbs", "cli"),
    "sources": ("gate", "flow", "run", "lanes", "channels", "verbs", "cli"),
}
NO_SPARK = (
    "ledger",
    "lanes.machine",
    "lanes.retry",
    "lanes.breaker",
    "lanes.semantics",
    *SETTINGS,
    "plan",
    "cli",
    "verbs",
)


def inside(module: str, room: str) -> bool:
    return module == room or module.startswith(f"{room}.")


def offences(module: str, root: ast.Module) -> list[str]:
    """Imports of this module that its room must not make."""
    found = []
    for room, banned in FORBIDDEN.items():
        if not inside(module, room):
            continue
        for name in set(imports(root)):
            target = name.removeprefix("tidings.")
            if name != target and any(inside(target, other) for other in banned):
                found.append(f"{module} imports {name}")
    return sorted(found)


def test_imports_point_one_way() -> None:
    assert [found for path in files() for found in offences(module_name(path), tree(path))] == []


PLANTED = [
    ("stages.event", "from tidings.run import go"),
    ("settings", "def late():\n    from tidings.gate.rules import Rule"),
    ("channels.http", "from tidings import policy"),
    ("ledger.tiles", "import tidings.flow"),
]


@pytest.mark.parametrize(("module", "text"), PLANTED)
def test_a_planted_import_is_found(module: str, text: str) -> None:
    assert offences(module, ast.parse(text))


def spark_reach(module: str, seen: set[str]) -> str:
    """The chain of module-level imports from here to Spark, or nothing."""
    if module in seen:
        return ""
    seen.add(module)
    path = PACKAGE / (module.replace(".", "/") + ".py")
    path = path if path.is_file() else PACKAGE / module.replace(".", "/") / "__init__.py"
    if not path.is_file():
        return ""
    for name in imports(tree(path), lazy=False):
        if name.split(".")[0] in ("pyspark", "py4j"):
            return f"{module} → {name}"
        if name.startswith("tidings.") and (chain := spark_reach(name.removeprefix("tidings."), seen)):
            return f"{module} → {chain}"
    return ""


@pytest.mark.parametrize("room", NO_SPARK)
def test_these_rooms_open_without_spark(room: str) -> None:
    modules = [module_name(path) for path in files() if inside(module_name(path), room)]
    assert [chain for module in modules if (chain := spark_reach(module, set()))] == []


def test_a_room_that_uses_spark_is_seen_to() -> None:
    assert spark_reach("flow", set())


def test_the_catalogue_is_data() -> None:
    assert files("catalog") == []
