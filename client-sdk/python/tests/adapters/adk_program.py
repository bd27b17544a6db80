"""An agent of the Google ADK that is killed in the middle of its tool, with a model that needs no network."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner
from google.genai import types

from abide import Abide
from abide.adapters.google_adk import AbideSessionService


class Script(BaseLlm):
    """Calls the tool until it has a result, and then answers."""

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        parts = [part for content in llm_request.contents for part in content.parts or []]
        if any(part.function_response for part in parts):
            part = types.Part(text="finished")
        else:
            part = types.Part(function_call=types.FunctionCall(name="work", args={}))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


async def main() -> None:
    url, done, stop = sys.argv[1], Path(sys.argv[2]), "--stop" in sys.argv
    async with Abide.connect(url) as client:
        steps = await client.session("s1")

        async def effect(args: Any) -> str:
            print("in the tool", flush=True)
            if stop:
                await asyncio.Event().wait()
            with done.open("a") as file:
                file.write("done\n")
            return "done"

        async def work() -> str:
            """Does the work."""
            result = await steps.tool("work", {}, key="work", run=effect, effect="idempotent", lease_ms=500)
            return str(result)

        agent = LlmAgent(name="worker", model=Script(model="script"), tools=[work])
        service = AbideSessionService(client)
        owner = {"app_name": "app", "user_id": "ann"}
        session = await service.get_session(**owner, session_id="t1")
        if session is None:
            session = await service.create_session(**owner, session_id="t1")
        text = "continue" if session.events else "go"
        message = types.Content(role="user", parts=[types.Part(text=text)])
        runner = Runner(app_name="app", agent=agent, session_service=service)
        async for event in runner.run_async(user_id="ann", session_id="t1", new_message=message):
            if event.is_final_response() and event.content:
                print(event.content.parts[0].text)


asyncio.run(main())
