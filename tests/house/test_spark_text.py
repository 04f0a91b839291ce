"""No text that could come from configuration reaches Spark's SQL parser, and no stage evaluates Python."""

from __future__ import annotations

import ast

import pytest
from source_tree import calls, files, module_name, tree

ALL_TEXT = ("expr", "selectExpr", "sql")
FIRST_TEXT = ("call_function", "createOrReplaceTempView", "createGlobalTempView")
FILTERS = ("filter", "where")
PYTHON = (
    "udf",
    "pandas_udf",
    "mapInPandas",
    "applyInPandas",
    "applyInArrow",
    "transformWithState",
    "transformWithStateInPandas",
)
DRIVER = ("collect", "toPandas", "toLocalIterator", "toArrow", "foreach", "foreachPartition")


def is_literal(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant)


def is_made_text(node: ast.expr) -> bool:
    """Text put together at run time: an f-string, a concatenation or formatting with a literal, `str(...)`, `join`."""
    if isinstance(node, ast.JoinedStr):
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        return any(
            is_made_text(part) or isinstance(getattr(part, "value", None), str) for part in (node.left, node.right)
        )
    if isinstance(node, ast.Call):
        function = node.func
        return getattr(function, "attr", getattr(function, "id", "")) in ("format", "join", "str", "replace")
    return False


def offences(root: ast.AST) -> list[int]:
    """Lines where text that is not a literal is handed to the SQL parser."""
    return [call.lineno for name, call in calls(root) if _reaches_the_parser(name, call)]


def _reaches_the_parser(name: str, call: ast.Call) -> bool:
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    if name in ALL_TEXT:
        return not all(map(is_literal, values))
    if name in FIRST_TEXT:
        return bool(values) and not is_literal(values[0])
    return name in FILTERS and any(map(is_made_text, values))


def test_only_literals_reach_the_sql_parser() -> None:
    assert {module_name(path): lines for path in files() if (lines := offences(tree(path)))} == {}


@pytest.mark.parametrize(
    "text",
    [
        "F.expr(rule)",
        "F.expr(f'a = {x}')",
        "df.selectExpr(*columns)",
        "spark.sql(text)",
        "spark.sql('select 1', args=values)",
        "df.filter(f'x = {y}')",
        "df.where('x = ' + y)",
        "df.filter('x = {}'.format(y))",
        "F.call_function(name, col)",
    ],
)
def test_planted_text_is_found(text: str) -> None:
    assert offences(ast.parse(text)) == [1]


@pytest.mark.parametrize(
    "text", ["F.expr('a + 1')", "df.filter(F.col('x') == 1)", "F.call_function('luhn_check', col)", "df.where('x > 1')"]
)
def test_honest_columns_pass(text: str) -> None:
    assert offences(ast.parse(text)) == []


def python_in(root: ast.AST) -> list[str]:
    """Names that evaluate Python per row or bring rows to the driver, called or only mentioned (`@udf`)."""
    names = {getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(root)}
    return sorted(names & {*PYTHON, *DRIVER})


def test_a_stage_is_columns_only() -> None:
    pure = [path for path in files() if module_name(path).split(".")[0] in ("stages", "flow")]
    assert len(pure) > 3
    assert {module_name(path): found for path in pure if (found := python_in(tree(path)))} == {}


@pytest.mark.parametrize(
    "text",
    ["df.collect()", "df.toPandas()", "@udf\ndef f(x): return x", "df.groupBy('a').applyInPandas(f, s)"],
)
def test_planted_python_is_found(text: str) -> None:
    assert python_in(ast.parse(text))
