"""The entries of LangGraph threads: forged ones, and what remains of them after deletions."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import ormsgpack
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, MessagesState, StateGraph
from proxy import Proxy
from server import Server

from abide import Abide, LimitExceededError, MalformedEntryError
from abide.adapters import langgraph_entries
from abide.adapters.langgraph import AbideSaver
from abide.adapters.langgraph_bytes import compress_entry
from abide.adapters.langgraph_keys import checkpoint_key, short_id_to_bytes, time_after, time_at

LONG = "a text that is not stored in the checkpoint itself, because it is too long for that"


def config(thread: str = "t", checkpoint_id: str | None = None) -> Any:
    return {
        "configurable": {"thread_id": thread, "checkpoint_ns": "", **({"checkpoint_id": checkpoint_id} if checkpoint_id else {})}
    }


async def put(
    saver: AbideSaver, values: dict[str, Any], parent: str | None = None, made_id: str | None = None, **metadata: Any
) -> str:
    """Stores a checkpoint in which each channel has a new version. Returns its id."""
    made: Any = {**empty_checkpoint(), "channel_values": values, "channel_versions": dict.fromkeys(values, "a1")}
    made["id"] = made_id or made["id"]
    done = await saver.aput(
        config("t", parent), made, {"source": "loop", "step": 1, "parents": {}, **metadata}, dict.fromkeys(values, "a1")
    )
    return str(done["configurable"]["checkpoint_id"])


async def loaded(client: Abide, checkpoint_id: str | None = None) -> dict[str, Any] | None:
    """The values of a checkpoint, as another process reads them."""
    found = await AbideSaver(client).aget_tuple(config("t", checkpoint_id))
    return None if found is None else found.checkpoint["channel_values"]


async def entries(client: Abide, collection: str = "langgraph/t") -> dict[str, tuple[Any, bytes]]:
    rows = await client.sql("SELECT key, data, blob FROM entries WHERE collection_id = :c ORDER BY key", {"c": collection})
    return {row.key: (row.data, row.blob) for row in rows}


# Checkpoints that are written again, or whose answer is lost.


async def test_a_checkpoint_that_is_stored_again_does_not_change_its_children(client: Abide) -> None:
    saver = AbideSaver(client)
    parent = await put(saver, {"list": ["one", LONG], "doc": {"first": LONG}})
    child = await put(saver, {"list": ["one", LONG, "two"], "doc": {"first": LONG, "n": 1}}, parent)
    for nth in range(3):
        values = {"list": ["other", f"{nth}" * 99], "doc": {"second": nth, "text": LONG[::-1]}}
        await put(saver if nth else AbideSaver(client), values, made_id=parent)
        assert await loaded(client, parent) == values
        assert await loaded(client, child) == {"list": ["one", LONG, "two"], "doc": {"first": LONG, "n": 1}}
    await AbideSaver(client).aprune(["t"])
    assert await loaded(client) == {"list": ["one", LONG, "two"], "doc": {"first": LONG, "n": 1}}


async def test_a_checkpoint_with_large_values_is_stored_again(client: Abide) -> None:
    """They have entries of their own, which are not replaced."""
    saver = AbideSaver(client)
    first = await put(saver, {"doc": "x" * 9_000})
    second = await put(saver, {"doc": "x" * 9_000 + "y"}, first)
    for nth in range(3):
        await put(saver, {"doc": f"{nth}" * 9_000}, made_id=first)
        assert await loaded(client, first) == {"doc": f"{nth}" * 9_000}
        assert await loaded(client, second) == {"doc": "x" * 9_000 + "y"}
    await saver.adelete_for_runs([])
    await AbideSaver(client).aprune(["t"])
    assert await loaded(client) == {"doc": "x" * 9_000 + "y"}
    assert [key.split("/")[0] for key in await entries(client)] == ["c", "v"]


async def test_a_call_whose_answer_is_lost_is_sent_again(server: Server) -> None:
    """Its calls have no request id, so the second attempt is a conflict with the first."""
    proxy = Proxy()
    proxy.target = server.port
    await proxy.start()
    async with Abide.connect(f"http://127.0.0.1:{proxy.port}") as one, server.client() as other:
        saver = AbideSaver(one)
        first = await put(saver, {"list": [LONG]})
        proxy.lose_answer()
        second, _ = await asyncio.gather(
            put(saver, {"list": [LONG, "two"]}, first, second_id := str(uuid6())),
            saver.aput_writes(config("t", second_id), [("list", ["write"]), ("doc", LONG)], "task"),
        )
        proxy.lose_answer()
        await saver.aput_writes(config("t", second), [("list", ["later"])], "task2")
        assert one.reconnects == 2
        found = await AbideSaver(other).aget_tuple(config())
        assert found is not None
        assert found.checkpoint["channel_values"] == {"list": [LONG, "two"]}
        assert found.pending_writes == [("task", "list", ["write"]), ("task", "doc", LONG), ("task2", "list", ["later"])]
        stored = await entries(other)
        assert len([key for key in stored if key.startswith("c//")]) == 2
        # The second one was not written whole.
        assert len(stored[checkpoint_key("", second)][1]) < 200
    await proxy.close()


async def test_a_cancelled_put_does_not_cancel_the_writes_with_it(client: Abide) -> None:
    saver = AbideSaver(client)
    assert await saver.aget_tuple(config()) is None
    made_id = str(uuid6())
    first = asyncio.create_task(put(saver, {"list": [LONG]}, made_id=made_id))
    writes = asyncio.create_task(saver.aput_writes(config("t", made_id), [("list", ["write"])], "task"))
    for _ in range(3):
        await asyncio.sleep(0)
    first.cancel()
    await writes
    with pytest.raises(asyncio.CancelledError):
        await first
    assert list(await entries(client)) == [checkpoint_key("", made_id)]
    found = await AbideSaver(client).aget_tuple(config())
    assert found is not None
    assert found.pending_writes == [("task", "list", ["write"])]


async def test_the_first_writes_of_a_task_count(client: Abide) -> None:
    """Also those in the entry of the checkpoint, after the checkpoint was stored again."""
    saver = AbideSaver(client)
    assert await saver.aget_tuple(config()) is None
    made_id = str(uuid6())
    await asyncio.gather(
        put(saver, {"list": [LONG]}, made_id=made_id),
        *[saver.aput_writes(config("t", made_id), [("list", [nth])], "task") for nth in range(2)],
    )
    await saver.aput_writes(config("t", made_id), [("list", [2])], "task")
    await put(saver, {"list": ["other", LONG]}, made_id=made_id)
    found = await AbideSaver(client).aget_tuple(config())
    assert found is not None
    assert found.pending_writes == [("task", "list", [0])]
    assert found.checkpoint["channel_values"] == {"list": ["other", LONG]}


class Sealed(JsonPlusSerializer):
    """Bytes that are different each time, as those of LangGraph's `EncryptedSerializer`."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        kind, raw = super().dumps_typed(obj)
        key = os.urandom(16)
        return f"{kind}+sealed", key + _xor(raw, key)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return super().loads_typed((data[0].removesuffix("+sealed"), _xor(data[1][16:], data[1][:16])))


