"""Subscriptions: a query result and its changes."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, TypeVar

from .connection import Connection
from .errors import AbideError, ClosedError, ProtocolError, TimedOutError
from .records import row_maker, row_type
from .rows import MismatchError, ResultRows
from .shape import Changes, Column, Plan, PositionedChanges, Shape
from .subscriptions import Start
from .values import Row

_LOG = logging.getLogger("abide")

R = TypeVar("R")

READ_AHEAD = 1024
"""Updates that wait for a consumer. A consumer that is further behind gets the whole result instead."""

_REPAIRS = 3


@dataclass(frozen=True, slots=True)
class Update(Generic[R]):
    """A change of a result.

    The previous result, without the deletes, with the inserts, and with rows replaced by updates of the same key, is the
    new result.
    """

    from_seq: int
    """The previous result was current up to here …"""
    seq: int
    """… and the new result is as of here."""
    inserts: list[R] = field(default_factory=list)
    updates: list[R] = field(default_factory=list)
    """New versions of rows."""
    deletes: list[Any] = field(default_factory=list)
    """Keys as named tuples; whole rows if the result has no key."""
    reset: bool = False
    """The inserts are the whole result: in the first update, and after the consumer was too far behind."""
    history_changed: bool = False
    """The server has another history: a backup was restored. Seqs of earlier updates mean nothing in it."""
    positions: PositionedChanges | None = None
    """The positions of the rows in a result with LIMIT."""


class _Feed(Generic[R]):
    """The state of a subscription, which the connection feeds. It does not refer to the `Subscription`."""

    def __init__(self, connection: Connection, into: type[R] | None, start: Start) -> None:
        self.connection = connection
        self.into = into
        self.holds_rows = start.after_seq is None
        self.shape = Shape()
        self.plan = Plan()
        self.result: ResultRows | None = None
        self.seq = start.after_seq or 0
        self.queue: deque[Update[R]] = deque()
        self.error: AbideError | None = None
        self.is_closed = False
        self.mismatches = 0
        self._mismatches_in_a_row = 0
        self._waits_for_snapshot = False
        self._history_changed = False
        self._is_behind = False
        self._has_begun = False
        self._waiters: list[asyncio.Future[None]] = []
        self._make_row = row_maker((), into)
        self._make_key = row_type(())
        self._width = 0

    # Methods for the connection.

    def on_snapshot(self, seq: int, shape: Shape, plan: Plan, rows: list[Row], checksum: int | None, history_changed: bool) -> None:
        self._waits_for_snapshot = False
        # Kept over a repair, until the update that shows the other history.
        self._history_changed |= history_changed
        if not self.holds_rows:
            self._open(shape, plan)
            self._publish(seq, _insert_all(rows, shape), reset=True)
            return
        try:
            result = ResultRows(shape, rows, checksum)
        except MismatchError as exc:
            self._repair(exc)
            return
        before, is_same = self.result, self.shape == shape
        self.result = result
        self._open(shape, plan)
        if before is not None and is_same:
            self._publish(seq, before.changes_to(result))
        else:
            self._publish(seq, _insert_all(result.rows, shape), reset=True)

    def on_delta(self, to: int, changes: Changes, checksum: int | None, opening: tuple[Shape, Plan] | None) -> None:
        if self._waits_for_snapshot:
            return
        if self.result is not None:
            try:
                if opening is not None and opening[0] != self.shape:
                    raise MismatchError("the columns of the query have changed")
                changes = self.result.apply(changes, checksum)
            except MismatchError as exc:
                self._repair(exc)
                return
        elif opening is not None:
            self._open(*opening)
        if self.result is None and changes.positioned is not None:
            at = changes.positioned
            changes = Changes([], [row for _, row in at.inserts], [row for _, row in at.updates], at)
        self._publish(to, changes)

    def on_progress(self, seq: int) -> None:
        if not self._waits_for_snapshot:
            self.seq = max(self.seq, seq)

    def on_end(self, error: AbideError) -> None:
        if self.error is None:
            self.error = error
        self._wake()

    # Methods for the subscription.

    async def wait_until_begun(self) -> None:
        """Waits for the first result."""
        while not self._has_begun and self.error is None:
            await self._wait()

    async def next(self) -> Update[R] | None:
        """Returns the next update; `None` after the end."""
        while True:
            if self._is_behind:
                self._is_behind = False
                rows = self.result.rows if self.result is not None else []
                return self._update(self.seq, self.seq, _insert_all(rows, self.shape), reset=True)
            if self.queue:
                return self.queue.popleft()
            if self.error is not None or self.is_closed:
                return None
            await self._wait()

    def rows(self) -> list[R]:
        """Returns the rows as the caller sees them."""
        return self._visible(self.result.rows) if self.result is not None else []

    def close(self) -> None:
        """Ends it."""
        if not self.is_closed:
            self.is_closed = True
            self.connection.subscriptions.remove(self)
            self._wake()

    def _open(self, shape: Shape, plan: Plan) -> None:
        self.plan = plan
        if shape != self.shape or not self._width:
            self.shape = shape
            self._width = len(shape.visible)
            self._make_row = row_maker(shape.visible, self.into)
            self._make_key = row_type(shape.key or shape.visible)

    def _publish(self, to: int, changes: Changes, *, reset: bool = False) -> None:
        self._mismatches_in_a_row = 0
        from_seq, self.seq = self.seq, to
        changed, self._history_changed = self._history_changed, False
        self._has_begun = True
        if changes or reset or changed:
            self._queue(self._update(from_seq, to, changes, reset=reset, history_changed=changed))
        self._wake()

    def _queue(self, update: Update[R]) -> None:
        if self._is_behind:
            return
        if len(self.queue) >= READ_AHEAD and self.holds_rows:
            self.queue.clear()
            self._is_behind = True
        else:
            self.queue.append(update)

    def _update(self, from_seq: int, to: int, changes: Changes, *, reset: bool, history_changed: bool = False) -> Update[R]:
        width = self._width
        return Update(
            from_seq,
            to,
            self._visible(changes.inserts),
            self._visible(changes.updates),
            [self._make_key(key if self.shape.key else key[:width]) for key in changes.deletes],
            reset,
            history_changed,
            changes.positioned,
        )

    def _visible(self, rows: list[Row]) -> list[R]:
        if len(self.shape.columns) == self._width:
            return list(map(self._make_row, rows))
        return [self._make_row(row[: self._width]) for row in rows]

    def _repair(self, exc: MismatchError) -> None:
        """Keeps the current rows, and fetches the result again: the change would make them wrong."""
        self.mismatches += 1
        self._mismatches_in_a_row += 1
        if self._mismatches_in_a_row > _REPAIRS:
            _LOG.error("a subscription repeatedly received changes that do not apply: %s", exc)
            self.connection.subscriptions.remove(self)
            self.on_end(ProtocolError(str(exc)))
            return
        _LOG.error("a change of a subscription does not apply, it starts again: %s", exc)
        self._waits_for_snapshot = True
        self.connection.subscriptions.restart(self)

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Subscription(Generic[R]):
    """A query result and its changes.

    Await it, or enter it with `async with`, to wait for the first result; then `rows` has the result. Iterate over it for
    the updates: the first is the whole result, and one follows for each commit that changes it, without gaps and
    duplicates, also across lost connections and restarts of the server.

    `rows` is always the latest state that the server has sent, whether or not the updates are read. The updates of a
    consumer that does not read them are bounded: after 1,024 it gets the whole result, marked `reset`.
    """

    def __init__(
        self,
        connection: Connection,
        query: dict[str, Any],
        start: Start,
        into: type[R] | None,
        deadline: float,
        connect: Callable[[], Awaitable[Any]],
    ) -> None:
        self._feed: _Feed[R] = _Feed(connection, into, start)
        self._connect = connect
        self._query = query
        self._start = start
        self._deadline = deadline
        self._finalizer: weakref.finalize[Any, Any] | None = None

    async def start(self) -> Subscription[R]:
        """Waits for the first result. Awaiting the subscription does the same.

        Raises:
            RefusedError: the query cannot be live.
            TimedOutError: there was no result in time.
        """
        await self._connect()
        self._begin()
        try:
            await asyncio.wait_for(self._feed.wait_until_begun(), self._deadline)
        except asyncio.TimeoutError as exc:
            self.close()
            raise TimedOutError(f"the subscription was not answered within {self._deadline:g} s") from exc
        if self._feed.error is not None and not self._feed.queue:
            raise self._feed.error
        return self

    def _begin(self) -> None:
        if self._finalizer is None:
            feed = self._feed
            feed.connection.check_open()
            feed.connection.subscriptions.add(feed, self._query, self._start)
            # A subscription that is dropped without close() ends, too. Garbage is collected in any thread.
            self._finalizer = weakref.finalize(self, _close_later, asyncio.get_running_loop(), feed)
            self._finalizer.atexit = False

    def close(self) -> None:
        """Ends it. Does nothing if it has ended."""
        if self._finalizer is not None:
            self._finalizer.detach()
        self._feed.close()

    def __await__(self) -> Generator[Any, None, Subscription[R]]:
        return self.start().__await__()

    async def __aenter__(self) -> Subscription[R]:
        return await self.start()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> AsyncIterator[Update[R]]:
        return self

    async def __anext__(self) -> Update[R]:
        if self._finalizer is None:
            await self._connect()
            self._begin()
        update = await self._feed.next()
        if update is not None:
            return update
        error = self._feed.error
        if error is None or isinstance(error, ClosedError):
            raise StopAsyncIteration
        raise error

    @property
    def rows(self) -> list[R]:
        """The result, in the query's order; without ORDER BY, in the order of its key."""
        return self._feed.rows()

    @property
    def seq(self) -> int:
        """The seq up to which all changes are applied. Keep it to resume later with `after_seq`."""
        return self._feed.seq

    @property
    def columns(self) -> list[Column]:
        """The columns of the result."""
        return [column for column in self._feed.shape.columns if not column.hidden]

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify a row; empty if there are none."""
        return self._feed.shape.key

    @property
    def plan(self) -> Plan:
        """How the server maintains it, and at what cost."""
        return self._feed.plan

    @property
    def mismatches(self) -> int:
        """How often the rows did not fit the server's changes and were fetched again."""
        return self._feed.mismatches

    @property
    def error(self) -> AbideError | None:
        """Why it has ended; `None` while it is live."""
        return self._feed.error

    def __repr__(self) -> str:
        return f"Subscription(seq={self.seq}, rows={len(self.rows)}, error={self.error!r})"


def _insert_all(rows: list[Row], shape: Shape) -> Changes:
    at = PositionedChanges([], list(enumerate(rows)), []) if shape.top_n else None
    return Changes(inserts=list(rows), positioned=at)


def _close_later(loop: asyncio.AbstractEventLoop, feed: _Feed[Any]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(feed.close)
