"""The vendors whose payment tokens a field may hold, from the catalogue: what their tokens look like. No Spark.

`opaque` formats cannot be a card number. `card_like` ones can, so nobody can tell such a token from a card by looking: the operator's
word that the vendor made it is what keeps it from being masked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from tidings import yaml_lines


@dataclass(frozen=True)
class Vendor:
    """One vendor's formats, as patterns that mean the same to Java and to Python."""

    name: str
    opaque: tuple[str, ...]
    card_like: tuple[str, ...]

    @property
    def whole(self) -> str:
        """A value that is a token of this vendor and nothing else."""
        return f"^(?:{'|'.join((*self.opaque, *self.card_like))})$"


@cache
def vendors() -> dict[str, Vendor]:
    """Key → vendor."""
    found = {}
    for entry in sorted(files("tidings").joinpath("catalog/tokens").iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".yaml"):
            document, problems = yaml_lines.parse(entry.read_text(encoding="utf-8"), f"catalog/tokens/{entry.name}")
            assert document is not None, problems
            said = document.data
            formats = [tuple(map(str, said.get(kind) or ())) for kind in ("opaque", "card_like")]
            found[entry.name.removesuffix(".yaml")] = Vendor(str(said["name"]), *formats)
    return found
