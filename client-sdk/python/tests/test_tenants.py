"""Callers with a scope choose short ids, and the server stores them in the namespace of the scope. Two tenants use the same ids."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from server import Server, create_token

from abide import Abide, ConflictError, Handoff, NotFoundError, RetryableError, Session, Subscription, UnknownOutcomeError, sync

NAMESPACES = {"acme": "tenant=acme%207/", "zeta": "tenant=zeta/"}
SCOPES = {"acme": "tenant=acme 7", "zeta": "tenant=zeta"}
LIMIT = 20.0
"""Seconds for a step. A step that queried the id that the caller chose did not end."""


class Tenants:
    """A server with tokens for two tenants."""

    def __init__(self, folder: Path) -> None:
        self.tokens = {"root": create_token(folder, "root", "--role", "admin", "--capability", "*")}
        for tenant, scope in SCOPES.items():
            self.tokens[tenant] = create_token(folder, tenant, "--role", "agent", "--scope", scope)
            for role in ("worker", "supervisor"):
                options = ["--role", role, "--capability", "refunds", "--scope", scope]
                self.tokens[f"{tenant}-{role}"] = create_token(folder, f"{tenant}-{role}", *options)
        user = ["--scope", SCOPES["acme"], "--scope", "user=bob"]
        self.tokens["bob"] = create_token(folder, "bob", "--role", "agent", *user)
        self.server = Server(folder)
        self._stack = AsyncExitStack()

    async def client(self, name: str) -> Abide:
        """A client of its own, as another process has one."""
        return await self._stack.enter_async_context(self.server.client(token=self.tokens[name]))

    async def close(self) -> None:
        await self._stack.aclose()
        self.server.kill()


@pytest_asyncio.fixture
async def tenants(folder: Path) -> AsyncIterator[Tenants]:
    tenants = await asyncio.to_thread(Tenants, folder)
    try:
        root = await tenants.client("root")
        await root.call.register_tool(name="pay", effect="at_most_once")
        await root.call.register_tool(name="look", effect="idempotent")
        await root.call.register_tool(name="approval", effect="read_only")
        yield tenants
    finally:
        await tenants.close()


async def until(calls: Subscription[Any], count: int = 1) -> list[Any]:
    async with calls:
        async for _ in calls:
            if len(calls.rows) == count:
                return calls.rows
    raise AssertionError("the subscription ended")


async def approve(root: Abide, call_id: str, amount: int) -> None:
    """Decides the request for approval with this stored id, with another amount."""
    sql = "SELECT id FROM approvals WHERE call_id = :c AND status = 'pending'"
    [pending] = await until(root.subscribe(sql, {"c": call_id}))
    arguments = {"prompt": "Pay?", "args": {"amount": amount}}
    await root.call.decide_approval(id=pending.id, decision="approve", approved_arguments=arguments)


async def test_a_session_that_exists_has_the_same_stored_id(tenants: Tenants) -> None:
    """The second program had the short id: keyed messages were appended again, and queries found nothing."""
    root = await tenants.client("root")
    runs: list[str] = []

    async def program(tenant: str) -> list[Any]:
        client = await tenants.client(tenant)
        session = await client.session("order-1", agent="support")
        assert session.id == f"{NAMESPACES[tenant]}order-1"
        await session.message("user", f"Please pay {tenant}.", key="question")

        def pay(_: Any) -> str:
            runs.append(tenant)
            return f"paid by {tenant}"

        paid = await session.tool("pay", {}, key="pay", run=pay)
        decision = await session.approval("Pay?", {"amount": 5}, key="ask")
        answer = await session.handoff("the weather", "refunds", key="h")
        await session.sleep_until(0, key="sleep")
        contents = "SELECT content FROM agent_state WHERE session_id = :s AND role = 'user'"
        found = [row.content for row in await client.sql(contents, {"s": session.id})]
        assert found == [row.content for row in await session.messages() if row.role == "user"]
        return [paid, decision.arguments, answer.text, found]

    async def answer(handoff: Handoff) -> str:
        return f"about {handoff.session_id}"

    for nth, (tenant, namespace) in enumerate(NAMESPACES.items()):
        supervisor = (await tenants.client(f"{tenant}-supervisor")).supervisor()
        serving = asyncio.create_task(supervisor.serve("refunds", answer))
        deciding = asyncio.create_task(approve(root, f"{namespace}order-1/ask", nth))
        expected = [f"paid by {tenant}", {"amount": nth}, f"about {namespace}order-1", [f"Please pay {tenant}."]]
        assert await asyncio.wait_for(program(tenant), LIMIT) == expected
        assert await asyncio.wait_for(program(tenant), LIMIT) == expected
        await deciding
        supervisor.stop()
        await serving
    assert runs == ["acme", "zeta"]
    acme = await tenants.client("acme")
    with pytest.raises(ConflictError, match="belongs to the agent support"):
        await acme.session("order-1", agent="other")


async def test_ids_that_look_like_the_words_of_an_error(tenants: Tenants) -> None:
    first, second = await tenants.client("acme"), await tenants.client("acme")
    for name in ("already", "exists", "session", "s", "order 1 already exists", "tenant=zeta/x", "%"):
        session = await first.session(name)
        assert session.id == f"{NAMESPACES['acme']}{name}"
        assert (await second.session(name)).id == session.id
        assert (await second.session(session.id)).id == session.id


async def test_the_steps_of_a_session_with_a_generated_id_are_found_again(tenants: Tenants) -> None:
    """Calls and timers are in the namespace, and the session is not."""
    root, acme = await tenants.client("root"), await tenants.client("acme")
    other = await tenants.client("acme")
    session = await acme.session()
    assert session.id.startswith("s_")
    again = await other.session(session.id)
    assert again.id == session.id
    runs: list[int] = []

    def pay(_: Any) -> int:
        runs.append(1)
        return len(runs)

    attempts: list[int] = []

    def look(_: Any) -> int:
        attempts.append(1)
        if len(attempts) == 1:
            raise RetryableError("busy")
        return len(attempts)

    deciding = asyncio.create_task(approve(root, f"{NAMESPACES['acme']}{session.id}/ask", 7))
    for nth, one in enumerate((session, again)):
        assert await asyncio.wait_for(one.tool("pay", {}, key="pay", run=pay), LIMIT) == 1
        assert await asyncio.wait_for(one.tool("look", {}, key="look", run=look), LIMIT) == 2
        # The first call with the key decides the time.
        await asyncio.wait_for(one.sleep_until(nth, key="sleep"), LIMIT)
        decision = await asyncio.wait_for(one.approval("Pay?", {"amount": 5}, key="ask"), LIMIT)
        assert (decision.approved, decision.arguments) == (True, {"amount": 7})
    await deciding

    # A worker that disappeared: the error has an id that exists.
    lost = session.call_id("lost")
    await acme.call.request_tool_call(call_id=lost, session_id=session.id, tool_name="pay", arguments={})
    await acme.call.claim_tool_call(call_id=lost, lease_ms=100, worker="gone")
    with pytest.raises(UnknownOutcomeError) as unknown:
        await asyncio.wait_for(again.tool("pay", {}, key="lost", run=pay), LIMIT)
    assert unknown.value.call_id == f"{NAMESPACES['acme']}{lost}"
    assert runs == [1]


async def test_a_worker_runs_the_calls_of_its_tenant(tenants: Tenants) -> None:
    workers, serving = [], []
    try:
        for tenant in NAMESPACES:
            worker = (await tenants.client(f"{tenant}-worker")).worker()
            workers.append(worker)
            serving.append(asyncio.create_task(worker.serve({"look": lambda args, tenant=tenant: [tenant, args]})))
        for tenant, namespace in NAMESPACES.items():
            client = await tenants.client(tenant)
            for _ in range(2):
                session = await client.session("s1")
                args = {"session_id": session.id, "tool_name": "look", "arguments": 5}
                requested = await client.call.request_tool_call(call_id=session.call_id("look"), **args)
                assert requested["call_id"] == f"{namespace}s1/look"
                sql = "SELECT result FROM tool_calls WHERE call_id = :c AND status = 'succeeded'"
                done = until(client.subscribe(sql, {"c": requested["call_id"]}))
                assert [row.result for row in await asyncio.wait_for(done, LIMIT)] == [f'["{tenant}",5]']
                # A step that repeats the call has what the worker recorded.
                step = session.tool("look", 5, key="look", run=lambda _: "twice")
                assert await asyncio.wait_for(step, LIMIT) == [tenant, 5]
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.gather(*serving)


async def test_a_session_is_found_by_the_short_and_by_the_stored_id(tenants: Tenants) -> None:
    """And never that of another caller."""
    acme, bob, zeta, root = [await tenants.client(name) for name in ("acme", "bob", "zeta", "root")]

    async def found(client: Abide, session_id: str) -> str | None:
        session: Session | None = await client.find_session(session_id)
        return None if session is None else session.id

    for client in (acme, bob, zeta, root):
        assert await found(client, "main") is None
    await bob.session("main")
    # The caller of the whole tenant sees the session of a user, but this id means its own.
    assert await found(acme, "main") is None
    of_bob = "tenant=acme%207,user=bob/main"
    assert [await found(bob, "main"), await found(bob, of_bob), await found(acme, of_bob)] == [of_bob] * 3
    main = (await acme.session("main")).id
    assert main == f"{NAMESPACES['acme']}main"
    assert [await found(acme, "main"), await found(acme, main), await found(root, main)] == [main] * 3
    for client, name in ((zeta, "main"), (zeta, main), (zeta, of_bob), (bob, main), (root, "main")):
        assert await found(client, name) is None
    # The role of a supervisor cannot create sessions.
    supervisor = await tenants.client("acme-supervisor")
    assert [await found(supervisor, "main"), await found(supervisor, main)] == [main] * 2
    sql = "SELECT id FROM sessions WHERE agent <> 'agent'"
    assert not await root.sql(sql), "looking for a session leaves nothing"


async def test_a_client_that_narrows_itself_has_the_namespace_of_that_scope(tenants: Tenants) -> None:
    scope = {"user": "bob"}
    for _ in range(2):
        async with tenants.server.client(token=tenants.tokens["acme"], scope=scope) as client:
            session = await client.session("main")
            assert session.id == "tenant=acme%207,user=bob/main"
            await session.message("user", "hello", key="k")
            assert len(await session.messages()) == 1


async def test_another_tenants_stored_id_leads_to_nothing(tenants: Tenants) -> None:
    acme, zeta = await tenants.client("acme"), await tenants.client("zeta")
    session = await acme.session("order-1")
    await session.message("user", "a secret", key="k")
    await session.sleep_until(0, key="sleep")
    stolen = Session(zeta, session.id)
    assert await stolen.messages() == []
    for step in (stolen.message("user", "hello", key="k"), stolen.sleep_until(0, key="sleep"), stolen.tool("pay", key="p", run=id)):
        with pytest.raises(NotFoundError):
            await asyncio.wait_for(step, LIMIT)
    # As an id that it chooses, it is one of its own namespace.
    assert (await zeta.session(session.id)).id == f"{NAMESPACES['zeta']}{session.id}"


@pytest.fixture
def blocking(folder: Path) -> Iterator[Tenants]:
    tenants = Tenants(folder)
    with sync.Abide.connect(tenants.server.url, token=tenants.tokens["root"]) as root:
        root.call.register_tool(name="pay", effect="at_most_once")
    try:
        yield tenants
    finally:
        tenants.server.kill()


def test_the_same_without_asyncio(blocking: Tenants) -> None:
    runs: list[str] = []
    for tenant, namespace in NAMESPACES.items():
        supervising = sync.Abide.connect(blocking.server.url, token=blocking.tokens[f"{tenant}-supervisor"])
        supervisor = supervising.supervisor()
        thread = threading.Thread(target=supervisor.serve, args=("refunds", lambda handoff: f"about {handoff.session_id}"))
        thread.start()
        for _ in range(2):
            with sync.Abide.connect(blocking.server.url, token=blocking.tokens[tenant]) as client:
                session = client.session("order-1")
                assert session.id == f"{namespace}order-1"
                session.message("user", tenant, key="k")
                session.tool("pay", {}, key="pay", run=lambda _, tenant=tenant: runs.append(tenant))
                session.sleep_until(0, key="sleep")
                assert session.handoff("why", "refunds", key="h").text == f"about {namespace}order-1"
                assert [row.content for row in session.messages() if row.role == "user"] == [tenant]
                found = client.find_session("order-1")
                assert found is not None
                assert found.id == session.id
                assert client.find_session("order-2") is None
        supervisor.stop()
        thread.join()
        supervising.close()
    assert runs == ["acme", "zeta"]
