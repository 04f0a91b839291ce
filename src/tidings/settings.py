"""The operator's folder, read once, as frozen typed models; or every problem of every file at once.

    settings = load("my-shop")
    settings.sources["crm"].dialect, settings.entities["customer"].typed_fields, settings.subscribers["klaviyo"].types

The folder is the only thing that is configuration. What is checked here needs no Spark, no network and no clock.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING

from tidings import policy, yaml_lines
from tidings.contract import CHANGE_TYPES, LIFE_CYCLE, RIGHT_TYPES, Contract
from tidings.crosscheck import Folder, crosscheck
from tidings.errors import ConfigurationError, Problem, Refused
from tidings.policy import Policies
from tidings.reading import M, into
from tidings.rights_shapes import Rights
from tidings.secret import Secret, resolve
from tidings.shapes import Alert, Banner, NetworkRules, Operator, RunLimits, Saga, Source, Subscriber, TestMode

if TYPE_CHECKING:
    from tidings.seal.keyring import Keyring

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")


@dataclass(frozen=True)
class Site:
    """A location with what it inherits: one row of the dimension that events are placed in."""

    banner: str
    id: str
    locale: str
    routing_hint: str
    jurisdiction: str


@dataclass(frozen=True)
class Settings:
    """Everything the folder says. `warnings` are problems that stop nothing."""

    directory: Path
    operator: Operator
    sources: Mapping[str, Source]
    entities: Mapping[str, Contract]
    subscribers: Mapping[str, Subscriber]
    policies: Policies
    warnings: tuple[Problem, ...] = ()
    documents: Mapping[str, yaml_lines.Document] = field(default_factory=dict, repr=False, compare=False)
    sagas: Mapping[str, Saga] = field(default_factory=dict)

    @property
    def tenant(self) -> str:
        return self.operator.tenant

    @property
    def jurisdiction(self) -> str:
        return self.operator.jurisdiction

    @cached_property
    def banners(self) -> dict[str, Banner]:
        return {banner.id: banner for banner in self.operator.banners}

    @cached_property
    def locations(self) -> dict[tuple[str, str], Site]:
        """(banner, location) → its site, inherited values filled in."""
        return {(site.banner, site.id): site for site in self._sites()}

    def _sites(self) -> Iterator[Site]:
        for banner in self.operator.banners:
            for place in banner.locations:
                jurisdiction = place.jurisdiction or banner.jurisdiction or self.operator.jurisdiction
                hint = place.routing_hint or banner.routing_hint
                yield Site(banner.id, place.id, place.locale or banner.locale, hint, jurisdiction)

    @property
    def data_path(self) -> Path:
        return (self.directory / self.operator.data).absolute()

    @property
    def manifests_path(self) -> Path:
        """The operator's own manifests, beside those of the catalogue."""
        return self.directory / "manifests"

    def source_path(self, name: str) -> Path:
        """A files source's drop folder."""
        return (self.directory / (self.sources[name].path or "")).absolute()

    @property
    def test_mode(self) -> TestMode:
        return self.operator.test_mode

    @property
    def alerts(self) -> tuple[Alert, ...]:
        return self.operator.alerts

    @property
    def network(self) -> NetworkRules:
        return self.operator.network

    @cached_property
    def attested_vendors(self) -> frozenset[str]:
        """The vendors whose tokens somebody vouches for."""
        return frozenset(one.vendor for one in self.operator.tokenization)

    @property
    def rights(self) -> Rights:
        """How requests of people are handled; what is not declared is as usual."""
        return self.operator.rights or Rights()

    @property
    def run(self) -> RunLimits:
        return self.operator.run

    @cached_property
    def change_types(self) -> tuple[str, ...]:
        """Every type an event can have: the fifteen, the operator's own and its signals', people's rights, the steps of a life cycle."""
        own = {name for contract in self.entities.values() for name in (*contract.types, *contract.signal_types)}
        rights = RIGHT_TYPES if self.operator.rights is not None else ()
        return (*dict.fromkeys((*CHANGE_TYPES, *sorted(own), *rights)), *LIFE_CYCLE)

    @cached_property
    def policy_version(self) -> str:
        """Changes when a rule in force or a law changes, the catalogue's or the operator's, and for no other reason."""
        policy = self.directory / "policy"
        own = digest_of(sorted([*(policy / "statutes").glob("*.*"), *(policy / "calendars").glob("*.*")]))
        said = "\x1f".join((self.policies.version, catalogue_version(), own))
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    def secret(self, reference: str) -> Secret:
        return resolve(reference, self.directory / self.operator.secrets.folder)

    def secrets_of(self, name: str) -> dict[str, str]:
        """The values of one subscriber's references, for opening its channel and for nothing else."""
        subscriber = self.subscribers[name]
        own = subscriber.auth.secret if subscriber.auth else None
        references = (own, subscriber.signing_secret, subscriber.connection)
        return {reference: self.secret(reference).reveal() for reference in references if reference}

    @cached_property
    def keyring(self) -> Keyring:
        from tidings.seal import kek
        from tidings.seal.keyring import Keyring

        return Keyring(master_key(self), kek.read(self.data_path / "keys").version)


def master_key(settings: Settings) -> bytes:
    """The 32 bytes everything else is derived from."""
    try:
        key = bytes.fromhex(settings.secret(settings.operator.master_key).reveal())
    except ValueError:
        key = b""
    if len(key) != 32:
        expected = "64 hexadecimal digits (32 bytes)"
        raise Refused("master_key", "another value in the master key", expected, "Restore the key that made this data.")
    return key


