"""One attempt at a claimed tool call: run the function, and record the outcome."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import ToolFailed, reading
from .lease import Function, invoke, run_under_lease

if TYPE_CHECKING:
    from .client import Abide


class Retryable(Exception):
    """Raise it from a tool: the call failed, has had no effect, and can be tried again."""


@dataclass(frozen=True, slots=True)
class ClaimedCall:
    """A call that this process has claimed."""

    call_id: str
    tool_name: str
    arguments: Any
    fencing_token: int

    @staticmethod
    def of(row: dict[str, Any]) -> ClaimedCall:
        """The call in the answer of a claim."""
        with reading("the answer to a claim"):
            return ClaimedCall(row["call_id"], row["tool_name"], json.loads(row["arguments"]), row["fencing_token"])


async def run_tool(client: Abide, call: ClaimedCall, run: Function, lease_ms: int) -> Any:
    """Runs the function once, with heartbeats, and records its result or its error.

    Raises:
        LeaseLost: another worker has the call now; the result is kept for a settlement.
        ToolFailed: the call was cancelled.
        Exception: what the function raised.
    """
    holder = {"call_id": call.call_id, "fencing_token": call.fencing_token}

    async def heartbeat() -> bool:
        row = await client.call("heartbeat_tool_call", {**holder, "lease_ms": lease_ms}, deadline=lease_ms / 1000)
        with reading("the answer to a heartbeat"):
            return row["cancel_requested_at"] is None

    try:
        result, is_cancelled = await run_under_lease(invoke(run, call.arguments), heartbeat, lease_ms)
    except Retryable as why:
        await client.call.fail_tool_call(**holder, error=str(why) or "the tool asks for a retry", retryable=True)
        raise
    except Exception as why:
        await client.call.fail_tool_call(**holder, error=f"{type(why).__name__}: {why}")
        raise
    if is_cancelled:
        await client.call.acknowledge_cancel(**holder)
        raise ToolFailed(call.call_id, "cancelled", "the call was cancelled while it ran")
    await client.call.complete_tool_call(**holder, result=result)
    return result
