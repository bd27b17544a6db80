"""The shape of a live result, and changes of it, as the server describes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .order import OrderTerm
from .values import Row, decode_row


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a result."""

    name: str
    type: str
    """The declared type; empty for an expression."""
    hidden: bool = False
    """It only carries the sort order, and is not part of the rows that the caller sees."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How the server maintains a live query, in a few words."""

    rule: str = ""
    cost: str = ""
    state: str = ""
    statements: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """Columns, key and order of a live result."""

    columns: tuple[Column, ...] = ()
    key: tuple[str, ...] = ()
    """The columns that identify a row; empty: the result is a multiset."""
    order: tuple[OrderTerm, ...] = ()
    """Empty if the query has no ORDER BY."""
    top_n: bool = False
    """The query has a LIMIT: its changes have positions."""

    @property
    def visible(self) -> tuple[str, ...]:
        """The names of the columns that the caller sees."""
        return tuple(column.name for column in self.columns if not column.hidden)


@dataclass(slots=True)
class Changes:
    """The changes of a result. `deletes` has keys, or whole rows if the result has no key."""

    deletes: list[Row] = field(default_factory=list)
    inserts: list[Row] = field(default_factory=list)
    updates: list[Row] = field(default_factory=list)
    positioned: PositionedChanges | None = None
    """The changes of a top-N result, which have positions instead."""

    def __bool__(self) -> bool:
        return bool(self.deletes or self.inserts or self.updates or self.positioned)


@dataclass(slots=True)
class PositionedChanges:
    """Changes of a top-N result: deletes from the last to the first, inserts from the first to the last, updates."""

    deletes: list[int]
    inserts: list[tuple[int, Row]]
    updates: list[tuple[int, Row]]


def read_shape(message: dict[str, Any]) -> Shape:
    """Returns the shape in a snapshot, or in the answer to a resume."""
    columns = tuple(
        Column(column, "")
        if isinstance(column, str)
        else Column(column["name"], column.get("type", ""), column.get("hidden", False))
        for column in message.get("columns", ())
    )
    order = tuple(
        OrderTerm(term["column"], term["index"], term["desc"], term["nulls"], term["collation"])
        for term in message.get("order", ())
    )
    return Shape(columns, tuple(message.get("key", ())), order, message.get("top_n", False))


def read_plan(message: dict[str, Any]) -> Plan:
    """Returns the plan in a snapshot; an older server sends none."""
    plan = message.get("plan") or {}
    return Plan(
        plan.get("rule", ""),
        plan.get("cost", ""),
        plan.get("state", ""),
        tuple(plan.get("statements", ())),
    )


def read_changes(entry: dict[str, Any]) -> Changes:
    """Returns the changes in one entry of a frame."""
    deletes, inserts = entry.get("deletes") or (), entry.get("inserts") or ()
    updates = entry.get("updates") or ()
    for items in (deletes, inserts, updates):
        if items and type(items[0]) is dict:
            return Changes(
                positioned=PositionedChanges(
                    [item["at"] for item in deletes],
                    [(item["at"], decode_row(item["row"])) for item in inserts],
                    [(item["at"], decode_row(item["row"])) for item in updates],
                )
            )
    return Changes(
        [decode_row(row) for row in deletes],
        [decode_row(row) for row in inserts],
        [decode_row(row) for row in updates],
    )
