"""Supervisors: take over the sessions that agents hand off."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import AbideError, ClosedError, ConflictError, reading
from .lease import Function, Running, check_function, run_under_lease
from .tool_run import Recording

if TYPE_CHECKING:
    from .client import Abide

_LOG = logging.getLogger("abide")

_PENDING = (
    "SELECT id, created_at FROM handoff_requests WHERE status = 'pending' AND required_capability = :capability ORDER BY created_at"
)


class RejectedError(Exception):
    """Raise it from a supervisor's function to reject the handoff. The text is the reason."""


Rejected = RejectedError
"""The former name of `RejectedError`."""


@dataclass(frozen=True, slots=True)
class Handoff:
    """A session that was handed off."""

    id: str
    session_id: str
    reason: str
    data: Any


class Supervisor:
    """Takes over sessions. Make it with `client.supervisor(…)`."""

    def __init__(self, client: Abide, *, lease_ms: int = 30_000) -> None:
        self._client = client
        self._lease_ms = lease_ms
        self._stopping = asyncio.Event()
        self._failed: set[str] = set()
        """Handoffs that this supervisor released after an error. It leaves them to others."""

    def stop(self) -> None:
        """Lets `serve` return after the handoffs that it works on."""
        self._stopping.set()

    async def serve(self, capability: str, run: Callable[[Handoff], Any], *, concurrency: int = 8) -> None:
        """Claims handoffs that require this capability, until `stop` is called.

        `run(handoff)` returns the resolution, a text that becomes a message of the session. It raises `RejectedError` to reject
        the handoff; after any other error the handoff is released to other supervisors. The answer is reported until the
        server responds; after `stop`, until the deadline of the client.

        Raises:
            ClosedError: the client is closed.
        """
        check_function(run, "the function of a supervisor")
        running: set[asyncio.Task[None]] = set()
        tried: set[str] = set()
        is_serving = True

        def goes_on() -> bool:
            return is_serving and not self._stopping.is_set()

        async with self._client.subscribe(_PENDING, {"capability": capability}) as handoffs:
            stopping = asyncio.create_task(self._stopping.wait())
            changed = asyncio.ensure_future(handoffs.__anext__())
            try:
                while not self._stopping.is_set():
                    pending = {row.id for row in handoffs.rows}
                    tried &= pending
                    for handoff_id in pending - tried - self._failed if len(running) < concurrency else ():
                        if len(running) == concurrency:
                            break
                        tried.add(handoff_id)
                        running.add(asyncio.create_task(self._take(handoff_id, run, goes_on)))
                    done, _ = await asyncio.wait({stopping, changed, *running}, return_when=asyncio.FIRST_COMPLETED)
                    running -= done
                    if changed in done:
                        changed.result()
                        changed = asyncio.ensure_future(handoffs.__anext__())
            except StopAsyncIteration:
                if not self._stopping.is_set():
                    raise ClosedError from None
            finally:
                is_serving = False
                stopping.cancel()
                changed.cancel()
                await asyncio.gather(stopping, changed, *running, return_exceptions=True)

    async def _take(self, handoff_id: str, run: Function, goes_on: Callable[[], bool]) -> None:
        try:
            row = (await self._client.call.claim_handoff(id=handoff_id, lease_ms=self._lease_ms)).value
        except ConflictError:
            return  # Another supervisor was first.
        except AbideError as exc:
            _LOG.error("handoff %s cannot be claimed: %s", handoff_id, exc)
            return
        try:
            with reading("the answer to a claim"):
                data = None if row["data"] is None else json.loads(row["data"])
                handoff = Handoff(row["id"], row["session_id"], row["reason"], data)
                holder = {"id": handoff.id, "fencing_token": row["fencing_token"]}
        except AbideError as exc:
            _LOG.error("handoff %s: %s", handoff_id, exc)
            return

        record = Recording(self._client, f"handoff {handoff.id}", holder, goes_on)

        async def heartbeat() -> bool:
            args = {**holder, "lease_ms": self._lease_ms}
            await self._client.call("heartbeat_handoff", args, deadline=self._lease_ms / 1000)
            return True

        try:
            try:
                text, _ = await run_under_lease(Running(run, handoff), heartbeat, self._lease_ms)
                if text is None:
                    raise TypeError("the function returned None, not the text of the resolution")
            except RejectedError as exc:
                await record("reject_handoff", reason=str(exc) or "rejected")
            except AbideError:
                raise
            except Exception as exc:
                _LOG.warning("the supervisor of handoff %s failed: %r", handoff.id, exc)
                self._failed.add(handoff.id)
                await record("release_handoff")
            else:
                await record("resolve_handoff", resolution=str(text))
        except AbideError as exc:
            _LOG.error("handoff %s: %s", handoff.id, exc)
