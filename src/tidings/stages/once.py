"""Columns are names and operators, not data: built once per process, used for every batch.

Building a column is a call into the JVM per operator. The tree of a batch has thousands, which cost a second each time; kept,
they cost nothing. What differs between batches is therefore never a literal in a column but a column of the one-row frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from pyspark import SparkContext

P = ParamSpec("P")
R = TypeVar("R")
_PLAIN = (str, int, bool, type(None))


@contextmanager
def building() -> Iterator[None]:
    """While a plan is built once and for all, do not tell the JVM of each little object that Python has let go of.

    It is told one by one, as slowly as each was made; what stays behind are a few thousand names, once per process.
    """
    context = SparkContext._active_spark_context
    told = context._gateway.gateway_property if context is not None and context._gateway is not None else None
    if told is None or not told.enable_memory_management:
        yield
        return
    told.enable_memory_management = False
    try:
        yield
    finally:
        told.enable_memory_management = True


def built_once(build: Callable[P, R]) -> Callable[P, R]:
    """Keep what `build` returns for the same arguments; plain values compare by value, everything else by identity."""
    kept: dict[tuple[Any, ...], tuple[Any, R]] = {}

    @wraps(build)
    def get(*args: P.args, **kwargs: P.kwargs) -> R:
        given = (*args, *kwargs.values())
        key = tuple(value if isinstance(value, _PLAIN) else id(value) for value in given)
        if key not in kept:
            with building():
                kept[key] = (given, build(*args, **kwargs))  # the arguments stay alive, so an id stays theirs
        return kept[key][1]

    return get
