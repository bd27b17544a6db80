"""`Abide.open`: the engine as a child process that all users of a file share."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from server import Server, binary, environment

from abide import Abide, AbideError, EngineNotFound
from abide.engine import Engine

PROGRAM = """
import asyncio, sys
from abide import Abide

async def main():
    client = await Abide.open(sys.argv[1], binary=sys.argv[2])
    await client.call.create_session(agent="child", id="s1")
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def engine_pids(file: Path) -> list[int]:
    """The processes that run `abide open` for a file."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"open" in words[1:2] and os.fsencode(file) in words:
            found.append(int(entry.name))
    return found


async def ended(file: Path, *, but: int = 0) -> None:
    """Waits until no engine of a file runs, except one."""
    for pid in engine_pids(file):
        if pid == but:
            continue
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(handle, done.set)
        await asyncio.wait_for(done.wait(), 20)
        loop.remove_reader(handle)
        os.close(handle)


async def test_a_file_is_opened_and_shared(folder: Path) -> None:
    file = folder / "agents.db"
    async with Abide.open(file, binary=binary()) as one:
        [engine] = engine_pids(file)
        two = await Abide.open(file, binary=binary())
        await one.call.create_session(agent="a", id="s1")
        assert (await two.sql("SELECT id FROM sessions")).scalar() == "s1"
        await two.close()
        await ended(file, but=engine)
        assert engine_pids(file) == [engine]
        assert "sessions" in {table["name"] for table in (await one.get("/v1/schema"))["tables"]}
    await ended(file)
    async with Abide.open(file, binary=binary()) as again:
        assert (await again.sql("SELECT id FROM sessions")).scalar() == "s1"
    await ended(file)


async def test_a_killed_parent_leaves_nothing(folder: Path) -> None:
    file = folder / "agents.db"
    parent = subprocess.Popen([sys.executable, "-c", PROGRAM, str(file), binary()], stdout=subprocess.PIPE, env=environment())
    assert parent.stdout is not None
    assert await asyncio.to_thread(parent.stdout.readline) == b"ready\n"
    parent.kill()
    parent.wait()
    parent.stdout.close()
    await ended(file)
    async with Abide.open(file, binary=binary()) as client:
        assert (await client.sql("SELECT agent FROM sessions")).scalar() == "child"
    await ended(file)


async def test_a_killed_engine_is_started_again(folder: Path) -> None:
    file = folder / "agents.db"
    async with Abide.open(file, binary=binary()) as client:
        await client.call.create_session(agent="a", id="s1")
        async with client.subscribe("SELECT id FROM sessions ORDER BY id") as sub:
            await anext(sub)
            os.kill(engine_pids(file)[0], signal.SIGKILL)
            await client.call.create_session(agent="a", id="s2")
            assert [row.id for row in (await anext(sub)).inserts] == ["s2"]
    await ended(file)


async def test_a_served_file_is_refused(server: Server) -> None:
    with pytest.raises(AbideError) as refused:
        await Abide.open(server.file, binary=binary())
    assert refused.value.code == "file_locked"
    assert refused.value.hint


async def test_no_binary(folder: Path) -> None:
    with pytest.raises(EngineNotFound):
        await Engine(folder / "x.db", str(folder / "none"))()
