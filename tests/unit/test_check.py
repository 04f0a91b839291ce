"""`check`: the plan of a good folder, all problems of a wrong one, one harmless call when asked, and no effects."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jsonschema_rs
import pytest

from tidings import yaml_lines
from tidings.cli import main
from tidings.errors import ConfigurationError
from tidings.plan import plan, verified
from tidings.verbs import schemas
from tidings.verbs.check import duration
from tidings.verbs.init import write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "shop")
    return tmp_path / "shop"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """One verb in this process: exit code, stdout, stderr."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_new_folder_passes_and_nothing_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = everything(folder)
    code, out, _ = run(capsys, "check", "-C", str(folder))
    assert code == 0
    assert everything(folder) == before
    for said in (
        "source crm",
        "entity customer",
        "subscriber hook",
        "exactly-once, within 1 min",
        "capacity",
        "policy ",
    ):
        assert said in out


def test_the_plan_in_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "check", "-C", str(folder), "--json", "--subjects", "3000")
    found = json.loads(out)
    assert code == 0
    assert found["tenant"] == "shop"
    hook = next(row for row in found["subscribers"] if row["name"] == "hook")
    consent = next(row for row in hook["promises"] if row["change_type"] == "consent")
    assert (consent["semantics"], consent["sla_s"]) == ("exactly-once", 60)
    newsletter = next(row for row in found["subscribers"] if row["name"] == "newsletter")
    # 5 calls a second, and the vendor takes profiles one by one: 3,000 people are ten minutes.
    assert newsletter["capacity"]["backfill_s"] == 600
    assert found["test_mode"] is True


def test_every_kind_of_problem_comes_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "sources/crm.yaml").write_text("kind: files\n")
    (folder / "policy/own.yaml").write_text("rules:\n  - {id: mine, anchor: nowhere}\n")
    hook = folder / "subscribers/hook.yaml"
    hook.write_text(hook.read_text() + "filter: type ==== 1\nvars: {colour: red}\n")
    (folder / "secrets/hook.key").write_text("not-a-signing-secret\n")
    code, out, err = run(capsys, "check", "-C", str(folder), "--json")
    problems = json.loads(out)["error"]["problems"]
    assert code == 2
    codes = {(problem["file"], problem["code"]) for problem in problems}
    assert {
        ("sources/crm.yaml", "missing_key"),
        ("policy/own.yaml", "choice"),
        ("subscribers/hook.yaml", "cesql"),
        ("subscribers/hook.yaml", "subscriber_settings"),
    } <= codes
    assert all(problem["line"] > 0 for problem in problems)
    assert "Nothing was started." in err
    assert "not-a-signing-secret" not in out + err


def test_a_bad_signing_secret_is_a_problem_at_its_line(folder: Path) -> None:
    (folder / "secrets/hook.key").write_text("not-a-signing-secret\n")
    with pytest.raises(ConfigurationError) as caught:
        verified(folder)
    assert [(p.file, p.line, p.code) for p in caught.value.problems] == [("subscribers/hook.yaml", 4, "signing_secret")]


@pytest.mark.parametrize(("line", "path"), [("vars: {mode: pigeon}", "vars.mode"), ("vars: {colour: red}", "vars")])
def test_vars_the_manifest_does_not_know_are_a_problem_at_their_line(folder: Path, line: str, path: str) -> None:
    hook = folder / "subscribers/hook.yaml"
    hook.write_text(hook.read_text() + line + "\n")
    with pytest.raises(ConfigurationError) as caught:
        verified(folder)
    assert [(p.line, p.path, p.code) for p in caught.value.problems] == [(12, path, "subscriber_settings")]


AUTHS = [
    ("{kind: oauth2, secret: file:pair.key}", "auth.token_url", "missing_key"),
    ("{kind: sigv4, secret: file:pair.key, region: eu-central-1}", "auth.service", "missing_key"),
    ("{kind: oauth2, secret: file:hook.key, token_url: /token}", "auth.secret", "subscriber_settings"),
    ("{kind: google, secret: file:pair.key}", "auth.secret", "subscriber_settings"),
    ("{kind: magic, secret: file:pair.key}", "auth.kind", "wrong_value"),
]


@pytest.mark.parametrize(("auth", "path", "code"), AUTHS)
def test_a_scheme_says_what_it_lacks(folder: Path, auth: str, path: str, code: str) -> None:
    (folder / "secrets/pair.key").write_text("id:key")
    hook = folder / "subscribers/hook.yaml"
    hook.write_text(hook.read_text() + f"auth: {auth}\n")
    with pytest.raises(ConfigurationError) as caught:
        verified(folder)
    assert [(p.path, p.code) for p in caught.value.problems] == [(path, code)]
    assert "id:key" not in str(caught.value)


