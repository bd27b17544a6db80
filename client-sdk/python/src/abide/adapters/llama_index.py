"""The chat store of LlamaIndex in Abide.

```python
from abide.adapters.llama_index import AbideChatStore

memory = ChatMemoryBuffer.from_defaults(chat_store=AbideChatStore.open("agents.db"), chat_store_key="user-1")
```

The messages of a key are entries of the collection `llama-index/<key>`.
"""

from __future__ import annotations

import os
from typing import Any

from ..extras import extra

with extra("llama-index"):
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.storage.chat_store.base import BaseChatStore
    from pydantic import PrivateAttr

from .. import sync
from ..client import Abide
from ..errors import BadRequestError
from .bridge import Bridge
from .collection import Collections
from .items import ItemList
from .untrusted import decoding

_KIND = "llama-index"


class AbideChatStore(BaseChatStore):
    """Stores chat messages in Abide."""

    _bridge: Bridge = PrivateAttr()
    _collections: Collections = PrivateAttr()
    _allows_paths: bool = PrivateAttr()

    def __init__(self, client: Abide | sync.Abide, *, allow_local_paths: bool = False, **fields: Any) -> None:
        """Makes a store over a client. With an `abide.Abide` only the asynchronous methods can be used on its own loop.

        A block with the path of a local file is refused, because every caller of the scope can write one, and LlamaIndex
        reads the file when the block is resolved. `allow_local_paths` allows them.
        """
        super().__init__(**fields)
        self._allows_paths = allow_local_paths
        self._bridge = Bridge(client)
        self._collections = ItemList.collections(self._bridge.client, _KIND)

    @staticmethod
    def open(path: str | os.PathLike[str]) -> AbideChatStore:
        """Returns a store over a database file, with its own client."""
        return AbideChatStore(sync.Abide.open(path))

    @classmethod
    def class_name(cls) -> str:
        """Returns the name of the class."""
        return "AbideChatStore"

    def close(self) -> None:
        """Closes the client of `open`."""
        self._bridge.close()

    def _list(self, key: str) -> ItemList:
        return ItemList(self._collections, key)

    async def aset_messages(self, key: str, messages: list[ChatMessage]) -> None:
        """Replaces the messages of a key, in one transaction if they are at most 12 MiB."""
        await self._bridge.arun(self._set(key, messages))

    def set_messages(self, key: str, messages: list[ChatMessage]) -> None:
        """See `aset_messages`."""
        self._bridge.run(self._set(key, messages))

    async def _set(self, key: str, messages: list[ChatMessage]) -> None:
        await self._list(key).replace([self._dump(message) for message in messages])

    async def aget_messages(self, key: str) -> list[ChatMessage]:
        """Returns the messages of a key."""
        return await self._bridge.arun(self._get(key))

    def get_messages(self, key: str) -> list[ChatMessage]:
        """See `aget_messages`."""
        return self._bridge.run(self._get(key))

    async def _get(self, key: str) -> list[ChatMessage]:
        return [self._message(key, item) for item in await self._list(key).read()]

    async def async_add_message(self, key: str, message: ChatMessage) -> None:
        """Appends a message."""
        await self._bridge.arun(self._list(key).append([self._dump(message)]))

    def add_message(self, key: str, message: ChatMessage) -> None:
        """See `async_add_message`."""
        self._bridge.run(self._list(key).append([self._dump(message)]))

    async def adelete_messages(self, key: str) -> list[ChatMessage] | None:
        """Deletes the messages of a key, and returns them."""
        return await self._bridge.arun(self._delete(key))

    def delete_messages(self, key: str) -> list[ChatMessage] | None:
        """See `adelete_messages`."""
        return self._bridge.run(self._delete(key))

    async def _delete(self, key: str) -> list[ChatMessage] | None:
        messages = await self._get(key)
        await self._list(key).clear()
        return messages or None

    async def adelete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Deletes a message by its position, and returns it."""
        return await self._bridge.arun(self._delete_at(key, idx))

    def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """See `adelete_message`."""
        return self._bridge.run(self._delete_at(key, idx))

    async def _delete_at(self, key: str, idx: int) -> ChatMessage | None:
        items = self._list(key)
        found = await items.read_with_keys()
        if not 0 <= idx < len(found):
            return None
        name, item = found[idx]
        message = self._message(key, item)
        return message if await items.delete(name) else None

    async def adelete_last_message(self, key: str) -> ChatMessage | None:
        """Deletes the last message, and returns it."""
        return await self._bridge.arun(self._pop(key))

    def delete_last_message(self, key: str) -> ChatMessage | None:
        """See `adelete_last_message`."""
        return self._bridge.run(self._pop(key))

    async def _pop(self, key: str) -> ChatMessage | None:
        item = await self._list(key).pop()
        return None if item is None else self._message(key, item)

    async def aget_keys(self) -> list[str]:
        """Returns the keys that have messages."""
        return await self._bridge.arun(self._keys())

    def get_keys(self) -> list[str]:
        """See `aget_keys`."""
        return self._bridge.run(self._keys())

    async def _keys(self) -> list[str]:
        sql = """SELECT id FROM collections AS c WHERE kind = :kind
            AND EXISTS (SELECT 1 FROM entries AS e WHERE e.collection_id = c.id) ORDER BY id"""
        rows = await self._collections.client.sql(sql, {"kind": _KIND})
        named = [self._collections.parts(row.id) for row in rows]
        return [parts[0] for parts in named if len(parts) == 1]

    def _message(self, key: str, item: Any) -> ChatMessage:
        """Decodes a message of a key. It is checked first, because the validation of a block reads its file."""
        with decoding(f"a message of {key!r}"):
            if not self._allows_paths and _names_file(item):
                raise ValueError("a block names a local file")
            return ChatMessage.model_validate(item)

    def _dump(self, message: ChatMessage) -> Any:
        item = message.model_dump(mode="json")
        if not self._allows_paths and _names_file(item):
            raise BadRequestError(
                "a block names a local file",
                code="bad_arguments",
                hint="store its bytes (image=…, data=…), or make the store with allow_local_paths=True",
            )
        return item


def _names_file(item: Any) -> bool:
    """Returns `True` if a block, or one within it, has the path of a file, or a URL that does not lead to the web."""
    # `content` can have blocks too; `additional_kwargs` has none.
    waiting: list[Any] = [part for name, part in item.items() if name != "additional_kwargs"] if isinstance(item, dict) else []
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            url = one.get("url")
            if "block_type" in one and (one.get("path") is not None or not (url is None or _is_web(url))):
                return True
            waiting += one.values()
    return False


def _is_web(url: Any) -> bool:
    return isinstance(url, str) and url.strip().lower().startswith(("http://", "https://", "data:"))
