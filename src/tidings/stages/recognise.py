"""Which dialect a message speaks: the first in the catalogue's order whose test holds."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidings.stages.decode import PREFIX, Shape
from tidings.stages.dialect import Dialect
from tidings.stages.functions import let
from tidings.stages.language import Read, Scope


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
