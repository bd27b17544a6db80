"""Message histories of Pydantic AI in Abide.

```python
from abide.adapters.pydantic_ai import AbideHistory

history = AbideHistory("user-1", client)
result = await agent.run("Hello", message_history=await history.load())
await history.append(result.new_messages())
```
"""

from __future__ import annotations

from collections.abc import Sequence

from ..extras import extra

with extra("pydantic-ai"):
    from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from .. import sync
from ..client import Abide
from .bridge import Bridge
from .items import ItemList
from .untrusted import decoding


class AbideHistory:
    """The messages of one conversation, as entries of the collection `pydantic-ai/<conversation id>`."""

    def __init__(self, conversation_id: str, client: Abide | sync.Abide) -> None:
        """Makes the history with this id, which need not exist in the database."""
        self._conversation_id = conversation_id
        self._bridge = Bridge(client)
        self._items = ItemList(ItemList.collections(self._bridge.client, "pydantic-ai"), conversation_id)

    async def load(self) -> list[ModelMessage]:
        """Returns all messages, for `message_history`."""
        items = await self._bridge.arun(self._items.read())
        with decoding(f"the conversation {self._conversation_id!r}"):
            return ModelMessagesTypeAdapter.validate_python(items)

    async def append(self, messages: Sequence[ModelMessage]) -> None:
        """Appends messages, usually `result.new_messages()`."""
        items = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
        await self._bridge.arun(self._items.append(items))

    async def clear(self) -> None:
        """Removes all messages."""
        await self._bridge.arun(self._items.clear())
