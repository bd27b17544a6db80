"""The client: calls, queries and subscriptions, over one connection."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeAlias, TypeVar, overload

from .connection import Connection
from .dial import Address, Dial, dial
from .engine import Engine
from .errors import AbideError, BadRequestError, ConnectionFailedError, ProtocolError, get_member, reading
from .http_get import get_json
from .records import Result
from .session import Session
from .subscription import Subscription
from .subscriptions import Start
from .supervisor import Supervisor
from .values import Params, decode_row, encode_params
from .worker import Worker

R = TypeVar("R")
T = TypeVar("T")

DEADLINE = 60.0
"""Seconds after which an unanswered request fails, unless the client or the request has another deadline."""


@dataclass(frozen=True, slots=True)
class Committed(Generic[T]):
    """The reply to a call."""

    seq: int
    """The call's position in the log. A duplicate has the position of the original call."""
    duplicate: bool
    """`True` if an earlier call with the same request id already took effect."""
    value: T
    """The result of the reducer."""

    def __getitem__(self, name: str) -> Any:
        """Returns a member of what the reducer returned."""
        return self.value[name]  # type: ignore[index]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a batch."""

    reducer: str
    args: Mapping[str, Any]


AnyCall: TypeAlias = Call | tuple[str, Mapping[str, Any]]


class Calls:
    """Calls of reducers: `client.call.append_message(session_id="s1", role="user", content="Hello")`.

    `client.call("append_message", {...}, request_id=…)` is the same by name, with options.
    """

    __slots__ = ("_client",)

    def __init__(self, client: Abide) -> None:
        self._client = client

    def __getattr__(self, reducer: str) -> Callable[..., Awaitable[Committed[Any]]]:
        if reducer.startswith("_"):
            raise AttributeError(reducer)

        def call(*positional: Any, **args: Any) -> Awaitable[Committed[Any]]:
            check_no_positional(reducer, positional)
            return self(reducer, args)

        return call

    async def __call__(
        self,
        reducer: str,
        args: Mapping[str, Any] | None = None,
        *,
        request_id: str | None = None,
        deadline: float | None = None,
    ) -> Committed[Any]:
        """Calls a reducer.

        The call has a request id, one for all attempts: however often the connection is lost and the call is sent again,
        it takes effect at most once. A later call with the same `request_id`, even from another process, gets the stored
        reply. `deadline` is in seconds.

        Raises:
            RefusedError: nothing was written.
            TimedOutError: there was no answer in time; a retry with its `request_id` is safe.
        """
        message = {
            "op": "call",
            "reducer": reducer,
            "args": args or {},
            "request_id": request_id or new_request_id(),
        }
        return _committed(await self._client._request(message, f"the call of {reducer}", deadline))


