"""The clocks of a request: every law that holds where the person lives, each from its own start to its own end, with the way in words.

A clock is reckoned from the request's steps alone, so whoever has the book gets the same answer. The shortest clock that the request
itself must meet is when it is due. An extension counts from the moment its letter was sent, and only for the laws whose first window
was still open then; a pause moves only the clocks whose text knows one. Where no law gives a number the operator's own promise does,
so that no request is without an end. What breaks the guarantee: a wrong row of the statutes, or a person who lives elsewhere than said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import yaml

from tidings.errors import ConfigurationError, Refused
from tidings.gate.calendars import LIBRARY, Calendars, Place, places
from tidings.gate.clocks import instant, local
from tidings.gate.deadlines import Asked, deadline
from tidings.gate.reckoning import place_for
from tidings.gate.sectors import sector
from tidings.gate.statutes import Statute
from tidings.rights.book import Request, Step
from tidings.rights_shapes import Rights

if TYPE_CHECKING:
    from tidings.settings import Settings

SHARE = Fraction(1, 2)  # the operator's own part of a window
PROMISE = "operator-promise"
ANSWER = "answer"
BINDING = (ANSWER, "authority", "people", "market")  # what makes a request or an incident due
EXTENSION_LETTER = "letter:extension"


@cache
def taxonomy() -> Mapping[str, Any]:
    """Which kinds of request start which clocks, as data."""
    text = files("tidings").joinpath("catalog/taxonomy/rights.yaml").read_text(encoding="utf-8")
    found: Mapping[str, Any] = yaml.safe_load(text)
    return found


@dataclass(frozen=True)
class RightClock:
    """One law's clock on one request. `first` ends the window without its extension; both ends are None where the law has no number."""

    statute: str
    duty: str  # answer, confirm, complete, refuse; of an incident: authority, people, market
    law: str
    citation: str
    place: str
    start: datetime
    first: datetime | None
    due: datetime | None
    part: datetime | None
    extension: str = ""  # what the law allows once
    extended: bool = False
    steps: tuple[str, ...] = ()
    source: str = ""
    confidence: str = ""

    def as_dict(self) -> dict[str, Any]:
        times = {name: shown(getattr(self, name)) for name in ("start", "first", "due", "part")}
        return self.__dict__ | times | {"steps": list(self.steps)}


@dataclass(frozen=True, eq=False)
class Laws:
    """The statutes in force for an operator: catalogue, its own, and what it promises where they have no number."""

    statutes: Mapping[str, Statute]
    calendars: Calendars = LIBRARY
    home: str = ""  # where a person lives who does not say
    traits: frozenset[str] = frozenset()
    promise_days: int = 30
    waiting_days: int = 0

    @classmethod
    def of(cls, settings: Settings) -> Laws:
        from tidings.gate.loading import catalogue_statutes, own_calendars

        statutes, problems = catalogue_statutes(settings)
        calendars, wrong = own_calendars(settings)
        if problems or wrong:
            raise ConfigurationError([*problems, *wrong])
        operator = settings.operator
        traits = {sector(operator.vertical), *(["public_company"] if operator.public_company else [])}
        rights = operator.rights or Rights()
        return cls(
            statutes,
            calendars,
            operator.jurisdiction,
            frozenset(traits),
            rights.promise_days,
            rights.waiting_days,
        )

    @cached_property
    def shelf(self) -> Mapping[tuple[str, str], tuple[str, ...]]:
        """(where, trigger) → statutes that bind this operator by a deadline."""
        found: dict[tuple[str, str], tuple[str, ...]] = {}
        for name, statute in self.statutes.items():
            if statute.trigger and statute.bound == "deadline" and self._binds(name):
                key = (statute.jurisdiction, statute.trigger)
                found[key] = (*found.get(key, ()), name)
        return found

    def _binds(self, name: str) -> bool:
        wanted = [set(traits) for pattern, traits in taxonomy()["only"].items() if fnmatchcase(name, pattern)]
        return all(self.traits & traits for traits in wanted)

    def about(self, kind: str, place: str, scope: Iterable[str] = ()) -> Iterator[str]:
        """The statutes whose clocks a request of this kind starts for somebody who lives there."""
        known = places().get(place)
        around = (place, known.within) if known and known.within else (place,)
        for trigger in triggers(kind, scope):
            for where in around:
                for name in self.shelf.get((where, trigger), ()):
                    yield name
                    yield from (other for other in self.statutes[name].also if self._binds(other))


