#!/usr/bin/env python3
"""Verifies the log of an Abide file: python3 verify_log.py FILE [--head HASH].

An auditor can read this program in a quarter of an hour. It needs only Python's standard library, and shares no code with
Abide. It recomputes the hash of every event, and a digest of the rows of every table, as `docs/format.md` describes them.
Compare the head and the digests with those of another copy, or with those that `abide verify --rows` prints. The file must
not be open in another program: copy it with `abide backup`.
"""

from __future__ import annotations

import argparse
import hashlib
import sqlite3
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

APPLICATION_ID = 0x41424944  # "ABID"
FORMAT = 5
LONG_CELL_BYTES = 1_024
SALT_BYTES = 16

# Tables that the log does not determine: the log itself, rows as they were before a commit, and state of this copy.
UNDETERMINED_TABLES = {"events", "change_log", "meta"}

Cell = None | int | float | str | bytes


class Invalid(Exception):
    """What is wrong with the file."""


def number(n: int) -> bytes:
    """Returns 8 bytes, big-endian, two's complement."""
    return n.to_bytes(8, "big", signed=True)


def text(value: str) -> bytes:
    """Returns a text: the number of its bytes, and UTF-8."""
    content = value.encode()
    return number(len(content)) + content


def optional(value: str | None) -> bytes:
    """Returns 0 for NULL, or 1 and a text."""
    return b"\0" if value is None else b"\1" + text(value)


def sha256(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def cell(value: Cell) -> bytes:
    """Returns the bytes of a cell in a digest of rows."""
    match value:
        case None:
            return b"\0"
        case int():
            return b"\1" + number(value)
        case float():
            return b"\2" + struct.pack(">d", value)
        case str():
            tag, content = 3, value.encode()
        case bytes():
            tag, content = 4, value
    if len(content) <= LONG_CELL_BYTES:
        return bytes([tag]) + number(len(content)) + content
    return bytes([tag + 2]) + number(len(content)) + sha256(content)


def event_hash(event: sqlite3.Row) -> bytes:
    """Returns the hash of an event, from its other columns."""
    commitment = sha256(
        b"abide.content.v2\n",
        event["salt"],
        text(event["caller"]),
        optional(event["authority"]),
        optional(event["session_id"]),
        optional(event["request_id"]),
        sha256(event["arguments"].encode()),
        sha256(event["outcome"].encode()),
        event["rows_hash"],
    )
    return sha256(
        b"abide.event.v4\n",
        event["prev_hash"],
        number(event["seq"]),
        number(event["at"]),
        text(event["reducer"]),
        commitment,
    )


def verify_chain(file: sqlite3.Connection) -> tuple[int, bytes]:
    """Verifies every event. Returns the seq and the hash of the last one."""
    row = file.execute("SELECT value FROM meta WHERE name = 'log_id'").fetchone()
    if row is None:
        raise Invalid("it has no log_id")
    seq, head = 0, sha256(b"abide.log.v1\n", row["value"].encode())
    for event in file.execute("SELECT * FROM events ORDER BY seq"):
        seq += 1
        if event["seq"] != seq:
            raise Invalid(f"event {seq}: it is missing; event {event['seq']} comes next")
        if event["prev_hash"] != head:
            raise Invalid(f"event {seq}: its prev_hash differs from the hash of the previous event")
        try:
            if len(event["salt"]) != SALT_BYTES:
                raise Invalid(f"event {seq}: its salt does not have {SALT_BYTES} bytes")
            head = event_hash(event)
        except (AttributeError, TypeError) as why:
            raise Invalid(f"event {seq}: the row cannot be read: {why}") from why
        if event["hash"] != head:
            raise Invalid(f"event {seq}: its hash does not match its fields")
    return seq, head


def table_digest(name: str, rows: Iterable[sqlite3.Row]) -> tuple[int, bytes]:
    """Returns the number of rows, and their digest. The rows are in the order of the primary key."""
    digest = hashlib.sha256(b"abide.table.v1\n" + text(name))
    count = 0
    for row in rows:
        digest.update(number(len(row)) + b"".join(cell(value) for value in row))
        count += 1
    return count, digest.digest()


def table_digests(file: sqlite3.Connection) -> dict[str, tuple[int, bytes]]:
    """Returns the digest of each table whose rows the log determines."""
    digests = {}
    names = [name for (name,) in file.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]
    for name in names:
        if name in UNDETERMINED_TABLES or name.startswith("sqlite_"):
            continue
        quoted = '"' + name.replace('"', '""') + '"'
        columns = file.execute(f"PRAGMA table_info({quoted})").fetchall()
        key = sorted((column for column in columns if column["pk"]), key=lambda column: column["pk"])
        order = ", ".join('"' + column["name"] + '"' for column in key)
        digests[name] = table_digest(name, file.execute(f"SELECT * FROM {quoted} ORDER BY {order}"))
    return digests


def open_file(path: Path) -> sqlite3.Connection:
    """Opens a file read-only. A file without a WAL is complete, and SQLite then makes no file next to it."""
    has_wal = path.with_name(path.name + "-wal").exists()
    options = "mode=ro" if has_wal else "mode=ro&immutable=1"
    file = sqlite3.connect(f"file:{quote(str(path.absolute()))}?{options}", uri=True)
    file.row_factory = sqlite3.Row
    (application_id,) = file.execute("PRAGMA application_id").fetchone()
    (version,) = file.execute("PRAGMA user_version").fetchone()
    if application_id != APPLICATION_ID:
        raise Invalid("it is not a file of Abide")
    if version != FORMAT:
        raise Invalid(f"it has format {version}; this program reads format {FORMAT}")
    return file


def main() -> int:
    parser = argparse.ArgumentParser(description="Verifies the log of an Abide file.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--head", help="the hash of the last event, as it was kept elsewhere")
    arguments = parser.parse_args()
    try:
        file = open_file(arguments.file)
        events, head = verify_chain(file)
        for name, (rows, digest) in table_digests(file).items():
            print(f"{digest.hex()}  {rows:>10}  {name}")
    except (Invalid, sqlite3.Error) as why:
        print(f"{arguments.file}: {why}", file=sys.stderr)
        return 1
    print(f"{events} events  ·  chain ok  ·  head {head.hex()}")
    if arguments.head and arguments.head.lower() != head.hex():
        print(f"the head is not {arguments.head}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
