"""An event loop in its own thread, on which synchronous callers run coroutines."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, TypeVar

from .client import check_process
from .errors import AbideError, ClosedError

T = TypeVar("T")

_CLOSE_SECONDS = 5.0
"""How long `close` waits for coroutines of the caller that do not end when they are cancelled."""


class LoopThread:
    """An event loop in its own thread, with the coroutines of one client."""

    def __init__(self) -> None:
        self.pid: int = os.getpid()
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self._executor = ThreadPoolExecutor(thread_name_prefix="abide")
        self.loop.set_default_executor(self._executor)
        self._lock = threading.Lock()
        self._is_stopped = False
        self._thread = threading.Thread(target=self.loop.run_forever, name="abide", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts a coroutine.

        Raises:
            ClosedError: the client is closed.
            AbideError: the process was forked after the client was made.
        """
        try:
            check_process(self.pid)
            with self._lock:
                if self._is_stopped:
                    raise ClosedError
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        except AbideError:
            work.close()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Waits for a coroutine, and returns its result. An interrupt of the waiting thread cancels it."""
        future = self.submit(work)
        try:
            return future.result()
        except CancelledError as exc:
            raise ClosedError from exc  # By `stop`: nothing else cancels it.
        except BaseException:
            future.cancel()
            raise

    async def arun(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits a coroutine from another event loop. If the waiter is cancelled, so is the coroutine."""
        wrapped = asyncio.wrap_future(self.submit(work))
        try:
            await asyncio.wait([wrapped])
        except asyncio.CancelledError:
            wrapped.cancel()
            raise
        if wrapped.cancelled():
            raise ClosedError  # By `stop`.
        return wrapped.result()

    def run_to_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Like `run`, but after an interrupt it waits until the cancelled coroutine has ended: it records what a tool has done.

        A second interrupt waits for nothing.
        """
        try:
            task = self.run(_create_task(work))
        except AbideError:
            work.close()
            raise
        try:
            self.run(_wait_for(task))
        except AbideError:
            raise
        except BaseException:
            self.call_soon(task.cancel)
            try:
                self.run(_wait_for(task))
            except BaseException:
                self.call_soon(task.cancel)
            raise
        return task.result()

    def call_soon(self, function: Callable[[], object]) -> None:
        """Calls a function in the thread of the loop. It does nothing after `stop`, and in a forked process."""
        if os.getpid() != self.pid:
            return
        with self._lock:
            if not self._is_stopped:
                self.loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        """Cancels what runs, and ends the thread. Functions of the caller that run in threads are not waited for."""
        with self._lock:
            if self._is_stopped:
                return
            self._is_stopped = True
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self._executor.shutdown(wait=False, cancel_futures=True)
        self.loop.close()

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)


async def _create_task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Starts a coroutine as a task of the running loop."""
    return asyncio.create_task(work)


async def _wait_for(task: asyncio.Task[Any]) -> None:
    """Waits until a task has ended, whatever its outcome."""
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # Otherwise asyncio logs that nobody has retrieved it.
