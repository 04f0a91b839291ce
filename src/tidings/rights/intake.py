"""The way in: asks and words are put down sealed and synced, and taken up by the desk in the order in which they came.

    data/rights/inbox/<time>-<id>.ask     one ask
    data/rights/inbox/<time>-<id>.word    what somebody says of a request that is under way

On return it survives a power cut. What breaks the guarantee: a caller that gets no answer and does not ask again. The desk takes a slip
away only after the request it became is committed; a slip that is taken up twice makes one request, because its id is in its name.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tidings import crash, durable
from tidings.errors import Problem, Refused
from tidings.rights.asks import ACTIONS, IDENTIFIERS, SHOP, Ask, BadAsk, Word
from tidings.seal.keyring import associated, open_payload, seal_payload

if TYPE_CHECKING:
    from tidings.settings import Settings

PURPOSE = "rights-inbox"
MOST_NAME = 200
_ADDRESS = re.compile(
    r"""[^\s<>@,;:"'()]+@[^\s<>@,;:"'()]+|\+\d[\d ().-]{5,}\d"""
)  # e-mails, and telephone numbers with their country
MOST_WAITING = 100_000  # a flood stops here and is told so; nothing that was taken is dropped
crash.POINTS["rights.slip"] = "a request is durable in the desk's inbox, the caller has no answer yet"


@dataclass(frozen=True)
class Slip:
    """One ask or word as it lies in the inbox."""

    path: Path
    request: str
    body: Ask | Word


def folder_of(data: Path) -> Path:
    return data / "rights" / "inbox"


def hand_in(settings: Settings, ask: Ask) -> str:
    """Take a request in; returns its id, the same for the same way, kind and reference, however often it is handed in."""
    ask.checked()
    _kinds_checked(settings, ask)
    name = _named(settings, ask)
    _put(settings, f"{name}.ask", ask.as_json())
    return name


def _kinds_checked(settings: Settings, ask: Ask) -> None:
    """A record of a kind that nobody declared is nobody's: told now, since the desk could only say that there is no match."""
    known = (*IDENTIFIERS, *settings.entities, *([SHOP] if ask.way == "shopify" else []))
    wrong = [number for number, one in enumerate(ask.identifiers) if one.kind not in known]
    if wrong:
        told = (0, "bad_request", "another word", "one of " + ", ".join(known), "Mend it and ask again.")
        raise BadAsk([Problem(ask.way, told[0], f"identifiers[{number}].kind", *told[1:]) for number in wrong])


def say(settings: Settings, word: Word) -> None:
    """Say something of a request; who says it is part of it."""
    if word.action not in ACTIONS:
        raise Refused("unknown_action", repr(word.action), "one of " + ", ".join(ACTIONS))
    if not word.by.strip():
        raise Refused("nobody_answers", "a word by nobody", "who answers for it", "Say --by NAME.")
    by = " ".join(word.by.split())
    if len(by) > MOST_NAME:
        raise Refused("nobody_answers", f"a name of {len(by)} characters", f"at most {MOST_NAME}", "Say --by NAME.")
    # The ledger keeps the reason for ever, and an erasure must not leave there whom it was about.
    reason = _ADDRESS.sub("…", word.reason)
    said = replace(word, by=by, at=word.at or datetime.now(UTC).isoformat(), reason=reason)
    _put(settings, f"{word.request}.{uuid.uuid4().hex[:8]}.word", said.as_json())


def waiting(settings: Settings) -> Iterator[Slip]:
    """What lies in the inbox, oldest first."""
    folder, key = folder_of(settings.data_path), settings.keyring.derive(PURPOSE)
    for path in sorted(folder.glob("[0-9]*")) if folder.is_dir() else ():
        name = path.name.partition("-")[2]
        text = open_payload(key, associated("rights", name, "slip"), path.read_bytes())
        body = Ask.from_json(text) if path.suffix == ".ask" else Word.from_json(text)
        yield Slip(path, name.partition(".")[0], body)


def take_away(slips: list[Slip]) -> None:
    """They are in the table now."""
    for slip in slips:
        slip.path.unlink(missing_ok=True)
    if slips:
        durable.sync_folder(slips[0].path.parent)


def _named(settings: Settings, ask: Ask) -> str:
    if not ask.reference:
        return uuid.uuid4().hex
    # With the kind: a ticket under which somebody wants a copy and then to be forgotten is two requests.
    said = f"{ask.way}\x1f{ask.agent}\x1f{ask.kind}\x1f{ask.reference}".encode()
    return hmac.new(settings.keyring.derive("request"), said, hashlib.sha256).hexdigest()[:32]


_COUNTED: dict[Path, tuple[int, float, int]] = {}  # how many there were, when that was, how many were put there since


def _count(folder: Path) -> int:
    """About how many wait: counted again once a second or a thousand slips, since each count reads all their names."""
    there, at, since = _COUNTED.get(folder, (0, -math.inf, 0))
    if time.monotonic() - at > 1 or since >= 1_000:
        there, at, since = sum(1 for _ in folder.iterdir()), time.monotonic(), 0
    _COUNTED[folder] = (there, at, since + 1)
    return there + since


def _put(settings: Settings, name: str, text: str) -> None:
    folder = folder_of(settings.data_path)
    durable.make_folder(folder, 0o700)
    if _count(folder) >= MOST_WAITING:
        raise Refused(
            "intake_full", f"{MOST_WAITING} requests that wait", "fewer", "Start `tidings run`; then ask again."
        )
    ring = settings.keyring
    sealed = seal_payload(text.encode(), ring.derive(PURPOSE), ring.derive("iv"), associated("rights", name, "slip"))
    temporary = folder / f".{uuid.uuid4().hex}.new"
    temporary.write_bytes(sealed)
    temporary.chmod(0o600)
    durable.sync_file(temporary)
    durable.replace(temporary, folder / f"{time.time_ns() // 1000:016d}-{name}")
    crash.point("rights.slip")
