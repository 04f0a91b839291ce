"""What is done a second time: a second runner, the same input again, a checkpoint that somebody deleted."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from checker import check, history_of
from small import Small, small
from warm import WarmJvm

from tidings.lock import holder
from tidings.verbs.status import totals

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


def duplicates(one: Small) -> Counter[str]:
    return Counter({name: found.get("duplicates", 0) for name, found in totals(one.settings, one.store).items()})


def refused_while_it_runs(one: Small, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 60
    while holder(one.data) is None:
        assert process.poll() is None, "the first runner ended"
        assert time.monotonic() < end, "the first runner does not start"
        time.sleep(0.02)
    code, said = one.run()
    assert code not in (0, -9)
    assert f"process {process.pid} " in said
    assert "Nothing was started" in said


def test_nothing_is_skipped_and_nothing_comes_twice(tmp_path: Path, jvm: WarmJvm) -> None:
    with small(tmp_path, "crm", "shop") as one:
        one.world.round()
        one.world.round()
        process = one.start("--until-idle")
        refused_while_it_runs(one, process)
        said = process.communicate(timeout=300)[1]
        assert process.returncode == 0, said[-2000:]
        assert check(one) == []

        one.jvm = jvm
        repeats_make_no_second_event(one)
        a_deleted_checkpoint_skips_nothing(one)


def repeats_make_no_second_event(one: Small) -> None:
    """The same files under other names are not read again; the same rows in another file are recognised and counted."""
    before, events = duplicates(one), len(history_of(one).journal)
    written: Counter[str] = Counter()
    for path in list(one.world.files):
        source, lines = path.parent.name, path.read_text().splitlines()
        shutil.copy(path, one.folder / "drop" / source / f"copy-{path.name}")
        good = [line for line in lines if _is_json(line)]
        written[source] += len(good)
        one.world.publish(source, [*good[1:], good[0]])
    one.finish()
    assert len(history_of(one).journal) == events
    assert duplicates(one) - before == written
    assert check(one) == []
    for source in written:
        assert len(list((one.folder / "drop" / source / "duplicates").iterdir())) == 2


def a_deleted_checkpoint_skips_nothing(one: Small) -> None:
    """Somebody made room on the disk after a crash: what lies there is read again, and what was owed keeps its turn."""
    one.world.round()
    one.killed_at("emit.done")
    shutil.rmtree(one.data / "checkpoints")
    one.world.round()
    one.finish()
    assert check(one) == []


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
