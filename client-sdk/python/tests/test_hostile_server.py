"""Servers that answer with what the protocol does not allow, or that want the token of another server."""

from __future__ import annotations

import ast
import asyncio
import builtins
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hostile import HostileServer
from server import Server, environment

from abide import Abide, AbideError, BadRequestError, ConnectionFailedError, OverloadedError, ProtocolError
from abide.generate import generate
from abide.http_get import check_path

DEEP = "[" * 200_000 + "]" * 200_000

MALFORMED_RESULTS = {
    "no seq": '{"op":"result","id":ID,"duplicate":false,"result":1}',
    "a seq that is an object": '{"op":"result","id":ID,"seq":{"a":1},"duplicate":false,"result":1}',
    "a seq that is true": '{"op":"result","id":ID,"seq":true,"duplicate":false,"result":1}',
    "a seq of 6,000 digits": '{"op":"result","id":ID,"seq":' + "9" * 6000 + ',"duplicate":false,"result":1}',
    "no duplicate": '{"op":"result","id":ID,"seq":1,"result":1}',
    "a deep result": '{"op":"result","id":ID,"seq":1,"duplicate":false,"result":' + DEEP + "}",
    "rows for a call": '{"op":"rows","id":ID,"seq":1,"columns":[],"rows":[]}',
    "no object": "[1]",
    "no JSON": "{",
    "an id that is an object": '{"op":"result","id":{},"seq":1}',
    "a progress without a seq": '{"op":"progress","seq":"1"}',
    "a delta without a span": '{"op":"delta","changes":[]}',
}

MALFORMED_ROWS = {
    "no rows": '{"op":"rows","id":ID,"seq":1,"columns":["a"]}',
    "rows that are an object": '{"op":"rows","id":ID,"seq":1,"columns":["a"],"rows":{"a":1}}',
    "a row that is a number": '{"op":"rows","id":ID,"seq":1,"columns":["a"],"rows":[1]}',
    "a row that is too short": '{"op":"rows","id":ID,"seq":1,"columns":["a","b"],"rows":[[1]]}',
    "a column that is a number": '{"op":"rows","id":ID,"seq":1,"columns":[1],"rows":[[1]]}',
    "a cell that is a list": '{"op":"rows","id":ID,"seq":1,"columns":["a"],"rows":[[[1]]]}',
    "a cell that is true": '{"op":"rows","id":ID,"seq":1,"columns":["a"],"rows":[[true]]}',
    "a blob that is no base64": '{"op":"rows","id":ID,"seq":1,"columns":["a"],"rows":[[{"$blob":"a"}]]}',
    "no seq": '{"op":"rows","id":ID,"columns":["a"],"rows":[[1]]}',
    "a result for a query": '{"op":"result","id":ID,"seq":1,"duplicate":false,"result":1}',
}

SNAPSHOT = {"op": "snapshot", "seq": 1, "columns": [{"name": "a", "type": ""}], "key": ["a"], "order": [], "rows": [[1]]}
MALFORMED_SNAPSHOTS: dict[str, dict[str, Any]] = {
    "no rows": {"rows": None},
    "a seq that is a text": {"seq": "1"},
    "a column without a name": {"columns": [{}]},
    "a column whose name is a list": {"columns": [{"name": ["a"]}]},
    "a key that is no column": {"key": ["b"]},
    "an order of another column": {"order": [{"column": "a", "index": -1, "desc": False, "nulls": "first", "collation": "BINARY"}]},
    "an unknown collation": {"order": [{"column": "a", "index": 0, "desc": False, "nulls": "first", "collation": "X"}]},
    "a cell that is a list": {"rows": [[[1]]]},
    "an integer beyond 64 bits with a checksum": {"rows": [[2**70]], "checksum": "00"},
    "a checksum that is a list": {"checksum": []},
}


@pytest.mark.parametrize("what", MALFORMED_RESULTS)
async def test_a_malformed_answer_to_a_call_is_a_protocol_error(what: str) -> None:
    async with HostileServer(MALFORMED_RESULTS[what]) as server, Abide.connect(server.url, deadline=10) as client:
        with pytest.raises(ProtocolError) as refused:
            await client.call.create_session(agent="a")
        assert (refused.value.code, bool(refused.value.hint), len(str(refused.value)) < 500) == ("protocol", True, True)


@pytest.mark.parametrize("what", MALFORMED_ROWS)
async def test_malformed_rows_are_a_protocol_error(what: str) -> None:
    async with HostileServer(MALFORMED_ROWS[what]) as server, Abide.connect(server.url, deadline=10) as client:
        with pytest.raises(ProtocolError):
            await client.sql("SELECT 1")