def _xor(raw: bytes, key: bytes) -> bytes:
    return bytes(one ^ key[at % len(key)] for at, one in enumerate(raw))


async def test_an_encrypted_thread(client: Abide) -> None:
    """Equal values have other bytes each time, so nothing refers to them."""
    saver = AbideSaver(client, serde=Sealed())
    first = await put(saver, {"list": [LONG], "doc": {"text": LONG}})
    await saver.aput_writes(config("t", first), [("list", [LONG, "two"])], "task")
    await saver.aput_writes(config("t", first), [("__error__", LONG)], "task2")
    await put(saver, {"list": [LONG, "two"], "doc": {"text": LONG}}, first)
    for checkpoint_id, values in ((first, [LONG]), (None, [LONG, "two"])):
        found = await AbideSaver(client, serde=Sealed()).aget_tuple(config("t", checkpoint_id))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"list": values, "doc": {"text": LONG}}
        assert (found.pending_writes or []) == (
            [("task", "list", [LONG, "two"]), ("task2", "__error__", LONG)] if checkpoint_id else []
        )


# The state after deletions.


async def test_a_deleted_checkpoint_leaves_only_values_that_others_need(client: Abide) -> None:
    saver = AbideSaver(client)
    first = await put(saver, {"list": [LONG], "doc": {"private": LONG}}, run_id="r1", note="private")
    await saver.aput_writes(config("t", first), [("doc", {"private": 1})], "task")
    second = await put(saver, {"list": [LONG, "two"], "doc": {"other": 1}}, first)
    await saver.adelete_for_runs(["r1"])
    assert await loaded(client, first) is None
    assert await loaded(client) == {"list": [LONG, "two"], "doc": {"other": 1}}
    assert [found.checkpoint["id"] async for found in saver.alist(config())] == [second]
    assert [state.checkpoint["id"] async for state in saver.alist(None)] == [second]
    stored = await entries(client)
    assert list(stored) == [checkpoint_key("", first), checkpoint_key("", second)]
    data, blob = stored[checkpoint_key("", first)]
    left = langgraph_entries.read_checkpoint(
        checkpoint_key("", first), langgraph_entries.Stored(json.loads(data), blob, 1), langgraph_entries.Budget(1 << 20)
    )
    assert (list(left.own), left.head, left.writes) == (["list"], b"", {})
    # The values go with the last checkpoint that needs them.
    third = await put(AbideSaver(client), {"list": ["new", LONG]}, second)
    await saver.aprune(["t"])
    assert list(await entries(client)) == [checkpoint_key("", third)]
    await saver.adelete_thread("t")
    assert await entries(client) == {}


