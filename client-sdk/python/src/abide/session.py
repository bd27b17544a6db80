"""Sessions, and durable steps in your own code: a step that has run returns its recorded outcome when it is repeated.

Each step has a `key`, unique in its session. A program that crashed runs from the beginning again, and its steps return
what they returned before, without a second effect.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from .errors import (
    BadRequestError,
    ClosedError,
    ConflictError,
    NotFoundError,
    ToolFailedError,
    UnknownOutcomeError,
    get_member,
    reading,
)
from .lease import Function, check_function
from .namespace import find_stored_id
from .tool_run import ClaimedCall, RetryableError, run_tool

if TYPE_CHECKING:
    from .client import Abide

_AGENT = "agent"
"""The agent of a session that names none."""

_SESSION = "SELECT id FROM sessions WHERE id = :id"
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
    """The arguments as approved; the approver may have changed them."""
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
        agent: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Session:
        """See `Abide.session`."""
        optional = {"id": session_id, "title": title, "metadata": metadata}
        args = {name: value for name, value in optional.items() if value is not None}
        opened = (await client.call.open_session(agent=_AGENT if agent is None else agent, **args)).value
        owner = get_member(opened, "agent", str)
        if agent not in (None, owner):
            detail = f"session {session_id} belongs to the agent {owner}, not to {agent}"
            raise ConflictError(detail, code="conflict", hint="use another id, or omit agent=")
        return Session(client, get_member(opened, "id", str))

    @staticmethod
    async def find(client: Abide, session_id: str) -> Session | None:
        """See `Abide.find_session`."""
        found = await find_stored_id(client, _SESSION, session_id)
        return None if found is None else Session(client, found)

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
        with self._explain_conflict(key):
            appended = await self.client.call("append_message", args, request_id=request_id)
        return get_member(appended.value, "id", int)

    async def messages(self) -> list[Any]:
        """Returns the messages in order, as rows with `id`, `role`, `kind`, `content`, `data` and `created_at`."""
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

        What `run` raises is recorded: the step has failed for ever under this key, and raises `ToolFailedError` when it is
        repeated. After `RetryableError` it is tried again by the retry policy of the tool (default: 3 attempts).

        `lease_ms` bounds how long a repeated step waits after a crash. A coroutine function that blocks the event loop longer
        than that loses the lease.

        If the step is cancelled, a coroutine function is cancelled, and the call of an `idempotent` or `read_only` tool is
        pending again at once. A plain function runs to its end first, and its outcome is recorded. A second cancellation
        waits for nothing.

        Raises:
            NotFoundError: the tool is not registered, and there is no `effect`.
            UnknownOutcomeError: the worker of an earlier attempt disappeared, and the tool must not run twice.
            ToolFailedError: an earlier attempt failed, the call was rejected or cancelled, or its result has no JSON form.
            LeaseLostError: the lease ended while `run` ran; its result is in `lost_leases`.
            Exception: what `run` raised; the call has failed then.
        """
        check_function(run, "run")
        requested_id = self.call_id(key)
        request = {"call_id": requested_id, "session_id": self.id, "tool_name": name, "arguments": args}
        if needs_approval is not None:
            request["needs_approval"] = needs_approval
        claim = {"call_id": requested_id, "lease_ms": lease_ms, "worker": worker_name()}
        with self._explain_conflict(key):
            try:
                call_id, claimed = await self._request_and_claim(request, claim)
            except NotFoundError:
                await self._register(name, effect)
                call_id, claimed = await self._request_and_claim(request, claim)
        while True:
            if claimed is None:
                claimed, result = await self._wait_for_claim_or_outcome(call_id, name, claim)
                if claimed is None:
                    return result
            try:
                return await run_tool(self.client, claimed, run, lease_ms)
            except RetryableError:
                claimed = None  # It is pending again, or has no attempts left.

    async def approval(self, prompt: str, args: Any = None, *, key: str) -> Decision:
        """Asks a person for a decision, and waits for it. The decision is recorded under the key."""
        request = {
            "call_id": self.call_id(key),
            "session_id": self.id,
            "tool_name": "approval",
            "arguments": {"prompt": prompt, "args": args},
            "needs_approval": True,
        }
        with self._explain_conflict(key):
            try:
                requested = await self.client.call.request_tool_call(**request)
            except NotFoundError:
                await self._register("approval", "read_only")
                requested = await self.client.call.request_tool_call(**request)
        call_id = get_member(requested.value, "call_id", str)
        row = await self._wait_until(_APPROVAL, {"call_id": call_id}, lambda row: row.decision != "pending")
        decided = _parse_json(row.approved_arguments or row.arguments, "the arguments of an approval")
        # An approver may have replaced the whole document.
        arguments = decided.get("args") if isinstance(decided, dict) else decided
        if row.decision != "approved":
            return Decision(False, arguments, row.decided_by, row.comment or row.error)
        if row.status == "pending":
            await self._complete_approved(call_id)
        return Decision(True, arguments, row.decided_by, row.comment)

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
        with self._explain_conflict(key):
            handoff = await self.client.call("request_supervisor_handoff", args, request_id=request_id)
        sql = "SELECT status, resolution FROM handoff_requests WHERE id = :id"
        row = await self._wait_until(
            sql, {"id": get_member(handoff.value, "id", str)}, lambda row: row.status not in ("pending", "claimed")
        )
        return Resolution(row.status, row.resolution)

    async def sleep_until(self, when: datetime | float, *, key: str) -> None:
        """Waits for a time, also across restarts. `when` is a datetime with a time zone, or seconds since 1970.

        The first call with this key decides the time.
        """
        seconds = when.timestamp() if isinstance(when, datetime) else when
        timer_id = self.call_id(key)
        args = {"id": timer_id, "session_id": self.id, "due_at": int(seconds * 1_000_000)}
        try:
            timer_id = get_member((await self.client.call.set_timer(**args)).value, "id", str)
        except ConflictError:
            found = await find_stored_id(self.client, "SELECT id FROM timers WHERE id = :id", timer_id)
            if found is None:
                raise
            timer_id = found
        sql = "SELECT status FROM timers WHERE id = :id"
        row = await self._wait_until(sql, {"id": timer_id}, lambda row: row.status != "pending")
        if row.status == "cancelled":
            raise ToolFailedError(timer_id, "cancelled", "the session has ended")

    async def complete(self, result: Any = None) -> None:
        """Completes the session."""
        await self.client.call.complete_session(session_id=self.id, **({} if result is None else {"result": result}))

    def call_id(self, key: str) -> str:
        """Returns the id of the tool call, or of the timer, of a step. All SDKs derive it in this way.

        For a caller with a scope, whose session has a generated id, it is stored in the namespace of the scope. Calls accept both
        ids; answers and queries have the stored id.
        """
        return f"{self.id}/{_check_key(key)}"

    def _step_id(self, kind: str, key: str) -> str:
        return f"{kind}/{self.id}/{_check_key(key)}"

    @contextmanager
    def _explain_conflict(self, key: str | None) -> Iterator[None]:
        """Explains a conflict of ids in terms of the key."""
        try:
            yield
        except ConflictError as exc:
            if exc.code not in ("call_id_conflict", "request_id_conflict"):
                raise
            detail = f"the key {key!r} of session {self.id} belongs to a step with other arguments"
            hint = "a step is repeated with the same arguments; give another step another key"
            raise ConflictError(detail, code=exc.code, hint=hint) from exc

    async def _register(self, name: str, effect: str | None) -> None:
        """Registers a tool that is unknown; does nothing if it is known."""
        if effect is not None:
            await self.client.call.register_tool(name=name, effect=effect)
        elif not await self.client.sql("SELECT 1 FROM tools WHERE name = :name", {"name": name}):
            raise NotFoundError(f"tool {name} is not registered", code="not_found", hint="pass effect= to register it")

    async def _request_and_claim(self, request: dict[str, Any], claim: dict[str, Any]) -> tuple[str, ClaimedCall | None]:
        """Requests a call and claims it in the same transaction. Returns its stored id; `None` if it cannot be claimed at once."""
        try:
            done = await self.client.batch([("request_tool_call", request), ("claim_tool_call", claim)])
            claimed = ClaimedCall.from_row(done.value[1].value)
            return claimed.call_id, claimed
        except NotFoundError:
            raise
        except ConflictError:
            # The call exists, or waits for an approval.
            requested = await self.client.call.request_tool_call(**request)
            return get_member(requested.value, "call_id", str), None

    async def _wait_for_claim_or_outcome(self, call_id: str, name: str, claim: dict[str, Any]) -> tuple[ClaimedCall | None, Any]:
        """Waits until the call can be claimed, or has ended: then returns its result."""
        async with self.client.subscribe(_CALL, {"call_id": call_id}) as call:
            async for _ in call:
                if not call.rows:
                    raise NotFoundError(f"there is no tool call {call_id} that this client may read", code="not_found")
                row = call.rows[0]
                if row.status == "succeeded":
                    return None, _parse_json(row.result, "the result of a tool call")
                if row.status == "unknown":
                    raise UnknownOutcomeError(call_id, name, row.error)
                if row.status in ("failed", "rejected", "cancelled"):
                    raise ToolFailedError(call_id, row.status, row.error)
                if row.status == "pending" and row.retry_at is None:
                    try:
                        return ClaimedCall.from_row((await self.client.call.claim_tool_call(**claim)).value), None
                    except ConflictError:
                        continue  # Another worker was first, or it waits; a change follows.
        raise ClosedError

    async def _complete_approved(self, call_id: str) -> None:
        """Ends the call of an approval. Another process of the session may do the same."""
        try:
            claim = (await self.client.call.claim_tool_call(call_id=call_id, worker=worker_name())).value
            await self.client.call.complete_tool_call(
                call_id=call_id, fencing_token=get_member(claim, "fencing_token", int), result={"approved": True}
            )
        except ConflictError:
            pass

    async def _wait_until(self, sql: str, params: dict[str, Any], is_done: Callable[[Any], bool]) -> Any:
        """Waits until the only row of a query satisfies a condition, and returns it."""
        async with self.client.subscribe(sql, params) as subscription:
            async for _ in subscription:
                rows = subscription.rows
                if rows and is_done(rows[0]):
                    return rows[0]
        raise ClosedError


def _check_key(key: Any) -> str:
    """Returns a key of a step, and refuses what would be a key by accident, such as None."""
    if isinstance(key, str) and key:
        return key
    detail = f"the key of a step must be a non-empty string, not {key!r}"
    raise BadRequestError(detail, code="bad_arguments", hint="a step that is repeated has the same key, such as refund-8812")


def _parse_json(text: str | None, what: str) -> Any:
    """Decodes a stored JSON value; `what` names it in errors. A settlement without a result stores none."""
    with reading(what):
        return None if text is None else json.loads(text)


def worker_name() -> str:
    """Returns a unique name for one claim of this process."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
