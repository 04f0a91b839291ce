"""The body of a request: whole, not larger than we take and not slower than we wait."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from tidings.api.errors import ApiError

BODY_BYTES = 262_144
BODY_S = 10.0
DRAIN_BYTES = 4_194_304  # read and dropped, so that whoever sent too much still hears why


async def body_of(request: Request, most: int = BODY_BYTES) -> bytes:
    """The whole body, not larger than we take and not slower than we wait."""
    body, came = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                came += len(part)
                if came > max(DRAIN_BYTES, most):
                    break
                body += part if came <= most else b""
    except (TimeoutError, ClientDisconnect):
        raise ApiError("too_slow") from None
    if came > most:
        raise ApiError("too_large")
    return bytes(body)
