"""A query result that is kept up to date: a snapshot with the later changes applied."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable
from operator import itemgetter
from typing import Any

from .checksum import checksum, row_hash
from .order import SortKey, cell_key, exact_key
from .shape import Changes, PositionedChanges, Shape
from .values import Cell, Row

_MASK = (1 << 64) - 1


class MismatchError(Exception):
    """A change does not apply to the current rows, or leads to another checksum than the server's."""


class Layout:
    """How the rows of one shape compare, and what identifies them."""

    def __init__(self, shape: Shape) -> None:
        names = [column.name for column in shape.columns]
        try:
            self.key_at: list[int] = [names.index(name) for name in shape.key]
        except ValueError as exc:
            raise MismatchError(f"a key column is not among the columns: {exc}") from exc
        self.width: int = len(names)
        if any(not 0 <= term.index < self.width for term in shape.order):
            raise MismatchError("the result is sorted by a column that it does not have")
        self.is_ordered: bool = bool(shape.order)
        self._terms: list[Callable[[Row], Any]] = [term.key() for term in shape.order]

    def check_width(self, row: Row) -> None:
        """Refuses a row with too many or too few cells."""
        if len(row) != self.width:
            raise MismatchError(f"a row has {len(row)} cells, the result {self.width} columns")

    def get_key(self, row: Row) -> Row:
        """Returns the key of a row; the whole row if the result has no key. Deletes are reported by it."""
        return tuple([row[at] for at in self.key_at]) if self.key_at else row

    def sort_key(self, row: Row) -> SortKey:
        """Orders rows by the ORDER BY, then by the key; without a key, by all cells."""
        last = [cell_key(row[at]) for at in self.key_at] if self.key_at else [exact_key(cell) for cell in row]
        return (*[term(row) for term in self._terms], *last)


