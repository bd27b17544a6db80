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

Errors end in `Error`. Their former names without the suffix, such as `Conflict` for `ConflictError`, are the same classes.
"""

from .client import Abide, Call, Committed
from .errors import (
    AbideError,
    BadRequest,
    BadRequestError,
    Closed,
    ClosedError,
    Conflict,
    ConflictError,
    ConnectionFailed,
    ConnectionFailedError,
    Denied,
    DeniedError,
    EngineNotFound,
    EngineNotFoundError,
    IncompatibleVersion,
    IncompatibleVersionError,
    LeaseLost,
    LeaseLostError,
    LimitExceeded,
    LimitExceededError,
    MalformedEntry,
    MalformedEntryError,
    NotFound,
    NotFoundError,
    Overloaded,
    OverloadedError,
    ProtocolError,
    RateLimited,
    RateLimitedError,
    Refused,
    RefusedError,
    TimedOut,
    TimedOutError,
    ToolFailed,
    ToolFailedError,
    Unauthenticated,
    UnauthenticatedError,
    Unavailable,
    UnavailableError,
    UnknownOutcome,
    UnknownOutcomeError,
    UntrustedEngine,
    UntrustedEngineError,
)
from .extras import MissingPackage, MissingPackageError
from .records import Result
from .session import Decision, Resolution, Session
from .subscription import Subscription, Update
from .supervisor import Handoff, Rejected, RejectedError, Supervisor
from .tool_run import Retryable, RetryableError
from .worker import Worker

__version__ = "0.1.0"

__all__ = [
    "Abide",
    "AbideError",
    "BadRequest",
    "BadRequestError",
    "Call",
    "Closed",
    "ClosedError",
    "Committed",
    "Conflict",
    "ConflictError",
    "ConnectionFailed",
    "ConnectionFailedError",
    "Decision",
    "Denied",
    "DeniedError",
    "EngineNotFound",
    "EngineNotFoundError",
    "Handoff",
    "IncompatibleVersion",
    "IncompatibleVersionError",
    "LeaseLost",
    "LeaseLostError",
    "LimitExceeded",
    "LimitExceededError",
    "MalformedEntry",
    "MalformedEntryError",
    "MissingPackage",
    "MissingPackageError",
    "NotFound",
    "NotFoundError",
    "Overloaded",
    "OverloadedError",
    "ProtocolError",
    "RateLimited",
    "RateLimitedError",
    "Refused",
    "RefusedError",
    "Rejected",
    "RejectedError",
    "Resolution",
    "Result",
    "Retryable",
    "RetryableError",
    "Session",
    "Subscription",
    "Supervisor",
    "TimedOut",
    "TimedOutError",
    "ToolFailed",
    "ToolFailedError",
    "Unauthenticated",
    "UnauthenticatedError",
    "Unavailable",
    "UnavailableError",
    "UnknownOutcome",
    "UnknownOutcomeError",
    "UntrustedEngine",
    "UntrustedEngineError",
    "Update",
    "Worker",
]
