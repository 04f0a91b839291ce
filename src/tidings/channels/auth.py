"""How a subscriber's secret is shown: the schemes as data, and the client that shows them.

| kind | what is sent | the secret |
|---|---|---|
| none | nothing | |
| header | `header: prefix secret` | the key |
| query | `?param=secret` | the key |
| body | the secret where a template says `=secret` | the key |
| basic | user and password | `user:password`, or the half that is not fixed |
| bearer | `Authorization: Bearer secret` | the token |
| oauth2 | a token of the client-credentials grant | `client id:client secret` |
| hmac | a keyed digest of the request in `header` | `key id:key`, or the key |
| sigv4 | an AWS signature, version 4 | `access key id:secret key`, and `:session token` |
| google | a token for a service account | its key file (JSON) |

`auth.user` may say the part before the colon. What breaks it: a vendor that answers 401 for something else than credentials
costs one more token a call. No secret, token or signature is ever in an error, an outcome or a `repr`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol
from urllib.parse import quote

from pydantic import Field

from tidings.channels.client import MAX_ANSWER_BYTES, Answer, Fault, Request
from tidings.contract import Model

Kind = Literal["none", "header", "query", "body", "basic", "bearer", "oauth2", "hmac", "sigv4", "google"]


class Auth(Model):
    """A scheme as a manifest declares it; a subscriber's own `auth:` may say any part otherwise."""

    kind: Kind = "none"
    header: str = "Authorization"
    prefix: str = ""
    param: str = "key"  # query
    user: str | None = None  # the part before the colon, where the secret is only what comes after
    password: str | None = None  # basic: the fixed password, the secret is the user
    token_url: str = ""  # oauth2: a whole URL, or a path below the subscriber's; google: instead of the key file's
    scope: str = ""
    audience: str = ""
    credentials: Literal["body", "basic"] = "body"  # oauth2: where the client id and secret are shown
    signs: str = "{body}"  # hmac: a text of {method} {path} {query} {body} {user} {timestamp} {date}
    algorithm: Literal["sha256", "sha512", "sha1"] = "sha256"
    encoding: Literal["hex", "base64"] = "hex"
    headers: dict[str, str] = Field(default_factory=dict)  # hmac: what the receiver needs beside the digest
    region: str = ""
    service: str = ""


class Unfit(Exception):
    """A secret of another form than its scheme needs; `expected` says which, the secret is never repeated."""

    def __init__(self, expected: str) -> None:
        self.expected = expected
        super().__init__(expected)


class Asks(Protocol):
    """What a channel needs of a client: one exchange, which never raises."""

    def request(self, request: Request, timeout_s: float, cap: int = MAX_ANSWER_BYTES) -> Answer | Fault: ...


class Scheme(Protocol):
    """One way to show a secret."""

    def sign(self, request: Request, timeout_s: float) -> Request | Fault:
        """The request as it may leave, or why it cannot."""
        ...

    def renew(self, refused: Request) -> bool:
        """The vendor did not take what `refused` showed: whether it is worth showing something new once."""
        ...


class Fixed:
    """A scheme with nothing to renew."""

    def renew(self, refused: Request) -> bool:
        return False


@dataclass(frozen=True)
class Headers(Fixed):
    """The secret, or something made of it once, in a header; also the scheme that shows nothing."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def sign(self, request: Request, timeout_s: float) -> Request:
        return replace(request, headers={**request.headers, **self.headers})


@dataclass(frozen=True)
class Query(Fixed):
    """The secret as a parameter of the URL."""

    param: str
    secret: str = field(repr=False)

    def sign(self, request: Request, timeout_s: float) -> Request:
        return replace(request, url=_with_parameter(request.url, self.param, quote(self.secret, safe="")))


@dataclass(frozen=True)
class Signing:
    """A client that shows a subscriber's secret with every request, and shows it anew once when it is not taken."""

    client: Asks
    scheme: Scheme

    def request(self, request: Request, timeout_s: float, cap: int = MAX_ANSWER_BYTES) -> Answer | Fault:
        ready = self.scheme.sign(request, timeout_s)
        if isinstance(ready, Fault):
            return ready
        found = self.client.request(ready, timeout_s, cap)
        # A 401 says that nothing was done, so that asking again is no repeat.
        if isinstance(found, Answer) and found.status == 401 and self.scheme.renew(ready):
            again = self.scheme.sign(request, timeout_s)
            return again if isinstance(again, Fault) else self.client.request(again, timeout_s, cap)
        return found


