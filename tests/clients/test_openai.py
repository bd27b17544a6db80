"""The `openai` package for Python uses agents as models."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from openai.types.responses import Response

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "client-sdk/python/tests"))

from server import Server  # noqa: E402

AGENTS = str(Path(__file__).with_name("agents"))
SLOW_TEXT = " ".join(f"word{n}" for n in range(60))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder), "--agents", AGENTS) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def poll(client: openai.OpenAI, response: Response) -> Response:
    while response.status == "in_progress":
        response = client.responses.retrieve(response.id)
    return response


def test_a_session_with_an_approval(client: openai.OpenAI) -> None:
    asked = client.responses.create(model="clerk", input="Pay order A-7 back.", background=True)
    asked = poll(client, asked)
    request = asked.output[-1]
    assert request.type == "mcp_approval_request"
    approve = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    with client.responses.stream(model="clerk", previous_response_id=asked.id, input=[approve]) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        paid = stream.get_final_response()
    assert paid.output_text == text == "Order A-7 is paid back."
    thanks = client.responses.create(model="clerk", previous_response_id=paid.id, input="Thanks.")
    assert (thanks.status, thanks.output_text) == ("completed", "You are welcome.")


def test_after_sigkill_a_background_response_continues(server: Server, client: openai.OpenAI) -> None:
    begun = client.responses.create(model="writer", input="Write.", background=True)
    numbers = []
    text = ""
    with contextlib.suppress(Exception):  # Its type is that of the HTTP library.
        for event in client.responses.retrieve(begun.id, stream=True):
            numbers.append(event.sequence_number)
            if event.type == "response.output_text.delta":
                text += event.delta
                if "word9 " in event.delta:
                    server.kill()
    server.start()
    for event in client.responses.retrieve(begun.id, stream=True, starting_after=numbers[-1]):
        numbers.append(event.sequence_number)
        text += event.delta if event.type == "response.output_text.delta" else ""
    assert numbers == list(range(len(numbers)))
    assert text == SLOW_TEXT
    assert poll(client, begun).output_text == SLOW_TEXT


def test_a_response_is_cancelled(client: openai.OpenAI) -> None:
    begun = client.responses.create(model="writer", input="Write.", background=True)
    assert client.responses.cancel(begun.id).status == "cancelled"
    with pytest.raises(openai.NotFoundError, match="there is no response"):
        client.responses.retrieve("resp_1_run_unknown")


def test_the_client_of_the_page_runs(server: Server) -> None:
    """The example of `docs/open-responses.md`, with the address of this server."""
    page = (REPOSITORY / "docs/open-responses.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert example.count("\n") <= 10
    example = example.replace("http://127.0.0.1:7341", server.url)
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Order A-7 is paid back." in done.stdout
