"""Traces in a real collector: it must have decoded the spans of a run and of the run that it delegated.

`cargo xtask otlp-collector` runs it with an environment that has the collector Rotel. The collector prints what it has
received; nothing is sent further.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import tempfile
from pathlib import Path

import rotel
import traced_project


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def collector(grpc: int, http: int, folder: Path) -> subprocess.Popen[str]:
    program = Path(rotel.__file__).parent / "rotel-agent"
    addresses = ["--otlp-grpc-endpoint", f"127.0.0.1:{grpc}", "--otlp-http-endpoint", f"127.0.0.1:{http}"]
    files = ["--pid-file", str(folder / "pid"), "--log-file", str(folder / "log")]
    output = ["--exporter", "blackhole", "--debug-log", "traces", "--debug-log-verbosity", "detailed"]
    command = [str(program), "start", *addresses, *files, *output]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def field(span: str, name: str) -> str:
    found = re.search(rf"^\s*{re.escape(name)}\s*: ?(.*)$", span, re.MULTILINE)
    return found[1].strip() if found else ""


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        grpc, http = free_ports(2)
        traced_project.write(folder, http)
        process = collector(grpc, http, folder)
        try:
            assert process.stdout is not None
            # It prints this line when it listens.
            while "Starting Rotel" not in (line := process.stdout.readline()):
                assert line, "the collector has ended"
            run = [os.environ["ABIDE_BINARY"], "agent", "run", "lead", "Look.", "--id", "r1", "--db", "agents.db"]
            subprocess.run(run, cwd=folder, check=True, capture_output=True, timeout=60)
            sql = [os.environ["ABIDE_BINARY"], "--db", "agents.db", "sql", "SELECT status, count(*) FROM run_traces"]
            traces = subprocess.run(sql, cwd=folder, check=True, capture_output=True, text=True).stdout
            assert "complete" in traces and "2" in traces, traces
        finally:
            process.terminate()
        output, _ = process.communicate(timeout=30)
    spans = output.split("\nSpan #")[1:]
    names = {field(span, "ID"): field(span, "Name") for span in spans}
    parents = {(field(span, "Name"), names.get(field(span, "Parent ID"), "")) for span in spans}
    assert parents == traced_project.EXPECTED, output
    assert len(spans) == len(names) == traced_project.SPANS, output
    assert len({field(span, "Trace ID") for span in spans}) == 1, output
    assert "-> service.name: Str(abide)" in output, output
    assert "-> gen_ai.usage.input_tokens: Int(7)" in output, output
    assert "-> gen_ai.tool.call.arguments: Str(" in output, output
    print(f"figure  spans that a collector of OpenTelemetry has decoded: {len(spans)} of {traced_project.SPANS}")


if __name__ == "__main__":
    main()
