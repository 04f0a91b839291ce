"""Columns are names and operators, not data: built once per process, used for every batch.

Building a column is a call into the JVM per operator. The tree of a batch has thousands, which cost a second each time; kept,
they cost nothing. What differs between batches is therefore never a literal in a column but a column of the one-row frame.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
_PLAIN = (str, int, bool, type(None))


def built_once(build: Callable[P, R]) -> Callable[P, R]:
    """Keep what `build` returns for the same arguments; plain values compare by value, everything else by identity."""
    kept: dict[tuple[Any, ...], tuple[Any, R]] = {}

    @wraps(build)
    def get(*args: P.args, **kwargs: P.kwargs) -> R:
        given = (*args, *kwargs.values())
        key = tuple(value if isinstance(value, _PLAIN) else id(value) for value in given)
        if key not in kept:
            kept[key] = (given, build(*args, **kwargs))  # the arguments stay alive, so an id stays theirs
        return kept[key][1]

    return get
