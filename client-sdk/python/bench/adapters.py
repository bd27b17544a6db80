"""Measures the adapters against the SQLite backend of each framework, in one run, and the live queries of the SDK.

    ABIDE_BINARY=target/release/abide python client-sdk/python/bench/adapters.py [langgraph] [openai] [adk] [live]

For each framework it prints turns per second with 64 concurrent conversations of 10 turns, the milliseconds of CPU that a
turn of them takes in this process and in the engine, which depend less on other programs, milliseconds per turn in the four
quarters of one conversation of 1,000 turns, and the bytes on disk after a graceful stop, as a multiple of the payload.
A turn is a message of the user and an answer, 700 characters each. The row `memory` is LangGraph's store in memory: the
framework itself. The backends take turns: three times for the concurrent conversations, whose median counts, and after each
quarter of the long one. `ABIDE_BENCH_TURNS` sets another length of the long conversation. It needs
`langgraph-checkpoint-sqlite`.

`live` prints the changes of rows per second that a subscription receives and checks, and the memory of a row.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import resource
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

from abide import Abide
from abide.engine import find_binary

CONVERSATIONS = 64
TURNS = 10
LONG = int(os.environ.get("ABIDE_BENCH_TURNS", "1000"))
CHARACTERS = 700
ROUNDS = 3
ROWS = 10_000
CHANGES = 20_000

Turn = Callable[[str, str, str], Awaitable[None]]
Make = Callable[[Path, AsyncExitStack], Awaitable[Turn]]

_CHANCE = random.Random(7)
_WORDS = ["".join(_CHANCE.choices("abcdefghijklmnopqrstuvwxyz", k=_CHANCE.randint(2, 9))) for _ in range(2000)]


def text() -> str:
    """Random words."""
    return " ".join(_CHANCE.choices(_WORDS, k=CHARACTERS // 5))[:CHARACTERS]


async def connect(folder: Path, stack: AsyncExitStack) -> Abide:
    """A client of a server of its own, which stops gracefully at the end."""
    command = [find_binary(), "serve", "--db", str(folder / "abide.db"), "--listen", "127.0.0.1:0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    assert process.stdout is not None
    line = json.loads(process.stdout.readline())

    def stop() -> None:
        process.send_signal(signal.SIGTERM)
        process.wait()

    stack.callback(stop)
    return await stack.enter_async_context(Abide.connect(f"http://{line['listening'].removeprefix('http://')}"))


def langgraph_turn(saver: Any) -> Turn:
    """A graph of one node."""
    from langchain_core.messages import AIMessage, HumanMessage
    from langgraph.graph import START, MessagesState, StateGraph

    async def answer(state: MessagesState) -> Any:
        return {"messages": [AIMessage(content=answers.pop())]}

    answers: list[str] = []
    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    compiled = graph.compile(checkpointer=saver)

    async def turn(conversation: str, question: str, reply: str) -> None:
        answers.append(reply)
        config: Any = {"configurable": {"thread_id": conversation}}
        await compiled.ainvoke({"messages": [HumanMessage(content=question)]}, config)

    return turn


async def langgraph_abide(folder: Path, stack: AsyncExitStack) -> Turn:
    """LangGraph on Abide."""
    from abide.adapters.langgraph import AbideSaver

    return langgraph_turn(AbideSaver(await connect(folder, stack)))


async def langgraph_sqlite(folder: Path, stack: AsyncExitStack) -> Turn:
    """LangGraph on its SQLite checkpointer."""
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    return langgraph_turn(await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(str(folder / "sqlite.db"))))


async def langgraph_memory(folder: Path, stack: AsyncExitStack) -> Turn:
    """LangGraph without storage."""
    from langgraph.checkpoint.memory import InMemorySaver

    return langgraph_turn(InMemorySaver())


def openai_turn(session_of: Callable[[str], Any]) -> Turn:
    """The operations of the runner on a session in one turn: read the history, add the input, add the output."""
    sessions: dict[str, Any] = {}

    async def turn(conversation: str, question: str, reply: str) -> None:
        session = sessions.setdefault(conversation, None) or session_of(conversation)
        sessions[conversation] = session
        await session.get_items()
        await session.add_items([{"role": "user", "content": question}])
        await session.add_items([{"role": "assistant", "content": reply}])

    return turn


async def openai_abide(folder: Path, stack: AsyncExitStack) -> Turn:
    """OpenAI Agents SDK on Abide."""
    from abide.adapters.openai_agents import AbideSession

    client = await connect(folder, stack)
    return openai_turn(lambda conversation: AbideSession(conversation, client))


async def openai_sqlite(folder: Path, stack: AsyncExitStack) -> Turn:
    """OpenAI Agents SDK on its SQLite session."""
    from agents import SQLiteSession

    return openai_turn(lambda conversation: SQLiteSession(conversation, folder / "sqlite.db"))


def adk_turn(service: Any) -> Turn:
    """The operations of the runner on the service in one turn."""
    from google.adk.events.event import Event
    from google.genai import types

    known: set[str] = set()

    async def turn(conversation: str, question: str, reply: str) -> None:
        owner = {"app_name": "app", "user_id": "ann", "session_id": conversation}
        if conversation not in known:
            known.add(conversation)
            await service.create_session(**owner)
        session = await service.get_session(**owner)
        for author, said in (("user", question), ("model", reply)):
            content = types.Content(role=author, parts=[types.Part(text=said)])
            await service.append_event(session, Event(author=author, content=content))

    return turn


async def adk_abide(folder: Path, stack: AsyncExitStack) -> Turn:
    """Google ADK on Abide."""
    from abide.adapters.google_adk import AbideSessionService

    return adk_turn(AbideSessionService(await connect(folder, stack)))


async def adk_sqlite(folder: Path, stack: AsyncExitStack) -> Turn:
    """Google ADK on its SQLite service."""
    from google.adk.sessions.sqlite_session_service import SqliteSessionService

    return adk_turn(SqliteSessionService(str(folder / "sqlite.db")))


FRAMEWORKS: dict[str, dict[str, Make]] = {
    "langgraph": {"memory": langgraph_memory, "sqlite": langgraph_sqlite, "abide": langgraph_abide},
    "openai": {"sqlite": openai_sqlite, "abide": openai_abide},
    "adk": {"sqlite": adk_sqlite, "abide": adk_abide},
}


class Rate(NamedTuple):
    """The speed of many conversations."""

    turns: float
    """Per second."""
    own_ms: float
    """CPU of this process for a turn."""
    engine_ms: float
    """CPU of the engine for a turn, with its start."""


def cpu(who: int) -> float:
    """Seconds of CPU."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


