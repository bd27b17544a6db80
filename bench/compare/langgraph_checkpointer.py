"""Turns of a LangGraph graph with the SQLite checkpointer: one `invoke` per turn, with `durability="sync"`.

The graph has one node, which appends the tool call, its result and the answer to the list of messages. Each checkpoint
stores the whole list again, so a thread ends after 10 turns and the session continues in a new one.
"""

import json
import operator
import os
import sqlite3
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Annotated, TypedDict

import turn

turn.sync_every_commit()

from langgraph.checkpoint.sqlite import SqliteSaver  # noqa: E402
from langgraph.graph import END, START, StateGraph  # noqa: E402

TURNS_OF_THREAD = 10


class State(TypedDict):
    messages: Annotated[list, operator.add]
    call_id: str


def agent(state):
    return {"messages": turn.items(state["call_id"])[1:]}


def compiled(connection):
    graph = StateGraph(State)
    graph.add_node("agent", agent)
    graph.add_edge(START, "agent")
    graph.add_edge("agent", END)
    return graph.compile(checkpointer=SqliteSaver(connection))


def config(number, count):
    return {"configurable": {"thread_id": f"s_{number}/{count // TURNS_OF_THREAD}"}}


def take_turns(app, number, turns, clock):
    for count in range(turns):
        call_id = f"s_{number}/{count}"
        started = time.perf_counter()
        state = {"messages": turn.items(call_id)[:1], "call_id": call_id}
        app.invoke(state, config(number, count), durability="sync")
        clock.timed(started)


def verify(path, sessions, turns):
    connection = sqlite3.connect(path, check_same_thread=False)
    app = compiled(connection)
    for number in range(sessions):
        for first in range(0, turns, TURNS_OF_THREAD):
            stored = app.get_state(config(number, first)).values["messages"]
            counts = range(first, min(first + TURNS_OF_THREAD, turns))
            expected = [item for count in counts for item in turn.items(f"s_{number}/{count}")]
            assert stored == expected, f"session {number}: {len(stored)} of {len(expected)} messages"
    connection.close()


def main():
    args = turn.options(__doc__, ["langgraph"])
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        path = os.path.join(folder, "checkpoints.db")
        connection = sqlite3.connect(path, check_same_thread=False)
        app = compiled(connection)
        app.checkpointer.setup()
        with turn.Probe(args.bench, args.dir) as probe, ThreadPoolExecutor(args.sessions) as threads:
            clock = turn.Clock()
            runs = [
                threads.submit(take_turns, app, number, args.turns, clock)
                for number in range(args.sessions)
            ]
            for run in runs:
                run.result()
        record = clock.record(args, version("langgraph-checkpoint-sqlite"), path, probe)
        connection.close()
        verify(path, args.sessions, args.turns)
        record["stored_per_payload_byte"] = turn.stored_per_payload_byte(path, record["turns"])
        print(json.dumps(record))


main()
