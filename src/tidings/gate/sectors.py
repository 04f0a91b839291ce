"""The body of law a line of business stands under: health, finance, securities, legal, government, or none of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import yaml


@cache
def _sectors() -> Mapping[str, str]:
    text = files("tidings").joinpath("catalog/taxonomy/sectors.yaml").read_text(encoding="utf-8")
    return {vertical: sector for sector, lines in yaml.safe_load(text)["sectors"].items() for vertical in lines}


def sectors() -> tuple[str, ...]:
    return (*dict.fromkeys(_sectors().values()), "none")


def sector(vertical: str) -> str:
    return _sectors().get(vertical, "none")