@pytest.mark.parametrize("what", MALFORMED_SNAPSHOTS)
async def test_a_malformed_snapshot_is_a_protocol_error(what: str) -> None:
    answer = json.dumps({**SNAPSHOT, **MALFORMED_SNAPSHOTS[what]})[:-1] + ',"id":ID}'
    async with HostileServer(answer) as server, Abide.connect(server.url, deadline=10) as client:
        with pytest.raises(ProtocolError):
            await client.subscribe("SELECT 1")


async def test_a_malformed_refusal_is_a_refusal() -> None:
    answer = '{"op":"error","id":ID,"code":"overloaded","detail":["x"],"hint":{},"retry_after_ms":"abc"}'
    async with HostileServer(answer) as server, Abide.connect(server.url, deadline=0.2) as client:
        with pytest.raises((OverloadedError, AbideError)) as refused:
            await client.call.create_session(agent="a")
        assert isinstance(refused.value, AbideError)


async def test_a_long_refusal_is_a_short_error() -> None:
    """A server that is none decides how long its texts are, and programs print them."""
    long = json.dumps("x" * 1_000_000)
    answer = '{"op":"error","id":ID,"code":"bad_sql","detail":' + long + ',"hint":' + long + "}"
    async with HostileServer(answer) as server, Abide.connect(server.url, deadline=10) as client:
        with pytest.raises(BadRequestError) as refused:
            await client.sql("SELECT 1")
        assert len(str(refused.value)) < 4_200
        assert refused.value.detail.endswith("x … (998000 more characters)")


async def test_a_malformed_batch_is_a_protocol_error() -> None:
    for results in ("[]", "[1]", "{}", '[{"result":1}]'):
        answer = '{"op":"result","id":ID,"seq":1,"duplicate":false,"results":' + results + "}"
        async with HostileServer(answer) as server, Abide.connect(server.url, deadline=10) as client:
            with pytest.raises(ProtocolError):
                await client.batch([("create_session", {"agent": "a"})])


async def test_a_malformed_answer_of_a_built_in_reducer_is_a_protocol_error() -> None:
    answer = '{"op":"result","id":ID,"seq":1,"duplicate":false,"result":[]}'
    async with HostileServer(answer) as server, Abide.connect(server.url, deadline=10) as client:
        with pytest.raises(ProtocolError):
            await client.session("s1")


NO_PATHS = (
    "http://127.0.0.1:1/v1/schema",
    "//127.0.0.1:1/v1/schema",
    "/\\127.0.0.1:1/v1/schema",
    "\\\\127.0.0.1/v1",
    "v1/schema",
    "",
    "/v1/../schema",
    "/..",
    "/v1/%2e%2E/schema",
    "/v1/%252e%252e/schema",
    "/v1/%3F/../schema",
    "/v1/%5C%5Chost",
    "/v1/a b",
    "/v1\r\nHost: other",
    "/v1#x",
    "/é",
    "@127.0.0.1:1/v1",
    None,
)


@pytest.mark.parametrize("path", NO_PATHS)
async def test_only_paths_of_the_server_are_read(path: Any) -> None:
    async with HostileServer() as other, HostileServer() as server, Abide.connect(server.url, token="secret") as client:
        target = path.replace("127.0.0.1:1", f"127.0.0.1:{other.port}") if path else path
        with pytest.raises(BadRequestError) as refused:
            await client.get(target)
        assert refused.value.code == "bad_arguments"
        assert (other.requests, len(server.requests)) == ([], 1)


def test_usual_paths_are_allowed() -> None:
    for path in ("/v1/schema", "/openapi.json", "/health?x=1&y=a..b", "/v1/a%2Fb", "/v1/a..b", "/v1/sessions/s:1@x"):
        check_path(path)


async def test_redirects_are_not_followed() -> None:
    async with HostileServer() as other:
        async with HostileServer(redirect=f"{other.url.replace('http', 'ws')}/v1/ws") as server:
            with pytest.raises(ConnectionFailedError) as refused:
                await Abide.connect(server.url, token="secret")
            assert "302" in refused.value.detail
        async with HostileServer() as server, Abide.connect(server.url, token="secret") as client:
            server.redirect = f"{other.url}/v1/schema"
            with pytest.raises(ConnectionFailedError):
                await client.get("/v1/schema")
        assert other.requests == []


