"""Durability as the kernel sees it: which calls a commit makes, in which order, and what a failed one or a kill leaves behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tidings.store import Store

COMMIT = """
import sys
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
from tidings.errors import TidingsError
from tidings.store import Store

root, batches = sys.argv[1], range(*map(int, sys.argv[2:4]))
store = Store(root)
store.commit("journal", None, app="start", version=0)
for batch in batches:
    folder = Path(store.fresh("journal"))
    folder.mkdir()
    rows = pa.table({"offset": pa.array([batch], pa.int64()), "source": ["crm"], "payload": [b"x" * 100]})
    for part in range(2):
        pq.write_table(rows, folder / f"part-{part}.parquet")
    print("writing", flush=True)
    try:
        done = store.commit("journal", str(folder), app="crm/g1", version=batch)
    except TidingsError as error:
        print(error.code, flush=True)
        try:
            store.commit("journal", None, app="crm/g1", version=batch)
        except TidingsError as error:
            sys.exit(f"again {error.code}")
        sys.exit("it went on")
    print(f"returned {done}", flush=True)
"""
KEYS = """
import sys
import pyarrow as pa
from tidings.seal.keyfiles import KeyFiles

keys = KeyFiles(sys.argv[1], b"k" * 32)
keys.fresh()
print("writing", flush=True)
keys.write(pa.table({"tag": [b"t" * 16], "kid": [b"i" * 16], "key": [b"s" * 32]}), "crm-g1-0")
print("returned", flush=True)
keys.erase(b"t" * 16)
print("erased", flush=True)
"""
CALLS = "fsync,fdatasync,rename,renameat,renameat2,link,linkat,unlink,unlinkat,write"


@pytest.fixture(scope="module")
def strace() -> str:
    found = shutil.which("strace")
    works = found and subprocess.run([found, "-f", "-e", "trace=none", "true"], capture_output=True).returncode == 0
    if works:
        return found
    if os.environ.get("CI") == "true":
        pytest.fail("strace is absent or may not trace here; durability would go unproven")
    pytest.skip("strace is absent or may not trace here")


def traced(strace: str, trace: Path, options: list[str], program: list[str]) -> subprocess.CompletedProcess[str]:
    # -y prints the path behind every descriptor; -s 80 keeps file names whole.
    command = [strace, "-f", "-y", "-qq", "-s", "80", "-o", str(trace), *options, sys.executable, "-c", *program]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def calls(trace: Path) -> list[str]:
    """Completed calls in order; a call cut in two by another thread counts where it ends."""
    begun: dict[str, str] = {}
    whole = []
    for line in trace.read_text().splitlines():
        pid, _, rest = line.partition(" ")
        rest = rest.strip()
        if rest.endswith("<unfinished ...>"):
            begun[pid] = rest.removesuffix("<unfinished ...>")
        elif resumed := re.match(r"<\.\.\. \w+ resumed>(.*)", rest):
            whole.append(begun.pop(pid, "") + resumed[1])
        else:
            whole.append(rest)
    return whole


def first(found: list[str], pattern: str, after: int = 0) -> int:
    for number, call in enumerate(found[after:], after):
        if re.search(pattern, call) and " = -1 " not in call:
            return number
    raise AssertionError(f"no call like {pattern} after {after} in:\n" + "\n".join(found[after:]))


def test_data_is_synced_before_the_log_names_it_and_the_log_before_anybody_hears(strace, tmp_path):
    trace = tmp_path / "trace"
    done = traced(strace, trace, ["-e", f"trace={CALLS}"], [COMMIT, str(tmp_path / "tables"), "0", "1"])
    assert done.returncode == 0, done.stderr
    found = calls(trace)
    start, end = first(found, r'write\(1<.*"writing'), first(found, r'write\(1<.*"returned True')
    made = found[start:end]
    appears = first(made, rf"(link|rename)\w*\(.*_delta_log/{2:020d}\.json")
    journal = re.escape(str(tmp_path / "tables" / "journal"))
    for target in (rf"{journal}/[0-9a-f-]+/part-0\.parquet", rf"{journal}/[0-9a-f-]+/part-1\.parquet"):
        assert first(made, rf"fsync\(\d+<{target}>\)") < appears
    names = [rf"fsync\(\d+<{journal}/[0-9a-f-]+>\)", rf"fsync\(\d+<{journal}>\)"]
    assert max(first(made, name) for name in names) < appears
    log = first(made, rf"fsync\(\d+<{journal}/_delta_log/{2:020d}\.json>\)", appears)
    assert first(made, rf"fsync\(\d+<{journal}/_delta_log>\)", appears) > log
    # The names of folders made on the way are on the disk before anything in them is relied on.
    created = first(found, rf"(link|rename)\w*\(.*_delta_log/{0:020d}\.json")
    assert first(found, rf"fsync\(\d+<{re.escape(str(tmp_path))}>\)") < created
    assert first(found, rf"fsync\(\d+<{journal}/_delta_log/{0:020d}\.json>\)", created) < start


def test_a_sync_that_fails_stops_the_store_and_is_not_tried_again(strace, tmp_path):
    root = tmp_path / "tables"
    Store(root).commit("journal", None, app="start", version=0)
    trace = tmp_path / "trace"
    inject = ["-e", "trace=fsync,write", "-e", "inject=fsync:error=EIO:when=1"]
    done = traced(strace, trace, inject, [COMMIT, str(root), "0", "1"])
    assert done.stdout.split() == ["writing", "fsync_failed"]
    assert done.stderr.strip() == "again fsync_failed"
    assert len([call for call in calls(trace) if call.startswith("fsync")]) == 1
    assert Store(root).transaction_version("journal", "crm/g1") is None
    assert Store(root).commit("journal", None, app="crm/g1", version=0)


def test_key_files_are_synced_under_their_name_and_an_erasure_reaches_the_folder(strace, tmp_path):
    trace = tmp_path / "trace"
    done = traced(strace, trace, ["-e", f"trace={CALLS}"], [KEYS, str(tmp_path / "keys")])
    assert done.returncode == 0, done.stderr
    found = calls(trace)
    keys = re.escape(str(tmp_path / "keys"))
    named = first(found, rf"rename\w*\(.*{keys}/new/crm-g1-0\"")
    assert first(found, rf"fsync\(\d+<{keys}/tmp/[0-9a-f-]+/part-0\.parquet>") < named
    assert first(found, rf"fsync\(\d+<{keys}/tmp/[0-9a-f-]+>") < named
    assert named < first(found, rf"fsync\(\d+<{keys}/new>", named) < first(found, r'write\(1<.*"returned')
    gone = first(found, rf"unlink\w*\(.*{keys}/new/crm-g1-0/part-0\.parquet")
    assert gone < first(found, rf"fsync\(\d+<{keys}/new/crm-g1-0>", gone) < first(found, r'write\(1<.*"erased')


@pytest.mark.parametrize("point", ["journal.before_commit:2", "journal.after_commit:2", "journal.after_commit:3"])
def test_a_commit_cut_by_a_kill_is_whole_or_absent(tmp_path, point):
    root = str(tmp_path / "tables")
    program = [sys.executable, "-c", COMMIT, root, "0", "3"]
    killed = subprocess.run(program, env={**os.environ, "TIDINGS_CRASH_AT": point}, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    again = subprocess.run(program, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    store = Store(root)
    assert sorted(store.arrow("journal", ["offset"])["offset"].to_pylist()) == [0, 0, 1, 1, 2, 2]
    assert store.transaction_version("journal", "crm/g1") == 2


@pytest.mark.parametrize("torn", ["empty log", "half a log", "checkpoint", "pointer"])
def test_a_power_loss_may_tear_what_was_not_confirmed_and_nothing_else(tmp_path, torn):
    """A file that was renamed but not synced may come back empty; whoever wrote it never said that it was there."""
    root = tmp_path / "tables"
    store = Store(root)
    for version in range(5):
        assert store.commit("journal", None, app="crm/g1", version=version)
    log = root / "journal" / "_delta_log"
    last = store.version("journal")
    if torn.endswith("log"):
        half = (log / f"{last:020d}.json").read_text()[:40] if torn == "half a log" else ""
        (log / f"{last + 1:020d}.json").write_text(half)
    else:
        store.checkpoint("journal")
        pointer, checkpoint = log / "_last_checkpoint", log / f"{last:020d}.checkpoint.parquet"
        assert json.loads(pointer.read_text())["version"] == last
        (pointer if torn == "pointer" else checkpoint).write_bytes(b"PAR1")
    mended = Store(root)
    assert mended.commit("journal", None, app="crm/g1", version=5)
    assert mended.transaction_version("journal", "crm/g1") == 5
    assert Store(root).version("journal") == 6
