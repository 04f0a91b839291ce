"""Filters as people write them: the dialects of CloudEvents Subscriptions, `tidings try filter`, and what `check` says of a wrong one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidings.errors import ConfigurationError
from tidings.gate import filters
from tidings.gate.cesql import ATTRIBUTES
from tidings.gate.cesql_columns import filter_column
from tidings.gate.cesql_values import matches
from tidings.gate.filters import FilterError
from tidings.plan import verified
from tidings.verbs.init import write

EVENT: dict[str, Any] = {"id": "a\\%b", "type": "tidings.email.changed", "source": "/shop/crm", "location": "sf-01"}
IT_IS, IT_IS_NOT = {"exact": {"location": "sf-01"}}, {"exact": {"location": "la-01"}}

# A filter, and whether the event passes it.
ROWS: list[tuple[Any, bool]] = [
    (IT_IS, True), (IT_IS_NOT, False), ({"exact": {"location": "SF-01"}}, False), ({"exact": {"location": "sf-01", "source": "/shop/crm"}}, True),
    ({"exact": {"location": "sf-01", "source": "x"}}, False), ({"exact": {"banner": "x"}}, False), ({"not": {"exact": {"banner": "x"}}}, True),
    ({"prefix": {"type": "tidings."}}, True), ({"prefix": {"type": "email"}}, False), ({"prefix": {"banner": "x"}}, False), ({"prefix": {"id": "a\\"}}, True),
    ({"prefix": {"id": "a%"}}, False), ({"prefix": {"id": "a_"}}, False), ({"prefix": {"type": "tidings.", "location": "la"}}, False),
    ({"suffix": {"type": ".changed"}}, True), ({"suffix": {"type": ".Changed"}}, False), ({"suffix": {"id": "\\%b"}}, True), ({"suffix": {"id": "_b"}}, False),
    ({"suffix": {"location": "a longer text than the value"}}, False), ({"not": {"suffix": {"banner": "x"}}}, True),
    ({"all": [IT_IS, {"prefix": {"type": "tidings"}}]}, True), ({"all": [IT_IS, IT_IS_NOT]}, False), ({"all": [IT_IS]}, True),
    ({"any": [IT_IS_NOT, IT_IS]}, True), ({"any": [IT_IS_NOT, {"exact": {"banner": "x"}}]}, False), ({"any": [{"exact": {"banner": "x"}}, IT_IS]}, True),
    ({"not": IT_IS}, False), ({"not": {"not": IT_IS}}, True), ({"not": {"any": [IT_IS_NOT, {"all": [IT_IS, IT_IS_NOT]}]}}, True),
    ({"sql": "location LIKE 'sf-%'"}, True), ({"sql": "banner = 'x'"}, False), ({"not": {"sql": "banner = 'x'"}}, True),
    ({"any": [{"sql": "banner = 'x'"}, IT_IS]}, True), ({"all": [{"sql": "NOT EXISTS banner"}, IT_IS]}, True),
    ({"sql": "INT(location) = 1 OR TRUE"}, False), ({"not": {"sql": "INT(location) = 1"}}, True), ([], True), ([IT_IS], True), ([IT_IS, IT_IS_NOT], False),
    ("location = 'sf-01'", True), ("NOT (location = 'sf-01')", False), ("banner = 'x'", False), ("NOT (banner = 'x')", False),
]  # fmt: skip

WRONG: list[Any] = [
    {}, None, 5, {"exact": {}}, {"exact": {"type": ""}}, {"exact": {"": "x"}}, {"exact": {"sequence": 10}}, {"exact": "type"}, {"exact": ["type"]},
    {"prefix": {"type": ""}}, {"suffix": {"type": None}}, {"all": []}, {"any": []}, {"all": IT_IS}, {"any": [IT_IS, {}]}, {"not": []}, {"not": [IT_IS]},
    {"not": "TRUE"}, {"sql": 5}, {"sql": {"expression": "TRUE"}}, {"cql": "TRUE"}, {"exact": {"type": "x"}, "prefix": {"type": "y"}}, ["TRUE"], [[IT_IS]],
    {"Exact": {"type": "x"}},
]  # fmt: skip


@pytest.mark.parametrize(("said", "passes"), ROWS, ids=range(len(ROWS)))
def test_dialects(said: Any, passes: bool) -> None:
    assert matches(filters.read(said), EVENT) is passes


@pytest.mark.spark
def test_dialects_in_spark(spark: SparkSession) -> None:
    rows = spark.createDataFrame(pa.table({name: [EVENT.get(name)] for name in (*EVENT, "banner")})).repartition(1)
    attributes = {name: F.col(name).cast("string") for name in rows.columns}
    columns = [
        filter_column(filters.read(said, ATTRIBUTES), attributes).alias(f"c{n}") for n, (said, _) in enumerate(ROWS)
    ]
    (found,) = rows.select(*columns).collect()
    assert [*zip([said for said, _ in ROWS], found, strict=True)] == ROWS


@pytest.mark.parametrize("said", WRONG, ids=range(len(WRONG)))
def test_what_is_no_filter(said: Any) -> None:
    with pytest.raises(FilterError):
        filters.read(said)


def test_a_filter_can_be_wide_but_not_deep() -> None:
    deep: Any = IT_IS
    for _ in range(200):
        deep = {"not": deep}
    with pytest.raises(FilterError, match="levels"):
        filters.read(deep)
    assert matches(filters.read({"any": [IT_IS_NOT] * 300 + [IT_IS]}, ATTRIBUTES), EVENT)
    with pytest.raises(FilterError, match="filters"):
        filters.read({"any": [IT_IS] * 501})


def test_check_points_at_the_place(tmp_path: Path) -> None:
    write(tmp_path / "shop")
    hook = tmp_path / "shop/subscribers/hook.yaml"
    lines = len(hook.read_text().splitlines())
    hook.write_text(
        hook.read_text() + "filter:\n  all:\n    - exact: {type: x}\n    - sql: \"id = 'x' AND locaton = 'y'\"\n"
    )
    with pytest.raises(ConfigurationError) as caught:
        verified(tmp_path / "shop")
    (problem,) = caught.value.problems
    assert (problem.line, problem.path, problem.code) == (lines + 4, "filter.all[1].sql", "cesql")
    shown = str(problem).splitlines()
    assert "column 14: no attribute is called 'locaton'; did you mean location?" in shown[0]
    assert shown[1:] == ["    id = 'x' AND locaton = 'y'", "    " + " " * 13 + "^"]


def asked(*lines: object) -> bytes:
    return b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)


def tried(sent: bytes, *options: str) -> list[str]:
    command = [sys.executable, "-m", "tidings.cli", "try", "filter", *options, "-"]
    ended = subprocess.run(command, input=sent, capture_output=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, b"")
    return ended.stdout.decode().splitlines()


def test_try_filter() -> None:
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "n": 10, "b": True, "data": {"id": "2"}}
    rows: list[tuple[object, Any, str | None]] = [
        ({"expression": "n * 2", "event": event}, 20, None),
        ({"expression": "b", "event": event}, True, None),
        ({"expression": "CONCAT(id, '\U0001f642')", "event": event}, "1\U0001f642", None),
        ({"expression": "data", "event": event}, False, "missingAttribute"),
        ({"expression": "EXISTS data OR EXISTS nothing", "event": event}, False, None),
        ({"expression": "n + 'x'", "event": event}, 0, "cast"),
        ({"expression": "n / 0", "event": event}, 0, "math"),
        ({"expression": "LEFT('abc', -1)", "event": event}, "abc", "functionEvaluation"),
        ({"expression": "NOPE()", "event": event}, False, "missingFunction"),
        ({"expression": "n = ", "event": event}, False, "parse"),
        ({"expression": "(" * 100_000, "event": event}, False, "parse"),
        ({"expression": "EXISTS id"}, True, None),
        ({"expression": True}, True, None),
        ({"expression": None, "event": event}, False, "generic"),
        ({"expression": "b", "event": []}, False, "generic"),
        ({"event": event}, False, "generic"),
        ([1], False, "generic"),
        (b"not json\n", False, "generic"),
        (b"\xff\xfe{}\n", False, "generic"),
        (b"[" * 200_000 + b"\n", False, "generic"),
        (b" " * 4_100_000 + b"{}\n", False, "generic"),
        ({"filter": {"not": {"exact": {"gone": "x"}}}, "event": event}, True, None),
        ({"filter": {"exact": {"n": "10", "b": "true"}}, "event": event}, True, None),
        ({"filter": {"sql": "gone = 1"}, "event": event}, False, None),
        ({"expression": {"not": {"exact": {"id": "2"}}}, "event": event}, True, None),
        ({"expression": [{"exact": {"id": "1"}}, {"prefix": {"type": "x"}}], "event": event}, False, None),
        ({"filters": [{"suffix": {"type": "t"}}], "event": event}, True, None),
        ({"filters": [], "filter": [], "event": event}, False, "generic"),
        ({"expression": {"like": "t"}, "event": event}, False, "generic"),
        ({"filter": {"sql": "1 ="}, "event": event}, False, "parse"),
        ({"filter": {"any": []}, "event": event}, False, "generic"),
        ({"expression": "b", "event": event}, True, None),
    ]
    said = [json.loads(line) for line in tried(asked(*[row[0] for row in rows]), "--json")]
    assert said == [{"result": result, "error": error} for _, result, error in rows]
    assert [type(one["result"]) for one in said] == [type(result) for _, result, _ in rows]


def test_try_filter_for_people() -> None:
    said = tried(asked({"expression": "1 + 1"}, {"expression": "n ="}))
    assert said[0].split() == ["1", "2"]
    assert said[1].split(maxsplit=3) == ["2", "false", "parse", "column 4: expected a value, found the end"]
    # Half a character cannot be printed as it stands, and the next question is still answered.
    odd = tried(asked({"filter": {"ex\ud800": {"id": "1"}}}, {"expression": "2"}))
    assert odd[0].split(maxsplit=3)[3].startswith("no dialect is called 'ex\\ud800'")
    assert odd[1].split() == ["2", "2"]


def test_try_filter_answers_at_once() -> None:
    command = [sys.executable, "-m", "tidings.cli", "try", "filter", "--json", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(3):
            process.stdin.write(asked({"expression": f"{number} + 1"}))
            process.stdin.flush()
            assert json.loads(process.stdout.readline()) == {"result": number + 1, "error": None}
        process.stdin.close()
        assert process.wait(10) == 0


def test_try_filter_starts_without_spark() -> None:
    code = "import sys; from tidings.verbs import try_filter; from tidings.gate import cesql_values, filters; print('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