async def test_a_deleted_checkpoint_can_be_stored_again(client: Abide) -> None:
    saver = AbideSaver(client)
    first = await put(saver, {"list": [LONG]}, run_id="r1")
    second = await put(saver, {"list": [LONG, "two"]}, first)
    await saver.adelete_for_runs(["r1"])
    await put(saver, {"list": ["again", LONG]}, made_id=first)
    assert await loaded(client, first) == {"list": ["again", LONG]}
    assert await loaded(client, second) == {"list": [LONG, "two"]}


# Forged entries.

HEAD = JsonPlusSerializer().dumps_typed(({**empty_checkpoint(), "ts": 5}, {"source": "loop", "step": 1}, {}))[1]
ONE = ormsgpack.packb(["x"])


async def test_forged_entries_are_malformed(client: Abide) -> None:
    """Circles, missing values, ids and counts that do not fit, and other types. Other threads are not affected."""
    own_id, other_id = str(uuid6()), str(uuid6())
    key, other = checkpoint_key("", own_id), checkpoint_key("", other_id)
    parent = short_id_to_bytes(other[3:])
    empty: Any = [None, HEAD, {}, [], {}]

    async def plant(key: str, record: Any, data: Any = None) -> None:
        blob = record if isinstance(record, bytes) else compress_entry(ormsgpack.packb(record))
        entry = {"key": key, "blob": blob, **({} if data is None else {"data": data})}
        await client.call.write_entries(collection_id="langgraph/t", kind="langgraph", puts=[entry])

    await put(AbideSaver(client), {"list": ["y", LONG]})
    await client.call.write_entries(collection_id="langgraph/good", puts=[])
    await AbideSaver(client).acopy_thread("t", "good")
    await AbideSaver(client).adelete_thread("t")
    await plant(other, [None, HEAD, {}, [], {"list": ONE, "root": [b"", None, [0, "list"], [0, 0, 1]]}])
    forged: list[Any] = [
        b"no deflate",
        compress_entry(b"\x95"),
        7,
        [],
        [None, HEAD, {}, {}],
        [None, 7, {}, [], {}],
        [None, ["msgpack", 7], {}, [], {}],
        [None, ONE, {}, [], {}],
        [7, HEAD, {}, [], {}],
        [b"short", HEAD, {}, [], {}],
        ["a/b", HEAD, {"list": 1}, [], {}],
        [None, HEAD, {"list": 1}, [], {}],
        [None, HEAD, {"list": "c//x/list"}, [], {}],
        [None, HEAD, {"list": "w//x/list/0"}, [], {}],
        [None, HEAD, {"list": "nothing"}, [], {}],
        [None, HEAD, {"list": ["x"]}, [], {}],
        [None, HEAD, {"list": [parent, "absent"]}, [], {}],
        [None, HEAD, {"list": [parent, "root", "0"]}, [], {}],
        [None, HEAD, 7, [], {}],
        *[
            [parent, HEAD, {}, [], {"list": value}]
            for value in (
                7,
                "text",
                [],
                ["text"],
                [ONE, 7],
                [ONE, "pickle"],
                [ONE, None, None, None, 1, [0, "list"]],
                [ONE, None, None, None, 2],
                [ONE, None, None, None, -1],
                [ONE, None, None, None, True],
                [ONE, None, None, None, 1, [b"x" * 16, "list"]],
                [ONE, None, None, None, 1, "v//list/absent"],
                [ONE, None, [0, "list"], [0, 0, 1]],
                [ONE, None, [1, "root"], [0, 0, 1]],
                [ONE, None, [1, "list"], [0, 0, 1000]],
                [ONE, None, [1, "list"], [0, -1, 1]],
                [ONE, None, [1, "list"], "x"],
                [ONE, None, [1, "list"]],
                [ONE, None, 7, [0, 0, 1]],
                [ONE, None, None, None, 0, None, None],
            )
        ],
        [None, HEAD, {}, [["task"]], {}],
        [None, HEAD, {}, [["a/b", "0", "c", "", ONE]], {}],
        [None, HEAD, {}, [["task", "x", "c", "", ONE]], {}],
        [None, HEAD, {}, [["task", "0", 7, "", ONE]], {}],
        [None, HEAD, {}, [["task", "0-1", ["a", "b"], "", ONE]], {}],
        [None, HEAD, {}, [["task", "0", "c", [], ONE]], {}],
        [None, HEAD, {}, [["task", "0", "c", "", [ONE, None, [0, "absent"], [0, 0, 1]]]], {}],
    ]
    for record in forged:
        await plant(key, record)
        with pytest.raises(MalformedEntryError) as refused:
            await AbideSaver(client).aget_tuple(config("t", own_id))
        assert (refused.value.code, bool(refused.value.hint)) == ("malformed_entry", True)
    names = {found.config["configurable"]["thread_id"] async for found in AbideSaver(client).alist(None)}
    assert names >= {"good"}
    await plant(key, empty)
    assert await loaded(client, own_id) == {}
    for record in (b"no deflate", [], ["c"], ["c", "", 7], [7, "", ONE], [["a", "b"], "", ONE], [["a"], "", ONE, 7]):
        await plant(f"w{key[1:]}/task/0", record)
        with pytest.raises(MalformedEntryError):
            await AbideSaver(client).aget_tuple(config("t", own_id))
    # Such a thread cannot be pruned, but deleted.
    with pytest.raises(MalformedEntryError):
        await AbideSaver(client).aprune(["t"])
    await AbideSaver(client).adelete_thread("t")
    assert await entries(client) == {}


