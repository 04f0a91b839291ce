"""NATS JetStream: the channel `nats`.

Acknowledges: the PubAck of the stream (its name and the message's number), given when the stream has stored the message on as many
servers as its replicas. Orders: the stream; one event per subject is on its way at a time. Deduplicates: `Nats-Msg-Id` is the
event's id, and a PubAck that says `duplicate` is an acknowledgement. The stream forgets ids after its `duplicate_window`, which must
not be shorter than the manifest's `sink.key_window_s`; `check --connect` compares them. `Nats-Expected-Stream` keeps an event out
of a stream that took over the subject.

What breaks its guarantee: a repeat after the window, a stream in memory or with one replica, limits that discard old messages before
they are read (set `discard: new` to be told instead), a purge.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from tidings.channels.call import Call, Capabilities, Channel, Outcome
from tidings.channels.kinds import Guarantee, Opening
from tidings.channels.line import LOST, LineChannel, NotReached, Ready, in_waves, left, rest
from tidings.channels.reach import reachable
from tidings.stages.envelope import header_value

GUARANTEE = Guarantee(
    title="NATS JetStream",
    ack="the stream's PubAck: stored, on as many servers as the stream has replicas",
    strength="A3",
    order="the stream",
    dedup="`Nats-Msg-Id`, within the stream's duplicate window",
    breaks="a repeat after the window; a stream in memory; limits that discard what was not read; a purge",
    capabilities=Capabilities(idempotency_key=True),
    extra="nats",
)
IDLE_S = 1.0  # after this the connection is asked whether it is still there
ONCE: dict[str, Any] = {"allow_reconnect": False, "max_reconnect_attempts": 1, "reconnect_time_wait": 0}
# JetStream's error numbers → ours; the message was not stored by any of them.
CODES = {
    10054: ("terminal", "too_large"),
    10060: ("transient", "wrong_stream"),
    10077: ("throttled", "stream_full"),
    10122: ("throttled", "stream_full"),
    10047: ("throttled", "storage_full"),
    10023: ("throttled", "storage_full"),
    10039: ("transient", "no_jetstream"),
    10008: ("transient", "no_leader"),
    10109: ("transient", "sealed"),
}


def open_sink(opening: Opening) -> Channel:
    import nats  # noqa: F401

    own = opening.manifest.sink
    assert own is not None
    mode = opening.variables.get("mode", own.mode)
    return LineChannel(lambda deadline: _Line(opening, deadline), opening.limits, GUARANTEE.capabilities, mode)


class _Line:
    def __init__(self, opening: Opening, deadline: float) -> None:
        from tidings.sources.asynchronous import Loop

        assert opening.manifest.sink is not None
        self._subject, self._stream = opening.variables["subject"], opening.variables["stream"]
        self._window = opening.manifest.sink.key_window_s or 0.0
        self._said: list[Exception] = []
        self._loop = Loop()
        try:
            self._client = self._connected(opening, deadline)
        except BaseException:
            self._loop.close()
            raise
        self._js = self._client.jetstream()
        self._spoke = time.monotonic()

    def _connected(self, opening: Opening, deadline: float) -> Any:
        """The first server of the list that answers; all of them must be fit to be reached."""
        from nats.errors import Error

        places = []
        for url in opening.connection.split(","):
            part = urlsplit(url.strip())
            if part.scheme not in ("nats", "tls") or not part.hostname:
                raise NotReached("bad_connection", "the connection is no nats:// or tls:// URL", "refused")
            port = part.port or 4222
            places.append((part, port, reachable(part.hostname, port, opening.network)))
        for part, port, address in places:
            try:
                return self._loop.run(self._connect(part, port, address, left(deadline)), left(deadline))
            except (Error, OSError, TimeoutError) as error:
                self._said.append(error)
        denied = any("authorization" in str(error).lower() for error in self._said)
        if denied:
            raise NotReached("unauthorised", "the server does not know this user")
        raise NotReached("not_connected", "no server of the connection answers")

    async def _connect(self, part: Any, port: int, address: str, wait: float) -> Any:
        import nats

        async def heard(error: Exception) -> None:
            self._said.append(error)

        host = f"[{address}]" if ":" in address else address
        more: dict[str, Any] = {"user": part.username, "password": part.password} if part.password else {}
        if part.username and not part.password:
            more = {"token": part.username}
        if part.scheme == "tls":
            more["tls_hostname"] = part.hostname
        url = f"{part.scheme}://{host}:{port}"
        return await nats.connect(url, error_cb=heard, connect_timeout=max(1, int(wait)), **ONCE, **more)

    def publish(self, ready: Sequence[Ready], call: Call, deadline: float) -> list[Outcome]:
        if time.monotonic() - self._spoke > IDLE_S:
            self._alive(deadline)
        try:
            return in_waves(ready, lambda wave: self._wave(wave, deadline))
        finally:
            self._spoke = time.monotonic()

    def _wave(self, wave: list[Ready], deadline: float) -> list[Outcome]:
        left(deadline)

        async def all_of_them() -> list[Outcome]:
            return await asyncio.gather(*(self._one(one, deadline) for one in wave))

        told: list[Outcome] = self._loop.run(all_of_them(), rest(deadline) + 1)
        return told

    async def _one(self, one: Ready, deadline: float) -> Outcome:
        from nats import errors
        from nats.js import errors as stream_errors

        headers = {"Nats-Msg-Id": one.member.idempotency_key, "content-type": one.content_type}
        headers |= {f"ce-{name}": header_value(value) for name, value in one.attributes.items()}
        size = len(one.body) + sum(len(name) + len(value) + 4 for name, value in headers.items()) + 64
        if size > self._client.max_payload:
            return one.outcome("refused", "too_large", f"{size} bytes; the server takes {self._client.max_payload}")
        try:
            ack = await self._sent(one, headers, deadline)
        except stream_errors.NoStreamResponseError:
            return one.outcome("transient", "unknown_stream", "no stream listens to the subject")
        except stream_errors.APIError as error:
            result, code = CODES.get(error.err_code or 0, ("in_doubt", f"nats_{error.err_code}"))
            return one.outcome(result, code, "the stream did not take it")  # type: ignore[arg-type]
        except (errors.Error, OSError, TimeoutError) as error:
            return one.outcome("in_doubt", "no_answer", f"{type(error).__name__} while waiting for the stream")
        if ack.stream != self._stream:
            return one.outcome("terminal", "wrong_stream", "another stream took it")
        code = "duplicate" if ack.duplicate else "ok"
        return one.outcome("acknowledged", code, strength="A3", reference=str(ack.seq))

    async def _sent(self, one: Ready, headers: dict[str, str], deadline: float) -> Any:
        """The PubAck; a connection that closes in the meantime is not waited for."""
        publishing = asyncio.ensure_future(
            self._js.publish(self._subject, one.body, timeout=rest(deadline), stream=self._stream, headers=headers)
        )
        while not publishing.done():
            await asyncio.wait({publishing}, timeout=0.2)
            if self._client.is_closed and not publishing.done():
                publishing.cancel()
                raise ConnectionError
        return publishing.result()

    def ping(self, deadline: float) -> None:
        from nats import errors
        from nats.js.errors import NotFoundError

        try:
            info = self._loop.run(self._js.stream_info(self._stream), left(deadline))
        except NotFoundError:
            raise NotReached("unknown_stream", "no stream of that name") from None
        except (errors.Error, OSError, TimeoutError):
            raise NotReached("no_answer", "the server does not say what it knows of the stream") from None
        if (info.config.duplicate_window or 0) < self._window:
            have, want = info.config.duplicate_window, self._window
            detail = f"the stream forgets ids after {have} s, the manifest promises {want} s"
            raise NotReached("window_too_short", detail, "refused")

    def close(self) -> None:
        try:
            self._loop.run(self._client.close(), 2.0)
        finally:
            self._loop.close()

    def _alive(self, deadline: float) -> None:
        from nats import errors

        try:
            self._loop.run(self._client.flush(timeout=max(1, int(left(deadline)))), left(deadline))
        except (errors.Error, OSError, TimeoutError):
            raise NotReached(LOST, "the server had closed the connection") from None
