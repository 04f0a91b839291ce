"""Which dialect a message speaks: the first in the catalogue's order whose test holds."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidings.stages.decode import PREFIX, Shape
from tidings.stages.dialect import Dialect
from tidings.stages.functions import let
from tidings.stages.language import Read, Scope

KAFKA = ("topic", "key", "value", "headers", "timestamp")


def recognised(dialects: Sequence[Dialect], root: Column) -> Column:
    """The place of the message's dialect in the list, or null; one walk takes what all tests read."""
    reads = frozenset[Read]().union(*[dialect.recognise.reads for dialect in dialects])
    shape = Shape(sorted(reads, key=lambda read: (read.segments, read.as_type)))

    def chosen(taken: Column) -> Column:
        scope = Scope(root, PREFIX, shape.columns(taken))
        index: Column = F.lit(None).cast("int")
        for place, dialect in reversed(list(enumerate(dialects))):
            index = F.when(dialect.recognise.make(scope), F.lit(place)).otherwise(index)
        return index

    return let(shape.take(root, PREFIX), chosen)


def unwrapped(wrappers: Sequence[Dialect], root: Column) -> Column:
    """`{wrapper, root}`: the message with its wrapper taken off, and the place of the wrapper that was on it."""
    scope = Scope(root, PREFIX, {})
    chosen: Column = F.struct(F.lit(None).cast("int").alias("wrapper"), root.alias("root"))
    for place, wrapper in reversed(list(enumerate(wrappers))):
        opened = F.struct(F.lit(place).alias("wrapper"), _opened(wrapper, scope).alias("root"))
        chosen = F.when(wrapper.recognise.make(scope), opened).otherwise(chosen)
    return chosen


def _opened(wrapper: Dialect, scope: Scope) -> Column:
    """A new message: the fields the wrapper names from inside it, the others as they are."""
    inner = dict(wrapper.unwrap)
    made = []
    for name in KAFKA:
        outer = scope.direct(Read((name,), "variant"))
        made.append(
            (F.coalesce(scope.direct(Read(inner[name], "variant")), outer) if name in inner else outer).alias(name)
        )
    return F.to_variant_object(F.array(F.struct(*made)))
