"""The turn that every contender writes, and what the Python contenders share: options, SQLite that syncs, and the record.

A turn has the sizes of `bench/src/payload.rs`: a user message of 300 bytes, a tool call with arguments of 200 bytes, its
result of 500 bytes, and an assistant message of 400 bytes. The call has a unique id.
"""

import argparse
import json
import os
import sqlite3
import subprocess
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
    parser.add_argument("--bench", help="abide-bench, which measures the time of a sync during the run")
    return parser.parse_args()


class Probe:
    """Measures the time of a sync during a run, in another process."""

    def __init__(self, bench, dir):
        self.bench, self.dir, self.during_us = bench, dir, None

    def __enter__(self):
        if self.bench:
            command = [self.bench, "sync", "--during", "--dir", self.dir]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_):
        if self.bench:
            output, _ = self.process.communicate()
            self.during_us = float(output)


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
        self.started = self.ended = time.perf_counter()

    def timed(self, since):
        """A turn has ended."""
        self.ended = time.perf_counter()
        self.turn_s.append(self.ended - since)

    def record(self, args, version, path, probe):
        """The record of a run that has just ended, without the size of the file."""
        seconds = self.ended - self.started
        turns, ordered = len(self.turn_s), sorted(self.turn_s)
        at = lambda share: ordered[min(turns - 1, int(share * turns))] * 1e6
        return {
            "measurement": "turns",
            "contender": args.contender,
            "sessions": args.sessions,
            "turns": turns,
            "turns_per_second": turns / seconds,
            "request_p50_us": at(0.5),
            "request_p99_us": at(0.99),
            "probe_during_us": probe.during_us,
            "durability": durability(path),
            "version": version,
        }


def stored_per_payload_byte(path, turns):
    """The size of a SQLite file, after a checkpoint, for each byte of payload."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return os.path.getsize(path) / (turns * TURN_BYTES)
