"""An ordered list of JSON items: the history of a conversation, as several frameworks keep it.

A list is a collection. Items have increasing keys, so that an append is one write, and a read is in order.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from .collection import Collections, put

_READ = "SELECT key, data FROM entries WHERE collection_id = :c AND key > :after ORDER BY key LIMIT 5000"
_LAST = "SELECT key, data FROM entries WHERE collection_id = :c ORDER BY key DESC LIMIT :limit"


class ItemList:
    """The items of one conversation."""

    def __init__(self, collections: Collections, *parts: str) -> None:
        self._collections = collections
        self._parts = parts
        self._last = 0

    async def _id(self) -> str:
        return await self._collections.stored_id(*self._parts)

    async def append(self, items: list[Any]) -> None:
        """Appends items, in one transaction if they fit a call."""
        if items:
            await self._collections.write(await self._id(), [put(self._next_key(), [item]) for item in items])

    async def read(self) -> list[Any]:
        """All items."""
        found: list[Any] = []
        after = ""
        while True:
            rows = (await self._collections.client.sql(_READ, {"c": await self._id(), "after": after})).cells
            found += [json.loads(str(data))[0] for _, data in rows]
            if len(rows) < 5000:
                return found
            after = str(rows[-1][0])

    async def last(self, limit: int) -> list[Any]:
        """The last items, in order."""
        return [item for _, item in reversed(await self.last_with_keys(limit))]

    async def last_with_keys(self, limit: int) -> list[tuple[str, Any]]:
        """The last items with their keys, the last one first."""
        rows = (await self._collections.client.sql(_LAST, {"c": await self._id(), "limit": limit})).cells
        return [(str(key), json.loads(str(data))[0]) for key, data in rows]

    async def delete(self, key: str) -> bool:
        """Deletes an item. Returns whether it existed: of several callers one deletes it."""
        args = {"collection_id": await self._id(), "deletes": [key]}
        done = await self._collections.client.call("write_entries", args)
        return bool(done["deleted"])

    async def pop(self) -> Any | None:
        """Removes and returns the last item; `None` if there is none."""
        while found := await self.last_with_keys(1):
            [(key, item)] = found
            if await self.delete(key):
                return item
        return None

    async def clear(self) -> None:
        """Deletes all items."""
        await self._collections.delete(await self._id())

    def _next_key(self) -> str:
        """A key after all earlier ones of this process; the random part distinguishes processes."""
        self._last = max(self._last + 1, time.time_ns() // 1000)
        return f"{self._last:016x}{os.urandom(2).hex()}"
