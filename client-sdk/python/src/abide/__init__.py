"""Abide: a durable session engine for AI agents, embedded in SQLite.

```python
import asyncio
from abide import Abide

async def main() -> None:
    async with Abide.open("agents.db") as client:
        session = await client.session("s1", agent="support")
        await session.message("user", "Please refund order 8812.")
        async for update in client.subscribe("SELECT id, content FROM agent_state WHERE session_id = :s", {"s": "s1"}):
            print(update.inserts)
            break

asyncio.run(main())
```

`abide.sync` has the same API without asyncio.
"""

from .client import Abide, Call, Committed
from .errors import (
    AbideError,
    BadRequest,
    Closed,
    Conflict,
    ConnectionFailed,
    Denied,
    EngineNotFound,
    IncompatibleVersion,
    LeaseLost,
    LimitExceeded,
    MalformedEntry,
    NotFound,
    Overloaded,
    ProtocolError,
    RateLimited,
    Refused,
    TimedOut,
    ToolFailed,
    Unauthenticated,
    Unavailable,
    UnknownOutcome,
    UntrustedEngine,
)
from .extras import MissingPackage
from .records import Result
from .session import Decision, Resolution, Session
from .subscription import Subscription, Update
from .supervisor import Handoff, Rejected, Supervisor
from .tool_run import Retryable
from .worker import Worker

__version__ = "0.1.0"

__all__ = [
    "Abide",
    "AbideError",
    "BadRequest",
    "Call",
    "Closed",
    "Committed",
    "Conflict",
    "ConnectionFailed",
    "Decision",
    "Denied",
    "EngineNotFound",
    "Handoff",
    "IncompatibleVersion",
    "LeaseLost",
    "LimitExceeded",
    "MalformedEntry",
    "MissingPackage",
    "NotFound",
    "Overloaded",
    "ProtocolError",
    "RateLimited",
    "Refused",
    "Rejected",
    "Resolution",
    "Result",
    "Retryable",
    "Session",
    "Subscription",
    "Supervisor",
    "TimedOut",
    "ToolFailed",
    "Unauthenticated",
    "Unavailable",
    "UnknownOutcome",
    "UntrustedEngine",
    "Update",
    "Worker",
]
