"""`Abide.open`: the engine as a child process that all users of a file share."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from server import Server, binary, environment

from abide import (
    Abide,
    AbideError,
    BadRequestError,
    EngineNotFoundError,
    IncompatibleVersionError,
    UntrustedEngineError,
    peer,
)
from abide.dial import Address, dial
from abide.engine import Engine, _read_address
from abide.http_get import get_json

PROGRAM = """
import asyncio, sys
from abide import Abide

async def main():
    client = await Abide.open(sys.argv[1], binary=sys.argv[2])
    await client.call.create_session(agent="child", id="s1")
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def engine_pids(file: Path) -> list[int]:
    """The processes that run `abide open` for a file."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"open" in words[1:2] and os.fsencode(file) in words:
            found.append(int(entry.name))
    return found


async def ended(file: Path, *, but: int = 0) -> None:
    """Waits until no engine of a file runs, except one."""
    for pid in engine_pids(file):
        if pid == but:
            continue
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(handle, done.set)
        await asyncio.wait_for(done.wait(), 20)
        loop.remove_reader(handle)
        os.close(handle)


async def test_a_file_is_opened_and_shared(folder: Path) -> None:
    file = folder / "agents.db"
    async with Abide.open(file, binary=binary()) as one:
        [engine] = engine_pids(file)
        two = await Abide.open(file, binary=binary())
        await one.call.create_session(agent="a", id="s1")
        assert (await two.sql("SELECT id FROM sessions")).scalar() == "s1"
        await two.close()
        await ended(file, but=engine)
        assert engine_pids(file) == [engine]
        assert "sessions" in {table["name"] for table in (await one.get("/v1/schema"))["tables"]}
    await ended(file)
    async with Abide.open(file, binary=binary()) as again:
        assert (await again.sql("SELECT id FROM sessions")).scalar() == "s1"
    await ended(file)


async def test_a_killed_parent_leaves_nothing(folder: Path) -> None:
    file = folder / "agents.db"
    parent = subprocess.Popen([sys.executable, "-c", PROGRAM, str(file), binary()], stdout=subprocess.PIPE, env=environment())
    assert parent.stdout is not None
    assert await asyncio.to_thread(parent.stdout.readline) == b"ready\n"
    parent.kill()
    parent.wait()
    parent.stdout.close()
    await ended(file)
    async with Abide.open(file, binary=binary()) as client:
        assert (await client.sql("SELECT agent FROM sessions")).scalar() == "child"
    await ended(file)


async def test_a_killed_engine_is_started_again(folder: Path) -> None:
    file = folder / "agents.db"
    async with Abide.open(file, binary=binary()) as client:
        await client.call.create_session(agent="a", id="s1")
        async with client.subscribe("SELECT id FROM sessions ORDER BY id") as sub:
            await anext(sub)
            os.kill(engine_pids(file)[0], signal.SIGKILL)
            await client.call.create_session(agent="a", id="s2")
            assert [row.id for row in (await anext(sub)).inserts] == ["s2"]
    await ended(file)


LISTENER = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
if sys.argv[2] != "-":
    os.chmod(sys.argv[1], 0o777)
    os.seteuid(int(sys.argv[2]))
listener.listen()
print("ready", flush=True)
while True:
    connection, _ = listener.accept()
    received = connection.recv(1)
    print("received", len(received), flush=True)
"""


