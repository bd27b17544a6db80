"""Reads entries of a LangGraph thread along their references: the base of a list, and the root of other bytes.

It follows them in this process. One recursive statement would do the same, but is refused to callers with a scope.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias, cast

from ..client import Abide
from ..errors import MalformedEntry
from .langgraph_keys import base_key
from .langgraph_values import Stored
from .untrusted import Budget

# What entries refer to, and their size.
_REFERENCES = """e.key, json_extract(e.data, '$.b'), json_extract(e.data, '$.f'),
  coalesce(length(e.blob), 0) + length(CAST(e.data AS BLOB)) FROM"""
_OF_KEYS = "entries AS e WHERE e.collection_id = :c AND e.key IN (SELECT value FROM json_each(:keys))"
_REFERENCES_OF = f"SELECT {_REFERENCES} {_OF_KEYS}"
_REFERENCES_BEFORE = (
    f"SELECT {_REFERENCES} entries AS e WHERE e.collection_id = :c AND e.key >= :first AND e.key <= :last"
    " ORDER BY e.key DESC LIMIT 2000"
)
_REFERENCES_BETWEEN = (
    f"SELECT {_REFERENCES} entries AS e WHERE e.collection_id = :c AND e.key >= :first AND e.key < :end AND e.key > :after"
    " ORDER BY e.key LIMIT 10000"
)
_ENTRIES = f"SELECT e.key, e.data, e.blob, e.seq FROM {_OF_KEYS}"
_HEADS = f"SELECT e.key, e.data FROM {_OF_KEYS}"

# What is read in one request.
_KEYS_AT_ONCE = 1000
_BYTES_AT_ONCE = 8 << 20

# A chain leads through one folder, of which a request reads 2,000 entries. More requests are those of a forged chain.
_MOST_STEPS = 1000


References: TypeAlias = dict[str, tuple[str | None, str | None, int]]
"""Base, root and size of entries."""


class Chains:
    """Entries and their references, through a client."""

    def __init__(self, client: Abide, max_bytes: int) -> None:
        self._client = client
        self._max_bytes = max_bytes

    async def read(self, collection: str, keys: list[str]) -> dict[str, Stored]:
        """Entries, and those that they refer to."""
        sizes = await self._closure(collection, keys)
        found: dict[str, Stored] = {}
        waiting: list[str] = []
        size = 0
        for at, (key, one) in enumerate(sizes.items(), start=1):
            waiting.append(key)
            size += one
            if at == len(sizes) or size >= _BYTES_AT_ONCE or len(waiting) == _KEYS_AT_ONCE:
                params = {"c": collection, "keys": json.dumps(waiting)}
                for name, data, blob, seq in (await self._client.sql(_ENTRIES, params)).cells:
                    found[str(name)] = Stored(description(data), cast(bytes, blob or b""), int(str(seq)))
                waiting, size = [], 0
        return found

    async def _closure(self, collection: str, keys: list[str]) -> dict[str, int]:
        """The sizes of entries, and of those that they refer to.

        Raises:
            LimitExceeded: they are too large together.
        """
        known = await self._references(collection, _REFERENCES_OF, {"keys": json.dumps(keys)})
        sizes: dict[str, int] = {}
        roots: dict[str, None] = {}
        budget = Budget(self._max_bytes)
        steps = 0
        for key in keys:
            at: str | None = key
            while at is not None and at not in sizes:
                if at not in known:
                    steps += 1
                    if steps > _MOST_STEPS:
                        raise MalformedEntry(f"the entry {key!r} of {collection!r} refers to too many others")
                    page = {"first": at.rsplit("/", 1)[0] + "/", "last": at}
                    known |= await self._references(collection, _REFERENCES_BEFORE, page)
                if at not in known:
                    break  # It does not exist.
                base, root, sizes[at] = known[at]
                budget.take(sizes[at])
                if root is not None:
                    roots[root] = None
                at = base
        names = json.dumps([root for root in roots if root not in sizes])
        for root, (_, _, size) in (await self._references(collection, _REFERENCES_OF, {"keys": names})).items():
            sizes[root] = size
            budget.take(size)
        return sizes

    async def _references(self, collection: str, sql: str, params: dict[str, Any]) -> References:
        """Base, root and size of entries."""
        rows: list[tuple[Any, ...]] = (await self._client.sql(sql, {"c": collection, **params})).cells
        return {key: (_base(key, base), _name(root), size) for key, base, root, size in rows}

    async def heads(self, collection: str, keys: list[str]) -> dict[str, dict[str, Any]]:
        """The descriptions of checkpoints."""
        found: dict[str, dict[str, Any]] = {}
        for first in range(0, len(keys), _KEYS_AT_ONCE):
            params = {"c": collection, "keys": json.dumps(keys[first : first + _KEYS_AT_ONCE])}
            for key, data in (await self._client.sql(_HEADS, params)).cells:
                found[str(key)] = description(data)
        return found

    async def references_of_thread(self, collection: str) -> References:
        """Those of all values and writes."""
        found: References = {}
        after = ""
        while True:
            params = {"first": "v/", "end": "w0", "after": after}
            page = await self._references(collection, _REFERENCES_BETWEEN, params)
            found |= page
            if len(page) < 10_000:
                return found
            after = max(page)


def _base(key: str, value: Any) -> str | None:
    return base_key(key, value) if isinstance(value, str) else None


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def description(data: Any) -> dict[str, Any]:
    """The JSON of an entry; empty if it is none of an adapter."""
    found = json.loads(data or "{}")
    return found if isinstance(found, dict) else {}
