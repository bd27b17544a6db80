"""Runs the Technology Compatibility Kit of A2A against a server, on its three bindings.

`a2a_tck.py FOLDER` with the folder of the kit, which no registry has. The kit wants an agent that acts by the id of a
message, so this program drives its runs. It runs twice: as it is published, and with an id of its own for each message
(`a2a_tck_ids.py`). The failures that are expected are in `a2a_tck_expected.txt`, and more of the published one in
`a2a_tck_unmodified.txt`, with the reasons; another failure fails the run, and so does a test that is expected to fail and
passes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "client-sdk/python/tests"))

from server import Server  # noqa: E402

EXPECTED = Path(__file__).with_name("a2a_tck_expected.txt")
UNMODIFIED = Path(__file__).with_name("a2a_tck_unmodified.txt")
FILE = {"name": "output.txt", "media_type": "text/plain", "base64": "dGNr"}
FILE_URL = {"name": "output.txt", "media_type": "text/plain", "url": "https://example.com/output.txt"}

# The action of the agent for a message, by the beginning of its id: the pieces of its text, and the rest of its output.
OUTPUTS: list[tuple[str, list[str], dict[str, Any]]] = [
    ("tck-stream-artifact-chunked", ["chunk-1 ", "chunk-2"], {}),
    ("tck-stream-artifact-text", ["Streamed text content"], {}),
    ("tck-stream-artifact-file", [], {"files": [FILE]}),
    ("tck-stream-ordering-001", ["Ordered output"], {}),
    ("tck-stream-001", ["Stream hello from TCK"], {}),
    ("tck-stream-003", ["Stream task lifecycle"], {}),
    ("tck-artifact-file-url", [], {"files": [FILE_URL]}),
    ("tck-artifact-file", [], {"files": [FILE]}),
    ("tck-artifact-data", [], {"structured": {"key": "value", "count": 42}}),
    ("tck-artifact-text", ["Generated text content"], {}),
    ("tck-message-response", ["Direct message response"], {}),
    ("", ["Hello from TCK"], {}),
]


class Driver:
    """Drives the runs of the agent `tck`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.call("register_agent", name="tck", definition={"a2a_exposed": True}, description="The agent of the kit")
        self.call("register_tool", name="ask", approval={"prompt": "Go on?"})

    def post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(f"{self.url}{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def call(self, reducer: str, **arguments: Any) -> Any:
        return self.post(f"/v1/call/{reducer}", arguments)["result"]

    def drive(self) -> None:
        """Drives every run that waits for a driver, until the server ends."""
        sql = "SELECT id FROM runs WHERE status = 'running' AND driver IS NULL"
        try:
            with urllib.request.urlopen(f"{self.url}/v1/subscribe?sql={urllib.parse.quote(sql)}") as events:
                for line in events:
                    if line.startswith(b"data:"):
                        self.drive_all()
        except OSError:
            pass

    def drive_all(self) -> None:
        while True:
            try:
                run = self.call("claim_next_run", driver="tck", lease_ms=30_000)
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return
                raise
            self.act(run)

    def act(self, run: dict[str, Any]) -> None:
        claim = {"id": run["id"], "fencing_token": run["fencing_token"]}
        message_id = self.message_id(run["id"])
        if message_id.startswith("tck-input-required"):
            call_id = f"ask-{run['id']}-{run['turn']}"
            self.call("request_tool_call", call_id=call_id, session_id=run["session_id"], tool_name="ask", arguments={})
            asked = {"tool_call_id": call_id, "tool_name": "ask", "args": {}, "status": "awaiting_approval"}
            self.call("wait_run", **claim, interrupt={"reason": "approval", "action_requests": [asked]})
            return
        pieces, more = next((pieces, more) for prefix, pieces, more in OUTPUTS if message_id.startswith(prefix))
        for piece in pieces:
            self.call("record_run", **claim, events=[{"kind": "token", "data": {"content": piece}}])
        self.call("finish_run", **claim, end="done", output={"content": "".join(pieces), **more})

    def message_id(self, run: str) -> str:
        """The id of the newest message of a task."""
        sql = (
            "SELECT data ->> '$.messageId' FROM entries WHERE collection_id = 'a2a/tck' "
            "AND key > :from AND key < :to ORDER BY key DESC LIMIT 1"
        )
        rows = self.post("/v1/sql", {"sql": sql, "params": {"from": f"h/{run}/", "to": f"h/{run}0"}})["rows"]
        return str(rows[0][0])


def outcomes(report: Path) -> dict[str, str]:
    """The outcome of each test by its name."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').rsplit('.', 1)[-1]}.{case.get('name')}"
        kinds = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        found[name] = kinds[0] if kinds else "passed"
        skipped = case.find("skipped")
        if skipped is not None and skipped.get("type") == "pytest.xfail":
            found[name] = "failure"
    return found


def expected_failures(*files: Path) -> set[str]:
    lines = [line for file in files for line in file.read_text().splitlines()]
    return {line.strip() for line in lines if line.strip() and not line.startswith("#")}


def run(kit: Path, name: str, plugins: list[str], expected: set[str]) -> bool:
    """Runs the kit against a new server; returns whether exactly the expected tests fail."""
    # The kit receives push notifications on this machine.
    options = ["--webhook-allow-private", "localhost"]
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder), *options) as server:
        threading.Thread(target=Driver(server.url).drive, daemon=True).start()
        report = Path(folder, "report.xml")
        tests = ["-q", "-p", "no:cacheprovider", "tests/compatibility", "--sut-host", f"{server.url}/a2a/tck"]
        command = [sys.executable, "-m", "pytest", *tests, f"--junitxml={report}"]
        command += [word for plugin in plugins for word in ("-p", plugin)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
        done = subprocess.run(command, cwd=kit, env=environment, check=False, capture_output=True, text=True)
        if not report.is_file():
            sys.exit(done.stdout + done.stderr)
        results = outcomes(report)
    failed = {name for name, outcome in results.items() if outcome in ("failure", "error")}
    counts = {kind: list(results.values()).count(kind) for kind in ("passed", "failure", "error", "skipped")}
    print(f"{name}: {counts}")
    figures = f"{counts['passed']} passed, {counts['failure'] + counts['error']} failed for a reason that is listed"
    print(f"figure  tests of A2A's compatibility kit, {name}: {figures}, {counts['skipped']} skipped by the kit")
    for test in sorted(failed - expected):
        print(f"fails: {test}")
    for test in sorted(expected - failed):
        print(f"is expected to fail, but does not: {test}")
    if failed != expected:
        print(done.stdout[-60_000:])
    return failed == expected


def main(kit: Path) -> int:
    runs = [
        run(kit, "as it is published", [], expected_failures(EXPECTED, UNMODIFIED)),
        run(kit, "with an id of its own for each message", ["a2a_tck_ids"], expected_failures(EXPECTED)),
    ]
    return int(not all(runs))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
