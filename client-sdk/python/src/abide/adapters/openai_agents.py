"""Sessions of the OpenAI Agents SDK in Abide.

```python
from abide.adapters.openai_agents import AbideSession

result = await Runner.run(agent, "Hello", session=AbideSession("user-1", client))
```

The items are entries of the collection `openai-agents/<session id>`, with the item as JSON.
"""

from __future__ import annotations

from typing import Any

from ..extras import extra

with extra("openai-agents"):
    from agents import TResponseInputItem
    from agents.memory.session import SessionABC
    from agents.memory.session_settings import SessionSettings, resolve_session_limit

from .. import sync
from ..client import Abide
from .bridge import Bridge
from .items import ItemList
from .untrusted import decoding


class AbideSession(SessionABC):
    """The history of one conversation. The runner adds the items of a turn in one transaction."""

    def __init__(self, session_id: str, client: Abide | sync.Abide, *, session_settings: SessionSettings | None = None) -> None:
        """Makes the session with this id, which need not exist in the database."""
        self.session_id = session_id
        self.session_settings: SessionSettings | None = session_settings or SessionSettings()
        self._bridge = Bridge(client)
        self._items = ItemList(ItemList.collections(self._bridge.client, "openai-agents"), session_id)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Returns all items, or the last ones, in order."""
        most = resolve_session_limit(limit, self.session_settings)
        if most is not None and most <= 0:
            return []
        items: list[Any] = await self._bridge.arun(self._items.read() if most is None else self._items.last(most))
        with decoding(f"the session {self.session_id!r}"):
            if not all(isinstance(item, dict) for item in items):
                raise ValueError("an item is not an object")
        return items

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Appends items."""
        await self._bridge.arun(self._items.append(list(items)))

    async def pop_item(self) -> TResponseInputItem | None:
        """Removes and returns the last item."""
        item: Any = await self._bridge.arun(self._items.pop())
        return item  # type: ignore[no-any-return]

    async def clear_session(self) -> None:
        """Removes all items."""
        await self._bridge.arun(self._items.clear())
