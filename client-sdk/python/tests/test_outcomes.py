"""The records of a step: results that cannot be stored, cancelled steps, settlements, and keys."""

from __future__ import annotations

import asyncio
import math
import threading
from datetime import datetime
from typing import Any

import pytest
from test_steps import counted

from abide import Abide, BadRequestError, ConflictError, NotFoundError, RetryableError, ToolFailedError, UnknownOutcomeError


def circular() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def nested(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


UNSTORABLE = [
    datetime(2026, 1, 1),
    print,
    math.nan,
    "\ud800",
    {"a": {1, 2}},
    circular(),
    2**63,
    # The server could not say which message was nested too deep: the step would wait for its deadline.
    nested(200),
    "x" * 9_000_000,
    "x" * 17_000_000,
]


@pytest.mark.parametrize("result", UNSTORABLE, ids=range(len(UNSTORABLE)))
async def test_a_result_that_cannot_be_stored_fails_the_call(client: Abide, result: Any) -> None:
    """The effect has happened: the call must not stay open, become unknown, or run again."""
    session = await client.session("s1")
    runs, run = counted(result)
    for effect in ("at_most_once", "idempotent"):
        for _ in range(2):
            with pytest.raises(ToolFailedError, match="the tool ran, but its result cannot be stored: ") as failed:
                await session.tool(f"pay_{effect}", {}, key=effect, run=run, effect=effect)
            assert failed.value.status == "failed"
    assert len(runs) == 2


async def test_a_worker_records_a_result_that_cannot_be_stored(client: Abide) -> None:
    session = await client.session("s1")
    await client.call.register_tool(name="pay", effect="idempotent")
    worker = client.worker()
    serving = asyncio.create_task(worker.serve({"pay": lambda _: datetime(2026, 1, 1)}))
    sql = "SELECT status, error FROM tool_calls WHERE call_id = 'c1'"
    async with client.subscribe(sql) as call:
        await client.call.request_tool_call(call_id="c1", session_id=session.id, tool_name="pay", arguments={})
        async for _ in call:
            if call.rows and call.rows[0].status != "pending" and call.rows[0].error:
                break
        assert call.rows[0].status == "failed"
        assert call.rows[0].error == "the tool ran, but its result cannot be stored: a datetime has no JSON form"
    worker.stop()
    await serving


async def test_any_error_of_a_tool_is_recorded(client: Abide) -> None:
    """A text without a UTF-8 form, and exceptions that would end the event loop or would be lost in it."""

    class Broken(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    session = await client.session("s1")
    errors: list[BaseException] = [ValueError("x\ud800"), ValueError("x" * 1_000_000), Broken(), SystemExit(3), StopIteration()]
    for nth, error in enumerate(errors):

        def fail(_: Any, error: BaseException = error) -> None:
            raise error

        with pytest.raises((ValueError, Broken, RuntimeError)):
            await session.tool("t", {}, key=str(nth), run=fail, effect="idempotent")
        with pytest.raises(ToolFailedError) as failed:
            await session.tool("t", {}, key=str(nth), run=fail)
        assert failed.value.error
        assert len(failed.value.error) < 20_000


async def test_a_settlement_without_a_result(client: Abide) -> None:
    """`settle_tool_call` needs no result; the step then returns None."""
    session = await client.session("s1")
    await client.call.register_tool(name="pay", effect="at_most_once")
    call_id = session.call_id("k")
    for key in ("k", "failed"):
        await client.call.request_tool_call(call_id=session.call_id(key), session_id="s1", tool_name="pay", arguments={})
        claim = await client.call.claim_tool_call(call_id=session.call_id(key), worker="w", lease_ms=1)
        with pytest.raises(UnknownOutcomeError) as unknown:
            await session.tool("pay", {}, key=key, run=lambda _: 1)
        assert "unknown_tool_calls" in str(unknown.value)
        with pytest.raises(ConflictError):
            # It is kept where the hint says.
            await client.call.complete_tool_call(call_id=session.call_id(key), fencing_token=claim["fencing_token"], result=7)
    assert (await client.sql("SELECT late_result FROM unknown_tool_calls WHERE call_id = ?", [call_id])).scalar() == "7"
    await client.call.settle_tool_call(call_id=call_id, outcome="succeeded")
    assert await session.tool("pay", {}, key="k", run=lambda _: 1) is None
    await client.call.settle_tool_call(call_id=session.call_id("failed"), outcome="failed")
    with pytest.raises(ToolFailedError, match="no reason was given"):
        await session.tool("pay", {}, key="failed", run=lambda _: 1)


async def test_an_unknown_outcome_has_the_reason_of_its_worker(client: Abide) -> None:
    session = await client.session("s1")
    await client.call.register_tool(name="pay", effect="at_most_once")
    call_id = session.call_id("k")
    await client.call.request_tool_call(call_id=call_id, session_id="s1", tool_name="pay", arguments={})
    claim = await client.call.claim_tool_call(call_id=call_id, worker="w", lease_ms=60_000)
    await client.call.fail_tool_call(
        call_id=call_id, fencing_token=claim["fencing_token"], error="the bank answered 504", may_have_run=True
    )
    with pytest.raises(
        UnknownOutcomeError, match=f"it is unknown whether call {call_id} of pay ran: the bank answered 504"
    ) as unknown:
        await session.tool("pay", {}, key="k", run=lambda _: 1)
    assert unknown.value.error == "the bank answered 504"


async def test_an_approver_replaces_the_whole_document(client: Abide) -> None:
    session = await client.session("s1")
    async with client.subscribe("SELECT call_id FROM approvals WHERE status = 'pending'") as pending:
        await anext(pending)
        question = asyncio.create_task(session.approval("Publish?", {"page": 1}, key="publish"))
        call_id = (await anext(pending)).inserts[0].call_id
        await client.call.decide_approval(call_id=call_id, decision="approve", approved_arguments=[1, 2])
        assert (await question).arguments == [1, 2]


async def test_keys_are_texts(client: Abide) -> None:
    """`None` was the key "None", so all steps with it were one step."""
    session = await client.session("s1")
    for key in (None, "", 1, b"k"):
        steps = [
            session.tool("t", {}, key=key, run=print, effect="idempotent"),  # type: ignore[arg-type]
            session.approval("?", key=key),  # type: ignore[arg-type]
            session.handoff("?", "c", key=key),  # type: ignore[arg-type]
            session.sleep_until(0, key=key),  # type: ignore[arg-type]
            *([session.message("user", "x", key=key)] if key is not None else []),  # type: ignore[arg-type]
        ]
        for step in steps:
            with pytest.raises(BadRequestError, match="the key of a step") as refused:
                await step
            assert refused.value.code == "bad_arguments"
    for table in ("tools", "tool_calls", "handoff_requests", "timers", "agent_state"):
        assert (await client.sql(f"SELECT count(*) FROM {table}")).scalar() == 0


async def test_a_key_of_another_step(client: Abide) -> None:
    session = await client.session("s1")
    await session.tool("t", {"n": 1}, key="k", run=lambda _: 1, effect="idempotent")
    await session.message("user", "one", key="k")
    for step in (session.tool("t", {"n": 2}, key="k", run=lambda _: 1), session.message("user", "two", key="k")):
        with pytest.raises(ConflictError, match="the key 'k' of session s1 belongs to a step with other arguments"):
            await step


async def test_invalid_steps_are_refused_before_anything_is_recorded(client: Abide) -> None:
    session = await client.session("s1")
    for run in (None, "refund", lambda: 1, lambda a, b: 1):
        with pytest.raises(BadRequestError):
            await session.tool("t", {}, key="k", run=run, effect="idempotent")  # type: ignore[arg-type]
        with pytest.raises(BadRequestError):
            await client.worker().serve({"t": run})  # type: ignore[dict-item]
        with pytest.raises(BadRequestError):
            await client.supervisor().serve("c", run)  # type: ignore[arg-type]
    with pytest.raises(NotFoundError, match=r"tool t is not registered \(hint: pass effect= to register it\)"):
        await session.tool("t", {}, key="k", run=lambda _: 1)
    assert (await client.sql("SELECT count(*) FROM tool_calls")).scalar() == 0
    assert await session.tool("t", {}, key="k", run=lambda _: 1, effect="idempotent") == 1


async def test_a_session_of_another_agent(client: Abide) -> None:
    await client.session("s1", agent="a")
    assert (await client.session("s1")).id == (await client.session("s1", agent="a")).id == "s1"
    with pytest.raises(ConflictError, match="belongs to the agent a"):
        await client.session("s1", agent="b")


async def test_a_cancelled_step_of_a_coroutine_releases_its_lease(client: Abide) -> None:
    """A tool that may run twice runs again at once, not after the lease. Another one keeps its lease, since it may have run."""
    session = await client.session("s1")
    for effect, status in (("idempotent", "pending"), ("at_most_once", "claimed")):
        started = asyncio.Event()

        async def endless(_: Any, started: asyncio.Event = started) -> None:
            started.set()
            await asyncio.Event().wait()

        step = asyncio.create_task(session.tool(effect, {}, key=effect, run=endless, effect=effect))
        await started.wait()
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        assert (await client.sql("SELECT status FROM tool_calls WHERE tool_name = ?", [effect])).scalar() == status
    assert await session.tool("idempotent", {}, key="idempotent", run=lambda _: "again") == "again"


async def test_a_cancelled_step_records_what_its_thread_did(client: Abide) -> None:
    """A thread cannot be cancelled: its effect happens, so its result must not be lost."""
    session = await client.session("s1")
    started, go_on = threading.Event(), threading.Event()

    def pay(_: Any) -> str:
        started.set()
        go_on.wait()
        return "paid"

    step = asyncio.create_task(session.tool("pay", {}, key="k", run=pay, effect="at_most_once"))
    await asyncio.to_thread(started.wait)
    step.cancel()
    await client.sql("SELECT 1")
    assert not step.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert await session.tool("pay", {}, key="k", run=pay) == "paid"


async def test_a_cancelled_recording_is_completed(client: Abide) -> None:
    """A cancellation after the effect, while the result is on its way."""
    session = await client.session("s1")

    async def pay(_: Any) -> str:
        step.cancel()
        return "paid"

    step = asyncio.create_task(session.tool("pay", {}, key="k", run=pay, effect="at_most_once"))
    with pytest.raises(asyncio.CancelledError):
        await step
    assert await session.tool("pay", {}, key="k", run=lambda _: "twice") == "paid"


async def test_a_retryable_error_has_a_bounded_number_of_attempts(client: Abide) -> None:
    session = await client.session("s1")
    await client.call.register_tool(name="t", effect="at_most_once", retry={"max_attempts": 2})
    runs = []

    def busy(_: Any) -> None:
        runs.append(1)
        raise RetryableError("busy")

    with pytest.raises(ToolFailedError, match="busy"):
        await session.tool("t", {}, key="k", run=busy)
    assert len(runs) == 2
