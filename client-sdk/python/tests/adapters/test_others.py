"""The adapters of the OpenAI Agents SDK, Google ADK, Pydantic AI and LlamaIndex."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types
from llama_index.core.base.llms.types import ChatMessage
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from server import Server, environment

from abide import Abide, sync
from abide.adapters.google_adk import AbideSessionService
from abide.adapters.llama_index import AbideChatStore
from abide.adapters.openai_agents import AbideSession
from abide.adapters.pydantic_ai import AbideHistory


async def test_openai_sessions(server: Server, client: Abide) -> None:
    session = AbideSession("s~1/x", client)
    items: list[Any] = [{"role": "user", "content": str(nth)} for nth in range(5)]
    await session.add_items(items)
    assert await session.get_items() == items
    assert await session.get_items(2) == items[3:]
    assert await session.pop_item() == items[4]
    async with server.client() as other:
        assert await AbideSession("s~1/x", other).get_items() == items[:4]
    await session.clear_session()
    assert await session.get_items() == []
    assert await session.pop_item() is None


async def test_large_conversations_are_written_in_several_calls(client: Abide) -> None:
    """Regression: only bytes were counted, so JSON of more than 8 MiB exceeded the limit of a call."""
    session = AbideSession("large", client)
    items: list[Any] = [{"role": "user", "content": f"{nth}" + "ü" * 450_000} for nth in range(12)]
    await session.add_items(items)
    assert await session.get_items() == items


async def test_adk_sessions(client: Abide) -> None:
    service = AbideSessionService(client)
    owner = {"app_name": "app", "user_id": "ann"}
    session = await service.create_session(**owner, session_id="s1", state={"a": 1, "user:b": 2, "app:c": 3})
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**owner, session_id="s1")
    for nth in range(4):
        content = types.Content(role="user", parts=[types.Part(text=str(nth))])
        delta = {"a": nth, "user:b": nth, "temp:t": 1}
        event = Event(author="user", content=content, actions=EventActions(state_delta=delta))
        await service.append_event(session, event)
    loaded = await service.get_session(**owner, session_id="s1")
    assert loaded is not None
    assert loaded.state == {"a": 3, "user:b": 3, "app:c": 3}
    assert loaded.events == session.events
    recent = await service.get_session(**owner, session_id="s1", config=GetSessionConfig(num_recent_events=2))
    assert recent is not None
    assert recent.events == session.events[2:]
    other = await service.create_session(app_name="app", user_id="bob")
    assert other.state == {"app:c": 3}
    assert [one.id for one in (await service.list_sessions(app_name="app")).sessions] == ["s1", other.id]
    assert await service.get_user_state(**owner) == {"b": 3}
    await service.delete_session(**owner, session_id="s1")
    assert await service.get_session(**owner, session_id="s1") is None


async def test_pydantic_ai_histories(client: Abide) -> None:
    agent = Agent(TestModel())
    history = AbideHistory("c1", client)
    for turn in range(3):
        result = await agent.run("hello", message_history=await history.load())
        await history.append(result.new_messages())
        assert await history.load() == result.all_messages()
        assert len(result.all_messages()) == 2 * (turn + 1)


def test_llama_index_chat_stores(server: Server) -> None:
    with sync.Abide.connect(server.url) as client:
        store = AbideChatStore(client)
        messages = [ChatMessage(role="user", content=str(nth)) for nth in range(4)]
        store.set_messages("ann", messages[:3])
        store.add_message("ann", messages[3])
        assert store.get_messages("ann") == messages
        assert store.delete_message("ann", 1) == messages[1]
        assert store.delete_last_message("ann") == messages[3]
        assert store.get_keys() == ["ann"]
        assert store.delete_messages("ann") == [messages[0], messages[2]]
        assert store.get_keys() == []


@pytest.mark.parametrize("name", ["openai_program", "adk_program"])
def test_an_agent_killed_in_a_tool_continues(server: Server, folder: Path, name: str) -> None:
    program = Path(__file__).with_name(f"{name}.py")
    command = [sys.executable, str(program), server.url, str(folder / "done")]
    process = subprocess.Popen([*command, "--stop"], stdout=subprocess.PIPE, env=environment())
    assert process.stdout is not None
    assert process.stdout.readline() == b"in the tool\n"
    process.kill()
    process.wait()
    process.stdout.close()
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment(), check=True)
    assert done.stdout.splitlines()[-1] == b"finished"
    assert (folder / "done").read_text() == "done\n"
