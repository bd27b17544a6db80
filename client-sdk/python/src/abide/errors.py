"""Errors, split by what a caller can do about them. Each has a stable `code` and, if there is advice, a `hint`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
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

    def __reduce__(self) -> tuple[Any, ...]:
        # `Exception` would call the constructor with the text alone, but most of these need more: errors could not be copied or
        # sent to another process.
        return _restore, (type(self), self.args), self.__dict__


def _restore(kind: type[AbideError], args: tuple[Any, ...]) -> AbideError:
    """Returns an error without its attributes; `copy` and `pickle` add them."""
    return kind.__new__(kind, *args)


class RefusedError(AbideError):
    """The server refused the request, and nothing was written.

    The subclasses cover the codes on which programs branch most often; `code` has the exact one.
    """

    def __init__(self, detail: str, *, code: str, hint: str | None = None, retry_after_ms: int | None = None) -> None:
        super().__init__(detail, code=code, hint=hint)
        self.retry_after_ms = retry_after_ms


class BadRequestError(RefusedError):
    """The request, its arguments or its SQL are wrong. A retry without a change fails again."""


class UnauthenticatedError(RefusedError):
    """The credentials are missing, invalid or revoked."""


class DeniedError(RefusedError):
    """The caller lacks the permission."""


class NotFoundError(RefusedError):
    """The object does not exist, or the caller may not see it."""


class ConflictError(RefusedError):
    """The state of the row does not allow it, or an id is used by something else."""


class LeaseLostError(ConflictError):
    """The caller no longer holds the lease."""


class LimitExceededError(RefusedError):
    """The request exceeds a limit."""


class RateLimitedError(RefusedError):
    """A rate, a quota or a limit of concurrent work holds the request back. A later retry can succeed."""


class OverloadedError(RefusedError):
    """A queue or a buffer of the server is full. A later retry can succeed."""


class UnavailableError(RefusedError):
    """The engine closes, or the file is in use. A later retry can succeed."""


TEMPORARY = (RateLimitedError, OverloadedError, UnavailableError)
"""The refusals that are retried: the request had no effect, and may succeed after a pause."""


class ConnectionFailedError(AbideError):
    """No server answers at the address. Nothing was sent."""

    code = "unreachable"


class UntrustedEngineError(ConnectionFailedError):
    """The socket of the engine belongs to another user, or another user can replace it. Nothing was sent."""

    code = "untrusted_engine"


class TimedOutError(AbideError):
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


class MalformedEntryError(AbideError):
    """An adapter has read an entry that no adapter writes. Another caller of the scope may have written it."""

    code = "malformed_entry"

    def __init__(self, detail: str) -> None:
        super().__init__(detail, hint="delete the entry or its collection with delete_entries, or restrict who can write_entries")


class IncompatibleVersionError(AbideError):
    """The engine speaks another version of the protocol."""

    code = "incompatible_version"


class EngineNotFoundError(AbideError):
    """There is no `abide` binary."""

    code = "engine_not_found"


class ClosedError(AbideError):
    """The client was closed."""

    code = "closed"

    def __init__(self, detail: str = "the client is closed") -> None:
        super().__init__(detail)


class UnknownOutcomeError(AbideError):
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


class ToolFailedError(AbideError):
    """A tool call ended without a result: it failed, was rejected, or was cancelled. `status` says which."""

    code = "tool_failed"

    def __init__(self, call_id: str, status: str, error: str | None) -> None:
        super().__init__(f"call {call_id} is {status}: {error or 'no reason was given'}")
        self.call_id = call_id
        self.status = status
        self.error = error


_BY_CODE: dict[str, type[RefusedError]] = {
    "bad_request": BadRequestError,
    "bad_arguments": BadRequestError,
    "bad_sql": BadRequestError,
    "unsupported_sql": BadRequestError,
    "unknown_reducer": BadRequestError,
    "unauthenticated": UnauthenticatedError,
    "denied": DeniedError,
    "not_found": NotFoundError,
    "conflict": ConflictError,
    "bad_transition": ConflictError,
    "call_id_conflict": ConflictError,
    "request_id_conflict": ConflictError,
    "lease_lost": LeaseLostError,
    "limit_exceeded": LimitExceededError,
    "rate_limited": RateLimitedError,
    "overloaded": OverloadedError,
    "unavailable": UnavailableError,
}


def _truncate(text: str) -> str:
    """Shortens a text of a server, which decides how long its texts are."""
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} … ({len(text) - _LONGEST_TEXT} more characters)"


def error_from_problem(problem: dict[str, Any]) -> RefusedError:
    """Returns the error of a problem document or of an `error` message. Members of another type than expected are omitted."""
    code = _truncate(str(problem.get("code") or "internal"))
    detail = _truncate(str(problem.get("detail") or "the server gives no reason"))
    if type(position := problem.get("batch_position")) is int:
        detail = f"call {position} of the batch: {detail}"
    hint = problem.get("hint")
    retry = problem.get("retry_after_ms")
    kind = _BY_CODE.get(code, RefusedError)
    return kind(
        detail,
        code=code,
        hint=_truncate(hint) if isinstance(hint, str) else None,
        retry_after_ms=min(max(retry, 0), _LONGEST_RETRY_MS) if type(retry) is int else None,
    )


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Reads what a server sent: an error from outside of this package means that it is malformed. `what` names it.

    Raises:
        ProtocolError: it is malformed.
    """
    try:
        yield
    except AbideError:
        raise
    except Exception as exc:
        raise ProtocolError(f"{what} is malformed: {describe(exc)}") from exc


