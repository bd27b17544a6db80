"""Sessions, and durable steps in your own code: a step that has run returns its recorded outcome when it is repeated.

Each step has a `key`, unique in its session. A program that crashed runs from the beginning again, and its steps return
what they returned before, without a second effect.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from .errors import Conflict, NotFound, ToolFailed, UnknownOutcome, member, reading
from .lease import Function
from .tool_run import ClaimedCall, Retryable, run_tool

if TYPE_CHECKING:
    from .client import Abide

_CALL = "SELECT status, retry_at, result, error FROM tool_calls WHERE call_id = :call_id"
_APPROVAL = (
    "SELECT c.status, c.error, a.status AS decision, a.decided_by, a.comment, a.arguments, a.approved_arguments"
    " FROM tool_calls AS c JOIN approvals AS a ON a.call_id = c.call_id WHERE c.call_id = :call_id"
)

LEASE_MS = 30_000
"""The lease of a step in milliseconds. A heartbeat extends it while the step runs."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to a request for approval."""

    approved: bool
    arguments: Any
    """The arguments as approved: those of the approver if it changed them."""
    decided_by: str | None
    comment: str | None


@dataclass(frozen=True, slots=True)
class Resolution:
    """The answer of a supervisor. `status` is `resolved`, `rejected`, `expired` or `cancelled`."""

    status: str
    text: str | None


