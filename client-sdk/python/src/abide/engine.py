"""The engine as a child process: `abide open FILE` serves one file for all processes that open it.

The engine ends when no connection has been open for two seconds, so a process that is killed leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

from websockets.asyncio.client import ClientConnection

from .backoff import Backoff
from .dial import SUBPROTOCOL, Address, dial
from .errors import (
    AbideError,
    ConnectionFailedError,
    EngineNotFoundError,
    IncompatibleVersionError,
    error_from_problem,
    get_member,
    reading,
)

_ATTEMPTS = 5


def find_binary() -> str:
    """Returns the path of the `abide` binary: of `ABIDE_BINARY`, of this package, or on PATH.

    Raises:
        EngineNotFoundError: there is no binary.
    """
    configured = os.environ.get("ABIDE_BINARY")
    if configured:
        return configured
    packed = Path(__file__).parent / "_bin" / ("abide.exe" if os.name == "nt" else "abide")
    if packed.is_file():
        return str(packed)
    found = shutil.which("abide")
    if found is None:
        raise EngineNotFoundError(
            "there is no abide binary",
            hint="install a wheel for this platform, put abide on PATH, or set ABIDE_BINARY",
        )
    return found


class Engine:
    """Finds or starts the engine of a file, and connects to it. It starts again when the engine has ended."""

    def __init__(self, path: str | os.PathLike[str], binary: str | None = None) -> None:
        self._path = os.path.abspath(path)
        self._binary = binary
        self._address: Address | None = None

    @property
    def address(self) -> Address | None:
        """Where the engine listens; `None` before the first connection."""
        return self._address

    async def __call__(self) -> ClientConnection:
        """Connects.

        Raises:
            AbideError: the engine cannot start, or the file is in use by a server.
        """
        backoff = Backoff()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                if self._address is None:
                    self._address = await asyncio.to_thread(self._open)
                return await dial(self._address)
            except ConnectionFailedError:
                # The engine was about to end, it was killed, or another user listens at its address.
                self._address = None
                if attempt == _ATTEMPTS:
                    raise
            await asyncio.sleep(backoff.next())
        raise AssertionError("the loop returns or raises")

    def _open(self) -> Address:
        """Runs `abide open`, and reads the one line that it prints."""
        command = [self._binary or find_binary(), "open", self._path, "--json"]
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        except OSError as exc:
            raise EngineNotFoundError(
                f"{command[0]} cannot be run: {exc}", hint="install a wheel for this platform, or set ABIDE_BINARY"
            ) from exc
        assert process.stdout is not None
        with process.stdout as stdout:
            line = stdout.readline()
        # Collects the exit status of an engine that ends before this process.
        threading.Thread(target=process.wait, name="abide engine", daemon=True).start()
        return _read_address(line, self._path)


def _update_hint(protocol: object) -> str:
    """Returns what to update if the engine speaks another version of the protocol."""
    family, _, own = SUBPROTOCOL.rpartition("v")
    theirs = str(protocol).removeprefix(f"{family}v")
    if not str(protocol).startswith(f"{family}v") or not theirs.isdecimal() or len(theirs) > 9:
        return "install a package and an engine of the same version"
    if int(theirs) > int(own):
        return "this package is older: update it"
    return "the engine is older: update the program abide"


def _read_address(line: bytes, path: str) -> Address:
    failed = AbideError(f"the engine of {path} did not start", code="engine_failed", hint=f"run `abide open {path}` to see why")
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise failed from exc
    if not isinstance(answer, dict):
        raise failed
    if isinstance(answer.get("error"), dict):
        raise error_from_problem(answer["error"])
    if answer.get("protocol") != SUBPROTOCOL:
        raise IncompatibleVersionError(
            f"the engine {answer.get('version')} speaks {answer.get('protocol')}, this package {SUBPROTOCOL}",
            hint=_update_hint(answer.get("protocol")),
        )
    with reading("the answer of abide open"):
        if "socket" in answer:
            return Address("http://localhost", socket=get_member(answer, "socket", str), token=answer.get("token"))
        return Address(get_member(answer, "url", str), token=answer.get("token"))
