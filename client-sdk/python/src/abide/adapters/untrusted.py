"""Adapters read entries that any caller of the same scope may have written: they are data, and may be malformed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import AbideError, LimitExceededError, MalformedEntryError, describe


@contextmanager
def decoding(what: str) -> Iterator[None]:
    """Decodes stored data: an error of any kind means that it is malformed. `what` names it.

    Raises:
        MalformedEntryError: it is malformed.
    """
    try:
        yield
    except AbideError:
        raise
    except Exception as exc:
        raise MalformedEntryError(f"{what} is malformed: {describe(exc)}") from exc


class Budget:
    """How many bytes the values of one checkpoint may have. Compressed values of attackers grow to thousand times their size."""

    __slots__ = ("_most", "left")

    def __init__(self, most: int) -> None:
        self._most = most
        self.left: int = most

    def take(self, count: int) -> None:
        """Counts bytes.

        Raises:
            LimitExceededError: they are too many.
        """
        self.left -= count
        if self.left < 0:
            raise too_large(self._most)


def too_large(most: int) -> LimitExceededError:
    """Returns the error of a checkpoint with too many bytes."""
    return LimitExceededError(
        f"the values of a checkpoint have more than {most} bytes",
        code="limit_exceeded",
        hint="if they are your own, pass a larger max_bytes to AbideSaver",
    )
