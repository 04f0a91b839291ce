"""What no single file can know: whether the files of the folder, the catalogue and the secrets fit together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from tidings.consent_check import consent_problems, consent_references
from tidings.contract import CHANGE_TYPES, LIFE_CYCLE, RIGHT_TYPES, SIGNAL_TYPES, Contract
from tidings.contract_check import contract_problems, known_name
from tidings.errors import ConfigurationError, Problem, Refused
from tidings.kinds import EXPECTED, KINDS, OPTIONS
from tidings.masters import masters
from tidings.reading import listed
from tidings.rights_shapes import Rights
from tidings.saga_check import saga_problems
from tidings.secret import readable_by_others, resolve
from tidings.shapes import Operator, Saga, Source, Subscriber
from tidings.tokens import vendors
from tidings.yaml_lines import Document, Place

if TYPE_CHECKING:
    from tidings.channels.manifest import Manifest


@dataclass(frozen=True)
class Folder:
    """What could be read of the folder; `broken` files exist and have problems of their own."""

    directory: Path
    operator: Operator | None
    sources: Mapping[str, Source]
    entities: Mapping[str, Contract]
    subscribers: Mapping[str, Subscriber]
    documents: Mapping[str, Document]
    broken: frozenset[str]
    sagas: Mapping[str, Saga] = field(default_factory=dict)

    @property
    def change_types(self) -> set[str]:
        """Every type there is; a signal's only counts where a contract gives it."""
        own = {name for contract in self.entities.values() for name in (*contract.types, *contract.signal_types)}
        rights = RIGHT_TYPES if self.operator is not None and self.operator.rights is not None else ()
        return {*CHANGE_TYPES, *LIFE_CYCLE, *own, *rights}

    @property
    def contract_names(self) -> set[str]:
        return set(self.entities) | {Path(label).stem for label in self.broken if label.startswith("entities/")}


def crosscheck(folder: Folder, *, secrets: bool) -> tuple[list[Problem], list[Problem]]:
    """Problems that stop a start, and warnings that do not."""
    problems: list[Problem] = []
    if folder.operator is not None:
        problems += _banners(folder, folder.operator)
        problems += consent_problems(folder, folder.documents["tidings.yaml"], folder.operator)
    for name, source in folder.sources.items():
        problems += _source(folder, folder.documents[f"sources/{name}.yaml"], source)
    problems += _shared_paths(folder)
    for name, contract in folder.entities.items():
        page = folder.documents[f"entities/{name}.yaml"]
        problems += contract_problems(page, contract)
        if contract.masters is not None:
            problems += masters(page, name, contract.masters, folder.sources)
    for name, subscriber in folder.subscribers.items():
        problems += _subscriber(folder, folder.documents[f"subscribers/{name}.yaml"], subscriber)
    for name, saga in folder.sagas.items():
        problems += saga_problems(folder, folder.documents[f"sagas/{name}.yaml"], saga)
    wrong, warnings = _secrets(folder, every=secrets)
    return problems + wrong, warnings


def _banners(folder: Folder, operator: Operator) -> Iterator[Problem]:
    page = folder.documents["tidings.yaml"]
    for at in _repeated([banner.id for banner in operator.banners]):
        yield page.problem(("banners", at, "id"), "duplicate_id", "a banner id used before", "each once", "Rename it.")
    for number, banner in enumerate(operator.banners):
        for at in _repeated([location.id for location in banner.locations]):
            place = ("banners", number, "locations", at, "id")
            yield page.problem(place, "duplicate_id", "a location id used before", "each once", "Rename it.")
    for at, one in enumerate(operator.tokenization):
        yield from known_name(page, ("tokenization", at, "vendor"), one.vendor, vendors(), "unknown_vendor")
    if operator.rights is not None and (shopify := operator.rights.shopify) is not None and shopify.entity:
        spot = ("rights", "shopify", "entity")
        yield from known_name(page, spot, shopify.entity, folder.contract_names, "unknown_contract")
    kinds = {contract.kind for contract in folder.entities.values()} | folder.contract_names
    for at, subject in enumerate(operator.test_mode.subjects):
        kind, colon, key = subject.partition(":")
        if not colon or not key or kind not in kinds:
            says = ("another form", f"ENTITY:KEY with ENTITY one of {listed(kinds)}", "Write it like customer:1001.")
            yield page.problem(("test_mode", "subjects", at), "unknown_contract", *says)


def _repeated(ids: list[str]) -> list[int]:
    return [at for at, name in enumerate(ids) if name in ids[:at]]


