"""`tidings gate import|sign|bundles`: rules of other people, taken in with who says so."""

from __future__ import annotations

import getpass
import re
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from tidings.errors import ConfigurationError, Problem, Refused
from tidings.verbs.options import AsJson, Here, answer, note

_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
Bundle = Annotated[Path, typer.Argument(metavar="FILE", help="The bundle, a policy document in YAML.")]


def register(app: typer.Typer) -> None:
    app.command("import")(take)
    app.command("sign")(sign)
    app.command("bundles")(bundles)


def take(
    file: Bundle,
    signature: Annotated[
        Path | None, typer.Option(metavar="NOTE", help="The signed note; FILE.note when it is there.")
    ] = None,
    key: Annotated[str, typer.Option(help="The publisher's key, as one line: name+hash+key.")] = "",
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Take it in although nobody signed it.")] = False,
    origin: Annotated[str, typer.Option("--from", help="Where it came from, for the record.")] = "",
    by: Annotated[str, typer.Option(help="Who takes it in; you, when left out.")] = "",
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Take a bundle into the policy folder: its rules are compiled, their examples run and its signature checked first."""
    from tidings import bundles as shelf

    name, body = _read(file)
    beside = signature or Path(f"{file}.note")
    signed = beside.read_bytes() if beside.exists() else None
    if not unsigned and (signed is None or not key):
        raise Refused(
            "bundle_signature",
            "no signed note, or no key to check it with",
            "a note and the publisher's --key",
            "Ask the publisher for both, or say --unsigned and answer for it yourself.",
        )
    if signed is not None and key:
        shelf.opened(name, body, signed, key)
    _compiled(body, name, directory)
    accepted = key if signed is not None else ""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    said = shelf.Provenance(name, shelf.digest(body), origin or file.name, now, by or getpass.getuser(), accepted)
    shelf.take_in(directory / "policy", body, signed if accepted else None, said)
    note(f"Taken in. Add `include: [{name}]` to a document of policy/ to put it in force.")
    if as_json:
        answer(asdict(said))


def sign(
    file: Bundle,
    name: Annotated[str, typer.Option("--as", help="The signer's name, such as example.org/policy.")],
    key: Annotated[str, typer.Option(help="env:NAME or file:NAME of 32 secret bytes in hex.")],
    directory: Here = Path("."),
    as_json: AsJson = False,
) -> None:
    """Sign a bundle: writes FILE.note and prints the key that others check it with."""
    from tidings import bundles as shelf
    from tidings.ledger.note import Signer
    from tidings.secret import resolve

    bundle, body = _read(file)
    try:
        seed = bytes.fromhex(resolve(key, directory / "secrets").reveal().strip())
    except ValueError:
        seed = b""
    if len(seed) != 32:
        raise Refused("bundle_key", "a secret of another shape", "32 bytes in hex", "Make one: openssl rand -hex 32")
    signer = Signer(name, seed)
    Path(f"{file}.note").write_bytes(shelf.signed(bundle, body, signer))
    answer({"note": f"{file}.note", "key": signer.verifier.vkey}) if as_json else print(signer.verifier.vkey)


def bundles(directory: Here = Path("."), as_json: AsJson = False) -> None:
    """List what was taken in, from where, by whom and under whose signature."""
    from tidings import bundles as shelf

    found = [asdict(one) for one in shelf.taken(directory / "policy")]
    if as_json:
        answer(found)
        return
    for one in found:
        signer = one["signed_by"].partition("+")[0] or "nobody"
        print(
            f"{one['name']}: signed by {signer}, from {one['origin']}, taken in {one['taken_at']} by {one['taken_by']}"
        )
    if not found:
        print("Nothing was taken in; the rules are the catalogue's and your own.")


def _read(file: Path) -> tuple[str, bytes]:
    name = file.name.removesuffix(".yaml")
    if not _NAME.fullmatch(name) or file.suffix != ".yaml":
        raise Refused("bundle_name", file.name, "NAME.yaml of small letters, digits and dashes", "Rename the file.")
    try:
        return name, file.read_bytes()
    except OSError:
        raise Refused("bundle_name", f"no file {file.name}", "a bundle", "Mend the path.") from None


def _compiled(body: bytes, name: str, directory: Path) -> None:
    """Everything that is wrong with the rules of the bundle, before it is taken in."""
    from tidings import policy, yaml_lines
    from tidings.gate.loading import catalogue_statutes, compile_rules

    document, problems = yaml_lines.parse(body.decode("utf-8", "replace"), f"{name}.yaml")
    found: list[Problem] = list(problems)
    if document is not None:
        found += policy.shape(document)
        statutes, wrong = catalogue_statutes()
        rules: Any = policy.rules_of(document)
        found += wrong + compile_rules(list(rules), statutes)[1]
    if found:
        raise ConfigurationError(found)
