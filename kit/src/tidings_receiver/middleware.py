"""A receiver inside a web application: one path is the receiver's, everything else goes on to the application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import Any

from tidings_receiver.receiver import Answer, Receiver, Request

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
Message = MutableMapping[str, Any]
Asgi = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]
_TOO_LARGE = Answer(413, b'{"error":{"code":"too_large"}}')
_NOT_FOUND = Answer(404, b'{"error":{"code":"not_found"}}')
_NO_LENGTH = Answer(411, b'{"error":{"code":"length_required"}}')


def wsgi(receiver: Receiver, path: str = "/", app: Wsgi | None = None) -> Wsgi:
    """A WSGI application; `app` answers for other paths."""

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("PATH_INFO", "/") != path:
            if app is not None:
                return app(environ, start_response)
            return _send(_NOT_FOUND, start_response)
        headers = {
            name.removeprefix("HTTP_").replace("_", "-").lower(): value
            for name, value in environ.items()
            if name.startswith("HTTP_") or name == "CONTENT_TYPE"
        }
        length = environ.get("CONTENT_LENGTH") or ("0" if environ["REQUEST_METHOD"] == "OPTIONS" else "")
        if not length.isdigit():
            return _send(_NO_LENGTH, start_response)
        if int(length) > receiver.max_bytes:
            return _send(_TOO_LARGE, start_response)
        body = environ["wsgi.input"].read(int(length))
        query = f"?{environ['QUERY_STRING']}" if environ.get("QUERY_STRING") else ""
        request = Request(environ["REQUEST_METHOD"], _address(environ, headers, path + query), headers, body)
        return _send(receiver.answer(request), start_response)

    return application


def _address(environ: dict[str, Any], headers: dict[str, str], target: str) -> str:
    return f"{environ.get('wsgi.url_scheme', 'http')}://{headers.get('host', '')}{target}"


def _send(answer: Answer, start_response: Callable[..., Any]) -> Iterable[bytes]:
    headers = [*answer.headers.items(), ("Content-Length", str(len(answer.body)))]
    start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", headers)
    return [answer.body]


def asgi(receiver: Receiver, path: str = "/", app: Asgi | None = None) -> Asgi:
    """An ASGI application; `app` answers for other paths. The handler runs in a thread, so it may block."""

    async def application(
        scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        if scope["type"] != "http" or scope["path"] != path:
            if app is not None:
                await app(scope, receive, send)
            elif scope["type"] == "http":
                await _reply(_NOT_FOUND, send)
            return
        body = bytearray()
        while True:
            part = await receive()
            if part["type"] == "http.disconnect":
                return
            body += part.get("body", b"")
            if len(body) > receiver.max_bytes:
                await _reply(_TOO_LARGE, send)
                return
            if not part.get("more_body"):
                break
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        query = f"?{scope['query_string'].decode('latin-1')}" if scope.get("query_string") else ""
        target = f"{scope.get('scheme', 'http')}://{headers.get('host', '')}{path}{query}"
        request = Request(scope["method"], target, headers, bytes(body))
        await _reply(await asyncio.to_thread(receiver.answer, request), send)

    return application


async def _reply(answer: Answer, send: Callable[[Message], Awaitable[None]]) -> None:
    headers = [(name.lower().encode(), value.encode()) for name, value in answer.headers.items()]
    headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
