"""Errors, split by what a caller can do about them. Each has a stable `code` and, if there is advice, a `hint`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

_LONGEST_RETRY_MS = 3_600_000
_LONGEST_TEXT = 2_000
_SHORT = 200


class AbideError(Exception):
    """The base of all errors of this package.

    `code` is stable: programs branch on it, never on the text. `hint` says how to fix the error.
    """

    code: str = "internal"

    def __init__(self, detail: str, *, code: str | None = None, hint: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        hint = f" (hint: {self.hint})" if self.hint else ""
        return f"{self.code}: {self.detail}{hint}"


class Refused(AbideError):
    """The server refused the request, and nothing was written.

    The subclasses cover the codes on which programs branch most often; `code` has the exact one.
    """

    def __init__(self, detail: str, *, code: str, hint: str | None = None, retry_after_ms: int | None = None) -> None:
        super().__init__(detail, code=code, hint=hint)
        self.retry_after_ms = retry_after_ms


class BadRequest(Refused):
    """The request, its arguments or its SQL are wrong. A retry without a change fails again."""


class Unauthenticated(Refused):
    """The credentials are missing, invalid or revoked."""


class Denied(Refused):
    """The caller lacks the permission."""


class NotFound(Refused):
    """The object does not exist, or the caller may not see it."""


class Conflict(Refused):
    """The state of the row does not allow it, or an id is used by something else."""


class LeaseLost(Conflict):
    """The caller no longer holds the lease."""


class LimitExceeded(Refused):
    """The request exceeds a limit."""


class RateLimited(Refused):
    """A rate, a quota or a limit of concurrent work holds the request back. A later retry can succeed."""


class Overloaded(Refused):
    """A queue or a buffer of the server is full. A later retry can succeed."""


class Unavailable(Refused):
    """The engine closes, or the file is in use. A later retry can succeed."""


TEMPORARY = (RateLimited, Overloaded, Unavailable)
"""The refusals that are retried: the request had no effect, and may succeed after a pause."""


class ConnectionFailed(AbideError):
    """No server answers at the address. Nothing was sent."""

    code = "unreachable"


class UntrustedEngine(ConnectionFailed):
    """The socket of the engine belongs to another user, or another user can replace it. Nothing was sent."""

    code = "untrusted_engine"


class TimedOut(AbideError):
    """There was no answer within the deadline. It is unknown whether the call took effect.

    A retry with the same `request_id` takes effect at most once.
    """

    code = "timed_out"

    def __init__(self, detail: str, *, request_id: str | None = None) -> None:
        hint = "retry, or set a longer deadline"
        if request_id is not None:
            hint = "retry with the same request id: the call takes effect at most once"
        super().__init__(detail, hint=hint)
        self.request_id = request_id


class ProtocolError(AbideError):
    """The server sent a message that violates `abide.v1`."""

    code = "protocol"

    def __init__(self, detail: str) -> None:
        super().__init__(detail, hint="use an SDK and a server of the same version")


class MalformedEntry(AbideError):
    """An entry that an adapter reads is none that it writes. Another caller of the scope may have written it."""

    code = "malformed_entry"

    def __init__(self, detail: str) -> None:
        super().__init__(detail, hint="delete the entry or its collection with delete_entries, or restrict who can write_entries")


class IncompatibleVersion(AbideError):
    """The engine speaks another version of the protocol."""

    code = "incompatible_version"


class EngineNotFound(AbideError):
    """There is no `abide` binary."""

    code = "engine_not_found"


class Closed(AbideError):
    """The client was closed."""

    code = "closed"

    def __init__(self, detail: str = "the client is closed") -> None:
        super().__init__(detail)


class UnknownOutcome(AbideError):
    """A tool call may have run: its worker disappeared or could not tell, and its tool must not run twice.

    Find out whether it ran, and record that with the reducer `settle_tool_call`. If the worker lost its lease and reported its
    result too late, the view `unknown_tool_calls` has the result.
    """

    code = "unknown_outcome"

    def __init__(self, call_id: str, tool_name: str, error: str | None = None) -> None:
        super().__init__(
            f"it is unknown whether call {call_id} of {tool_name} ran: {error}"
            if error
            else f"the worker of call {call_id} of {tool_name} disappeared, and the tool must not run twice",
            hint="find out whether it ran (unknown_tool_calls has late reports), then record that with settle_tool_call",
        )
        self.call_id = call_id
        self.error = error


class ToolFailed(AbideError):
    """A tool call ended without a result: it failed, was rejected, or was cancelled. `status` says which."""

    code = "tool_failed"

    def __init__(self, call_id: str, status: str, error: str | None) -> None:
        super().__init__(f"call {call_id} is {status}: {error or 'no reason was given'}")
        self.call_id = call_id
        self.status = status
        self.error = error


_BY_CODE: dict[str, type[Refused]] = {
    "bad_request": BadRequest,
    "bad_arguments": BadRequest,
    "bad_sql": BadRequest,
    "unsupported_sql": BadRequest,
    "unknown_reducer": BadRequest,
    "unauthenticated": Unauthenticated,
    "denied": Denied,
    "not_found": NotFound,
    "conflict": Conflict,
    "bad_transition": Conflict,
    "call_id_conflict": Conflict,
    "request_id_conflict": Conflict,
    "lease_lost": LeaseLost,
    "limit_exceeded": LimitExceeded,
    "rate_limited": RateLimited,
    "overloaded": Overloaded,
    "unavailable": Unavailable,
}


def _cut(text: str) -> str:
    """A text of a server that fits in a message: a server decides how long its texts are."""
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} … ({len(text) - _LONGEST_TEXT} more characters)"


def refusal(problem: dict[str, Any]) -> Refused:
    """The error of a problem document or of an `error` message. Members of another type than expected are omitted."""
    code = _cut(str(problem.get("code") or "internal"))
    detail = _cut(str(problem.get("detail") or "the server gives no reason"))
    if type(position := problem.get("batch_position")) is int:
        detail = f"call {position} of the batch: {detail}"
    hint = problem.get("hint")
    retry = problem.get("retry_after_ms")
    kind = _BY_CODE.get(code, Refused)
    return kind(
        detail,
        code=code,
        hint=_cut(hint) if isinstance(hint, str) else None,
        retry_after_ms=min(max(retry, 0), _LONGEST_RETRY_MS) if type(retry) is int else None,
    )


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Reads what a server sent: any error that is none of this package means that it is malformed. `what` names it.

    Raises:
        ProtocolError: it is malformed.
    """
    try:
        yield
    except AbideError:
        raise
    except Exception as why:
        raise ProtocolError(f"{what} is malformed: {short(why)}") from why


def member(message: Any, name: str, kind: type[T]) -> T:
    """A member of a message, which must have a type. A boolean is not an integer.

    Raises:
        ProtocolError: there is none, or it has another type.
    """
    value = message.get(name) if isinstance(message, dict) else None
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise ProtocolError(f"a message has no valid {name!r}")


def short(why: Exception) -> str:
    """The type and the text of an error, at most 200 characters."""
    text = f"{type(why).__name__}: {why}"
    return text if len(text) <= _SHORT else text[:_SHORT] + "…"


def copied(error: AbideError) -> AbideError:
    """A new instance for each caller: a raised exception keeps the traceback of its caller."""
    made = type(error).__new__(type(error))
    made.args, made.__dict__ = error.args, dict(error.__dict__)
    return made