class ResultRows:
    """A result in its query's order; in key order if the query has no ORDER BY."""

    def __init__(self, shape: Shape, rows: list[Row], expected: int | None) -> None:
        """Makes the result of a snapshot, checked against the server's checksum if there is one.

        Raises:
            MismatchError: the rows do not fit the shape or the checksum.
        """
        layout = Layout(shape)
        self.layout: Layout = layout
        for row in rows:
            layout.check_width(row)
        self._checksum = None if expected is None else checksum(rows)
        _check_checksum(self._checksum, expected)
        self._is_top_n = shape.top_n
        self._by_key: dict[Hashable, Row] = {}
        if layout.key_at:
            self._by_key = {identity(layout.get_key(row)): row for row in rows}
            if len(self._by_key) != len(rows):
                raise MismatchError("two rows of the snapshot have the same key")
        # The snapshot in the order received, if the order kept here differs; until the first change.
        self._as_received: list[Row] | None = None
        self._rows = rows
        self._sort_keys: list[SortKey] = []
        if not shape.top_n:
            self._sort()
            if layout.is_ordered and self._rows != rows:
                self._as_received = rows

    @property
    def rows(self) -> list[Row]:
        """The rows, in order, hidden columns included."""
        return self._rows if self._as_received is None else self._as_received

    def _sort(self) -> None:
        keyed = [(self.layout.sort_key(row), row) for row in self._rows]
        keyed.sort(key=itemgetter(0))
        self._sort_keys = [key for key, _ in keyed]
        self._rows = [row for _, row in keyed]

    def apply(self, changes: Changes, expected: int | None) -> Changes:
        """Applies a change: all of it, or nothing.

        Returns it with the rows of a top-N result in the three lists.

        Raises:
            MismatchError: it does not fit the rows, or does not lead to the expected checksum.
        """
        if self._is_top_n or changes.positioned:
            return self._apply_top_n(changes.positioned or PositionedChanges([], [], []), expected)
        removed, added = self._difference(changes)
        checksum_after = self._checksum_after(removed, added)
        _check_checksum(checksum_after, expected)
        self._checksum = checksum_after
        self._as_received = None
        self._replace(removed, added)
        return changes

    def _apply_top_n(self, changes: PositionedChanges, expected: int | None) -> Changes:
        rows = list(self._rows)
        removed: list[Row] = []
        for at in changes.deletes:
            if not 0 <= at < len(rows):
                raise MismatchError(f"position {at} is beyond the top-N result")
            removed.append(rows.pop(at))
        reported = Changes(
            [self.layout.get_key(row) for row in removed],
            [row for _, row in changes.inserts],
            [row for _, row in changes.updates],
            changes if changes.deletes or changes.inserts or changes.updates else None,
        )
        for at, row in changes.inserts:
            self.layout.check_width(row)
            if not 0 <= at <= len(rows):
                raise MismatchError(f"position {at} is beyond the top-N result")
            rows.insert(at, row)
        for at, row in changes.updates:
            self.layout.check_width(row)
            if not 0 <= at < len(rows):
                raise MismatchError(f"position {at} is beyond the top-N result")
            removed.append(rows[at])
            rows[at] = row
        checksum_after = self._checksum_after(removed, reported.inserts + reported.updates)
        _check_checksum(checksum_after, expected)
        self._checksum, self._rows, self._is_top_n = checksum_after, rows, True
        return reported

    def _difference(self, changes: Changes) -> tuple[list[Row], list[Row]]:
        """Returns the rows that a change removes and adds, and changes nothing."""
        for row in changes.inserts + changes.updates:
            self.layout.check_width(row)
        if not self.layout.key_at:
            return self._difference_without_key(changes)
        after: dict[Hashable, Row | None] = {}

        def put(key: Row, row: Row | None, exists: bool, otherwise: str) -> None:
            name = identity(key)
            now = after[name] is not None if name in after else name in self._by_key
            if now is not exists:
                raise MismatchError(otherwise)
            after[name] = row

        for key in changes.deletes:
            put(key, None, True, "a deleted row does not exist")
        for row in changes.inserts:
            put(self.layout.get_key(row), row, False, "an inserted row already exists")
        for row in changes.updates:
            put(self.layout.get_key(row), row, True, "an updated row does not exist")
        removed = [self._by_key[name] for name in after if name in self._by_key]
        return removed, [row for row in after.values() if row is not None]

    def _difference_without_key(self, changes: Changes) -> tuple[list[Row], list[Row]]:
        if changes.updates:
            raise MismatchError("an update in a result without a key")
        counts: Counter[Hashable] = Counter()
        for row in changes.deletes:
            self.layout.check_width(row)
            counts[identity(row)] += 1
        for row in changes.deletes:
            count = counts.pop(identity(row), 0)
            key = self.layout.sort_key(row)
            first = bisect_left(self._sort_keys, key)
            if self._sort_keys[first : first + count] != [key] * count:
                raise MismatchError("a deleted row does not exist")
        return changes.deletes, changes.inserts

    def _checksum_after(self, removed: list[Row], added: list[Row]) -> int | None:
        if self._checksum is None:
            return None
        return (self._checksum - sum(map(row_hash, removed)) + sum(map(row_hash, added))) & _MASK

    def _replace(self, removed: list[Row], added: list[Row]) -> None:
        if self.layout.key_at:
            for row in removed:
                del self._by_key[identity(self.layout.get_key(row))]
            for row in added:
                self._by_key[identity(self.layout.get_key(row))] = row
        # For few rows, moving the tail of the list for each is cheapest; for many, one sort is.
        if len(removed) + len(added) <= 8 + len(self._rows) // 64:
            for row in removed:
                at = bisect_left(self._sort_keys, self.layout.sort_key(row))
                del self._sort_keys[at], self._rows[at]
            for row in added:
                key = self.layout.sort_key(row)
                at = bisect_left(self._sort_keys, key)
                self._sort_keys.insert(at, key)
                self._rows.insert(at, row)
            return
        leaving = Counter(map(identity, removed))
        self._rows = [row for row in self._rows if not _remove_one(leaving, row)] + added
        self._sort()

    def changes_to(self, new: ResultRows) -> Changes:
        """Returns the changes that lead from this result to a newer snapshot of the same shape."""
        if new._is_top_n:
            return self._positioned_changes_to(new)
        if not new.layout.key_at:
            return self._multiset_changes_to(new)
        old = {identity(self.layout.get_key(row)): row for row in self._rows}
        changes = Changes()
        for row in new.rows:
            before = old.pop(identity(new.layout.get_key(row)), None)
            if before is None:
                changes.inserts.append(row)
            elif not is_same_row(before, row):
                changes.updates.append(row)
        changes.deletes = [self.layout.get_key(row) for row in old.values()]
        return changes

    def _positioned_changes_to(self, new: ResultRows) -> Changes:
        """Returns the part between the common prefix and the common suffix."""
        old_rows, new_rows = self._rows, new._rows
        head = _common_prefix_length(old_rows, new_rows)
        old_rest, new_rest = old_rows[head:], new_rows[head:]
        tail = _common_prefix_length(old_rest[::-1], new_rest[::-1])
        removed, added = old_rest[: len(old_rest) - tail], new_rest[: len(new_rest) - tail]
        get_key = self.layout.get_key
        in_place = (
            bool(self.layout.key_at)
            and len(removed) == len(added)
            and all(is_same_row(get_key(a), get_key(b)) for a, b in zip(removed, added, strict=True))
        )
        if in_place:
            pairs = enumerate(zip(removed, added, strict=True), start=head)
            updates = [(at, now) for at, (before, now) in pairs if not is_same_row(before, now)]
            changes = PositionedChanges([], [], updates)
            return Changes(updates=[row for _, row in updates], positioned=changes if updates else None)
        changes = PositionedChanges(
            list(range(head + len(removed) - 1, head - 1, -1)),
            [(head + nth, row) for nth, row in enumerate(added)],
            [],
        )
        return Changes([get_key(row) for row in reversed(removed)], added, [], changes if removed or added else None)

    def _multiset_changes_to(self, new: ResultRows) -> Changes:
        before = Counter(identity(row) for row in self._rows)
        after = Counter(identity(row) for row in new._rows)
        removed, added = before - after, after - before
        return Changes(_select_rows(self._rows, removed), _select_rows(new._rows, added))


