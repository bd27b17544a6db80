"""Work under a lease: heartbeats while it runs, and its end when the lease is lost."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from .errors import TimedOut

Function: TypeAlias = Callable[..., Any]
"""A function of the caller: a coroutine function, or a plain one, which runs in a thread."""


async def invoke(function: Function, *args: Any) -> Any:
    """Calls a function of the caller without blocking the event loop."""
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    result = await asyncio.to_thread(function, *args)
    return await result if inspect.isawaitable(result) else result


async def run_under_lease(work: Awaitable[Any], heartbeat: Callable[[], Awaitable[bool]], lease_ms: int) -> tuple[Any, bool]:
    """Runs `work`, and `heartbeat` each third of the lease. Returns the result, and whether the work was cancelled.

    `heartbeat` returns whether the work is still wanted. If it raises, the lease is lost: the work is cancelled, and the
    error raised. A plain function in a thread cannot be cancelled; its result is discarded.
    """
    task = asyncio.ensure_future(work)
    try:
        while True:
            done, _ = await asyncio.wait([task], timeout=lease_ms / 3000)
            if done:
                return task.result(), False
            try:
                is_wanted = await heartbeat()
            except TimedOut:
                continue  # The server is not reachable; the lease may still hold when it is again.
            if not is_wanted and not task.done():
                return None, True
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
