"""RabbitMQ streams as a source, over the stream protocol: messages are read by their offset, and the broker tracks our place by name.

    last chunk → how far ─Spark→ subscription at an offset → messages → journal ─commit→ StoreOffset

Nothing is taken from a stream. `tidings source install` stores a second number under our name, the time it was installed: it is the
stream's epoch, and is gone when the stream is deleted. Messages that retention removed before they were read stop the source. What
it cannot see: messages of before the oldest one there is, and queues that are no streams.
"""

from __future__ import annotations

import asyncio
import shlex
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from tidings.sources.asynchronous import Loop
from tidings.sources.streams import MOST, PATIENCE_S, USUAL_BYTES, At, Streams, extra_missing, wanted
from tidings.sources.tap import AT_ONCE, Offset, Taken

if TYPE_CHECKING:
    from rstream import Consumer, MessageContext

    from tidings.settings import Settings
    from tidings.shapes import Source

EMPTY_S = 2.0  # a stream of which nothing was ever read, and that shows nothing for so long, has nothing
Found = tuple[int, int, bytes]  # offset, milliseconds, the message as the producer encoded it


@dataclass(frozen=True)
class Open:
    """A connection and the loop it lives in."""

    loop: Loop
    consumer: Consumer


@dataclass(frozen=True)
class RabbitStreams(Streams[Open]):
    """Streams of one virtual host."""

    @contextmanager
    def opened(self) -> Iterator[Open]:
        try:
            from rstream import exceptions
        except ImportError:
            raise extra_missing("RabbitMQ", "rabbitmq") from None
        loop = Loop()
        try:
            yield Open(loop, loop.run(_connected(self.wanted.connection)))
        except (exceptions.StreamNotAvailable, exceptions.InternalError, exceptions.LeaderNotAvailable) as error:
            raise self.unreachable(error, "RabbitMQ") from None
        except (exceptions.ServerError, ValueError) as error:
            raise self.refused(error, "RabbitMQ") from None
        except (exceptions.ClientError, OSError, EOFError, asyncio.TimeoutError, asyncio.CancelledError) as error:
            raise self.unreachable(error, "RabbitMQ") from None
        finally:
            loop.close()  # the library's own way waits a fifth of a second for each connection

    @property
    def _made(self) -> str:
        return f"{self.wanted.slot}_made"

    def begin(self, client: Open, stream: str) -> At:
        install = f"Run `tidings source install {self.source}`."
        if not client.loop.run(client.consumer.stream_exists(stream)):
            raise self.missing(stream, f"Declare it as a queue of type stream. {install}")
        if not (epoch := _tracked(client, stream, self._made)):
            raise self.stopped(
                "source_not_ready",
                f"the stream {stream} does not know the name {self._made}",
                "the name that `install` stores, which goes when a stream is deleted",
                f"{install} If the stream was deleted, what was unread in it is gone.",
            )
        return {"epoch": str(epoch), "next": _tracked(client, stream, self.wanted.slot)}

    def ahead(self, client: Open, stream: str, start: At) -> At:
        last = client.loop.run(_last(client.consumer, stream, PATIENCE_S if start["next"] else EMPTY_S))
        if last is None or last + 1 == start["next"]:
            return start
        if last + 1 < start["next"]:
            raise self.went_back(stream, f"The server was restored from a copy. {self._anew}")
        self._nothing_lost(client, stream, start)
        return {"epoch": start["epoch"], "next": min(last + 1, start["next"] + MOST)}

    def _nothing_lost(self, client: Open, stream: str, start: At) -> None:
        """Retention removes from the front; who never read begins at the oldest message there is."""
        oldest = client.loop.run(_oldest(client.consumer, stream)) if start["next"] else 0
        if (gone := oldest - start["next"]) > 0:
            raise self.lost(stream, gone, f"Widen the stream's retention. {self._anew}")

    @property
    def _anew(self) -> str:
        verbs = f"`tidings source remove {self.source}`, then `install` it"
        return f"To go on: {verbs}; what is in the stream is read from its beginning."

    def between(self, client: Open, stream: str, start: At, end: At) -> Iterator[Taken]:
        self._nothing_lost(client, stream, start)
        subscribed = client.loop.run(_subscribed(client.consumer, stream, start["next"]))
        at = start["next"]
        while at < end["next"]:
            for offset, millis, encoded in client.loop.run(_some(subscribed)):
                at = offset + 1
                if offset < end["next"]:
                    yield self._taken(stream, start["epoch"], offset, millis, encoded)

    def _taken(self, stream: str, epoch: str, offset: int, millis: int, encoded: bytes) -> Taken:
        value, headers = message_of(encoded)
        body = self.wanted.body(stream, value, None, millis * 1000, headers)
        return Taken(f"{stream}/{epoch}/{offset}", millis * 1000, f"{offset:020d}-{stream}", body)

    def keep(self, client: Open, stream: str, end: At) -> None:
        _store(client, stream, self.wanted.slot, end["next"])

    def size(self, start: Offset, end: Offset) -> int:
        counts = [at["next"] - start.get(name, at)["next"] for name, at in end.items()]
        return sum(max(0, count) for count in counts) * USUAL_BYTES

    def statements(self) -> list[tuple[str, str]]:
        made, now = [], time.time_ns() // 1000
        for name in map(shlex.quote, self.wanted.streams):
            made.append((f"StoreOffset {name} {self.wanted.slot} 0", f"StoreOffset {name} {self.wanted.slot} 0"))
            made.append((f"StoreOffset {name} {self._made} {now}", f"StoreOffset {name} {self._made} 0"))
        return made

    def execute(self, statements: Sequence[str]) -> None:
        with self.opened() as client:
            for statement in statements:
                _, stream, name, number = shlex.split(statement)
                if not client.loop.run(client.consumer.stream_exists(stream)):
                    raise self.missing(stream, "Declare it as a queue of type stream, then run the verb again.")
                _store(client, stream, name, int(number))