async def test_the_bytes_of_forged_entries_are_bounded(client: Abide) -> None:
    made_id = str(uuid6())
    key = checkpoint_key("", made_id)
    zeros = ormsgpack.packb(b"\0" * (100 << 20))
    root = ormsgpack.packb(b"\0" * (1 << 20))
    for record in (
        [None, zeros, {}, [], {}],
        [None, HEAD, {}, [], {"doc": zeros}],
        [None, HEAD, {}, [], {"root": root, "doc": [b"", None, [0, "root"], [0, 0, 1 << 20] * 200]}],
        [None, HEAD, {}, [["task", "0", "c", "", zeros]], {}],
    ):
        blob = compress_entry(ormsgpack.packb(record))
        await client.call.write_entries(collection_id="langgraph/t", kind="langgraph", puts=[{"key": key, "blob": blob}])
        with pytest.raises(LimitExceededError):
            await AbideSaver(client).aget_tuple(config("t", made_id))


def test_times_after_those_of_ids() -> None:
    made_id = str(uuid6())
    for time in ("2026-11-25T07:20:05.146457+00:00", "1970-01-01T00:00:00.000001+00:00", "9999-12-31T23:59:59.999999+00:00"):
        after = time_after(made_id, time)
        assert type(after) is int
        assert time_at(made_id, after) == time
    for text in ("", "yesterday", "2026-11-25T07:20:05.146457", "2026-11-25T07:20:05.146457+01:00", "2026-11-25 07:20:05+00:00"):
        assert time_after(made_id, text) == text
    for other_id in ("", "x", "not-a-uuid"):
        assert time_after(other_id, "2026-11-25T07:20:05.146457+00:00") == "2026-11-25T07:20:05.146457+00:00"