class Session:
    """A durable unit of an agent's work. Make it with `client.session(…)`."""

    def __init__(self, client: Abide, session_id: str) -> None:
        self.client = client
        self.id = session_id
        """The stored id."""

    @staticmethod
    async def open(
        client: Abide,
        session_id: str | None,
        *,
        agent: str,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Session:
        """See `Abide.session`."""
        optional = {"id": session_id, "title": title, "metadata": metadata}
        args = {name: value for name, value in optional.items() if value is not None}
        try:
            made = await client.call.create_session(agent=agent, **args)
            return Session(client, member(made.value, "id", str))
        except Conflict:
            found = await client.sql("SELECT id FROM sessions WHERE id = :id", {"id": session_id})
            return Session(client, found.scalar() if found else str(session_id))

    async def message(
        self, role: str, content: str | None, *, key: str | None = None, kind: str | None = None, data: Any = None
    ) -> int:
        """Appends a message, and returns its number. With a `key` a repeated step appends it once."""
        args: dict[str, Any] = {"session_id": self.id, "role": role, "content": content}
        if kind is not None:
            args["kind"] = kind
        if data is not None:
            args["data"] = data
        request_id = None if key is None else self._step_id("message", key)
        return member((await self.client.call("append_message", args, request_id=request_id)).value, "id", int)

    async def messages(self) -> list[Any]:
        """The messages in order, as rows with `id`, `role`, `kind`, `content`, `data` and `created_at`."""
        sql = "SELECT id, role, kind, content, data, created_at FROM agent_state WHERE session_id = :id ORDER BY id"
        return (await self.client.sql(sql, {"id": self.id})).rows

    async def tool(
        self,
        name: str,
        args: Any = None,
        *,
        key: str,
        run: Function,
        effect: str | None = None,
        needs_approval: bool | None = None,
        lease_ms: int = LEASE_MS,
    ) -> Any:
        """Runs a tool once: `run(args)`, with the arguments that an approver may have changed.

        It requests the call, waits for an approval if one is needed, claims it, runs the function with heartbeats, and
        records its result. Repeated with the same key, it returns the recorded result. `effect` registers the tool if it
        is unknown: `read_only` and `idempotent` tools run again when their worker disappears, `at_most_once` tools do not.
        A plain function runs in a thread.

        Raises:
            UnknownOutcome: the worker of an earlier attempt disappeared, and the tool must not run twice.
            ToolFailed: an earlier attempt failed, or the call was rejected or cancelled.
            Exception: what `run` raised; the call has failed then.
        """
        call_id = self.call_id(key)
        request = {"call_id": call_id, "session_id": self.id, "tool_name": name, "arguments": args}
        if needs_approval is not None:
            request["needs_approval"] = needs_approval
        claim = {"call_id": call_id, "lease_ms": lease_ms, "worker": worker_name()}
        try:
            claimed = await self._request_and_claim(request, claim)
        except NotFound:
            if effect is None:
                raise
            await self.client.call.register_tool(name=name, effect=effect)
            claimed = await self._request_and_claim(request, claim)
        while True:
            if claimed is None:
                claimed, result = await self._claim_or_outcome(call_id, name, claim)
                if claimed is None:
                    return result
            try:
                return await run_tool(self.client, claimed, run, lease_ms)
            except Retryable:
                claimed = None  # It is pending again, or has no attempts left.

    async def approval(self, prompt: str, args: Any = None, *, key: str) -> Decision:
        """Asks a person for a decision, and waits for it. The decision is recorded under the key."""
        call_id = self.call_id(key)
        request = {
            "call_id": call_id,
            "session_id": self.id,
            "tool_name": "approval",
            "arguments": {"prompt": prompt, "args": args},
            "needs_approval": True,
        }
        try:
            await self.client.call.request_tool_call(**request)
        except NotFound:
            await self.client.call.register_tool(name="approval", effect="read_only")
            await self.client.call.request_tool_call(**request)
        row = await self._until(_APPROVAL, {"call_id": call_id}, lambda row: row.decision != "pending")
        with reading("the arguments of an approval"):
            arguments = dict(json.loads(row.approved_arguments or row.arguments))
        if row.decision != "approved":
            return Decision(False, arguments.get("args"), row.decided_by, row.comment or row.error)
        if row.status == "pending":
            await self._complete_approved(call_id)
        return Decision(True, arguments.get("args"), row.decided_by, row.comment)

    async def handoff(
        self,
        reason: str,
        capability: str,
        *,
        key: str,
        data: Any = None,
        expires_after_ms: int | None = None,
    ) -> Resolution:
        """Hands the session off to a supervisor with this capability, and waits for the answer."""
        args: dict[str, Any] = {"session_id": self.id, "reason": reason, "required_capability": capability}
        if data is not None:
            args["data"] = data
        if expires_after_ms is not None:
            args["expires_after_ms"] = expires_after_ms
        request_id = self._step_id("handoff", key)
        handoff = await self.client.call("request_supervisor_handoff", args, request_id=request_id)
        sql = "SELECT status, resolution FROM handoff_requests WHERE id = :id"
        row = await self._until(sql, {"id": member(handoff.value, "id", str)}, lambda row: row.status not in ("pending", "claimed"))
        return Resolution(row.status, row.resolution)

    async def sleep_until(self, when: datetime | float, *, key: str) -> None:
        """Waits for a time, also across restarts. `when` is a datetime with a time zone, or seconds since 1970.

        The first call with this key decides the time.
        """
        seconds = when.timestamp() if isinstance(when, datetime) else when
        timer_id = self.call_id(key)
        args = {"id": timer_id, "session_id": self.id, "due_at": int(seconds * 1_000_000)}
        try:
            timer_id = member((await self.client.call.set_timer(**args)).value, "id", str)
        except Conflict:
            found = await self.client.sql("SELECT id FROM timers WHERE id = :id", {"id": timer_id})
            if not found:
                raise
        sql = "SELECT status FROM timers WHERE id = :id"
        row = await self._until(sql, {"id": timer_id}, lambda row: row.status != "pending")
        if row.status == "cancelled":
            raise ToolFailed(timer_id, "cancelled", "the session has ended")

    async def complete(self, result: Any = None) -> None:
        """Completes the session."""
        await self.client.call.complete_session(session_id=self.id, **({} if result is None else {"result": result}))

    def call_id(self, key: str) -> str:
        """The id of the tool call, or of the timer, of a step."""
        return f"{self.id}/{key}"

    def _step_id(self, kind: str, key: str) -> str:
        return f"{kind}/{self.id}/{key}"

    async def _request_and_claim(self, request: dict[str, Any], claim: dict[str, Any]) -> ClaimedCall | None:
        """Requests a call and claims it in the same transaction; `None` if it cannot be claimed at once."""
        try:
            done = await self.client.batch([("request_tool_call", request), ("claim_tool_call", claim)])
            return ClaimedCall.of(done.value[1].value)
        except NotFound:
            raise
        except Conflict:
            # The call exists, or waits for an approval.
            await self.client.call.request_tool_call(**request)
            return None

    async def _claim_or_outcome(self, call_id: str, name: str, claim: dict[str, Any]) -> tuple[ClaimedCall | None, Any]:
        """Waits until the call can be claimed, or has ended: then returns its result."""
        async with self.client.subscribe(_CALL, {"call_id": call_id}) as call:
            async for _ in call:
                row = call.rows[0]
                if row.status == "succeeded":
                    with reading("the result of a tool call"):
                        return None, json.loads(row.result)
                if row.status == "unknown":
                    raise UnknownOutcome(call_id, name)
                if row.status in ("failed", "rejected", "cancelled"):
                    raise ToolFailed(call_id, row.status, row.error)
                if row.status == "pending" and row.retry_at is None:
                    try:
                        return ClaimedCall.of((await self.client.call.claim_tool_call(**claim)).value), None
                    except Conflict:
                        continue  # Another worker was first, or it waits; a change follows.
        raise ToolFailed(call_id, "unanswered", "the client was closed")

    async def _complete_approved(self, call_id: str) -> None:
        """Ends the call of an approval. Another process of the session may do the same."""
        try:
            claim = (await self.client.call.claim_tool_call(call_id=call_id, worker=worker_name())).value
            await self.client.call.complete_tool_call(
                call_id=call_id, fencing_token=member(claim, "fencing_token", int), result={"approved": True}
            )
        except Conflict:
            pass

    async def _until(self, sql: str, params: dict[str, Any], is_done: Function) -> Any:
        """Waits until the only row of a query satisfies a condition, and returns it."""
        async with self.client.subscribe(sql, params) as subscription:
            async for _ in subscription:
                rows = subscription.rows
                if rows and is_done(rows[0]):
                    return rows[0]
        raise ToolFailed(sql, "unanswered", "the client was closed")


def worker_name() -> str:
    """A name for one claim: of this process, and unique."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
