"""Results as pandas data frames and Arrow tables, with these packages installed."""

from __future__ import annotations

import pyarrow

from abide import Abide

SQL = """SELECT 9007199254740993 AS n, 1.5 AS r, 'é' AS t, X'00ff' AS b, NULL AS z
UNION ALL SELECT NULL, NULL, NULL, NULL, NULL UNION ALL SELECT -9223372036854775808, -0.5, '', X'', NULL"""


async def test_pandas(client: Abide) -> None:
    """Regression: a column of integers with NULL became `float64`, which rounded integers beyond 53 bits."""
    frame = (await client.sql(SQL)).to_pandas()
    assert list(frame.columns) == ["n", "r", "t", "b", "z"]
    assert str(frame["n"].dtype) == "Int64"
    assert [frame["n"][0], frame["n"][2]] == [2**53 + 1, -(2**63)]
    assert frame["n"].isna().tolist() == [False, True, False]
    assert (str(frame["r"].dtype), frame["r"][0], frame["r"][2]) == ("float64", 1.5, -0.5)
    assert (frame["t"][0], frame["b"][0], frame["b"][2]) == ("é", b"\x00\xff", b"")
    assert frame["z"].isna().all()
    whole = (await client.sql("SELECT value AS n, value AS n FROM json_each('[1, 9007199254740993]')")).to_pandas()
    assert [str(kind) for kind in whole.dtypes] == ["int64", "int64"]
    assert whole.iloc[1].tolist() == [2**53 + 1] * 2
    empty = (await client.sql("SELECT id, seq FROM entries JOIN collections USING (seq)")).to_pandas()
    assert (list(empty.columns), len(empty)) == (["id", "seq"], 0)


async def test_arrow(client: Abide) -> None:
    table = (await client.sql(SQL)).to_arrow()
    assert table.schema.types == [pyarrow.int64(), pyarrow.float64(), pyarrow.string(), pyarrow.binary(), pyarrow.null()]
    assert table.to_pylist()[0] == {"n": 2**53 + 1, "r": 1.5, "t": "é", "b": b"\x00\xff", "z": None}
    assert table.to_pylist()[2]["n"] == -(2**63)
    empty = (await client.sql("SELECT id, seq FROM entries JOIN collections USING (seq)")).to_arrow()
    assert (empty.column_names, empty.num_rows) == (["id", "seq"], 0)
