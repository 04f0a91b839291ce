"""MongoDB's change streams as a source: every change of the named collections, in the deployment's own order.

    deployment ─watch→ events ─Spark→ journal; the place is a resume token

A look finds the last event of a batch, and reading goes from one token to the other, so a batch that is repeated reads the same
events. Full documents come from post-images and before-images, where collections keep them, and are never looked up: a document that
is looked up is another one the next time. What breaks the guarantee: an oplog that is shorter than a pause of ours; the server then
says that our place is gone, and the source stops with the remedy.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tidings.errors import SourceStopped
from tidings.sources.stops import denied, extra_missing, not_ready, purged, unreachable
from tidings.sources.tap import Offset, Taken, Tap

if TYPE_CHECKING:
    from tidings.settings import Settings
    from tidings.shapes import Source

MOST = 10_000  # events of a batch
RENEW_S = 3_600  # how old the place of a quiet stream may get
AWAIT_MS = 250
PATIENCE_S = 120.0  # for events that were there when the batch was planned
IMAGES = 6  # the first version that keeps images of before and after
# The server's own codes.
LOST = {
    136: "CappedPositionLost",
    260: "InvalidResumeToken",
    280: "ChangeStreamFatalError",
    286: "ChangeStreamHistoryLost",
}
DENIED = {13: "Unauthorized", 18: "AuthenticationFailed", 8000: "AtlasError"}
NO_STREAMS = 40573


@dataclass(frozen=True)
class Watch(Tap):
    """Some collections of one deployment."""

    name: str
    collections: tuple[tuple[str, str], ...]
    connection: str = field(repr=False)
    origin: str = ""

    @property
    def source(self) -> str:
        return self.name

    @contextmanager
    def asked(self) -> Iterator[Any]:
        """A client; whatever the server says besides an answer, as the error a person can act on."""
        try:
            import pymongo
            from pymongo import errors as said
        except ImportError:
            raise extra_missing("MongoDB", "mongodb") from None
        try:
            client: Any = pymongo.MongoClient(self.connection, tz_aware=True)
            with client:
                yield client
        except said.OperationFailure as error:
            raise self.stopped(error.code or 0) from None
        except said.ConnectionFailure as error:
            raise unreachable(self.name, type(error).__name__, "a MongoDB server that answers") from None
        except said.PyMongoError as error:
            expected = "an address like mongodb://user:password@host/?replicaSet=rs0"
            raise not_ready(self.name, type(error).__name__, expected, "Mend the secret behind `connection`.") from None

    def stopped(self, code: int) -> SourceStopped:
        """The error of an answer's code; what is not listed may pass by itself (an election, a step-down)."""
        if code in LOST:
            return purged(self.name, f"the oplog no longer holds the place that was read last ({LOST[code]})")
        if code in DENIED:
            return denied(self.name, f"{DENIED[code]}: the user may not read the change streams of these databases")
        if code == NO_STREAMS:
            return self._standalone()
        return unreachable(self.name, f"code {code}", "a MongoDB server that answers")

    def _standalone(self) -> SourceStopped:
        what_now = "Start it with a replica set, also if it has one member."
        return not_ready(self.name, "a server on its own", "a replica set or a sharded cluster", what_now)

    def verify(self) -> str:
        with self.asked() as client:
            hello = client.admin.command("hello")
            if "setName" not in hello and hello.get("msg") != "isdbgrid":
                raise self._standalone()
            for database in sorted({one for one, _ in self.collections}):
                held = set(client[database].list_collection_names())
                missing = [
                    f"{database}.{one}" for where, one in self.collections if where == database and one not in held
                ]
                if missing:
                    raise not_ready(
                        self.name, f"no {', '.join(missing)}", "the named collections", "Check their names."
                    )
            return self._deployment(client, hello)

    def _deployment(self, client: Any, hello: dict[str, Any]) -> str:
        """The deployment's name, with the identity it was given when it was made where we may see it."""
        from pymongo.errors import OperationFailure

        try:
            if hello.get("msg") == "isdbgrid":
                return f"cluster/{client.config.version.find_one()['clusterId']}"
            config = client.admin.command("replSetGetConfig")["config"]
            return f"{hello['setName']}/{config['settings']['replicaSetId']}"
        except (OperationFailure, KeyError, TypeError):
            return str(hello.get("setName", "cluster"))

    def verified(self) -> Watch:
        return replace(self, origin=self.verify())

    def first(self) -> Offset:
        """Begins now; the first batch is empty and says when that was."""
        return {"origin": "", "at": {}, "last": "", "count": 0, "size": 0, "seen": 0}

    def latest(self, start: Offset) -> Offset:
        if not start["at"]:
            with self.asked() as client:
                began = client.admin.command("ping")["operationTime"]
            return {**start, "origin": self.origin, "at": {"time": [began.time, began.inc]}, "seen": int(time.time())}
        self._same(start)
        found, token, now = dict(start), None, int(time.time())
        with self.asked() as client, self._stream(client, start["at"]) as stream:
            while found["count"] - start["count"] < MOST and (event := stream.try_next()) is not None:
                found["at"], found["last"] = place_of(event), event["_id"]["_data"]
                found["count"] += 1
                found["size"] += len(_text(event))
            token = (stream.resume_token or {}).get("_data")
        if found["count"] != start["count"]:
            return {**found, "seen": now}
        if token is None or now - start["seen"] < RENEW_S:
            return start
        return {**start, "at": {"token": token}, "seen": now}

    def _same(self, start: Offset) -> None:
        if start["origin"] != self.origin:
            raise SourceStopped(
                "source_went_back",
                f"source {self.name}: the deployment is another one than the one that was read last",
                "the deployment that the place belongs to",
                "Move the source's checkpoint folder away and run: reading begins anew, as a new epoch. What the old deployment held"
                " and the new one does not is not read.",
            )

    def _stream(self, client: Any, at: dict[str, Any]) -> Any:
        """The events after this place; of one collection or database where that is enough, because then no right on others is needed."""
        from bson import Timestamp

        databases = sorted({one for one, _ in self.collections})
        where = client[databases[0]] if len(databases) == 1 else client
        wanted = [{"ns.db": database, "ns.coll": one} for database, one in self.collections]
        only = [{"$match": {"$or": [*wanted, {"operationType": "invalidate"}]}}]
        if len(wanted) == 1:
            where, only = where[self.collections[0][1]], []
        options: dict[str, Any] = {"max_await_time_ms": AWAIT_MS}
        if client.server_info()["versionArray"][0] >= IMAGES:
            options |= {"full_document": "whenAvailable", "full_document_before_change": "whenAvailable"}
        if "time" in at:
            options["start_at_operation_time"] = Timestamp(*at["time"])
        else:
            options["start_after" if "after" in at else "resume_after"] = {"_data": at.get("token") or at["after"]}
        return where.watch(only, **options)

    def read(self, start: Offset, end: Offset) -> Iterator[Taken]:
        if start["count"] == end["count"]:
            return
        left, patience, last = end["count"] - start["count"], time.monotonic() + PATIENCE_S, ""
        with self.asked() as client, self._stream(client, start["at"]) as stream:
            while left and time.monotonic() < patience:
                if (event := stream.try_next()) is not None:
                    left, last = left - 1, event["_id"]["_data"]
                    yield self._taken(event)
        if left or last != end["last"]:
            raise purged(self.name, "events of a batch that was begun are no longer there")

    def _taken(self, event: dict[str, Any]) -> Taken:
        from bson.json_util import RELAXED_JSON_OPTIONS, dumps

        token, stamp = event["_id"]["_data"], event["clusterTime"]
        wall = event.get("wallTime")
        micros = round(wall.timestamp() * 1_000_000) if wall else stamp.time * 1_000_000
        body = dumps({"origin": self.origin, "value": event}, json_options=RELAXED_JSON_OPTIONS, ensure_ascii=False)
        return Taken(f"{self.origin}/{token}", micros, f"{stamp.time:010d}-{stamp.inc:010d}-{token}", body)

    def done(self, end: Offset) -> None:
        """The oplog forgets by age and size; there is nothing to tell it."""

    def size(self, start: Offset, end: Offset) -> int:
        return int(end["size"] - start["size"])


def place_of(event: dict[str, Any]) -> dict[str, str]:
    """After an event that closes its stream only `startAfter` goes on."""
    token = str(event["_id"]["_data"])
    return {"after": token} if event["operationType"] == "invalidate" else {"token": token}


def _text(event: dict[str, Any]) -> str:
    from bson.json_util import dumps

    return str(dumps(event))


def tap(settings: Settings, source: Source) -> Watch:
    """The collections that the source names, as database.collection."""
    assert source.connection is not None, "checked with the folder"
    named = [tuple(name.split(".", 1)) for name in sorted(source.entities)]
    if any(len(parts) != 2 for parts in named):
        raise not_ready(source.name, "a collection without its database", "names like crm.customers", "Name both.")
    return Watch(source.name, tuple((one[0], one[1]) for one in named), settings.secret(source.connection).reveal())
