"""A durable step: a refund that is paid once, however often this program is killed.

    python refund.py [--url URL | FILE]

The payment is a line in the file `paid.txt`. The first run stops in the middle of the tool with `--stop`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from abide import Abide, UnknownOutcomeError


async def main() -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", nargs="?", default="agents.db")
    parser.add_argument("--url")
    parser.add_argument("--paid", type=Path, default=Path("paid.txt"))
    parser.add_argument("--effect", default="at_most_once")
    parser.add_argument("--lease-ms", type=int, default=30_000)
    parser.add_argument("--stop", action="store_true", help="wait forever in the middle of the tool")
    options = parser.parse_args()

    async def refund(args: dict[str, Any]) -> dict[str, Any]:
        print("running", flush=True)
        if options.stop:
            await asyncio.Event().wait()
        with options.paid.open("a") as file:
            file.write(f"{args['order']}\n")
        return {"refunded": args["order"]}

    async with Abide.connect(options.url) if options.url else Abide.open(options.file) as client:
        session = await client.session("s1", agent="support")
        await session.message("user", "Please refund order 8812.", key="question")
        try:
            result = await session.tool(
                "refund", {"order": 8812}, key="refund-8812", run=refund, effect=options.effect, lease_ms=options.lease_ms
            )
        except UnknownOutcomeError as why:
            print(why)
            return 1
        await session.message("assistant", f"Order {result['refunded']} is refunded.", key="answer")
        print(result, flush=True)
        return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
