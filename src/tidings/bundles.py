"""Policy bundles from elsewhere: a state's overlay, an association's rules, another team's. Taken in once, checked at every load.

    policy/bundles/NAME.yaml    the bundle, byte for byte as it came; a policy document takes it in with `include: NAME`
    policy/bundles/NAME.note    who says so: a signed note over name and digest; absent when it came unsigned
    policy/bundles/NAME.json    where it came from, when, who took it in and whose signature was accepted

A bundle that was changed since, or whose signature does not hold, is refused. A rule of a bundle replaces a rule of the catalogue with
the same id; the operator's own rules replace both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tidings import durable
from tidings.errors import Damaged, Problem, Refused
from tidings.ledger.note import Signer, Verifier

FOLDER = "bundles"
_HEAD = "tidings policy bundle"


@dataclass(frozen=True)
class Provenance:
    """Where a bundle came from."""

    name: str
    digest: str
    origin: str
    taken_at: str
    taken_by: str
    signed_by: str  # the key's one-line form; empty when it came unsigned


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def signed(name: str, body: bytes, signer: Signer) -> bytes:
    """The note that speaks for a bundle."""
    return signer.sign(_claim(name, body))


def opened(name: str, body: bytes, note: bytes, vkey: str) -> None:
    """Raises unless the holder of the key has signed exactly this bundle under this name."""
    if Verifier.parse(vkey).open(note) != _claim(name, body):
        raise Damaged(
            "bundle_signature", f"a signature over another bundle than {name}", "one over this file", "Get it again."
        )


def _claim(name: str, body: bytes) -> str:
    return f"{_HEAD}\n{name}\nsha256:{digest(body)}\n"


def take_in(policy: Path, body: bytes, note: bytes | None, said: Provenance) -> Path:
    """Write the bundle beside the policy; an older one of the name is replaced only by the holder of the same key."""
    folder = policy / FOLDER
    before = provenance(folder, said.name)
    if before is not None and before.signed_by and before.signed_by != said.signed_by:
        raise Refused(
            "bundle_signature",
            f"another signer than that of the {said.name} that is there",
            before.signed_by,
            "Remove the old bundle by hand if the publisher has a new key.",
        )
    durable.make_folder(folder)
    _write(folder / f"{said.name}.yaml", body)
    if note is None:
        (folder / f"{said.name}.note").unlink(missing_ok=True)
    else:
        _write(folder / f"{said.name}.note", note)
    _write(folder / f"{said.name}.json", (json.dumps(asdict(said), indent=2) + "\n").encode())
    return folder / f"{said.name}.yaml"


def _write(path: Path, body: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(body)
    part.replace(path)


def provenance(folder: Path, name: str) -> Provenance | None:
    path = folder / f"{name}.json"
    try:
        return Provenance(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
    except (ValueError, TypeError):
        return None


def taken(policy: Path) -> Iterator[Provenance]:
    """Everything that was taken in."""
    for path in sorted((policy / FOLDER).glob("*.yaml")):
        if (said := provenance(path.parent, path.stem)) is not None:
            yield said


def wrong(policy: Path, label: str) -> Iterator[Problem]:
    """Bundles that are not what was taken in."""
    for path in sorted((policy / FOLDER).glob("*.yaml")):
        file, body = f"{label}/{FOLDER}/{path.name}", path.read_bytes()
        said = provenance(path.parent, path.stem)
        if said is None:
            found, expected = "a bundle nobody took in", f"{path.stem}.json beside it"
            yield Problem(file, 0, "", "bundle_changed", found, expected, "Take it in with `tidings gate import`.")
        elif said.digest != digest(body):
            found, expected = "other bytes than were taken in", f"sha256 {said.digest[:16]}…"
            yield Problem(file, 0, "", "bundle_changed", found, expected, "Restore it, or take it in again.")
        elif said.signed_by:
            try:
                opened(path.stem, body, path.with_suffix(".note").read_bytes(), said.signed_by)
            except (Damaged, OSError):
                found = "a signature that does not hold, or none"
                yield Problem(file, 0, "", "bundle_signature", found, said.signed_by, "Take it in again.")
