"""A TCP proxy that can cut connections, silence them, and lose an answer."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Proxy:
    """Forwards connections to a server on another port of 127.0.0.1."""

    def __init__(self) -> None:
        self.port = 0
        self.target = 0
        self._loses_answer = False
        self._silences = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        await self.cut()

    async def cut(self) -> None:
        """Cuts all connections, without a close frame."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def lose_answer(self) -> None:
        """Does not forward the next bytes of the server, and cuts that connection."""
        self._loses_answer = True

    def silence(self) -> None:
        """Keeps the connections open, and forwards nothing on them any more. Later ones are forwarded."""
        self._silences += 1

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(OSError):
                await self._forward(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, downstream = await asyncio.open_connection("127.0.0.1", self.target)
        directions = [
            asyncio.create_task(self._copy(reader, downstream, False)),
            asyncio.create_task(self._copy(upstream, writer, True)),
        ]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)
            downstream.transport.abort()

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, is_answer: bool) -> None:
        silences = self._silences
        while data := await source.read(1 << 16):
            if self._silences != silences:
                continue
            if is_answer and self._loses_answer:
                self._loses_answer = False
                return
            sink.write(data)
            await sink.drain()