def identity(row: Row) -> Hashable:
    """Returns a hashable value that distinguishes 1 from 1.0, and 0.0 from -0.0."""
    for cell in row:
        if type(cell) is float:
            return tuple([_exact_cell(cell) for cell in row])
    return row


def is_same_row(left: Row, right: Row) -> bool:
    """Returns `True` if two rows have the same cells, with their types."""
    return left is right or identity(left) == identity(right)


def _exact_cell(cell: Cell) -> Hashable:
    return (float, cell.hex()) if isinstance(cell, float) else cell


def _common_prefix_length(left: list[Row], right: list[Row]) -> int:
    count = 0
    for a, b in zip(left, right, strict=False):
        if not is_same_row(a, b):
            break
        count += 1
    return count


def _remove_one(counts: Counter[Hashable], row: Row) -> bool:
    """Returns `True` if a row is one of those counted, and counts it once less."""
    name = identity(row)
    count = counts.get(name, 0)
    if count:
        counts[name] = count - 1
    return count > 0


def _select_rows(rows: list[Row], counts: Counter[Hashable]) -> list[Row]:
    return [row for row in rows if _remove_one(counts, row)]


def _check_checksum(actual: int | None, expected: int | None) -> None:
    if actual is not None and expected is not None and actual != expected:
        raise MismatchError(f"the rows have the checksum {actual:016x}, the server has {expected:016x}")
