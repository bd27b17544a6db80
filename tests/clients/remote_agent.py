"""An agent of the A2A SDK for Python: it asks where to, counts slowly, and answers. `remote_agent.py PORT VERSION` serves it."""

from __future__ import annotations

import asyncio
import sys

import uvicorn
from a2a.helpers.proto_helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandlerV2
from a2a.server.routes.agent_card_routes import create_agent_card_routes
from a2a.server.routes.jsonrpc_routes import create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part
from starlette.applications import Starlette


class Guide(AgentExecutor):
    """Asks for a place in its first answer. Then it answers with the number of the messages that it got."""

    def __init__(self) -> None:
        self.messages = 0

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.messages += 1
        task = context.current_task
        if task is None:
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        text = context.get_user_input()
        if text == "Guide me.":
            await updater.requires_input(updater.new_agent_message([Part(text="Where to?")]))
            return
        await updater.start_work()
        for number in range(40):
            piece = Part(text=f"step{number} ")
            await updater.add_artifact([piece], artifact_id="way", append=number > 0, last_chunk=False)
            await asyncio.sleep(0.02)
        await updater.add_artifact([Part(text=f"to {text} after {self.messages} messages")], artifact_id="end")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def main(port: int, version: str) -> None:
    url = f"http://127.0.0.1:{port}/rpc"
    interface = AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version=version)
    card = AgentCard(
        name="guide",
        description="Knows the way",
        version="1",
        supported_interfaces=[interface],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="guide", name="guide", description="Knows the way", tags=["way"])],
    )
    handler = DefaultRequestHandlerV2(agent_executor=Guide(), task_store=InMemoryTaskStore(), agent_card=card)
    rpc = create_jsonrpc_routes(handler, "/rpc", enable_v0_3_compat=version == "0.3")
    routes = [*create_agent_card_routes(card), *rpc]
    uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
