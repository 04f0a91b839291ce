"""A client library that speaks in coroutines, called like any other: one loop per connection, and no answer is waited for without end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from tidings.sources.streams import PATIENCE_S

T = TypeVar("T")


class Loop:
    """Runs one coroutine after the other; what the library does in between goes on while the next one runs."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=_Remembering)

    def run(self, answer: Awaitable[T], patience: float = PATIENCE_S) -> T:
        """Raises TimeoutError when there is no answer in time."""

        async def bounded() -> T:
            async with asyncio.timeout(patience):
                return await answer

        return self._runner.run(bounded())

    def close(self) -> None:
        """End every task and connection of the loop, whatever state the library left them in."""
        loop = self._runner.get_loop()
        assert isinstance(loop, _Remembering)
        for transport in loop.made:
            transport.abort()
        self._runner.run(asyncio.sleep(0))
        self._runner.close()


class _Remembering(asyncio.SelectorEventLoop):
    """Libraries forget connections that failed half-way; the loop does not."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Any] = []

    async def create_connection(self, *how: Any, **more: Any) -> Any:
        made = await super().create_connection(*how, **more)
        self.made.append(made[0])
        return made
