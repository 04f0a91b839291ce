"""Where an operator's ledger is, what it is called and which key signs it: the readers' side of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tidings.errors import ConfigurationError, TidingsError
from tidings.ledger.classes import INDEX, ROOT
from tidings.ledger.log import VKEY
from tidings.ledger.note import Signer
from tidings.ledger.sequencer import Index

PURPOSE = "ledger-sign"


def origin(tenant: str) -> str:
    """The ledger's name; each log's is this and the log's own name."""
    return f"tidings.local/{tenant}"


def ledger_folder(directory: Path) -> Path:
    """The ledger of an operator's folder; a copy whose secrets stayed at home is read under its usual name."""
    from tidings.settings import load

    try:
        return load(directory, secrets=False).data_path / "ledger"
    except ConfigurationError:
        usual = directory / "data" / "ledger"
        if (usual / ROOT / VKEY).is_file():
            return usual
        raise


def own_key(directory: Path) -> str:
    """The public key this operator's secrets stand for, or nothing when they are not here (an auditor's copy)."""
    from tidings.settings import load

    try:
        settings = load(directory, secrets=False)
        return Signer(f"{origin(settings.tenant)}/{ROOT}", settings.keyring.derive(PURPOSE)).verifier.vkey
    except TidingsError:
        return ""


def attested_in(data: Path) -> Callable[[str], int | None]:
    """How far the ledger has read each table, for who only looks; a version that a crash left half done counts as read."""

    def position(table: str) -> int | None:
        last = Index(data / "ledger" / ROOT / INDEX, table).last()
        return last.version if last else None

    return position
