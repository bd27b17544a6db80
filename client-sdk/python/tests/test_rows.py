"""Rows, order and checksums, without a server."""

from __future__ import annotations

import math
import random
import sqlite3
from collections import Counter

import pytest

from abide.checksum import checksum
from abide.order import OrderTerm
from abide.rows import MismatchError, ResultRows, identity
from abide.shape import Changes, Column, Shape
from abide.values import Cell, Row

VALUES: list[Cell] = [
    None,
    -(2**63),
    -1.5,
    -0.0,
    0.0,
    0,
    1,
    1.0,
    2**53,
    2.0**53,
    2**53 + 1,
    math.inf,
    "",
    "A",
    "a",
    "b ",
    "é",
    "😀",
    b"",
    b"\xff",
]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ((), "efd01f60ba992926"),
        ((None,), "b9034ad37056f5fb"),
        ((1,), "fead53f7dfcabe65"),
        ((-1, 1.0), "c0b1e2d9a88b577d"),
        ((-0.0, math.inf), "6e89b263389aa660"),
        (("é\0", ""), "39b0d00c4d241501"),
        ((b"\0\xff",), "2b7113b1b61a1ccc"),
    ],
)
def test_checksums_are_those_of_the_server(row: Row, expected: str) -> None:
    assert f"{checksum([row]):016x}" == expected


@pytest.mark.parametrize("collation", ["BINARY", "NOCASE", "RTRIM"])
@pytest.mark.parametrize("desc", [False, True])
@pytest.mark.parametrize("nulls", ["first", "last"])
def test_rows_have_the_order_of_sqlite(collation: str, desc: bool, nulls: str) -> None:
    values = VALUES * 2
    random.Random(1).shuffle(values)
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v)")
    database.executemany("INSERT INTO t (v) VALUES (?)", [(value,) for value in values])
    order = f"v COLLATE {collation} {'DESC' if desc else 'ASC'} NULLS {nulls}, id"
    expected = database.execute(f"SELECT id, v FROM t ORDER BY {order}").fetchall()
    database.close()
    term = OrderTerm("v", 1, desc, nulls, collation)
    shape = Shape((Column("id", "INTEGER"), Column("v", "")), ("id",), (term,))
    rows = ResultRows(shape, [], None)
    for row in enumerate(values, start=1):
        rows.apply(Changes(inserts=[row]), None)
    assert [identity(row) for row in rows.rows] == [identity(row) for row in expected]


@pytest.mark.parametrize("key", [(), ("id",)])
@pytest.mark.parametrize("size", [4, 400])
def test_random_changes_lead_to_the_same_rows(key: tuple[str, ...], size: int) -> None:
    chance = random.Random(size)
    term = OrderTerm("v", 1, True, "last", "BINARY")
    shape = Shape((Column("id", "INTEGER"), Column("v", "")), key, (term,))
    held: list[Row] = []
    rows = ResultRows(shape, [], 0)
    for nth in range(60):
        gone = chance.sample(held, chance.randrange(len(held) + 1))
        left = list((Counter(held) - Counter(gone)).elements())
        come: list[Row] = [(nth * 1000 + at, chance.choice([1, 2, "x"])) for at in range(chance.randrange(size))]
        held = left + come
        changes = Changes([row[:1] if key else row for row in gone], come)
        before = ResultRows(shape, list(rows.rows), None)
        rows.apply(changes, checksum(held))
        assert Counter(rows.rows) == Counter(held)
        again = ResultRows(shape, held, None)
        assert again.rows == rows.rows or Counter(again.rows) == Counter(rows.rows)
        difference = before.changes_to(rows)
        before.apply(difference, None)
        assert before.rows == rows.rows


def test_changes_that_do_not_fit_change_nothing() -> None:
    shape = Shape((Column("id", "INTEGER"),), ("id",))
    rows = ResultRows(shape, [(1,), (2,)], checksum([(1,), (2,)]))
    wrong = [
        Changes(deletes=[(3,)]),
        Changes(inserts=[(1,)]),
        Changes(updates=[(3,)]),
        Changes(inserts=[(3, 4)]),
        Changes(inserts=[(3,)]),
    ]
    for changes in wrong:
        with pytest.raises(MismatchError):
            rows.apply(changes, 0)
        assert rows.rows == [(1,), (2,)]
    with pytest.raises(MismatchError):
        ResultRows(shape, [(1,), (1,)], None)


def test_one_and_one_point_zero_are_different_rows() -> None:
    shape = Shape((Column("v", ""),))
    rows = ResultRows(shape, [(1,), (1.0,), (1,)], None)
    rows.apply(Changes(deletes=[(1,)]), None)
    assert Counter(map(identity, rows.rows)) == Counter([identity((1,)), identity((1.0,))])
    with pytest.raises(MismatchError):
        rows.apply(Changes(deletes=[(1.0,), (1.0,)]), None)
