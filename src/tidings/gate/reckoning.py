"""One statute from one start, step by step: what was counted and what moved the end, in sentences with dates.

The end is a date where the law holds for clocks of days, business days, months and years, and an instant for shorter ones. A year
that the calendar does not know is refused, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from typing import Any

from tidings.errors import Refused
from tidings.gate.calendars import LIBRARY, Calendar, Calendars, Place, missing_years, places
from tidings.gate.clocks import INSTANTS, Clock, begins, due, instant, last_day, local, rolled, spoken, unrolled
from tidings.gate.moments import Moment, Pause, counted_pause
from tidings.gate.statutes import NO_NUMBER, Statute, Version

End = date | datetime


@dataclass
class Reckoning:
    """One statute from one start; `steps` grow as it goes."""

    statute: Statute
    place: Place
    start: Moment
    pauses: Sequence[Pause] = ()
    calendars: Calendars = LIBRARY
    steps: list[str] = field(default_factory=list)

    @property
    def version(self) -> Version:
        """The text in force on the day of the start."""
        day = self.start.wall.date()
        found = [version for version in self.statute.versions if version.in_force(day)]
        if found:
            return found[-1]
        first = min(version.effective_from for version in self.statute.versions)
        told = f"{self.statute.id} started on {day}, when it was not in force"
        raise Refused("not_in_force", told, f"a start from {first} on", "Use the law that held then.")

    def law(self) -> Clock | None:
        version = self.version
        return None if version.unit in (*NO_NUMBER, "none") else self.statute.clock(version, place=self.place)

    def extended(self, clock: Clock) -> Clock | None:
        """The window with its one extension, counted from the start; None where the law has none or in another unit."""
        extension = self.version.extension
        if extension is None or extension.unit != clock.unit:
            return None
        return replace(clock, amount=clock.amount + extension.number)

    def end(self, clock: Clock, *, tell: bool = False, beyond: int = 0) -> End:
        """The last day or instant, pauses included; `beyond` are days that an extension in another unit adds."""
        calendar = self.calendars[clock.calendar]
        if clock.unit in INSTANTS:
            return self._passed(clock, calendar, tell, beyond)
        day = self.start.wall.date()
        end = unrolled(clock, day, calendar)
        self._tell(tell, self._counted(clock, day, end, calendar))
        if beyond:
            end += timedelta(days=beyond)
        moved = end + timedelta(days=self._paused(clock, end, tell))
        last = rolled(clock, moved, calendar)
        if clock.two_days:
            last = max(last, last_day(replace(clock, roll=False), day, calendar))
        self._known(clock, calendar, last)
        self._tell(tell, _weekday(clock, moved, last))
        return last

    def _passed(self, clock: Clock, calendar: Calendar, tell: bool, beyond: int) -> datetime:
        begin, end = begins(clock, self.start.instant), due(clock, self.start.instant, self.calendars)
        assert end is not None, "the version was in force"
        if self.start.dated:
            self._tell(tell, [f"No time was given, so counting begins at {shown(begin)}."])
        elif clock.skip_hour:
            self._tell(tell, [f"The hour of the start is not counted: counting begins at {shown(begin)}."])
        there = local(end, clock.zone).replace(microsecond=0)
        told = (
            f"{spoken(clock.unit, clock.amount)} later it is {shown(end)} ({there} in {clock.zone}); hours run through"
        )
        self._tell(tell, [told + " weekends and holidays."])
        self._known(clock, calendar, there.date())
        paused = self._paused(clock, there.date(), tell)
        return end + timedelta(days=beyond + paused)

    def _known(self, clock: Clock, calendar: Calendar, last: date) -> None:
        gone = missing_years(calendar, self.start.wall.date(), last) if clock.needs_calendar else []
        if gone:
            found = f"the calendar {clock.calendar}, which does not hold {gone[0]}"
            raise Refused("calendar_year", found, "the free days of every year that is counted", "Add the year.")

    def _paused(self, clock: Clock, end: date, tell: bool) -> int:
        """Days by which pauses move the end, where the text stops the clock."""
        if not self.pauses:
            return 0
        if self.statute.pause != "text":
            why = "only the practice of authorities knows one" if self.statute.pause else "the text has no pause"
            self._tell(tell, [f"A pause was given, and {why}: the clock runs on and the end stays."])
            return 0
        days, told = counted_pause(self.pauses, self.start.wall.date(), end)
        self._tell(tell, told)
        return days

    def _counted(self, clock: Clock, day: date, end: date, calendar: Calendar) -> Iterator[str]:
        counts = f"counts: {day} is day 1" if clock.first_day else f"is not counted: day 1 is {day + timedelta(days=1)}"
        opening = f"The day of the start {counts}."
        if opening not in self.steps:
            yield opening
        amount = spoken(clock.unit, clock.amount) + (" ends" if clock.amount == 1 else " end")
        if clock.unit == "business_days":
            free = sorted(each for each in calendar.free if day < each <= end)
            out = "Saturdays and Sundays" + "".join(f", {each}" for each in free)
            yield f"{amount} on {end} by the calendar {clock.calendar}; not counted: {out}."
        elif clock.unit == "days":
            yield f"{amount} on {end}."
        else:
            numbered = "the same-numbered day" if end.day == day.day else "the last day of a shorter month"
            yield f"{amount} on {'the day before the same-numbered day' if clock.first_day else numbered}: {end}."

    def _tell(self, tell: bool, sentences: Iterator[str] | Sequence[str]) -> None:
        if tell:
            self.steps += sentences


def _weekday(clock: Clock, end: date, last: date) -> Iterator[str]:
    if last != end:
        free = f"a {end:%A}" if end.weekday() >= 5 else "a public holiday"
        yield f"{end} is {free}: the end moves to the next working day, {last} (calendar {clock.calendar})."
    elif end.weekday() >= 5:
        yield f"{end} is a {end:%A}; this text has no rule that moves the end."


def shown(end: End | None) -> str | None:
    """A date, or an instant in UTC; what is below a second is cut off, which is never later."""
    if isinstance(end, datetime):
        return end.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return end.isoformat() if end else None


def place_for(statute: Statute, name: str) -> Place:
    """The place to count in: the statute's own, or one within it."""
    place = places().get(name or statute.jurisdiction)
    inside = place is not None and statute.jurisdiction in (name or statute.jurisdiction, place.within, "GLOBAL")
    if place is None or not inside:
        within = [one for one, each in places().items() if each.within == statute.jurisdiction]
        expected = ", ".join([statute.jurisdiction, *within])
        raise Refused("unknown_place", f"{name} for {statute.id}", expected, "Name a place where the law holds.")
    return place


