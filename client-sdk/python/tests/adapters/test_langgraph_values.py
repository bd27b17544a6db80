"""How LangGraph's values are stored: compared with LangGraph's saver in memory, with several savers and after a kill."""

from __future__ import annotations

import asyncio
import random
import uuid
import zlib
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from server import Server

from abide import Abide
from abide.adapters import langgraph, langgraph_bytes, langgraph_entries, langgraph_values
from abide.adapters.langgraph import AbideSaver
from abide.adapters.langgraph_keys import base_key, long_id, short_id, version_count, version_prefix
from abide.adapters.untrusted import Budget


def config(thread: str, checkpoint_id: str | None = None, namespace: str = "") -> Any:
    found = {"thread_id": thread, "checkpoint_ns": namespace}
    return {"configurable": {**found, **({"checkpoint_id": checkpoint_id} if checkpoint_id else {})}}


def text(chance: random.Random, length: int) -> str:
    return "".join(chance.choices("abcdefghijklmnopqrstuvwxyz é", k=length))


def shown(found: CheckpointTuple | None) -> Any:
    """A checkpoint, comparable. The savers may order the writes of different tasks differently."""
    if found is None:
        return None
    names = ("thread_id", "checkpoint_ns", "checkpoint_id")
    return (
        {name: found.config["configurable"].get(name) for name in names},
        found.checkpoint,
        dict(found.metadata),
        found.parent_config,
        sorted(map(repr, found.pending_writes or [])),
    )


def values(chance: random.Random, history: list[Any]) -> list[Any]:
    """Values with long parts in common."""
    long = text(chance, chance.choice([10, 200, 900]))
    return [
        HumanMessage(content=long, id=str(uuid.UUID(int=chance.getrandbits(128)))),
        AIMessage(content=long, additional_kwargs={"n": [1, True, 1.0]}, usage_metadata=None),
        {"messages": [HumanMessage(content=long, id="h")], "n": chance.random()},
        [long, long.upper(), {"k": long}],
        long.encode(),
        None,
        *history[-3:],
    ]


