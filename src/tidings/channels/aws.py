"""What the four services of AWS have in common: signed by Amazon's own client, sent through the guarded one.

Amazon's client writes, signs and reads; every byte leaves through `channels.client`, so that the guard, the deadline
and the difference between "not sent" and "in doubt" are the same as everywhere. Who we are is found as every AWS
program finds it, or stands in `connection`.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tidings.channels.bulk import Bulk, BulkChannel, Refusal
from tidings.channels.call import Outcome
from tidings.channels.client import Client, Fault, Request
from tidings.channels.kinds import Opening
from tidings.channels.line import Ready
from tidings.channels.verdict import Judge, short_code
from tidings.errors import Refused
from tidings.sources.aws import DENIED, EXPIRED, code_of, parts_of

THROTTLED = frozenset(
    [
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
        "TooManyRequestsException",
        "ProvisionedThroughputExceededException",
        "LimitExceededException",
        "OverLimit",
        "KMSThrottling",
        "KMSThrottlingException",
        "RequestLimitExceeded",
        "SlowDown",
        "ServiceUnavailable",
    ]
)
# Wrong for everybody until somebody mends it: the lane waits instead of emptying into the dead letters.
UNAUTHORISED = DENIED | EXPIRED | {"AuthorizationError", "AuthorizationErrorException", "NotAuthorizedException"}
MISSING = frozenset(
    [
        "AWS.SimpleQueueService.NonExistentQueue",
        "QueueDoesNotExist",
        "ResourceNotFoundException",
        "NotFound",
        "NotFoundException",
        "InvalidAddress",
    ]
)


class Gate(threading.local):
    """The deadline of the request that this thread is making."""

    deadline = 0.0


@dataclass
class Service:
    """One service of an account. `ask` answers with what Amazon's client read, or raises Refusal."""

    name: str
    connection: str = field(repr=False)
    client: Client = field(repr=False)
    _gate: Gate = field(default_factory=Gate, repr=False)
    _made: Any = field(default=None, repr=False)

    def ask(self, operation: str, deadline: float, **given: Any) -> Mapping[str, Any]:
        from botocore import exceptions as said
        from botocore.parsers import ResponseParserError

        if time.monotonic() >= deadline:
            raise Refusal(Outcome("", "transient", "not_reached", detail="the call's time was over before its turn"))
        self._gate.deadline = deadline
        try:
            answer: Mapping[str, Any] = getattr(self._made, operation)(**given)
            return answer
        except said.ClientError as error:
            raise Refusal(judged(code_of(error), _status(error))) from None
        except said.ParamValidationError:
            raise Refusal(Outcome("", "terminal", "bad_request", detail="the client refuses the request")) from None
        except ResponseParserError:
            raise Refusal(Outcome("", "in_doubt", "answer_unreadable", detail="the answer cannot be read")) from None
        except said.BotoCoreError as error:
            credentials = type(error).__name__ in (
                "NoCredentialsError",
                "PartialCredentialsError",
                "CredentialRetrievalError",
            )
            code = "unauthorised" if credentials else "not_set_up"
            raise Refusal(Outcome("", "transient", code, detail=type(error).__name__)) from None

    def __post_init__(self) -> None:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        # One try: what to do about a failure is the lane's decision, and a hidden repeat would not be on record.
        patience = Config(retries={"mode": "standard", "total_max_attempts": 1}, user_agent_extra="tidings")
        told = parts_of(self.connection) if self.connection else {}
        try:
            self._made = boto3.session.Session().client(self.name, config=patience, **told)
        except (BotoCoreError, ValueError) as error:
            expected = "a region, and an endpoint that is an address"
            raise Refused("sink_connection", type(error).__name__, expected, "Name them behind `connection`.") from None
        self._made.meta.events.register("before-send.*.*", self._sent)

    def _sent(self, request: Any, **_: Any) -> Any:
        """In place of Amazon's own sockets."""
        from botocore.awsrequest import AWSResponse

        headers = {name: _text(value) for name, value in request.headers.items() if name.lower() != "content-length"}
        body = request.body.encode() if isinstance(request.body, str) else bytes(request.body or b"")
        wanted = Request(request.method, request.url, headers, body)
        found = self.client.request(wanted, max(0.01, self._gate.deadline - time.monotonic()))
        if isinstance(found, Fault):
            raise Refusal(Judge().of_fault(found))
        return AWSResponse(request.url, found.status, dict(found.headers), _Body(found.body))


class _Body(io.BytesIO):
    """An answer that was read whole, in the form Amazon's client reads."""

    def stream(self, **_: Any) -> Iterator[bytes]:
        if rest := self.read():
            yield rest


def judged(code: str, status: int = 0) -> Outcome:
    """What a code of AWS means; what is not listed is terminal when it is a 4xx."""
    shown = short_code(code) or f"status_{status}"
    if code in THROTTLED or status == 429:
        return Outcome("", "throttled", shown, status=status)
    if code in UNAUTHORISED:
        return Outcome("", "transient", "unauthorised", detail=shown)
    if code in MISSING:
        return Outcome("", "transient", "no_such_place", detail=shown)
    if status >= 500 or status in (408, 425):
        return Outcome("", "transient", shown, status=status)
    return Outcome("", "terminal", shown, status=status)


def entry(one: Ready, code: str, mine: bool) -> Outcome:
    """The outcome of one record that a request left out; `mine` when the service says that it is the sender's fault."""
    told = judged(code, 400 if mine else 500)
    # The service says that this record was not taken, so there is no doubt about it.
    return replace(told, event_id=one.member.event_id, status=0)


def service_of(name: str, opening: Opening) -> Service:
    return Service(name, opening.connection, opening.client)


def opened(bulk: Bulk, opening: Opening) -> BulkChannel:
    sink = opening.manifest.sink
    assert sink is not None
    return BulkChannel(bulk, opening.limits, opening.manifest.capabilities(), sink.mode)


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
