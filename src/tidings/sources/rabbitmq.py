"""RabbitMQ streams as a source, over the stream protocol: messages are read by their offset, and the broker tracks our place by name.

    last chunk → how far ─Spark→ subscription at an offset → messages → journal ─commit→ StoreOffset

Nothing is taken from a stream. `tidings source install` stores a second number under our name, the time it was installed: it is the
stream's epoch, and is gone when the stream is deleted. Messages that retention removed before they were read stop the source. What
it cannot see: messages of before the oldest one there is, and queues that are no streams.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import ssl
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from tidings.sources.asynchronous import Loop
from tidings.sources.streams import MOST, PATIENCE_S, At, Streams, extra_missing, wanted
from tidings.sources.tap import Taken

if TYPE_CHECKING:
    from rstream.client import Client
    from rstream.schema import Deliver

    from tidings.settings import Settings
    from tidings.shapes import Source

EMPTY_S = 2.0  # a stream of which nothing was ever read, and that shows nothing for so long, has nothing
GOODBYE_S = 0.1  # after it, the library waits a while for nothing
FRAME_BYTES, HEARTBEAT_S = 1 << 20, 60
Found = tuple[int, int, bytes]  # offset, milliseconds, the message as the producer encoded it


@dataclass(frozen=True)
class Open:
    """A connection to the node we were given, and the loop it lives in."""

    loop: Loop
    node: Client
    url: SplitResult


@dataclass(frozen=True)
class RabbitStreams(Streams[Open]):
    """Streams of one virtual host."""

    number = "next"

    @contextmanager
    def opened(self) -> Iterator[Open]:
        try:
            from rstream import exceptions
        except ImportError:
            raise extra_missing("RabbitMQ", "rabbitmq") from None
        logging.getLogger("rstream").setLevel(logging.CRITICAL)  # it logs what it raises, addresses included
        loop, node = Loop(), None
        try:
            url = self._address()
            node = loop.run(_connected(url))
            yield Open(loop, node, url)
        except (exceptions.StreamNotAvailable, exceptions.InternalError, exceptions.LeaderNotAvailable) as error:
            raise self.unreachable(error, "RabbitMQ") from None
        except (
            exceptions.AuthenticationFailure,
            exceptions.SASLAuthenticationFailureLoopback,
            exceptions.VirtualHostAccessFailure,
            exceptions.AccessRefused,
        ) as error:
            raise self.denied(error, "RabbitMQ") from None
        except exceptions.ServerError as error:
            raise self.refused(error, "RabbitMQ") from None
        except (exceptions.ClientError, OSError, TimeoutError) as error:
            raise self.unreachable(error, "RabbitMQ") from None
        finally:
            if node is not None:
                with suppress(Exception):  # of a connection that is already gone
                    loop.run(node.close(), GOODBYE_S)
            loop.close()

    def _address(self) -> SplitResult:
        url = urlsplit(self.wanted.connection)
        if url.scheme not in ("rabbitmq-stream", "rabbitmq-stream+tls") or not url.hostname:
            raise self.no_address("rabbitmq-stream://user:password@host:5552/vhost")
        return url

    @property
    def _made(self) -> str:
        return f"{self.wanted.slot}_made"

    def begin(self, client: Open, stream: str) -> At:
        install = f"Run `tidings source install {self.source}`."
        if not client.loop.run(client.node.stream_exists(stream)):
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
        last = self._last(client, stream, start)
        if last is None or last + 1 == start["next"]:
            return start
        if last + 1 < start["next"]:
            raise self.went_back(stream, f"The server was restored from a copy. {self._anew}")
        self._nothing_lost(client, stream, start)
        return {"epoch": start["epoch"], "next": min(last + 1, start["next"] + MOST)}

    def _last(self, client: Open, stream: str, start: At) -> int | None:
        """The offset of the last message; None when there never was one, which only silence says."""
        try:
            return client.loop.run(_one_chunk(client, stream, "LAST"), PATIENCE_S if start["next"] else EMPTY_S)[-1][0]
        except TimeoutError:
            if start["next"]:
                raise
            return None

    def _nothing_lost(self, client: Open, stream: str, start: At) -> None:
        """Retention removes from the front; who never read begins at the oldest message there is."""
        oldest = client.loop.run(_one_chunk(client, stream, "FIRST"))[0][0] if start["next"] else 0
        if (gone := oldest - start["next"]) > 0:
            raise self.lost(stream, gone, f"Widen the stream's retention. {self._anew}")

    @property
    def _anew(self) -> str:
        verbs = f"`tidings source remove {self.source}`, then `install` it"
        return f"To go on: {verbs}; what is in the stream is read from its beginning."

    def between(self, client: Open, stream: str, start: At, end: At) -> Iterator[Taken]:
        self._nothing_lost(client, stream, start)
        chunks, at = _chunks(client, stream, start["next"]), start["next"]
        try:
            while at < end["next"]:
                for offset, millis, encoded in client.loop.run(anext(chunks)):
                    at = offset + 1
                    if start["next"] <= offset < end["next"]:
                        yield self._taken(stream, start["epoch"], offset, millis, encoded)
        finally:
            with suppress(Exception):  # of a connection that is already gone
                client.loop.run(chunks.aclose())

    def _taken(self, stream: str, epoch: str, offset: int, millis: int, encoded: bytes) -> Taken:
        value, headers = message_of(encoded)
        body = self.wanted.body(stream, value, None, millis * 1000, headers)
        return Taken(f"{stream}/{epoch}/{offset}", millis * 1000, f"{offset:020d}-{stream}", body)

    def keep(self, client: Open, stream: str, end: At) -> None:
        _store(client, stream, self.wanted.slot, end["next"])

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
                if not client.loop.run(client.node.stream_exists(stream)):
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


async def _connected(url: SplitResult, host: str = "", port: int = 0) -> Client:
    """A connection to the node the address names, or to another one of its cluster."""
    from rstream.client import Client

    tls = url.scheme.endswith("+tls")
    node = Client(
        host or str(url.hostname),
        port or url.port or (5551 if tls else 5552),
        ssl_context=ssl.create_default_context() if tls else None,
        frame_max=FRAME_BYTES,
        heartbeat=HEARTBEAT_S,
        connection_name="tidings",
    )
    await node.start()
    vhost, user, password = url.path[1:] or "/", url.username or "guest", url.password or "guest"
    await node.authenticate(unquote(vhost), unquote(user), unquote(password))
    return node


def _tracked(client: Open, stream: str, name: str) -> int:
    """The number the stream keeps under a name; 0 when there is none."""
    from rstream import exceptions

    try:
        return client.loop.run(client.node.query_offset(stream, name))
    except exceptions.OffsetNotFound:
        return 0


def _store(client: Open, stream: str, name: str, number: int) -> None:
    """Storing has no answer; asking for it afterwards has."""
    client.loop.run(client.node.store_offset(stream, name, number))
    _tracked(client, stream, name)


async def _chunks(client: Open, stream: str, begin: int | str) -> AsyncGenerator[list[Found], None]:
    """The stream's chunks from an offset on, or from its FIRST or LAST one; a chunk is handed on whole, then the next is asked for."""
    from rstream import OffsetType
    from rstream.exceptions import StreamNotAvailable
    from rstream.schema import Deliver, OffsetSpec

    found: asyncio.Queue[Deliver] = asyncio.Queue()
    spec = OffsetSpec.from_params(
        *((OffsetType.OFFSET, begin) if isinstance(begin, int) else (OffsetType[begin], None))
    )

    async def subscribed(node: Client) -> Client:
        node.add_handler(Deliver, found.put_nowait, name="0")
        await node.run_queue_listener_task(0, found.put_nowait)
        await node.subscribe(stream, 0, spec, initial_credit=1)
        return node

    try:
        node = await subscribed(client.node)
    except StreamNotAvailable:  # on this node of a cluster
        leader, _ = await client.node.query_leader_and_replicas(stream)
        node = await subscribed(await _connected(client.url, leader.host, leader.port))
    try:
        while True:
            chunk = await found.get()
            encoded = enumerate(chunk.get_messages(), chunk.chunk_first_offset)
            yield [(offset, chunk.timestamp, bytes(message)) for offset, message in encoded]
            await node.credit(0, 1)
    finally:
        await node.unsubscribe(0)
        await node.stop_queue_listener_task(0)
        node.remove_handler(Deliver, name="0")


async def _one_chunk(client: Open, stream: str, which: str) -> list[Found]:
    chunks = _chunks(client, stream, which)
    try:
        return await anext(chunks)
    finally:
        await chunks.aclose()


def _text(told: Any) -> str:
    return told.decode("utf-8", "surrogateescape") if isinstance(told, bytes) else str(told)


def tap(settings: Settings, source: Source) -> RabbitStreams:
    return RabbitStreams(wanted(settings, source))
