"""The bodies of our answers in OpenDSR: discovery, status, errors. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tidings.rights.book import Request
from tidings.rights.opendsr import PHONES, Version, Wrong

RESULTS = ("access", "portability")
RESULTS_FOR = timedelta(days=7)
STATUS = {
    "received": "pending",
    "verifying": "pending",
    "waiting": "pending",
    "review": "pending",
    "working": "in_progress",
    "fulfilled": "completed",
    "refused": "cancelled",  # the protocol has no word for a refusal; `extensions` says that it was one
    "cancelled": "cancelled",
}


def rfc3339(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def status_of(request: Request | None) -> str:
    """In the protocol's words; what still lies in the inbox is pending, and an answer that can be fetched is complete."""
    if request is None:
        return "pending"
    return "completed" if request.state == "working" and ready_since(request) else STATUS[request.state]


def ready_since(request: Request | None) -> datetime | None:
    """Since when the answer to somebody who asked for their data can be fetched."""
    if request is None or request.kind not in RESULTS or request.state not in ("working", "fulfilled"):
        return None
    return next((step.at for step in request.steps if step.what in ("ready", "already_erased")), None)


def fetched_from(request: Request | None, place: str, now: datetime) -> str | None:
    """The address of the answer while it can be fetched; it stands open to the controller that asked, and to nobody else."""
    since = ready_since(request)
    return place if since is not None and now - since < RESULTS_FOR else None


def forwarded(request: Request | None, domain: str) -> list[dict[str, Any]] | None:
    """Version 3: how each recipient stands, and whether the request was refused."""
    if request is None:
        return None
    words = {
        "open": "pending",
        "held": "pending",
        "acknowledged": "sent",
        "excepted": "skipped",
        "not_concerned": "skipped",
    }
    told = [
        {"domain": None, "name": part.recipient, "status": words[part.state], "status_message": None}
        for part in request.parts.values()
    ]
    if request.state == "refused":
        told.append(
            {"domain": domain, "name": domain, "status": "skipped", "status_message": "the request was refused"}
        )
    return told or None


def error_body(version: Version, wrong: Wrong) -> dict[str, Any]:
    details = [{"domain": "Validation", "reason": reason, "message": words} for reason, words in wrong.problems]
    error = {"code": wrong.status, "message": details[0]["message"] if details else "", "errors": details}
    return error if version.bare_errors else {"error": error}


def discovery(version: Version, known: Mapping[str, str], certificate: str) -> dict[str, Any]:
    shown = [kind for kind in known if version.path == "v3" or kind not in PHONES]
    return {
        "api_version": version.api,
        "supported_identities": [{"identity_type": kind, "identity_format": "raw"} for kind in shown],
        "supported_subject_request_types": sorted(version.types),
        "processor_certificate": certificate,
    }
