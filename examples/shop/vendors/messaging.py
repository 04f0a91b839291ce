"""Two e-mail platforms and an SMS consent service."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from .api import Answer, Request, Vendor, Verb, basic, header, item, job_of, nothing, says
from .books import Books, Item, subject_of


def _profile(request: Request) -> list[Item]:
    about = request.json()["data"]["attributes"]
    identity = about.get("email") or about.get("phone_number") or about.get("external_id")
    return [item(identity, about, (about.get("properties") or {}).get("tidings_event"))]


def _profiles(request: Request) -> list[Item]:
    listed = request.json()["data"]["attributes"]["profiles"]["data"]
    return [item(each["attributes"].get("email") or each["attributes"].get("phone_number"), each) for each in listed]


def _erased(request: Request) -> list[Item]:
    about = request.json()["data"]["attributes"]["profile"]["data"]["attributes"]
    return [item(about.get("email"), about)]


def _job_state(request: Request, items: Sequence[Item], outcomes: Sequence[str], books: Books) -> Answer:
    state = books.poll(request.vendor, request.groups["job"])
    if state == "unknown":
        return Answer(404, {"errors": [{"code": "not_found"}]})
    return Answer(200, {"data": {"id": request.groups["job"], "attributes": {"status": state}}})


def _find_profile(request: Request, items: Sequence[Item], outcomes: Sequence[str], books: Books) -> Answer:
    """Whom nobody has erased is there: this vendor knew the shop's customers before the story began."""
    asked = re.fullmatch(r'equals\(email,"([^"]*)"\)', request.query.get("filter", ""))
    if not asked:
        return Answer(400, {"errors": [{"code": "invalid_filter"}]})
    gone = books.last_verb(request.vendor, subject_of(asked[1])) == "erase"
    return Answer(200, {"data": [] if gone else [{"type": "profile"}]})


def _klaviyo_job(job: str) -> Any:
    return {"data": {"type": "job", "id": job}}


_JOBS = r"/api/profile-suppression-bulk-create-jobs"
KLAVIYO = Vendor(
    "klaviyo",
    (
        Verb("ping", "GET", r"/api/accounts", nothing, says(200, {"data": []})),
        Verb("upsert_profile", "POST", r"/api/profile-import", _profile, says(200, {"data": {"type": "profile"}})),
        Verb("suppress_email", "POST", _JOBS, _profiles, job_of(2, _klaviyo_job), 100),
        Verb("job", "GET", _JOBS + r"/(?P<job>[0-9a-f]+)", nothing, _job_state),
        Verb("unsubscribe", "POST", r"/api/profile-subscription-bulk-delete-jobs", _profiles, says(202), 100),
        Verb("subscribe", "POST", r"/api/profile-subscription-bulk-create-jobs", _profiles, says(202), 1000),
        Verb("erase", "POST", r"/api/data-privacy-deletion-jobs", _erased, says(202)),
        Verb("find", "GET", r"/api/profiles", nothing, _find_profile),
    ),
    header("authorization", "Klaviyo-API-Key "),
    per_second=6,
    burst=6,
)


def _member(request: Request) -> list[Item]:
    body = request.json() if request.body else None
    return [item(request.groups["hash"], body)]


_MEMBER = r"/3\.0/lists/(?P<list>[0-9a-z]+)/members/(?P<hash>[0-9a-f]{32})"
MAILCHIMP = Vendor(
    "mailchimp",
    (
        Verb("ping", "GET", r"/3\.0/ping", nothing, says(200, {"health_status": "Everything's Chimpy!"})),
        Verb("upsert_member", "PUT", _MEMBER, _member, says(200, {"status": "transactional"})),
        Verb("status", "PATCH", _MEMBER, _member, says(200, {"status": "ok"}), needs_person=True),
        Verb("erase", "POST", _MEMBER + r"/actions/delete-permanent", _member, says(204), needs_person=True),
    ),
    basic("anything:{secret}"),
)


def _consents(request: Request) -> list[Item]:
    """`Items` may be repeated, one JSON object each, or hold one JSON array."""
    listed: list[dict[str, Any]] = []
    for text in request.form().get("Items", []):
        value = json.loads(text)
        listed += value if isinstance(value, list) else [value]
    found = []
    for each in listed:
        phone = each.get("contact_id") if re.fullmatch(r"\+[0-9]{8,15}", str(each.get("contact_id"))) else None
        if each.get("status") not in ("opt-in", "opt-out") or not each.get("sender_id"):
            phone = None
        found.append(item(phone, {**each, "correlation_id": None}, each.get("correlation_id")))
    return found


def _consent_results(request: Request, items: Sequence[Item], outcomes: Sequence[str], books: Books) -> Answer:
    rows = [
        {
            "correlation_id": each.key,
            "error_code": 30646 if each.wrong else 0,
            "error_messages": [each.wrong] if each.wrong else [],
        }
        for each in items
    ]
    return Answer(201, {"items": rows})


TWILIO = Vendor(
    "twilio",
    (
        Verb("ping", "GET", r"/v1/AuthTokens/Secondary", nothing, says(404, {"code": 20404})),
        Verb("consent", "POST", r"/v1/Consents/Bulk", _consents, _consent_results, 25, tells=True),
    ),
    basic("{secret}"),
    per_second=1.7,
    burst=5,
    throttle="silent",
)
