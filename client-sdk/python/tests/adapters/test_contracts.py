"""The adapters against the backends of the frameworks: the same random operations have the same results."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from agents import SQLiteSession
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions import InMemorySessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types
from langgraph.store.memory import InMemoryStore
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.storage.chat_store import SimpleChatStore
from server import Server

from abide import Abide, sync
from abide.adapters.google_adk import AbideSessionService
from abide.adapters.langgraph_store import AbideStore
from abide.adapters.llama_index import AbideChatStore
from abide.adapters.openai_agents import AbideSession
from abide.errors import LeaseLostError


@pytest.mark.parametrize("seed", range(2))
async def test_openai_sessions(server: Server, seed: int) -> None:
    chance = random.Random(seed)
    async with server.client() as first, server.client() as second:
        ours = [AbideSession("s", first), AbideSession("s", second)]
        theirs = SQLiteSession("s")
        for nth in range(60):
            one = chance.choice(ours)
            match chance.choice(["add", "add", "add", "pop", "pop", "limit", "none", "clear" if nth % 11 == 0 else "add"]):
                case "add":
                    items: list[Any] = [{"role": "user", "content": f"{nth}.{at}"} for at in range(chance.randint(0, 3))]
                    if nth % 5 == 0:
                        items.append({"type": "function_call_output", "output": [{"n": 1, "x": None}], "z": "é\0\\"})
                    await one.add_items(items)
                    await theirs.add_items(items)
                case "pop":
                    assert await one.pop_item() == await theirs.pop_item()
                case "limit":
                    limit = chance.randint(0, 4)
                    assert await one.get_items(limit) == await theirs.get_items(limit)
                case "clear":
                    await one.clear_session()
                    await theirs.clear_session()
            assert await chance.choice(ours).get_items() == await theirs.get_items()
        theirs.close()


def shown(session: Session | None) -> Any:
    """A session, comparable: states with the values that JSON has."""
    if session is None:
        return None
    return session.id, session.state, [event.model_dump(mode="json") for event in session.events]


def event_of(chance: random.Random, nth: int) -> Event:
    parts = [
        types.Part(text=f"text {nth}"),
        types.Part(inline_data=types.Blob(data=b"\xff\x00", mime_type="image/png")),
        types.Part(function_call=types.FunctionCall(name="f", args={})),
        types.Part(function_call=types.FunctionCall(name="f", args={"a": None, "b": {}, "c": ""})),
        types.Part(function_response=types.FunctionResponse(name="f", response={"x": [1, 1.5, None, {}]})),
    ]
    names = ["a", "b", "user:a", "app:a", "temp:a", "app:b/~%"]
    delta: dict[str, Any] = {name: chance.choice([nth, None, {}, "", [1]]) for name in chance.sample(names, chance.randint(0, 3))}
    event = Event(author=chance.choice(["user", "agent"]), invocation_id=chance.choice(["", "i1"]), timestamp=1_700_000_000.5 + nth)
    if chance.random() < 0.9:
        event.content = types.Content(role="user", parts=chance.sample(parts, chance.randint(0, 3)))
    if delta or chance.random() < 0.5:
        event.actions = EventActions(state_delta=delta, artifact_delta={"file": nth} if nth % 3 == 0 else {})
    event.long_running_tool_ids = chance.choice([None, set(), {"t1", "t2"}])
    event.custom_metadata = chance.choice([None, {}, {"k": {}}])
    event.partial = chance.choice([None, None, None, True, False])
    return event


@pytest.mark.parametrize("theirs_is", ["memory", "sqlite"])
@pytest.mark.parametrize("seed", range(2))
async def test_adk_sessions(server: Server, folder: Path, seed: int, theirs_is: str) -> None:
    chance = random.Random(seed)
    theirs: Any = InMemorySessionService() if theirs_is == "memory" else SqliteSessionService(str(folder / "adk.db"))
    async with server.client() as first, server.client() as second:
        ours = [AbideSessionService(first), AbideSessionService(second)]
        for nth in range(50):
            one = chance.choice(ours)
            owner = {"app_name": "app", "user_id": chance.choice(["ann", "bob/x"]), "session_id": chance.choice(["s1", "s2"])}
            mine, other = await one.get_session(**owner), await theirs.get_session(**owner)
            assert shown(mine) == shown(other)
            if mine is None or chance.random() < 0.1:
                state = chance.choice([None, {"a": 1, "user:a": {"deep": [1]}, "app:a": 2, "temp:t": 3}])
                done = []
                for service in (one, theirs):
                    try:
                        done.append(shown(await service.create_session(**owner, state=state)))
                    except AlreadyExistsError:
                        done.append(AlreadyExistsError)
                assert done[0] == done[1]
            elif chance.random() < 0.05:
                await one.delete_session(**owner)
                await theirs.delete_session(**owner)
            else:
                # As an agent does it: several events with one session.
                for at in range(chance.randint(1, 3)):
                    event = event_of(chance, nth * 10 + at)
                    await one.append_event(mine, event.model_copy(deep=True))
                    await theirs.append_event(other, event)
                    assert mine.state == other.state
                mine.events.clear()
                mine.state.clear()
            config = GetSessionConfig(
                num_recent_events=chance.choice([None, 0, 1, 3]),
                after_timestamp=chance.choice([None, 1_700_000_000.5 + nth * 5]),
            )
            service = chance.choice([*ours, AbideSessionService(first)])
            found = await service.get_session(**owner, config=config)
            assert shown(found) == shown(await theirs.get_session(**owner, config=config))
            assert await service.get_user_state(app_name="app", user_id="ann") == await theirs.get_user_state(
                app_name="app", user_id="ann"
            )
        for user in (None, "ann", "absent"):
            mine, other = (
                await ours[0].list_sessions(app_name="app", user_id=user),
                await theirs.list_sessions(app_name="app", user_id=user),
            )
            key = [(one.user_id, one.id, one.state) for one in mine.sessions]
            assert sorted(key, key=repr) == sorted([(one.user_id, one.id, one.state) for one in other.sessions], key=repr)
            assert [one.last_update_time for one in mine.sessions] == sorted(one.last_update_time for one in mine.sessions)


async def test_adk_sessions_that_another_process_deletes(server: Server, client: Abide) -> None:
    owner = {"app_name": "app", "user_id": "ann", "session_id": "s1"}
    one = AbideSessionService(client)
    async with server.client() as second:
        two = AbideSessionService(second)
        session = await one.create_session(**owner, state={"a": 1})
        await two.append_event(session, Event(author="user", actions=EventActions(state_delta={"b": 2})))
        mine = await one.get_session(**owner)
        assert mine is not None
        assert mine.state == {"a": 1, "b": 2}
        assert mine.last_update_time == mine.events[-1].timestamp
        # Both change the state, from what they have read.
        for nth in range(3):
            await one.append_event(mine, Event(author="user", actions=EventActions(state_delta={f"one{nth}": nth})))
            await two.append_event(session, Event(author="user", actions=EventActions(state_delta={f"two{nth}": nth})))
        mine = await one.get_session(**owner)
        assert mine is not None
        assert len(mine.state) == 8
        assert len(mine.events) == 7
        await two.delete_session(**owner)
        with pytest.raises(SessionNotFoundError):
            await one.append_event(mine, Event(author="user"))
        await two.create_session(**owner)
        again = await one.get_session(**owner)
        assert again is not None
        assert (again.state, again.events) == ({}, [])


async def test_an_adk_session_that_a_worker_has_fenced(client: Abide) -> None:
    """Regression: a lost lease is a conflict, and the write was tried again for ever."""
    owner = {"app_name": "app", "user_id": "ann", "session_id": "s1"}
    service = AbideSessionService(client)
    session = await service.create_session(**owner)
    await client.call.register_tool(name="work", effect="idempotent")
    await client.call.create_session(agent="a", id="s1")
    request = {"call_id": "c1", "session_id": "s1", "tool_name": "work", "arguments": {}, "claim_lease_ms": 60_000}
    claim = {"call_id": "c1", "fencing_token": (await client.call.request_tool_call(**request))["fencing_token"]}
    args = {"collection_id": "google-adk/app/ann/s1", "puts": [{"key": "other", "data": 1}], **claim}
    await client.call("write_entries", args)
    for delta in ({}, {"a": 1}):
        with pytest.raises(LeaseLostError):
            await service.append_event(session, Event(author="user", actions=EventActions(state_delta=delta)))


async def test_adk_callers_can_change_what_they_get(client: Abide) -> None:
    owner = {"app_name": "app", "user_id": "ann", "session_id": "s1"}
    service = AbideSessionService(client)
    session = await service.create_session(**owner, state={"a": {"deep": [1]}})
    content = types.Content(role="user", parts=[types.Part(text="x", function_call=types.FunctionCall(args={"k": [1]}))])
    await service.append_event(session, Event(author="user", content=content, custom_metadata={"m": [1]}))
    expected = shown(await service.get_session(**owner))
    for _ in range(2):
        found = await service.get_session(**owner)
        assert found is not None
        assert shown(found) == expected
        found.state["a"]["deep"].append(2)
        event = found.events[0]
        assert event.content is not None
        assert event.content.parts is not None
        event.content.parts[0].text = "changed"
        event.custom_metadata["m"].append(2)  # type: ignore[index]
        event.actions.state_delta["new"] = 1


@pytest.mark.parametrize("seed", range(2))
def test_llama_index_chat_stores(server: Server, seed: int) -> None:
    chance = random.Random(seed)
    theirs = SimpleChatStore()
    with sync.Abide.connect(server.url) as first, sync.Abide.connect(server.url) as second:
        ours = [AbideChatStore(first), AbideChatStore(second)]
        for nth in range(60):
            one, key = chance.choice(ours), chance.choice(["a", "b/~"])
            messages = [ChatMessage(role="user", content=f"{nth}.{at}") for at in range(chance.randint(1, 4))]
            match chance.choice(["set", "add", "add", "delete", "last", "at", "at"]):
                case "set":
                    one.set_messages(key, messages)
                    theirs.set_messages(key, list(messages))
                case "add":
                    one.add_message(key, messages[0])
                    theirs.add_message(key, messages[0])
                case "delete":
                    assert (one.delete_messages(key) or []) == (theirs.delete_messages(key) or [])
                case "last" if theirs.get_messages(key):
                    assert one.delete_last_message(key) == theirs.delete_last_message(key)
                case "at":
                    at = chance.randint(0, 4)
                    assert one.delete_message(key, at) == theirs.delete_message(key, at)
            assert chance.choice(ours).get_messages(key) == theirs.get_messages(key)
            assert one.get_keys() == sorted(key for key in theirs.get_keys() if theirs.get_messages(key))


@pytest.mark.parametrize("count", [3, 450])
async def test_messages_are_replaced_in_one_transaction(server: Server, client: Abide, count: int) -> None:
    """Regression: `set_messages` deleted and then wrote, so that a reader saw an empty or a partial history."""
    store = AbideChatStore(client)
    lists = [[ChatMessage(role="user", content=f"{name}{nth}") for nth in range(count)] for name in "ab"]
    await store.aset_messages("k", lists[0])
    async with server.client() as other:
        reader = AbideChatStore(other)
        is_done = False

        async def write() -> None:
            nonlocal is_done
            for nth in range(1, 7):
                await store.aset_messages("k", lists[nth % 2])
            is_done = True

        async def read() -> None:
            while not is_done:
                assert await reader.aget_messages("k") in lists

        await asyncio.gather(write(), read())
        assert await reader.aget_messages("k") == lists[0]
        await store.aset_messages("k", [])
        assert await reader.aget_messages("k") == []


async def test_langgraph_stores(client: Abide) -> None:
    chance = random.Random(1)
    ours, theirs = AbideStore(client), InMemoryStore()
    namespaces = [("a",), ("a", "b"), ("a", "b/c"), ("é",)]
    for nth in range(60):
        namespace, key = chance.choice(namespaces), chance.choice(["k", "k/1", "~"])
        value: Any = chance.choice([{"n": nth}, {"n": nth % 3, "deep": {"x": [1, None]}}, None])
        for store in (ours, theirs):
            await (store.adelete(namespace, key) if value is None else store.aput(namespace, key, value))
        results = []
        for store in (ours, theirs):
            item = await store.aget(namespace, key)
            found = await store.asearch(("a",), limit=100)
            some = await store.asearch(("a",), filter={"n": {"$gte": 1}}, limit=100)
            kept = [{(one.namespace, one.key): one.value for one in items} for items in (found, some)]
            spaces = sorted(await store.alist_namespaces(limit=100)) if store is ours else None
            results.append((item and (item.namespace, item.key, item.value), kept))
            if spaces is not None:
                stored = {one.namespace for one in await theirs.asearch((), limit=1000)}
                assert spaces == sorted(stored)
        assert results[0] == results[1]
