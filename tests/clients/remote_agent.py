"""An agent of the A2A SDK for Python: it asks where to, counts, and answers. `remote_agent.py VERSION` serves it.

It prints its port. A count stops after ten steps until `POST /continue`.
"""

from __future__ import annotations

import asyncio
import socket
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
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


class Guide(AgentExecutor):
    """Asks for a place in its first answer. Then it answers with the number of the messages that it got."""

    def __init__(self) -> None:
        self.messages = 0
        self.may_continue = asyncio.Event()

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
            if number == 9:
                await self.may_continue.wait()
                self.may_continue.clear()
        await updater.add_artifact([Part(text=f"to {text} after {self.messages} messages")], artifact_id="end")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def main(version: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
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
    guide = Guide()

    async def go_on(_request: Request) -> Response:
        guide.may_continue.set()
        return Response()

    handler = DefaultRequestHandlerV2(agent_executor=guide, task_store=InMemoryTaskStore(), agent_card=card)
    rpc = create_jsonrpc_routes(handler, "/rpc", enable_v0_3_compat=version == "0.3")
    routes = [*create_agent_card_routes(card), *rpc, Route("/continue", go_on, methods=["POST"])]
    # Connections wait in the queue of the socket until the server accepts them.
    print(port, flush=True)
    uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    main(sys.argv[1])
