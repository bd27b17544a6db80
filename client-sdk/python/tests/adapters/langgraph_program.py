"""An agent that is killed in the middle of its tool. It continues at its last checkpoint, and the tool is a durable step."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph

from abide import Abide
from abide.adapters.langgraph import AbideSaver


async def main() -> None:
    url, done, stop = sys.argv[1], Path(sys.argv[2]), "--stop" in sys.argv
    async with Abide.connect(url) as client:
        session = await client.session("s1")

        async def work(args: Any) -> str:
            print("in the tool", flush=True)
            if stop:
                await asyncio.Event().wait()
            with done.open("a") as file:
                file.write("done\n")
            return "done"

        async def model(state: MessagesState) -> Any:
            if isinstance(state["messages"][-1], ToolMessage):
                return {"messages": [AIMessage(content="finished")]}
            call = {"name": "work", "args": {}, "id": "call-1"}
            return {"messages": [AIMessage(content="", tool_calls=[call])]}

        async def tools(state: MessagesState) -> Any:
            call = state["messages"][-1].tool_calls[0]
            result = await session.tool("work", call["args"], key=call["id"], run=work, effect="idempotent", lease_ms=500)
            return {"messages": [ToolMessage(content=result, tool_call_id=call["id"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("model", model)
        graph.add_node("tools", tools)
        graph.add_edge(START, "model")
        graph.add_edge("tools", "model")
        graph.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else "__end__")
        agent = graph.compile(checkpointer=AbideSaver(client))
        config: Any = {"configurable": {"thread_id": "t1"}}
        started = await agent.aget_state(config)
        state = await agent.ainvoke(None if started.next else {"messages": [HumanMessage(content="go")]}, config, durability="sync")
        print(",".join(message.type for message in state["messages"]))


asyncio.run(main())