async def concurrent(make: Make) -> Rate:
    """Many conversations at the same time."""
    count = CONVERSATIONS * TURNS
    engine = cpu(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as path:
        async with AsyncExitStack() as stack:
            turn = await make(Path(path), stack)
            await turn("first", text(), text())

            async def converse(nth: int) -> None:
                for _ in range(TURNS):
                    await turn(f"c{nth}", text(), text())

            started, own = time.perf_counter(), cpu(resource.RUSAGE_SELF)
            await asyncio.gather(*[converse(nth) for nth in range(CONVERSATIONS)])
            rate, own = count / (time.perf_counter() - started), cpu(resource.RUSAGE_SELF) - own
    engine = cpu(resource.RUSAGE_CHILDREN) - engine
    return Rate(rate, own * 1000 / count, engine * 1000 / count)


async def long(makes: dict[str, Make]) -> dict[str, tuple[list[float], float]]:
    """For each backend milliseconds per turn in the quarters of one conversation, and bytes on disk / payload."""
    with tempfile.TemporaryDirectory() as path:
        quarters: dict[str, list[float]] = {backend: [] for backend in makes}
        folders = {backend: Path(path) / backend for backend in makes}
        async with AsyncExitStack() as stack:
            turns = {}
            for backend, make in makes.items():
                folders[backend].mkdir()
                turns[backend] = await make(folders[backend], stack)
            for _ in range(4):
                for backend, turn in turns.items():
                    started = time.perf_counter()
                    for _ in range(LONG // 4):
                        await turn("long", text(), text())
                    quarters[backend].append((time.perf_counter() - started) * 1000 / (LONG // 4))
        sizes = {backend: sum(file.stat().st_size for file in folder.iterdir()) for backend, folder in folders.items()}
        return {backend: (quarters[backend], sizes[backend] / (LONG * 2 * CHARACTERS)) for backend in makes}


async def frameworks(names: list[str]) -> None:
    """Runs the adapters, and prints a table."""
    columns = f"turns/s at {CONVERSATIONS} | CPU ms per turn | of the engine | ms per turn, 4 quarters of {LONG} | disk / payload"
    print(f"| framework | backend | {columns} |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for framework in names:
        makes = FRAMEWORKS[framework]
        rates: dict[str, list[Rate]] = {backend: [] for backend in makes}
        for _ in range(ROUNDS):
            for backend, make in makes.items():
                try:
                    rates[backend].append(await concurrent(make))
                except sqlite3.OperationalError as why:
                    print(f"{framework}, {backend}: {why}", file=sys.stderr)
        for backend, (quarters, size) in (await long(makes)).items():
            times = ", ".join(f"{quarter:.1f}" for quarter in quarters)
            rate = "failed | |"
            if rates[backend]:
                turns, own, engine = map(statistics.median, zip(*rates[backend], strict=True))
                rate = f"{turns:.0f} | {own:.1f} | {engine:.1f}"
            print(f"| {framework} | {backend} | {rate} | {times} | {size:.1f} |", flush=True)


async def live() -> None:
    """A subscription to many rows, which other tasks change."""
    with tempfile.TemporaryDirectory() as path:
        async with AsyncExitStack() as stack:
            client = await connect(Path(path), stack)
            for first in range(0, ROWS, 1000):
                puts = [{"key": f"{nth:06}", "data": {"text": text()[:100]}} for nth in range(first, first + 1000)]
                await client.call.write_entries(collection_id="live", puts=puts)
            gc.collect()
            tracemalloc.start()
            before, _ = tracemalloc.get_traced_memory()
            sql = "SELECT key, data, seq FROM entries WHERE collection_id = 'live' ORDER BY key"
            sub = await stack.enter_async_context(client.subscribe(sql))
            await anext(sub)
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()

            async def write(nth: int) -> None:
                for at in range(nth, CHANGES, CONVERSATIONS):
                    put = {"key": f"{at % ROWS:06}", "data": {"text": "changed"}}
                    await client.call.write_entries(collection_id="live", puts=[put])

            async def write_all() -> None:
                await asyncio.gather(*[write(nth) for nth in range(CONVERSATIONS)])
                await client.call.write_entries(collection_id="live", puts=[{"key": "end", "data": 1}])

            started = time.perf_counter()
            writes = asyncio.create_task(write_all())
            async for update in sub:
                if any(row.key == "end" for row in update.inserts):
                    break
            rate = CHANGES / (time.perf_counter() - started)
            await writes
    print(f"live: {ROWS} rows, {rate:.0f} changes/s, {(after - before) / ROWS:.0f} bytes per row")


async def main() -> None:
    """Runs what the arguments name, or all."""
    names = sys.argv[1:] or [*FRAMEWORKS, "live"]
    if any(name in FRAMEWORKS for name in names):
        await frameworks([name for name in names if name in FRAMEWORKS])
    if "live" in names:
        await live()


if __name__ == "__main__":
    asyncio.run(main())
