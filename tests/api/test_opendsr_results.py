"""What an access request brings together is handed to the controller that asked, and to it alone, for seven days."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from api_stage import Served, serving
from opendsr_stage import DOMAIN, PASSWORD, USER, Steps, body, processor

from tidings.api.rates import Rates
from tidings.rights import intake
from tidings.rights.asks import Word
from tidings.settings import Settings


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return processor(tmp_path_factory.mktemp("processor"))


@pytest.fixture(scope="module")
def served(made: Settings) -> Iterator[Served]:
    with serving(made, failed=Rates(1000, 1000)) as one:
        yield one


def get(served: Served, path: str, auth: Any = (USER, PASSWORD)) -> httpx.Response:
    return served.client.get(served.url + path, auth=auth)


def asked(served: Served, made: Settings, version: str, kind: str = "access") -> tuple[str, str]:
    """The controller's id of the request, and ours."""
    who = {"identity_type": "email", "identity_value": f"{uuid.uuid4().hex}@example.com", "identity_format": "raw"}
    said = body(subject_request_type=kind, subject_identities=[who])
    said |= {"api_version": "3.0"} if version == "v3" else {}
    found = served.client.post(f"{served.url}/{version}/requests", json=said, auth=(USER, PASSWORD))
    assert found.status_code == 201, found.text
    slip = list(intake.waiting(made))[-1]
    return said["subject_request_id"], slip.request


def steps_of(made: Settings) -> Steps:
    steps = Steps(made)
    steps.number = (steps.store.version("rights_requests") or 0) + 1000
    return steps


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_the_answer_is_fetched_by_whoever_asked_and_is_gone_after_seven_days(
    served: Served, made: Settings, version: str
) -> None:
    theirs, ours = asked(served, made, version)
    path, steps = f"/{version}/requests/{theirs}", steps_of(made)
    assert get(served, f"{path}/results").status_code == 404, "not yet"
    assert get(served, path).json().get("results_url") is None
    steps.step(ours, "working", what="ready", kind="access", details=[("bundle", "yes")])
    status = get(served, path).json()
    assert (status["request_status"], status["results_url"]) == ("completed", f"https://{DOMAIN}{path}/results")
    assert get(served, f"{path}/results", ("key-2", "other secret")).status_code == 404
    assert get(served, f"{path}/results", None).status_code == 401
    answer = get(served, f"{path}/results")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    assert set(answer.json()) == {"request", "kind", "records", "history", "recipients"}
    (word,) = [one.body for one in intake.waiting(made) if isinstance(one.body, Word) and one.request == ours]
    assert (word.action, word.by, len(word.evidence)) == ("done", "controller acme", 64)
    old = datetime.now(UTC) - timedelta(days=7, minutes=1)
    theirs, ours = asked(served, made, version, "portability")
    steps.step(ours, "working", what="ready", kind="portability", changed=old, details=[("bundle", "yes")])
    path = f"/{version}/requests/{theirs}"
    assert get(served, f"{path}/results").status_code == 410
    assert get(served, path).json().get("results_url") is None


def test_an_erasure_has_no_answer_to_fetch(served: Served, made: Settings) -> None:
    theirs, ours = asked(served, made, "v2", "erasure")
    steps_of(made).step(ours, "fulfilled")
    assert get(served, f"/v2/requests/{theirs}/results").status_code == 404
    assert "results_url" not in get(served, f"/v2/requests/{theirs}").json()
