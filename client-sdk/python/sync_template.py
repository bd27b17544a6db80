# The part of `abide.sync` that is written by hand; see generate_sync.py.

"""The same API without asyncio: each method waits for its result.

```python
from abide.sync import Abide

with Abide.open("agents.db") as client:
    client.call.create_session(agent="support", id="s1")
    for row in client.sql("SELECT id, status FROM sessions"):
        print(row.id, row.status)
```

A client has one thread, which runs the asynchronous client. All methods can be called from any thread.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, TypeVar, overload

from . import client as _client
from . import session as _session
from . import subscription as _subscription
from . import supervisor as _supervisor
from . import worker as _worker
from .client import DEADLINE, AnyCall, Committed, check_no_positional
from .errors import AbideError, ClosedError
from .lease import Function
from .loop_thread import LoopThread
from .records import Result
from .session import LEASE_MS, Decision, Resolution
from .shape import Column, Plan
from .subscription import Update
from .supervisor import Handoff
from .values import Params

R = TypeVar("R")


class Calls:
    """Calls of reducers: `client.call.append_message(session_id="s1", role="user", content="Hello")`.

    `client.call("append_message", {...}, request_id=…)` is the same by name, with options.
    """

    def __init__(self, loop: LoopThread, calls: _client.Calls) -> None:
        self._loop = loop
        self._calls = calls

    def __getattr__(self, reducer: str) -> Callable[..., Committed[Any]]:
        if reducer.startswith("_"):
            raise AttributeError(reducer)

        def call(*positional: Any, **args: Any) -> Committed[Any]:
            check_no_positional(reducer, positional)
            return self(reducer, args)

        return call

    # generate: client.Calls through self._calls


class Abide:
    """A client of an Abide engine.

    Make it with `Abide.open` or `Abide.connect`, and close it, or use it in `with`. One client serves all threads.
    """

    def __init__(self, client: _client.Abide) -> None:
        self._loop = LoopThread()
        self._client = client
        try:
            self._loop.run(client.start())
        except BaseException:
            self._loop.stop()
            raise
        self.call: Calls = Calls(self._loop, client.call)
        """Calls reducers; see `Calls`."""

    def close(self) -> None:
        """Closes the connection: unanswered requests raise `ClosedError`, and subscriptions end.

        It does not wait for a tool function that runs in a thread: the function runs to its end, and its result is not
        recorded. When the lease of its call ends, the call is repeated or becomes `unknown`, as the tool's effect requires.
        At its exit, Python waits for such a thread. In a forked process `close` does nothing.
        """
        if os.getpid() != self._loop.pid:
            return
        with suppress(ClosedError):
            self._loop.run(self._client.close())
        self._loop.stop()

    def __enter__(self) -> Abide:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    @property
    def asynchronous(self) -> _client.Abide:
        """The asynchronous client; its methods run on `loop`."""
        return self._client

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the client's thread."""
        return self._loop.loop

    # generate: client.Abide through self._client


class Subscription(Generic[R]):
    """A query result and its changes. Make it with `client.subscribe(…)`.

    Iterate over it for the updates: the first is the whole result, and one follows for each commit that changes it, without
    gaps and duplicates, also across lost connections and restarts of the server.

    `rows` is always the latest state that the server has sent, whether or not the updates are read. The updates of a
    consumer that does not read them are bounded: after 1,024 it gets the whole result, marked `reset`.
    """

    def __init__(self, loop: LoopThread, subscription: _subscription.Subscription[R]) -> None:
        self._loop = loop
        self._subscription = subscription

    def __iter__(self) -> Iterator[Update[R]]:
        return self

    def __next__(self) -> Update[R]:
        update = self.next()
        if update is None:
            raise StopIteration
        return update

    def next(self, timeout: float | None = None) -> Update[R] | None:
        """Returns the next update; `None` after the end. `timeout` is in seconds.

        Raises:
            TimeoutError: there was none in time.
        """

        async def wait() -> Update[R] | None:
            try:
                return await asyncio.wait_for(anext(self._subscription, None), timeout)
            except asyncio.TimeoutError as exc:
                raise TimeoutError(f"no update within {timeout} s") from exc

        return self._loop.run(wait())

    def close(self) -> None:
        """Ends it. Does nothing if it has ended."""

        async def close() -> None:
            self._subscription.close()

        with suppress(ClosedError):
            self._loop.run(close())

    def __enter__(self) -> Subscription[R]:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    @property
    def rows(self) -> list[R]:
        """The result, in the query's order; without ORDER BY, in the order of its key."""

        # A change of the result takes several steps, so it is read in the thread that applies changes.
        async def read() -> list[R]:
            return self._subscription.rows

        return self._loop.run(read())

    # generate: subscription.Subscription through self._subscription


class Session:
    """A durable unit of an agent's work. Make it with `client.session(…)`."""

    def __init__(self, loop: LoopThread, session: _session.Session) -> None:
        self._loop = loop
        self._session = session
        self.id: str = session.id
        """The stored id."""

    # generate: session.Session through self._session


class Worker:
    """Runs tool calls. Make it with `client.worker(…)`."""

    def __init__(self, loop: LoopThread, worker: _worker.Worker) -> None:
        self._loop = loop
        self._worker = worker
        self.name: str = worker.name
        """A display name, in `tool_calls.claimed_by`."""

    # generate: worker.Worker through self._worker


class Supervisor:
    """Takes over sessions. Make it with `client.supervisor(…)`."""

    def __init__(self, loop: LoopThread, supervisor: _supervisor.Supervisor) -> None:
        self._loop = loop
        self._supervisor = supervisor

    # generate: supervisor.Supervisor through self._supervisor