@pytest.mark.parametrize("seed", range(4))
async def test_random_checkpoints_are_those_of_the_saver_in_memory(
    server: Server, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two savers write to one thread in turn. Their memory is small, and the engine is killed from time to time."""
    monkeypatch.setattr(langgraph_values, "_RAW_BYTES", 4_000)
    monkeypatch.setattr(langgraph_values, "_LIST_BYTES", 50_000)
    # Values with entries of their own, and several in the entry of a checkpoint.
    for module in (langgraph, langgraph_entries):
        monkeypatch.setattr(module, "MOST_IN_ENTRY", [4096, 4096, 300, 0][seed])
    chance = random.Random(seed)
    memory = InMemorySaver()
    parents: dict[str, list[str | None]] = {"": [None], "sub": [None]}
    channels: dict[str, dict[str, Any]] = {"": {}, "sub": {}}
    history: list[Any] = []
    async with server.client() as first, server.client() as second:
        savers = [AbideSaver(first), AbideSaver(second)]
        for nth in range(60):
            saver = chance.choice(savers)
            namespace = chance.choice(["", "", "sub"])
            parent = chance.choice(parents[namespace][-3:])
            if parent is not None and chance.random() < 0.5:
                # The ids of tasks repeat, so that a task writes again.
                count, task = chance.randint(1, 3), f"task{chance.randint(0, 2)}"
                writes = [(chance.choice(["a", "b", "__error__"]), chance.choice(values(chance, history))) for _ in range(count)]
                if any(channel == "__error__" for channel, _ in writes):
                    # The saver in memory and the one in SQLite differ for a mixture.
                    writes = [("__error__", text(chance, 300))]
                history += [value for _, value in writes]
                for one in (saver, memory):
                    await one.aput_writes(config("t", parent, namespace), writes, task, "~path")
            else:
                state, versions = channels[namespace], {}
                for channel in chance.sample(["messages", "doc", "small"], 2):
                    before = state.get(channel)
                    value = chance.choice(values(chance, history))
                    if channel == "messages":
                        value = [*(before or [])][: chance.choice([99, 99, 99, 1])] + [value]
                    state = {**state, channel: value if channel != "small" else nth}
                    versions[channel] = f"{nth + 1:012}.{chance.getrandbits(32):08x}"
                    history.append(value)
                made = empty_checkpoint()
                made["id"] = str(uuid6(clock_seq=nth))
                made["channel_values"] = state
                known = channels.get(f"{namespace} versions", {})
                channels[f"{namespace} versions"] = made["channel_versions"] = {**known, **versions}
                metadata: Any = {"source": "loop", "step": nth, "parents": {}, "run_id": f"run{nth % 4}"}
                write = [("a", chance.choice(values(chance, history)))]
                for one in (saver, memory):
                    await asyncio.gather(
                        one.aput(config("t", parent, namespace), made, metadata, versions),
                        # They become a part of the same entry.
                        *[one.aput_writes(config("t", made["id"], namespace), write, f"first{nth}") for _ in range(nth % 2)],
                    )
                channels[namespace] = state
                parents[namespace].append(made["id"])
            if nth % 25 == 20:
                server.kill()
                server.start()
            for one in savers:
                found = await one.aget_tuple(config("t", None, namespace))
                assert shown(found) == shown(await memory.aget_tuple(config("t", None, namespace)))
        async with server.client() as third:
            made_ids = [(namespace, one) for namespace in ("", "sub") for one in parents[namespace][1:]]
            await check_copy(AbideSaver(third), memory, made_ids)
            await check_deletions(third, savers, memory, made_ids)


async def check_copy(saver: AbideSaver, memory: InMemorySaver, made_ids: list[tuple[str, str | None]]) -> None:
    for namespace, made_id in made_ids:
        found = await saver.aget_tuple(config("t", made_id, namespace))
        assert shown(found) == shown(await memory.aget_tuple(config("t", made_id, namespace)))
    await saver.acopy_thread("t", "copy")
    for namespace, made_id in made_ids:
        found = await saver.aget_tuple(config("copy", made_id, namespace))
        assert found is not None
        for one in (found.config, found.parent_config or {}):
            one.get("configurable", {})["thread_id"] = "t"
        assert shown(found) == shown(await memory.aget_tuple(config("t", made_id, namespace)))


async def check_deletions(
    client: Abide, savers: list[AbideSaver], memory: InMemorySaver, made_ids: list[tuple[str, str | None]]
) -> None:
    """The rest can be read after a deletion of entries that it referred to."""
    await savers[0].adelete_for_runs(["run0", "run2"])
    for namespace, made_id in made_ids:
        expected = await memory.aget_tuple(config("t", made_id, namespace))
        assert expected is not None
        found = await AbideSaver(client).aget_tuple(config("t", made_id, namespace))
        gone = expected.metadata["run_id"] in ("run0", "run2")
        assert shown(found) == (None if gone else shown(expected))
    await savers[1].aprune(["t"])
    for namespace in ("", "sub"):
        latest = await AbideSaver(client).aget_tuple(config("t", None, namespace))
        if latest is not None:
            latest_id = latest.config["configurable"]["checkpoint_id"]
            assert shown(latest) == shown(await memory.aget_tuple(config("t", latest_id, namespace)))


def chat(answers: list[str]) -> StateGraph[Any, Any, Any, Any]:
    async def answer(state: MessagesState) -> Any:
        return {"messages": [AIMessage(content=answers.pop())]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    return graph


async def contents(client: Abide, at: Any) -> list[str]:
    """As a process reads them that has not written them."""
    state = await chat([]).compile(checkpointer=AbideSaver(client)).aget_state(at)
    return [message.content for message in state.values["messages"]]


async def test_each_message_is_stored_once(client: Abide) -> None:
    chance = random.Random(1)
    texts = [text(chance, 60_000) for _ in range(4)]
    graph = chat(texts[1::2]).compile(checkpointer=AbideSaver(client))
    for question in texts[::2]:
        await graph.ainvoke({"messages": [HumanMessage(content=question)]}, config("t"))
    assert sorted(await contents(client, config("t"))) == sorted(texts)
    stored = (await client.sql("SELECT sum(length(blob)) FROM entries")).scalar()
    assert stored < len("".join(texts).encode())


async def test_a_task_that_runs_again_with_another_result(client: Abide) -> None:
    """The entry of its first write stays, so the new version must not refer to it."""
    chance = random.Random(2)
    answers = [text(chance, 2_000) for _ in range(2)]
    both = list(answers)
    graph = chat(answers).compile(checkpointer=AbideSaver(client))
    await graph.ainvoke({"messages": [HumanMessage(content="question")]}, config("t"))
    [before] = [state async for state in graph.aget_state_history(config("t")) if state.next == ("answer",)]
    await graph.ainvoke(None, before.config)
    assert await contents(client, config("t")) == ["question", both[0]]
    found = {(await contents(client, state.config))[-1] async for state in graph.aget_state_history(config("t")) if not state.next}
    assert found == set(both)


async def test_a_thread_that_is_pruned_by_another_process_goes_on(server: Server, client: Abide) -> None:
    chance = random.Random(3)
    texts = [text(chance, 500) for _ in range(8)]
    answers = texts[1::2][::-1]
    graph = chat(answers).compile(checkpointer=AbideSaver(client))
    async with server.client() as other:
        for question in texts[::2]:
            await graph.ainvoke({"messages": [HumanMessage(content=question)]}, config("t"))
            await AbideSaver(other).aprune(["t"])
        assert await contents(other, config("t")) == texts
        assert len([state async for state in graph.aget_state_history(config("t"))]) == 1


async def test_savers_of_one_client_in_threads_of_conversations(client: Abide) -> None:
    """Namespaces of subgraphs have channels with the same name."""
    graph = chat([str(nth) for nth in range(40)])
    outer = StateGraph(MessagesState)
    outer.add_node("inner", graph.compile(checkpointer=True))
    outer.add_edge(START, "inner")
    compiled = outer.compile(checkpointer=AbideSaver(client))
    for nth in range(6):
        await compiled.ainvoke({"messages": [HumanMessage(content=f"q{nth}")]}, config("t"))
    fresh = outer.compile(checkpointer=AbideSaver(client))
    state = await fresh.aget_state(config("t"))
    assert [message.content for message in state.values["messages"]][::2] == [f"q{nth}" for nth in range(6)]


def test_random_bytes_are_rebuilt() -> None:
    chance = random.Random(4)
    for _ in range(2_000):
        root = chance.randbytes(chance.randint(0, 600)) + chance.choice([b"", b"ab", b"a"]) * chance.randint(0, 200)
        parts = [chance.randbytes(chance.randint(0, 80)) for _ in range(3)]
        at = chance.randint(0, max(len(root), 1))
        value = parts[0] + root[at : at + chance.randint(0, 700)] + parts[1] + root[:300] + parts[2]
        found = langgraph_bytes.difference(value, root)
        if found is not None:
            assert langgraph_bytes.rebuild(*found, root, Budget(1 << 30)) == value
        small = langgraph_bytes.compress(value)
        assert small is None or langgraph_bytes.decompress(small, Budget(1 << 30)) == value
        assert langgraph_bytes.decompress_entry(langgraph_bytes.compress_entry(root, value), Budget(1 << 30)) == root + value


def test_short_ids_have_the_order_of_the_ids() -> None:
    chance = random.Random(5)
    ids = [str(uuid.UUID(int=chance.getrandbits(128))) for _ in range(200)] + [str(uuid6(clock_seq=nth)) for nth in range(200)]
    assert sorted(ids, key=short_id) == sorted(ids)
    for name in [*ids, "", "=", "=x", "a/b~%", ids[0].upper(), "1"]:
        assert long_id(short_id(name)) == name
        assert "/" not in short_id(name)


def test_versions_have_the_order_of_their_counts() -> None:
    """LangGraph compares them. Those of other savers are first: they had leading zeros."""
    counts = [*range(1, 2_000), *(10**digits for digits in range(4, 20))]
    for digits in (9, 32):
        versions = [f"{count:0{digits}}.0.5" for count in range(3)] + [f"{version_prefix(count)}.AAAAAA" for count in counts]
        assert sorted(versions) == versions
        assert [version_count(version) for version in versions] == [0, 1, 2, *counts]


def test_a_base_is_a_version_or_a_key() -> None:
    """A base of another channel has its key."""
    assert base_key("v//messages/b10.AAAAAA", "a9.AAAAAA") == "v//messages/a9.AAAAAA"
    assert base_key("v//messages/b10.AAAAAA", "v//messages/000000009.AAAAAA") == "v//messages/000000009.AAAAAA"


def test_the_dictionaries_never_change() -> None:
    """Stored values need them."""
    found = [(len(one), zlib.crc32(one)) for one in (langgraph_bytes.DICTIONARY, langgraph_bytes.DICTIONARY_OF_ENTRIES)]
    assert found == [(2628, 1417088684), (4308, 3017294024)]
