"""Files that can be read in one sitting, names that say what is inside, depth one."""

from __future__ import annotations

from source_tree import PACKAGE, ROOT, files, module_name

HARD_LIMIT = 400
EMPTY_NAMES = ("utils", "util", "common", "helpers", "helper", "manager", "base", "misc")


def test_a_file_can_be_read_in_one_sitting() -> None:
    sizes = {module_name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files()}
    assert {name: size for name, size in sizes.items() if size > HARD_LIMIT} == {}


def test_no_name_is_empty() -> None:
    places = [PACKAGE, ROOT / "tests", ROOT / "examples", ROOT / "bench"]
    found = [path for place in places for path in place.rglob("*") if path.stem in EMPTY_NAMES]
    assert found == []


def test_the_package_is_one_level_deep() -> None:
    deep = [path for path in files() if len(path.relative_to(PACKAGE).parts) > 2]
    assert deep == []
