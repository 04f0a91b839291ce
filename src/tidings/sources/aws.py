"""An AWS account we may ask: what it refuses is told apart by who can mend it, and the credentials show in no plan, log or error.

A source's `connection` is a reference to JSON (`region`, and where needed `endpoint`, `key_id`, `secret`, `session`) or to a URL
(`https://KEY_ID:SECRET@host/?region=eu-west-1`). Without one, region and credentials are found as every AWS program finds them:
environment, profile, the role of the machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tidings.errors import Refused, SourceStopped
from tidings.sources.stops import denied, extra_missing, not_ready, purged, unreachable

PARTS = {
    "region": "region_name",
    "endpoint": "endpoint_url",
    "key_id": "aws_access_key_id",
    "secret": "aws_secret_access_key",
    "session": "aws_session_token",
}
# What an answer means, by its code: nothing is guessed from a text.
EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
DENIED = {
    "AccessDenied",
    "AccessDeniedException",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "NotAuthorized",
    "OptInRequired",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
GONE = {
    "AWS.SimpleQueueService.NonExistentQueue",
    "QueueDoesNotExist",
    "ResourceNotFoundException",
    "TableNotFoundException",
}
FORGOTTEN = {"TrimmedDataAccessException"}
ANSWERS = "an AWS service that answers"


@dataclass(frozen=True)
class Account:
    """Where a source's AWS services are; empty means the machine's own settings."""

    source: str
    connection: str = field(default="", repr=False)

    def client(self, service: str) -> Any:
        """A client of one service, made once in a process."""
        return _client(service, self.connection, self.source)

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Whatever the services say besides an answer, as the error a person can act on."""
        from botocore import exceptions as said

        try:
            yield
        except said.ClientError as error:
            raise self.stopped(code_of(error)) from None
        except (said.NoCredentialsError, said.PartialCredentialsError, said.CredentialRetrievalError) as error:
            what_now = "Name them behind `connection`, or give the machine a role."
            raise denied(self.source, type(error).__name__, what_now) from None
        except said.BotoCoreError as error:
            raise unreachable(self.source, type(error).__name__, ANSWERS) from None

    def stopped(self, code: str) -> SourceStopped:
        """The error of an answer's code; what is not listed may pass by itself (throttling, a service that is ill)."""
        if code in EXPIRED:
            what_now = "They have expired: put new ones behind the source's `connection` and run again."
            return denied(self.source, code, what_now)
        if code in DENIED:
            return denied(self.source, code)
        if code in FORGOTTEN:
            return purged(self.source, "records after the place that was read last are no longer kept")
        if code in GONE:
            expected = "the table, stream or queue that is named, in this account and region"
            return not_ready(self.source, code, expected, "Check the name, the region and the account.")
        return unreachable(self.source, code, ANSWERS)


def code_of(error: Any) -> str:
    """The code of an answer that is an error, without the words around it."""
    return str(error.response.get("Error", {}).get("Code", "")).rpartition("#")[2]


def key_of(partition: str) -> bytes | None:
    """What decides a message's shard or group is its key only where a producer put the record's key there: an object or a list."""
    try:
        return partition.encode() if isinstance(json.loads(partition), dict | list) else None
    except ValueError:
        return None


def parts_of(connection: str) -> Mapping[str, str]:
    """A connection's parts under the client's names; Refused when it is neither JSON nor a URL, without repeating it."""
    try:
        said = json.loads(connection) if connection.lstrip().startswith("{") else _of_url(connection)
        if not set(said) <= set(PARTS) or not all(isinstance(value, str) for value in said.values()):
            raise ValueError
    except ValueError:
        raise Refused(
            "aws_connection",
            "a connection that cannot be read",
            f"JSON with {', '.join(PARTS)}, or a URL like https://KEY_ID:SECRET@host/?region=eu-west-1",
            "Mend the secret behind `connection`.",
        ) from None
    return {PARTS[name]: value for name, value in said.items()}


def _of_url(connection: str) -> dict[str, str]:
    url = urlsplit(connection)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError
    port = f":{url.port}" if url.port else ""
    told = {"endpoint": f"{url.scheme}://{url.hostname}{port}", "key_id": url.username, "secret": url.password}
    asked = {name: values[0] for name, values in parse_qs(url.query).items()}
    return {name: unquote(value) for name, value in told.items() if value} | asked


@cache
def _client(service: str, connection: str, source: str) -> Any:
    try:
        import boto3
        from botocore import exceptions as said
        from botocore.config import Config
    except ImportError:
        raise extra_missing("AWS", "aws") from None
    patience = Config(
        retries={"mode": "standard", "max_attempts": 4}, connect_timeout=10, read_timeout=40, user_agent_extra="tidings"
    )
    try:
        return boto3.session.Session().client(service, config=patience, **(parts_of(connection) if connection else {}))
    except (said.NoRegionError, ValueError) as error:
        expected = "a region, and an endpoint that is an address"
        raise not_ready(source, type(error).__name__, expected, "Name them behind `connection`.") from None
