"""The answer to a request for access or portability, handed to the controller that passed it on: put together when it is fetched, kept nowhere.

The first fetch is the answer: the desk is told its digest, as of a bundle that a human handed over.
"""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tidings.gate.loading import load_policy
from tidings.rights import intake
from tidings.rights.asks import Word
from tidings.rights.book import Request
from tidings.rights.bundle import bundle
from tidings.rights.opendsr import Wrong
from tidings.rights.opendsr_bodies import RESULTS_FOR, ready_since
from tidings.store import Store

if TYPE_CHECKING:
    from tidings.settings import Settings


def handed_out(settings: Settings, request: Request | None, controller: str, now: datetime) -> dict[str, Any]:
    """The bundle, or why there is none: not yet, or not any more."""
    since = ready_since(request)
    if request is None or since is None:
        raise Wrong(404, ("NotFound", "There is no answer to fetch, or not yet."))
    if now - since >= RESULTS_FOR:
        raise Wrong(410, ("Gone", "The answer could be fetched for seven days; ask again."))
    made = bundle(settings, Store(settings.data_path / "tables"), load_policy(settings), request)
    if request.state == "working":
        digest = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()
        intake.say(settings, Word(request.id, "done", f"controller {controller}", "fetched", evidence=digest))
    return made
