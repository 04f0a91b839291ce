"""`tidings rights …` as somebody types it wrongly: a code and a sentence, never "our fault". No JVM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidings.cli import main
from tidings.rights import intake
from tidings.rights.asks import Ask
from tidings.settings import load
from tidings.verbs.init import write

WHO = ["--who", "email:ann@example.com"]
WRONG: dict[str, tuple[list[str], str]] = {
    "another kind": (["ask", "forget", *WHO], "bad_request"),
    "another record": (["ask", "erasure", "--who", "custmer:7"], "bad_request"),
    "nobody": (["ask", "erasure", "--who", "ann"], "bad_request"),
    "no time": (["ask", "erasure", *WHO, "--received", "yesterday"], "moment"),
    "a day": (["ask", "erasure", *WHO, "--received", "2026-11-01"], "moment"),
    "a time before time": (["ask", "erasure", *WHO, "--received", "0001-01-01T00:00:00+14:00"], "moment"),
    "no place": (["ask", "erasure", *WHO, "--jurisdiction", "Mars"], "bad_request"),
    "no value": (["ask", "rectification", *WHO, "--value", "email"], "field_value"),
    "no list": (["import", "nothing.csv"], "unreadable"),
    "a folder for a list": (["import", "."], "unreadable"),
    "an unknown id": (["show", "nonsense"], "unknown_request"),
    "no id": (["show", ""], "unknown_request"),
    "words about nothing": (["say", "nonsense", "approve", "--by", "ann"], "unknown_request"),
    "a certificate of nothing": (["certificate", "nonsense"], "unknown_request"),
    "no identifiers": (["certificate", "nonsense", "--for-person", "nothing.txt"], "unreadable"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("verbs") / "op"
    write(made)
    with (made / "tidings.yaml").open("a") as file:
        file.write("rights: {}\n")
    return made


@pytest.mark.parametrize("name", WRONG)
def test_what_is_typed_wrongly_has_a_code(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    typed, code = WRONG[name]
    with pytest.raises(SystemExit):
        main(["rights", *typed, "-C", str(folder), "--json"])
    said = capsys.readouterr()
    assert json.loads(said.out)["error"]["code"] == code
    assert "ann@example" not in said.out + said.err


def test_a_person_of_two_places_starts_the_clocks_of_both(folder: Path) -> None:
    places = ["--jurisdiction", "US-CA", "--jurisdiction", "DE"]
    with pytest.raises(SystemExit) as ended:
        main(["rights", "ask", "erasure", *WHO, *places, "--received", "2026-11-01T09:00:00Z", "-C", str(folder)])
    (slip,) = intake.waiting(load(folder))
    assert ended.value.code == 0
    assert isinstance(slip.body, Ask)
    assert slip.body.jurisdiction == "US-CA,DE"