class Abide:
    """A client of an Abide engine.

    Make it with `Abide.open` or `Abide.connect`, and await it or enter it with `async with`. One client serves any number
    of tasks of one event loop.
    """

    def __init__(self, dial: Dial, address: Callable[[], Address | None], *, deadline: float = DEADLINE) -> None:
        self._connection = Connection(dial)
        self._address = address
        self._deadline = deadline
        self._is_started = False
        self._starting = asyncio.Lock()
        # Where it was used first.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid: int | None = None
        # What the adapters of this client share, by name.
        self._shared: dict[str, Any] = {}
        self.call: Calls = Calls(self)
        """Calls reducers; see `Calls`."""

    @staticmethod
    def open(path: str | os.PathLike[str] = "abide.db", *, binary: str | None = None, deadline: float = DEADLINE) -> Abide:
        """Returns a client of a database file, which is created if it does not exist.

        It starts the engine as a child process, or uses the one that another process has started for the same file. The
        engine ends with its last user.

        Raises:
            BadRequestError: `path` is the address of a server.
        """
        if "://" in str(path):
            detail = f"{path} is the URL of a server, not a file"
            raise BadRequestError(detail, code="bad_arguments", hint="use Abide.connect(url)")
        engine = Engine(path, binary)
        return Abide(engine, lambda: engine.address, deadline=deadline)

    @staticmethod
    def connect(
        url: str = "http://127.0.0.1:7341",
        *,
        token: str | None = None,
        scope: Mapping[str, str] | None = None,
        deadline: float = DEADLINE,
    ) -> Abide:
        """Returns a client of a server (`abide serve`).

        `scope` restricts the client to rows of this scope, in addition to the scope of its credentials.
        """
        address = Address(url, token=token, scope=scope)
        return Abide(lambda: dial(address), lambda: address, deadline=deadline)

    async def start(self) -> Abide:
        """Connects. Awaiting the client does the same, and so does its first use.

        Raises:
            ConnectionFailedError: no server answers.
            UnauthenticatedError: the server rejects the credentials.
            ClosedError: the client was closed.
        """
        self._check_home()
        if not self._is_started:
            async with self._starting:
                if not self._is_started:
                    await self._connection.start()
                    self._is_started = True
        self._connection.check_open()
        return self

    async def close(self) -> None:
        """Closes the connection: unanswered requests raise `ClosedError`, and subscriptions end.

        In a forked process it does nothing.
        """
        if self._pid in (None, os.getpid()):
            self._check_home()
            await self._connection.close()

    def _check_home(self) -> None:
        """Refuses another process or event loop than that of the first use: nothing would ever arrive there."""
        if self._pid is None:
            self._pid = os.getpid()
        check_process(self._pid)
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise wrong_event_loop()

    def __await__(self) -> Generator[Any, None, Abide]:
        return self.start().__await__()

    async def __aenter__(self) -> Abide:
        return await self.start()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def connected(self) -> bool:
        """`True` if there is a connection now. A client without one reconnects by itself."""
        return self._connection.connected

    @property
    def closed(self) -> bool:
        """`True` if the client was closed, or has ended with an error."""
        return self._connection.ended

    @property
    def reconnects(self) -> int:
        """How often the client has connected again."""
        return self._connection.reconnects

    @property
    def namespace(self) -> str | None:
        """The prefix of the stored form of each id that the caller chooses, such as `tenant=acme/`; empty without a scope.

        Calls accept ids without it; rows, answers and queries have it. `None` before the first message of the server: it is known
        after any answer.
        """
        return self._connection.namespace

    @property
    def timeline(self) -> str | None:
        """The history that the seqs of the connection belong to; it changes when another engine opens the file."""
        return self._connection.subscriptions.timeline

    async def batch(
        self, calls: Iterable[AnyCall], *, request_id: str | None = None, deadline: float | None = None
    ) -> Committed[list[Committed[Any]]]:
        """Calls several reducers in one transaction, all or nothing. See `Calls.__call__` for the options."""
        items = [_check_call(call, at) for at, call in enumerate(calls, start=1)]
        message = {
            "op": "batch",
            "calls": [{"reducer": call.reducer, "args": call.args} for call in items],
            "request_id": request_id or new_request_id(),
        }
        return _committed_batch(await self._request(message, f"the batch of {len(items)} calls", deadline), len(items))

    async def _call_without_id(self, calls: list[Call]) -> list[Committed[Any]]:
        """Executes calls in one transaction, without a request id, which takes space in the database.

        If the connection is lost, they are executed again. So they have to be of a kind whose repetition is harmless or a
        conflict.
        """
        items = [{"reducer": call.reducer, "args": call.args} for call in calls]
        if len(items) == 1:
            return [_committed(await self._request({"op": "call", **items[0]}, f"the call of {calls[0].reducer}", None))]
        return _committed_batch(
            await self._request({"op": "batch", "calls": items}, f"the batch of {len(items)} calls", None), len(items)
        ).value

    @overload
    async def sql(
        self,
        sql: str,
        params: Params | None = None,
        *,
        into: None = None,
        as_of: int | None = None,
        deadline: float | None = None,
    ) -> Result[Any]: ...
    @overload
    async def sql(
        self,
        sql: str,
        params: Params | None = None,
        *,
        into: type[R],
        as_of: int | None = None,
        deadline: float | None = None,
    ) -> Result[R]: ...
    async def sql(
        self,
        sql: str,
        params: Params | None = None,
        *,
        into: type[Any] | None = None,
        as_of: int | None = None,
        deadline: float | None = None,
    ) -> Result[Any]:
        """Runs one read-only statement.

        The rows are named tuples, or instances of `into`, which gets the columns as arguments. `as_of` reads the state
        after a seq.

        Raises:
            BadRequestError: the statement is invalid.
        """
        message: dict[str, Any] = {"op": "sql", "sql": sql}
        if params:
            message["params"] = encode_params(params)
        if as_of is not None:
            message["as_of"] = as_of
        frame = await self._request(message, "the query", deadline)
        with reading("the result of a query"):
            columns = tuple(get_member(frame, "columns", list))
            cells = [decode_row(row) for row in get_member(frame, "rows", list)]
            if not all(type(name) is str for name in columns) or any(len(row) != len(columns) for row in cells):
                raise ProtocolError("the rows of a result do not fit its columns")
            seq = get_member(frame, "seq", int)
        return Result(seq, columns, cells, into)

    @overload
    def subscribe(
        self,
        sql: str,
        params: Params | None = None,
        *,
        into: None = None,
        after_seq: int | None = None,
        as_of: int | None = None,
        checksum: bool = True,
        explain: bool = False,
    ) -> Subscription[Any]: ...
    @overload
    def subscribe(
        self,
        sql: str,
        params: Params | None = None,
        *,
        into: type[R],
        after_seq: int | None = None,
        as_of: int | None = None,
        checksum: bool = True,
        explain: bool = False,
    ) -> Subscription[R]: ...
    def subscribe(
        self,
        sql: str,
        params: Params | None = None,
        *,
        into: type[Any] | None = None,
        after_seq: int | None = None,
        as_of: int | None = None,
        checksum: bool = True,
        explain: bool = False,
    ) -> Subscription[Any]:
        """Subscribes to a query: its result and all later changes of it.

        `after_seq` is for a consumer that has processed everything up to it: it gets the changes since, and the
        subscription holds no rows. `as_of` starts with the result as of a seq. With `checksum` the rows are compared with
        the server's checksum after each change, and fetched again if they differ.
        """
        query: dict[str, Any] = {"sql": sql}
        if params:
            query["params"] = encode_params(params)
        if checksum and after_seq is None:
            query["checksum"] = True
        if explain:
            query["explain"] = True
        start = Start(after_seq, None if after_seq is not None else as_of)
        return Subscription(self._connection, query, start, into, self._deadline, self.start)

    async def explain(self, sql: str, params: Params | None = None) -> dict[str, Any]:
        """Returns how a live query would be maintained, and at what cost; see docs/protocol.md."""
        message: dict[str, Any] = {"op": "explain", "sql": sql, "params": encode_params(params)}
        frame = await self._request(message, "the explanation", None)
        return {name: value for name, value in frame.items() if name not in ("op", "id")}

    async def get(self, path: str) -> Any:
        """Returns the JSON document at a path of the server, such as `/v1/schema` or `/openapi.json`.

        Raises:
            BadRequestError: `path` is not a path of the server, such as a URL of another one.
            RefusedError: the server refuses it.
        """
        await self.start()
        address = self._address()
        if address is None:
            raise ConnectionFailedError("the client is not connected", hint="await it first")
        return await asyncio.to_thread(get_json, address, path)

    async def session(
        self,
        session_id: str | None = None,
        *,
        agent: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Session:
        """Returns the session with this id, which is created if it does not exist; without an id, a new one.

        A new session belongs to `agent` (default `agent`). `title` and `metadata` have no effect on a session that exists.

        Raises:
            ConflictError: the session belongs to another agent than `agent`.
        """
        return await Session.open(self, session_id, agent=agent, title=title, metadata=metadata)

    async def find_session(self, session_id: str) -> Session | None:
        """Returns the session with this id; `None` if there is none that the caller can see.

        A caller with a scope can give the id that it chose, or the stored id, which begins with the namespace of its scope.
        """
        return await Session.find(self, session_id)

    def worker(self, name: str | None = None, *, lease_ms: int = 30_000) -> Worker:
        """Returns a worker that runs tool calls; see `Worker.serve`."""
        return Worker(self, name, lease_ms=lease_ms)

    def supervisor(self, *, lease_ms: int = 30_000) -> Supervisor:
        """Returns a supervisor that takes over sessions; see `Supervisor.serve`."""
        return Supervisor(self, lease_ms=lease_ms)

    async def _request(self, message: dict[str, Any], what: str, deadline: float | None) -> dict[str, Any]:
        await self.start()
        return await self._connection.request(message, what, self._deadline if deadline is None else deadline)


def wrong_event_loop() -> AbideError:
    """Returns the error of a use on another event loop than the client's."""
    hint = "make a client in each event loop, or use abide.sync, whose client serves all threads"
    return AbideError("the client belongs to another event loop", code="wrong_event_loop", hint=hint)


def check_process(pid: int) -> None:
    """Refuses a process that was forked from the process `pid`, in which the client was used."""
    if pid != os.getpid():
        detail = "the client was used before a fork, in another process"
        raise AbideError(detail, code="wrong_process", hint="make a client in each process")


def check_no_positional(reducer: str, positional: tuple[Any, ...]) -> None:
    """Refuses arguments without a name."""
    if positional:
        hint = f'client.call.{reducer}(name=value), or client.call("{reducer}", {{"name": value}})'
        raise BadRequestError(f"{reducer} takes its arguments by name", code="bad_arguments", hint=hint)


def _committed(frame: dict[str, Any]) -> Committed[Any]:
    """Returns the reply to a call."""
    return Committed(get_member(frame, "seq", int), get_member(frame, "duplicate", bool), frame.get("result"))


def _committed_batch(frame: dict[str, Any], count: int) -> Committed[list[Committed[Any]]]:
    """Returns the reply to a batch of `count` calls."""
    duplicate, answers = get_member(frame, "duplicate", bool), get_member(frame, "results", list)
    if len(answers) != count:
        raise ProtocolError(f"a batch of {count} calls has {len(answers)} results")
    results = [Committed(get_member(one, "seq", int), duplicate, one.get("result")) for one in answers]
    return Committed(get_member(frame, "seq", int), duplicate, results)


def _check_call(call: Any, at: int) -> Call:
    """Returns a call of a batch, and refuses what is not one."""
    if isinstance(call, Call):
        return call
    match call:
        case (str() as reducer, Mapping() as args):
            return Call(reducer, args)
    hint = 'a call is a pair such as ("create_session", {"agent": "support"}), or abide.Call'
    raise BadRequestError(f"call {at} of the batch is not a call: {call!r:.100}", code="bad_arguments", hint=hint)


def new_request_id() -> str:
    """Returns a UUID of version 7: unique, and ordered by time."""
    random = int.from_bytes(os.urandom(10), "big")
    high = (time.time_ns() // 1_000_000) << 80
    number = high | (7 << 76) | ((random >> 68) & 0xFFF) << 64 | (2 << 62) | (random & ((1 << 62) - 1))
    return str(uuid.UUID(int=number))
