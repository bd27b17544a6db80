"""Reads JSON documents of a server over HTTP."""

from __future__ import annotations

import http.client
import json
import re
import socket
from typing import Any
from urllib.parse import unquote, urlsplit

from .dial import CONNECT_TIMEOUT, MESSAGE_BYTES, Address, tls_hint
from .errors import BadRequestError, ConnectionFailedError, LimitExceededError, ProtocolError, error_from_problem
from .peer import connect_blocking

_PATH = re.compile(r"/(?!/)[!$-;=?-\[\]_a-z~]*")
"""Printable ASCII without `"`, `#`, `<`, `>`, a backslash and other characters that a URL does not have."""


def check_path(path: str) -> None:
    """Refuses everything but a path of the server itself, since the request carries the token.

    Raises:
        BadRequestError: it names another host, or leaves the path with `..`.
    """
    if not isinstance(path, str) or not _PATH.fullmatch(path) or _has_dot_segments(path.split("?", 1)[0]):
        raise BadRequestError(
            f"{path!r} is not a path of the server",
            code="bad_arguments",
            hint="a path looks like /v1/schema",
        )


def _has_dot_segments(path: str) -> bool:
    """Returns `True` if a path has `.` or `..` as a segment, however often a proxy decodes it."""
    before = None
    while path != before:
        path, before = unquote(path), path
    return "\\" in path or not {".", ".."}.isdisjoint(path.split("/"))


def get_json(address: Address, path: str) -> Any:
    """Returns the document at a path. It blocks, and follows no redirect and no proxy.

    Raises:
        BadRequestError: `path` is not a path of the server.
        ConnectionFailedError: there is no answer.
        RefusedError: the server refuses it.
        ProtocolError: the answer is not JSON.
    """
    check_path(path)
    address.websocket_url()  # Checks the URL.
    parts = urlsplit(address.url)
    headers = {**address.headers(), "Accept": "application/json"}
    connection = _connection(address)
    try:
        connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
        response = connection.getresponse()
        body = response.read(MESSAGE_BYTES + 1)
    except (OSError, http.client.HTTPException) as exc:
        raise ConnectionFailedError(f"{path} cannot be read: {str(exc) or type(exc).__name__}", hint=tls_hint(exc)) from exc
    finally:
        connection.close()
    if len(body) > MESSAGE_BYTES:
        raise LimitExceededError(f"{path} is longer than {MESSAGE_BYTES} bytes", code="limit_exceeded")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as exc:
        if response.status == 200:
            raise ProtocolError(f"{path} is not a JSON document") from exc
        document = None
    if response.status == 200:
        return document
    if isinstance(document, dict) and response.status >= 400:
        raise error_from_problem(document)
    raise ConnectionFailedError(f"{path} cannot be read: the server responds with HTTP {response.status}")


def _connection(address: Address) -> http.client.HTTPConnection:
    parts = urlsplit(address.url)
    if address.socket is not None:
        return _SocketConnection(address.socket)
    kind = http.client.HTTPSConnection if parts.scheme in ("https", "wss") else http.client.HTTPConnection
    assert parts.hostname is not None
    return kind(parts.hostname, parts.port, timeout=CONNECT_TIMEOUT)


class _SocketConnection(http.client.HTTPConnection):
    """A connection over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=CONNECT_TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock: socket.socket = connect_blocking(self._path, CONNECT_TIMEOUT)
