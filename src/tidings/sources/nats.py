"""NATS JetStream as a source: messages are read by their number in the stream, through a consumer that lives for one batch.

    stream info → how far ─Spark→ ordered fetch → messages → journal

Nothing is left on the server: a stream's epoch is the time it was made, and our place is the checkpoint's. Messages that left the
stream by its limits before they were read stop the source. What it cannot see: messages that somebody deleted one by one, or that a
later one of the same subject replaced (`max_msgs_per_subject`), before they were read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tidings.sources.asynchronous import Loop
from tidings.sources.streams import MOST, PATIENCE_S, At, Streams, extra_missing, wanted
from tidings.sources.tap import AT_ONCE, Offset, Taken

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext
    from nats.js.api import StreamInfo, StreamState

    from tidings.settings import Settings
    from tidings.shapes import Source


ONCE: dict[str, Any] = {
    "allow_reconnect": False,
    "max_reconnect_attempts": 1,
    "reconnect_time_wait": 0,
    "connect_timeout": 5,
}


@dataclass(frozen=True)
class Open:
    """A connection and the loop it lives in."""

    loop: Loop
    js: JetStreamContext


@dataclass(frozen=True)
class NatsStreams(Streams[Open]):
    """JetStream streams of one account."""

    number = "seq"

    @contextmanager
    def opened(self) -> Iterator[Open]:
        try:
            import nats
            from nats import errors
            from nats.js import errors as js_errors
        except ImportError:
            raise extra_missing("NATS", "nats") from None
        loop, said, connection = Loop(), [], None

        async def heard(error: Exception) -> None:
            said.append(error)

        try:
            connection = loop.run(nats.connect(self._servers(), error_cb=heard, **ONCE))
            yield Open(loop, connection.jetstream(timeout=PATIENCE_S))
        except js_errors.ServiceUnavailableError as error:  # while the server restarts, too
            raise self.unreachable(error, "NATS") from None
        except js_errors.APIError as error:
            raise self.refused(error, "NATS") from None
        except (errors.Error, OSError, TimeoutError) as error:
            denied = [one for one in (error, *said) if "authorization" in str(one).lower()]
            raise (self.denied(denied[0], "NATS") if denied else self.unreachable(error, "NATS")) from None
        finally:
            if connection is not None:
                with suppress(Exception):  # of a connection that is already gone
                    loop.run(connection.close())
            loop.close()

    def _servers(self) -> list[str]:
        servers = self.wanted.connection.split(",")
        if not all(urlsplit(one).scheme in ("nats", "tls", "ws", "wss") and urlsplit(one).hostname for one in servers):
            raise self.no_address("nats://user:password@host:4222")
        return servers

    def _info(self, client: Open, stream: str) -> StreamInfo:
        from nats.js.errors import NotFoundError

        try:
            return client.loop.run(client.js.stream_info(stream))
        except NotFoundError:
            raise self.missing(stream, "Make it, or name another; what was unread in a deleted one is gone.") from None

    def begin(self, client: Open, stream: str) -> At:
        info = self._info(client, stream)
        if (kept := info.config.retention) not in (None, "limits"):
            found = f"the stream {stream} keeps messages by {getattr(kept, 'value', kept)}"
            raise self.stopped(
                "source_not_ready", found, "retention by limits", "Name a stream that keeps what is read."
            )
        return {"epoch": str(info.created and info.created.isoformat()), "seq": max(info.state.first_seq, 1) - 1}

    def ahead(self, client: Open, stream: str, start: At) -> At:
        state = self._info(client, stream).state
        if state.last_seq < start["seq"]:
            raise self.went_back(
                stream,
                "The server was restored from a copy. Move the source's checkpoint folder away and run: the stream is read from its"
                " beginning, and what comes again is recognised.",
            )
        self._nothing_lost(state, stream, start)
        return {"epoch": start["epoch"], "seq": min(state.last_seq, start["seq"] + MOST)}

    def _nothing_lost(self, state: StreamState, stream: str, start: At) -> None:
        if (gone := state.first_seq - 1 - start["seq"]) > 0:
            raise self.lost(
                stream,
                gone,
                "Widen the stream's limits. To go on without them, move the source's checkpoint folder away and run: what is left"
                " is read.",
            )

    def between(self, client: Open, stream: str, start: At, end: At) -> Iterator[Taken]:
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=start["seq"] + 1,
            ack_policy=AckPolicy.NONE,
            inactive_threshold=60.0,
            mem_storage=True,
        )
        self._nothing_lost(self._info(client, stream).state, stream, start)
        reader = client.loop.run(client.js.pull_subscribe("", stream=stream, config=config))
        told = client.loop.run(reader.consumer_info())
        at, left = (
            start["seq"],
            told.num_pending or 0,
        )  # the last ones may have been deleted: then nothing is left before the end
        try:
            while at < end["seq"] and left:
                page = client.loop.run(reader.fetch(min(AT_ONCE, end["seq"] - at, left), timeout=PATIENCE_S / 2))
                for message in page:
                    at, left = message.metadata.sequence.stream, message.metadata.num_pending
                    if at <= end["seq"]:
                        yield self._taken(start["epoch"], message)
        finally:
            with suppress(Exception):  # of a connection that is already gone
                client.loop.run(client.js.delete_consumer(stream, told.name))

    def _taken(self, epoch: str, message: Msg) -> Taken:
        told = message.metadata
        micros, number = int(told.timestamp.timestamp() * 1_000_000), told.sequence.stream
        body = self.wanted.body(message.subject, message.data, None, micros, dict(message.headers or {}))
        return Taken(f"{told.stream}/{epoch}/{number}", micros, f"{number:020d}-{told.stream}", body)

    def keep(self, client: Any, stream: str, end: At) -> None:
        """The checkpoint alone knows our place."""

    def done(self, end: Offset) -> None:
        """The checkpoint alone knows our place."""


def tap(settings: Settings, source: Source) -> NatsStreams:
    return NatsStreams(wanted(settings, source))
