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

CONFIGURATION = """
models:
  providers:
    - { id: leads, kind: script, script: lead.yaml, models: [one] }
    - { id: helps, kind: script, script: helper.yaml, models: [two] }
programs:
  - name: look
    description: Looks.
    command: [echo, found]
    effect: read_only
traces:
  log_data: true
  sinks: [{ kind: otlp, url: "http://127.0.0.1:PORT/v1/traces" }]
"""

FILES = {
    "agents/lead.yaml": "subagents: [helper]\nconfig: { provider: leads }\n",
    "agents/helper.yaml": "mode: subagent\nas_tool: { name: help }\ntools: [look]\nconfig: { provider: helps }\n",
    "lead.yaml": "answers: [{ calls: [{ name: help, arguments: { input: Look. } }],"
    " usage: { input_tokens: 7, output_tokens: 3 } }, { text: Found. }]\n",
    "helper.yaml": "answers: [{ calls: [{ name: look }] }, { text: There it is. }]\n",
}

EXPECTED = {
    ("invoke_agent lead", ""),
    ("chat one", "invoke_agent lead"),
    ("execute_tool help", "invoke_agent lead"),
    ("invoke_agent helper", "execute_tool help"),
    ("chat two", "invoke_agent helper"),
    ("execute_tool look", "invoke_agent helper"),
}

SPANS = 8


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
        agents = folder / ".abide"
        (agents / "agents").mkdir(parents=True)
        (agents / "abide.yaml").write_text(CONFIGURATION.replace("PORT", str(http)))
        for path, text in FILES.items():
            (agents / path).write_text(text)
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
    assert parents == EXPECTED, output
    assert len(spans) == len(names) == SPANS, output
    assert len({field(span, "Trace ID") for span in spans}) == 1, output
    assert "-> service.name: Str(abide)" in output, output
    assert "-> gen_ai.usage.input_tokens: Int(7)" in output, output
    assert "-> gen_ai.tool.call.arguments: Str(" in output, output
    print(f"figure  spans that a collector of OpenTelemetry has decoded: {len(spans)} of {SPANS}")


if __name__ == "__main__":
    main()
