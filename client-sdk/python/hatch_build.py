"""Puts an `abide` binary into the wheel: `ABIDE_BINARY=path/to/abide python -m build --wheel`.

Without `ABIDE_BINARY` the wheel has no binary and fits every platform.
"""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BinaryHook(BuildHookInterface[Any]):
    """Adds the binary, and the tag of the platform that it is built for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by the build."""
        binary = os.environ.get("ABIDE_BINARY")
        if not binary:
            return
        name = "abide.exe" if binary.endswith(".exe") else "abide"
        build_data["force_include"][os.path.abspath(binary)] = f"abide/_bin/{name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{os.environ.get('ABIDE_PLATFORM_TAG') or platform_tag()}"


def platform_tag() -> str:
    """The tag of this platform. On Linux it names the C library that the binary was linked with."""
    tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    if sys.platform != "linux":
        return tag
    library, libc_version = platform.libc_ver()
    if library != "glibc":
        return tag
    major, minor = libc_version.split(".")[:2]
    return f"manylinux_{major}_{minor}_{platform.machine()}"
