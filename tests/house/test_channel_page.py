"""docs/channels.md says of every channel what its own file says of it."""

from __future__ import annotations

import ast
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tidings.channels.kinds import KINDS, guarantee, table
from tidings.channels.manifest import manifest_names, shipped_manifest

sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))
from rigs import RIGS  # isort: skip

PAGE = Path(__file__).parents[2] / "docs" / "channels.md"


def test_the_page_shows_every_promise() -> None:
    page = PAGE.read_text(encoding="utf-8").splitlines()
    begin = page.index(table()[0])
    assert page[begin : begin + len(table())] == table()


def _sink(name: str) -> str:
    manifest = shipped_manifest(name)
    assert manifest.sink is not None
    once = "yes" if "exactly-once" in manifest.capabilities().semantics else "no"
    return f"| `{name}` | {manifest.title} | {manifest.sink.ack} | {once} |"


def test_the_page_lists_every_sink() -> None:
    listed = PAGE.read_text(encoding="utf-8").partition("\n## Sinks\n")[2].partition("\n### ")[0]
    said = [line for line in listed.splitlines() if line.startswith("| `")]
    assert said == [_sink(name) for name in manifest_names() if shipped_manifest(name).sink]


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_channel_says_what_breaks_its_guarantee(name: str) -> None:
    spec = find_spec(KINDS[name])
    assert spec is not None
    assert spec.origin is not None
    said = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    assert "What breaks its guarantee" in said
    assert guarantee(name).breaks


@pytest.mark.parametrize("name", [name for name in manifest_names() if shipped_manifest(name).sink])
def test_a_manifest_claims_no_more_than_its_channel(name: str) -> None:
    manifest = shipped_manifest(name)
    assert manifest.sink is not None
    assert manifest.sink.ack <= guarantee(manifest.channel).strength


def test_every_channel_goes_through_the_one_suite() -> None:
    assert {shipped_manifest(rig.manifest).channel for rig in RIGS} == set(KINDS)
