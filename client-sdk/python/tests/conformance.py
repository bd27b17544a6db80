"""Runs the scenarios of `client-sdk/conformance`; its README defines the format."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from proxy import Proxy
from server import Server, binary
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from abide import Abide, AbideError, Committed, Result, Subscription, Update
from abide.rows import identity
from abide.values import decode_cell, encode_cell

FOLDER = Path(__file__).resolve().parents[2] / "conformance"
LIMIT = 20.0

Json = Any


class Failure(AssertionError):
    """The scenario does not hold."""


class Runner:
    """One run of one scenario."""

    def __init__(self, scenario: dict[str, Json], folder: Path) -> None:
        self.scenario = scenario
        self.folder = folder
        self.variables: dict[str, Json] = {}
        self.clients: dict[str, Abide] = {}
        self.subscriptions: dict[str, Subscription[Any]] = {}
        self.begun: dict[str, asyncio.Task[Json]] = {}
        self.server: Server | None = None
        self.proxy = Proxy()
        self.script = Script()

    async def run(self) -> None:
        is_script = self.scenario.get("peer", "server") == "script"
        if is_script:
            await self.script.start()
        else:
            await self._start_server()
        try:
            for nth, step in enumerate(self.scenario["steps"]):
                try:
                    await asyncio.wait_for(self.step(self.replaced(step)), LIMIT)
                except (AbideError, AssertionError, KeyError, TimeoutError, asyncio.TimeoutError) as why:
                    raise Failure(f"step {nth}: {json.dumps(step)}: {type(why).__name__}: {why}") from why
        finally:
            for task in self.begun.values():
                task.cancel()
            await asyncio.gather(*self.begun.values(), return_exceptions=True)
            await asyncio.gather(*[client.close() for client in self.clients.values()])
            await self.proxy.close()
            await self.script.close()
            if self.server is not None:
                self.server.kill()

    async def _start_server(self) -> None:
        for token in self.scenario.get("tokens", ()):
            self._create_token(token)
        self.server = await asyncio.to_thread(Server, self.folder, *self.scenario.get("serve", ()))
        await self.proxy.start()
        self.proxy.target = self.server.port

    def _create_token(self, token: dict[str, Json]) -> None:
        command = [binary(), "token", "create", token["identity"], "--role", token["role"]]
        for capability in token.get("capabilities", ()):
            command += ["--capability", capability]
        for key, value in token.get("scope", {}).items():
            command += ["--scope", f"{key}={value}"]
        command += ["--db", str(self.folder / "test.db"), "--json"]
        text = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["token"]
        self.variables[f"token.{token['name']}"] = text
        self.variables[f"token_id.{token['name']}"] = text.split("_")[1]

    def replaced(self, value: Json) -> Json:
        """A step with the values of its variables; those of a later `as` or `save` stay names."""
        match value:
            case str() if value.startswith("$") and value[1:] in self.variables:
                return self.variables[value[1:]]
            case list():
                return [self.replaced(item) for item in value]
            case dict():
                return {key: self.replaced(item) for key, item in value.items()}
        return value

    async def step(self, step: dict[str, Json]) -> None:
        names = set(step) & set(STEPS)
        main = next(name for name in STEPS if name in names)
        action = STEPS[main]
        if "begin" in step:
            self.begun[step["begin"]] = asyncio.create_task(self.attempt(action(self, step)))
            await asyncio.sleep(0)
        elif main in ANSWERED:
            self.expect(step, await self.attempt(action(self, step)))
        else:
            await action(self, step)

    async def attempt(self, action: Awaitable[Json]) -> Json:
        try:
            return await action
        except AbideError as why:
            return why

    async def client(self, step: dict[str, Json]) -> Abide:
        name = step.get("client", "main")
        if name not in self.clients:
            self.clients[name] = self.new_client(None)
            await self.clients[name].start()
        return self.clients[name]

    def new_client(self, token: str | None) -> Abide:
        port = self.script.port or self.proxy.port
        return Abide.connect(f"http://127.0.0.1:{port}", token=token)

    # Steps of a client.

    async def connect(self, step: dict[str, Json]) -> Json:
        client = self.new_client(step.get("token"))
        await client.start()
        self.clients[step["connect"]] = client
        return None

    async def close(self, step: dict[str, Json]) -> None:
        await self.clients.pop(step["close"]).close()

    async def call(self, step: dict[str, Json]) -> Committed[Any]:
        client = await self.client(step)
        return await client.call(step["call"], step.get("args"), request_id=step.get("request_id"))

    async def batch(self, step: dict[str, Json]) -> Committed[Any]:
        client = await self.client(step)
        calls = [(call["reducer"], call.get("args", {})) for call in step["batch"]]
        return await client.batch(calls, request_id=step.get("request_id"))

    async def sql(self, step: dict[str, Json]) -> Result[Any]:
        client = await self.client(step)
        return await client.sql(step["sql"], cells(step.get("params")), as_of=step.get("as_of"))

    async def session(self, step: dict[str, Json]) -> dict[str, Json]:
        client = await self.client(step)
        return {"id": (await client.session(step.get("id"), agent=step["session"])).id}

    async def find_session(self, step: dict[str, Json]) -> dict[str, Json]:
        client = await self.client(step)
        found = await client.find_session(step["find_session"])
        return {"id": None if found is None else found.id}

    async def subscribe(self, step: dict[str, Json]) -> Json:
        client = await self.client(step)
        sub = client.subscribe(
            step["sql"],
            cells(step.get("params")),
            after_seq=step.get("after_seq"),
            as_of=step.get("as_of"),
            checksum=step.get("checksum", False),
        )
        await sub.start()
        self.subscriptions[step["subscribe"]] = sub
        # The first update is the first result; a subscription after a seq has none.
        first = None if "after_seq" in step else await anext(sub)
        return sub, first

    async def rows(self, step: dict[str, Json]) -> None:
        sub = self.subscriptions[step["rows"]]
        expected = rows(step["equal"])
        while True:
            while sub._feed.queue:
                await anext(sub)
            if list(map(identity, sub.rows)) == list(map(identity, expected)):
                return
            try:
                await asyncio.wait_for(anext(sub), LIMIT / 2)
            except asyncio.TimeoutError as why:
                raise Failure(f"the rows are {sub.rows}") from why

    async def update(self, step: dict[str, Json]) -> None:
        update: Update[Any] = await anext(self.subscriptions[step["update"]])
        for name in ("inserts", "updates", "deletes"):
            check(multiset(getattr(update, name)) == multiset(rows(step.get(name, []))), update)
        check(update.reset == step.get("reset", False), update)
        check(update.history_changed == step.get("history_changed", False), update)

    async def ended(self, step: dict[str, Json]) -> None:
        sub = self.subscriptions.pop(step["ended"])
        try:
            async for _ in sub:
                pass
        except AbideError as why:
            self.expect(step, why)
            return
        self.expect(step, sub.error)

    async def unsubscribe(self, step: dict[str, Json]) -> None:
        self.subscriptions.pop(step["unsubscribe"]).close()

    async def mismatches(self, step: dict[str, Json]) -> None:
        check(self.subscriptions[step["mismatches"]].mismatches == step["equal"], step)

    async def answer(self, step: dict[str, Json]) -> None:
        self.expect(step, await self.begun.pop(step["answer"]))

    # Steps of the server and of a script.

    async def kill(self, _: dict[str, Json]) -> None:
        assert self.server is not None
        await asyncio.to_thread(self.server.kill)

    async def start(self, _: dict[str, Json]) -> None:
        assert self.server is not None
        await asyncio.to_thread(self.server.start)

    async def cut(self, _: dict[str, Json]) -> None:
        await self.proxy.cut()

    async def lose(self, _: dict[str, Json]) -> None:
        self.proxy.lose_answer()

    async def accept(self, step: dict[str, Json]) -> None:
        await self.script.accept(step["accept"])

    async def hear(self, step: dict[str, Json]) -> None:
        message = await self.script.hear(step["hear"])
        if "as" in step:
            self.variables[step["as"]] = message["id"]
        for name, pointer in step.get("save", {}).items():
            self.variables[name] = pointed(message, pointer)

    async def say(self, step: dict[str, Json]) -> None:
        await self.script.say(step["say"])

    async def drop(self, _: dict[str, Json]) -> None:
        await self.script.drop()

    async def refuse(self, step: dict[str, Json]) -> None:
        await self.script.refuse(step["refuse"])

    # Expectations.

    def expect(self, step: dict[str, Json], answer: Json) -> None:
        expected = step.get("expect", {})
        if isinstance(answer, AbideError):
            error = expected.get("error")
            check(error is not None, answer)
            check(answer.code == error["code"], answer)
            check("hint" not in error or bool(answer.hint) == error["hint"], answer)
            check(error.get("detail", "") in answer.detail, answer)
            return
        check("error" not in expected, answer)
        for name, value in expected.items():
            self.expect_field(name, value, answer)
        for name, pointer in step.get("save", {}).items():
            self.variables[name] = pointed(described(answer), pointer)

    def expect_field(self, name: str, value: Json, answer: Json) -> None:
        match name:
            case "result":
                check(matches(value, answer.value), answer)
            case "results":
                check(matches(value, [one.value for one in answer.value]), answer)
            case "duplicate" | "seq":
                check(getattr(answer[0] if isinstance(answer, tuple) else answer, name) == value, answer)
            case "id":
                check(answer["id"] == value, answer)
            case "columns" if isinstance(answer, Result):
                check(list(answer.columns) == value, answer)
            case "columns":
                check([column.name for column in answer[0].columns] == value, answer)
            case "rows":
                found = answer.cells if isinstance(answer, Result) else answer[1].inserts
                check(list(map(identity, found)) == list(map(identity, rows(value))), found)
            case _:
                raise Failure(f"unknown expectation {name}")


Step = Callable[[Runner, dict[str, Json]], Awaitable[Json]]

# `subscribe` is before `sql`, which is a field of it.
STEPS: dict[str, Step] = {
    "connect": Runner.connect,
    "close": Runner.close,
    "call": Runner.call,
    "batch": Runner.batch,
    "subscribe": Runner.subscribe,
    "sql": Runner.sql,
    "session": Runner.session,
    "find_session": Runner.find_session,
    "rows": Runner.rows,
    "update": Runner.update,
    "ended": Runner.ended,
    "unsubscribe": Runner.unsubscribe,
    "mismatches": Runner.mismatches,
    "answer": Runner.answer,
    "kill": Runner.kill,
    "start": Runner.start,
    "cut": Runner.cut,
    "lose": Runner.lose,
    "accept": Runner.accept,
    "hear": Runner.hear,
    "say": Runner.say,
    "drop": Runner.drop,
    "refuse": Runner.refuse,
}
ANSWERED = {"connect", "call", "batch", "subscribe", "sql", "session", "find_session"}


class Script:
    """The server of a scenario in which the runner plays it."""

    def __init__(self) -> None:
        self.port = 0
        self._server: Any = None
        # Handshakes that wait for the step that answers or refuses them.
        self._handshakes: asyncio.Queue[asyncio.Future[bool]] = asyncio.Queue()
        self._connections: asyncio.Queue[ServerConnection] = asyncio.Queue()
        self._current: ServerConnection | None = None

    async def start(self) -> None:
        protocol = Subprotocol("abide.v1")
        self._server = await serve(
            self._serve, "127.0.0.1", 0, process_request=self._handshake, subprotocols=[protocol], compression=None
        )
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            await self.drop()
            self._server.close()

    async def _serve(self, connection: ServerConnection) -> None:
        self._connections.put_nowait(connection)
        await connection.wait_closed()

    async def _handshake(self, connection: ServerConnection, _: Request) -> Response | None:
        is_accepted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._handshakes.put_nowait(is_accepted)
        if await is_accepted:
            return None
        connection.transport.abort()
        return connection.respond(503, "")

    async def _connection(self) -> ServerConnection:
        (await self._handshakes.get()).set_result(True)
        return await self._connections.get()

    async def refuse(self, point: str) -> None:
        if point == "hello":
            (await self._connection()).transport.abort()
        else:
            check(point == "handshake", point)
            (await self._handshakes.get()).set_result(False)

    async def accept(self, fields: dict[str, Json]) -> None:
        self._current = await self._connection()
        await self.say({"op": "hello", "server": "abide", "version": "0.1.0", **fields})

    async def hear(self, expected: dict[str, Json]) -> dict[str, Json]:
        assert self._current is not None
        while True:
            message: dict[str, Json] = json.loads(await self._current.recv())
            if message["op"] != expected["op"] and message["op"] in ("ping", "unsubscribe"):
                continue
            for name, value in expected.items():
                check(matches(value, message.get(name)), message)
            return message

    async def say(self, message: dict[str, Json]) -> None:
        assert self._current is not None
        await self._current.send(json.dumps(message))

    async def drop(self) -> None:
        if self._current is not None:
            try:
                self._current.transport.abort()
                await self._current.wait_closed()
            except ConnectionClosed:
                pass


def check(is_so: bool, found: Json) -> None:
    if not is_so:
        raise Failure(f"found {found!r}")


def cells(params: dict[str, Json] | None) -> dict[str, Json] | None:
    return None if params is None else {name: decode_cell(value) for name, value in params.items()}


def rows(items: list[list[Json]]) -> list[tuple[Any, ...]]:
    return [tuple(map(decode_cell, row)) for row in items]


def multiset(items: list[Any]) -> Counter[Any]:
    return Counter(identity(tuple(row)) for row in items)


def matches(expected: Json, found: Json) -> bool:
    if isinstance(expected, dict):
        if expected == {"$any": True}:
            return found is not None
        return isinstance(found, dict) and all(matches(value, found.get(key)) for key, value in expected.items())
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(matches(one, other) for one, other in zip(expected, found, strict=True))
        )
    return bool(expected == found)


def described(answer: Json) -> Json:
    """An answer as JSON, for pointers."""
    match answer:
        case Committed(seq, duplicate, list() as results):
            return {"seq": seq, "duplicate": duplicate, "results": [described(one) for one in results]}
        case Committed(seq, duplicate, value):
            return {"seq": seq, "duplicate": duplicate, "result": value}
        case Result():
            found = [[encode_cell(cell) for cell in row] for row in answer.cells]
            return {"seq": answer.seq, "columns": list(answer.columns), "rows": found}
        case (Subscription() as sub, _):
            return {"seq": sub.seq}
    return answer


def pointed(value: Json, pointer: str) -> Json:
    for part in pointer.split("/")[1:]:
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value
