"""One attempt at a claimed tool call: run the function, and record the outcome."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import TEMPORARY, AbideError, BadRequestError, LimitExceededError, TimedOutError, ToolFailedError, reading
from .lease import Function, Running, run_under_lease
from .values import encode_message

if TYPE_CHECKING:
    from .client import Abide

_LOG = logging.getLogger("abide")

_ERROR_CHARACTERS = 16_384
"""The longest error that is recorded."""

_EFFECT = (
    "SELECT json_extract(v.manifest, '$.effect') FROM tool_calls AS c"
    " JOIN tool_versions AS v ON v.name = c.tool_name AND v.version = c.tool_version WHERE c.call_id = :call_id"
)

_PAUSE_SECONDS = 1.0
"""A pause before an outcome is reported again. A limit that asks for a longer pause refuses at once."""

_RELEASE_SECONDS = 5.0
"""How long a cancelled step waits for the release of its lease."""


class RetryableError(Exception):
    """Raise it from a tool: the call failed, has had no effect, and can be tried again."""


Retryable = RetryableError
"""The former name of `RetryableError`."""


@dataclass(frozen=True, slots=True)
class ClaimedCall:
    """A call that this process has claimed."""

    call_id: str
    tool_name: str
    arguments: Any
    fencing_token: int

    @staticmethod
    def from_row(row: dict[str, Any]) -> ClaimedCall:
        """Returns the call in the answer of a claim."""
        with reading("the answer to a claim"):
            return ClaimedCall(row["call_id"], row["tool_name"], json.loads(row["arguments"]), row["fencing_token"])


class Recording:
    """Records the outcome of a call.

    `goes_on` returns whether to try again after the deadline of the client: nobody else can report what a tool has done.
    """

    def __init__(self, client: Abide, call: ClaimedCall, goes_on: Callable[[], bool]) -> None:
        self._client = client
        self._holder = {"call_id": call.call_id, "fencing_token": call.fencing_token}
        self._goes_on = goes_on

    def hurry(self) -> None:
        """Tries no longer than until the next deadline."""
        self._goes_on = _never

    async def __call__(self, reducer: str, **outcome: Any) -> None:
        """Calls a reducer with the outcome. All attempts are the same request, so it has at most one effect."""
        args = {**self._holder, **outcome}
        request_id = str(uuid.uuid4())
        while True:
            try:
                await self._client.call(reducer, args, request_id=request_id)
            except (TimedOutError, *TEMPORARY) as exc:
                if not self._goes_on():
                    raise
                _LOG.warning("the outcome of call %s is not recorded yet; trying again: %s", self._holder["call_id"], exc)
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                return


def _never() -> bool:
    return False


async def run_tool(client: Abide, call: ClaimedCall, run: Function, lease_ms: int, *, goes_on: Callable[[], bool] = _never) -> Any:
    """Runs the function once, with heartbeats, and records its result or its error.

    `goes_on` returns whether to try on to record the outcome when the deadline of the client has passed without an answer.

    If the caller is cancelled, a coroutine function is cancelled and the lease is released, if the tool may run twice. A plain
    function in a thread runs to its end: its outcome is recorded before the cancellation continues. A second cancellation
    waits for nothing.

    Raises:
        LeaseLostError: another worker has the call now; the result is kept for a settlement.
        ToolFailedError: the call was cancelled, or the tool ran and its result cannot be stored.
        Exception: what the function raised.
    """
    work = Running(run, call.arguments)
    record = Recording(client, call, goes_on)
    attempt = asyncio.ensure_future(_attempt(client, call, work, lease_ms, record))
    try:
        return await asyncio.shield(attempt)
    except asyncio.CancelledError:
        record.hurry()
        if client.closed:
            attempt.cancel()
        else:
            work.cancel()
        try:
            await asyncio.wait([attempt])
        except asyncio.CancelledError:
            attempt.cancel()
            raise
        exc = None if attempt.cancelled() else attempt.exception()
        if exc is not None:
            _LOG.warning("call %s of %s was cancelled and has failed: %r", call.call_id, call.tool_name, exc)
        raise


async def _attempt(client: Abide, call: ClaimedCall, work: Running, lease_ms: int, record: Recording) -> Any:
    holder = {"call_id": call.call_id, "fencing_token": call.fencing_token}

    async def heartbeat() -> bool:
        row = await client.call("heartbeat_tool_call", {**holder, "lease_ms": lease_ms}, deadline=lease_ms / 1000)
        with reading("the answer to a heartbeat"):
            return row["cancel_requested_at"] is None

    try:
        result, is_cancelled = await run_under_lease(work, heartbeat, lease_ms)
    except asyncio.CancelledError:
        if work.task.cancelled() and not client.closed:
            with suppress(AbideError):
                await _release(client, call, holder)
        raise
    except RetryableError as exc:
        await record("fail_tool_call", error=_error_text(exc) or "the tool asks for a retry", retryable=True)
        raise
    except Exception as exc:
        await record("fail_tool_call", error=f"{type(exc).__name__}: {_error_text(exc)}")
        raise
    if is_cancelled:
        await record("acknowledge_cancel")
        raise ToolFailedError(call.call_id, "cancelled", "the call was cancelled while it ran")
    await _complete(call, record, result)
    return result


async def _complete(call: ClaimedCall, record: Recording, result: Any) -> None:
    """Records a result; if it cannot be stored, a failure that says that the tool ran."""
    try:
        encode_message({"result": result}, "the result")
        await record("complete_tool_call", result=result)
    except (BadRequestError, LimitExceededError) as exc:
        reason = exc.detail.removeprefix("the result: ").removeprefix("the call of complete_tool_call: ")
        error = _sanitize(f"the tool ran, but its result cannot be stored: {reason}")
        await record("fail_tool_call", error=error)
        raise ToolFailedError(call.call_id, "failed", error) from exc


async def _release(client: Abide, call: ClaimedCall, holder: dict[str, Any]) -> None:
    """Makes a cancelled call pending again, if its tool may run twice. Otherwise the end of the lease makes it unknown."""
    found = await client.sql(_EFFECT, {"call_id": call.call_id}, deadline=_RELEASE_SECONDS)
    if found and found.cells[0][0] in ("idempotent", "read_only"):
        failure = {**holder, "error": "the step was cancelled while the tool ran", "retryable": True}
        await client.call("fail_tool_call", failure, deadline=_RELEASE_SECONDS)


def _error_text(exc: Exception) -> str:
    try:
        return _sanitize(str(exc))
    except Exception as broken:
        return f"the error has no text: {type(broken).__name__}"


def _sanitize(text: str) -> str:
    """Escapes lone surrogates in a text, and shortens it."""
    cut = text if len(text) <= _ERROR_CHARACTERS else text[:_ERROR_CHARACTERS] + "…"
    return cut.encode("utf-8", "backslashreplace").decode()
