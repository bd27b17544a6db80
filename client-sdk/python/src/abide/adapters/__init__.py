"""Adapters: Abide as the storage of agent frameworks.

| module | class | of |
|---|---|---|
| `langgraph` | `AbideSaver` | LangGraph, checkpoints |
| `langgraph_store` | `AbideStore` | LangGraph, long-term memory |
| `openai_agents` | `AbideSession` | OpenAI Agents SDK |
| `google_adk` | `AbideSessionService` | Google ADK |
| `pydantic_ai` | `AbideHistory` | Pydantic AI |
| `llama_index` | `AbideChatStore` | LlamaIndex |

Each module needs the package of its framework: `pip install abide-client[langgraph]`.
"""
