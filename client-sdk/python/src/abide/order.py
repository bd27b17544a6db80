"""SQLite's order of values, as sort keys.

NULL, numbers, texts, blobs; numbers by their exact value; texts by a collation; blobs byte by byte. See
<https://www.sqlite.org/datatype3.html#comparisons>.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import total_ordering
from typing import Any, TypeAlias

from .errors import ProtocolError
from .values import Cell, Row

SortKey: TypeAlias = tuple[Any, ...]
"""A value that compares as its row does."""

_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def _nocase(text: str) -> tuple[str, int]:
    # SQLite folds the 26 ASCII letters only, and stops at a NUL; then the lengths in bytes decide.
    return text.split("\0", 1)[0].translate(_LOWER), len(text.encode())


_COLLATIONS: dict[str, Callable[[str], Any]] = {
    "BINARY": lambda text: text,  # By code point: the order of the UTF-8 bytes.
    "NOCASE": _nocase,
    "RTRIM": lambda text: text.rstrip(" "),
}


def cell_key(cell: Cell, collation: Callable[[str], Any] = _COLLATIONS["BINARY"]) -> SortKey:
    """Returns the sort key of a cell. Numbers compare by value: 1 equals 1.0."""
    if cell is None:
        return (0,)
    if isinstance(cell, (int, float)):
        return (1, cell)
    if isinstance(cell, str):
        return (2, collation(cell))
    return (3, cell)


def exact_key(cell: Cell) -> SortKey:
    """Returns the sort key of a cell that also distinguishes 1 from 1.0, and 0.0 from -0.0."""
    if isinstance(cell, float):
        return (1, cell, 0, math.copysign(1.0, cell))
    if isinstance(cell, int):
        return (1, cell, 1)
    return cell_key(cell)


@total_ordering
class _Descending:
    __slots__ = ("key",)

    def __init__(self, key: SortKey) -> None:
        self.key = key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and self.key == other.key

    def __lt__(self, other: _Descending) -> bool:
        return other.key < self.key

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class OrderTerm:
    """One term of an ORDER BY, as the server describes it."""

    column: str
    """The column, by name."""
    index: int
    """Its position among the columns, hidden ones included."""
    desc: bool
    """Largest first."""
    nulls: str
    """`first` or `last`."""
    collation: str
    """`BINARY`, `NOCASE` or `RTRIM`."""

    def key(self) -> Callable[[Row], Any]:
        """Returns a function from a row to its sort key for this term."""
        collate = _COLLATIONS.get(self.collation.upper())
        if collate is None:
            raise ProtocolError(f"unknown collation {self.collation}")
        at, desc = self.index, self.desc
        null_key: SortKey = (2,) if self.nulls == "last" else (0,)

        def key(row: Row) -> Any:
            cell = row[at]
            if cell is None:
                return null_key
            inner = cell_key(cell, collate)
            return (1, _Descending(inner)) if desc else (1, inner)

        return key
