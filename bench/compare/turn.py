"""The turn that every contender writes, and what the Python contenders share: options, SQLite that syncs, and the record.

A turn has the sizes of `bench/src/payload.rs`: a user message of 300 bytes, a tool call with arguments of 200 bytes, its
result of 500 bytes, and an assistant message of 400 bytes. The call has a unique id.
"""

import argparse
import json
import os
import sqlite3
import time
from itertools import cycle, islice

TURN_BYTES = 300 + 200 + 500 + 400


def text(size):
    return "".join(islice(cycle("Where is my parcel? "), size))


def json_object(name, size):
    """Canonical JSON of that size."""
    return json.dumps({name: text(size - len(name) - 7)}, separators=(",", ":"))


USER = text(300)
ARGUMENTS = json_object("order", 200)
RESULT = json_object("found", 500)
ASSISTANT = text(400)
assert len(USER + ARGUMENTS + RESULT + ASSISTANT) == TURN_BYTES


def items(call_id):
    """The turn as four items, in the form that the Responses API has."""
    return [
        {"role": "user", "content": USER},
        {"type": "function_call", "call_id": call_id, "name": "lookup", "arguments": ARGUMENTS},
        {"type": "function_call_output", "call_id": call_id, "output": RESULT},
        {"role": "assistant", "content": ASSISTANT},
    ]


def options(description, contenders):
    """The options of a script that runs one contender once."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--contender", choices=contenders, default=contenders[0])
    parser.add_argument("--sessions", type=int, default=64, help="sessions that take turns concurrently")
    parser.add_argument("--turns", type=int, default=10, help="turns of each session")
    parser.add_argument("--dir", default=".", help="the folder for the file; on a disk, not in memory")
    return parser.parse_args()


_connect = sqlite3.connect


def _connect_durably(*arguments, **named):
    connection = _connect(*arguments, **named)
    connection.execute("PRAGMA synchronous = FULL")
    (level,) = connection.execute("PRAGMA synchronous").fetchone()
    assert level == 2, f"synchronous is {level}"
    return connection


def sync_every_commit():
    """Lets SQLite sync at every commit, on all connections of this process."""
    sqlite3.connect = _connect_durably


def durability(path):
    """The settings of a SQLite file that make a commit durable."""
    connection = sqlite3.connect(path)
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    connection.close()
    return f"SQLite: journal_mode={mode.upper()}, synchronous=FULL"


class Clock:
    """The times of turns."""

    def __init__(self):
        self.turn_s = []
        self.started = time.perf_counter()

    def timed(self, since):
        self.turn_s.append(time.perf_counter() - since)

    def record(self, contender, sessions, version, durable_by, stored_bytes):
        seconds = time.perf_counter() - self.started
        turns, ordered = len(self.turn_s), sorted(self.turn_s)
        at = lambda share: ordered[min(turns - 1, int(share * turns))] * 1e6
        return {
            "measurement": "turns",
            "contender": contender,
            "sessions": sessions,
            "turns": turns,
            "turns_per_second": turns / seconds,
            "request_p50_us": at(0.5),
            "request_p99_us": at(0.99),
            "stored_per_payload_byte": stored_bytes / (turns * TURN_BYTES),
            "durability": durable_by,
            "version": version,
        }


def file_bytes(path):
    """The size of a SQLite file, after a checkpoint."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return os.path.getsize(path)
