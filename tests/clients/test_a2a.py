"""The client of the A2A SDK for Python uses agents."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pytest
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientError
from a2a.types import a2a_pb2 as a2a
from a2a.utils.errors import TaskNotFoundError

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "client-sdk/python/tests"))

from server import Server  # noqa: E402

AGENTS = str(Path(__file__).with_name("agents"))
SLOW_TEXT = " ".join(f"word{n}" for n in range(60))
BINDINGS = ["JSONRPC", "HTTP+JSON", "GRPC"]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder), "--agents", AGENTS) as server:
        yield server


async def client_of(server: Server, agent: str, binding: str) -> Client:
    config = ClientConfig(supported_protocol_bindings=[binding], grpc_channel_factory=grpc.aio.insecure_channel)
    factory = ClientFactory(config)
    return await factory.create_from_url(f"{server.url}/a2a/{agent}")


def message(text: str, task_id: str = "") -> a2a.SendMessageRequest:
    said = a2a.Message(message_id=str(uuid.uuid4()), role=a2a.ROLE_USER, parts=[a2a.Part(text=text)], task_id=task_id)
    return a2a.SendMessageRequest(message=said)


async def send(client: Client, request: a2a.SendMessageRequest) -> tuple[a2a.Task, str]:
    """Sends a message; returns the task at the end of the stream, and the text of its last artifact."""
    task, text = a2a.Task(), ""
    async for event in client.send_message(request):
        if event.HasField("task"):
            task = event.task
        elif event.HasField("artifact_update"):
            update = event.artifact_update
            text = (text if update.append else "") + update.artifact.parts[0].text
        else:
            task.status.CopyFrom(event.status_update.status)
    return task, text


@pytest.mark.parametrize("binding", BINDINGS)
def test_a_task_with_an_approval(server: Server, binding: str) -> None:
    async def run() -> None:
        client = await client_of(server, "clerk", binding)
        asked, _ = await send(client, message("Pay order A-7 back."))
        assert asked.status.state == a2a.TASK_STATE_INPUT_REQUIRED
        paid, text = await send(client, message("approve", asked.id))
        assert (paid.id, paid.status.state, text) == (asked.id, a2a.TASK_STATE_COMPLETED, "Order A-7 is paid back.")
        read = await client.get_task(a2a.GetTaskRequest(id=asked.id))
        assert [said.parts[0].text for said in read.history] == ["Pay order A-7 back.", "approve"]
        with pytest.raises(TaskNotFoundError):
            await client.get_task(a2a.GetTaskRequest(id="unknown"))

    asyncio.run(run())


@pytest.mark.parametrize("binding", BINDINGS)
def test_after_sigkill_a_repeated_message_is_the_same_task(server: Server, binding: str) -> None:
    async def run() -> None:
        client = await client_of(server, "writer", binding)
        request = message("Write.")
        first, text = "", ""
        with contextlib.suppress(A2AClientError):
            async for event in client.send_message(request):
                first = event.task.id or first
                text += event.artifact_update.artifact.parts[0].text if event.HasField("artifact_update") else ""
                if "word9 " in text:
                    server.kill()
        assert SLOW_TEXT.startswith(text)
        assert text != SLOW_TEXT
        server.start()
        task, text = await send(client, request)
        assert (task.id, task.status.state, text) == (first, a2a.TASK_STATE_COMPLETED, SLOW_TEXT)

    asyncio.run(run())


def test_a_stream_of_grpc_does_not_end_well_when_the_server_stops(tmp_path: Path) -> None:
    """The stream ended with the status OK, as if the task had ended."""

    async def run(server: Server) -> None:
        client = await client_of(server, "writer", "GRPC")
        text = ""
        with pytest.raises(A2AClientError, match="the server stops before the task has ended"):
            async for event in client.send_message(message("Write.")):
                text += event.artifact_update.artifact.parts[0].text if event.HasField("artifact_update") else ""
                if "word9 " in text:
                    server.terminate()
        assert text != SLOW_TEXT

    with Server(tmp_path, "--agents", AGENTS) as server:
        asyncio.run(run(server))
