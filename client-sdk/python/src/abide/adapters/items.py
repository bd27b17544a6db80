"""An ordered list of JSON items: the history of a conversation, as several frameworks keep it.

A list is a collection. The server makes the keys of appended items, in the order of the log: the clock of a process can be
behind the clock of another one, and a result would come before its call.
"""

from __future__ import annotations

import json
from typing import Any

from ..client import Abide
from .cache import copy_json
from .collection import Collections, put
from .untrusted import decoding

_LAST = "SELECT key, data FROM entries WHERE collection_id = :c ORDER BY key DESC LIMIT :limit"


class ItemList:
    """The items of one conversation."""

    def __init__(self, collections: Collections, *parts: str) -> None:
        self._collections = collections
        self._parts = parts

    @staticmethod
    def collections(client: Abide, kind: str) -> Collections:
        """Collections that are lists."""
        return Collections.for_client(client, kind, lambda _, data: _item(data))

    async def _id(self) -> str:
        return await self._collections.stored_id(*self._parts)

    async def append(self, items: list[Any]) -> None:
        """Appends items, in one transaction if they fit a call."""
        if items:
            await self._collections.write(await self._id(), _entries(items))

    async def replace(self, items: list[Any]) -> None:
        """Replaces all items, in one transaction if they are at most 12 MiB."""
        await self._collections.replace(await self._id(), _entries(items))

    async def read(self) -> list[Any]:
        """Returns all items. Their callers can change them."""
        return [item for _, item in await self.read_with_keys()]

    async def read_with_keys(self) -> list[tuple[str, Any]]:
        """Returns all items with their keys, in order."""
        read = await self._collections.cache.read(await self._id())
        return [(key, copy_json(cached.value)) for key, cached in read.entries.items()]

    async def last(self, limit: int) -> list[Any]:
        """Returns the last items, in order."""
        return [item for _, item in reversed(await self.last_with_keys(limit))]

    async def last_with_keys(self, limit: int) -> list[tuple[str, Any]]:
        """Returns the last items with their keys, the last one first."""
        collection_id = await self._id()
        rows = (await self._collections.client.sql(_LAST, {"c": collection_id, "limit": limit})).cells
        with decoding(f"an entry of {collection_id!r}"):
            return [(str(key), _item(str(data))) for key, data in rows]

    async def delete(self, key: str) -> bool:
        """Deletes an item. Returns whether it existed: of several callers one deletes it."""
        return bool((await self._collections.write(await self._id(), [], [key])).deleted)

    async def pop(self) -> Any | None:
        """Removes and returns the last item; `None` if there is none."""
        while found := await self.last_with_keys(1):
            [(key, item)] = found
            if await self.delete(key):
                return item
        return None

    async def clear(self) -> None:
        """Deletes all items."""
        collection_id = await self._id()
        self._collections.cache.forget(collection_id)
        await self._collections.delete(collection_id)


def _entries(items: list[Any]) -> list[dict[str, Any]]:
    # An item is in a list, because an entry cannot have the value null.
    return [put("", [item], append=True) for item in items]


def _item(data: str) -> Any:
    found = json.loads(data)
    if type(found) is not list or len(found) != 1:
        raise ValueError("it is not a list of one item")
    return found[0]
