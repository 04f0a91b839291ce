"""An engine that is a server: one question a call, through the one guarded HTTP client, and only to the revision we were told of.

Its policy can change without us, and decisions are kept. So the configuration names a revision, every answer must carry it, and
whoever changes the policy changes the revision here: that makes a new policy version, under which everything is decided anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tidings.channels.client import Fault, Request, shared_client
from tidings.engines.answers import Broken, Unanswered


def asked(url: str, body: Mapping[str, Any], timeout_s: float, allow: Sequence[str]) -> dict[str, Any]:
    """The JSON object that answers; what a server says in words is not repeated."""
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    request = Request("POST", url, headers, json.dumps(body).encode())
    answer = shared_client(allow).request(request, timeout_s)
    if isinstance(answer, Fault):
        raise Unanswered(f"{answer.code}: {answer.detail}")
    if answer.status != 200:
        # 500 is what a policy that fails gets; the others of its family come from what stands before the server.
        raise (Unanswered if answer.status > 500 else Broken)(f"the server answered {answer.status}")
    try:
        found = json.loads(answer.body)
    except ValueError:
        found = None
    if answer.cut or not isinstance(found, dict):
        raise Broken("the server's answer is not a JSON object")
    return found


def same(found: object, wanted: str) -> None:
    """Refuses another revision than the configured one."""
    if found != wanted:
        told = f"revision {found[:64]!r}" if isinstance(found, str) else "no revision"
        raise Broken(f"the server's policy says {told}, the configuration {wanted!r}")
