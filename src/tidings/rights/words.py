"""The words of pages and mails for people, one file to a language: catalog/form/LANGUAGE.yaml."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from tidings.errors import Refused


@cache
def words(language: str) -> dict[str, Any]:
    shelf = files("tidings").joinpath("catalog/form")
    known = sorted(entry.name.removesuffix(".yaml") for entry in shelf.iterdir() if entry.name.endswith(".yaml"))
    if language not in known:
        raise Refused("no_words", f"rights.language: {language}", f"one of {', '.join(known)}", "Name one of them.")
    found: dict[str, Any] = yaml.safe_load(shelf.joinpath(f"{language}.yaml").read_text(encoding="utf-8"))
    return found
