"""Fixtures: a server, and a client of it."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from server import Server

from abide import Abide

# Programs that tests interrupt would ignore SIGINT if the tests themselves were started so, as in the background of a shell.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder on a memory file system if there is one: a sync is then cheap."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with Server(folder) as server:
        yield server


@pytest_asyncio.fixture
async def client(server: Server) -> AsyncIterator[Abide]:
    async with server.client() as client:
        yield client
