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
