"""Three advertising platforms: sets of digests, each with its own way of saying no."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from .api import Answer, Request, Vendor, Verb, bearer, header, item, job_of, nothing, says
from .books import Books, Item

_DIGEST = re.compile(r"[0-9a-f]{64}")


def _rows(request: Request) -> list[Item]:
    """A row needs one usable identifier; what should be a digest must look like one."""
    payload = request.json()["payload"]
    names: list[str] = payload["schema"]
    found = []
    for row in payload["data"]:
        pairs = dict(zip(names, row, strict=True))
        hashed = [value for name, value in pairs.items() if name not in ("EXTERN_ID", "MADID") and value]
        usable = all(_DIGEST.fullmatch(str(value)) for value in hashed)
        found.append(
            item((pairs.get("EXTERN_ID") or pairs.get("EMAIL") or pairs.get("PHONE")) if usable else None, row)
        )
    return found


def _counts(request: Request, items: Sequence[Item], outcomes: Sequence[str], books: Books) -> Answer:
    bad = sum(1 for each in items if each.wrong)
    return Answer(
        200, {"audience_id": request.groups.get("audience"), "num_received": len(items), "num_invalid_entries": bad}
    )


_USERS = r"/v[0-9.]+/(?P<audience>[0-9]+)/users"
META = Vendor(
    "meta",
    (
        Verb("ping", "GET", r"/v[0-9.]+/[0-9]+", nothing, says(200, {"id": "1"})),
        Verb("add", "POST", _USERS, _rows, _counts, 10_000, tells=True),
        Verb("remove", "DELETE", _USERS, _rows, _counts, 10_000, tells=True),
        Verb(
            "remove_everywhere",
            "DELETE",
            r"/v[0-9.]+/act_[0-9]+/usersofanyaudience",
            _rows,
            _counts,
            10_000,
            tells=True,
        ),
    ),
    bearer,
    per_second=8,
    burst=8,
    throttle="body",
)


def _digests(identifier: dict[str, Any]) -> list[Any]:
    """What of an identifier is hashed; an address has its place and its postcode in clear."""
    address = identifier.get("address")
    return [address.get("givenName"), address.get("familyName")] if address else list(identifier.values())


def _members(request: Request) -> list[Item]:
    body = request.json()
    if body.get("validateOnly"):
        return []
    found = []
    for member in body["audienceMembers"]:
        given = [value for pair in member["userData"]["userIdentifiers"] for value in _digests(pair)]
        usable = given and len(given) <= 10 and all(_DIGEST.fullmatch(str(value)) for value in given)
        found.append(item(given[0] if usable else None, member))
    return found


def _google_request(job: str) -> Any:
    return {"requestId": job}


def _request_state(request: Request, items: Sequence[Item], outcomes: Sequence[str], books: Books) -> Answer:
    state = books.poll(request.vendor, request.query.get("requestId", ""))
    if state == "unknown":
        return Answer(404, {"error": {"status": "NOT_FOUND"}})
    return Answer(
        200, {"requestStatusPerDestination": [{"requestStatus": "SUCCESS" if state == "complete" else "PROCESSING"}]}
    )


GOOGLE = Vendor(
    "google",
    (
        Verb("add", "POST", r"/v1/audienceMembers:ingest", _members, job_of(1, _google_request, 200), 10_000),
        Verb("remove", "POST", r"/v1/audienceMembers:remove", _members, job_of(1, _google_request, 200), 10_000),
        Verb("state", "GET", r"/v1/requestStatus:retrieve", nothing, _request_state),
    ),
    bearer,
    per_second=20,
    burst=20,
)


def _mapping(request: Request) -> list[Item]:
    body = request.json()
    found = []
    for row in body["batch_data"]:
        name = row[0].get("id") if row else None
        found.append(
            item(name if name and _DIGEST.fullmatch(str(name)) else None, {"action": body["action"], "row": row})
        )
    return found


def _code(request: Request, items: Sequence[Item], outcomes: Sequence[str], books: Books) -> Answer:
    """TikTok's HTTP is 200 whatever happened; only the code tells."""
    wrong = {each.wrong for each in items}
    code = 50002 if "later" in wrong else 40002 if wrong - {""} else 0
    return Answer(200, {"code": code, "message": "OK" if code == 0 else "not taken"})


_MAPPING = r"/open_api/v1\.3/segment/mapping/"
TIKTOK = Vendor(
    "tiktok",
    (
        Verb("ping", "GET", r"/open_api/v1\.3/dmp/custom_audience/get/", nothing, says(200, {"code": 0})),
        Verb("mapping", "POST", _MAPPING, _mapping, _code, 10_000, tells=True),
    ),
    header("access-token"),
)
