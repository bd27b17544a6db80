"""One asynchronous implementation behind the synchronous and asynchronous methods of a framework."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from .. import sync
from ..client import Abide, wrong_event_loop
from ..errors import AbideError, BadRequestError

T = TypeVar("T")


class Bridge:
    """Runs coroutines on the event loop of a client, from any thread and any other loop."""

    def __init__(self, client: Abide | sync.Abide) -> None:
        if not isinstance(client, (Abide, sync.Abide)):
            detail = f"an adapter needs a client of Abide, not {client!r:.100}"
            raise BadRequestError(detail, code="bad_arguments", hint="pass an abide.Abide or an abide.sync.Abide")
        self.client: Abide
        """The asynchronous client."""
        self._sync = client if isinstance(client, sync.Abide) else None
        self._loop: asyncio.AbstractEventLoop | None
        if isinstance(client, sync.Abide):
            self.client, self._loop = client.asynchronous, client.loop
        else:
            self.client = client
            # An adapter that is made outside of a loop belongs to the loop that first uses it.
            self._loop = _running_loop()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for a coroutine in a thread that runs no event loop of the client.

        Raises:
            AbideError: the caller is a coroutine of the client's loop, which would wait for itself, or that loop does not run.
        """
        loop = self._loop
        if loop is None or loop is _running_loop():
            work.close()
            raise AbideError(
                "a synchronous method of an adapter needs a client with its own thread",
                code="bad_request",
                hint="use the asynchronous methods, or make the adapter with abide.sync.Abide",
            )
        if self._sync is not None:
            return self._sync._loop.run(work)
        future = _submit(work, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def arun(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits a coroutine, on the client's loop if that is another one.

        Raises:
            AbideError: the client's loop does not run.
        """
        running = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = running
        if self._loop is running:
            return await work
        if self._sync is not None:
            return await self._sync._loop.arun(work)
        return await asyncio.wrap_future(_submit(work, self._loop))

    def close(self) -> None:
        """Closes a client with its own thread."""
        if self._sync is not None:
            self._sync.close()

    @staticmethod
    def open(path: str | os.PathLike[str]) -> Bridge:
        """Returns a bridge with its own client of a database file."""
        return Bridge(sync.Abide.open(path))


def _submit(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> Future[T]:
    """Starts a coroutine on a loop of another thread. On a loop that does not run, its caller would wait for ever."""
    if loop.is_running():
        return asyncio.run_coroutine_threadsafe(work, loop)
    work.close()
    raise wrong_event_loop()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
