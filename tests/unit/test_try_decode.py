"""`tidings try decode`: one answer per line, whatever the bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tidings.cli import main
from tidings.verbs import try_decode

SAMPLES = Path(__file__).parents[1] / "conformance" / "samples"


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\n\nb\r\n", [b"a", b"", b"b"]),
        (b"a\rb\x0bc\x85\xe2\x80\xa8d\r\r\n", [b"a\rb\x0bc\x85\xe2\x80\xa8d\r"]),
    ],
)
def test_lines_end_at_a_newline_alone(given: bytes, lines: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(given)
    with (tmp_path / "lines").open("rb") as stream:
        assert [line for portion in try_decode.portions(stream) for line in portion] == lines


def test_portions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(try_decode, "LINES_AT_ONCE", 3)
    monkeypatch.setattr(try_decode, "BYTES_AT_ONCE", 10)
    found = list(try_decode.portions([b"1\n", b"2\n", b"3\n", b"4567890123\n", b"5\n"]))
    assert found == [[b"1", b"2", b"3"], [b"4567890123"], [b"5"]]


def test_an_unknown_dialect_is_refused_with_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["try", "decode", "--dialect", "debezium", "--json"])
    told = capsys.readouterr()
    assert stopped.value.code == 3
    assert json.loads(told.out)["error"]["code"] == "unknown_dialect"
    assert all(name in told.err for name in ("auto", "debezium_postgresql", "maxwell", "shopify"))


@pytest.mark.parametrize(("option", "code"), [(["nowhere.jsonl"], 3), (["--key", "id"], 2), (["--key", "a=b,,c"], 2)])
def test_a_wrong_command_line(option: list[str], code: int) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["try", "decode", *option])
    assert stopped.value.code == code


@pytest.mark.spark
def test_the_command_answers_every_line_and_nothing_else() -> None:
    samples = [json.loads(line) for line in (SAMPLES / "maxwell.jsonl").read_text(encoding="utf-8").splitlines()]
    keyless = {
        "database": "crm",
        "table": "tags",
        "type": "insert",
        "ts": 1772442965,
        "data": {"a": 1, "b": "é", "c": 2},
    }
    lines = [json.dumps(sample["message"]).encode() for sample in samples]
    lines += [b"", b"\r", b"\xff\xfe", b"\0", json.dumps(keyless).encode(), b'{"a":"maya', b'{"a":"' + b"x" * 2_000_000]
    command = [sys.executable, "-m", "tidings.cli", "try", "decode", "--dialect", "maxwell", "--key", "crm.tags=a,b", "--json", "-"]  # fmt: skip
    ran = subprocess.run(command, input=b"\n".join(lines) + b"\n", capture_output=True, timeout=300, check=True)
    answers = [json.loads(line) for line in ran.stdout.decode("utf-8").removesuffix("\n").split("\n")]
    assert answers[: len(samples)] == [sample["expect"] for sample in samples]
    blank, returned, wide, nul, keyed, cut, long = answers[len(samples) :]
    assert blank == returned == {"skip": "blank"}
    assert (keyed["entity"], keyed["key"]) == ("crm.tags", {"a": 1, "b": "é"})
    codes = [answer["quarantine"]["code"] for answer in (wide, nul, cut, long)]
    assert codes == ["invalid_utf8", "nul_byte", "truncated_json", "line_too_long"]
    assert "column 11" in cut["quarantine"]["detail"]
    assert b"maya" not in ran.stdout.split(b"\n")[-3]
