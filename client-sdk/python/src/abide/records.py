"""Rows as named tuples or dataclasses, and the result of a query."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from .errors import NotFoundError
from .extras import extra
from .values import Row

if TYPE_CHECKING:
    import pandas
    import pyarrow

R = TypeVar("R")


@lru_cache(maxsize=1024)
def row_type(columns: tuple[str, ...]) -> Callable[[Iterable[Any]], Any]:
    """Makes named tuples with these fields. A column that is no Python name is `_` and its position."""
    row_class: Any = namedtuple("Row", columns, rename=True)  # type: ignore[misc]
    make: Callable[[Iterable[Any]], Any] = row_class._make
    return make


def row_maker(columns: tuple[str, ...], into: type[R] | None) -> Callable[[Row], R]:
    """Returns a function from cells to a row: a named tuple, or an instance of `into` with the columns as arguments."""
    if into is None:
        return row_type(columns)
    return lambda row: into(**dict(zip(columns, row, strict=True)))


class Result(Sequence[R], Generic[R]):
    """The result of a query: its rows, in order."""

    __slots__ = ("_rows", "cells", "columns", "seq")

    def __init__(self, seq: int, columns: tuple[str, ...], cells: list[Row], into: type[R] | None) -> None:
        self.seq: int = seq
        """The state that the query read; it is durable."""
        self.columns: tuple[str, ...] = columns
        """The names of the columns."""
        self.cells: list[Row] = cells
        """The rows as plain tuples."""
        # Named tuples are made when they are needed.
        self._rows: list[R] | None = None if into is None else list(map(row_maker(columns, into), cells))

    @property
    def rows(self) -> list[R]:
        """The rows as named tuples, or as instances of `into`."""
        if self._rows is None:
            self._rows = list(map(row_maker(self.columns, None), self.cells))
        return self._rows

    def __len__(self) -> int:
        return len(self.cells)

    def __iter__(self) -> Iterator[R]:
        return iter(self.rows)

    @overload
    def __getitem__(self, at: int) -> R: ...
    @overload
    def __getitem__(self, at: slice) -> list[R]: ...
    def __getitem__(self, at: int | slice) -> R | list[R]:
        return self.rows[at]

    def __repr__(self) -> str:
        return f"Result(seq={self.seq}, rows={self.rows!r})"

    def first(self) -> R | None:
        """Returns the first row; `None` if there is none."""
        return self.rows[0] if self.rows else None

    def one(self) -> R:
        """Returns the only row.

        Raises:
            NotFoundError: there are no rows, or several.
        """
        if len(self.rows) != 1:
            raise NotFoundError(f"the query has {len(self.rows)} rows, not one", code="not_found")
        return self.rows[0]

    def scalar(self) -> Any:
        """Returns the first cell of the only row."""
        self.one()
        return self.cells[0][0]

    def dicts(self) -> list[dict[str, Any]]:
        """Returns the rows as dictionaries."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.cells]

    def to_pandas(self) -> pandas.DataFrame:
        """Returns the rows as a pandas data frame. It needs the package `pandas`.

        A column of integers is `int64`, and `Int64` if it has NULL: a `float64` would round integers beyond 53 bits.
        """
        with extra("pandas"):
            import pandas

        frame = pandas.DataFrame.from_records(self.cells, columns=list(self.columns))
        for at in range(len(self.columns)):
            kinds = {type(row[at]) for row in self.cells}
            if kinds == {int, type(None)}:
                cells = pandas.array([row[at] for row in self.cells], dtype="Int64")
                frame.isetitem(at, cells)
        return frame

    def to_arrow(self) -> pyarrow.Table:
        """Returns the rows as an Arrow table. It needs the package `pyarrow`."""
        with extra("arrow"):
            import pyarrow

        columns = list(zip(*self.cells, strict=True)) or [()] * len(self.columns)
        return pyarrow.table([pyarrow.array(cells) for cells in columns], names=list(self.columns))
