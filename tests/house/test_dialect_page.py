"""docs/dialects.md says of every dialect what the catalogue says of it."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import yaml

from tidings.stages.dialect import load, names

PAGE = Path(__file__).parents[2] / "docs" / "dialects.md"
OWN = ("change_table", "mysql_rows", "postgresql_wal", "table_diff", "table_row")
STATUS = dict.fromkeys(OWN, "real server") | {"dynamodb_streams": "emulator"}  # the others: documented samples


def row(name: str) -> str:
    text = files("tidings").joinpath("catalog", "dialects", f"{name}.yaml").read_text(encoding="utf-8")
    tree = yaml.safe_load(text)
    dialect = load(name)
    inner = load(dialect.inside[0]) if dialect.inside else dialect
    ordered = "yes" if inner.fields["ordering"].reads else "no"
    return f"| `{name}` | {tree['title']} | {ordered} | {tree['confidence'].split()[0]} | {STATUS.get(name, 'documented sample')} |"


def test_the_page_and_the_catalogue_agree() -> None:
    said = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert said == [row(name) for name in sorted(names())]
