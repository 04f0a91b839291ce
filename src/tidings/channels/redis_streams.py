"""Redis Streams: the channel `redis_streams`.

Acknowledges: the ids of XADD, for all members of a call from one script. As durable as the server's `appendfsync` says; with
`vars.replicas` that many replicas must also say by WAIT that they have it, and an event they do not have in time is in doubt.
Orders: one stream, in the order of the calls. Deduplicates: the script sets a key per event beside the stream in the same
step as it adds the entry, and answers a repeat with the first entry's id. The key lives as long as the manifest's
`sink.key_window_s`. Nothing is ever trimmed: MAXLEN is the reader's decision.

What breaks its guarantee: `appendonly no` or `appendfsync everysec` and a power cut, an eviction policy that may take the stream or
the keys, a failover to a replica that was behind, a stream that is deleted. A Redis cluster is not spoken to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidings.channels.call import Call, Capabilities, Channel, Outcome
from tidings.channels.kinds import Guarantee, Opening
from tidings.channels.line import LOST, LineChannel, NotReached, Ready, left, rest
from tidings.channels.reach import reachable

GUARANTEE = Guarantee(
    title="Redis Streams",
    ack="the entry's id; as durable as the server's appendfsync, and on as many replicas as `vars.replicas` asks for",
    strength="A3",
    order="the stream",
    dedup="a key per event, set in the same script as the entry, for `sink.key_window_s`",
    breaks="no or late fsync and a power cut; eviction; a failover to a replica that was behind",
    capabilities=Capabilities(idempotency_key=True),
    extra="redis",
)
# Everything is checked before anything is written: a script is atomic, but nothing of it is undone.
SCRIPT = """\
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'none' then return redis.error_reply('UNKNOWNSTREAM no such key') end
if kind ~= 'stream' then return redis.error_reply('WRONGTYPE not a stream') end
local ids, place = {}, 2
for number = 2, #KEYS do
  local many = tonumber(ARGV[place])
  local id = redis.call('GET', KEYS[number])
  if not id then
    id = redis.call('XADD', KEYS[1], '*', unpack(ARGV, place + 1, place + many))
    redis.call('SET', KEYS[number], id, 'EX', ARGV[1])
  end
  ids[#ids + 1] = id
  place = place + many + 1
end
return ids
"""
# The first word of an error → our code; nothing was written by any of them.
CODES = {
    "UNKNOWNSTREAM": "unknown_stream",
    "WRONGTYPE": "not_a_stream",
    "NOAUTH": "unauthorised",
    "WRONGPASS": "unauthorised",
    "NOPERM": "not_permitted",
    "OOM": "out_of_memory",
    "LOADING": "loading",
    "READONLY": "read_only",
    "MISCONF": "cannot_save",
    "MASTERDOWN": "no_master",
    "BUSY": "busy",
}


def open_sink(opening: Opening) -> Channel:
    import redis  # noqa: F401

    own = opening.manifest.sink
    assert own is not None
    return LineChannel(
        lambda deadline: _Line(opening, deadline),
        opening.limits,
        GUARANTEE.capabilities,
        opening.variables.get("mode", own.mode),
    )


class _Line:
    def __init__(self, opening: Opening, deadline: float) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.connection import parse_url
        from redis.retry import Retry

        assert opening.manifest.sink is not None
        self._stream = opening.variables["stream"]
        self._replicas = int(opening.variables["replicas"])
        self._window = int(opening.manifest.sink.key_window_s or 0)
        try:
            given: dict[str, Any] = dict(parse_url(opening.connection))  # type: ignore[no-untyped-call]
        except ValueError:
            raise NotReached("bad_connection", "the connection is no redis:// or rediss:// URL", "refused") from None
        kind = given.pop("connection_class", redis.Connection)
        host, port = given.pop("host", "localhost"), given.pop("port", 6379)
        address = reachable(host, port, opening.network)
        # A certificate is checked against the name, so that an encrypted connection may look it up again.
        place = host if kind is redis.SSLConnection else address
        wait = left(deadline)
        quiet = {"retry": Retry(NoBackoff(), 0), "socket_timeout": wait, "socket_connect_timeout": wait}
        self._connection = kind(host=place, port=port, **given, **quiet)
        try:
            self._connection.connect()
        except redis.RedisError as error:
            raise _not_reached(error) from None

    def publish(self, ready: Sequence[Ready], call: Call, deadline: float) -> list[Outcome]:
        import redis

        keys = [self._stream, *(f"{{{self._stream}}}:seen:{one.member.idempotency_key}" for one in ready)]
        values: list[Any] = [self._window]
        for one in ready:
            entry = _entry(one)
            values += [len(entry), *entry]
        self._alive()
        try:
            ids = self._ask(deadline, "EVAL", SCRIPT, len(keys), *keys, *values)
        except redis.ResponseError as error:
            if _code(error):
                raise _not_reached(error) from None
            raise
        short = self._behind(deadline)
        return [_told(one, entry, short) for one, entry in zip(ready, ids, strict=True)]

    def ping(self, deadline: float) -> None:
        self._alive()
        kind = self._ask(deadline, "TYPE", self._stream)
        if kind != b"stream":
            raise NotReached("unknown_stream" if kind == b"none" else "not_a_stream", "no stream of that name")

    def close(self) -> None:
        self._connection.disconnect()

    def _alive(self) -> None:
        """An idle connection that the server has closed in the meantime is no doubt: nothing has left yet."""
        import redis

        try:
            dead = self._connection.can_read()
        except redis.RedisError:
            dead = True
        if dead:
            raise NotReached(LOST, "the server had closed the connection")

    def _ask(self, deadline: float, *command: Any) -> Any:
        self._connection.update_current_socket_timeout(left(deadline))
        self._connection.send_command(*command, check_health=False)
        return self._connection.read_response(timeout=rest(deadline))

    def _behind(self, deadline: float) -> str:
        """How many replicas do not have it yet, in words; nothing when enough of them do."""
        if not self._replicas:
            return ""
        wait = max(1, int((rest(deadline) - 0.1) * 1000))
        have = int(self._ask(deadline + 0.1, "WAIT", self._replicas, wait))
        return "" if have >= self._replicas else f"{have} of {self._replicas} replicas have it"


def _entry(one: Ready) -> list[Any]:
    pairs: list[Any] = ["key", one.member.subject, "content-type", one.content_type, "value", one.body]
    for name, value in one.attributes.items():
        pairs += [f"ce_{name}", value]
    return pairs


def _told(one: Ready, entry: bytes, short: str) -> Outcome:
    if short:
        return one.outcome("in_doubt", "not_replicated", short)
    return one.outcome("acknowledged", "ok", strength="A3", reference=entry.decode())


def _not_reached(error: Exception) -> NotReached:
    code = _code(error) or "not_connected"
    return NotReached(code, f"the server does not take it: {code}")


def _code(error: Exception) -> str:
    """Our code for what the server said; empty when it is none of the words that come before anything is written."""
    return CODES.get(getattr(error, "status_code", None) or str(error).split(" ", 1)[0], "")
