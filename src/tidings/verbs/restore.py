"""`tidings restore`: make data that was restored from a backup forget whom it had forgotten."""

from __future__ import annotations

from pathlib import Path

import typer

from tidings.verbs.options import AsJson, Here, answer


def register(app: typer.Typer) -> None:
    app.command("restore")(restore)


def restore(directory: Here = Path("."), as_json: AsJson = False) -> None:
    """Carry out again every erasure that is later than the data folder; `tidings run` refuses until then."""
    from tidings.lock import RunLock
    from tidings.rights.restore import again
    from tidings.seal.keyfiles import KeyFiles
    from tidings.settings import load
    from tidings.store import Store

    settings = load(directory)
    with RunLock(settings.data_path):
        keys = KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek"))
        done = again(settings, Store(settings.data_path / "tables"), keys)
    said = {"erasures": len(done), "keys": sum(gone.keys for gone in done), "rows": sum(gone.journal for gone in done)}
    if as_json:
        answer(said)
    elif done:
        print(f"{said['erasures']} erasures carried out again, {said['keys']} keys destroyed. Each waits for a review.")
    else:
        print("No erasure is later than this data.")