def message_of(encoded: bytes) -> tuple[bytes, dict[str, str]]:
    """(value, headers) of an AMQP 1.0 message; what is none is handed on as it is, for the quarantine."""
    from rstream import amqp_decoder

    try:
        message = amqp_decoder(encoded)
        parts = message.body if isinstance(message.body, (list, tuple)) else [message.body]
        value = b"".join(part if isinstance(part, bytes) else str(part).encode() for part in parts)
        told = message.application_properties or {}
        return value, {_text(name): _text(said) for name, said in told.items()}
    except Exception:
        return encoded, {}


async def _connected(connection: str) -> Consumer:
    from rstream import Consumer

    url = urlsplit(connection)
    if url.scheme not in ("rabbitmq-stream", "rabbitmq-stream+tls") or not url.hostname:
        raise ValueError("not the address of a stream listener")
    consumer = Consumer(
        url.hostname,
        url.port or (5551 if url.scheme.endswith("+tls") else 5552),
        username=unquote(url.username or "guest"),
        password=unquote(url.password or "guest"),
        vhost=unquote(url.path[1:]) or "/",
        ssl_context=ssl.create_default_context() if url.scheme.endswith("+tls") else None,
        connection_name="tidings",
    )
    await consumer.start()
    return consumer


def _tracked(client: Open, stream: str, name: str) -> int:
    """The number the stream keeps under a name; 0 when there is none."""
    from rstream import exceptions

    try:
        return client.loop.run(client.consumer.query_offset(stream, name))
    except exceptions.OffsetNotFound:
        return 0


def _store(client: Open, stream: str, name: str, number: int) -> None:
    """Storing has no answer; asking for it afterwards has."""
    client.loop.run(client.consumer.store_offset(stream, name, number))
    _tracked(client, stream, name)


async def _subscribed(consumer: Consumer, stream: str, offset: int | str) -> tuple[int, asyncio.Queue[Found]]:
    from rstream import ConsumerOffsetSpecification, OffsetType

    found: asyncio.Queue[Found] = asyncio.Queue()

    def heard(message: Any, context: MessageContext) -> None:
        found.put_nowait((context.offset, context.timestamp, message))

    where = (OffsetType.OFFSET, offset) if isinstance(offset, int) else (OffsetType[offset], None)
    spec = ConsumerOffsetSpecification(*where)
    return await consumer.subscribe(stream, heard, offset_specification=spec, initial_credit=2), found


async def _some(subscribed: tuple[int, asyncio.Queue[Found]]) -> list[Found]:
    """What has come, at least one."""
    found = subscribed[1]
    some = [await found.get()]
    while not found.empty() and len(some) < AT_ONCE:
        some.append(found.get_nowait())
    return some


async def _last(consumer: Consumer, stream: str, patience: float) -> int | None:
    """The offset of the last message; a chunk arrives as a whole, so the last one that came with it is the last of its chunk."""
    number, found = await _subscribed(consumer, stream, "LAST")
    try:
        async with asyncio.timeout(patience):
            last = await found.get()
    except TimeoutError:
        if patience > EMPTY_S:
            raise
        return None
    finally:
        await consumer.unsubscribe(number)
    while not found.empty():
        last = found.get_nowait()
    return last[0]


async def _oldest(consumer: Consumer, stream: str) -> int:
    number, found = await _subscribed(consumer, stream, "FIRST")
    try:
        return (await found.get())[0]
    finally:
        await consumer.unsubscribe(number)


def _text(told: Any) -> str:
    return told.decode("utf-8", "surrogateescape") if isinstance(told, bytes) else str(told)


def tap(settings: Settings, source: Source) -> RabbitStreams:
    return RabbitStreams(wanted(settings, source))