def triggers(kind: str, scope: Iterable[str] = ()) -> list[str]:
    """What a request of this kind is called in the statutes; channels that it leaves out are left out."""
    asked, channels = {one.lower() for one in scope}, taxonomy()["channels"]
    named = asked & {one for many in channels.values() for one in many}
    found: list[str] = taxonomy()["kinds"].get(kind, [])
    return [one for one in found if not named or one not in channels or named & set(channels[one])]


@dataclass(frozen=True)
class _Timing:
    """All of a request that its clocks depend on."""

    kind: str
    places: tuple[str, ...]
    scope: tuple[str, ...]
    opened: datetime
    supplied: datetime | None  # the identity that was asked for
    sent: datetime | None  # the letter of the extension
    pauses: tuple[tuple[datetime, datetime], ...]


def clocks_of(request: Request, laws: Laws, now: datetime) -> list[RightClock]:
    """Every clock of a request, the earliest end first, those without a number last."""
    scope = tuple(_listed(request.details.get("scope", "")))
    where, pauses = tuple(places_of(request, laws)), tuple(pauses_of(request, now))
    timing = (request.opened, _supplied(request), extension_sent(request), pauses)
    return list(_reckoned(laws, _Timing(request.kind, where, scope, *timing)))


@lru_cache(maxsize=10_000)  # the sweeper asks again each minute, and the answer seldom changes
def _reckoned(laws: Laws, timing: _Timing) -> tuple[RightClock, ...]:
    found: dict[tuple[str, str], RightClock] = {}
    for place in timing.places:
        for name in laws.about(timing.kind, place, timing.scope):
            clock = _clock(timing, laws, laws.statutes[name], place)
            if clock is not None:
                found.setdefault((name, place), clock)
    if not any(clock.due for clock in found.values() if clock.duty in BINDING):
        found[PROMISE, ""] = _promise(timing.opened, laws)
    late = datetime.max.replace(tzinfo=UTC)
    return tuple(sorted(found.values(), key=lambda one: (one.due or late, one.statute, one.place)))


def due_of(request: Request, laws: Laws, now: datetime) -> datetime:
    """When the request itself must be answered: the shortest of its clocks, however many laws there are."""
    clocks = clocks_of(request, laws, now)
    found = [one.due for one in clocks if one.due and one.duty in BINDING]
    return min(found)


def places_of(request: Request, laws: Laws) -> list[str]:
    """Where the person lives as far as anybody said, and where the law holds that was named; otherwise the operator's default."""
    named = [request.jurisdiction, *_listed(request.details.get("jurisdictions", ""))]
    law = request.regulation.lower().replace("-", "").replace("_", "").replace(" ", "")
    named.append(taxonomy()["regulations"].get(law, ""))
    found = list(dict.fromkeys(_known(place) for place in named if place))
    # EU beside DE is the same law counted twice; the nearer place knows the holidays.
    within = {places()[place].within for place in found if place in places()}
    return [place for place in found if place not in within] or [_known(laws.home)]


def _known(place: str) -> str:
    """The place itself, or the country when its region is not one that the catalogue counts by."""
    return place if place in places() else place.partition("-")[0]


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