def _source(folder: Folder, page: Document, source: Source) -> Iterator[Problem]:
    for entity, contract in source.entities.items():
        yield from known_name(page, ("entities", entity), contract, folder.contract_names, "unknown_contract")
    dialects = shelf("dialects")
    if dialects and source.dialect != "auto":
        yield from known_name(page, ("dialect",), source.dialect, {*dialects, "auto"}, "unknown_dialect")
    if folder.operator is not None:
        banners = {banner.id: {location.id for location in banner.locations} for banner in folder.operator.banners}
        yield from known_name(page, ("banner",), source.banner, banners, "unknown_banner")
        if source.location is not None and source.banner in banners:
            yield from known_name(page, ("location",), source.location, banners[source.banner], "unknown_location")
    yield from _options(page, source)
    if source.kind == "exports" and len(source.entities) > 1:
        says = (f"{len(source.entities)} tables", "one: an export is one table", "Declare a source for each.")
        yield page.problem(("entities",), "wrong_value", *says)
    if KINDS[source.kind].needs == ("path",):
        yield from _drop_folder(folder, page, source)


def _options(page: Document, source: Source) -> Iterator[Problem]:
    """Each kind of source has keys it needs, keys it may have, and no others."""
    kind = KINDS[source.kind]
    for name in kind.needs:
        if getattr(source, name) is None:
            yield page.problem((name,), "missing_key", "nothing", EXPECTED[name], f"Add `{name}:`.")
    for name in OPTIONS:
        if name in source.model_fields_set and name not in (*kind.needs, *kind.may):
            expected = f"none: a source of kind {source.kind} has no {name}"
            yield page.problem((name,), "unknown_key", f"{name}", expected, "Remove it.")
    if source.after == "archive" and kind.tap:
        yield page.problem(
            ("after",), "wrong_value", "archive", "delete or keep: only files are archived", "Change it."
        )


def _drop_folder(folder: Folder, page: Document, source: Source) -> Iterator[Problem]:
    if source.path is None:
        return
    path = (folder.directory / source.path).resolve()
    if not path.is_dir():
        found = "a file" if path.exists() else "no such folder"
        yield page.problem(("path",), "missing_folder", found, "the drop folder", "Create the folder.")
    if folder.operator is not None:
        data = (folder.directory / folder.operator.data).resolve()
        if path.is_relative_to(data) or data.is_relative_to(path):
            says = ("a folder that overlaps the data folder", "a folder of its own", "Move one of them.")
            yield page.problem(("path",), "path_overlaps", *says)


def _shared_paths(folder: Folder) -> Iterator[Problem]:
    """Two sources on one folder would each take every message."""
    seen: dict[Path, str] = {}
    for name, source in sorted(folder.sources.items()):
        if source.path is None:
            continue
        path = (folder.directory / source.path).resolve()
        for other, owner in seen.items():
            if path.is_relative_to(other) or other.is_relative_to(path):
                says = (
                    f"a folder that overlaps that of source {owner}",
                    "a folder of its own",
                    "Give each source its own.",
                )
                yield folder.documents[f"sources/{name}.yaml"].problem(("path",), "path_overlaps", *says)
        seen.setdefault(path, name)


def _subscriber(folder: Folder, page: Document, subscriber: Subscriber) -> Iterator[Problem]:
    types, wanted = folder.change_types | set(SIGNAL_TYPES), [name for name in subscriber.types if name != "*"]
    for at, name in enumerate(subscriber.types):
        if name != "*":
            yield from known_name(page, ("types", at), name, types, "unknown_type")
    for at, name in enumerate(subscriber.entities):
        if name != "*":
            yield from known_name(page, ("entities", at), name, folder.contract_names, "unknown_contract")
    for section in ("semantics", "sla"):
        for name in getattr(subscriber, section):
            if name == "default":
                continue
            yield from known_name(page, (section, name), name, {*types, "default"}, "unknown_type")
            if "*" not in subscriber.types and name in types and name not in wanted:
                says = (
                    f"{name}, which this subscriber is not sent",
                    f"one of {listed(wanted)}",
                    "Add it to types, or remove it.",
                )
                yield page.problem((section, name), "unknown_type", *says)
    yield from _manifest(folder, page, subscriber)


def _manifest(folder: Folder, page: Document, subscriber: Subscriber) -> Iterator[Problem]:
    from tidings.channels.manifest import load_manifest, manifest_names

    own = folder.directory / "manifests"
    names = {*manifest_names(), *(path.stem for path in own.glob("*.yaml"))}
    if subscriber.manifest not in names:
        yield from known_name(page, ("manifest",), subscriber.manifest, names, "unknown_manifest")
        return
    try:
        manifest = load_manifest(subscriber.manifest, own)
    except ConfigurationError as error:
        yield from error.problems
        return
    if not subscriber.url and not manifest.url and manifest.sink is None:
        yield page.problem(("url",), "missing_key", "nothing", "the address of the endpoint", "Add `url:`.")
    yield from _auth(page, subscriber, manifest)
    types = folder.change_types if "*" in subscriber.types else set(subscriber.types) & folder.change_types
    yield from _semantics(page, subscriber, manifest, types)


