"""The API without asyncio."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from server import Server, environment

import abide
from abide import AbideError, ClosedError, ConflictError, ToolFailedError, sync
from abide.sync import Abide


def test_the_same_api_without_asyncio(server: Server) -> None:
    with Abide.connect(server.url) as client:
        assert client.call.create_session(agent="support", id="s1")["id"] == "s1"
        with pytest.raises(ConflictError):
            client.call.create_session(agent="support", id="s1")
        with client.subscribe("SELECT id, content FROM agent_state ORDER BY id") as sub:
            assert sub.next() is not None
            session = client.session("s1")
            session.message("user", "hello")
            update = next(sub)
            assert [row.content for row in update.inserts] == ["hello"]
            assert [row.content for row in sub.rows] == ["hello"]
            with pytest.raises(TimeoutError):
                sub.next(timeout=0.01)
        assert session.tool("double", 4, key="k", run=lambda n: n * 2, effect="read_only") == 8
        assert client.batch([("create_session", {"agent": "a", "id": "s2"})]).value[0]["id"] == "s2"
        assert client.sql("SELECT count(*) FROM sessions").scalar() == 2
    with pytest.raises(ClosedError):
        client.sql("SELECT 1")
    client.close()


def test_threads_share_a_client(server: Server) -> None:
    with Abide.connect(server.url) as client:
        client.call.create_session(agent="support", id="s1")

        def write() -> None:
            for _ in range(20):
                client.call.append_message(session_id="s1", role="user", content="x")

        threads = [threading.Thread(target=write) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.sql("SELECT count(*) FROM agent_state").scalar() == 160


def test_the_generated_module_is_up_to_date() -> None:
    generator = Path(__file__).resolve().parents[1] / "generate_sync.py"
    checked = subprocess.run([sys.executable, str(generator), "--check"], stderr=subprocess.PIPE, text=True)
    assert (checked.stderr, checked.returncode) == ("", 0)


def test_nothing_of_the_asynchronous_api_is_missing() -> None:
    pairs = [
        (abide.Abide, sync.Abide),
        (abide.Session, sync.Session),
        (abide.Subscription, sync.Subscription),
        (abide.Worker, sync.Worker),
        (abide.Supervisor, sync.Supervisor),
    ]
    # The synchronous objects are made by methods that wait, so nothing is started later.
    asynchronous = {"start"}
    for one, other in pairs:
        names = {name for name in vars(one) if not name.startswith("_")} - asynchronous
        assert names - set(vars(other)) - ({"open", "find"} if one is abide.Session else set()) == set()


def test_workers_and_supervisors(server: Server) -> None:
    with Abide.connect(server.url) as client:
        session = client.session("s1")
        client.call.register_tool(name="double", effect="idempotent")
        worker, supervisor = client.worker("w1"), client.supervisor()
        serving = [
            threading.Thread(target=worker.serve, args=({"double": lambda n: n * 2},)),
            threading.Thread(target=supervisor.serve, args=("complaints", lambda handoff: f"about {handoff.reason}")),
        ]
        for thread in serving:
            thread.start()
        with client.subscribe("SELECT result FROM tool_calls WHERE call_id = 'c1' AND status = 'succeeded'") as done:
            client.call.request_tool_call(call_id="c1", session_id=session.id, tool_name="double", arguments=4)
            while not done.rows:
                done.next()
            assert done.rows[0].result == "8"
        assert session.handoff("the weather", "complaints", key="h").text == "about the weather"
        worker.stop()
        supervisor.stop()
        for thread in serving:
            thread.join()
        assert client.explain("SELECT id FROM sessions")
        assert client.reconnects == 0


def test_close_ends_a_worker_while_its_tool_runs(server: Server) -> None:
    client = Abide.connect(server.url)
    session, worker = client.session("s1"), client.worker()
    client.call.register_tool(name="slow", effect="at_most_once")
    client.call.request_tool_call(call_id="c1", session_id=session.id, tool_name="slow", arguments={})
    begun, goes_on = threading.Event(), threading.Event()
    ended: list[BaseException] = []

    def slow(_: object) -> None:
        begun.set()
        goes_on.wait(60)

    def serve() -> None:
        try:
            worker.serve({"slow": slow})
        except AbideError as why:
            ended.append(why)

    thread = threading.Thread(target=serve)
    thread.start()
    assert begun.wait(60)
    client.close()
    thread.join(20)
    assert [why.code for why in ended] == ["closed"]
    goes_on.set()
    worker.stop()  # It has nothing to stop.


INTERRUPTED = """
import sys
from abide.sync import Abide

def pay(args):
    print("paying", flush=True)
    sys.stdin.readline()
    if args["fails"]:
        raise ValueError("no money")
    return "paid"

with Abide.connect(sys.argv[1]) as client:
    session = client.session("s1")
    try:
        session.tool("pay", {"fails": sys.argv[2] == "fails"}, key=sys.argv[2], run=pay, effect="at_most_once")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize("how", ["pays", "fails"])
def test_ctrl_c_in_a_step_keeps_what_the_tool_did(server: Server, how: str) -> None:
    """The tool runs in a thread, to its end. Its outcome was thrown away."""
    command = [sys.executable, "-c", INTERRUPTED, server.url, how]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())
    assert process.stdout is not None
    assert process.stdout.readline() == b"paying\n"
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(b"go on\n", timeout=60)
    assert (output, process.returncode) == (b"interrupted\n", 0)
    with Abide.connect(server.url) as client:
        step = {"key": how, "run": lambda _: "twice"}
        if how == "pays":
            assert client.session("s1").tool("pay", {"fails": False}, **step) == "paid"
        else:
            with pytest.raises(ToolFailedError, match="no money"):
                client.session("s1").tool("pay", {"fails": True}, **step)


def test_close_does_not_wait_for_a_tool_function(server: Server) -> None:
    client = Abide.connect(server.url)
    session = client.session("s1")
    begun, goes_on, ended = threading.Event(), threading.Event(), threading.Event()
    outcomes: list[BaseException] = []

    def tool(_: object) -> None:
        begun.set()
        goes_on.wait(60)
        ended.set()

    def step() -> None:
        try:
            session.tool("slow", key="k", run=tool, effect="at_most_once")
        except Exception as why:
            outcomes.append(why)

    thread = threading.Thread(target=step)
    thread.start()
    assert begun.wait(60)
    client.close()
    assert not ended.is_set()
    thread.join()
    assert [type(why) for why in outcomes] == [ClosedError]
    with pytest.raises(ClosedError):
        client.sql("SELECT 1")
    goes_on.set()
    assert ended.wait(60)
