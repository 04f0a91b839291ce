"""Schemes that trade a secret for a token: OAuth 2.0 client credentials (RFC 6749) and Google service accounts (RFC 7523).

A token is kept in memory until shortly before it runs out, and fetched anew once when the vendor does not take it. It is fetched
through the same guarded client as everything else. A token server that says no shuts the door: deliveries wait, none is lost.
What breaks it: a token server whose tokens die before `expires_in` says so, with a vendor that does not answer 401 then.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

from tidings.channels.auth import Asks, Auth, Unfit
from tidings.channels.client import Answer, Fault, Request

FETCH_S = 15.0
DEFAULT_LIFE_S, LONGEST_LIFE_S, EARLY_S = 300.0, 86_400.0, 60.0
_TOKEN = re.compile(r"[\x21-\x7e]{1,16384}")
_FORM = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_ASSERTION_S = 3600


class Tokens:
    """Bearer tokens, given out to who asks with `ask()`. One thread fetches; the others wait for it."""

    def __init__(self, client: Asks, ask: Callable[[], Request], clock: Callable[[], float]) -> None:
        self._client, self._ask, self._clock = client, ask, clock
        self._text, self._until, self._lock = "", 0.0, threading.Lock()

    def sign(self, request: Request, timeout_s: float) -> Request | Fault:
        with self._lock:
            if not self._text or self._clock() >= self._until:
                fault = self._fetch(min(timeout_s, FETCH_S))
                if fault:
                    return fault
            return replace(request, headers={**request.headers, "Authorization": f"Bearer {self._text}"})

    def renew(self, refused: Request) -> bool:
        with self._lock:
            # Another thread may have fetched a newer one in the meantime; that one is not thrown away.
            if refused.headers.get("Authorization") == f"Bearer {self._text}":
                self._text = ""
        return True

    def _fetch(self, timeout_s: float) -> Fault | None:
        found = self._client.request(self._ask(), timeout_s)
        if isinstance(found, Fault):
            if found.kind == "refused":
                return found
            return Fault("not_sent", f"token_{found.code}", "the token server could not be asked")
        if found.status in (400, 401, 403):
            return Fault("shut", "token_refused", "the token server did not take the credentials")
        text, life = _token(found)
        if not text:
            return Fault("not_sent", "token_unreadable", f"the token server answered {found.status} without a token")
        self._text, self._until = text, self._clock() + life - min(EARLY_S, life / 10)
        return None


def _token(answer: Answer) -> tuple[str, float]:
    """The token and the seconds it lives; no token when the answer is not one."""
    try:
        said: Any = json.loads(answer.body) if answer.status == 200 and not answer.cut else None
    except (ValueError, RecursionError):
        said = None
    text = said.get("access_token") if isinstance(said, Mapping) else None
    if not isinstance(text, str) or not _TOKEN.fullmatch(text):
        return "", 0.0
    life = said.get("expires_in")
    told = isinstance(life, (int, float)) and not isinstance(life, bool) and life > 0
    return text, min(float(life), LONGEST_LIFE_S) if told else DEFAULT_LIFE_S


def client_credentials(
    auth: Auth, pair: tuple[str, str], client: Asks, url: str, clock: Callable[[], float] = time.time
) -> Tokens:
    """The client-credentials grant; id and secret go in the form or as Basic, as the manifest says."""
    user, key = pair

    def ask() -> Request:
        form = {"grant_type": "client_credentials", "scope": auth.scope, "audience": auth.audience}
        headers = dict(_FORM)
        if auth.credentials == "basic":
            shown = f"{quote(user, safe='')}:{quote(key, safe='')}"
            headers["Authorization"] = "Basic " + base64.b64encode(shown.encode()).decode()
        else:
            form |= {"client_id": user, "client_secret": key}
        return Request("POST", url, headers, urlencode({name: text for name, text in form.items() if text}).encode())

    return Tokens(client, ask, clock)


def service_account(auth: Auth, secret: str, client: Asks, clock: Callable[[], float] = time.time) -> Tokens:
    """A Google service account: its key signs an assertion (RS256), which the token server trades for a token."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        said = json.loads(secret)
        key = load_pem_private_key(said["private_key"].encode(), None)
        account, url = str(said["client_email"]), auth.token_url or str(said["token_uri"])
        head = {"alg": "RS256", "typ": "JWT", "kid": str(said.get("private_key_id", ""))}
    except (ValueError, KeyError, TypeError, AttributeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, RSAPrivateKey):
        raise Unfit("a service account's key file: JSON with client_email, private_key (RSA) and token_uri")
    signer = key

    def ask() -> Request:
        now = int(clock())
        claims = {"iss": account, "scope": auth.scope, "aud": url, "iat": now, "exp": now + _ASSERTION_S}
        text = f"{_part(head)}.{_part(claims)}"
        assertion = f"{text}.{_base64(signer.sign(text.encode(), PKCS1v15(), SHA256()))}"
        return Request("POST", url, _FORM, urlencode({"grant_type": _GRANT, "assertion": assertion}).encode())

    return Tokens(client, ask, clock)


def _part(value: Mapping[str, Any]) -> str:
    return _base64(json.dumps(value, separators=(",", ":")).encode())


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
