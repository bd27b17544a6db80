"""Writes of several callers in one request: each caller gets its own result."""

from __future__ import annotations

import asyncio

import pytest
from server import Server

from abide import Abide
from abide.adapters.collection import Collections, put
from abide.errors import ClosedError, ConflictError, LimitExceededError


def collections(client: Abide) -> Collections:
    return Collections.for_client(client, "test")


async def keys(client: Abide) -> list[tuple[str, str]]:
    rows = await client.sql("SELECT collection_id, key FROM entries ORDER BY seq, key")
    return [(row.collection_id, row.key) for row in rows]


async def test_writes_at_the_same_time_are_one_transaction(client: Abide) -> None:
    before = (await client.sql("SELECT 1")).seq
    made = collections(client)
    await asyncio.gather(*[made.write(f"test/{at % 5}", [put(str(at), at)]) for at in range(50)])
    assert len(await keys(client)) == 50
    # One call for each collection.
    assert (await client.sql("SELECT 1")).seq == before + 5


async def test_a_refused_write_does_not_affect_others(client: Abide) -> None:
    made = collections(client)
    writes = [
        made.write("test/a", [put("1", 1)]),
        made.write("test/a", [put("k" * 2000, 1)]),
        made.write("test/a", [put("2", 1)]),
        made.write("test/b", [put("1", 1, expected_seq=7)]),
        made.write("test/c", [put("1", float("nan"))]),
        made.write("test/d", [put("1", 1)]),
    ]
    done = await asyncio.gather(*writes, return_exceptions=True)
    failed = {at: type(result).__name__ for at, result in enumerate(done) if isinstance(result, Exception)}
    assert failed == {1: LimitExceededError.__name__, 3: ConflictError.__name__, 4: "BadRequestError"}
    assert sorted(await keys(client)) == [("test/a", "1"), ("test/a", "2"), ("test/d", "1")]


async def test_writes_to_a_collection_are_in_order(client: Abide) -> None:
    made = collections(client)
    writes = [made.begin("test/a", [put("k", nth)]) for nth in range(20)]
    deleted, last = await asyncio.gather(made.write("test/a", [], ["k"]), made.write("test/a", [put("last", 1)]))
    assert (deleted.deleted, last.deleted) == (1, 0)
    assert all(write is not None and write.seq < deleted.seq < last.seq for write in writes)
    assert await keys(client) == [("test/a", "last")]


async def test_an_entry_that_a_write_needs(client: Abide) -> None:
    made = collections(client)
    bad = made.begin("test/a", [put("k" * 2000, 1)])
    assert bad is not None
    needs_bad = made.begin("test/a", [put("2", 1)], [("k" * 2000, bad)])
    good = made.begin("test/a", [put("3", 1)])
    assert needs_bad is not None
    assert good is not None
    needs_good = made.begin("test/a", [put("4", 1)], [("3", good)])
    assert needs_good is not None
    done = await asyncio.gather(bad.done, needs_bad.done, good.done, needs_good.done, return_exceptions=True)
    assert [type(result) for result in done] == [LimitExceededError, ConflictError, type(None), type(None)]
    later = made.begin("test/a", [put("5", 1)], [("3", good)])
    assert later is not None
    await later.done
    await made.write("test/a", [put("3", 2)])
    with pytest.raises(ConflictError):
        await made.write("test/a", [put("6", 1)], needs=[("3", good)])
    assert sorted(key for _, key in await keys(client)) == ["3", "4", "5"]


async def test_a_cancelled_write_does_not_affect_others(client: Abide) -> None:
    made = collections(client)
    tasks = [asyncio.create_task(made.write("test/a", [put(str(nth), nth)])) for nth in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(result, asyncio.CancelledError) for result in done] == [False, True, False, False]
    assert [key for _, key in await keys(client)] == ["0", "2", "3"]


async def test_a_closed_client_ends_its_writes(client: Abide) -> None:
    made = collections(client)
    await client.close()
    with pytest.raises(ClosedError):
        await asyncio.wait_for(made.write("test/a", [put("1", 1)]), 10)


async def test_an_engine_that_is_killed_during_writes(server: Server, client: Abide) -> None:
    """Each write takes effect once: `expected_seq=0` refuses a second time."""
    made = collections(client)
    writes = [asyncio.create_task(made.write(f"test/{at % 7}", [put(str(at), at, expected_seq=0)])) for at in range(200)]
    done, _ = await asyncio.wait(writes, return_when=asyncio.FIRST_COMPLETED)
    assert done
    later = [asyncio.create_task(made.write(f"test/{at % 7}", [put(str(at), at, expected_seq=0)])) for at in range(200, 400)]
    server.kill()
    server.start()
    await asyncio.gather(*writes, *later)
    assert sorted(int(key) for _, key in await keys(client)) == list(range(400))
