"""The calls of an application, for `cargo xtask matrix`: the address of a server, and the id of a session."""

import asyncio
import sys

from abide import Abide


async def double(args):
    return 2 * args["n"]


async def main():
    sql = "SELECT id, content FROM agent_state WHERE session_id = :s ORDER BY id"
    async with Abide.connect(sys.argv[1]) as client:
        session = await client.session(sys.argv[2], agent="support")
        async with client.subscribe(sql, {"s": session.id}) as messages:
            await session.message("user", "hello", key="first")
            async for _ in messages:
                if len(messages.rows) == 1:
                    break
            result = await session.tool("double", {"n": 21}, key="double", run=double, effect="at_most_once")
            print(messages.rows[0].content, result)


asyncio.run(main())
