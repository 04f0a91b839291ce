"""A run with a new key-encryption key erases somebody who is under a legal hold: counsel has the records, the rest goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from counsel import PRIVATE, counsel_in
from test_erasure_run import ENTITY, Endpoint, ask, change, folder, person, request_of, run, serving
from typer.testing import CliRunner

from tidings.cli import application
from tidings.ledger.opening import attested_in
from tidings.rights import intake
from tidings.rights.holdstore import opened
from tidings.seal.keyfiles import KeyFiles
from tidings.settings import load
from tidings.store import Store

HELD = ENTITY + "  hold: {type: preference, class: internal, person: legal_hold}\n"


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_a_held_person_is_erased_under_a_rotated_key_and_counsel_has_the_records(tmp_path: Path) -> None:
    ends = {name: Endpoint() for name in ("alpha", "beta")}
    with serving(*ends.values()):
        root = folder(tmp_path / "operator", {name: end.url for name, end in ends.items()})
        (root / "entities/customer.yaml").write_text(HELD)
        page = root / "tidings.yaml"
        page.write_text(page.read_text().rpartition("rights:")[0])
        counsel_in(root, ", recipients: [beta]")
        rows = [change(1, "c", None, person(1, hold=True)), change(2, "c", None, person(2, hold=False))]
        (root / "drop/one.jsonl").write_text("\n".join(rows) + "\n")
        run(root)
        rotated = CliRunner().invoke(application("keys"), ["keys", "rotate", "-C", str(root), "--json"])
        assert json.loads(rotated.stdout)["version"] == 2, rotated.output
        settings = load(root)
        held, plain = (intake.hand_in(settings, ask("erasure", who)) for who in (1, 2))
        run(root)
    states = {name: {n: p.state for n, p in request_of(settings, name).parts.items()} for name in (held, plain)}
    assert states == {
        held: {"alpha": "acknowledged", "beta": "held"},
        plain: {"alpha": "acknowledged", "beta": "acknowledged"},
    }
    assert {request_of(settings, name).state for name in (held, plain)} == {"fulfilled"}
    keys = KeyFiles(settings.data_path / "keys", settings.keyring.derive("kek"))
    assert [keys.find(settings.keyring.tag(settings.tenant, "customer", who)) for who in ("1", "2")] == [[], []]
    (path,) = (settings.data_path / "holds").iterdir()
    told = json.dumps([dict(one) for one in opened(path, PRIVATE)])
    assert ["person1@example.com" in told, "person2@example.com" in told] == [True, False]
    store = Store(settings.data_path / "tables")
    position = attested_in(settings.data_path)
    assert [position(table) for table in ("attempts", "rights_requests")] == [
        store.version(table) for table in ("attempts", "rights_requests")
    ], "the rotation and the hold are in the ledger"
