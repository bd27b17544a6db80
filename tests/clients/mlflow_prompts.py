"""Prompts of a real MLflow server in the definitions of agents.

It starts `mlflow server`, registers prompts with MLflow's own client, and compares what `abide agent` makes of
`{mlflow: NAME@VERSION}` and `{mlflow: NAME@ALIAS}`. Run it with `cargo xtask mlflow`.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from pathlib import Path

import mlflow

ABIDE = os.environ["ABIDE_BINARY"]
PATIENCE = 120

# What the server writes when it accepts connections.
READY = "Application startup complete"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def until_ready(server: subprocess.Popen[str]) -> None:
    """Reads the log of the server until it listens. The rest is read in the background, so that the server never blocks."""
    assert server.stderr is not None
    log, tail = server.stderr, deque(maxlen=20)
    told: queue.Queue[bool] = queue.Queue()

    def read() -> None:
        for line in log:
            tail.append(line)
            if READY in line:
                told.put(True)
        told.put(False)

    threading.Thread(target=read, daemon=True).start()
    try:
        is_ready = told.get(timeout=PATIENCE)
    except queue.Empty:
        is_ready = False
    if not is_ready:
        sys.exit("the server does not listen:\n" + "".join(tail))


def register(url: str) -> None:
    mlflow.set_tracking_uri(url)
    client = mlflow.genai
    client.register_prompt(name="clerk", template="You work alone.")
    client.register_prompt(name="clerk", template="You work for {{ firm }}. Answer in {{language}}.")
    client.set_prompt_alias("clerk", alias="live", version=2)
    client.register_prompt(name="chat", template=[{"role": "system", "content": "Be brief."}])


DEFINITIONS = {
    "version": "{ mlflow: clerk@1 }",
    "alias": "{ mlflow: clerk@live, variables: { firm: Acme, language: French } }",
    "unfilled": "{ mlflow: clerk@live, variables: { firm: Acme } }",
    "missing": "{ mlflow: clerk@9 }",
    "nothing": "{ mlflow: absent@1 }",
    "chat": "{ mlflow: chat@1 }",
}

INSTRUCTIONS = {
    "version": "You work alone.",
    "alias": "You work for Acme. Answer in French.",
}

PROBLEMS = {
    "unfilled": "the prompt needs a value for language",
    "missing": "prompt clerk@9 cannot be read: the MLflow server has no prompt clerk with version 9",
    "nothing": "prompt absent@1 cannot be read: the MLflow server has no prompt absent with version 1",
    "chat": "prompt chat@1 cannot be read: chat is a list of chat messages, not a string",
}


def objects(folder: Path, *words: str) -> list[dict[str, object]]:
    command = [ABIDE, "agent", *words, "--json", "--agents", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare(folder: Path, url: str) -> list[str]:
    (folder / "agents").mkdir()
    (folder / "abide.yaml").write_text(f"prompts: {{ mlflow: {{ url: '{url}' }} }}\n")
    for name, prompt in DEFINITIONS.items():
        (folder / f"agents/{name}.yaml").write_text(f"system_prompt: {prompt}\n")
    native = ("default", "readonly", "hitl_test")
    listed = objects(folder, "list")
    got = {it["name"]: it.get("instructions") for it in listed if it["name"] not in native}
    found = {}
    for problem in objects(folder, "check"):
        if problem.get("code") in ("missing_text", "prompt_variables"):
            found[Path(str(problem["path"])).stem] = problem["error"]
    wrong = []
    for what, expected, actual in (("instructions", INSTRUCTIONS, got), ("problems", PROBLEMS, found)):
        if expected != actual:
            wrong.append(f"{what}: expected {expected}, got {actual}")
    return wrong


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        url = f"http://127.0.0.1:{free_port()}"
        store = ["--backend-store-uri", f"sqlite:///{home}/mlflow.db"]
        artifacts = ["--artifacts-destination", f"{home}/artifacts"]
        command = [sys.executable, "-m", "mlflow", "server", "--port", url.rsplit(":", 1)[1], "--workers", "1"]
        server = subprocess.Popen([*command, *store, *artifacts], cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            until_ready(server)
            register(url)
            folder = Path(home) / "agents"
            folder.mkdir()
            wrong = compare(folder, url)
        finally:
            server.terminate()
            server.wait()
    for line in wrong:
        print(line)
    print(f"MLflow {mlflow.__version__}: {len(DEFINITIONS)} definitions, {len(wrong)} differences")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
