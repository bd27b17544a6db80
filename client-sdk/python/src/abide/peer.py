"""Connects to the Unix socket of an engine, and refuses a socket that another user controls.

The path of a socket is no proof: when an engine has ended, another user can create its folder again and listen there.
So each connection is checked, before anything is sent.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
import sys

from .errors import UntrustedEngineError

_LINUX_PEER = struct.Struct("=iII")
_BSD_PEER = struct.Struct("=II")
_BSD_PEER_LEVEL = 0
_BSD_PEER_NAME = 1
_BSD_PEER_BYTES = 76


async def connect(path: str) -> socket.socket:
    """Returns a connection to a Unix socket of this user, non-blocking.

    Raises:
        UntrustedEngineError: another user listens at the path, or can replace the socket.
        OSError: no process listens at the path.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, path)
        check(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_blocking(path: str, timeout: float) -> socket.socket:
    """Like `connect`, but blocks. `timeout` is in seconds, for each operation on the socket."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        connection.connect(path)
        check(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def check(connected: socket.socket, path: str) -> None:
    """Checks the folder of a socket, and the user of the process that listens.

    Raises:
        UntrustedEngineError: the folder or the process belongs to another user, or others can write in the folder.
    """
    folder = os.path.dirname(path)
    own = os.geteuid()
    try:
        found = os.lstat(folder)
    except OSError as exc:
        raise _untrusted(path, f"its folder cannot be read: {exc.strerror}") from exc
    if not stat.S_ISDIR(found.st_mode):
        raise _untrusted(path, f"{folder} is not a directory")
    if found.st_uid != own:
        raise _untrusted(path, f"its folder belongs to the user {found.st_uid}, this process is of {own}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _untrusted(path, "other users can write in its folder")
    peer = peer_user(connected)
    if peer is not None and peer != own:
        raise _untrusted(path, f"a process of the user {peer} listens there, this process is of {own}")


def peer_user(connected: socket.socket) -> int | None:
    """Returns the user id of the process that listens; `None` where the system does not report it."""
    if sys.platform == "linux":
        option = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _LINUX_PEER.size)
        return int(_LINUX_PEER.unpack(option)[1])
    if sys.platform == "darwin" or sys.platform.startswith("freebsd"):
        # LOCAL_PEERCRED: `struct xucred` begins with its version and the user id.
        option = connected.getsockopt(_BSD_PEER_LEVEL, _BSD_PEER_NAME, _BSD_PEER_BYTES)
        return int(_BSD_PEER.unpack_from(option)[1])
    return None


def _untrusted(path: str, reason: str) -> UntrustedEngineError:
    return UntrustedEngineError(
        f"the engine at {path} is not trusted: {reason}",
        hint="set TMPDIR to a folder that only this user can write",
    )