def _clock(timing: _Timing, laws: Laws, statute: Statute, place: str) -> RightClock | None:
    """One statute's clock, or None where it was not in force at the start."""
    if statute.jurisdiction not in (place, places()[place].within):
        return None
    there, start = place_for(statute, place), _start(timing, statute)
    pauses = tuple(f"{shown(begin)}..{shown(end)}" for begin, end in timing.pauses)
    asked = Asked(start.isoformat(), False, pauses, SHARE, place)
    try:
        said = deadline(laws.statutes, statute.id, asked, laws.calendars)
    except Refused as refused:
        if refused.code == "not_in_force":
            return None
        return _unknown(statute, place, start, refused)
    first, extension = _instant(said["due"], start, there), _extension(statute, start, there)
    extended = bool(timing.sent and extension and first and timing.sent <= first)
    if extended:
        longer = Asked(asked.received, True, pauses, SHARE, place)
        said = deadline(laws.statutes, statute.id, longer, laws.calendars)
    due, part = _instant(said["due"], start, there), _instant(said["subwindow_due"], start, there)
    steps = tuple(said["steps"])
    head = (statute.id, _duty(statute), statute.law, statute.citation, place)
    tail = (extension, extended, steps, statute.source, statute.confidence)
    return RightClock(*head, start, first, due, part, *tail)


def _unknown(statute: Statute, place: str, start: datetime, refused: Refused) -> RightClock:
    told = (f"No end could be reckoned: {refused.found}. {refused.what_now}",)
    head = (statute.id, _duty(statute), statute.law, statute.citation, place, start, None, None, None)
    return RightClock(*head, steps=told, source=statute.source, confidence=statute.confidence)


def _promise(start: datetime, laws: Laws) -> RightClock:
    days = laws.promise_days
    end = start + timedelta(days=days)
    told = (
        "No law of the catalogue gives this request a number of days.",
        f"The operator promises {days} days (`rights.promise_days`): until {shown(end)}.",
    )
    citation = "rights.promise_days of tidings.yaml"
    head = (PROMISE, ANSWER, "the operator's own promise", citation, "", start, end, end)
    return RightClock(
        *head, start + timedelta(days=days) * float(SHARE), steps=told, source="tidings.yaml", confidence="own"
    )


def _duty(statute: Statute) -> str:
    duties: Mapping[str, str] = taxonomy()["duties"]
    return duties.get(statute.trigger, ANSWER)


def _start(timing: _Timing, statute: Statute) -> datetime:
    """Receipt; where the law says so, the later moment at which the identity that was asked for was supplied."""
    waits = any(fnmatchcase(statute.id, pattern) for pattern in taxonomy()["identity_starts"])
    return max(timing.opened, timing.supplied) if waits and timing.supplied else timing.opened


def _supplied(request: Request) -> datetime | None:
    asked = next((step.number for step in request.steps if step.state == "verifying"), None)
    return next((one.at for one in request.happened("verified") if asked is not None and one.number > asked), None)


def _extension(statute: Statute, start: datetime, place: Place) -> str:
    day = local(start, place.zone).date()
    found = [one.extension for one in statute.versions if one.in_force(day) and one.extension]
    # A breach notice that may be completed later is no extension that anybody is told of.
    told = found if _duty(statute) == ANSWER else []
    return f"{told[-1].number} {told[-1].unit.replace('_', ' ')}" if told and told[-1] else ""


def _instant(text: str | None, start: datetime, place: Place) -> datetime | None:
    """The end as an instant: a last day keeps the time of day of its start, which is never later than its end."""
    if text is None or "T" in text:
        return datetime.fromisoformat(text) if text else None
    return instant(datetime.combine(date.fromisoformat(text), local(start, place.zone).time()), place.zone)


def extension_sent(request: Request) -> datetime | None:
    """When the letter that tells of the extension was sent."""
    sent = request.happened(EXTENSION_LETTER)
    return sent[0].at if sent else None


def pauses_of(request: Request, now: datetime) -> list[tuple[datetime, datetime]]:
    """While the clock stood; a pause that has not ended lasts until now."""
    found: list[tuple[datetime, datetime]] = []
    begun: Step | None = None
    for step in request.steps:
        if step.what == "paused" and begun is None:
            begun = step
        elif begun is not None and (step.what == "resumed" or step.state in ("fulfilled", "refused", "cancelled")):
            found.append((begun.at, step.at))
            begun = None
    return found if begun is None else [*found, (begun.at, max(now, begun.at))]


def shown(moment: datetime | None) -> str | None:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if moment else None
