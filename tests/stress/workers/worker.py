"""A worker of the Python SDK: `worker.py URL FILE`. It ends when its input ends. See `tests/stress/src/deploys.rs`."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

from abide import Abide


async def main(url: str, file: Path) -> None:
    def note(what: str, call: str) -> None:
        with file.open("a") as lines:
            lines.write(f"{what} {call}\n")

    async def run(args: dict[str, Any]) -> dict[str, str]:
        note("began", args["call"])
        # tidy: a tool that takes some time
        await asyncio.sleep(args["ms"] / 1000)
        note("done", args["call"])
        return {"done": args["call"]}

    loop = asyncio.get_running_loop()
    async with Abide.connect(url) as client:
        worker = client.worker("python")

        def read_input() -> None:
            sys.stdin.buffer.read()
            loop.call_soon_threadsafe(worker.stop)

        threading.Thread(target=read_input, daemon=True).start()
        await worker.serve({"python": run}, concurrency=4)


asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
