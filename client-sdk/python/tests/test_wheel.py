"""A new environment with only the wheel runs the quickstart of docs/python.md as written."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from server import binary

PROJECT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.packed

PAGE = PROJECT.parents[1] / "docs" / "python.md"


def quickstart() -> tuple[str, list[str]]:
    """The program, and the outputs of its runs."""
    section = PAGE.read_text().split("## Quickstart", 1)[1].split("\n## ", 1)[0]
    blocks = re.findall(r"```(\w+)[^\n]*\n(.*?)```", section, re.DOTALL)
    [program] = [text for kind, text in blocks if kind == "python"]
    return program, [text for kind, text in blocks if kind == "text"]


def test_the_quickstart_with_only_the_wheel(folder: Path) -> None:
    small = folder / "abide"
    shutil.copy(binary(), small)
    # Debug information would make the wheel a hundred megabytes.
    subprocess.run(["strip", str(small)], check=False)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(PROJECT)]
    built = subprocess.run(command, capture_output=True, env={**os.environ, "ABIDE_BINARY": str(small)})
    assert built.returncode == 0, built.stdout.decode()
    [wheel] = folder.glob("*.whl")
    # The tag is that of the binary, not that of the machine that builds the wheel.
    needs = subprocess.run(["objdump", "-T", str(small)], check=True, capture_output=True).stdout.decode()
    minor = max(int(found) for found in re.findall(r"GLIBC_2\.(\d+)", needs))
    assert wheel.name.endswith(f"-py3-none-manylinux_2_{minor}_{platform.machine()}.whl")

    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", str(wheel)], check=True)
    program, outputs = quickstart()
    work = folder / "work"
    work.mkdir()
    (work / "quickstart.py").write_text(program)
    environment = {name: value for name, value in os.environ.items() if name not in ("ABIDE_BINARY", "PYTHONPATH")}
    for expected in outputs:
        run = subprocess.run([str(python), "quickstart.py"], cwd=work, env={**environment, "PATH": ""}, capture_output=True)
        assert run.stderr == b""
        assert run.stdout.decode() == expected