def scheme_of(auth: Auth, secret: str, client: Asks, base: str) -> Scheme:
    """The scheme with its secret, which is only looked at here; raises Unfit for one of another form."""
    from tidings.channels.oauth import client_credentials, service_account
    from tidings.channels.signatures import Hmac, SigV4

    if auth.kind in ("none", "body") or not secret:
        return Headers()
    if auth.kind == "query":
        return Query(auth.param, secret)
    if auth.kind == "google":
        return service_account(auth, secret, client)
    if auth.kind == "oauth2":
        url = auth.token_url if "://" in auth.token_url else base.rstrip("/") + auth.token_url
        return client_credentials(auth, _pair(auth, secret, "client id:client secret"), client, url)
    if auth.kind == "sigv4":
        user, rest = _pair(auth, secret, "access key id:secret key")
        key, _, session = rest.partition(":")
        return SigV4(user, key, session, auth.region, auth.service)
    if auth.kind == "hmac":
        named = "{user}" in "".join((auth.signs, *auth.headers.values()))
        user, key = _pair(auth, secret, "key id:key") if named else ("", secret)
        return Hmac(auth, user, key)
    return _header(auth, secret)


def shown(auth: Auth, request: Request, name: str) -> Request:
    """The request for a person's eyes: a secret's name where its value, its token or its signature would be."""
    if auth.kind == "query":
        return replace(request, url=_with_parameter(request.url, auth.param, f"<{name}>"))
    if auth.kind in ("none", "body"):
        return request
    header, said = "Authorization", f"Bearer <{name}>"
    if auth.kind in ("oauth2", "google"):
        said = f"Bearer <a token from {auth.token_url or 'its token server'} for {name}>"
    elif auth.kind == "sigv4":
        said = f"AWS4-HMAC-SHA256 <signed for {auth.region}/{auth.service} with {name}>"
    elif auth.kind == "hmac":
        header, said = auth.header, f"{auth.prefix}<{auth.algorithm} of {auth.signs!r} with {name}>"
    elif auth.kind == "header":
        header, said = auth.header, f"{auth.prefix}<{name}>"
    elif auth.kind == "basic":
        said = f"Basic <{_halves(auth, name)}>"
    beside = auth.headers if auth.kind == "hmac" else {}
    return replace(request, headers={**request.headers, **beside, header: said})


def _with_parameter(url: str, name: str, value: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{quote(name, safe='')}={value}"


def _header(auth: Auth, secret: str) -> Headers:
    if auth.kind == "bearer":
        return Headers({"Authorization": f"Bearer {secret}"})
    if auth.kind == "header":
        return Headers({auth.header: f"{auth.prefix}{secret}"})
    return Headers({"Authorization": "Basic " + base64.b64encode(_halves(auth, secret).encode()).decode()})


def _halves(auth: Auth, secret: str) -> str:
    """User and password of a Basic header; the secret is both, or the half that the manifest does not fix."""
    if auth.user is not None:
        return f"{auth.user}:{secret}"
    return secret if auth.password is None else f"{secret}:{auth.password}"


def _pair(auth: Auth, secret: str, expected: str) -> tuple[str, str]:
    if auth.user is not None:
        return auth.user, secret
    user, colon, key = secret.partition(":")
    if not (colon and user and key):
        raise Unfit(f"`{expected}`, or `auth.user` and the rest as the secret")
    return user, key


def merged(declared: Auth, own: Any) -> Auth:
    """The manifest says how a secret is shown; the operator may say parts of it otherwise, or name another kind."""
    if own is None or declared.kind == "body":
        return declared
    given = own.model_dump(exclude_none=True, exclude={"secret"})
    return declared.model_copy(update=given) if own.kind == declared.kind else Auth.model_validate(given)
