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
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, TypeVar, overload

from . import client as _client
from .client import DEADLINE, AnyCall, Committed, check_named, check_process
from .errors import AbideError, ClosedError
from .records import Result
from .session import Decision, Resolution
from .session import Session as _AsyncSession
from .shape import Column, Plan
from .subscription import Subscription as _AsyncSubscription
from .subscription import Update
from .supervisor import Handoff
from .supervisor import Supervisor as _AsyncSupervisor
from .values import Params
from .worker import Worker as _AsyncWorker

R = TypeVar("R")
T = TypeVar("T")

_CLOSE_SECONDS = 5.0
"""How long `close` waits for coroutines of the caller that do not end when they are cancelled."""


class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
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
        """Waits for a coroutine. An interrupt of the waiting thread cancels it."""
        future = self.submit(work)
        try:
            return future.result()
        except CancelledError as why:
            raise ClosedError from why  # By `stop`: nothing else cancels it.
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
            task = self.run(_begin(work))
        except AbideError:
            work.close()
            raise
        try:
            self.run(_ended(task))
        except AbideError:
            raise
        except BaseException:
            self.soon(task.cancel)
            try:
                self.run(_ended(task))
            except BaseException:
                self.soon(task.cancel)
            raise
        return task.result()

    def soon(self, function: Callable[[], object]) -> None:
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