def _auth(page: Document, subscriber: Subscriber, manifest: Manifest) -> Iterator[Problem]:
    """A vendor that authenticates needs a secret; `auth: {kind: none}` says that this endpoint does not."""
    from tidings.channels.auth import merged

    auth = subscriber.auth
    kind = manifest.auth.kind if auth is None else auth.kind
    if kind != "none" and (auth is None or auth.secret is None):
        expected = "a secret as env:NAME or file:NAME"
        yield page.problem(("auth", "secret"), "missing_key", "nothing", expected, "Add `auth: {kind: …, secret: …}`.")
    if auth is not None and kind == "none" and auth.secret is not None:
        yield page.problem(("auth", "secret"), "unknown_key", "a secret", "none for kind none", "Remove it.")
    if auth is not None and kind == "header" and auth.header is None and manifest.auth.kind != "header":
        yield page.problem(("auth", "header"), "missing_key", "nothing", "the header's name", "Add `header:`.")
    whole = merged(manifest.auth, auth)
    for part in {"oauth2": ("token_url",), "sigv4": ("region", "service")}.get(whole.kind, ()):
        if not getattr(whole, part):
            yield page.problem(
                ("auth", part), "missing_key", "nothing", f"a {part} for {whole.kind}", f"Add `{part}:`."
            )


def _semantics(page: Document, subscriber: Subscriber, manifest: Manifest, types: set[str]) -> Iterator[Problem]:
    refused: dict[str, list[str]] = {}
    # A right that the vendor has no verb for is a human's task, whatever the lane promises of the rest.
    vendor = not manifest.webhook and not manifest.sink
    tasks = {name for name in RIGHT_TYPES if vendor and not manifest.routed(name)}
    for name in sorted(types - tasks):
        if subscriber.semantics_for(name) not in manifest.capabilities(name).semantics:
            refused.setdefault(name if name in subscriber.semantics else "default", []).append(name)
    for key, names in refused.items():
        says = (
            f"{subscriber.semantics_for(key)} for {listed(names)}",
            f"an idempotency key, a natural verb, a probe or a transaction; the {subscriber.manifest} manifest declares none",
            "Ask for at-least-once or at-most-once.",
        )
        yield page.problem(("semantics", key), "semantics_not_carried", *says)


def _secrets(folder: Folder, *, every: bool) -> tuple[list[Problem], list[Problem]]:
    problems: list[Problem] = []
    warnings: list[Problem] = []
    if folder.operator is None:
        return problems, warnings
    home = folder.directory / folder.operator.secrets.folder
    for label, place, reference in _references(folder, every=every):
        page = folder.documents[label]
        try:
            secret = resolve(reference, home)
            exposed = readable_by_others(reference, home)
        except Refused as error:
            problems.append(page.problem(place, error.code, error.found, error.expected, error.what_now))
            continue
        if place == ("master_key",) and not _is_master_key(secret.reveal_bytes()):
            says = (
                "another value in the file",
                "64 hexadecimal digits (32 bytes)",
                "Restore the key, or run `tidings init`.",
            )
            problems.append(page.problem(place, "master_key", *says))
        if exposed:
            says = ("a file that others may read", "permissions 0600", "Run chmod 600 on it.")
            warnings.append(page.problem(place, "secret_exposed", *says))
    return problems, warnings


def _is_master_key(value: bytes) -> bool:
    try:
        return len(bytes.fromhex(value.decode("ascii"))) == 32
    except ValueError:
        return False


def _references(folder: Folder, *, every: bool) -> Iterator[tuple[str, Place, str]]:
    assert folder.operator is not None
    yield "tidings.yaml", ("master_key",), folder.operator.master_key
    if not every:
        return
    yield from consent_references(folder.operator)
    for at, alert in enumerate(folder.operator.alerts):
        if alert.secret is not None:
            yield "tidings.yaml", ("alerts", at, "secret"), alert.secret
    if folder.operator.rights is not None:
        yield from _rights(folder.operator.rights)
    rights = folder.operator.rights
    if rights is not None and (processor := rights.opendsr) is not None:
        yield "tidings.yaml", ("rights", "opendsr", "signing_key"), processor.signing_key
        for name, controller in processor.controllers.items():
            yield "tidings.yaml", ("rights", "opendsr", "controllers", name, "credentials"), controller.credentials
    for name, subscriber in folder.subscribers.items():
        label = f"subscribers/{name}.yaml"
        if subscriber.auth is not None and subscriber.auth.secret is not None:
            yield label, ("auth", "secret"), subscriber.auth.secret
        if subscriber.signing_secret is not None:
            yield label, ("signing_secret",), subscriber.signing_secret
        if subscriber.connection is not None:
            yield label, ("connection",), subscriber.connection


def _rights(rights: Rights) -> Iterator[tuple[str, Place, str]]:
    if rights.identity is not None:
        yield "tidings.yaml", ("rights", "identity", "signing_secret"), rights.identity.signing_secret
    if rights.shopify is not None:
        yield "tidings.yaml", ("rights", "shopify", "secret"), rights.shopify.secret


def shelf(name: str) -> set[str]:
    """The names of what the catalogue holds of one kind."""
    entries = files("tidings").joinpath(f"catalog/{name}").iterdir()
    return {
        entry.name.removesuffix(".yaml") for entry in entries if entry.name.endswith(".yaml") and entry.name[0] != "_"
    }
