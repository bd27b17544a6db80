"""Calls, queries and subscriptions against a real server."""

from __future__ import annotations

import asyncio
import gc
import math
from dataclasses import dataclass

import pytest
from proxy import Proxy
from server import Server

from abide import (
    Abide,
    BadRequestError,
    ClosedError,
    ConflictError,
    ConnectionFailedError,
    NotFoundError,
    TimedOutError,
    connection,
)

MESSAGES = "SELECT id, role, content FROM agent_state WHERE session_id = :s ORDER BY id"


async def test_a_call_and_a_query(client: Abide) -> None:
    made = await client.call.create_session(agent="support", id="s1")
    assert (made["id"], made.duplicate) == ("s1", False)
    await client.call.append_message(session_id="s1", role="user", content="Hello")
    rows = await client.sql(MESSAGES, {"s": "s1"})
    assert rows.columns == ("id", "role", "content")
    assert rows[0].content == "Hello"
    assert rows.dicts() == [{"id": 1, "role": "user", "content": "Hello"}]


async def test_rows_become_dataclasses(client: Abide) -> None:
    @dataclass
    class Point:
        x: int
        y: float

    points = await client.sql("SELECT 1 AS x, 2.0 AS y", into=Point)
    assert points.one() == Point(1, 2.0)


async def test_every_type_of_value_survives(client: Abide) -> None:
    values = [None, 0, 2**63 - 1, -(2**63), 1.0, -0.0, 1e300, math.inf, -math.inf, "é\0", b"", b"\0\xff"]
    row = (await client.sql("SELECT " + ", ".join("?" for _ in values), values)).cells[0]
    assert [(type(cell), cell) for cell in row] == [(type(value), value) for value in values]
    assert math.copysign(1, row[5]) == -1  # type: ignore[arg-type]


async def test_arguments_beyond_json_are_refused_before_they_are_sent(client: Abide) -> None:
    for value in (math.nan, {1, 2}, object()):
        with pytest.raises(BadRequestError) as refused:
            await client.call.create_session(agent="a", metadata={"x": value})
        assert refused.value.code == "bad_arguments"
        assert refused.value.hint
    with pytest.raises(BadRequestError):
        await client.call.create_session(agent="a", metadata={"x": 2**64})


async def test_a_refusal_has_a_code_and_a_hint(client: Abide) -> None:
    with pytest.raises(NotFoundError) as refused:
        await client.call.append_message(session_id="none", role="user", content="x")
    assert refused.value.code == "not_found"
    assert refused.value.hint


async def test_a_request_id_makes_a_call_once(client: Abide) -> None:
    first = await client.call("create_session", {"agent": "a"}, request_id="r1")
    again = await client.call("create_session", {"agent": "a"}, request_id="r1")
    assert (again.seq, again.value, again.duplicate) == (first.seq, first.value, True)
    with pytest.raises(ConflictError):
        await client.call("create_session", {"agent": "b"}, request_id="r1")


async def test_a_batch_is_all_or_nothing(client: Abide) -> None:
    done = await client.batch([("create_session", {"agent": "a", "id": "s1"}), ("create_session", {"agent": "a", "id": "s2"})])
    assert [one["id"] for one in done.value] == ["s1", "s2"]
    with pytest.raises(ConflictError):
        await client.batch([("create_session", {"agent": "a", "id": "s3"}), ("create_session", {"agent": "a", "id": "s1"})])
    assert (await client.sql("SELECT count(*) FROM sessions")).scalar() == 2


async def test_a_subscription_delivers_each_change(client: Abide) -> None:
    await client.call.create_session(agent="support", id="s1")
    async with client.subscribe(MESSAGES, {"s": "s1"}) as sub:
        first = await anext(sub)
        assert (first.reset, first.inserts) == (True, [])
        await client.call.append_message(session_id="s1", role="user", content="one")
        update = await anext(sub)
        assert [row.content for row in update.inserts] == ["one"]
        assert [row.content for row in sub.rows] == ["one"]
        assert sub.key == ("id",)


async def test_a_subscription_without_await_is_iterable(client: Abide) -> None:
    await client.call.create_session(agent="support", id="s1")
    async for update in client.subscribe("SELECT id FROM sessions"):
        assert [row.id for row in update.inserts] == ["s1"]
        break


async def test_an_invalid_query_is_refused(client: Abide) -> None:
    with pytest.raises(BadRequestError) as refused:
        await client.subscribe("SELECT nothing FROM nowhere")
    assert refused.value.code == "bad_sql"


async def test_a_kill_of_the_server_loses_and_repeats_nothing(server: Server, client: Abide) -> None:
    await client.call.create_session(agent="support", id="s1")
    seen: list[str] = []
    reached = {10: asyncio.Event(), 30: asyncio.Event()}
    async with client.subscribe(MESSAGES, {"s": "s1"}) as sub:

        async def read() -> None:
            async for update in sub:
                assert not update.updates
                assert not update.deletes
                seen.extend(row.content for row in update.inserts)
                for count, event in reached.items():
                    if len(seen) >= count:
                        event.set()
                if len(seen) == 60:
                    return

        async def write() -> None:
            for nth in range(60):
                await client.call.append_message(session_id="s1", role="user", content=str(nth))

        reader, writer = asyncio.create_task(read()), asyncio.create_task(write())
        for event in reached.values():
            await event.wait()
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        await asyncio.gather(reader, writer)
        assert seen == [str(nth) for nth in range(60)]
        assert [row.content for row in sub.rows] == seen
        assert sub.mismatches == 0
    assert client.reconnects == 2