def get_member(message: Any, name: str, kind: type[T]) -> T:
    """Returns a member of a message, and checks its type. A boolean is not an integer.

    Raises:
        ProtocolError: the member is missing, or has another type.
    """
    value = message.get(name) if isinstance(message, dict) else None
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise ProtocolError(f"a message has no valid {name!r}")


def describe(exc: Exception) -> str:
    """Describes an error by its type and its text, in at most 200 characters."""
    text = f"{type(exc).__name__}: {exc}"
    return text if len(text) <= _SHORT else text[:_SHORT] + "…"


def copy_error(error: AbideError) -> AbideError:
    """Returns a new instance, to be raised for one caller: a raised exception keeps the traceback of its caller."""
    return copy(error)


# Former names, for programs that were written before all errors ended in `Error`. Each is the same class.

BadRequest = BadRequestError
"""The former name of `BadRequestError`."""
Closed = ClosedError
"""The former name of `ClosedError`."""
Conflict = ConflictError
"""The former name of `ConflictError`."""
ConnectionFailed = ConnectionFailedError
"""The former name of `ConnectionFailedError`."""
Denied = DeniedError
"""The former name of `DeniedError`."""
EngineNotFound = EngineNotFoundError
"""The former name of `EngineNotFoundError`."""
IncompatibleVersion = IncompatibleVersionError
"""The former name of `IncompatibleVersionError`."""
LeaseLost = LeaseLostError
"""The former name of `LeaseLostError`."""
LimitExceeded = LimitExceededError
"""The former name of `LimitExceededError`."""
MalformedEntry = MalformedEntryError
"""The former name of `MalformedEntryError`."""
NotFound = NotFoundError
"""The former name of `NotFoundError`."""
Overloaded = OverloadedError
"""The former name of `OverloadedError`."""
RateLimited = RateLimitedError
"""The former name of `RateLimitedError`."""
Refused = RefusedError
"""The former name of `RefusedError`."""
TimedOut = TimedOutError
"""The former name of `TimedOutError`."""
ToolFailed = ToolFailedError
"""The former name of `ToolFailedError`."""
Unauthenticated = UnauthenticatedError
"""The former name of `UnauthenticatedError`."""
Unavailable = UnavailableError
"""The former name of `UnavailableError`."""
UnknownOutcome = UnknownOutcomeError
"""The former name of `UnknownOutcomeError`."""
UntrustedEngine = UntrustedEngineError
"""The former name of `UntrustedEngineError`."""
