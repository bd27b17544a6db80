"""The LangGraph adapters: LangGraph's own conformance suite, graphs, and an agent that is killed in a tool."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.graph import START, MessagesState, StateGraph
from server import Server, environment

from abide import Abide, ClosedError, sync
from abide.adapters.langgraph import AbideSaver
from abide.adapters.langgraph_store import AbideStore

PROGRAM = Path(__file__).with_name("langgraph_program.py")


def config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def chat() -> StateGraph[Any, Any, Any, Any]:
    async def answer(state: MessagesState) -> Any:
        return {"messages": [AIMessage(content=f"answer {len(state['messages'])}")]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    return graph


async def test_the_conformance_suite_passes_completely(server: Server) -> None:
    @checkpointer_test(name="AbideSaver")
    async def saver() -> AsyncIterator[AbideSaver]:
        async with server.client() as client:
            yield AbideSaver(client)

    report = await validate(saver)
    assert report.passed_all()


async def test_a_thread_grows_linearly_and_is_read_by_another_process(server: Server, client: Abide) -> None:
    graph = chat().compile(checkpointer=AbideSaver(client))
    sizes = []
    for turn in range(40):
        await graph.ainvoke({"messages": [HumanMessage(content=f"question {turn}")]}, config("t"))
        sizes.append((await client.sql("SELECT sum(length(key) + coalesce(length(data), 0) + length(blob)) FROM entries")).scalar())
    assert sizes[39] - sizes[29] < 1.5 * (sizes[19] - sizes[9])
    async with server.client() as other:
        state = await chat().compile(checkpointer=AbideSaver(other)).aget_state(config("t"))
        assert [message.content for message in state.values["messages"]][:3] == ["question 0", "answer 1", "question 1"]
        assert len(state.values["messages"]) == 80


async def test_a_message_changed_in_place_is_stored(client: Abide) -> None:
    saver = AbideSaver(client)

    async def edit(state: MessagesState) -> Any:
        first = state["messages"][0]
        first.content = "edited"
        return {"messages": [first]}

    graph = StateGraph(MessagesState)
    graph.add_node("edit", edit)
    graph.add_edge(START, "edit")
    await graph.compile(checkpointer=saver).ainvoke({"messages": [HumanMessage(content="x")]}, config("t"))
    fresh = await AbideSaver(client).aget_tuple(config("t"))
    assert fresh is not None
    assert fresh.checkpoint["channel_values"]["messages"][0].content == "edited"


async def test_a_thread_deleted_by_another_process_is_written_whole(client: Abide) -> None:
    one, two = AbideSaver(client), AbideSaver(client)
    graph = chat().compile(checkpointer=one)
    await graph.ainvoke({"messages": [HumanMessage(content="a", id="1")]}, config("t"))
    state = await graph.aget_state(config("t"))
    await two.adelete_thread("t")
    await graph.aupdate_state(config("t"), {"messages": state.values["messages"]}, as_node="answer")
    assert len((await chat().compile(checkpointer=two).aget_state(config("t"))).values["messages"]) == 2


def test_the_synchronous_methods(server: Server) -> None:
    def answer(state: MessagesState) -> Any:
        return {"messages": [AIMessage(content="hi")]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    with sync.Abide.connect(server.url) as client:
        compiled = graph.compile(checkpointer=AbideSaver(client))
        for _ in range(3):
            compiled.invoke({"messages": [HumanMessage(content="x")]}, config("t"))
        assert len(compiled.get_state(config("t")).values["messages"]) == 6
        assert len(list(compiled.get_state_history(config("t")))) == 9
        with AbideStore(client) as store:
            store.put(("users", "ann"), "prefs", {"theme": "dark", "n": 1})
            assert store.search(("users",), filter={"n": {"$gte": 1}})[0].key == "prefs"


async def test_an_adapter_of_a_closed_client(server: Server) -> None:
    """Also of one that is closed while an asynchronous method waits for it."""
    closed = sync.Abide.connect(server.url)
    saver = AbideSaver(closed)
    closed.close()
    with pytest.raises(ClosedError):
        saver.get_tuple(config("t"))
    with pytest.raises(ClosedError):
        await saver.aget_tuple(config("t"))
    closing = sync.Abide.connect(server.url)
    server.kill()
    read = asyncio.create_task(AbideSaver(closing).aget_tuple(config("t")))
    await asyncio.sleep(0)
    await asyncio.to_thread(closing.close)
    with pytest.raises(ClosedError):
        await read


async def test_the_store(client: Abide) -> None:
    store = AbideStore(client)
    await store.aput(("a", "b"), "k/1", {"x": 1})
    await store.aput(("a",), "k", {"x": {"y": [1, 2]}})
    await store.aput(("c/d",), "k", {"x": 3})
    item = await store.aget(("a", "b"), "k/1")
    assert item is not None
    assert (item.namespace, item.key, item.value) == (("a", "b"), "k/1", {"x": 1})
    assert {found.key for found in await store.asearch(("a",))} == {"k", "k/1"}
    assert await store.asearch(("a",), filter={"x": {"y": [1, 2]}}) != []
    assert await store.alist_namespaces() == [("a",), ("a", "b"), ("c/d",)]
    assert await store.alist_namespaces(prefix=("a",), max_depth=1) == [("a",)]
    await store.adelete(("a",), "k")
    assert await store.aget(("a",), "k") is None


@pytest.mark.parametrize("stop", [True])
def test_an_agent_killed_in_a_tool_continues(server: Server, folder: Path, stop: bool) -> None:
    command = [sys.executable, str(PROGRAM), server.url, str(folder / "done")]
    process = subprocess.Popen([*command, *(["--stop"] if stop else [])], stdout=subprocess.PIPE, env=environment())
    assert process.stdout is not None
    assert process.stdout.readline() == b"in the tool\n"
    process.kill()
    process.wait()
    process.stdout.close()
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment(), check=True)
    assert done.stdout.splitlines()[-1] == b"human,ai,tool,ai"
    assert (folder / "done").read_text() == "done\n"
