"""Lists of items that several processes append to."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from server import Server

from abide import Abide
from abide.adapters.bridge import Bridge
from abide.adapters.items import ItemList
from abide.errors import AbideError


def item_list(client: Abide) -> ItemList:
    return ItemList(ItemList.collections(client, "test"), "c")


async def test_the_order_is_that_of_the_log(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys were made from the clock of the client. Items of a process whose clock was behind came first, for good."""
    now = time.time_ns()
    async with server.client() as ahead, server.client() as behind:
        await item_list(ahead).append([{"n": 1}, {"n": 2}])
        monkeypatch.setattr(time, "time_ns", lambda: now - 10_000_000_000)
        await item_list(behind).append([{"n": 3}])
        monkeypatch.undo()
        await item_list(ahead).append([{"n": 4}])
        for client in (ahead, behind):
            assert [item["n"] for item in await item_list(client).read()] == [1, 2, 3, 4]
            assert [item["n"] for item in await item_list(client).last(2)] == [3, 4]
        assert await item_list(behind).pop() == {"n": 4}


async def test_a_list_of_several_calls_keeps_its_order(client: Abide) -> None:
    numbers = list(range(1100))
    await item_list(client).append(numbers)
    assert await item_list(client).read() == numbers
    other = ItemList(ItemList.collections(client, "test"), "d")
    await other.append([1, 2, 3])
    await other.replace([5, 4])
    assert await other.read() == [5, 4]


def test_a_client_of_a_loop_that_does_not_run_is_an_error(server: Server) -> None:
    """A request was put on a loop that nobody ran, and its caller waited for ever. A closed loop raised a foreign error."""
    home = asyncio.new_event_loop()

    async def bridge() -> Bridge:
        return Bridge(await server.client())

    made = home.run_until_complete(bridge())

    async def use() -> None:
        await made.arun(made.client.sql("SELECT 1"))

    def refused() -> None:
        with pytest.raises(AbideError) as raised:
            asyncio.run(asyncio.wait_for(use(), 10))
        assert raised.value.code == "wrong_event_loop"
        with pytest.raises(AbideError) as raised:
            made.run(made.client.sql("SELECT 1"))
        assert raised.value.code == "wrong_event_loop"

    refused()
    thread = threading.Thread(target=home.run_forever)
    thread.start()
    asyncio.run(asyncio.wait_for(use(), 10))
    home.call_soon_threadsafe(home.stop)
    thread.join()
    home.run_until_complete(made.client.close())
    home.close()
    refused()
