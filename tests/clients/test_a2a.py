"""The client of the A2A SDK for Python uses agents."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import queue
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientError
from a2a.types import a2a_pb2 as a2a
from a2a.utils.errors import TaskNotFoundError
from a2a.utils.signing import InvalidSignaturesError, create_signature_verifier
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from jwt import PyJWK

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
        text, is_stopping = "", False
        with pytest.raises(A2AClientError, match="the server stops before the task has ended"):
            async for event in client.send_message(message("Write.")):
                text += event.artifact_update.artifact.parts[0].text if event.HasField("artifact_update") else ""
                if "word9 " in text and not is_stopping:
                    server.terminate()
                    is_stopping = True
        assert text != SLOW_TEXT

    # With the default, the step ends first, and with it the task.
    with Server(tmp_path, "--agents", AGENTS, "--drain", "0s") as server:
        asyncio.run(run(server))


async def card_of(server: Server, agent: str) -> a2a.AgentCard:
    async with httpx.AsyncClient() as http:
        return await A2ACardResolver(http, f"{server.url}/a2a/{agent}").get_agent_card()


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
def test_a_client_of_version_0_3_uses_the_same_tasks(server: Server, binding: str) -> None:
    async def run() -> None:
        card = await card_of(server, "clerk")
        legacy = [it for it in card.supported_interfaces if it.protocol_version.startswith("0.3")]
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(legacy)
        client = ClientFactory(ClientConfig(supported_protocol_bindings=[binding])).create(card)
        asked, _ = await send(client, message("Pay order A-7 back."))
        assert asked.status.state == a2a.TASK_STATE_INPUT_REQUIRED
        paid, text = await send(client, message("approve", asked.id))
        assert (paid.status.state, text) == (a2a.TASK_STATE_COMPLETED, "Order A-7 is paid back.")
        modern = await client_of(server, "clerk", "JSONRPC")
        for reader in (client, modern):
            read = await reader.get_task(a2a.GetTaskRequest(id=asked.id))
            assert [said.parts[0].text for said in read.history] == ["Pay order A-7 back.", "approve"]
            assert read.artifacts[-1].parts[0].text == "Order A-7 is paid back."
            with pytest.raises(TaskNotFoundError):
                await reader.get_task(a2a.GetTaskRequest(id="unknown"))

    asyncio.run(run())


class Receiver:
    """Receives push notifications, and answers with a status."""

    def __init__(self) -> None:
        self.status = 200
        self.requests: queue.Queue[tuple[dict[str, str], bytes]] = queue.Queue()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status = receiver.status
                receiver.requests.put(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(status)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/hook"

    def next(self) -> tuple[dict[str, str], bytes]:
        return self.requests.get(timeout=30)

    def until(self, last: bytes) -> list[tuple[dict[str, str], bytes]]:
        """The notifications until the one that contains this text."""
        found = [self.next()]
        while last not in found[-1][1]:
            found.append(self.next())
        return found


def signing_key(folder: Path) -> Path:
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path = folder / "signing.pem"
    path.write_bytes(pem)
    return path


def test_push_notifications_arrive_after_sigkill(tmp_path: Path) -> None:
    """The server is killed when an event is stored and not delivered. Each notification arrives, in order, and is signed."""
    receiver = Receiver()
    receiver.status = 503
    key = signing_key(tmp_path)
    options = ["--agents", AGENTS, "--webhook-allow-private", "127.0.0.1", "--signing-key", str(key)]

    async def ask(server: Server) -> a2a.Task:
        client = await client_of(server, "clerk", "JSONRPC")
        request = message("Pay order A-7 back.")
        push = request.configuration.task_push_notification_config
        push.id, push.url, push.token = "mine", receiver.url, "secret"
        task, _ = await send(client, request)
        return task

    async def approve(server: Server, task: a2a.Task) -> None:
        await send(await client_of(server, "clerk", "GRPC"), message("approve", task.id))

    with Server(tmp_path, *options) as server:
        asked = asyncio.run(ask(server))
        first, _ = receiver.next()
        server.kill()
        receiver.status = 200
        server.start()
        found = receiver.until(b"TASK_STATE_INPUT_REQUIRED")
        asyncio.run(approve(server, asked))
        found += receiver.until(b"TASK_STATE_COMPLETED")
        keys = httpx.get(f"{server.url}/.well-known/jwks.json").json()["keys"]
    ids = [headers["webhook-id"] for headers, _ in found]
    kept = [wanted for n, wanted in enumerate(ids) if wanted not in ids[:n]]
    numbers = [tuple(int(number) for number in wanted.rsplit(".", 2)[1:]) for wanted in kept]
    assert numbers == sorted(numbers)
    assert kept[0] == first["webhook-id"]
    assert "task" in json.loads(found[0][1])
    public = Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(keys[0]["x"] + "="))
    for headers, body in found:
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        mac, signature = (text.split(",", 1)[1] for text in headers["webhook-signature"].split(" "))
        assert base64.b64decode(mac) == hmac.digest(b"secret", signed, hashlib.sha256)
        public.verify(base64.b64decode(signature), signed)


def test_a_card_is_signed(tmp_path: Path) -> None:
    key = signing_key(tmp_path)
    with Server(tmp_path, "--agents", AGENTS, "--signing-key", str(key)) as server:
        card = asyncio.run(card_of(server, "clerk"))
        extended = httpx.get(f"{server.url}/a2a/clerk/extendedAgentCard", headers={"A2A-Version": "1.0"}).json()

        def key_of(kid: str | None, jku: str | None) -> PyJWK:
            assert jku == f"{server.url}/.well-known/jwks.json"
            return next(PyJWK(key) for key in httpx.get(jku).json()["keys"] if key["kid"] == kid)

        verify = create_signature_verifier(key_of, ["EdDSA"])
        verify(card)
        card.description = "Another agent."
        with pytest.raises(InvalidSignaturesError):
            verify(card)
    assert [skill["id"] for skill in extended["skills"]] == ["clerk", "clerk/look", "clerk/refund"]
