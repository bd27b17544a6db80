"""Connecting: addresses, the handshake, and its errors."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from . import peer
from .errors import AbideError, BadRequestError, ConnectionFailedError, DeniedError, UnauthenticatedError, error_from_problem

SUBPROTOCOL = Subprotocol("abide.v1")
"""The WebSocket subprotocol, and the version of the protocol that this package speaks."""

CONNECT_TIMEOUT = 10.0
"""Seconds for a connection attempt, name resolution and handshake included."""

MESSAGE_BYTES = 512 << 20
"""The longest message that is read: a coalesced change of a large result is one message."""

Dial: TypeAlias = Callable[[], Awaitable[ClientConnection]]
"""Makes a connection."""


@dataclass(frozen=True)
class Address:
    """Where a server listens, and how the client presents itself."""

    url: str
    """`http://host:port`, `https://…`, or any such URL for a Unix socket."""
    socket: str | None = None
    """The path of a Unix socket."""
    token: str | None = None
    scope: Mapping[str, str] | None = None
    """Restricts the connection to this scope, in addition to the scope of the credentials."""

    def __repr__(self) -> str:
        # The token is a secret.
        return f"Address({self.socket or self.url!r})"

    def headers(self) -> dict[str, str]:
        """Returns the headers of every request."""
        headers = {}
        if self.token is not None:
            if not self.token.isascii() or not self.token.isprintable():
                raise BadRequestError("the token has characters that are not allowed in a header", code="bad_arguments")
            headers["Authorization"] = f"Bearer {self.token}"
        if self.scope:
            headers["Abide-Scope"] = json.dumps(dict(self.scope), separators=(",", ":"))
        return headers

    def websocket_url(self) -> str:
        """Returns the URL of the WebSocket.

        Raises:
            BadRequestError: the address is not `http(s)://host[:port][/path]`.
        """
        parts = urlsplit(self.url)
        schemes = {"http": "ws", "ws": "ws", "https": "wss", "wss": "wss"}
        if parts.scheme not in schemes or not parts.hostname or parts.query or "@" in parts.netloc:
            raise BadRequestError(
                f"{self.url!r} is not a server address",
                code="bad_arguments",
                hint="for example http://127.0.0.1:7341; pass a token with token=",
            )
        return f"{schemes[parts.scheme]}://{parts.netloc}{parts.path.rstrip('/')}/v1/ws"


class _Connect(connect):
    """Follows no redirect: the request has the token, and another path of the server speaks no other protocol."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


async def dial(address: Address) -> ClientConnection:
    """Opens a WebSocket.

    Raises:
        ConnectionFailedError: there is no server, or another user listens at its Unix socket.
        RefusedError: the server rejects the credentials or the scope.
    """
    options: dict[str, Any] = {
        "subprotocols": [SUBPROTOCOL],
        "additional_headers": address.headers(),
        "max_size": MESSAGE_BYTES,
        "compression": None,
        "ping_interval": None,
        "close_timeout": 1,
        "open_timeout": CONNECT_TIMEOUT,
    }
    url = address.websocket_url()
    try:
        if address.socket is not None:
            socket = await peer.connect(address.socket)
            try:
                return await _Connect(url, unix=True, sock=socket, **options)
            except BaseException:
                socket.close()
                raise
        return await _Connect(url, proxy=None, **options)
    except InvalidStatus as exc:
        raise _error_from_response(address, exc) from exc
    except (OSError, EOFError, InvalidHandshake, asyncio.TimeoutError) as exc:
        detail = str(exc).lower() or f"no answer within {CONNECT_TIMEOUT:.0f} s"
        raise ConnectionFailedError(
            f"{address.socket or address.url} cannot be reached: {detail}",
            hint=tls_hint(exc) or "start the server with `abide serve`, or check the address",
        ) from exc


_AUTHORITY_CODES = (2, 18, 19, 20, 21)
"""The results of OpenSSL for a certificate without a trusted authority (`X509_V_ERR_…`)."""
_NAME_CODES = (62, 64)
_NOT_YET_VALID = 9
_EXPIRED = 10


def tls_hint(error: BaseException) -> str | None:
    """Returns the hint of a failed handshake of TLS; `None` for other errors of a connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        verify_code = getattr(error, "verify_code", None)  # One that a library raises has none.
        if verify_code in _AUTHORITY_CODES:
            return "give the certificate of the authority that signed the server's: SSL_CERT_FILE=FILE in the environment"
        if verify_code in _NAME_CODES:
            return "write a name of the certificate in the URL, or request a certificate that has the name of the URL"
        if verify_code == _EXPIRED:
            return "renew the certificate of the server, or check the clock of this machine"
        if verify_code == _NOT_YET_VALID:
            return "check the clock of this machine, and that of the authority"
    if not isinstance(error, ssl.SSLError):
        return None
    if getattr(error, "reason", None) in ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG"):
        return "write http:// in place of https://, or start the server with --tls-cert and --tls-key"
    return "see docs/tls.md; `openssl s_client -connect HOST:PORT` shows what the server presents"


def _error_from_response(address: Address, exc: InvalidStatus) -> AbideError:
    """Returns the error of an answer that is not a WebSocket upgrade."""
    response = exc.response
    try:
        problem = json.loads(response.body or b"")
    except (ValueError, RecursionError):
        problem = None
    if isinstance(problem, dict) and "code" in problem and "detail" in problem:
        return error_from_problem(problem)
    if response.status_code == 401:
        return UnauthenticatedError("the server requires a valid token", code="unauthenticated")
    if response.status_code == 403:
        return DeniedError("the server responds with HTTP 403 and names no reason", code="denied")
    detail = f"it responds with HTTP {response.status_code} instead of opening a WebSocket"
    if response.status_code >= 500:  # a proxy reports that the server behind it does not answer
        return ConnectionFailedError(f"{address.url} cannot be reached: {detail}")
    return ConnectionFailedError(
        f"{address.url} is not an Abide server: {detail}",
        hint="check the URL: another program listens there",
    )
