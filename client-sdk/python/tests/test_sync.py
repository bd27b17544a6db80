"""The API without asyncio."""

from __future__ import annotations

import threading

import pytest
from server import Server

from abide import Closed, Conflict
from abide.sync import Abide


def test_the_same_api_without_asyncio(server: Server) -> None:
    with Abide.connect(server.url) as client:
        assert client.call.create_session(agent="support", id="s1")["id"] == "s1"
        with pytest.raises(Conflict):
            client.call.create_session(agent="support", id="s1")
        with client.subscribe("SELECT id, content FROM agent_state ORDER BY id") as sub:
            assert sub.next() is not None
            session = client.session("s1")
            session.message("user", "hello")
            update = next(sub)
            assert [row.content for row in update.inserts] == ["hello"]
            assert [row.content for row in sub.rows] == ["hello"]
            with pytest.raises(TimeoutError):
                sub.next(timeout=0.01)
        assert session.tool("double", 4, key="k", run=lambda n: n * 2, effect="read_only") == 8
        assert client.batch([("create_session", {"agent": "a", "id": "s2"})]).value[0]["id"] == "s2"
        assert client.sql("SELECT count(*) FROM sessions").scalar() == 2
    with pytest.raises(Closed):
        client.sql("SELECT 1")
    client.close()


def test_threads_share_a_client(server: Server) -> None:
    with Abide.connect(server.url) as client:
        client.call.create_session(agent="support", id="s1")

        def write() -> None:
            for _ in range(20):
                client.call.append_message(session_id="s1", role="user", content="x")

        threads = [threading.Thread(target=write) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.sql("SELECT count(*) FROM agent_state").scalar() == 160


def test_close_does_not_wait_for_a_tool_function(server: Server) -> None:
    client = Abide.connect(server.url)
    session = client.session("s1")
    begun, goes_on, ended = threading.Event(), threading.Event(), threading.Event()
    outcomes: list[BaseException] = []

    def tool(_: object) -> None:
        begun.set()
        goes_on.wait(60)
        ended.set()

    def step() -> None:
        try:
            session.tool("slow", key="k", run=tool, effect="at_most_once")
        except Exception as why:
            outcomes.append(why)

    thread = threading.Thread(target=step)
    thread.start()
    assert begun.wait(60)
    client.close()
    assert not ended.is_set()
    thread.join()
    assert [type(why) for why in outcomes] == [Closed]
    with pytest.raises(Closed):
        client.sql("SELECT 1")
    goes_on.set()
    assert ended.wait(60)
