"""A secret replaced on disk while lanes run: the next call shows the new one, and a half-written file changes nothing."""

from __future__ import annotations

from pathlib import Path

from lane_stage import operator

from tidings.lanes.lane import SECRETS_EVERY_S, Lane, lane_job
from tidings.lanes.machine import LaneState
from tidings.lanes.send import channel_of
from tidings.settings import load


def rotated(folder: Path, text: str) -> None:
    (folder / "secrets" / "api.key").write_text(text)


def test_a_rotated_secret_is_used_from_the_next_call_on(tmp_path: Path) -> None:
    operator(tmp_path, {"hook": "http://127.0.0.1:9/"})
    path = tmp_path / "subscribers/hook.yaml"
    path.write_text(path.read_text() + "auth: {kind: bearer, secret: file:api.key}\n")
    (tmp_path / "secrets").mkdir(exist_ok=True)
    rotated(tmp_path, "canary-1")
    settings = load(tmp_path)
    job = lane_job(settings, settings.subscribers["hook"])
    lane = Lane(job, LaneState(job.rules))
    assert lane.ready(settings, 100.0).secrets["file:api.key"] == "canary-1"
    before = channel_of(lane.ready(settings, 100.0))
    rotated(tmp_path, "")
    assert lane.ready(settings, 100.0 + SECRETS_EVERY_S).secrets["file:api.key"] == "canary-1"
    (tmp_path / "secrets" / "api.key").unlink()
    assert lane.ready(settings, 100.0 + 2 * SECRETS_EVERY_S).secrets["file:api.key"] == "canary-1"
    rotated(tmp_path, "canary-2")
    assert lane.ready(settings, 101.0 + 2 * SECRETS_EVERY_S).secrets["file:api.key"] == "canary-1", "not at every call"
    now = lane.ready(settings, 100.0 + 3 * SECRETS_EVERY_S)
    assert now.secrets["file:api.key"] == "canary-2"
    assert channel_of(now) is not before
    assert "canary-2" not in repr(now)
