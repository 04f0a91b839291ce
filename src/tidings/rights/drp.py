"""The Data Rights Protocol on the wire: a message signed with Ed25519, what it asks for, and the status that is answered. Pure.

    base64( signature of 64 bytes | JSON )

What breaks it: an agent's signing key in other hands, until its verify key is taken out of the folder.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tidings.rights.asks import ASSURANCES, Ask, Identifier
from tidings.rights.book import Request
from tidings.rights.opendsr import Wrong, strict_json
from tidings.rights.opendsr_bodies import rfc3339

# sale:opt_in is left out: a person who wants to be sold again is more than an opt-in to marketing, and nothing here does that.
EXERCISES = {
    "sale:opt_out": "opt_out_sale",
    "deletion": "erasure",
    "access": "access",
    "access:categories": "know",
    "access:specific": "access",
}
REASONS = (
    "suspected_fraud",
    "insuf_verification",
    "no_match",
    "claim_not_covered",
    "outside_jurisdiction",
    "too_many_requests",
)
STATUS = {"received": "in_progress", "fulfilled": "fulfilled", "cancelled": "revoked", "refused": "denied"}
LIVES = timedelta(minutes=9)  # shorter than replays are remembered, whatever the message allows itself
SKEW = timedelta(seconds=30)
_DIGEST = re.compile("[0-9a-f]{64}")
PEOPLE = {"email": ("email", "email_verified"), "phone_number": ("phone", "phone_number_verified")}


def unpacked(verify_key: str, body: bytes) -> bytes:
    """The JSON of a message, once its signature is checked."""
    try:
        raw = base64.b64decode(body.strip(), validate=True)
        Ed25519PublicKey.from_public_bytes(base64.b64decode(verify_key)).verify(raw[:64], raw[64:])
    except (binascii.Error, ValueError, InvalidSignature):
        raise Wrong(403, ("wrong_signature", "The message is not signed with this agent's key.")) from None
    return raw[64:]


def digest(body: bytes) -> str:
    """Of a message whose signature was checked: of what it says, since one text of bytes has several spellings in Base64."""
    return hashlib.sha256(base64.b64decode(body.strip())).hexdigest()


def claimed(said: Mapping[str, Any], agent: str, business: str, now: datetime) -> None:
    """That the message is this agent's, to us, and of now; in the protocol's order."""
    if said.get("agent-id") != agent:
        raise Wrong(403, ("other_agent", "agent-id is not the agent of this token."))
    if said.get("business-id") != business:
        raise Wrong(403, ("other_business", "business-id is another business."))
    issued, expires = _time(said.get("issued-at")), _time(said.get("expires-at"))
    if issued > now + SKEW:
        raise Wrong(400, ("stale", "issued-at is ahead of our clock."))
    if now > min(expires, issued + LIVES):
        raise Wrong(400, ("stale", "The message has expired."))


def _time(value: Any) -> datetime:
    try:
        moment = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Wrong(400, ("stale", "issued-at and expires-at must be times of ISO 8601.")) from None


def message(verify_key: str, agent: str, business: str, body: bytes, now: datetime) -> dict[str, Any]:
    said = strict_json(unpacked(verify_key, body))
    claimed(said, agent, business, now)
    return said


def ask_of(said: Mapping[str, Any], agent: str, trusted: str, reference: str, now: datetime) -> Ask:
    """What is asked. The agent's word that it verified somebody is worth what the operator says it is."""
    kind = EXERCISES.get(str(said.get("exercise")).lower().replace("-", "_"))
    if kind is None:
        raise Wrong(400, ("unsupported", "Unsupported rights actions submitted."))
    regime = said.get("regime")
    if regime not in (None, "", "ccpa"):
        raise Wrong(400, ("unsupported", "Unsupported regime."))
    given = {name: said.get(name) for name in PEOPLE if said.get(name)}
    if not given or not all(isinstance(one, str) for one in given.values()):
        raise Wrong(400, ("nobody", "An email or phone_number is needed."))
    people = tuple(Identifier(PEOPLE[name][0], str(value)) for name, value in given.items())
    proven = all(said.get(PEOPLE[name][1]) is True for name in given)
    assurance = trusted if proven else min(trusted, "claimed", key=ASSURANCES.index)
    more: dict[str, Any] = {"jurisdiction": "US-CA", "regulation": "ccpa"} if regime == "ccpa" else {}
    if callback := said.get("status_callback"):
        more["callbacks"] = (str(callback)[:2000],)
    return Ask(kind, people, "drp", now, assurance=assurance, reference=reference, agent=agent, **more)


def public_id(request: str) -> str:
    return str(uuid.UUID(hex=request))


def status_of(request: Request | None) -> str:
    return "open" if request is None else STATUS.get(request.state, "in_progress")


class Asked(Protocol):
    """What is noted of a request beside the book."""

    @property
    def request(self) -> str: ...
    @property
    def reference(self) -> str: ...
    @property
    def received(self) -> datetime: ...
    @property
    def expected(self) -> datetime | None: ...


def status_body(request: Request | None, asked: Asked) -> dict[str, Any]:
    """The Exercise Status of a request."""
    told: dict[str, Any] = {
        "request_id": public_id(asked.request),
        "received_at": rfc3339(asked.received),
        "expected_by": rfc3339((request and request.due) or asked.expected),
        "status": status_of(request),
    }
    if not _DIGEST.fullmatch(asked.reference):  # otherwise the agent gave no id of its own
        told["agent_request_id"] = asked.reference
    if request is not None and request.state == "refused":
        last = request.steps[-1].reason if request.steps else ""
        told["reason"] = last if last in REASONS else "other"
        told["processing_details"] = "The request was refused."
    elif request is not None and request.happened("extended"):
        told["processing_details"] = "The time to answer was extended once, as the law allows."
    return {key: value for key, value in told.items() if value is not None}


def error_body(wrong: Wrong) -> dict[str, Any]:
    message = wrong.problems[0][1] if wrong.problems else "refused"
    fatal = {} if wrong.status in (429, 503) else {"fatal": True}
    return {"code": str(wrong.status), "message": message} | fatal
