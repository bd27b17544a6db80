"""Turns of the OpenAI Agents SDK's SQLiteSession: one `add_items` with the four items of a turn, or four with one each.

The SDK stores items as JSON. It does not check that a call id is unique.
"""

import asyncio
import json
import os
import tempfile
import time
from importlib.metadata import version

import turn

turn.sync_every_commit()

from agents import SQLiteSession  # noqa: E402


async def take_turns(session, number, turns, at_once, clock):
    for count in range(turns):
        items = turn.items(f"s_{number}/{count}")
        started = time.perf_counter()
        if at_once:
            await session.add_items(items)
        else:
            for item in items:
                await session.add_items([item])
        clock.timed(started)


async def verify(path, sessions, turns):
    for number in range(sessions):
        session = SQLiteSession(f"s_{number}", path)
        stored = await session.get_items()
        session.close()
        expected = [item for count in range(turns) for item in turn.items(f"s_{number}/{count}")]
        assert stored == expected, f"session {number}: {len(stored)} items, {len(expected)} expected"


async def main():
    args = turn.options(__doc__, ["openai-agents", "openai-agents-calls"])
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        path = os.path.join(folder, "sessions.db")
        sessions = [SQLiteSession(f"s_{number}", path) for number in range(args.sessions)]
        at_once = args.contender == "openai-agents"
        with turn.Probe(args.bench, args.dir) as probe:
            clock = turn.Clock()
            await asyncio.gather(
                *(take_turns(it, number, args.turns, at_once, clock) for number, it in enumerate(sessions))
            )
        record = clock.record(args, version("openai-agents"), path, probe)
        for session in sessions:
            session.close()
        await verify(path, args.sessions, args.turns)
        record["stored_per_payload_byte"] = turn.stored_per_payload_byte(path, record["turns"])
        print(json.dumps(record))


asyncio.run(main())
