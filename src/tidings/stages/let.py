"""A value that is computed once per row and used many times; a plain reference would compute it at each use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

Let = Callable[[Column, Callable[[Column], Column]], Column]


def let(value: Column, body: Any) -> Column:
    """The value inside one expression. Spark interprets what stands in a lambda, so this is for rare branches and for items of a list."""
    return F.get(F.transform(F.array(value), body), F.lit(0))


class Steps:
    """Each value a column of its own beside the rows, computed before what uses it: Spark makes code of all of it."""

    def __init__(self, rows: DataFrame) -> None:
        self.rows, self._count = rows, 0

    def let(self, value: Column, body: Callable[[Column], Column]) -> Column:
        self._count += 1
        name = f"step_{self._count}"
        self.rows = self.rows.withColumn(name, value)
        return body(F.col(name))