def sub_window(reckoning: Reckoning, clock: Clock, end: End, share: Fraction) -> End:
    """The operator's part of the window, by the same engine, never later than the end."""
    if isinstance(end, datetime):
        begin = begins(clock, reckoning.start.instant)
        micros = (end - begin) // timedelta(microseconds=1)
        return begin + timedelta(microseconds=int(share * micros))
    day = reckoning.start.wall.date()
    if clock.unit == "business_days":
        part = max(int(share * clock.amount), 1)
        return min(unrolled(replace(clock, amount=part), day, reckoning.calendars[clock.calendar]), end)
    return min(day + timedelta(days=int(share * (end - day).days)), end)


def earlier(one: End, other: End, zone: str) -> End:
    """The earlier of two ends; a date ends with its last second."""

    def at(end: End) -> datetime:
        if isinstance(end, datetime):
            return end
        return instant(datetime.combine(end + timedelta(days=1), datetime.min.time()), zone)

    return one if at(one) <= at(other) else other


def also_due(reckoning: Reckoning, statutes: Mapping[str, Statute]) -> list[dict[str, Any]]:
    """The clocks that start together with this one."""
    told = []
    for name in reckoning.statute.also:
        other = replace(reckoning, statute=statutes[name], steps=[], pauses=())
        try:
            clock = other.law()
            end = shown(other.end(clock)) if clock else None
        except Refused as refused:
            if refused.code != "not_in_force":
                raise
            end = None
        told.append(
            {"statute": name, "due": end, "citation": statutes[name].citation, "summary": statutes[name].summary}
        )
    return told