async def _begin(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    return asyncio.create_task(work)


async def _ended(task: asyncio.Task[Any]) -> None:
    """Waits until a task has ended, whatever its outcome."""
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # It counts as retrieved.


class Calls:
    """Calls of reducers: `client.call.append_message(session_id="s1", role="user", content="Hello")`."""

    def __init__(self, loop: _Loop, client: _client.Abide) -> None:
        self._loop = loop
        self._client = client

    def __getattr__(self, reducer: str) -> Callable[..., Committed[Any]]:
        if reducer.startswith("_"):
            raise AttributeError(reducer)

        def call(*positional: Any, **args: Any) -> Committed[Any]:
            check_named(reducer, positional)
            return self(reducer, args)

        return call

    def __call__(
        self,
        reducer: str,
        args: Mapping[str, Any] | None = None,
        *,
        request_id: str | None = None,
        deadline: float | None = None,
    ) -> Committed[Any]:
        """Calls a reducer; see `abide.client.Calls.__call__`."""
        return self._loop.run(self._client.call(reducer, args, request_id=request_id, deadline=deadline))


class Abide:
    """A client of an Abide engine. Make it with `Abide.open` or `Abide.connect`, and close it, or use it in `with`."""

    def __init__(self, client: _client.Abide) -> None:
        self._loop = _Loop()
        self._client = client
        try:
            self._loop.run(client.start())
        except BaseException:
            self._loop.stop()
            raise
        self.call = Calls(self._loop, client)
        """Calls reducers; see `Calls`."""

    @staticmethod
    def open(path: str | os.PathLike[str] = "abide.db", *, binary: str | None = None, deadline: float = DEADLINE) -> Abide:
        """A client of a database file; see `abide.Abide.open`."""
        return Abide(_client.Abide.open(path, binary=binary, deadline=deadline))

    @staticmethod
    def connect(
        url: str = "http://127.0.0.1:7341",
        *,
        token: str | None = None,
        scope: Mapping[str, str] | None = None,
        deadline: float = DEADLINE,
    ) -> Abide:
        """A client of a server; see `abide.Abide.connect`."""
        return Abide(_client.Abide.connect(url, token=token, scope=scope, deadline=deadline))

    def close(self) -> None:
        """Closes the connection: unanswered requests raise `ClosedError`, and subscriptions end.

        In a forked process it does nothing. It does not wait for a tool function that runs in a thread: the function runs to its end, and its result is not
        recorded. When the lease of its call ends, the call is repeated or becomes `unknown`, as the tool's effect requires.
        At its exit, Python waits for such a thread.
        """
        if os.getpid() != self._loop.pid:
            return
        with suppress(ClosedError):
            self._loop.run(self._client.close())
        self._loop.stop()

    def __enter__(self) -> Abide:
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def asynchronous(self) -> _client.Abide:
        """The asynchronous client; its methods run on `loop`."""
        return self._client

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the client's thread."""
        return self._loop.loop

    @property
    def connected(self) -> bool:
        """Whether there is a connection now. A client without one reconnects by itself."""
        return self._client.connected

    @property
    def closed(self) -> bool:
        """Whether the client was closed, or has ended with an error."""
        return self._client.closed

    @property
    def reconnects(self) -> int:
        """How often the client has connected again."""
        return self._client.reconnects

    @property
    def namespace(self) -> str | None:
        """The prefix of the stored form of each id that the caller chooses; see `abide.Abide.namespace`."""
        return self._client.namespace

    @property
    def timeline(self) -> str | None:
        """The history that the seqs of the connection belong to; see `abide.Abide.timeline`."""
        return self._client.timeline

    def batch(
        self, calls: Iterable[AnyCall], *, request_id: str | None = None, deadline: float | None = None
    ) -> Committed[list[Committed[Any]]]:
        """Calls several reducers in one transaction; see `abide.Abide.batch`."""
        return self._loop.run(self._client.batch(calls, request_id=request_id, deadline=deadline))

    @overload
    def sql(
        self, sql: str, params: Params | None = None, *, as_of: int | None = None, deadline: float | None = None
    ) -> Result[Any]: ...
    @overload
    def sql(
        self,
        sql: str,
        params: Params | None = None,
        *,
        into: type[R],
        as_of: int | None = None,
        deadline: float | None = None,
    ) -> Result[R]: ...
    def sql(
        self,
        sql: str,
        params: Params | None = None,
        *,
        into: type[Any] | None = None,
        as_of: int | None = None,
        deadline: float | None = None,
    ) -> Result[Any]:
        """Runs one read-only statement; see `abide.Abide.sql`."""
        if into is None:
            return self._loop.run(self._client.sql(sql, params, as_of=as_of, deadline=deadline))
        return self._loop.run(self._client.sql(sql, params, into=into, as_of=as_of, deadline=deadline))

    def subscribe(
        self,
        sql: str,
        params: Params | None = None,
        *,
        after_seq: int | None = None,
        as_of: int | None = None,
        checksum: bool = True,
        explain: bool = False,
        into: type[Any] | None = None,
    ) -> Subscription[Any]:
        """Subscribes to a query, and waits for its first result; see `abide.Abide.subscribe`."""

        async def start() -> _AsyncSubscription[Any]:
            options: dict[str, Any] = {"after_seq": after_seq, "as_of": as_of, "checksum": checksum, "explain": explain}
            if into is not None:
                options["into"] = into
            return await self._client.subscribe(sql, params, **options)

        return Subscription(self._loop, self._loop.run(start()))

    def explain(self, sql: str, params: Params | None = None) -> dict[str, Any]:
        """How a live query would be maintained, and at what cost; see `abide.Abide.explain`."""
        return self._loop.run(self._client.explain(sql, params))

    def get(self, path: str) -> Any:
        """The JSON document at a path of the server; see `abide.Abide.get`."""
        return self._loop.run(self._client.get(path))

    def session(
        self,
        session_id: str | None = None,
        *,
        agent: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Session:
        """The session with this id; see `abide.Abide.session`."""
        made = self._client.session(session_id, agent=agent, title=title, metadata=metadata)
        return Session(self._loop, self._loop.run(made))

    def find_session(self, session_id: str) -> Session | None:
        """The session with this id; see `abide.Abide.find_session`."""
        found = self._loop.run(self._client.find_session(session_id))
        return None if found is None else Session(self._loop, found)

    def worker(self, name: str | None = None, *, lease_ms: int = 30_000) -> Worker:
        """A worker that runs tool calls; see `Worker.serve`."""
        return Worker(self._loop, self._client.worker(name, lease_ms=lease_ms))

    def supervisor(self, *, lease_ms: int = 30_000) -> Supervisor:
        """A supervisor that takes over sessions; see `Supervisor.serve`."""
        return Supervisor(self._loop, self._client.supervisor(lease_ms=lease_ms))


class Subscription(Generic[R]):
    """A query result and its changes. Iterate over it for the updates; see `abide.Subscription`."""

    def __init__(self, loop: _Loop, subscription: _AsyncSubscription[R]) -> None:
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
        """The next update; `None` after the end.

        Raises:
            TimeoutError: there was none within `timeout` seconds.
        """

        async def wait() -> Update[R] | None:
            try:
                return await asyncio.wait_for(anext(self._subscription, None), timeout)
            except asyncio.TimeoutError as why:
                raise TimeoutError(f"no update within {timeout} s") from why

        return self._loop.run(wait())

    def close(self) -> None:
        """Ends it."""

        async def close() -> None:
            self._subscription.close()

        with suppress(ClosedError):
            self._loop.run(close())

    def __enter__(self) -> Subscription[R]:
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def rows(self) -> list[R]:
        """The result, in the query's order."""

        async def read() -> list[R]:
            return self._subscription.rows

        return self._loop.run(read())

    @property
    def seq(self) -> int:
        """The seq up to which all changes are applied."""
        return self._subscription.seq

    @property
    def columns(self) -> list[Column]:
        """The columns of the result."""
        return self._subscription.columns

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify a row; empty if there are none."""
        return self._subscription.key

    @property
    def plan(self) -> Plan:
        """How the server maintains it, and at what cost."""
        return self._subscription.plan

    @property
    def mismatches(self) -> int:
        """How often the rows did not fit the server's changes and were fetched again."""
        return self._subscription.mismatches

    @property
    def error(self) -> AbideError | None:
        """Why it has ended; `None` while it is live."""
        return self._subscription.error


class Session:
    """A durable unit of an agent's work; see `abide.Session`."""

    def __init__(self, loop: _Loop, session: _AsyncSession) -> None:
        self._loop = loop
        self._session = session
        self.id = session.id
        """The stored id."""

    def message(self, role: str, content: str | None, *, key: str | None = None, kind: str | None = None, data: Any = None) -> int:
        """Appends a message; see `abide.Session.message`."""
        return self._loop.run(self._session.message(role, content, key=key, kind=kind, data=data))

    def messages(self) -> list[Any]:
        """The messages in order; see `abide.Session.messages`."""
        return self._loop.run(self._session.messages())

    def tool(
        self,
        name: str,
        args: Any = None,
        *,
        key: str,
        run: Callable[[Any], Any],
        effect: str | None = None,
        needs_approval: bool | None = None,
        lease_ms: int = 30_000,
    ) -> Any:
        """Runs a tool once, in a thread; see `abide.Session.tool`.

        Ctrl-C while the tool runs raises `KeyboardInterrupt` when the tool has ended and its outcome is recorded. A second Ctrl-C
        does not wait for the tool: its outcome is not recorded.
        """
        step = self._session.tool(name, args, key=key, run=run, effect=effect, needs_approval=needs_approval, lease_ms=lease_ms)
        return self._loop.run_to_end(step)

    def approval(self, prompt: str, args: Any = None, *, key: str) -> Decision:
        """Asks a person for a decision; see `abide.Session.approval`."""
        return self._loop.run(self._session.approval(prompt, args, key=key))

    def handoff(
        self, reason: str, capability: str, *, key: str, data: Any = None, expires_after_ms: int | None = None
    ) -> Resolution:
        """Hands the session off to a supervisor; see `abide.Session.handoff`."""
        step = self._session.handoff(reason, capability, key=key, data=data, expires_after_ms=expires_after_ms)
        return self._loop.run(step)

    def sleep_until(self, when: Any, *, key: str) -> None:
        """Waits for a time; see `abide.Session.sleep_until`."""
        self._loop.run(self._session.sleep_until(when, key=key))

    def complete(self, result: Any = None) -> None:
        """Completes the session."""
        self._loop.run(self._session.complete(result))

    def call_id(self, key: str) -> str:
        """The id of the tool call, or of the timer, of a step; see `abide.Session.call_id`."""
        return self._session.call_id(key)


class Worker:
    """Runs tool calls; see `abide.Worker`. Make it with `client.worker(…)`."""

    def __init__(self, loop: _Loop, worker: _AsyncWorker) -> None:
        self._loop = loop
        self._worker = worker
        self.name = worker.name
        """A display name, in `tool_calls.claimed_by`."""

    def stop(self) -> None:
        """Lets `serve` return, from any thread: it claims no more calls, and finishes those that run."""
        self._loop.soon(self._worker.stop)

    def serve(self, tools: Mapping[str, Callable[[Any], Any]], *, concurrency: int = 8) -> None:
        """Runs calls of these tools, each in a thread, until `stop` is called; see `abide.Worker.serve`.

        Ctrl-C raises `KeyboardInterrupt` when the tools that run have ended. A second Ctrl-C does not wait for them.
        """
        self._loop.run_to_end(self._worker.serve(tools, concurrency=concurrency))


class Supervisor:
    """Takes over sessions; see `abide.Supervisor`. Make it with `client.supervisor(…)`."""

    def __init__(self, loop: _Loop, supervisor: _AsyncSupervisor) -> None:
        self._loop = loop
        self._supervisor = supervisor

    def stop(self) -> None:
        """Lets `serve` return, from any thread, after the handoffs that it works on."""
        self._loop.soon(self._supervisor.stop)

    def serve(self, capability: str, run: Callable[[Handoff], Any], *, concurrency: int = 8) -> None:
        """Claims handoffs that require this capability, until `stop` is called; see `abide.Supervisor.serve`."""
        self._loop.run_to_end(self._supervisor.serve(capability, run, concurrency=concurrency))
