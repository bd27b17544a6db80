"""Writes of entries: what is written at the same time is one request and one transaction.

A framework writes the parts of a step one after the other, and many conversations write at once. The writer collects the
writes of a few turns of the event loop. Writes to one collection are in order, one call after the other: a write that comes
while a call is under way waits, and becomes a part of the next one. If a request of several writes is refused, nothing of it
was written, and each write is sent alone, so that a caller gets the error of its own write only.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from ..client import Abide, Call, Committed
from ..errors import TEMPORARY, AbideError, ConflictError, RefusedError, copy_error

MOST_PUTS = 1000
"""Entries that one call can write."""

CALL_BYTES = 6 << 20
"""Writes up to this size are one call, which may have at most 8 MiB."""

_REQUEST_BYTES = 1 << 20
_REQUEST_CALLS = 64

# Turns of the event loop for which a write waits. In a framework the end of one write leads to the next one within some turns.
_TURNS = 6

Entry: TypeAlias = dict[str, Any]


class Write:
    """A write of one caller."""

    __slots__ = ("collection_id", "deleted", "deletes", "done", "is_repeatable", "is_sent", "kind", "needs", "puts", "seq", "size")

    def __init__(
        self,
        kind: str,
        collection_id: str,
        puts: list[Entry],
        deletes: Sequence[str] = (),
        needs: Needs = (),
        is_repeatable: bool = False,
    ) -> None:
        """Makes a write.

        It is repeatable if a second attempt has the same effect, or is a conflict. Then its calls need no request id.
        """
        self.kind: str = kind
        self.collection_id: str = collection_id
        self.puts: list[Entry] = puts
        self.deletes: Sequence[str] = deletes
        self.needs: Needs = needs
        """Keys of entries that it refers to, with their versions or the writes that wrote them. If one of them does not
        exist or has been replaced, the write is a conflict."""
        self.size: int = sum(map(entry_size, puts))
        self.seq: int = 0
        """The version of its entries; 0 before it is acknowledged."""
        self.deleted: int = 0
        """Entries that it has deleted."""
        self.is_sent: bool = False
        """`True` if a request has it, so that it must not be changed."""
        self.is_repeatable: bool = is_repeatable
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def fits(self) -> bool:
        """`True` if it fits one call."""
        return self.size <= CALL_BYTES and len(self.puts) + len(self.deletes) + len(self.needs) <= MOST_PUTS

    @property
    def has_failed(self) -> bool:
        """`True` if its entries may not exist."""
        return self.done.done() and not self.seq

    def fail(self, exc: BaseException) -> None:
        """Reports an error to the caller, if it still waits."""
        if not self.done.done():
            self.done.set_exception(exc)


Needs: TypeAlias = Sequence[tuple[str, Write | int]]
"""Keys of entries, with their versions or the writes that make them."""


class Writer:
    """The writes of one client."""

    def __init__(self, client: Abide) -> None:
        self._client = client
        self._waiting: dict[str, deque[Write]] = {}
        self._busy: set[str] = set()
        self._turns_left = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, write: Write) -> None:
        """Begins a write; `write.done` is its end."""
        self._waiting.setdefault(write.collection_id, deque()).append(write)
        if write.collection_id not in self._busy:
            self._schedule()

    def _schedule(self) -> None:
        if not self._turns_left:
            self._turns_left = _TURNS
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turns_left -= 1
        if self._turns_left:
            asyncio.get_running_loop().call_soon(self._turn)
            return
        request: list[list[Write]] = []
        size = 0
        for collection_id in [name for name in self._waiting if name not in self._busy]:
            group = self._take(collection_id)
            if not group:
                continue
            bytes_of_group = sum(write.size for write in group)
            if request and (len(request) == _REQUEST_CALLS or size + bytes_of_group > _REQUEST_BYTES):
                self._send(request)
                request, size = [], 0
            request.append(group)
            size += bytes_of_group
        if request:
            self._send(request)

    def _take(self, collection_id: str) -> list[Write]:
        """Returns the next writes of a collection that fit one call."""
        waiting = self._waiting[collection_id]
        group: list[Write] = []
        count = size = 0
        while waiting:
            write = waiting[0]
            if write.done.done():
                waiting.popleft()  # Its caller has been cancelled.
                continue
            count += len(write.puts) + len(write.deletes) + len(write.needs)
            size += write.size
            # A call deletes before it puts, and does not say what it deleted for whom.
            is_alone = bool(write.deletes or (group and group[0].deletes))
            if group and (is_alone or count > MOST_PUTS or size > CALL_BYTES):
                break
            write.is_sent = True
            group.append(waiting.popleft())
        if not waiting:
            del self._waiting[collection_id]
        if group:
            self._busy.add(collection_id)
        return group

    def _send(self, request: list[list[Write]]) -> None:
        task = asyncio.get_running_loop().create_task(self._run(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, request: list[list[Write]]) -> None:
        try:
            await self._request(request)
        finally:
            self._busy.difference_update(group[0].collection_id for group in request)
            if any(group[0].collection_id in self._waiting for group in request):
                self._schedule()

    async def _request(self, request: list[list[Write]]) -> None:
        """Sends a request, and answers its writes."""
        writes = [write for group in request for write in group]
        try:
            replies = await self._call(request)
        except Exception as exc:
            # An overloaded server has been asked again until the deadline.
            if not isinstance(exc, RefusedError) or isinstance(exc, TEMPORARY) or len(writes) == 1:
                for write in writes:
                    write.fail(copy_error(exc) if isinstance(exc, AbideError) else exc)
            elif len(request) > 1:
                await asyncio.gather(*[self._request([group]) for group in request])
            else:
                for write in writes:
                    await self._request([[write]])
            return
        except BaseException:
            for write in writes:
                write.done.cancel()
            raise
        for group, reply in zip(request, replies, strict=True):
            for write in group:
                write.seq, write.deleted = reply.seq, reply["deleted"]
                write.puts, write.needs = [], ()
                if not write.done.done():
                    write.done.set_result(None)

    async def _call(self, request: list[list[Write]]) -> list[Committed[Any]]:
        calls = [Call("write_entries", _arguments(group)) for group in request]
        if all(write.is_repeatable for group in request for write in group):
            return await self._client._call_without_id(calls)
        if len(calls) == 1:
            return [await self._client.call(calls[0].reducer, calls[0].args)]
        return (await self._client.batch(calls)).value


def _arguments(group: list[Write]) -> dict[str, Any]:
    """Returns the arguments of one call for several writes.

    Raises:
        ConflictError: an entry that a write refers to was not written.
    """
    args: dict[str, Any] = {"collection_id": group[0].collection_id}
    needs: dict[str, int] = {}
    for write in group:
        for key, earlier in write.needs:
            if isinstance(earlier, int):
                needs[key] = earlier
            elif earlier.has_failed:
                raise ConflictError(f"entry {key} was not written", code="conflict")
            elif earlier not in group:
                needs[key] = earlier.seq
    puts: list[Entry] = [{"key": key, "keep": True, "expected_seq": seq} for key, seq in needs.items()]
    if not puts:
        # The kind of a new collection. One that has an entry is not new.
        args["kind"] = group[0].kind
    puts += [entry for write in group for entry in write.puts]
    if puts:
        args["puts"] = puts
    if group[0].deletes:
        args["deletes"] = list(group[0].deletes)
    return args


_ENCODER = json.JSONEncoder(ensure_ascii=False, default=lambda _: None)


def entry_size(entry: Entry) -> int:
    """Returns the size of an entry in a call, where bytes are base64."""
    data = entry.get("data")
    size = len(entry["key"]) + len(entry.get("blob") or b"") * 4 // 3
    return size + (len(_ENCODER.encode(data).encode("utf-8", "surrogatepass")) if data else 0)


def split_entries(puts: list[Entry], most: int) -> Iterable[list[Entry]]:
    """Yields parts that each fit one call, in order."""
    part: list[Entry] = []
    size = 0
    for entry in puts:
        bytes_of_entry = entry_size(entry)
        if part and (len(part) == MOST_PUTS or size + bytes_of_entry > most):
            yield part
            part, size = [], 0
        part.append(entry)
        size += bytes_of_entry
    if part:
        yield part
