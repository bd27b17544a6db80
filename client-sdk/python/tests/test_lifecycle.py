"""The life of a client: first use, close, other event loops, other processes, and errors of wrong use."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from proxy import Proxy
from server import Server, binary, environment

from abide import Abide, AbideError, BadRequestError, ClosedError, ConnectionFailedError, Result
from abide.adapters.bridge import Bridge
from abide.sync import Abide as SyncAbide


async def test_every_first_use_connects(server: Server) -> None:
    """Some of them waited for ever."""

    async def subscribed(client: Abide) -> object:
        async with client.subscribe("SELECT id FROM sessions") as sub:
            return sub.rows

    async def served(client: Abide) -> None:
        worker, supervisor = client.worker(), client.supervisor()
        worker.stop()
        supervisor.stop()
        await worker.serve({"t": print})
        await supervisor.serve("c", print)

    async def iterated(client: Abide) -> object:
        return await anext(client.subscribe("SELECT id FROM sessions"))

    async def at_once(client: Abide) -> object:
        return await asyncio.gather(*[client.sql("SELECT 1") for _ in range(5)])

    uses: list[Any] = [subscribed, served, iterated, at_once]
    uses += [lambda it: it.explain("SELECT id FROM sessions"), lambda it: it.get("/v1/schema")]
    for use in uses:
        client = server.client()
        await asyncio.wait_for(use(client), 20)
        assert client.connected
        await client.close()


async def test_every_first_use_reports_the_same_error(folder: Path) -> None:
    uses: list[Any] = [
        lambda it: it.sql("SELECT 1"),
        lambda it: anext(it.subscribe("SELECT 1")),
        lambda it: it.subscribe("SELECT 1").start(),
        lambda it: it.worker().serve({"t": print}),
        lambda it: it.supervisor().serve("c", print),
        lambda it: it.get("/v1/schema"),
    ]
    for use in uses:
        with pytest.raises(AbideError) as missing:
            await asyncio.wait_for(use(Abide.open(folder / "no" / "x.db", binary=binary())), 20)
        assert missing.value.code == "not_found"
        with pytest.raises(ConnectionFailedError):
            await asyncio.wait_for(use(Abide.connect("http://127.0.0.1:1")), 20)


async def test_a_closed_client_ends_workers_and_supervisors(server: Server) -> None:
    """They must not look as if they worked on."""
    client = await server.client()
    serving = [asyncio.create_task(client.worker().serve({"t": print})), asyncio.create_task(client.supervisor().serve("c", print))]
    session = await client.session("s1")
    waiting = asyncio.create_task(session.sleep_until(2_000_000_000, key="k"))
    while len(client._connection.subscriptions) < 3:
        await client.sql("SELECT 1")
    await client.close()
    assert client.closed
    for task in (*serving, waiting):
        with pytest.raises(ClosedError):
            await asyncio.wait_for(task, 20)
    late = [client.worker().serve({"t": print}), client.supervisor().serve("c", print), client.start(), client.session("s1")]
    for work in late:
        with pytest.raises(ClosedError):
            await asyncio.wait_for(work, 20)


async def test_a_worker_survives_a_server_that_is_away(server: Server, client: Abide) -> None:
    """Its claim has a short deadline; that it is over ends the claim, not the worker."""
    session = await client.session("s1")
    await client.call.register_tool(name="double", effect="at_most_once")
    ran = asyncio.Event()

    async def double(n: int) -> int:
        ran.set()
        return n * 2

    worker = client.worker()
    serving = asyncio.create_task(worker.serve({"double": double}))
    await client.call.request_tool_call(call_id="c0", session_id=session.id, tool_name="double", arguments=1)
    await ran.wait()
    server.kill()
    with pytest.raises(AbideError):
        await client.sql("SELECT 1", deadline=1.5)
    server.start()
    ran.clear()
    await client.call.request_tool_call(call_id="c1", session_id=session.id, tool_name="double", arguments=1)
    await asyncio.wait_for(ran.wait(), 20)
    worker.stop()
    await serving


async def test_a_tool_goes_on_while_the_server_restarts(server: Server, client: Abide) -> None:
    """Its outcome was lost with the deadline of the client, and the call became unknown."""
    hasty = await server.client(deadline=0.3)
    session = await client.session("s1")
    await client.call.register_tool(name="pay", effect="at_most_once")
    go = {"first": asyncio.Event(), "second": asyncio.Event()}
    started = {"first": asyncio.Event(), "second": asyncio.Event()}
    runs = []

    async def pay(name: str) -> str:
        runs.append(name)
        started[name].set()
        await go[name].wait()
        return name

    worker = hasty.worker(lease_ms=6_000)
    serving = asyncio.create_task(worker.serve({"pay": pay}))
    for name in go:
        await client.call.request_tool_call(call_id=name, session_id=session.id, tool_name="pay", arguments=name)
        await started[name].wait()
    await asyncio.to_thread(server.stop)
    go["first"].set()
    # The deadline of the report begins before that of the query.
    with pytest.raises(AbideError):
        await hasty.sql("SELECT 1")
    await asyncio.to_thread(server.start)
    ended = "SELECT call_id, status, attempt FROM tool_calls WHERE status <> 'claimed' ORDER BY call_id"
    async with client.subscribe(ended) as calls:
        async for _ in calls:
            if calls.rows:
                break
        go["second"].set()
        async for _ in calls:
            if len(calls.rows) == 2:
                break
        assert [(row.status, row.attempt) for row in calls.rows] == [("succeeded", 1)] * 2
    worker.stop()
    await asyncio.wait_for(serving, 20)
    assert runs == ["first", "second"]
    await hasty.close()


async def test_a_claim_whose_answer_is_lost_is_not_repeated(server: Server, client: Abide) -> None:
    proxy = Proxy()
    proxy.target = server.port
    await proxy.start()
    session = await client.session("s1")
    await client.call.register_tool(name="pay", effect="at_most_once")
    ran: list[Any] = []
    async with Abide.connect(f"http://127.0.0.1:{proxy.port}") as other:
        worker = other.worker()
        serving = asyncio.create_task(worker.serve({"pay": ran.append}))
        send = other._connection._send

        def send_and_lose(text: bytes) -> None:
            if b"claim_next_tool_call" in text:
                other._connection._send = send  # type: ignore[method-assign]
                proxy.lose_answer()
            send(text)

        other._connection._send = send_and_lose  # type: ignore[method-assign]
        async with client.subscribe("SELECT status FROM tool_calls") as calls:
            await client.call.request_tool_call(call_id="c1", session_id=session.id, tool_name="pay", arguments=1)
            async for _ in calls:
                if [row.status for row in calls.rows] == ["succeeded"]:
                    break
        worker.stop()
        await asyncio.wait_for(serving, 20)
    assert ran == [1]
    # The lease is renewed before the tool runs: it might have expired since.
    renewals = await client.sql("SELECT count(*) FROM events WHERE reducer = 'heartbeat_tool_call'")
    assert renewals.scalar() == 1
    await proxy.close()


def test_another_event_loop_is_refused(server: Server) -> None:
    """The answers would arrive in the first loop."""
    client = server.client()

    async def use() -> None:
        await client.sql("SELECT 1")

    async def wrong() -> None:
        sub, worker = client.subscribe("SELECT 1"), client.worker()
        for work in (client.sql("SELECT 1"), anext(sub), worker.serve({"t": print}), client.close()):
            with pytest.raises(AbideError) as refused:
                await work
            assert refused.value.code == "wrong_event_loop"
            assert refused.value.hint

    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    first.run_until_complete(use())
    second.run_until_complete(wrong())
    first.run_until_complete(client.close())
    for loop in (first, second):
        loop.close()


FORK = """
import asyncio, os, signal, sys
from abide import Abide, AbideError, sync

