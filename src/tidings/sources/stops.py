"""Why a server's log cannot be read on, told apart by what a person must do. What a server says in words may hold secrets: only codes come here."""

from __future__ import annotations

from tidings.errors import Refused, SourceStopped


def unreachable(source: str, said: str, expected: str) -> SourceStopped:
    """May pass by itself: asked again later."""
    what_now = "Check that it runs, its address and the network."
    return SourceStopped("source_unreachable", f"source {source}: {said}", expected, what_now)


def denied(source: str, said: str, what_now: str = "Check the user or key, and what it may read.") -> SourceStopped:
    """The server answers and does not let us in."""
    return SourceStopped("source_denied", f"source {source}: {said}", "credentials that are let in", what_now)


def purged(source: str, what: str) -> SourceStopped:
    """What was not read yet is gone, or may be."""
    return SourceStopped(
        "source_purged",
        f"source {source}: {what}",
        "a source that is read before its records are forgotten",
        "Move the source's checkpoint folder away and run: reading begins anew with what is kept. What was forgotten unread comes"
        " back only with a snapshot.",
    )


def not_ready(source: str, found: str, expected: str, what_now: str) -> SourceStopped:
    return SourceStopped("source_not_ready", f"source {source}: {found}", expected, what_now)


def extra_missing(client: str, extra: str) -> Refused:
    return Refused("extra_missing", f"no {client} client", f"the extra `{extra}`", f"pip install 'tidings[{extra}]'")
