"""The task that owns the connection: it sends requests, dispatches frames, and reconnects after a lost connection.

A request is sent again, unchanged, on each new connection until it is answered or its caller gives up; the request id of
a call makes that safe. A subscription resumes from its seq.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from contextlib import suppress
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from .backoff import Backoff
from .dial import Dial
from .errors import TEMPORARY, AbideError, ClosedError, TimedOutError, copy_error, error_from_problem, get_member, reading
from .subscriptions import Subscriptions
from .values import encode_message

_LOG = logging.getLogger("abide")

_PING_AFTER = 10.0
_LOST_AFTER = 30.0

Frame = dict[str, Any]


class _Request:
    """A pending request."""

    __slots__ = ("answer", "is_sent", "is_uncertain", "text")

    def __init__(self, text: bytes, answer: asyncio.Future[Frame]) -> None:
        self.text = text
        self.answer = answer
        self.is_sent = False
        # It was sent on an earlier connection, so a refusal does not imply that nothing was written.
        self.is_uncertain = False

    def fail(self, error: AbideError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class Connection:
    """A connection that outlives the sockets that it uses."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._socket: ClientConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._outbox: deque[bytes] = deque()
        self._wake = asyncio.Event()
        # In the order of the requests, which is the order in which they are sent.
        self._requests: dict[str, _Request] = {}
        self._count = 0
        self._received_at = 0.0
        self._backoff = Backoff()
        self._last_error: str | None = None
        self._ended: AbideError | None = None
        self.subscriptions: Subscriptions = Subscriptions(self._send_message)
        self.reconnects: int = 0
        self.namespace: str | None = None
        """The namespace of the caller, from the first message of the last connection."""
        self.changed: asyncio.Event = asyncio.Event()
        """Set, and replaced, whenever `connected` changes."""

    @property
    def connected(self) -> bool:
        """`True` if there is a connection now."""
        return self._socket is not None

    async def start(self) -> None:
        """Connects for the first time.

        Raises:
            AbideError: there is no server, or it rejects the credentials.
        """
        self.check_open()
        socket = await self._dial()
        if self._ended is not None:
            await socket.close()
            raise copy_error(self._ended)
        self._task = asyncio.create_task(self._run(socket), name="abide connection")

    async def close(self) -> None:
        """Ends it: pending requests and subscriptions get `ClosedError`."""
        self._end(ClosedError())
        if self._socket is not None:
            await self._socket.close()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    @property
    def ended(self) -> bool:
        """`True` if it was closed, or has failed for good."""
        return self._ended is not None

    def check_open(self) -> None:
        """Raises the error with which the connection has ended."""
        if self._ended is not None:
            raise copy_error(self._ended)

    async def request(self, message: Frame, what: str, deadline: float) -> Frame:
        """Sends a request until it is answered. A temporary refusal is retried after a pause.

        `deadline` is in seconds, `what` names the request in errors.

        Raises:
            RefusedError: the server refused it, and nothing was written.
            TimedOutError: there was no answer in time.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + deadline
        backoff = Backoff()
        is_uncertain = False
        while True:
            self.check_open()
            self._count += 1
            name = str(self._count)
            request = _Request(encode_message({**message, "id": name}, what), loop.create_future())
            timer = loop.call_at(until, self._expire, request, what, message.get("request_id"), deadline)
            self._requests[name] = request
            if self._socket is not None:
                request.is_sent = True
                self._send(request.text)
            try:
                return await request.answer
            except (asyncio.CancelledError, TimedOutError):
                # A query that was sent does not have to run to its end.
                if self._socket is not None and message["op"] in ("sql", "explain"):
                    self._send(b'{"op":"cancel","id":"%s"}' % name.encode())
                raise
            except TEMPORARY as exc:
                is_uncertain |= request.is_uncertain
                again = loop.time() + max(backoff.next(), (exc.retry_after_ms or 0) / 1000)
                if again >= until:
                    if is_uncertain:
                        raise self._timed_out(what, message.get("request_id"), deadline, str(exc)) from exc
                    raise
                await asyncio.sleep(again - loop.time())
            finally:
                timer.cancel()
                self._requests.pop(name, None)

    def _expire(self, request: _Request, what: str, request_id: str | None, deadline: float) -> None:
        request.fail(self._timed_out(what, request_id, deadline, self._last_error))

    def _timed_out(self, what: str, request_id: str | None, deadline: float, last_error: str | None) -> TimedOutError:
        reason = f" ({last_error})" if last_error else ""
        return TimedOutError(f"{what} was not answered within {deadline:g} s{reason}", request_id=request_id)

    def _send_message(self, message: Frame) -> None:
        if self._socket is not None:
            self._send(encode_message(message, "the subscription"))

    def _send(self, text: bytes) -> None:
        self._outbox.append(text)
        self._wake.set()

    async def _run(self, socket: ClientConnection) -> None:
        """Serves one connection after the other."""
        try:
            while True:
                reason = await self._serve(socket)
                _LOG.info("the connection to the server was lost: %s", reason)
                self._last_error = reason
                socket = await self._reconnect()
                self._last_error = None
                self.reconnects += 1
        except AbideError as exc:
            _LOG.error("the client ends: %s", exc)
            self._end(exc)
        except Exception as exc:
            _LOG.exception("the connection has failed")
            self._end(AbideError(f"the connection has failed: {exc!r}", code="internal"))

    async def _reconnect(self) -> ClientConnection:
        """Connects again, however long that takes."""
        while True:
            await asyncio.sleep(self._backoff.next())
            try:
                return await self._dial()
            except AbideError as exc:
                if exc.code in ("unauthenticated", "denied", "incompatible_version", "engine_not_found"):
                    raise
                self._last_error = exc.detail

    async def _serve(self, socket: ClientConnection) -> str:
        """Reads one connection until it ends. Returns why it ended."""
        self._outbox.clear()
        self._received_at = asyncio.get_running_loop().time()
        self._connect(socket)
        helpers = [asyncio.create_task(self._write(socket)), asyncio.create_task(self._watch(socket))]
        try:
            while True:
                text = await socket.recv()
                self._received_at = asyncio.get_running_loop().time()
                self._handle(text)
        except ConnectionClosed as exc:
            return exc.rcvd.reason if exc.rcvd and exc.rcvd.reason else "the server closed the connection"
        finally:
            self._disconnect()
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            if socket.close_code is None:
                socket.transport.abort()

    def _connect(self, socket: ClientConnection) -> None:
        self._socket = socket
        for request in self._requests.values():
            request.is_uncertain |= request.is_sent
            request.is_sent = True
            self._send(request.text)
        self._signal()

    def _disconnect(self) -> None:
        self._socket = None
        self.subscriptions.handle_disconnect()
        self._signal()

    def _signal(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    async def _write(self, socket: ClientConnection) -> None:
        with suppress(ConnectionClosed):
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._outbox:
                    await socket.send(self._outbox.popleft(), text=True)

    async def _watch(self, socket: ClientConnection) -> None:
        """Pings a silent server, and abandons it if it does not answer."""
        loop = asyncio.get_running_loop()
        while True:
            silence = loop.time() - self._received_at
            if silence >= _LOST_AFTER:
                socket.transport.abort()
                return
            if silence >= _PING_AFTER:
                self._send(b'{"op":"ping"}')
            next_check = _PING_AFTER if silence < _PING_AFTER else _LOST_AFTER
            await asyncio.sleep(max(next_check - silence, 0.1))

    def _handle(self, text: str | bytes) -> None:
        """Dispatches a frame of the server."""
        with reading("a message of the server"):
            frame: Frame = json.loads(text)
            op = frame["op"]
            if op in ("result", "rows", "explanation"):
                request = self._requests.get(frame["id"])
                if request is not None and not request.answer.done():
                    request.answer.set_result(frame)
            elif op == "delta":
                self.subscriptions.handle_delta(frame)
            elif op == "snapshot":
                self.subscriptions.handle_snapshot(frame)
            elif op == "progress":
                self.subscriptions.handle_progress(get_member(frame, "seq", int))
            elif op == "rerun":
                self.subscriptions.handle_rerun(frame)
            elif op == "hello":
                self.namespace = get_member(frame, "namespace", str) if "namespace" in frame else ""
                self.subscriptions.handle_connect(frame.get("timeline"))
            elif op == "error":
                self._handle_error(frame)
        self._backoff.reset()

    def _handle_error(self, frame: Frame) -> None:
        request = self._requests.get(str(frame.get("id")))
        if request is not None:
            request.fail(error_from_problem(frame))
        elif frame.get("id") is None and frame.get("code") == "unauthenticated":
            # The server closes the connection; its answer to the next one counts.
            _LOG.debug("the credentials are no longer valid")
        elif not self.subscriptions.handle_error(frame):
            _LOG.warning("the server refused an unknown request: %s", frame.get("detail"))

    def _end(self, error: AbideError) -> None:
        if self._ended is None:
            self._ended = error
            for request in list(self._requests.values()):
                request.fail(copy_error(error))
            self.subscriptions.end(error)
            self._signal()
