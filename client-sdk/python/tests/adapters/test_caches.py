"""The caches of the adapters: other processes change the same conversations, and the engine is killed."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from server import Server

from abide import Abide
from abide.adapters import cache
from abide.adapters.openai_agents import AbideSession

Items = list[Any]


def item(nth: object) -> Any:
    return {"role": "user", "content": str(nth), "parts": [{"n": 1.5, "deep": [nth, None]}]}


async def contents(session: AbideSession) -> list[str]:
    return [one["content"] for one in await session.get_items()]  # type: ignore[typeddict-item,misc]


async def write(client: Abide, **args: Any) -> None:
    await client.call("write_entries", {"collection_id": "openai-agents/s", **args})


async def test_changes_of_other_processes_are_seen(server: Server, client: Abide) -> None:
    async with server.client() as other:
        one, two = AbideSession("s", client), AbideSession("s", other)
        await one.add_items([item(0), item(1)])
        assert await contents(two) == ["0", "1"]
        await two.add_items([item(2)])
        await one.add_items([item(3)])
        assert await contents(one) == await contents(two) == ["0", "1", "2", "3"]
        assert (await two.pop_item())["content"] == "3"  # type: ignore[index,typeddict-item]
        assert await contents(one) == ["0", "1", "2"]
        # As many as before, but others.
        await two.pop_item()
        await two.add_items([item(4)])
        assert await contents(one) == ["0", "1", "4"]
        await two.clear_session()
        assert await contents(one) == []
        await two.add_items([item(5), item(6), item(7)])
        assert await contents(one) == ["5", "6", "7"]


async def test_entries_that_other_programs_write_are_seen(client: Abide) -> None:
    session = AbideSession("s", client)
    await session.add_items([item(nth) for nth in range(3)])
    assert await contents(session) == ["0", "1", "2"]
    first, second, third = [row.key for row in await client.sql("SELECT key FROM entries ORDER BY key")]
    await write(client, puts=[{"key": second, "data": [item("replaced")]}])
    assert await contents(session) == ["0", "replaced", "2"]
    await write(client, deletes=[first], puts=[{"key": "0", "data": [item("before")]}])
    assert await contents(session) == ["before", "replaced", "2"]
    await write(client, deletes=[third])
    await write(client, puts=[{"key": third, "data": [item("again")]}])
    assert await contents(session) == ["before", "replaced", "again"]
    await client.call("delete_entries", {"collection_id": "openai-agents/s", "prefix": "0"})
    assert await contents(session) == []


async def test_callers_can_change_what_they_get(client: Abide) -> None:
    session = AbideSession("s", client)
    await session.add_items([item(0)])
    for _ in range(2):
        items: Items = await session.get_items()
        found = items[0]
        assert found == item(0)
        found["parts"][0]["deep"].append("changed")
        found["role"] = "assistant"


async def test_a_killed_engine_and_a_restored_backup(server: Server, folder: Path, client: Abide) -> None:
    """The events of a restored backup have the seqs of those that were lost."""
    session = AbideSession("s", client)
    await session.add_items([item(0), item(1)])
    assert await contents(session) == ["0", "1"]
    server.kill()
    backup = folder / "backup"
    backup.mkdir()
    for file in folder.glob("test.db*"):
        shutil.copy(file, backup)
    server.start()
    assert await contents(session) == ["0", "1"]
    await session.add_items([item("lost")])
    assert await contents(session) == ["0", "1", "lost"]
    server.kill()
    for file in folder.glob("test.db*"):
        file.unlink()
    for file in backup.iterdir():
        shutil.copy(file, folder)
    server.start()
    async with server.client() as other:
        await AbideSession("s", other).add_items([item("other")])
    assert await contents(session) == ["0", "1", "other"]


async def test_tenants_do_not_share_a_conversation(server: Server) -> None:
    async with server.client(scope={"tenant": "a"}) as one, server.client(scope={"tenant": "b"}) as two:
        first, second = AbideSession("s", one), AbideSession("s", two)
        await first.add_items([item("a")])
        assert await contents(second) == []
        await second.add_items([item("b")])
        assert (await contents(first), await contents(second)) == (["a"], ["b"])
        await second.clear_session()
        assert (await contents(first), await contents(second)) == (["a"], [])


@pytest.mark.parametrize("seed", range(3))
async def test_random_changes_by_several_clients(server: Server, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages and memory are small, so that a list is read in pages and forgotten."""
    monkeypatch.setattr(cache, "_AT_ONCE", 8)
    monkeypatch.setattr(cache, "_PAGE", 3)
    monkeypatch.setattr(cache, "_ATTEMPTS", 4 if seed else 0)
    monkeypatch.setattr(cache, "_CACHE_BYTES", 8_000)
    chance = random.Random(seed)
    expected: dict[str, list[str]] = {"a": [], "b": []}
    async with server.client() as first, server.client() as second:
        for nth in range(120):
            name = chance.choice("ab")
            session = AbideSession(name, chance.choice([first, second]))
            match chance.choice(["add", "add", "add", "get", "pop", "pop", "last", *(["clear"] if nth % 9 == 0 else [])]):
                case "add":
                    added = [f"{nth}.{at}" for at in range(chance.randint(1, 5))]
                    await session.add_items([item(one) for one in added])
                    expected[name] += added
                case "pop":
                    popped: Any = await session.pop_item()
                    assert (popped and popped["content"]) == (expected[name].pop() if expected[name] else None)
                case "last":
                    last: Items = await session.get_items(3)
                    assert [one["content"] for one in last] == expected[name][-3:]
                case "clear":
                    await session.clear_session()
                    expected[name] = []
            assert await contents(AbideSession(name, chance.choice([first, second]))) == expected[name]


async def test_a_read_fetches_what_is_new(client: Abide, monkeypatch: pytest.MonkeyPatch) -> None:
    session = AbideSession("s", client)
    await session.add_items([item(nth) for nth in range(50)])
    rows: list[int] = []
    ask = client.sql

    async def sql(*args: Any, **options: Any) -> Any:
        result = await ask(*args, **options)
        rows.append(len(result.cells))
        return result

    monkeypatch.setattr(client, "sql", sql)
    for nth in range(3):
        await session.add_items([item(nth)])
        assert len(await AbideSession("s", client).get_items()) == 51 + nth
    # One row has the number of items.
    assert rows == [52, 2, 2]
