"""Deletes checkpoints of a LangGraph thread, and keeps the values that others need.

The entry of a deleted checkpoint stays as long as a value in it is needed. Then it has no more than these values, and the
member `x` in its JSON, so that no list has it.
"""

from __future__ import annotations

import builtins
from typing import Any, cast

from .collection import Collections, put
from .langgraph_entries import CheckpointEntry, Entries, references_in_json, references_in_value, write_checkpoint
from .langgraph_keys import entry_key
from .untrusted import Budget, decoding
from .writer import Entry

# The bytes of a value with an entry of its own are not needed.
_PAGE = """SELECT key, data, iif(key < 'd' OR data IS NULL, blob, NULL), seq FROM entries
  WHERE collection_id = :c AND key > :after ORDER BY key LIMIT 500"""

_DELETED = {"x": 1}


class Pruning:
    """All entries of a thread, and what they refer to."""

    def __init__(self, collections: Collections, collection: str, max_bytes: int) -> None:
        self._collections = collections
        self._collection = collection
        self._max_bytes = max_bytes
        self._checkpoints: dict[str, CheckpointEntry] = {}
        self._deleted: set[str] = set()
        self._seqs: dict[str, int] = {}
        self._references: dict[str, builtins.list[str]] = {}

    async def remove(self, removed: set[str]) -> None:
        """Deletes checkpoints, with their writes, and the values that no other checkpoint needs.

        Raises:
            ConflictError: another process has changed the thread meanwhile.
        """
        await self._read()
        live = {key for key in self._checkpoints if key not in removed and key not in self._deleted}
        needed = self._needed(live)
        entries = {entry_key(name) for name in needed}
        deletes = [key for key in self._seqs if key not in live and key not in entries]
        puts = [self._without_checkpoint(key, needed) for key in self._checkpoints if key not in live and key in entries]
        # Changed entries still exist after a conflict, so the puts come first.
        if puts:
            await self._collections.write(self._collection, puts)
        await self._collections.write(self._collection, [], deletes)

    async def _read(self) -> None:
        after = ""
        while True:
            page = (await self._collections.client.sql(_PAGE, {"c": self._collection, "after": after})).cells
            for row in page:
                after = str(row[0])
                with decoding(f"the entry {after!r} of {self._collection!r}"):
                    self._add(after, cast(Any, row))
            if len(page) < 500:
                return

    def _add(self, key: str, row: tuple[str, Any, Any, int]) -> None:
        entries = Entries(Budget(self._max_bytes))
        entries.add(*row)
        self._seqs[key] = entries.stored[key].seq
        data = entries.stored[key].data
        if key.startswith("c/"):
            checkpoint = self._checkpoints[key] = entries.checkpoint(key)
            if data == _DELETED:
                self._deleted.add(key)
            for channel, value in checkpoint.own.items():
                self._references[f"{key}/{channel}"] = references_in_value(value)
            for name, write in checkpoint.writes.items():
                self._references[f"{key}/{name}"] = references_in_value(write.value)
        elif data is None:
            self._references[key] = references_in_value(entries.value(key))
        else:
            self._references[key] = references_in_json(key, data)

    def _needed(self, live: set[str]) -> set[str]:
        """Returns the names of the values that these checkpoints and their writes need."""
        waiting = [name for key in live for name in self._checkpoints[key].places.values()]
        waiting += [f"{key}/{name}" for key in live for name in (*self._checkpoints[key].own, *self._checkpoints[key].writes)]
        prefixes = {"w" + key[1:] for key in live}
        waiting += [key for key in self._seqs if key.startswith("w/") and key.rsplit("/", 2)[0] in prefixes]
        needed: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name not in needed:
                needed.add(name)
                waiting += self._references.get(name, ())
        return needed

    def _without_checkpoint(self, key: str, needed: set[str]) -> Entry:
        checkpoint = self._checkpoints[key]
        own = {channel: value for channel, value in checkpoint.own.items() if f"{key}/{channel}" in needed}
        writes = {name: write for name, write in checkpoint.writes.items() if f"{key}/{name}" in needed}
        blob = write_checkpoint(key, CheckpointEntry(checkpoint.parent, checkpoint.kind, b"", {}, own, writes))
        return put(key, _DELETED, blob, expected_seq=self._seqs[key])
