"""Durable steps, workers and supervisors: each step takes effect once, even when a process is killed in the middle."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from server import Server, environment

from abide import Abide, Handoff, RejectedError, RetryableError, Session, ToolFailedError, UnknownOutcomeError

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "refund.py"


def counted(result: Any = None) -> tuple[list[Any], Callable[[Any], Awaitable[Any]]]:
    """A tool, and the arguments of its runs."""
    runs: list[Any] = []

    async def run(args: Any) -> Any:
        runs.append(args)
        return result

    return runs, run


async def test_a_step_runs_once(client: Abide) -> None:
    session = await client.session("s1", agent="support")
    runs, run = counted({"paid": True})
    for _ in range(3):
        assert await session.tool("refund", {"order": 1}, key="r", run=run, effect="at_most_once") == {"paid": True}
    assert runs == [{"order": 1}]
    assert (await session.tool("refund", {"order": 2}, key="r2", run=lambda args: args["order"])) == 2


async def test_messages_with_a_key_are_appended_once(client: Abide) -> None:
    session = await client.session("s1")
    assert await session.message("user", "hello", key="a") == await session.message("user", "hello", key="a")
    await session.message("user", "hello")
    assert [row.content for row in await session.messages()] == ["hello", "hello"]
    assert (await client.session("s1")).id == "s1"


async def test_a_failed_step_stays_failed(client: Abide) -> None:
    session = await client.session("s1")

    def fail(_: Any) -> None:
        raise ValueError("no such order")

    with pytest.raises(ValueError, match="no such order"):
        await session.tool("refund", {}, key="r", run=fail, effect="at_most_once")
    with pytest.raises(ToolFailedError) as failed:
        await session.tool("refund", {}, key="r", run=fail)
    assert (failed.value.status, failed.value.error) == ("failed", "ValueError: no such order")


async def test_a_retryable_failure_runs_again(client: Abide) -> None:
    session = await client.session("s1")
    attempts = []

    async def flaky(_: Any) -> int:
        attempts.append(1)
        if len(attempts) == 1:
            raise RetryableError("busy")
        return len(attempts)

    assert await session.tool("ping", {}, key="p", run=flaky, effect="idempotent") == 2


async def test_concurrent_steps_with_one_key_run_once(server: Server, client: Abide) -> None:
    session = await client.session("s1")
    runs, run = counted(7)
    await client.call.register_tool(name="refund", effect="at_most_once")
    async with server.client() as other:
        sessions = [session, Session(other, "s1")] * 5
        results = await asyncio.gather(*[one.tool("refund", {}, key="r", run=run) for one in sessions])
    assert results == [7] * 10
    assert len(runs) == 1


async def test_an_approval_is_waited_for(client: Abide) -> None:
    session = await client.session("s1")
    runs, run = counted("done")
    await client.call.register_tool(name="refund", effect="at_most_once", needs_approval=True)
    async with client.subscribe("SELECT call_id FROM approvals WHERE status = 'pending'") as pending:
        await anext(pending)
        step = asyncio.create_task(session.tool("refund", {"amount": 10}, key="r", run=run))
        call_id = (await anext(pending)).inserts[0].call_id
        assert runs == []
        await client.call.decide_approval(call_id=call_id, decision="approve", approved_arguments={"amount": 5})
        assert await step == "done"
        assert runs == [{"amount": 5}]

        question = asyncio.create_task(session.approval("Publish?", {"page": 1}, key="publish"))
        call_id = (await anext(pending)).deletes and (await anext(pending)).inserts[0].call_id
        await client.call.decide_approval(call_id=call_id, decision="reject", comment="not yet")
        decision = await question
    assert (decision.approved, decision.comment, decision.arguments) == (False, "not yet", {"page": 1})
    assert await session.approval("Publish?", {"page": 1}, key="publish") == decision


async def test_an_approved_question(client: Abide) -> None:
    session = await client.session("s1")
    async with client.subscribe("SELECT call_id FROM approvals WHERE status = 'pending'") as pending:
        await anext(pending)
        question = asyncio.create_task(session.approval("Publish?", key="publish"))
        call_id = (await anext(pending)).inserts[0].call_id
        await client.call.decide_approval(call_id=call_id, decision="approve")
        assert (await question).approved
    assert (await session.approval("Publish?", key="publish")).approved


async def test_sleep_until(client: Abide) -> None:
    session = await client.session("s1")
    when = datetime.now(timezone.utc) + timedelta(milliseconds=50)
    await session.sleep_until(when, key="pause")
    assert datetime.now(timezone.utc) >= when
    await session.sleep_until(when + timedelta(days=1), key="pause")


async def test_workers_run_what_others_request(client: Abide) -> None:
    session = await client.session("s1")
    await client.call.register_tool(name="double", effect="idempotent")
    running, most = 0, 0

    async def double(args: Any) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return int(args) * 2

    worker = client.worker("w1")
    serving = asyncio.create_task(worker.serve({"double": double}, concurrency=3))
    async with client.subscribe("SELECT call_id, result FROM tool_calls WHERE status = 'succeeded'") as done:
        for nth in range(20):
            await client.call.request_tool_call(call_id=f"c{nth}", session_id=session.id, tool_name="double", arguments=nth)
        async for _ in done:
            if len(done.rows) == 20:
                break
        assert {row.call_id: row.result for row in done.rows} == {f"c{nth}": str(nth * 2) for nth in range(20)}
    worker.stop()
    await serving
    assert most <= 3


async def test_a_worker_stops_gracefully(client: Abide) -> None:
    session = await client.session("s1")
    await client.call.register_tool(name="slow", effect="at_most_once")
    started, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_: Any) -> str:
        started.set()
        await go_on.wait()
        return "finished"

    worker = client.worker()
    serving = asyncio.create_task(worker.serve({"slow": slow}))
    await client.call.request_tool_call(call_id="c1", session_id=session.id, tool_name="slow", arguments={})
    await started.wait()
    worker.stop()
    go_on.set()
    await serving
    assert (await client.sql("SELECT result FROM tool_calls")).scalar() == '"finished"'


async def test_a_supervisor_answers_handoffs(client: Abide) -> None:
    supervisor = client.supervisor()
    seen = []

    async def answer(handoff: Handoff) -> str:
        seen.append((handoff.reason, handoff.data))
        if handoff.reason == "nonsense":
            raise RejectedError("this is no question")
        return "give them a voucher"

    serving = asyncio.create_task(supervisor.serve("complaints", answer))
    session = await client.session("s1")
    resolution = await session.handoff("angry customer", "complaints", key="h1", data={"order": 1})
    assert (resolution.status, resolution.text) == ("resolved", "give them a voucher")
    assert await session.handoff("angry customer", "complaints", key="h1", data={"order": 1}) == resolution
    other = await client.session("s2")
    assert (await other.handoff("nonsense", "complaints", key="h1")).status == "rejected"
    supervisor.stop()
    await serving
    assert seen == [("angry customer", {"order": 1}), ("nonsense", None)]


async def test_a_supervisor_without_an_answer_releases_the_handoff(client: Abide) -> None:
    """`None` was the resolution "None"."""
    session = await client.session("s1")
    silent, helpful = client.supervisor(), client.supervisor()
    serving = [asyncio.create_task(silent.serve("complaints", lambda _: None))]
    waiting = asyncio.create_task(session.handoff("angry customer", "complaints", key="h1"))
    async with client.subscribe("SELECT status FROM handoff_requests WHERE updated_at > created_at") as handoffs:
        async for _ in handoffs:
            if [row.status for row in handoffs.rows] == ["pending"]:
                break
    serving.append(asyncio.create_task(helpful.serve("complaints", lambda _: "a voucher")))
    assert (await waiting).text == "a voucher"
    silent.stop()
    helpful.stop()
    await asyncio.gather(*serving)


async def killed_in_the_tool(server: Server, folder: Path, *options: str) -> None:
    """Runs the example, and kills it with SIGKILL in the middle of its tool."""
    command = [sys.executable, str(EXAMPLE), "--url", server.url, "--paid", str(folder / "paid"), *options, "--stop"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment())
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == b"running\n"
    process.kill()
    process.wait()
    process.stdout.close()


def completed(server: Server, folder: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, str(EXAMPLE), "--url", server.url, "--paid", str(folder / "paid"), *options]
    return subprocess.run(command, stdout=subprocess.PIPE, env=environment())


async def test_an_idempotent_tool_runs_again_after_a_kill(server: Server, client: Abide, folder: Path) -> None:
    options = ["--effect", "idempotent", "--lease-ms", "500"]
    await killed_in_the_tool(server, folder, *options)
    for _ in range(2):
        done = await asyncio.to_thread(completed, server, folder, *options)
        assert done.returncode == 0
    assert (folder / "paid").read_text() == "8812\n"
    assert [row.role for row in await Session(client, "s1").messages()] == ["user", "assistant"]
    assert (await client.sql("SELECT attempt FROM tool_calls")).scalar() == 2


async def test_an_at_most_once_tool_is_unknown_after_a_kill(server: Server, client: Abide, folder: Path) -> None:
    await killed_in_the_tool(server, folder, "--lease-ms", "500")
    done = await asyncio.to_thread(completed, server, folder)
    assert done.returncode == 1
    assert b"unknown_outcome" in done.stdout
    session = await client.session("s1")
    with pytest.raises(UnknownOutcomeError) as unknown:
        await session.tool("refund", {"order": 8812}, key="refund-8812", run=lambda _: None)
    await client.call.settle_tool_call(call_id=unknown.value.call_id, outcome="succeeded", result={"refunded": 8812})
    assert (await asyncio.to_thread(completed, server, folder)).returncode == 0
    assert not (folder / "paid").exists()


async def test_a_lost_lease_stops_the_work(client: Abide) -> None:
    session = await client.session("s1")
    await client.call.register_tool(name="slow", effect="idempotent")
    started = asyncio.Event()

    async def slow(_: Any) -> None:
        started.set()
        await asyncio.Event().wait()

    step = asyncio.create_task(session.tool("slow", {}, key="k", run=slow, lease_ms=600))
    await started.wait()
    await client.call.cancel_tool_call(call_id=session.call_id("k"))
    with pytest.raises(ToolFailedError) as cancelled:
        await step
    assert cancelled.value.status == "cancelled"
