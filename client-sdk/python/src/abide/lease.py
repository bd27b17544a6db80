"""Work under a lease: heartbeats while it runs, and its end when the lease is lost."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from .errors import TEMPORARY, BadRequestError, TimedOutError

Function: TypeAlias = Callable[[Any], Any]
"""A function of the caller with one argument: a coroutine function, or a plain one, which runs in a thread."""


def check_function(function: Any, what: str) -> None:
    """Refuses what cannot be called with one argument, before anything is recorded. `what` names it in the error.

    Raises:
        BadRequestError: it cannot be called in this way.
    """
    hint = "pass a function of one argument, such as a coroutine function `async def f(args)`"
    if not callable(function):
        raise BadRequestError(f"{what} is {function!r}, not a function", code="bad_arguments", hint=hint)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # A built-in function without a signature.
    try:
        signature.bind(None)
    except TypeError as exc:
        raise BadRequestError(f"{what} cannot be called with one argument: {exc}", code="bad_arguments", hint=hint) from exc


class Running:
    """A function of the caller that runs, without blocking the event loop."""

    def __init__(self, function: Function, *args: Any) -> None:
        self._in_thread = False
        self.task: asyncio.Task[Any] = asyncio.ensure_future(self._run(function, args))

    async def _run(self, function: Function, args: tuple[Any, ...]) -> Any:
        if inspect.iscoroutinefunction(function):
            return await function(*args)
        self._in_thread = True
        result = await asyncio.to_thread(_call, function, args)
        self._in_thread = False
        return await result if inspect.isawaitable(result) else result

    def cancel(self) -> None:
        """Cancels a coroutine. A function in a thread cannot be cancelled: it runs to its end."""
        if not self._in_thread:
            self.task.cancel()


def _call(function: Function, args: tuple[Any, ...]) -> Any:
    try:
        return function(*args)
    except (StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit) as exc:
        # As the outcome of a task, these would end the event loop, or would be lost.
        raise RuntimeError(f"the function raised {type(exc).__name__} {exc}".rstrip()) from exc


async def run_under_lease(work: Running, heartbeat: Callable[[], Awaitable[bool]], lease_ms: int) -> tuple[Any, bool]:
    """Waits for `work`, and calls `heartbeat` each third of the lease. Returns the result, and whether the work was cancelled.

    `heartbeat` returns `True` while the work should go on. If it raises, the lease is lost: the work is cancelled, and the
    error raised. A plain function in a thread cannot be cancelled; its result is discarded.
    """
    task = work.task
    try:
        while True:
            done, _ = await asyncio.wait([task], timeout=lease_ms / 3000)
            if done:
                return task.result(), False
            try:
                should_continue = await heartbeat()
            except (TimedOutError, *TEMPORARY):
                continue  # The lease may still hold when the server answers again.
            if not should_continue and not task.done():
                return None, True
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
