"""Every verb takes -C and --json, is listed, and opens without Spark."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import typer
from source_tree import PACKAGE

from tidings.cli import STEPS, VERBS, application
from tidings.verbs import lanes, rights
from tidings.verbs.gate import PARTS


def commands(command: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], set[str]]:
    """Every command that can be run, with the options it takes; a group counts when it runs by itself."""
    below = getattr(command, "commands", {})
    found = {leaf: options for name, child in below.items() for leaf, options in commands(child, (*path, name)).items()}
    if not below or (path and command.invoke_without_command):
        found[path] = {option for parameter in command.params for option in parameter.opts}
    return found


def test_every_verb_takes_a_folder_and_answers_in_json() -> None:
    found = commands(typer.main.get_command(application()))
    assert {("init",), ("check",)} <= set(found)
    assert {verb: {"-C", "--json"} - options for verb, options in found.items() if {"-C", "--json"} - options} == {}


def test_every_verb_module_is_listed() -> None:
    modules = {
        path.stem for path in (PACKAGE / "verbs").glob("*.py") if "def register(" in path.read_text(encoding="utf-8")
    }
    assert modules == {
        *VERBS.values(),
        *STEPS,
        *(part.__name__.rpartition(".")[2] for part in (*PARTS, *lanes.PARTS, *rights.PARTS)),
    }


def test_a_verb_is_named_as_it_is_listed() -> None:
    for verb in VERBS:
        assert verb in typer.main.get_command(application(verb)).commands  # type: ignore[attr-defined]


def test_help_opens_at_once() -> None:
    probe = "import sys; from tidings.cli import application; application(); print(*sorted(m for m in sys.modules if '.' not in m))"
    loaded = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pyspark", "py4j", "deltalake", "pyarrow", "pandas"} & set(loaded)
    begun = time.monotonic()
    subprocess.run([sys.executable, "-m", "tidings.cli", "--help"], capture_output=True, check=True)
    assert time.monotonic() - begun < 5  # half a second on an idle machine; this only catches a heavy import
