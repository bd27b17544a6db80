"""A real `abide serve` in a temporary folder, which tests can kill and start again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from types import TracebackType

from abide import Abide
from abide.errors import EngineNotFoundError


def binary() -> str:
    """The binary under test: `ABIDE_BINARY`, the debug build of this repository, or PATH."""
    repository = Path(__file__).resolve().parents[3]
    built = repository / "target" / "debug" / "abide"
    for path in (os.environ.get("ABIDE_BINARY"), str(built) if built.is_file() else None, shutil.which("abide")):
        if path:
            return path
    raise EngineNotFoundError("there is no abide binary", hint="run  cargo build -p abide  or set ABIDE_BINARY")


def create_token(folder: Path, name: str, *options: str) -> str:
    """A new token of the file that a `Server` of this folder serves. The first one has to be that of an admin."""
    command = [binary(), "token", "create", name, *options, "--db", str(folder / "test.db")]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def environment() -> dict[str, str]:
    """The environment of a child process that imports this package."""
    sources = Path(__file__).resolve().parents[1] / "src"
    return {**os.environ, "PYTHONPATH": str(sources), "ABIDE_BINARY": binary()}


class Server:
    """One server process after another, over one file and one port."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.file = folder / "test.db"
        self.port = 0
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options: object) -> Abide:
        return Abide.connect(self.url, **options)  # type: ignore[arg-type]

    def start(self) -> None:
        """Starts it, and waits until it listens."""
        command = [binary(), "serve", "--db", str(self.file), "--listen", f"127.0.0.1:{self.port}", "--json"]
        self._process = subprocess.Popen([*command, *self._options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self._process.stdout is not None
        line = json.loads(self._process.stdout.readline())
        self.port = int(line["listening"].rsplit(":", 1)[1])

    def kill(self) -> None:
        """SIGKILL; waits until the process has ended."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None

    def terminate(self) -> None:
        """SIGTERM: it stops when it has answered."""
        assert self._process is not None
        self._process.terminate()

    def stop(self) -> None:
        """SIGTERM; waits until the process has ended, which must succeed."""
        assert self._process is not None
        self._process.terminate()
        assert self._process.wait() == 0
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
