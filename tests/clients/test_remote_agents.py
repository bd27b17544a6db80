"""Agents of the A2A SDK for Python as agents of Abide."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "client-sdk/python/tests"))

from server import Server  # noqa: E402

PLACES = "SELECT call_id, arguments ->> '$.question' AS question FROM tool_calls WHERE status = 'awaiting_approval'"


@pytest.fixture(scope="module", params=["1.0", "0.3"])
def remote(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a remote agent, with each version of the protocol."""
    program = [sys.executable, str(Path(__file__).with_name("remote_agent.py")), request.param]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        # Ends at the end of the process too.
        port = process.stdout.readline().strip()
        assert port, "the remote agent did not start"
        address = f"127.0.0.1:{port}"
        yield address
        process.kill()


@pytest.fixture
def server(remote: str, tmp_path: Path) -> Iterator[Server]:
    agents = tmp_path / "project" / "agents"
    agents.mkdir(parents=True)
    definition = f"a2a: {{ url: 'http://{remote}', allow_private: ['{remote}'] }}\n"
    (agents / "guide.yaml").write_text(definition)
    with Server(tmp_path, "--agents", str(agents.parent)) as server:
        yield server


async def until(server: Server, sql: str) -> Any:
    """The first row of a query, once there is one."""
    async with server.client() as abide, abide.subscribe(sql) as subscription:
        async for _ in subscription:
            if len(subscription.rows) > 0:
                return subscription.rows[0]
    raise AssertionError(sql)


async def test_an_agent_of_the_sdk_asks_and_answers(server: Server, remote: str) -> None:
    async with server.client() as abide:
        await abide.call.create_session(agent="guide", id="s1")
        await abide.call.start_run(session_id="s1", id="r1", input="Guide me.")
    asked = await until(server, PLACES)
    assert asked.question == "Where to?"
    # The runtime is killed while it waits, and in the middle of the answer.
    server.kill()
    server.start()
    async with server.client() as abide:
        await abide.call.decide_approval(call_id=asked.call_id, decision="approve", comment="Vienna")
    await until(server, "SELECT 1 FROM run_events WHERE kind = 'token' AND data ->> '$.content' LIKE '%step9%'")
    server.kill()
    server.start()
    urllib.request.urlopen(f"http://{remote}/continue", data=b"").close()
    ended = await until(
        server, "SELECT status, output ->> '$.content' AS content FROM runs WHERE id = 'r1' AND ended_at IS NOT NULL"
    )
    steps = "".join(f"step{number} " for number in range(40))
    assert (ended.status, ended.content) == ("done", f"{steps}\n\nto Vienna after 2 messages")


async def test_an_aborted_run_cancels_the_task_of_the_sdk(server: Server) -> None:
    async with server.client() as abide:
        await abide.call.create_session(agent="guide", id="s1")
        await abide.call.start_run(session_id="s1", id="r1", input="Guide me.")
        await until(server, PLACES)
        await abide.call.abort_run(id="r1")
    # The entry of an open task is removed when the agent has answered.
    open_tasks = (
        "SELECT 1 FROM entries e JOIN collections c ON c.id = e.collection_id"
        " WHERE c.kind = 'a2a_open_tasks'"
    )
    await until(server, f"SELECT 1 WHERE NOT EXISTS ({open_tasks})")
