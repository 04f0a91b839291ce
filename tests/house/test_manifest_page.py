"""docs/manifests.md says of every manifest what the catalogue says of it."""

from __future__ import annotations

from pathlib import Path

from tidings.channels.manifest import manifest_names, shipped_manifest
from tidings.channels.normalise import FUNCTIONS, NORMALISER_VERSION
from tidings.channels.verbs import VERBS, Verb

PAGE = (Path(__file__).parents[2] / "docs" / "manifests.md").read_text(encoding="utf-8")


def told(name: str, verb: Verb) -> str:
    """`erase A1?` has a read that verifies it, `suppress A2…` a job that is followed."""
    return f"{name} {verb.ack}" + ("…" if verb.probe else "?" if verb.verify else "")


def row(name: str) -> str:
    manifest = shipped_manifest(name)
    verbs = ", ".join(told(*one) for one in manifest.verbs.items())
    return f"| `{name}` | {manifest.title} | {verbs} | {manifest.auth.kind} | {manifest.confidence} |"


def test_the_page_and_the_catalogue_agree() -> None:
    listed = PAGE.partition("\n## What there is\n")[2]
    said = [line for line in listed.splitlines() if line.startswith("| `")]
    assert said == [row(name) for name in manifest_names() if shipped_manifest(name).channel == "http"]


def test_every_function_and_verb_is_explained() -> None:
    assert {name for name in (*FUNCTIONS, *VERBS) if f"`{name}`" not in PAGE} == set()
    assert f"normaliser-{NORMALISER_VERSION}" in PAGE
