"""A server that does not keep to the protocol."""

from __future__ import annotations

import json
from http import HTTPStatus
from types import TracebackType
from typing import Any

from websockets.asyncio.server import Server as WebSocketServer
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

HELLO = '{"op":"hello","server":"abide","version":"0.1.0","seq":1,"timeline":"x"}'


class HostileServer:
    """Answers each message with a text that contains its id in place of `ID`, and each HTTP request with a document."""

    def __init__(self, answer: str = "", documents: dict[str, Any] | None = None, redirect: str | None = None) -> None:
        self.answer = answer
        self.documents = documents or {}
        self.redirect = redirect
        self.requests: list[Request] = []
        self.port = 0
        self._server: WebSocketServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> HostileServer:
        self._server = await serve(
            self._talk, "127.0.0.1", 0, process_request=self._http, subprotocols=[Subprotocol("abide.v1")], close_timeout=0
        )
        self.port = next(iter(self._server.sockets)).getsockname()[1]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, why: BaseException | None, trace: TracebackType | None) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    def _http(self, connection: ServerConnection, request: Request) -> Response | None:
        self.requests.append(request)
        if self.redirect is not None:
            return Response(HTTPStatus.FOUND, "", Headers({"Location": self.redirect, "Content-Length": "0"}), b"")
        if "Upgrade" in request.headers:
            return None
        body = json.dumps(self.documents.get(request.path)).encode()
        return Response(HTTPStatus.OK, "", Headers({"Content-Length": str(len(body))}), body)

    async def _talk(self, connection: ServerConnection) -> None:
        await connection.send(HELLO)
        async for message in connection:
            asked = json.loads(message)
            if "id" in asked:
                await connection.send(self.answer.replace("ID", json.dumps(asked["id"])))