def catalogue_version() -> str:
    """A digest of the law that comes with the package: anchors and statutes."""
    shelves = [files("tidings").joinpath(f"catalog/{shelf}") for shelf in ("anchors", "statutes")]
    return digest_of(entry for shelf in shelves for entry in sorted(shelf.iterdir(), key=lambda entry: entry.name))


def digest_of(entries: Iterable[Traversable]) -> str:
    """One digest over the names and bytes of some files."""
    digest = hashlib.sha256()
    for entry in entries:
        if entry.is_file() and not entry.name.startswith((".", "__")):
            digest.update(entry.name.encode() + b"\x1f" + entry.read_bytes() + b"\x1e")
    return digest.hexdigest()[:16]


def load(directory: str | Path, *, secrets: bool = True) -> Settings:
    """The folder as settings. `secrets=False` is for verbs that only read: a missing subscriber secret is no problem."""
    settings, problems = examine(directory, secrets=secrets)
    if problems or settings is None:
        raise ConfigurationError(problems)
    return settings


def examine(directory: str | Path, *, secrets: bool = True) -> tuple[Settings | None, list[Problem]]:
    """The settings as far as they can be read, and every problem; settings are whole only when there is none."""
    root = Path(directory)
    if not root.is_dir():
        found = "a file" if root.exists() else "no such folder"
        return None, [
            Problem(str(directory), 0, "(folder)", "missing_folder", found, "a folder", "Run `tidings init DIR`.")
        ]
    reader = _FolderReader(root)
    operator = reader.operator()
    folder = Folder(
        directory=root,
        operator=operator,
        sources=reader.shelf("sources", Source),
        entities=reader.shelf("entities", Contract),
        subscribers=reader.shelf("subscribers", Subscriber),
        sagas=reader.shelf("sagas", Saga) if (root / "sagas").is_dir() else {},
        documents=reader.documents,
        broken=frozenset(reader.broken),
    )
    policies = reader.policies(
        (
            *(["masters"] if any(one.masters for one in folder.entities.values()) else []),
            *(["rights"] if operator is not None and operator.rights is not None else []),
        )
    )
    wrong, warnings = crosscheck(folder, secrets=secrets)
    problems = sorted({*reader.problems, *wrong})
    if operator is None:
        return None, problems
    parts = (with_rights(folder.sources, folder.entities, operator), folder.entities, folder.subscribers, policies)
    return Settings(root, operator, *parts, tuple(sorted(warnings)), reader.documents, folder.sagas), problems


def with_rights(
    sources: Mapping[str, Source], entities: Mapping[str, Contract], operator: Operator
) -> Mapping[str, Source]:
    """With the inbox that requests of people become messages in, where the folder declares `rights:`."""
    people = {name: name for name, contract in entities.items() if contract.identifiers}
    if operator.rights is None or not people or "rights" in sources:
        return sources
    made = Source(name="rights", kind="inbox", dialect="change_table", entities=people, banner=operator.banners[0].id)
    return {**sources, "rights": made}


class _FolderReader:
    """Reads the files of one folder and keeps what was wrong with each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.problems: list[Problem] = []
        self.documents: dict[str, yaml_lines.Document] = {}
        self.broken: set[str] = set()  # files that exist and could not be used: others may still refer to them

    def operator(self) -> Operator | None:
        if not (self.root / "tidings.yaml").exists():
            self._problem(
                "tidings.yaml",
                "missing_file",
                "no tidings.yaml here",
                "an operator's folder",
                "Run `tidings init DIR`, or name the folder with -C.",
            )
            return None
        return self._one("tidings.yaml", Operator)

    def shelf(self, folder: str, model: type[M]) -> dict[str, M]:
        """Every NAME.yaml of a folder, by name; the folder must be there and hold at least one."""
        if not self._paths(folder):
            return {}
        found = {}
        for path in self._paths(folder):
            instance = self._one(f"{folder}/{path.name}", model, path.stem)
            if instance is not None:
                found[path.stem] = instance
        return found

    def policies(self, always: tuple[str, ...]) -> Policies:
        self._paths("policy")
        policies, wrong = policy.read(self.root / "policy", "policy", always)
        self.problems += wrong
        return policies

    def _paths(self, folder: str) -> list[Path]:
        path = self.root / folder
        if not path.is_dir():
            self._problem(
                folder, "missing_folder", "nothing", "a folder of YAML files", f"Create {folder}/ and put a file in it."
            )
            return []
        entries = sorted(path.iterdir())
        for entry in entries:
            if entry.suffix == ".yml":
                self._problem(
                    f"{folder}/{entry.name}",
                    "unexpected_file",
                    "the ending .yml",
                    ".yaml",
                    f"Rename it to {entry.stem}.yaml.",
                )
        found = [entry for entry in entries if entry.suffix == ".yaml" and not entry.name.startswith(".")]
        if not found:
            self._problem(folder, "missing_file", "no .yaml file", "at least one", f"Put a file in {folder}/.")
        return found

    def _one(self, label: str, model: type[M], name: str = "") -> M | None:
        if name and not _NAME.fullmatch(name):
            self._problem(
                label,
                "wrong_name",
                "this file name",
                "small letters, digits, _ or -, a letter first",
                "Rename the file.",
            )
        document, wrong = yaml_lines.read(self.root / label, label)
        instance = None
        if document is not None:
            self.documents[label] = document
            instance, wrong = into(model, document, name)
        if instance is None:
            self.broken.add(label)
        self.problems += wrong
        return instance

    def _problem(self, file: str, code: str, found: str, expected: str, what_now: str) -> None:
        self.problems.append(
            Problem(file, 0, "(folder)" if "." not in file else "(file)", code, found, expected, what_now)
        )
