"""Applications of tenants, next to another tenant, and next to a caller of the same scope that writes entries of its own."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from agents import TResponseInputItem
from google.adk.events.event import Event
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, MessagesState, StateGraph
from llama_index.core.base.llms.types import ChatMessage, ImageBlock
from pydantic_ai.messages import ModelRequest
from server import Server, binary

from abide import Abide, BadRequestError, LimitExceededError, MalformedEntryError
from abide.adapters.google_adk import AbideSessionService
from abide.adapters.langgraph import AbideSaver
from abide.adapters.langgraph_bytes import compress_entry
from abide.adapters.langgraph_dictionary import DICTIONARY
from abide.adapters.langgraph_entries import CheckpointEntry, write_checkpoint
from abide.adapters.langgraph_keys import checkpoint_key
from abide.adapters.langgraph_store import AbideStore
from abide.adapters.llama_index import AbideChatStore
from abide.adapters.openai_agents import AbideSession
from abide.adapters.pydantic_ai import AbideHistory

THREAD: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
VERSION = "000000001.AAAAAA"
VALUE = f"v//value/{VERSION}"
LONG = "a text that is not stored in the checkpoint itself, because it is too long for that"


class Tenants:
    """A server with tokens of the role `agent` for two tenants."""

    def __init__(self, server: Server, tokens: dict[str, str]) -> None:
        self._server = server
        self._tokens = tokens

    def client(self, tenant: str) -> Abide:
        return self._server.client(token=self._tokens[tenant])


@pytest.fixture
def tenants(folder: Path) -> Iterator[Tenants]:
    def token(name: str, *options: str) -> str:
        command = [binary(), "token", "create", name, *options, "--db", str(folder / "test.db")]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    token("root", "--role", "admin", "--capability", "*")
    tokens = {name: token(name, "--role", "agent", "--scope", f"tenant={name}") for name in ("acme", "zeta")}
    with Server(folder) as server:
        yield Tenants(server, tokens)


async def plant(client: Abide, key: str, data: Any, blob: bytes | None = None, collection: str = "langgraph/t") -> None:
    """The entries of another caller of the scope."""
    entry = {"key": key, "data": data, **({} if blob is None else {"blob": blob})}
    await client.call.write_entries(collection_id=collection, puts=[entry])


async def put_checkpoint(saver: AbideSaver, value: Any, thread: Any = THREAD) -> Any:
    checkpoint: Any = empty_checkpoint()
    checkpoint["channel_values"] = {"value": value}
    checkpoint["channel_versions"] = {"value": VERSION}
    return await saver.aput(thread, checkpoint, {"source": "input", "step": -1, "parents": {}}, {"value": VERSION})


async def put_stored(client: Abide, value: Any) -> tuple[str, bytes]:
    """Writes a checkpoint whose value has an entry of its own, in the thread of the tests. Returns its key and its bytes."""
    checkpoint: Any = {**empty_checkpoint(), "channel_versions": {"value": VERSION}}
    key = checkpoint_key("", checkpoint.pop("id"))
    checkpoint.pop("channel_values")
    packed = [JsonPlusSerializer().dumps_typed(one)[1] for one in ((checkpoint, {"source": "input", "step": -1}, {}), value)]
    await plant(client, VALUE, {"n": 1} if isinstance(value, list) else {}, deflated(packed[1]))
    blob = checkpoint_entry(key, packed[0])
    await plant(client, key, None, blob)
    return key, blob


def checkpoint_entry(key: str, head: bytes, kind: str = "msgpack") -> bytes:
    """The bytes of a checkpoint that refers to the value."""
    return write_checkpoint(key, CheckpointEntry(None, kind, head, {"value": VALUE}, {}))


async def loads_or_is_malformed(saver: AbideSaver) -> None:
    """Loads the thread: an error of any other class would be one that the application does not expect."""
    with suppress(MalformedEntryError):
        await saver.aget_tuple(THREAD)


def deflated(raw: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15, 8, zlib.Z_DEFAULT_STRATEGY, DICTIONARY)
    return packer.compress(raw) + packer.flush()


# Two tenants.


async def test_langgraphs_conformance_suite_passes_for_an_agent_of_a_tenant(tenants: Tenants) -> None:
    @checkpointer_test(name="AbideSaver")
    async def saver() -> AsyncIterator[AbideSaver]:
        async with tenants.client("acme") as client:
            yield AbideSaver(client)

    assert (await validate(saver)).passed_all()


async def test_langgraph_of_two_tenants(tenants: Tenants) -> None:
    async def answer(state: MessagesState) -> Any:
        return {"messages": [AIMessage(content=f"answer {len(state['messages'])}")]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    for tenant in ("acme", "zeta"):
        async with tenants.client(tenant) as client:
            compiled = graph.compile(checkpointer=AbideSaver(client))
            for turn in range(4):
                await compiled.ainvoke({"messages": [HumanMessage(content=f"{tenant} {turn} {LONG}")]}, THREAD)
    for tenant in ("acme", "zeta"):
        async with tenants.client(tenant) as client:
            saver, store = AbideSaver(client), AbideStore(client)
            state = await graph.compile(checkpointer=saver).aget_state(THREAD)
            assert [message.content[:6] for message in state.values["messages"][::2]] == [f"{tenant} {turn}" for turn in range(4)]
            assert {one.config["configurable"]["thread_id"] async for one in saver.alist(None)} == {"t"}
            await saver.aprune(["t"])
            assert len([one async for one in saver.alist(THREAD)]) == 1
            assert len((await graph.compile(checkpointer=AbideSaver(client)).aget_state(THREAD)).values["messages"]) == 8
            await store.aput(("users", "ann"), "prefs", {"of": tenant})
            assert [item.value for item in await store.asearch(("users",))] == [{"of": tenant}]
            assert await store.alist_namespaces() == [("users", "ann")]


async def test_the_other_adapters_of_two_tenants(tenants: Tenants) -> None:
    for _ in range(2):
        for tenant in ("acme", "zeta"):
            async with tenants.client(tenant) as client:
                item: TResponseInputItem = {"role": "user", "content": tenant}
                await AbideSession("u", client).add_items([item])
                await AbideHistory("u", client).append([ModelRequest.user_text_prompt(tenant)])
                await AbideChatStore(client).async_add_message("u", ChatMessage(content=tenant))
                service = AbideSessionService(client)
                name = {"app_name": "app", "user_id": "u"}
                session = await service.get_session(**name, session_id="s")
                session = session or await service.create_session(**name, session_id="s", state={"user:of": tenant, "n": tenant})
                await service.append_event(session, Event(author="user", invocation_id="i"))
    for tenant in ("acme", "zeta"):
        async with tenants.client(tenant) as client:
            assert await AbideSession("u", client).get_items() == [{"role": "user", "content": tenant}] * 2
            assert await AbideSession("u", client).get_items(1) == [{"role": "user", "content": tenant}]
            assert str(await AbideHistory("u", client).load()).count(f"content='{tenant}'") == 2
            chats = AbideChatStore(client)
            assert [message.content for message in await chats.aget_messages("u")] == [tenant] * 2
            assert await chats.aget_keys() == ["u"]
            await chats.aset_messages("u", [ChatMessage(content="x")])
            assert await chats.adelete_messages("u") == [ChatMessage(content="x")]
            service = AbideSessionService(client)
            session = await service.get_session(app_name="app", user_id="u", session_id="s")
            assert session is not None
            assert (len(session.events), session.state) == (2, {"user:of": tenant, "n": tenant})
            assert len((await service.list_sessions(app_name="app")).sessions) == 1


# Entries of another caller of the scope: LangGraph.


def hostile_values(proof: Path) -> dict[str, tuple[str, bytes]]:
    """Values that would create a file when they are loaded."""
    path = str(proof)
    system = ("os", "system", f"touch {path}")
    method = ("pathlib", "Path", path, "touch")
    exts = {
        "one argument": ormsgpack.Ext(0, ormsgpack.packb(system)),
        "arguments": ormsgpack.Ext(1, ormsgpack.packb((*system[:2], [system[2]]))),
        "keywords": ormsgpack.Ext(2, ormsgpack.packb((*system[:2], {"command": system[2]}))),
        "a method": ormsgpack.Ext(3, ormsgpack.packb(method)),
        "pydantic 1": ormsgpack.Ext(4, ormsgpack.packb((*system[:2], {"command": system[2]}))),
        "pydantic 2": ormsgpack.Ext(5, ormsgpack.packb((*system[:2], {"command": system[2]}, None))),
        "a builtin": ormsgpack.Ext(0, ormsgpack.packb(("builtins", "open", path))),
        "within": ormsgpack.Ext(0, ormsgpack.packb(("builtins", "set", [ormsgpack.Ext(0, ormsgpack.packb(system))]))),
    }
    found = {name: ("msgpack", ormsgpack.packb(ext)) for name, ext in exts.items()}
    constructor = {"lc": 2, "type": "constructor", "id": ["os", "system"], "args": [f"touch {path}"]}
    found["json"] = ("json", json.dumps(constructor).encode())
    found["pickle"] = ("pickle", pickle.dumps(_Touch(path)))
    return found


class _Touch:
    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self._path}",)


async def test_no_stored_value_runs_code(tenants: Tenants, folder: Path) -> None:
    proof = folder / "proof"
    async with tenants.client("acme") as client, tenants.client("acme") as other:
        key, blob = await put_stored(other, {"long": LONG})
        for kind, raw in hostile_values(proof).values():
            for target, data, bytes_ in (
                (key, None, checkpoint_entry(key, raw, kind)),
                (VALUE, {"t": kind}, raw),
                (f"w{key[1:]}/task/0", {"t": kind, "c": "value"}, raw),
            ):
                await plant(other, target, data, bytes_)
                await loads_or_is_malformed(AbideSaver(client))
                await plant(other, key, None, blob)
                await other.call.delete_entries(collection_id="langgraph/t", prefix=f"w{key[1:]}/task/0")
        assert not proof.exists()


@dataclass
class Order:
    """A class of an application."""

    number: int


async def test_own_classes_are_made_if_they_are_allowed(client: Abide) -> None:
    value = {"order": Order(8812), "long": LONG}
    await put_checkpoint(AbideSaver(client), value)
    for saver, expected in (
        (AbideSaver(client), {"number": 8812}),
        (AbideSaver(client, allowed_types=[Order]), Order(8812)),
        (AbideSaver(client, allowed_types=[(Order.__module__, "Order")]), Order(8812)),
        (AbideSaver(client).with_allowlist([(Order.__module__, "Order")]), Order(8812)),
        (AbideSaver(client, serde=JsonPlusSerializer(allowed_msgpack_modules=[Order])), Order(8812)),
    ):
        found = await saver.aget_tuple(THREAD)
        assert found is not None
        assert found.checkpoint["channel_values"]["value"]["order"] == expected


async def test_the_bytes_of_a_checkpoint_are_bounded(tenants: Tenants) -> None:
    bomb = deflated(ormsgpack.packb(b"\0" * (100 << 20)))
    root = deflated(ormsgpack.packb(b"\0" * (1 << 20)))
    async with tenants.client("acme") as client, tenants.client("acme") as other:
        key, blob = await put_stored(other, {"long": LONG})
        await plant(other, "v/x/root", {}, root)
        copies = {"f": "v/x/root", "o": [0, 0, 1 << 20] * 200}
        for target, data, bytes_ in (
            (key, None, compress_entry(ormsgpack.packb(b"\0" * (100 << 20)))),
            (VALUE, {}, bomb),
            (VALUE, {"t": "bytes+d"}, bomb),
            (VALUE, copies, b""),
            (f"w{key[1:]}/task/0", {"c": "value"}, bomb),
        ):
            await plant(other, target, data, bytes_)
            with pytest.raises(LimitExceededError) as refused:
                await AbideSaver(client).aget_tuple(THREAD)
            assert "max_bytes" in str(refused.value)
            await plant(other, key, None, blob)
            await plant(other, VALUE, {}, deflated(ormsgpack.packb("own")))
        await other.call.delete_entries(collection_id="langgraph/t", prefix=f"w{key[1:]}/task/0")
        found = await AbideSaver(client).aget_tuple(THREAD)
        assert found is not None
        assert found.checkpoint["channel_values"]["value"] == "own"


async def test_a_value_that_is_too_large_is_not_written(client: Abide) -> None:
    saver = AbideSaver(client, max_bytes=1000)
    with pytest.raises(LimitExceededError):
        await put_checkpoint(saver, "x" * 2000)
    assert await saver.aget_tuple(THREAD) is None


async def test_forged_references_end(tenants: Tenants) -> None:
    """Circles, missing bases and roots, and counts that do not fit. Other threads are not affected."""
    one = deflated(ormsgpack.packb(["x"]))
    async with tenants.client("acme") as client, tenants.client("acme") as other:
        await put_checkpoint(AbideSaver(client), ["y", LONG], {"configurable": {"thread_id": "good", "checkpoint_ns": ""}})
        await put_stored(other, ["y", LONG])
        key = VALUE
        folder = key.rsplit("/", 1)[0]
        await plant(other, f"{folder}/a", {"n": 1, "b": f"{folder}/b", "k": 1}, one)
        await plant(other, f"{folder}/b", {"n": 1, "b": "a", "k": 1}, one)
        await plant(other, f"{folder}/root", {"f": f"{folder}/root", "o": []}, one)
        await plant(other, f"{folder}/end", {"n": 1}, one)
        forged: list[Any] = [
            {"n": 1, "b": f"{folder}/a", "k": 1},
            {"n": 1, "b": key, "k": 1},
            {"n": 1, "b": key.rsplit("/", 1)[1], "k": 1},
            {"n": 1, "b": "none", "k": 1},
            {"n": 1, "b": f"{folder}/none", "k": 1},
            {"n": 1, "b": f"{folder}/end", "k": 2},
            {"n": 1, "b": f"{folder}/end", "k": -1},
            {"n": 1, "b": f"{folder}/end", "k": True},
            {"n": 1, "b": ["x"], "k": 0},
            {"f": key, "o": []},
            {"f": f"{folder}/root", "o": [0, 0, 1]},
            {"f": f"{folder}/none", "o": []},
            {"f": f"{folder}/end", "o": [0, 0]},
            {"f": f"{folder}/end", "o": [0, -1, 1]},
            {"f": f"{folder}/end", "o": [0, 0, 1000]},
            {"f": f"{folder}/end", "o": "x"},
            {"f": f"{folder}/end"},
            {"f": 7, "o": []},
            {"t": 7},
        ]
        for data in forged:
            await plant(other, key, data, one)
            with pytest.raises(MalformedEntryError) as refused:
                await AbideSaver(client).aget_tuple(THREAD)
            assert (refused.value.code, bool(refused.value.hint)) == ("malformed_entry", True)
            with pytest.raises(MalformedEntryError):
                _ = [found async for found in AbideSaver(client).alist(THREAD)]
        names = {found.config["configurable"]["thread_id"] async for found in AbideSaver(client).alist(None)}
        assert names == {"good"}
        await AbideSaver(client).adelete_thread("t")
        await put_checkpoint(AbideSaver(client), ["y", LONG])
        assert await AbideSaver(client).aget_tuple(THREAD) is not None


async def test_malformed_checkpoints_are_errors_of_their_thread(tenants: Tenants) -> None:
    async with tenants.client("acme") as client, tenants.client("acme") as other:
        await put_checkpoint(AbideSaver(client), {"long": LONG}, {"configurable": {"thread_id": "good", "checkpoint_ns": ""}})
        key, blob = await put_stored(other, {"long": LONG})
        for data, bytes_ in (
            ([], blob),
            ("x", blob),
            (None, b"no deflate"),
            (None, blob[:-3]),
            (None, compress_entry(ormsgpack.packb(7))),
            (None, compress_entry(ormsgpack.packb([[], [], []]))),
            (None, compress_entry(ormsgpack.packb(["=x", b"", {}, [], {}]))),
            (None, checkpoint_entry(key, ormsgpack.packb(7))),
            (None, checkpoint_entry(key, ormsgpack.packb([[], [], []]))),
        ):
            await plant(other, key, data, bytes_)
            await loads_or_is_malformed(AbideSaver(client))
        for name in ("c/x", "c//=x", "c/x/y/z", "v", "w/x", "c//%FF"):
            await plant(other, name, {})
        await other.call.write_entries(collection_id="mine", kind="langgraph", puts=[{"key": "c//x", "data": {}}])
        await other.call.write_entries(collection_id="langgraph", kind="langgraph", puts=[{"key": "c//x", "data": {}}])
        names = {found.config["configurable"]["thread_id"] async for found in AbideSaver(client).alist(None)}
        assert "good" in names


async def test_malformed_items_of_a_store_are_left_out(tenants: Tenants) -> None:
    async with tenants.client("acme") as client, tenants.client("acme") as other:
        store = AbideStore(client)
        await store.aput(("users", "ann"), "k", {"a": 1})
        for key, data in (("users/ann/x", {}), ("users/ann//y", [1]), ("users", 7), ("users/ann//z", "text")):
            await plant(other, key, data, collection="langgraph-store")
        assert [item.value for item in await store.asearch(("users",))] == [{"a": 1}]
        assert [item.value for item in await store.asearch(("users",), filter={"a": 1})] == [{"a": 1}]
        assert await store.aget(("users", "ann"), "y") is None
        assert await store.alist_namespaces() == [("users", "ann")]


# Entries of another caller of the scope: the other adapters.


async def test_malformed_items_are_errors_of_their_conversation(tenants: Tenants) -> None:
    async with tenants.client("acme") as client, tenants.client("acme") as other:
        item: TResponseInputItem = {"role": "user", "content": "hi"}
        await AbideSession("good", client).add_items([item])
        await AbideHistory("good", client).append([ModelRequest.user_text_prompt("hi")])
        await AbideChatStore(client).async_add_message("good", ChatMessage(content="hi"))
        for kind in ("openai-agents", "pydantic-ai", "llama-index"):
            await other.call.write_entries(collection_id=f"x-{kind}", kind=kind, puts=[{"key": "k", "data": [1]}])
        for data in ({}, [], [1], "x", 7, ["x", "y"], [{"role": 7, "kind": 7, "blocks": 7}]):
            for kind in ("openai-agents", "pydantic-ai", "llama-index"):
                await plant(other, "k", data, collection=f"{kind}/u")
            if data != [{"role": 7, "kind": 7, "blocks": 7}]:  # Any object is an item of the OpenAI SDK.
                for limit in (None, 1):
                    with pytest.raises(MalformedEntryError):
                        await AbideSession("u", client).get_items(limit)
            for _ in range(2):
                with pytest.raises(MalformedEntryError):
                    await AbideHistory("u", client).load()
                with pytest.raises(MalformedEntryError):
                    await AbideChatStore(client).aget_messages("u")
        assert await AbideSession("good", client).get_items() == [item]
        assert len(await AbideHistory("good", client).load()) == 1
        assert len(await AbideChatStore(client).aget_messages("good")) == 1
        assert await AbideChatStore(client).aget_keys() == ["good"]
        await AbideHistory("u", client).clear()
        assert await AbideHistory("u", client).load() == []


async def test_malformed_sessions_of_adk(tenants: Tenants) -> None:
    async with tenants.client("acme") as client, tenants.client("acme") as other:
        service = AbideSessionService(client)
        name = {"app_name": "app", "user_id": "u"}
        await service.create_session(**name, session_id="good", state={"app:a": 1, "user:b": 2, "c": 3})
        kind = "google-adk"
        for at, head in enumerate(({}, [], 7, {"state": 7, "updated": 1}, {"state": {}, "updated": "x"})):
            await other.call.write_entries(
                collection_id=f"google-adk/app/u/bad{at}", kind=kind, puts=[{"key": "session", "data": head}]
            )
            with pytest.raises(MalformedEntryError):
                await service.get_session(**name, session_id=f"bad{at}")
        good = {"state": {}, "updated": 1.0}
        puts = [{"key": "session", "data": good}, {"key": "e/0/x", "data": {"author": 7}}]
        await other.call.write_entries(collection_id="google-adk/app/u/event", kind=kind, puts=puts)
        with pytest.raises(MalformedEntryError):
            await service.get_session(**name, session_id="event")
        for collection in ("google-adk/app/u/a/b", "google-adk/app/u", "elsewhere"):
            await other.call.write_entries(collection_id=collection, kind=kind, puts=[{"key": "session", "data": good}])
        for at, entry in enumerate((7, {}, [1], [1, 2], ["a", 1, 2])):
            await plant(other, f"x{at}", entry, collection="google-adk-state/app")
        session = await service.get_session(**name, session_id="good")
        assert session is not None
        assert session.state == {"app:a": 1, "user:b": 2, "c": 3}
        listed = {session.id for session in (await service.list_sessions(app_name="app")).sessions}
        assert listed == {"good", "event"}


async def test_no_stored_message_names_a_local_file(tenants: Tenants, folder: Path) -> None:
    secret = folder / "secret.png"
    secret.write_text("secret")
    path = {"block_type": "image", "path": str(secret)}
    blocks: list[Any] = [
        path,
        {"block_type": "document", "path": str(secret)},
        {"block_type": "audio", "path": str(secret)},
        {"block_type": "video", "path": str(secret)},
        {"block_type": "image", "url": f"file://{secret}"},
        {"block_type": "document", "url": str(secret)},
        {"block_type": "citable", "title": "t", "source": "s", "content": [path]},
        {"block_type": "citation", "cited_content": path, "source": "s", "title": "t", "additional_location_info": {}},
    ]
    async with tenants.client("acme") as client, tenants.client("acme") as other:
        store = AbideChatStore(client)
        for block in blocks:
            for item in ({"role": "user", "blocks": [block]}, {"role": "user", "content": [block]}):
                await plant(other, "k", [item], collection="llama-index/u")
                with pytest.raises(MalformedEntryError, match="local file"):
                    await store.aget_messages("u")
                with pytest.raises(MalformedEntryError):
                    await store.adelete_message("u", 0)
        message = ChatMessage(blocks=[ImageBlock(path=secret)])
        with pytest.raises(BadRequestError):
            await store.async_add_message("v", message)
        allowing = AbideChatStore(client, allow_local_paths=True)
        await allowing.async_add_message("v", message)
        [found] = await allowing.aget_messages("v")
        assert isinstance(found.blocks[0], ImageBlock)
        assert found.blocks[0].resolve_image().read() == b"secret"
        with pytest.raises(MalformedEntryError):
            await store.aget_messages("v")
        plain = ChatMessage(blocks=[ImageBlock(url="https://example.com/a.png"), ImageBlock(image=b"\x89PNG\r\n\x1a\n")])
        await store.async_add_message("w", plain)
        assert len((await store.aget_messages("w"))[0].blocks) == 2
