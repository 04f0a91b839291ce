"""Redis Streams as a source: entries are read by their ids, and a consumer group that nobody consumes from keeps our place.

    XINFO STREAM → how far ─Spark→ XRANGE → messages → journal ─commit→ XGROUP SETID

`tidings source install` makes the group, and in it a consumer whose name is the stream's epoch: both are deleted with the stream, so
one that was made anew is told apart. Nothing is acknowledged or trimmed. The server counts what was ever added; what is missing from
that count was trimmed or deleted unread, and stops the source. What it cannot see: entries of before the oldest one there is.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidings.errors import SourceStopped
from tidings.sources.streams import LAST_MICROS, MOST, PATIENCE_S, At, Streams, extra_missing, wanted
from tidings.sources.tap import AT_ONCE, Taken

if TYPE_CHECKING:
    from redis import Redis

    from tidings.settings import Settings
    from tidings.shapes import Source

MADE = "made-"  # begins the name of the consumer that is the epoch


@dataclass(frozen=True)
class RedisStreams(Streams["Redis"]):
    """Streams of one Redis server, and our group in each."""

    number = "count"

    @contextmanager
    def opened(self) -> Iterator[Redis]:
        try:
            import redis
            from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError
        except ImportError:
            raise extra_missing("Redis", "redis") from None
        try:
            client = redis.Redis.from_url(
                self.wanted.connection, socket_timeout=PATIENCE_S, socket_connect_timeout=PATIENCE_S, retry=None
            )
        except ValueError:
            raise self.no_address("redis://user:password@host:6379/0") from None
        try:
            yield client
        except (AuthenticationError, AuthorizationError, NoPermissionError) as error:
            raise self.denied(error, "Redis") from None
        except redis.ResponseError as error:
            raise self.refused(error, "Redis") from None
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise self.unreachable(error, "Redis") from None
        finally:
            client.close()

    def begin(self, client: Redis, stream: str) -> At:
        install, slot = f"Run `tidings source install {self.source}`.", self.wanted.slot
        if not client.exists(stream):
            raise self.missing(stream, f"{install} It makes the stream too.")
        groups: Any = client.xinfo_groups(stream)
        group = next((one for one in groups if _text(one["name"]) == slot), None)
        consumers: Any = client.xinfo_consumers(stream, slot) if group else []
        names = [_text(one["name"]) for one in consumers]
        epoch = next((name for name in names if name.startswith(MADE)), None)
        if group is None or epoch is None:
            raise self.stopped(
                "source_not_ready",
                f"the stream {stream} has no group {slot} that keeps our place",
                "the group that `install` made, which goes when a stream is deleted",
                f"{install} If the stream was deleted, what was unread in it is gone.",
            )
        at, read = _text(group["last-delivered-id"]), group.get("entries-read")
        if read is None:  # the place was set by hand, or never: what is there now is what there is to read
            info = self._info(client, stream)
            read = info["entries-added"] - _count(client, stream, at, _text(info["last-generated-id"]))
        return {"epoch": epoch, "id": at, "count": int(read)}

    def _info(self, client: Redis, stream: str) -> dict[str, Any]:
        info: dict[str, Any] = client.xinfo_stream(stream)
        if "entries-added" not in info:
            expected = "Redis 7 or later, which counts what was added"
            raise self.stopped("source_not_ready", "a server that is too old", expected, "Upgrade it.")
        return info

    def ahead(self, client: Redis, stream: str, start: At) -> At:
        info = self._info(client, stream)
        last, added = _text(info["last-generated-id"]), int(info["entries-added"])
        if _order(last) < _order(start["id"]) or added < start["count"]:
            raise self.went_back(
                stream, "The server was restored, or crashed before it had written. " + self._go_on(stream, last)
            )
        if gone := self._gone(client, stream, info, start):
            raise self.lost(stream, gone, self._go_on(stream, start["id"]))
        if added - start["count"] > MOST:
            some = [entry for entry, _ in _entries(client, stream, start["id"], "+", MOST)]
            last, added = some[-1], start["count"] + len(some)
        return {"epoch": start["epoch"], "id": last, "count": added}

    def _gone(self, client: Redis, stream: str, info: Mapping[str, Any], start: At) -> int:
        """How many unread entries are missing. Trimming takes from the front; the last deleted id tells whether it is worth counting."""
        at, oldest = _order(start["id"]), info["first-entry"]
        unread, there = int(info["entries-added"]) - start["count"], int(info["length"])
        if oldest is not None and _order(_text(oldest[0])) <= at:
            if _order(_text(info["max-deleted-entry-id"])) <= at:
                return 0
            there = _count(client, stream, start["id"], _text(info["last-generated-id"]))
        return int(unread - there)

    def _go_on(self, stream: str, at: str) -> str:
        return (
            f"To go on without them: `XGROUP SETID {stream} {self.wanted.slot} {at}`, move the source's checkpoint folder away,"
            " and run."
        )

    def between(self, client: Redis, stream: str, start: At, end: At) -> Iterator[Taken]:
        count = 0
        for entry, fields in _entries(client, stream, start["id"], end["id"]):
            count += 1
            yield self._taken(stream, start["epoch"], entry, fields)
        if gone := end["count"] - start["count"] - count:
            raise self.lost(stream, gone, self._go_on(stream, start["id"]))

    def _taken(self, stream: str, epoch: str, entry: str, fields: Mapping[bytes, bytes]) -> Taken:
        millis, number = _order(entry)
        micros = min(millis * 1000, LAST_MICROS)
        key, value, headers = message_of(fields)
        body = self.wanted.body(stream, value, key, micros, headers)
        return Taken(f"{stream}/{epoch}/{entry}", micros, f"{millis:020d}-{number:020d}-{stream}", body)

    def keep(self, client: Redis, stream: str, end: At) -> None:
        client.xgroup_setid(stream, self.wanted.slot, end["id"], entries_read=end["count"])

    def statements(self) -> list[tuple[str, str]]:
        epoch, made = f"{MADE}{time.time_ns() // 1000}", []
        for stream in self.wanted.streams:
            name, slot = shlex.quote(stream), self.wanted.slot
            gone = f"XGROUP DESTROY {name} {slot}"
            made.append((f"XGROUP CREATE {name} {slot} 0 MKSTREAM", gone))
            made.append((f"XGROUP CREATECONSUMER {name} {slot} {epoch}", f"XGROUP DELCONSUMER {name} {slot} {epoch}"))
        return made

    def execute(self, statements: Sequence[str]) -> None:
        with self.opened() as client:
            import redis

            for statement in statements:
                try:
                    client.execute_command(*shlex.split(statement))  # type: ignore[no-untyped-call]
                except redis.ResponseError as error:
                    what_now = "Mend it and run the verb again; what was done stays until `tidings source remove`."
                    raise SourceStopped(
                        "source_not_ready", f"the server says: {error}", "the commands to run", what_now
                    ) from None


def message_of(fields: Mapping[bytes, bytes]) -> tuple[bytes | None, bytes, dict[str, str]]:
    """(key, value, headers) of an entry: with a field `value` that is it; one field alone is its key and value; else all fields are."""
    if b"value" in fields:
        others = {_text(name): _text(told) for name, told in fields.items() if name not in (b"key", b"value")}
        return fields.get(b"key"), fields[b"value"], others
    if len(fields) == 1:
        ((key, value),) = fields.items()
        return key, value, {}
    said = {_text(name): _text(told) for name, told in fields.items()}
    return None, json.dumps(said).encode(), {}


def _entries(
    client: Redis, stream: str, after: str, upto: str, most: int | None = None
) -> Iterator[tuple[str, dict[bytes, bytes]]]:
    left = most
    while left is None or left > 0:
        page: Any = client.xrange(stream, f"({after}", upto, count=AT_ONCE if left is None else min(left, AT_ONCE))
        yield from ((_text(entry), fields) for entry, fields in page)
        if not page:
            return
        after, left = _text(page[-1][0]), None if left is None else left - len(page)


def _count(client: Redis, stream: str, after: str, upto: str) -> int:
    return sum(1 for _ in _entries(client, stream, after, upto))


def _text(told: bytes | str) -> str:
    return told if isinstance(told, str) else told.decode("utf-8", "surrogateescape")


def _order(entry: str) -> tuple[int, int]:
    millis, _, number = entry.partition("-")
    return int(millis), int(number or 0)


def tap(settings: Settings, source: Source) -> RedisStreams:
    return RedisStreams(wanted(settings, source))
