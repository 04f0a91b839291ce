"""`tidings verify [PATH]`: a ledger, a receipt or a certificate, from its bytes and one public key. No Spark, no network."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.errors import Damaged, Refused
from tidings.verbs.options import AsJson, Here, answer, note

if TYPE_CHECKING:
    from tidings.ledger.verification import Verdict


def register(app: typer.Typer) -> None:
    app.command("verify")(verify)


def verify(
    path: Annotated[
        Path | None, typer.Argument(metavar="[PATH]", help="A receipt, a certificate or a ledger; default: yours.")
    ] = None,
    directory: Here = Path("."),
    as_json: AsJson = False,
    vkey: Annotated[str, typer.Option(help="The ledger's public key, as you kept it.", show_default="beside it")] = "",
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="The file with that key, such as ledger/root/vkey.")
    ] = None,
) -> None:
    """Verify the ledger, a receipt or a certificate; exit code 0 only when everything fits."""
    verdict = _verdict(path, directory, vkey or _kept(key))
    if as_json:
        answer(verdict.as_dict())
    else:
        _print(verdict)
    if not verdict.good:
        raise typer.Exit(Damaged.exit_code)


def _verdict(path: Path | None, directory: Path, vkey: str) -> Verdict:
    from tidings.ledger.opening import ledger_folder, own_key
    from tidings.ledger.proof import read_receipt, verify_receipt
    from tidings.ledger.verification import verify_ledger

    if path is None:
        return verify_ledger(_ledger_in(ledger_folder(directory)), vkey or own_key(directory))
    if path.is_dir():
        return verify_ledger(_ledger_in(path), vkey)
    if not path.is_file():
        raise Refused("ledger-path", f"{path} does not exist", "a receipt or a ledger's folder", "Name one of them.")
    data = _bounded(path)
    if path.suffix == ".zip" or data[:2] == b"PK":
        from tidings.rights.certificate_check import verify_certificate

        return verify_certificate(data, vkey)
    return verify_receipt(read_receipt(data), vkey)


def _bounded(path: Path) -> bytes:
    """As much of a file as any reader here takes, and one byte more, so that it can say so."""
    from tidings.ledger.proof import MAX_RECEIPT
    from tidings.rights.certificate_archive import MAX_ARCHIVE

    with path.open("rb") as stream:
        return stream.read(max(MAX_RECEIPT, MAX_ARCHIVE) + 1)


def _kept(key: Path | None) -> str:
    """The key in a file that somebody kept; a file that holds none is no key, and nothing is verified without it."""
    if key is None:
        return ""
    with key.open("rb") if key.is_file() else BytesIO() as stream:
        text = stream.read(1024).decode("ascii", errors="replace").strip()
    if not text:
        raise Refused("ledger-key", f"no key in {key}", "a file with one line, <name>+<id>+<key>", "Name that file.")
    return text


def _ledger_in(folder: Path) -> Path:
    """The ledger at, or under, a folder: its own folder, the data folder, or the operator's with the usual names."""
    from tidings.ledger.classes import ROOT
    from tidings.ledger.log import VKEY

    for inner in ("", "ledger", "data/ledger"):
        if (folder / inner / ROOT / VKEY).is_file():
            return folder / inner
    raise Refused(
        "ledger-empty", f"no ledger in {folder}", "a folder with root/vkey", "Let `tidings run` record something."
    )


def _print(verdict: Verdict) -> None:
    for problem in verdict.problems:
        print(f"wrong: {problem}")
    for log in verdict.logs:
        print(f"{log['origin']}: {log['size']} entries, root {log['root']}")
    if document := getattr(verdict, "document", ""):
        print(f"{document} of request {getattr(verdict, 'request', '')}")
    seen = f"{verdict.entries} entries, {verdict.tiles} tiles, {verdict.checkpoints} signed heads"
    print(f"{'verified' if verdict.good else f'NOT verified, {len(verdict.problems)} problem(s)'}: {seen}")
    for caveat in verdict.caveats:
        note(caveat)
