"""Exponential backoff with jitter, so that the clients of one server do not retry in step."""

from __future__ import annotations

import random

_MIN_DELAY = 0.05
_MAX_DELAY = 2.0


class Backoff:
    """Pauses in seconds, each between half and all of its length; the length doubles up to 2 s."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = _MIN_DELAY

    def next(self) -> float:
        """Returns the next pause, and doubles the one after it."""
        whole = self._next
        self._next = min(whole * 2, _MAX_DELAY)
        return whole * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Makes the next pause the shortest again."""
        self._next = _MIN_DELAY
