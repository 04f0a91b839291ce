"""When a request that somebody passed on will be done at the latest: the end of the named law's window, by the clock engine."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from tidings.errors import Refused
from tidings.gate.clocks import instant
from tidings.gate.deadlines import Asked, deadline
from tidings.gate.loading import catalogue_statutes, own_calendars

if TYPE_CHECKING:
    from tidings.rights.asks import Ask
    from tidings.settings import Settings

# Law and kind → the statute whose window is told. Kinds that a law gives no number for have none.
STATUTES = {
    ("gdpr", "access"): "eu-gdpr-access",
    ("gdpr", "portability"): "eu-gdpr-portability",
    ("gdpr", "erasure"): "eu-gdpr-erase",
    ("gdpr", "rectification"): "eu-gdpr-rectify",
    ("gdpr", "restriction"): "eu-gdpr-restrict",
    ("ccpa", "access"): "us-ca-ccpa-know",
    ("ccpa", "portability"): "us-ca-ccpa-know",
    ("ccpa", "know"): "us-ca-ccpa-know",
    ("ccpa", "erasure"): "us-ca-ccpa-delete",
    ("ccpa", "rectification"): "us-ca-ccpa-correct",
}


def expected_by(settings: Settings, ask: Ask) -> datetime | None:
    """The last instant, or None where the law has no number. The desk's own deadline takes its place once it is there."""
    name = STATUTES.get((ask.regulation, ask.kind))
    if name is None:
        return None
    statutes, _ = catalogue_statutes(settings)
    calendars, _ = own_calendars(settings)
    try:
        said = deadline(statutes, name, Asked(ask.received.astimezone(UTC).isoformat()), calendars)
    except Refused:
        return None
    if not said["due"]:
        return None
    if "T" in said["due"]:
        return datetime.fromisoformat(said["due"].replace("Z", "+00:00"))
    after = datetime.combine(date.fromisoformat(said["due"]) + timedelta(days=1), datetime.min.time())
    return instant(after, said["zone"]) - timedelta(seconds=1)