async def test_a_connection_that_went_silent_is_made_again(server: Server, client: Abide, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a computer that slept: the connection is open, but nothing passes any more."""
    monkeypatch.setattr(connection, "_PING_AFTER", 0.2)
    monkeypatch.setattr(connection, "_LOST_AFTER", 0.4)
    await client.call.create_session(agent="support", id="s1")
    proxy = Proxy()
    proxy.target = server.port
    await proxy.start()
    async with Abide.connect(f"http://127.0.0.1:{proxy.port}") as one, one.subscribe(MESSAGES, {"s": "s1"}) as sub:
        await anext(sub)
        proxy.silence()
        waiting = asyncio.create_task(one.call.append_message(session_id="s1", role="user", content="second"))
        await client.call.append_message(session_id="s1", role="user", content="first")
        await asyncio.wait_for(waiting, 20)
        while len(sub.rows) < 2:
            await asyncio.wait_for(anext(sub), 20)
        assert [row.content for row in sub.rows] == ["first", "second"]
        assert (one.reconnects, sub.mismatches) == (1, 0)
    await proxy.close()


async def test_a_request_waits_for_the_server_until_its_deadline(server: Server, client: Abide) -> None:
    server.kill()
    with pytest.raises(TimedOutError) as late:
        await client.call("create_session", {"agent": "a"}, request_id="r1", deadline=0.1)
    assert late.value.request_id == "r1"
    server.start()
    assert not (await client.call("create_session", {"agent": "a"}, request_id="r1")).duplicate


async def test_a_query_that_is_given_up_frees_its_reader(client: Abide) -> None:
    """It ran to the limit of ten seconds, and the other queries of the caller waited for it."""
    endless = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    cancelled = asyncio.create_task(client.sql(endless))
    # The queries of a caller begin in order, and two of them run at a time.
    with pytest.raises(TimedOutError):
        await client.sql(endless, deadline=0.2)
    await asyncio.wait_for(client.sql("SELECT 1"), 4)
    other = asyncio.create_task(client.sql(endless))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(client.sql("SELECT 2"))
    await asyncio.sleep(0)
    cancelled.cancel()
    other.cancel()
    await asyncio.wait_for(asyncio.gather(waiting, client.sql("SELECT 3")), 4)


async def test_no_server(server: Server) -> None:
    server.kill()
    with pytest.raises(ConnectionFailedError) as failed:
        await server.client()
    assert failed.value.code == "unreachable"
    with pytest.raises(BadRequestError):
        await Abide.connect("localhost:7341")


async def test_close_ends_requests_and_subscriptions(server: Server) -> None:
    client = await server.client()
    sub = await client.subscribe("SELECT id FROM sessions")
    await client.close()
    assert [update.inserts async for update in sub] == [[]]
    assert isinstance(sub.error, ClosedError)
    with pytest.raises(ClosedError):
        await client.sql("SELECT 1")


async def test_ten_thousand_subscriptions_leave_nothing(client: Abide) -> None:
    subscriptions = client._connection.subscriptions

    async def cycle(count: int) -> None:
        for nth in range(count):
            sub = await client.subscribe("SELECT id FROM sessions WHERE id = :id", {"id": str(nth % 50)})
            sub.close()

    await asyncio.gather(*[cycle(100) for _ in range(10)])
    gc.collect()
    before = len(gc.get_objects())
    await asyncio.gather(*[cycle(900) for _ in range(10)])
    gc.collect()
    assert len(gc.get_objects()) - before < 200
    assert len(subscriptions) == len(subscriptions._by_name) == len(subscriptions._unanswered) == 0
    assert len(asyncio.all_tasks()) <= 4


async def test_a_dropped_subscription_ends(client: Abide) -> None:
    await client.subscribe("SELECT id FROM sessions")
    gc.collect()
    await client.sql("SELECT 1")
    assert len(client._connection.subscriptions) == 0


async def test_a_consumer_that_does_not_read_is_bounded(client: Abide) -> None:
    await client.call.create_session(agent="support", id="s1")
    async with client.subscribe(MESSAGES, {"s": "s1"}) as sub:
        for start in range(0, 2000, 500):
            calls = [("append_message", {"session_id": "s1", "role": "user", "content": str(nth)}) for nth in range(500)]
            await asyncio.gather(*[client.call(*call) for call in calls])
            assert start < 2000
        while len(sub.rows) < 2000:
            await client.sql("SELECT 1")
        assert len(sub._feed.queue) <= 1024
        last = None
        while sub._feed.queue or sub._feed._is_behind:
            last = await anext(sub)
            if last.reset:
                state = {row.id for row in last.inserts}
            else:
                state |= {row.id for row in last.inserts}
        assert len(state) == 2000


async def test_the_server_describes_itself(client: Abide) -> None:
    schema = await client.get("/v1/schema")
    assert "sessions" in {table["name"] for table in schema["tables"]}
