"""Workers: run the tool calls that other processes request."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .errors import TEMPORARY, AbideError, ClosedError, ConflictError, NotFoundError, RefusedError, TimedOutError
from .lease import Function, check_function
from .session import worker_name
from .tool_run import ClaimedCall, run_tool

if TYPE_CHECKING:
    from .client import Abide

_LOG = logging.getLogger("abide")

# `seq` changes if a call leaves and returns while the connection is lost.
_PENDING = "SELECT call_id, seq FROM tool_calls WHERE status = 'pending' AND retry_at IS NULL AND tool_name = :tool"
_RETRY_SECONDS = 1.0


class Worker:
    """Runs tool calls. Make it with `client.worker(…)`."""

    def __init__(self, client: Abide, name: str | None = None, *, lease_ms: int = 30_000) -> None:
        self.name: str = name or worker_name()
        """A display name, in `tool_calls.claimed_by`."""
        self._client = client
        self._lease_ms = lease_ms
        self._stopping = asyncio.Event()
        self._pending = asyncio.Event()
        self._tools: set[str] = set()
        """The tools with pending calls. A claim that names an unregistered tool is refused."""
        self._running: set[asyncio.Task[None]] = set()
        self._is_serving = False

    def stop(self) -> None:
        """Lets `serve` return: it claims no more calls, and finishes those that run."""
        self._stopping.set()
        self._pending.set()

    async def serve(self, tools: Mapping[str, Function], *, concurrency: int = 8) -> None:
        """Runs calls of these tools, `concurrency` at a time, until `stop` is called.

        A tool is a coroutine function or a plain one (which runs in a thread), and gets the arguments. Its errors are
        recorded as the outcome; `RetryableError` makes the call pending again.

        A tool goes on while the server is away or restarts. Its lease is renewed when the server is back, and its outcome is
        reported until the server answers; after `stop`, until the deadline of the client.

        Raises:
            ClosedError: the client is closed.
            RefusedError: the client may not read the calls.
        """
        for name, run in tools.items():
            check_function(run, f"the tool {name}")
        await self._client.start()
        self._is_serving = True
        slots = asyncio.Semaphore(concurrency)
        watchers = [asyncio.create_task(self._watch(tool)) for tool in tools]
        try:
            while not self._stopping.is_set():
                await self._pending.wait()
                await slots.acquire()
                if self._stopping.is_set():
                    slots.release()
                    break
                for watcher in watchers:
                    if watcher.done():
                        watcher.result()
                self._pending.clear()
                call = await self._claim(sorted(self._tools))
                if call is None:
                    slots.release()
                    continue
                self._pending.set()
                task = asyncio.create_task(self._run(call, tools[call.tool_name], slots))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
        finally:
            self._is_serving = False
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, *self._running, return_exceptions=True)

    async def _watch(self, tool: str) -> None:
        """Wakes the loop when calls of a tool are pending. It ends only with an error."""
        try:
            async with self._client.subscribe(_PENDING, {"tool": tool}) as calls:
                async for _ in calls:
                    if calls.rows:
                        self._tools.add(tool)
                        self._pending.set()
                    else:
                        self._tools.discard(tool)
            raise ClosedError
        finally:
            self._pending.set()

    async def _claim(self, tools: list[str]) -> ClaimedCall | None:
        if not tools:
            return None
        args = {"tools": tools, "lease_ms": self._lease_ms, "worker": self.name}
        request_id = str(uuid.uuid4())
        loop = asyncio.get_running_loop()
        # A claim without an answer may have taken effect, and nobody else would run the call: so it is repeated until there is
        # an answer; after `stop`, until its lease would have expired. A refusal of a later attempt does not deny that.
        is_uncertain, expires = False, loop.time() + self._lease_ms / 1000
        while self._goes_on() or (is_uncertain and loop.time() < expires):
            try:
                claim = await self._client.call("claim_next_tool_call", args, request_id=request_id, deadline=_RETRY_SECONDS)
                call = ClaimedCall.from_row(claim.value)
                return await self._checked(call, expires) if claim.duplicate else call
            except TimedOutError:
                is_uncertain = True
            except NotFoundError:
                return None
            except TEMPORARY:
                if not is_uncertain:
                    # A limit of the tool holds the calls back, or the server is about to stop. No row changes when that ends.
                    loop.call_later(_RETRY_SECONDS, self._pending.set)
                    return None
                await asyncio.sleep(_RETRY_SECONDS)
        return None

    async def _checked(self, call: ClaimedCall, expires: float) -> ClaimedCall | None:
        """Renews the lease of a claim whose answer was lost at first; `None` if the lease has expired since."""
        args = {"call_id": call.call_id, "fencing_token": call.fencing_token, "lease_ms": self._lease_ms}
        while self._goes_on() or asyncio.get_running_loop().time() < expires:
            try:
                await self._client.call("heartbeat_tool_call", args, deadline=_RETRY_SECONDS)
            except TimedOutError:
                continue
            except TEMPORARY:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            except RefusedError as exc:
                _LOG.warning("call %s of %s: %s", call.call_id, call.tool_name, exc)
                self._pending.set()
                return None
            return call
        return None

    def _goes_on(self) -> bool:
        return self._is_serving and not self._stopping.is_set()

    async def _run(self, call: ClaimedCall, run: Function, slots: asyncio.Semaphore) -> None:
        try:
            await run_tool(self._client, call, run, self._lease_ms, goes_on=self._goes_on)
        except ConflictError as exc:
            _LOG.warning("call %s of %s: %s", call.call_id, call.tool_name, exc)
        except AbideError as exc:
            _LOG.error("call %s of %s: %s", call.call_id, call.tool_name, exc)
        except Exception as exc:
            _LOG.warning("call %s of %s failed: %r", call.call_id, call.tool_name, exc)
        finally:
            slots.release()
