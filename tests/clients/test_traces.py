"""Traces in OTLP's JSON encoding, decoded by the classes that OpenTelemetry generates from its protocol."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import traced_project
from opentelemetry.proto_json.trace.v1.trace import Span, TracesData

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "client-sdk/python/tests"))

from server import binary  # noqa: E402

@pytest.fixture
def collector() -> Iterator[tuple[HTTPServer, list[bytes]]]:
    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.headers["content-type"] == "application/json"
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server, bodies
        server.shutdown()


def test_spans_of_a_run_and_of_its_delegated_run(
    collector: tuple[HTTPServer, list[bytes]], tmp_path: Path
) -> None:
    server, bodies = collector
    traced_project.write(tmp_path, server.server_port)
    run = [binary(), "agent", "run", "lead", "Look.", "--id", "r1", "--db", "agents.db"]
    subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, timeout=60)

    spans: list[Span] = []
    for body in bodies:
        sent = json.loads(body)
        data = TracesData.from_dict(sent)
        assert data.to_dict() == sent, "nothing is unknown to the protocol, and nothing is lost"
        for resource in data.resource_spans:
            spans += [span for scope in resource.scope_spans for span in scope.spans]
    by_id = {span.span_id: span for span in spans}
    parents = {(span.name, by_id[span.parent_span_id].name if span.parent_span_id else "") for span in spans}
    assert parents == traced_project.EXPECTED
    assert {len(span.trace_id) for span in spans} == {16} and len({span.trace_id for span in spans}) == 1
    assert {len(span.span_id) for span in spans} == {8} and len(by_id) == len(spans) == traced_project.SPANS
    assert all(0 < span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)
    chat = next(span for span in spans if span.name == "chat one" and span.attributes)
    attributes = {attribute.key: attribute.value for attribute in chat.attributes}
    assert attributes["gen_ai.operation.name"].string_value == "chat"
    assert attributes["gen_ai.usage.input_tokens"].int_value == 7
