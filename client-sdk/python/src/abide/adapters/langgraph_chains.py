"""Reads entries of a LangGraph thread along their references: the base of a list, and the root of other bytes.

It follows them in this process, because they are within compressed bytes. The versions of a list are in the order of their
keys, so they are read in pages, from the last one to the first.
"""

from __future__ import annotations

import json
from typing import Any, cast

from ..client import Abide
from ..errors import MalformedEntryError
from .langgraph_entries import Entries
from .langgraph_keys import entry_key

_SIZE = "coalesce(length(e.blob), 0) + coalesce(length(CAST(e.data AS BLOB)), 0)"
_OF_KEYS = "entries AS e WHERE e.collection_id = :c AND e.key IN (SELECT value FROM json_each(:keys))"
_SIZES_OF = f"SELECT e.key, {_SIZE} FROM {_OF_KEYS}"
_SIZES_BEFORE = (
    f"SELECT e.key, {_SIZE} FROM entries AS e WHERE e.collection_id = :c AND e.key >= :first AND e.key <= :last"
    " ORDER BY e.key DESC LIMIT 1000"
)
_ENTRIES = f"SELECT e.key, e.data, e.blob, e.seq FROM {_OF_KEYS}"
_ENTRIES_BETWEEN = (
    "SELECT e.key, e.data, e.blob, e.seq FROM entries AS e WHERE e.collection_id = :c AND e.key >= :first AND e.key <= :last"
)

# The limit of one request.
_KEYS_AT_ONCE = 1000
_BYTES_AT_ONCE = 4 << 20

# A chain leads through one folder, of which a request reads up to 1,000 entries. Only a forged chain needs more requests.
_MOST_PAGES = 1000

_Row = tuple[str, Any, Any, int]


class Chains:
    """Entries and their references, through a client."""

    def __init__(self, client: Abide) -> None:
        self._client = client

    async def complete(self, collection: str, entries: Entries, names: list[str]) -> None:
        """Reads the entries of values, and those that they refer to. An entry that does not exist is omitted.

        Raises:
            MalformedEntryError: they refer to too many others.
            LimitExceededError: they are too large together.
        """
        await self._fetch(collection, entries, [name for name in names if not entries.has(name)])
        done: set[str] = set()
        roots: dict[str, None] = {}
        ahead: dict[str, _Row] = {}
        pages = 0
        for name in names:
            at: str | None = name
            while at is not None and at not in done:
                done.add(at)
                key = entry_key(at)
                if not entries.has(at):
                    if key not in ahead:
                        pages += 1
                        if pages > _MOST_PAGES:
                            raise MalformedEntryError(f"the entry {name!r} of {collection!r} refers to too many others")
                        ahead = await self._page(collection, key)
                    if key not in ahead:
                        break
                    entries.add(*ahead[key])
                value = entries.value(at)
                if value.root is not None:
                    roots[value.root] = None
                at = value.base
        await self._fetch(collection, entries, [root for root in roots if not entries.has(root)])

    async def _page(self, collection: str, last: str) -> dict[str, _Row]:
        """Returns an entry of a folder and those before it."""
        params: dict[str, Any] = {"c": collection, "first": last.rsplit("/", 1)[0] + "/", "last": last}
        left = _BYTES_AT_ONCE
        first = last
        for key, size in (await self._client.sql(_SIZES_BEFORE, params)).cells:
            left -= cast(int, size)
            if left < 0 and key != last:
                break
            first = str(key)
        rows = (await self._client.sql(_ENTRIES_BETWEEN, {**params, "first": first})).cells
        return {str(row[0]): cast(_Row, row) for row in rows}

    async def _fetch(self, collection: str, entries: Entries, names: list[str]) -> None:
        """Reads the entries of values, in several requests if they are large."""
        keys = list(dict.fromkeys(map(entry_key, names)))
        for first in range(0, len(keys), _KEYS_AT_ONCE):
            params = {"c": collection, "keys": json.dumps(keys[first : first + _KEYS_AT_ONCE])}
            waiting: list[str] = []
            left = _BYTES_AT_ONCE
            for key, size in (await self._client.sql(_SIZES_OF, params)).cells:
                entries.budget.take(cast(int, size))
                left -= cast(int, size)
                if left < 0 and waiting:
                    await self._read(collection, entries, waiting)
                    waiting, left = [], _BYTES_AT_ONCE - cast(int, size)
                waiting.append(str(key))
            if waiting:
                await self._read(collection, entries, waiting)

    async def _read(self, collection: str, entries: Entries, keys: list[str]) -> None:
        for row in (await self._client.sql(_ENTRIES, {"c": collection, "keys": json.dumps(keys)})).cells:
            entries.add(*cast(_Row, row))