async def test_a_document_that_is_not_json_is_an_error(server: Server) -> None:
    async with server.client() as client:
        with pytest.raises(AbideError):
            await client.get("/v1/nothing")
        assert "tables" in await client.get("/v1/schema")


CODE = "__import__('builtins').hostile.append(1)"
TEXTS = (
    f"x: int = {CODE}\n    y",
    f'"""\n{CODE}\n"""',
    f'\\"""\n{CODE}#',
    f"\\\n{CODE}",
    f"'\n{CODE}\n'",
    f"x\r{CODE}",
    f"x\x0c\x00{CODE}\u2028{CODE}",
    f"{{{CODE}}}",
    f"x) -> {CODE}: #",
    "class",
    "self",
    "\uff49\uff4d\uff50\uff4f\uff52\uff54",
    "",
    "1",
    '"',
    "\\",
)


def hostile_documents(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A schema with a text wherever a server can put one."""
    kinds: list[Any] = [{"type": text}, {"enum": [text, 1, None]}, {"const": text}, {"enum": [{text: 1}]}, {"$ref": f"#/x/{text}"}]
    kinds += [{"anyOf": list(kinds)}, {"type": "array", "items": kinds[1]}, {"type": "object", "additionalProperties": kinds[2]}]
    members = {f"{text}{at}": {**kind, "description": text} for at, kind in enumerate(kinds)}
    of_text = {"properties": {text: True, **members}, "required": [text], "description": text}
    column = {"name": text, "type": text, "nullable": True, "json": True, "description": text}
    plain = {"name": "plain", "type": "TEXT", "nullable": False, "json": False, "description": text}
    schema = {
        "tables": [{"name": text, "columns": [column, plain], "description": text}, {"name": "t2", "columns": [plain]}],
        "reducers": [{"name": "add", "description": text}],
    }
    of_plain = {"properties": {"a": {"description": text, "enum": [text]}}, "description": text}
    schemas = {"add_arguments": of_text, "add_result": {**of_plain, "x": {"$ref": f"#/{text}Z"}}, f"{text}Z": of_text}
    schemas["problem"] = {"properties": {"code": {"enum": [text]}}}
    return schema, {"components": {"schemas": schemas}}


@pytest.mark.parametrize("text", TEXTS)
def test_no_text_of_a_server_becomes_code(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    monkeypatch.setattr(builtins, "hostile", ran, raising=False)
    module = generate(*hostile_documents(text))
    tree = ast.parse(module)
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert calls <= {"dataclass", "TypedDict", "self._client.call", "self._call", "optional.items"}
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules == {"__future__", "dataclasses", "typing", "abide", "typing_extensions"}
    assert not any(isinstance(node, ast.Import) for node in ast.walk(tree))
    module.encode()
    names: dict[str, Any] = {"__name__": "generated"}
    monkeypatch.setitem(sys.modules, "generated", sys)  # Where dataclasses look up the names of annotations.
    exec(compile(tree, "generated", "exec"), names)
    assert ran == []
    assert "Calls" in names


@pytest.mark.parametrize("name", ["a b", "x(self): pass\n    def y", "__init__", "_call", "", "1", "é"])
def test_a_reducer_with_another_name_is_refused(name: str) -> None:
    schema, openapi = hostile_documents("x")
    schema["reducers"][0]["name"] = name
    with pytest.raises(ProtocolError):
        generate(schema, openapi)


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(ProtocolError):
        generate(*hostile_documents("\ud800"))


def test_names_that_become_the_same_class_are_refused() -> None:
    column = {"name": "a", "type": "TEXT", "nullable": False, "json": False}
    tables = [{"name": "a_b", "columns": [column]}, {"name": "aB", "columns": [column]}]
    with pytest.raises(ProtocolError, match="ABRow"):
        generate({"tables": tables, "reducers": []}, {"components": {"schemas": {}}})


@pytest.mark.parametrize("document", [None, [], {"tables": 1}, {"tables": [], "reducers": [{}]}])
async def test_a_malformed_schema_is_a_protocol_error(document: Any, folder: Path) -> None:
    documents = {"/v1/schema": document, "/openapi.json": {"components": {"schemas": {}}}}
    async with HostileServer(documents=documents) as server:
        command = [sys.executable, "-m", "abide.generate", "--url", server.url]
        run = await asyncio.to_thread(subprocess.run, command, capture_output=True, cwd=folder, env=environment())
    assert (run.returncode, run.stdout) == (1, b"")
    assert run.stderr.startswith(b"error: protocol: ")
