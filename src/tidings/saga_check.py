"""Whether a saga fits the folder: its subscribers are told of the change, and each has a way back of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidings.errors import Problem
from tidings.shapes import HUMAN, Saga
from tidings.yaml_lines import Document

if TYPE_CHECKING:
    from tidings.crosscheck import Folder

DIALECT = "table_diff"  # what a change that is taken back is written in


def saga_problems(folder: Folder, page: Document, saga: Saga) -> Iterator[Problem]:
    if saga.of not in folder.change_types:
        yield page.problem(("of",), "saga", f"the change type {saga.of}", "one that a contract gives", "Mend the name.")
    if [one.of for one in folder.sagas.values()].count(saga.of) > 1:
        yield page.problem(("of",), "saga", f"{saga.of} in another saga too", "one saga of it", "Make them one.")
    for name, way in saga.participants.items():
        place = ("participants", name)
        subscriber = folder.subscribers.get(name)
        if subscriber is None:
            yield page.problem(place, "saga", f"no subscriber {name}", "one of subscribers/", "Mend the name.")
        elif not {"*", saga.of} & set(subscriber.types):
            found = f"{name}, which is not told of {saga.of}"
            yield page.problem(place, "saga", found, "a subscriber of that change type", "Add it to its types.")
        if way != HUMAN:
            yield from _way_back(folder, page, saga, name)


def _way_back(folder: Folder, page: Document, saga: Saga, name: str) -> Iterator[Problem]:
    way, place = saga.participants[name], ("participants", name)
    source = folder.sources.get(way)
    if source is None or (source.kind, source.dialect, source.images) != ("inbox", DIALECT, "full"):
        expected = f"human, or a source with `kind: inbox`, `dialect: {DIALECT}` and `images: full`"
        yield page.problem(place, "saga", f"the source {way}", expected, f"Write sources/{way}.yaml.")
    users = [other for one in folder.sagas.values() for other, used in one.participants.items() if used == way]
    if set(users) != {name}:
        found = f"{way} for {' and '.join(sorted(set(users)))}"
        yield page.problem(place, "saga", found, "a source for each subscriber", "Write one source more.")
