"""The `mcp` package uses agents and tools over HTTP and over `abide mcp`."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp import Client, MCPError, StdioServerParameters, types

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "client-sdk/python/tests"))

from server import Server, binary  # noqa: E402

AGENTS = str(Path(__file__).with_name("agents"))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder), "--agents", AGENTS) as server:
        yield server


async def approve(_context: object, _params: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"approve": True})


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_an_agent_and_a_tool_with_approvals(server: Server, mode: str, transport: str) -> None:
    stdio = StdioServerParameters(command=str(binary()), args=["mcp", "--url", server.url])
    target = f"{server.url}/mcp" if transport == "http" else stdio

    async def use() -> None:
        async with Client(target, mode=mode, elicitation_callback=approve) as client:
            assert client.protocol_version == ("2026-07-28" if mode == "auto" else "2025-11-25")
            tools = [tool.name for tool in (await client.list_tools()).tools]
            assert tools == ["agent_clerk", "agent_writer", "sql_query", "look", "refund"]
            paid = await client.call_tool("agent_clerk", {"message": "Pay order A-7 back."})
            assert paid.content[0].text == "Order A-7 is paid back."
            refund = await client.call_tool("refund", {"order": "A-7"})
            assert refund.content[0].text.strip() == "done"
            table = await client.read_resource("abide://tables/approvals")
            assert '"approved"' in table.contents[0].text
            with pytest.raises(MCPError, match="unknown tool"):
                await client.call_tool("unknown", {})

    asyncio.run(use())