def child(use):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        try:
            use()
        except AbideError as why:
            os._exit(7 if why.code == "wrong_process" else 8)
        os._exit(9)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

async def main():
    async with Abide.connect(sys.argv[1]) as client:
        await client.sql("SELECT 1")
        step = client.sql("SELECT 1")
        print(child(lambda: step.send(None)))
        print((await client.sql("SELECT 5")).scalar())

with sync.Abide.connect(sys.argv[1]) as client:
    print(child(lambda: client.sql("SELECT 1")), child(client.close))
    print(client.sql("SELECT 5").scalar())
unused = Abide.connect(sys.argv[1])
print(child(lambda: asyncio.run(unused.start())))
asyncio.run(main())
"""


def test_a_forked_process_is_refused(server: Server) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK, server.url]
    run = subprocess.run(command, capture_output=True, env=environment(), timeout=60)
    assert run.stdout.split() == [b"7", b"9", b"5", b"9", b"7", b"5"], run.stderr.decode()


async def test_wrong_use_has_a_helpful_error(client: Abide) -> None:
    with pytest.raises(BadRequestError, match="connect"):
        Abide.open("http://127.0.0.1:7341")
    with pytest.raises(BadRequestError, match="connect"):
        SyncAbide.open("http://127.0.0.1:7341")
    with pytest.raises(BadRequestError, match="by name"):
        await client.call.create_session("a")
    for call in ({"reducer": "create_session", "args": {}}, "create_session", ("create_session",), ("create_session", [1]), None):
        with pytest.raises(BadRequestError, match="call 1 of the batch"):
            await client.batch([call])  # type: ignore[list-item]
    with pytest.raises(BadRequestError, match="NaN"):
        await client.sql("SELECT ?", [math.nan])
    with pytest.raises(BadRequestError, match="nested"):
        await client.call.create_session(agent="a", metadata={"x": eval("[" * 90 + "]" * 90), "y": eval("[" * 150 + "]" * 150)})


def test_types_of_a_missing_file(folder: Path) -> None:
    """A misspelt name would make an empty database."""
    command = [sys.executable, "-m", "abide.generate", "--db", str(folder / "typo.db")]
    run = subprocess.run(command, capture_output=True, env=environment())
    assert (run.returncode, os.listdir(folder)) == (1, [])
    assert b"not_found" in run.stderr


EXTRAS = {
    "langgraph": ("langgraph", "langgraph"),
    "langgraph_store": ("langgraph", "langgraph"),
    "openai_agents": ("agents", "openai-agents"),
    "google_adk": ("google.adk", "google-adk"),
    "pydantic_ai": ("pydantic_ai", "pydantic-ai"),
    "llama_index": ("llama_index", "llama-index"),
}


@pytest.mark.parametrize("module", EXTRAS)
def test_a_missing_framework_names_its_extra(module: str) -> None:
    package, extra = EXTRAS[module]
    program = f"import sys; sys.modules[{package!r}] = None; import abide.adapters.{module}"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment())
    assert f'pip install "abide-client[{extra}]"' in run.stderr.decode()


def test_missing_packages_of_conversions(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: Result[Any] = Result(1, ("a",), [(1,)], None)
    for name, extra, convert in (("pandas", "pandas", rows.to_pandas), ("pyarrow", "arrow", rows.to_arrow)):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ImportError, match=rf"abide-client\[{extra}\]"):
            convert()


def test_an_adapter_needs_a_client() -> None:
    with pytest.raises(BadRequestError, match="an adapter needs a client"):
        Bridge(None)  # type: ignore[arg-type]
