"""Puts an `abide` binary into the wheel: `ABIDE_BINARY=/path/to/abide python -m build --wheel`.

Without `ABIDE_BINARY` the wheel has no binary and fits every platform. With the option `as-script` of the hook, the binary is the
command of the wheel, in place of a part of its package.
"""

from __future__ import annotations

import os
import re
import struct
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BinaryHook(BuildHookInterface[Any]):
    """Adds the binary, and the tag of the platform that it is built for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by the build."""
        binary = os.environ.get("ABIDE_BINARY")
        if not binary:
            return
        if not os.path.isfile(binary):
            sys.exit(
                f"ABIDE_BINARY: there is no file {os.path.abspath(binary)}. "
                f"Name it by an absolute path: the build runs in {os.getcwd()}."
            )
        name = "abide.exe" if binary.endswith(".exe") else "abide"
        if self.config.get("as-script"):
            build_data["shared_scripts"][os.path.abspath(binary)] = name
        else:
            build_data["force_include"][os.path.abspath(binary)] = f"abide/_bin/{name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{os.environ.get('ABIDE_PLATFORM_TAG') or platform_tag(binary)}"


def platform_tag(binary: str) -> str:
    """The tag of the platforms that can run a binary. On Linux it names the oldest glibc that has all symbols of the binary."""
    tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    if sys.platform != "linux":
        return tag
    needs = glibc_needs(Path(binary).read_bytes())
    if needs is None:
        return tag
    (major, minor), machine = needs
    return f"manylinux_{major}_{minor}_{machine}"


MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}
"""Machines of ELF files."""

SHT_GNU_VERNEED = 0x6FFFFFFE


def glibc_needs(elf: bytes) -> tuple[tuple[int, int], str] | None:
    """The glibc version that an ELF file needs, and its machine; `None` if it is not such a file, or does not use glibc.

    The section `.gnu.version_r` lists the versions of the symbols that the file takes from each library. See the chapter on symbol
    versioning of the Linux Standard Base.
    """
    if elf[:6] != b"\x7fELF\x02\x01":  # 64 bits, little-endian
        return None
    machine = MACHINES.get(struct.unpack_from("<H", elf, 18)[0])
    (sections_at,) = struct.unpack_from("<Q", elf, 40)
    size, count = struct.unpack_from("<HH", elf, 58)
    # Of each section: type, offset, link, info.
    fields = [struct.unpack_from("<4xI16xQ8xII", elf, sections_at + nth * size) for nth in range(count)]
    versions: set[tuple[int, int]] = set()
    for kind, offset, link, libraries in fields:
        if kind != SHT_GNU_VERNEED:
            continue
        texts_at = fields[link][1]
        library_at = offset
        for _ in range(libraries):
            symbols, first, next_library = struct.unpack_from("<2xH4xII", elf, library_at)
            version_at = library_at + first
            for _ in range(symbols):
                name_at, next_version = struct.unpack_from("<8xII", elf, version_at)
                start = texts_at + name_at
                name = elf[start : elf.index(b"\0", start)].decode()
                found = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", name)
                if found:
                    versions.add((int(found[1]), int(found[2])))
                version_at += next_version
            library_at += next_library
    if machine is None or not versions:
        return None
    # The oldest version that a manylinux tag can name.
    return max(*versions, (2, 5)), machine
