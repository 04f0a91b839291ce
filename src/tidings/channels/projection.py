"""Which columns an event becomes: `email = email, tier = after.tier | lower`, in the mapping language of manifests.

What is not in the event leaves its column as it is, null makes it null, and objects and lists go as JSON text. With
no columns named the whole envelope goes into one, called `envelope`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidings.channels.call import Member
from tidings.channels.mapping import Scope, check_template
from tidings.channels.normalise import ABSENT
from tidings.errors import Refused
from tidings.stages import envelope


@dataclass(frozen=True)
class Projection:
    """A table, the column that names a row, and the columns with what goes into them."""

    table: tuple[str, ...]
    key: tuple[str, str]
    columns: Mapping[str, str]
    erases: frozenset[str]
    scope: Scope = field(repr=False)

    @property
    def is_log(self) -> bool:
        """One row for each event: nothing is ever overwritten, so nothing can be too old."""
        return self.key[1] == "member.event_id"

    def key_of(self, member: Member) -> Any:
        """The value that names the member's row; ABSENT when the event has none."""
        found = self._scoped(member).evaluate(self.key[1])
        return ABSENT if found is None or found == "" else _plain(found)

    def row_of(self, member: Member) -> dict[str, Any]:
        """Column → value, for what the event has."""
        if not self.columns:
            return {"envelope": envelope.structured(member.body)[1].decode()}
        scope = self._scoped(member)
        found = {column: scope.evaluate(text) for column, text in self.columns.items()}
        return {column: _plain(value) for column, value in found.items() if value is not ABSENT}

    def _scoped(self, member: Member) -> Scope:
        return Scope(member, self.scope.variables, self.scope.fields)


def projection(variables: Mapping[str, str], fields: Mapping[str, tuple[str, ...]]) -> Projection:
    """From the subscriber's `vars`: table, key, columns and erase. Refused says which part cannot be read."""
    table = tuple(part.strip() for part in variables["table"].split("."))
    keys = _pairs(variables["key"], "vars.key")
    if not all(table) or len(table) > 2 or len(keys) != 1:
        found = f"table {variables['table']!r}, key {variables['key']!r}"
        raise Refused("sink_columns", found, "`table` or `schema.table`, and one key", "Mend `vars:`.")
    erases = frozenset(word.strip() for word in variables["erase"].split(",") if word.strip())
    columns = _pairs(variables["columns"], "vars.columns")
    return Projection(table, next(iter(keys.items())), columns, erases, Scope(None, variables, fields))


def _pairs(text: str, where: str) -> dict[str, str]:
    """`column = expression` between commas; a column alone is the field of its name."""
    found: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        column, _, expression = (side.strip() for side in part.partition("="))
        expression = expression or column
        try:
            check_template(f"={expression}")
        except ValueError:
            raise Refused("sink_columns", f"{where}: {part!r}", "`column = field | function`", "Mend it.") from None
        if not column or column in found or "\x00" in column:
            raise Refused("sink_columns", f"{where}: {part!r}", "each column once", "Mend it.")
        found[column] = expression
    return found


def _plain(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False, allow_nan=False) if isinstance(value, dict | list) else value
