"""Files that were read forget the erased where they lie; files that nobody has read yet are left alone. No JVM."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from erased_history import Past, email

from tidings.rights.dropped import lying
from tidings.rights.mentions import Record
from tidings.rights.scrub import blank_lines

GONE, STAYS = 3, 4
READ, AHEAD = 1, 2  # the journal holds batch 2, but not every table does: it is read again after a crash


@pytest.fixture
def before(tmp_path: Path, made: Past) -> Past:
    past = made.copied(tmp_path / "operator")
    log = past.data / "checkpoints/crm/stream/sources/0"
    log.mkdir(parents=True)
    (log.parents[2] / "generation").write_text("g1")
    claimed = past.settings.source_path("crm") / "claimed"
    claimed.mkdir(parents=True, exist_ok=True)
    for number, name in ((0, "0.compact"), (READ, "1"), (AHEAD, "2")):
        path = file(claimed, f"batch-{number}.jsonl")
        (log / name).write_text("v1\n" + json.dumps({"path": f"file://{path}", "timestamp": 1, "batchId": number}))
    file(claimed, "unread.jsonl")
    return past


def file(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text("".join(json.dumps({"id": n, "email": email(n)}) + "\n" for n in (GONE, STAYS)) + "the end")
    os.utime(path, ns=(1_700_000_000_000_000_000,) * 2)
    return path


def kept(past: Past) -> None:
    source = past.settings.directory / "sources/crm.yaml"
    source.write_text(source.read_text().replace("after: archive", "after: keep"))


def names(past: Past, *, still: bool) -> set[str]:
    return {path.name for _, path in lying(past.settings, still=still)}


def test_what_the_tables_hold_is_looked_through_and_nothing_else(before: Past) -> None:
    assert names(before, still=False) == {"batch-0.jsonl", "batch-1.jsonl"}
    assert names(before, still=True) == set(), "they may be put away meanwhile"
    kept(before)
    assert names(before, still=True) == {"batch-0.jsonl", "batch-1.jsonl"}


def test_lines_go_and_their_numbers_and_the_age_of_the_file_stay(before: Past) -> None:
    kept(before)
    claimed = before.settings.source_path("crm") / "claimed"
    assert blank_lines(before.settings, [email(GONE)]) == 2
    for number in (0, READ):
        path = claimed / f"batch-{number}.jsonl"
        assert path.read_text().split("\n") == ["", json.dumps({"id": STAYS, "email": email(STAYS)}), "the end"]
        assert path.stat().st_mtime_ns == 1_700_000_000_000_000_000, "a stream takes a young file for a new one"
    for name in (f"batch-{AHEAD}.jsonl", "unread.jsonl"):
        assert email(GONE) in (claimed / name).read_text()
    assert blank_lines(before.settings, [email(GONE)]) == 0


def test_what_was_seen_before_the_fence_is_not_read_behind_it(before: Past) -> None:
    kept(before)
    seen = {str(path) for _, path in lying(before.settings, still=True) if path.name == "batch-0.jsonl"}
    assert blank_lines(before.settings, [Record("customer", {"id": str(GONE)}, {"crm": ()})], seen) == 1


def test_what_a_kill_left_half_written_goes(before: Past) -> None:
    draft = before.settings.source_path("crm") / "claimed" / ".batch-0.jsonl.new"
    draft.write_text(email(GONE))
    assert names(before, still=False) == {"batch-0.jsonl", "batch-1.jsonl"}
    assert not draft.exists()
