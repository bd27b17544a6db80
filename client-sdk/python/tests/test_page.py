"""The programs of docs/python.md run as they are written, twice."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

from server import environment

from abide.sync import Abide

PAGE = Path(__file__).resolve().parents[3] / "docs" / "python.md"


def programs() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_programs_that_end(folder: Path) -> None:
    ends = [program for program in programs() if ".serve(" not in program and "refund-8813" not in program]
    assert len(ends) == 4
    for program in ends * 2:
        run = subprocess.run([sys.executable, "-c", program], cwd=folder, env=environment(), capture_output=True, timeout=60)
        assert (run.returncode, run.stderr) == (0, b""), program


def test_programs_that_serve(folder: Path) -> None:
    def find(text: str) -> str:
        [program] = [program for program in programs() if text in program]
        return program

    serving = [
        subprocess.Popen([sys.executable, "-c", find(text)], cwd=folder, env=environment(), stderr=subprocess.DEVNULL)
        for text in ("client.worker()", "client.supervisor()")
    ]
    try:
        for _ in range(2):
            run = subprocess.run(
                [sys.executable, "-c", find("refund-8813")], cwd=folder, env=environment(), capture_output=True, timeout=60
            )
            assert (run.stdout, run.stderr) == (b"succeeded {'paid': 10}\n", b"")
        with Abide.open(folder / "agents.db", binary=environment()["ABIDE_BINARY"]) as client:
            answer = client.session("s1").handoff("order 8812", "refunds", key="h")
            assert (answer.status, answer.text) == ("resolved", "approved: order 8812")
    finally:
        for process in serving:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def test_a_settlement_as_the_page_shows_it(folder: Path) -> None:
    """Its call lost its worker: the program settles it, and its step returns the settled result."""
    [program] = [program for program in programs() if "settle_tool_call" in program]
    with Abide.open(folder / "agents.db", binary=environment()["ABIDE_BINARY"]) as client:
        session = client.session("s1", agent="support")
        client.call.register_tool(name="refund", effect="at_most_once")
        call_id = session.call_id("refund-8812")
        arguments = {"order": 8812, "amount": 25}
        client.call.request_tool_call(call_id=call_id, session_id="s1", tool_name="refund", arguments=arguments)
        client.call.claim_tool_call(call_id=call_id, worker="w", lease_ms=1)
        run = subprocess.run([sys.executable, "-c", program], cwd=folder, env=environment(), capture_output=True, timeout=60)
        assert run.stderr == b""
        assert run.stdout.splitlines()[-1] == b"{'paid': 25}"
        assert client.sql("SELECT settled_by IS NOT NULL FROM tool_calls").scalar() == 1
