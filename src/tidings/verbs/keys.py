"""`tidings keys status | rotate | compact`: the key files of people. No Spark."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from tidings.errors import Refused
from tidings.verbs.options import AsJson, Here, answer, note


def register(app: typer.Typer) -> None:
    keys = typer.Typer(
        no_args_is_help=True, help="Key files: how they stand, rotation, compaction.", rich_markup_mode=None
    )
    keys.callback()(_keys)
    for command in (status, rotate, compact):
        keys.command()(command)
    app.add_typer(keys, name="keys")


def _keys() -> None:
    """Key files: how they stand, rotation, compaction."""


def status(directory: Here = Path("."), as_json: AsJson = False) -> None:
    """Files, rows, the oldest, the version of the key-encryption key, and whether the rules about backups are kept."""
    from tidings import rotation
    from tidings.settings import load

    said: dict[str, Any] = rotation.status(load(directory, secrets=False))
    broken = [one for one in said["backup_rules"] if not one["kept"]]
    if as_json:
        answer(said)
    else:
        to = f", on its way to {said['rotating_to']}: run `tidings keys rotate` again" if said["rotating_to"] else ""
        print(f"key-encryption key: version {said['kek_version']}{to}")
        print(f"{said['rows']:,} keys in {said['files']:,} files ({said['batches']:,} batches not yet compacted)")
        print(f"oldest file: {said['oldest'] or 'none'}; left half-written: {said['left_half_written']}")
        for one in said["backup_rules"]:
            print(
                f"{'kept' if one['kept'] else 'BROKEN'}: {one['rule']}{'' if one['kept'] else '. ' + one['what_now']}"
            )
    if broken:
        raise typer.Exit(Refused.exit_code)


def rotate(directory: Here = Path("."), as_json: AsJson = False) -> None:
    """Wrap every key under a new key-encryption key. Not while `tidings run` is at work; stopped half-way, say it again."""
    from tidings import rotation
    from tidings.lock import RunLock
    from tidings.settings import load
    from tidings.store import Store

    settings = load(directory, secrets=False)
    with RunLock(settings.data_path):
        done = rotation.rotate(settings, Store(settings.data_path / "tables"))
    if as_json:
        answer(asdict(done))
    else:
        print(
            f"{done.keys:,} keys in {done.files:,} files are under version {done.version}; {done.previous} opens none."
        )
        note(
            "Start `tidings serve` again: it still has the older key. The ledger takes the rotation with the next run."
        )


def compact(directory: Here = Path("."), as_json: AsJson = False) -> None:
    """Move the files of single batches into the buckets; `tidings run` does it by itself when there are many."""
    from tidings.seal.keyfiles import KeyFiles
    from tidings.settings import load

    settings = load(directory, secrets=False)
    moved = KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek")).compact(minimum=1)
    answer({"batches": moved}) if as_json else print(f"{moved:,} batches moved.")