async def test_a_checkpoint_that_is_written_during_a_deletion_stays(client: Abide) -> None:
    saver = AbideSaver(client)
    first = await put(saver, {"list": [LONG]}, run_id="r1")
    second = await put(saver, {"list": [LONG, "two"]}, first)
    ask = client.sql

    async def sql(sql: str, *args: Any, **options: Any) -> Any:
        found = await ask(sql, *args, **options)
        if "json_each(:runs)" in sql:
            await put(AbideSaver(client), {"list": [LONG, "three"]}, second)
        return found

    client.sql = sql  # type: ignore[method-assign,assignment]
    await saver.adelete_for_runs(["r1"])
    assert await loaded(client) == {"list": [LONG, "three"]}
    assert await loaded(client, second) == {"list": [LONG, "two"]}
    assert await loaded(client, first) is None


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_each_durability_of_a_graph(client: Abide, durability: Any) -> None:
    """A loop of two nodes, an interrupt, and a value that is too large for the entry of its checkpoint."""

    class State(MessagesState, total=False):
        doc: str

    def built(saver: Any) -> Any:
        async def model(state: State) -> Any:
            return {"messages": [AIMessage(content=f"answer {len(state['messages'])} {LONG}", id=f"a{len(state['messages'])}")]}

        async def tool(state: State) -> Any:
            return {
                "messages": [HumanMessage(content=LONG, id=f"t{len(state['messages'])}")],
                "doc": f"{len(state['messages'])}" * 9000,
            }

        graph = StateGraph(State)
        graph.add_node("model", model)
        graph.add_node("tool", tool)
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", lambda state: "tool" if len(state["messages"]) % 6 else END)
        graph.add_edge("tool", "model")
        return graph.compile(checkpointer=saver, interrupt_before=["tool"])

    async def run(saver: Any) -> list[Any]:
        graph = built(saver)
        for nth in range(2):
            made: Any = {"messages": [HumanMessage(content=f"question {LONG}", id=f"q{nth}")]}
            await graph.ainvoke(made, config(), durability=durability)
            while (await graph.aget_state(config())).next:
                await graph.ainvoke(None, config(), durability=durability)
        return [(state.values, state.next, state.metadata) async for state in graph.aget_state_history(config())]

    expected = await run(InMemorySaver())
    assert await run(AbideSaver(client)) == expected
    again = built(AbideSaver(client))
    assert [(one.values, one.next, one.metadata) async for one in again.aget_state_history(config())] == expected
