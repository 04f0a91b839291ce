"""The three sets of five anchors: under which names the results of our anchors stand in the ledger.

A preset renames and never decides: rules, rollouts and reasons keep the gate's own words. An entry names the preset it was
written under, so a reader needs no configuration to tell what a name in it means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import yaml

from tidings.gate.facts import ANCHORS

DEFAULT = "event-operations"


@dataclass(frozen=True)
class Preset:
    name: str
    title: str
    about: str
    names: Mapping[str, str]  # anchor → the name of its result
    titles: Mapping[str, str]  # anchor → what a person calls it


@cache
def preset_named(name: str) -> Preset:
    """A preset of the catalogue; the operator's folder can only name one that is there."""
    text = files("tidings").joinpath(f"catalog/presets/{name}.yaml").read_text(encoding="utf-8")
    said = yaml.safe_load(text)
    anchors = {anchor: said["anchors"][anchor] for anchor in ANCHORS}
    return Preset(
        name=name,
        title=said["title"],
        about=said["about"],
        names={anchor: entry["name"] for anchor, entry in anchors.items()},
        titles={anchor: entry["title"] for anchor, entry in anchors.items()},
    )
