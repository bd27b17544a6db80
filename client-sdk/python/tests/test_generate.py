"""The generated types: they type-check, and their calls work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from server import Server, environment

PROGRAM = """
import asyncio, sys
from abide import Abide
from my_types import Calls, SessionsRow

async def main() -> None:
    async with Abide.connect(sys.argv[1]) as client:
        calls = Calls(client)
        made = await calls.create_session(agent="support", id="s1")
        reveal: str = made.value["status"]
        await calls.append_message(session_id="s1", role="user", content=None)
        rows = await client.sql("SELECT * FROM sessions", into=SessionsRow)
        print(rows.one().agent, reveal)

asyncio.run(main())
"""


def test_generated_types(server: Server, folder: Path) -> None:
    command = [sys.executable, "-m", "abide.generate", "--url", server.url]
    text = subprocess.run(command, check=True, capture_output=True, env=environment()).stdout
    (folder / "my_types.py").write_bytes(text)
    (folder / "program.py").write_text(PROGRAM)
    run = subprocess.run([sys.executable, "program.py", server.url], check=True, capture_output=True, cwd=folder, env=environment())
    assert run.stdout == b"support created\n"
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder), "program.py"],
        capture_output=True,
        cwd=folder,
        env={**environment(), "MYPYPATH": environment()["PYTHONPATH"]},
    )
    assert checked.returncode == 0, checked.stdout.decode()


def test_no_server(folder: Path) -> None:
    command = [sys.executable, "-m", "abide.generate", "--url", "http://127.0.0.1:1"]
    run = subprocess.run(command, capture_output=True, cwd=folder, env=environment())
    assert run.returncode == 1
    assert b"unreachable" in run.stderr
