"""A CRM, a customer data platform, product analytics, a loyalty programme and the warehouse's loader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .api import Answer, Request, Vendor, Verb, basic, bearer, header, item, nothing, same, says
from .books import Books, Item, subject_of


def _contacts(request: Request) -> list[Item]:
    return [
        item(each.get("id"), each.get("properties"), each.get("objectWriteTraceId"))
        for each in request.json()["inputs"]
    ]


def _contact_results(request: Request, items: Sequence[Item], outcomes: Sequence[str], books: Books) -> Answer:
    """207 when some were not taken; the others were."""
    errors = [
        {
            "category": "INTERNAL_ERROR" if each.wrong == "later" else "VALIDATION_ERROR",
            "context": {"objectWriteTraceId": [each.key]},
        }
        for each in items
        if each.wrong
    ]
    results = [{"id": each.subject} for each in items if not each.wrong]
    return Answer(
        207 if errors else 200, {"status": "COMPLETE", "results": results, **({"errors": errors} if errors else {})}
    )


def _by_path(request: Request) -> list[Item]:
    return [item(request.groups["email"], request.json() if request.body else None)]


def _opted_out(request: Request, items: Sequence[Item], outcomes: Sequence[str], books: Books) -> Answer:
    gone = books.last_verb(request.vendor, subject_of(request.groups["email"])) == "unsubscribe_all"
    return Answer(200, {"results": [{"channel": "EMAIL"}] if gone else []})


def _contact(request: Request, items: Sequence[Item], outcomes: Sequence[str], books: Books) -> Answer:
    """Whom nobody has erased is there: this vendor knew the shop's customers before the story began."""
    gone = books.last_verb(request.vendor, subject_of(request.groups["email"])) == "erase"
    return Answer(404) if gone else Answer(200, {"id": "1", "properties": {"email": request.groups["email"]}})


_CONTACT = r"/crm/v3/objects/contacts/(?P<email>[^/]+)"
_STATUS = r"/communication-preferences/v4/statuses/(?P<email>[^/]+)"
HUBSPOT = Vendor(
    "hubspot",
    (
        Verb("ping", "GET", r"/account-info/v3/details", nothing, says(200, {"portalId": 1})),
        Verb(
            "upsert_contact",
            "POST",
            r"/crm/v3/objects/contacts/batch/upsert",
            _contacts,
            _contact_results,
            100,
            tells=True,
        ),
        Verb("rectify", "PATCH", _CONTACT, _by_path, says(200, {"id": "1"}), needs_person=True),
        Verb("find", "GET", _CONTACT, nothing, _contact),
        Verb("unsubscribe_all", "POST", _STATUS + r"/unsubscribe-all", _by_path, says(200, {"status": "COMPLETE"})),
        Verb("opted_out", "GET", _STATUS + r"/unsubscribe-all", nothing, _opted_out),
        Verb("subscribe", "POST", _STATUS, _by_path, says(200, {"status": "SUBSCRIBED"})),
        Verb(
            "erase",
            "POST",
            r"/crm/v3/objects/contacts/gdpr-delete",
            lambda r: [item(r.json().get("objectId"), r.json())],
            says(204),
        ),
    ),
    bearer,
    per_second=19,
    burst=190,
)


def _batch(request: Request) -> list[Item]:
    listed = request.json()["batch"]
    return [item(each.get("userId"), {**each, "messageId": None}, each.get("messageId")) for each in listed]


# Segment answers 200 for nearly everything that is JSON: an item without a userId is dropped without a word.
SEGMENT = Vendor(
    "segment",
    (Verb("batch", "POST", r"/v1/batch", _batch, says(200, {"success": True}), 2500, repeat="ignored", tells=True),),
    basic("{secret}:"),
)


def _engage(request: Request) -> list[Item]:
    """One bad profile fails the whole call, so every item of such a call is turned away."""
    listed = request.json()
    found = []
    for each in listed:
        fields = each.get("$set") or {}
        found.append(
            item(
                each.get("$distinct_id"), {k: v for k, v in each.items() if k != "$token"}, fields.get("tidings_event")
            )
        )
    return found


def _engage_result(request: Request, items: Sequence[Item], outcomes: Sequence[str], books: Books) -> Answer:
    bad = next((each.wrong for each in items if each.wrong), "")
    return Answer(200, {"status": 0, "error": bad} if bad else {"status": 1, "error": None})


def _project_token(request: Request, secret: str) -> bool:
    """Mixpanel's token travels in the body, in every profile."""
    try:
        listed = request.json()
    except ValueError:
        return False
    return isinstance(listed, list) and all(
        isinstance(each, dict) and same(str(each.get("$token")), secret) for each in listed
    )


MIXPANEL = Vendor(
    "mixpanel", (Verb("engage", "POST", r"/engage", _engage, _engage_result, 2000, 413, tells=True),), _project_token
)


def _customer(request: Request) -> list[Item]:
    body = request.json()
    return [item(body.get("email"), body)]


def _look_up(request: Request, items: Sequence[Item], outcomes: Sequence[str], books: Books) -> Answer:
    gone = books.last_verb(request.vendor, subject_of(request.query.get("customer_email", ""))) == "erase"
    return Answer(404, {"error": "not found"}) if gone else Answer(200, {"has_account": True})


YOTPO = Vendor(
    "yotpo",
    (
        Verb("ping", "GET", r"/api/v2/campaigns", nothing, says(200, [])),
        Verb("upsert_customer", "POST", r"/api/v2/customers", _customer, says(200, {})),
        Verb("find", "GET", r"/api/v2/customers", nothing, _look_up),
        Verb(
            "erase",
            "POST",
            r"/api/v1/merchants/(?P<merchant>[^/]+)/anonymize_customer",
            _customer,
            says(200, {}),
            needs_person=True,
        ),
    ),
    header("x-api-key"),
)


def _events(request: Request) -> list[Item]:
    listed: list[dict[str, Any]] = request.json()["events"]
    return [
        item(each.get("subject"), each, each.get("id"), (each.get("source"), each.get("sequence"))) for each in listed
    ]


def _loaded(request: Request, items: Sequence[Item], outcomes: Sequence[str], books: Books) -> Answer:
    failed = [
        {"id": each.key, "code": "retry" if each.wrong == "later" else each.wrong} for each in items if each.wrong
    ]
    return Answer(200, {"loaded": len(items) - len(failed), "failed": failed})


def _is_loaded(request: Request, items: Sequence[Item], outcomes: Sequence[str], books: Books) -> Answer:
    return Answer(200 if books.holds(request.vendor, request.groups["id"]) else 404, {})


WAREHOUSE = Vendor(
    "warehouse",
    (
        Verb("ping", "GET", r"/health", nothing, says(200, {"ok": True})),
        Verb("load", "POST", r"/events", _events, _loaded, 1000, 413, "ignored", tells=True),
        Verb("loaded", "GET", r"/events/(?P<id>[^/]+)", nothing, _is_loaded),
    ),
    bearer,
)