def test_semantics_the_vendor_cannot_carry_are_refused(folder: Path) -> None:
    """An agent's inbox remembers nothing, so a repeat there is a second effect."""
    hook = folder / "subscribers/hook.yaml"
    hook.write_text(hook.read_text().replace("manifest: webhook", "manifest: agent_webhook"))
    with pytest.raises(ConfigurationError) as caught:
        verified(folder)
    assert [(p.line, p.path, p.code) for p in caught.value.problems] == [
        (10, "semantics.consent", "semantics_not_carried")
    ]


def test_a_manifest_of_the_operator_is_used_and_checked(folder: Path) -> None:
    (folder / "manifests").mkdir()
    (folder / "manifests/ours.yaml").write_text("title: Ours\nchannel: pigeon\n")
    hook = folder / "subscribers/hook.yaml"
    hook.write_text(hook.read_text().replace("manifest: webhook", "manifest: ours"))
    with pytest.raises(ConfigurationError) as caught:
        verified(folder)
    assert {Path(p.file).name for p in caught.value.problems} == {"ours.yaml"}


class Endpoint(BaseHTTPRequestHandler):
    """A subscriber that answers 200 to whoever shows the right key and 401 to others."""

    def do_GET(self) -> None:
        self.server.seen.append((self.command, self.path))  # type: ignore[attr-defined]
        allowed = not self.server.key or self.server.key in self.headers.get("Authorization", "")  # type: ignore[attr-defined]
        self.send_response(200 if allowed else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(b"{}")

    do_POST = do_HEAD = do_OPTIONS = do_GET

    def log_message(self, *_: object) -> None:
        """Silence; the test looks at `seen`."""


@pytest.fixture
def endpoint() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    server.seen, server.key = [], ""  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("key", "code"), [("", 0), ("another key", 5)], ids=["answers", "refuses"])
def test_connect_makes_one_call_per_subscriber(
    folder: Path, endpoint: ThreadingHTTPServer, capsys: pytest.CaptureFixture[str], key: str, code: int
) -> None:
    endpoint.key = key  # type: ignore[attr-defined]
    for path in (folder / "subscribers").iterdir():
        text = path.read_text()
        for port in ("9001", "9002"):
            text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{endpoint.server_port}")
        path.write_text(text)
    ended, out, _ = run(capsys, "check", "-C", str(folder), "--connect", "--json")
    rows = json.loads(out)["connect"]
    assert ended == code
    assert [row["subscriber"] for row in rows] == ["hook", "newsletter"]
    assert all(row["answered"] for row in rows) == (code == 0)
    assert len(endpoint.seen) == 2  # type: ignore[attr-defined]


def test_a_subscriber_nobody_hears_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hook = folder / "subscribers/hook.yaml"
    hook.write_text(hook.read_text().replace("127.0.0.1:9001", "127.0.0.1:1"))
    code, out, _ = run(capsys, "check", "-C", str(folder), "--connect")
    assert code == 5
    assert "connect hook: transient" in out


def test_what_init_writes_fits_the_schemas_that_editors_use(folder: Path) -> None:
    made = schemas.documents()
    kinds = {
        "tidings.yaml": "tidings",
        "sources": "source",
        "entities": "entity",
        "subscribers": "subscriber",
        "policy": "policy",
    }
    checked = 0
    for path in sorted(folder.rglob("*.yaml")):
        document, problems = yaml_lines.read(path, path.name)
        assert document is not None, problems
        validator = jsonschema_rs.validator_for(made[kinds[path.relative_to(folder).parts[0]]])
        assert [str(error) for error in validator.iter_errors(document.data)] == []
        assert not validator.is_valid({**document.data, "nobody_reads_this": 1})
        checked += 1
    assert checked == 6


def test_schemas_are_written_where_the_files_point(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in folder.rglob("*.yaml"):
        first = path.read_text().splitlines()[0]
        assert first.startswith("# yaml-language-server: $schema=")
        assert (path.parent / first.partition("=")[2]).is_file()
    (folder / "schemas/source.schema.json").unlink()
    code, out, _ = run(capsys, "schemas", "-C", str(folder), "--json")
    assert code == 0
    assert len(json.loads(out)["written"]) == 6
    assert (folder / "schemas/source.schema.json").is_file()


def test_an_own_type_is_planned(folder: Path) -> None:
    customer = folder / "entities/customer.yaml"
    customer.write_text(
        customer.read_text().replace("  tier:", "  points: {type: points}\n  tier:")
        + "types: {points: {description: p}}\n"
    )
    planned = plan(verified(folder), 1)
    assert planned.own_types == ("points",)
    assert "points" in {promise.change_type for promise in planned.subscribers[0].promises}


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (0.4, "less than 1 s"), (59.6, "1 min"), (3_661, "1 h 1 min"), (90_061, "1 d 1 h"), (86_400, "1 d")],
)
def test_durations_read_like_a_sentence(seconds: float, said: str) -> None:
    assert duration(seconds) == said
