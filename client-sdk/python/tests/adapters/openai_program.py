"""An agent of the OpenAI Agents SDK that is killed in the middle of its tool, with a model that needs no network."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from abide import Abide
from abide.adapters.openai_agents import AbideSession

set_tracing_disabled(True)


class Script(Model):
    """Calls the tool once, and then answers."""

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
        items: list[Any] = input if isinstance(input, list) else []
        if any(isinstance(item, dict) and item.get("type") == "function_call_output" for item in items):
            text = ResponseOutputText(type="output_text", text="finished", annotations=[])
            output: Any = ResponseOutputMessage(id="m1", type="message", role="assistant", status="completed", content=[text])
        else:
            output = ResponseFunctionToolCall(type="function_call", call_id="call-1", name="work", arguments="{}")
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


async def main() -> None:
    url, done, stop = sys.argv[1], Path(sys.argv[2]), "--stop" in sys.argv
    async with Abide.connect(url) as client:
        session = await client.session("s1")

        async def effect(args: Any) -> str:
            print("in the tool", flush=True)
            if stop:
                await asyncio.Event().wait()
            with done.open("a") as file:
                file.write("done\n")
            return "done"

        @function_tool
        async def work() -> str:
            """Does the work."""
            result = await session.tool("work", {}, key="work", run=effect, effect="idempotent", lease_ms=500)
            return str(result)

        agent = Agent(name="worker", model=Script(), tools=[work])
        history = AbideSession("t1", client)
        pending = await history.get_items()
        result = await Runner.run(agent, [] if pending else "go", session=history)
        print(result.final_output)


asyncio.run(main())
