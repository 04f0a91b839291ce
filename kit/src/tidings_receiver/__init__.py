"""The receiving side of Tidings: check who sent it, take each event once and in order, answer for it. Standard library only."""

from tidings_receiver.callback import CallbackFailed, send_callback
from tidings_receiver.causality import compare
from tidings_receiver.events import BadEvent, Event, read_events
from tidings_receiver.messages import verify_message
from tidings_receiver.middleware import asgi, wsgi
from tidings_receiver.receiver import Answer, Receiver, Reject, Request, Taken
from tidings_receiver.signatures import BadSignature, sign, verify
from tidings_receiver.stores import DatabaseStore, MemoryStore, SqliteStore, Store, Turn

__all__ = [
    "Answer",
    "BadEvent",
    "BadSignature",
    "CallbackFailed",
    "DatabaseStore",
    "Event",
    "MemoryStore",
    "Receiver",
    "Reject",
    "Request",
    "SqliteStore",
    "Store",
    "Taken",
    "Turn",
    "asgi",
    "compare",
    "read_events",
    "send_callback",
    "sign",
    "verify",
    "verify_message",
    "wsgi",
]
