"""What a contract says of its masters, held against the sources there are: each exists, writes the contract, and none is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidings.contract import Masters
from tidings.errors import Problem
from tidings.reading import did_you_mean, listed
from tidings.shapes import Source
from tidings.yaml_lines import Document


def masters(page: Document, name: str, said: Masters, sources: Mapping[str, Source]) -> Iterator[Problem]:
    """A source that writes the contract and is not listed would be compared with nobody, so it is a problem too."""
    writing = {source for source, one in sources.items() if name in one.entities.values()}
    for at, source in enumerate(said.sources):
        if source not in sources:
            says = (source, f"one of {listed(sources)}", f"Name a source that exists.{did_you_mean(source, sources)}")
            yield page.problem(("masters", "sources", at), "unknown_source", *says)
        elif source not in writing:
            says = (
                f"{source}, which maps no table to {name}",
                f"one of {listed(writing)}",
                "Map a table, or remove it.",
            )
            yield page.problem(("masters", "sources", at), "unknown_source", *says)
    if said.preferred and said.preferred not in said.sources:
        says = (f"prefer {said.preferred}", f"prefer one of {listed(said.sources)}", "Prefer one of the masters.")
        yield page.problem(("masters", "on_conflict"), "unknown_source", *says)
    if left := writing - set(said.sources):
        says = (f"{listed(left)} not among the masters", "every source that writes this contract", "Add it.")
        yield page.problem(("masters", "sources"), "master_missing", *says)
