"""Azure Event Hubs: the channel `eventhubs`, over its Kafka endpoint.

Acknowledges: the delivery report of an idempotent producer with acks=all; Event Hubs stores an event in three places before it
says so. Orders: the partition; the key is the subject's pseudonym, and one event per subject is on its way at a time.
Deduplicates: only the client's own repeats inside one connection. Transactions exist in some tiers alone and are not used, so that
exactly-once is refused.

What breaks its guarantee: a hub that got more partitions, retention that ends before a reader comes. What is proved here is the wire: the
same connection string, login and protocol against a Kafka broker. That the service itself behaves so is Azure's word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from tidings.channels.call import Call, Capabilities, Channel, Outcome
from tidings.channels.kafkawire import Wire, code_of
from tidings.channels.kinds import Guarantee, Opening
from tidings.channels.line import LineChannel, NotReached, Ready, in_waves, left, rest

GUARANTEE = Guarantee(
    title="Azure Event Hubs",
    ack="a delivery report with acks=all",
    strength="A2",
    order="the partition; the key is the subject's pseudonym",
    dedup="none across connections; `id` stays the same at every attempt",
    breaks="a hub that got more partitions; retention that ends before a reader comes",
    capabilities=Capabilities(),
    extra="kafka",
)
# The hub said no before it stored anything.
NOTHING_DONE = ("unknown_topic", "not_permitted", "unauthorised")


def open_sink(opening: Opening) -> Channel:
    import confluent_kafka  # noqa: F401

    own = opening.manifest.sink
    assert own is not None
    mode = opening.variables.get("mode", own.mode)
    return LineChannel(lambda deadline: _Line(opening, deadline), opening.limits, GUARANTEE.capabilities, mode)


class _Line:
    def __init__(self, opening: Opening, deadline: float) -> None:
        given, hub = login(opening.connection)
        hub = opening.variables["hub"] or hub
        if not hub:
            raise NotReached("bad_connection", "neither vars.hub nor EntityPath names the hub", "refused")
        self._wire = Wire(given, {}, hub, opening.network)
        try:
            self._wire.connected(deadline)
        except BaseException:
            self._wire.close()
            raise

    def publish(self, ready: Sequence[Ready], call: Call, deadline: float) -> list[Outcome]:
        return in_waves(ready, lambda wave: self._wave(wave, deadline))

    def _wave(self, wave: list[Ready], deadline: float) -> list[Outcome]:
        left(deadline)
        told: dict[str, str] = {}

        def note(one: Ready, error: Any) -> None:
            told[one.member.event_id] = "" if error is None else code_of(error)

        for one in wave:
            self._wire.produce(one, lambda error, _, one=one: note(one, error))  # type: ignore[misc]
        failed = self._wire.flushed(rest(deadline)) or "no_answer"
        return [_outcome(one, told.get(one.member.event_id, failed)) for one in wave]

    def ping(self, deadline: float) -> None:
        self._wire.connected(deadline)

    def close(self) -> None:
        self._wire.close()


def login(connection: str) -> tuple[dict[str, Any], str]:
    """How a client of Kafka shows an Event Hubs connection string, and the hub it names."""
    parts = dict(part.split("=", 1) for part in connection.strip().split(";") if "=" in part)
    place = urlsplit(parts.get("Endpoint", ""))
    if place.scheme != "sb" or not place.hostname or not parts.get("SharedAccessKey"):
        raise NotReached("bad_connection", "Endpoint=sb://…;SharedAccessKeyName=…;SharedAccessKey=…", "refused")
    local = parts.get("UseDevelopmentEmulator", "").lower() == "true"  # the vendor's own emulator has no certificate
    port = place.port or (9092 if local else 9093)
    given = {
        "bootstrap.servers": f"{place.hostname}:{port}",
        "security.protocol": "SASL_PLAINTEXT" if local else "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "$ConnectionString",
        "sasl.password": connection.strip(),
    }
    return given, parts.get("EntityPath", "")


def _outcome(one: Ready, code: str) -> Outcome:
    if not code:
        return one.outcome("acknowledged", "ok", strength="A2")
    if code == "too_large":
        return one.outcome("terminal", code, "the hub takes no message of this size")
    if code in NOTHING_DONE:
        return one.outcome("transient", code, "the hub did not take it")
    return one.outcome("in_doubt", code, "no delivery report came")