@contextmanager
def listening(path: Path, user: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process that listens at a socket, and prints how much it receives of each connection."""
    words = [sys.executable, "-c", LISTENER, str(path), "-" if user is None else str(user)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


async def refused_by(path: Path) -> tuple[str, str]:
    """The reasons for which a WebSocket and an HTTP request to a socket are refused."""
    address = Address("http://localhost", socket=str(path))
    with pytest.raises(UntrustedEngineError) as of_dial:
        await dial(address)
    with pytest.raises(UntrustedEngineError) as of_get:
        await asyncio.to_thread(get_json, address, "/v1/schema")
    assert of_dial.value.code == of_get.value.code == "untrusted_engine"
    assert of_dial.value.hint
    return of_dial.value.detail, of_get.value.detail


async def test_a_socket_in_a_folder_that_others_can_write_gets_nothing(folder: Path) -> None:
    place = folder / "place"
    place.mkdir()
    for mode in (0o777, 0o1777, 0o720):
        place.chmod(mode)
        with listening(place / "socket") as process:
            assert all("can write" in why for why in await refused_by(place / "socket"))
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(2)] == [b"received 0\n"] * 2
        (place / "socket").unlink()


async def test_a_socket_behind_a_link_gets_nothing(folder: Path) -> None:
    (folder / "real").mkdir(mode=0o700)
    (folder / "link").symlink_to(folder / "real")
    with listening(folder / "real" / "socket"):
        assert all("not a directory" in why for why in await refused_by(folder / "link" / "socket"))


async def test_a_folder_of_another_user_gets_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = folder / "place"
    place.mkdir(mode=0o700)
    with listening(place / "socket"):
        # The same to this process as a folder of another user.
        own = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: own + 1)
        assert all("belongs to the user" in why for why in await refused_by(place / "socket"))


async def test_a_listener_of_another_user_gets_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = folder / "place"
    place.mkdir(mode=0o700)
    can_change_user = os.geteuid() == 0
    with listening(place / "socket", 65534 if can_change_user else None) as process:
        if not can_change_user:
            monkeypatch.setattr(peer, "peer_user", lambda _: 65534)
        assert all("a process of the user 65534" in why for why in await refused_by(place / "socket"))
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"received 0\n"] * 2


async def test_the_user_of_a_listener_is_known(folder: Path) -> None:
    with listening(folder / "socket"):
        connected = await peer.connect(str(folder / "socket"))
        assert peer.peer_user(connected) == os.geteuid()
        connected.close()


async def test_a_replaced_engine_is_started_again(folder: Path) -> None:
    """Another user makes the folder of an engine that has ended again, and listens there (a race for an open place)."""
    file = folder / "agents.db"
    engine = Engine(file, binary())
    async with Abide(engine, lambda: engine.address) as client:
        await client.call.create_session(agent="a", id="s1")
        assert engine.address is not None
        assert engine.address.socket is not None
        place = Path(engine.address.socket)
        os.kill(engine_pids(file)[0], signal.SIGKILL)
        shutil.rmtree(place.parent, ignore_errors=True)
        place.parent.mkdir()
        place.parent.chmod(0o777)
        with listening(place) as process:
            await client.call.create_session(agent="a", id="s2")
            assert "tables" in await client.get("/v1/schema")
            assert engine.address.socket != str(place)
            process.kill()
            assert process.stdout is not None
            assert set(process.stdout.read().splitlines()) <= {b"received 0"}
        shutil.rmtree(place.parent)
    await ended(file)


async def test_a_served_file_is_refused(server: Server) -> None:
    with pytest.raises(AbideError) as refused:
        await Abide.open(server.file, binary=binary())
    assert refused.value.code == "file_locked"
    assert refused.value.hint


async def test_a_database_in_memory_is_refused(folder: Path) -> None:
    for name in (":memory:", "file::memory:?cache=shared"):
        with pytest.raises(BadRequestError, match="no databases in memory") as refused:
            await Abide.open(folder / name)
        assert refused.value.hint
    assert not list(folder.iterdir())


async def test_no_binary(folder: Path) -> None:
    with pytest.raises(EngineNotFoundError):
        await Engine(folder / "x.db", str(folder / "none"))()


@pytest.mark.parametrize(
    ("protocol", "hint"),
    [
        ("abide.v9", "this package is older: update it"),
        ("abide.v0", "the engine is older: update the program abide"),
        ("other.v1", "install a package and an engine of the same version"),
        (None, "install a package and an engine of the same version"),
    ],
)
def test_another_protocol_says_which_side_is_older(protocol: str | None, hint: str) -> None:
    line = json.dumps({"protocol": protocol, "version": "9.0.0", "socket": "/x"}).encode()
    with pytest.raises(IncompatibleVersionError) as refused:
        _read_address(line, "x.db")
    assert refused.value.hint == hint
