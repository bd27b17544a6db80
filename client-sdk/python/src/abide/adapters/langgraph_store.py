"""LangGraph's long-term memory (`BaseStore`) in Abide.

```python
from abide.adapters.langgraph_store import AbideStore

with AbideStore.open("agents.db") as store:
    store.put(("users", "ann"), "prefs", {"theme": "dark"})
```

The items are entries of the collection `langgraph-store`, with the key `<namespace, part by part>//<key>` and the value as
JSON. Filters compare values like LangGraph's own stores. There is no vector search: `query` is ignored, and there is no expiry.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from datetime import datetime, timezone
from types import TracebackType
from typing import Any

from ..extras import extra

with extra("langgraph"):
    from langgraph.store.base import (
        BaseStore,
        GetOp,
        Item,
        ListNamespacesOp,
        MatchCondition,
        Op,
        PutOp,
        Result,
        SearchItem,
        SearchOp,
    )

from .. import sync
from ..client import Abide
from .bridge import Bridge
from .collection import Collections, escape, path, put, unescape

_KIND = "langgraph-store"
_PAGE = 1000

_LOG = logging.getLogger("abide")

_GET = """SELECT key, data, created_at, updated_at FROM entries
WHERE collection_id = :c AND key IN (SELECT value FROM json_each(:keys))"""

_SEARCH = """SELECT key, data, created_at, updated_at FROM entries
WHERE collection_id = :c AND key >= :first AND key < :end ORDER BY updated_at DESC, seq DESC, key LIMIT :limit OFFSET :offset"""

_NAMESPACES = """SELECT DISTINCT substr(key, 1, instr(key, '//') - 1) FROM entries WHERE collection_id = :c ORDER BY 1"""


class AbideStore(BaseStore):
    """Stores items in Abide."""

    def __init__(self, client: Abide | sync.Abide) -> None:
        """Makes a store over a client. With an `abide.Abide` only the asynchronous methods can be used on its own loop."""
        self._bridge = Bridge(client)
        self._collections = Collections.for_client(self._bridge.client, _KIND)

    @staticmethod
    def open(path: str | os.PathLike[str]) -> AbideStore:
        """Returns a store over a database file, with its own client. Close it, or use it in `with`."""
        return AbideStore(sync.Abide.open(path))

    def close(self) -> None:
        """Closes the client of `open`."""
        self._bridge.close()

    def __enter__(self) -> AbideStore:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Executes operations: reads see the state before the writes, and the writes are one transaction."""
        return self._bridge.run(self._batch(list(ops)))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """See `batch`."""
        return await self._bridge.arun(self._batch(list(ops)))

    async def _batch(self, ops: list[Op]) -> list[Result]:
        collection = await self._collections.stored_id()
        found = await self._get(collection, {_key(op.namespace, op.key) for op in ops if isinstance(op, GetOp)})
        results: list[Result] = []
        writes: dict[str, PutOp] = {}
        for op in ops:
            result: Result = None
            if isinstance(op, GetOp):
                result = found.get(_key(op.namespace, op.key))
            elif isinstance(op, SearchOp):
                result = await self._search(collection, op)
            elif isinstance(op, ListNamespacesOp):
                result = await self._list_namespaces(collection, op)
            elif isinstance(op, PutOp):
                writes[_key(op.namespace, op.key)] = op
            else:
                raise ValueError(f"unknown operation: {op!r}")
            results.append(result)
        if writes:
            puts = [put(key, dict(op.value)) for key, op in writes.items() if op.value is not None]
            deletes = [key for key, op in writes.items() if op.value is None]
            await self._collections.write(collection, puts, deletes)
        return results

    async def _get(self, collection: str, keys: set[str]) -> dict[str, Item]:
        if not keys:
            return {}
        params = {"c": collection, "keys": json.dumps(sorted(keys))}
        rows = await self._collections.client.sql(_GET, params)
        return {row.key: Item(**_fields(*row)) for row in rows if _is_own(row)}

    async def _search(self, collection: str, op: SearchOp) -> list[SearchItem]:
        first, end = _range(op.namespace_prefix)
        params: dict[str, Any] = {"c": collection, "first": first, "end": end}
        if not op.filter:
            rows = await self._collections.client.sql(_SEARCH, {**params, "limit": op.limit, "offset": op.offset})
            return [SearchItem(**_fields(*row)) for row in rows if _is_own(row)]
        matching: list[SearchItem] = []
        offset = 0
        while len(matching) < op.offset + op.limit:
            rows = await self._collections.client.sql(_SEARCH, {**params, "limit": _PAGE, "offset": offset})
            items = [SearchItem(**_fields(*row)) for row in rows if _is_own(row)]
            matching += [item for item in items if _matches(item.value, op.filter)]
            offset += _PAGE
            if len(rows) < _PAGE:
                break
        return matching[op.offset : op.offset + op.limit]

    async def _list_namespaces(self, collection: str, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        rows = await self._collections.client.sql(_NAMESPACES, {"c": collection})
        namespaces = [tuple(map(unescape, row[0].split("/"))) for row in rows if row[0]]
        kept = {
            namespace[: op.max_depth]
            for namespace in namespaces
            if all(_matches_condition(namespace, condition) for condition in op.match_conditions or ())
        }
        return sorted(kept)[op.offset : op.offset + op.limit]


def _key(namespace: tuple[str, ...], key: str) -> str:
    return f"{path(*namespace)}//{escape(key)}"


def _range(prefix: tuple[str, ...]) -> tuple[str, str]:
    """Returns the keys of a namespace, and of those below it."""
    if not prefix:
        return "", "\U0010ffff"
    first = path(*prefix) + "/"
    return first, first[:-1] + "0"


def _is_own(row: Any) -> bool:
    """Returns `True` if a store wrote an entry. Other callers of the scope may write other entries, which are omitted."""
    is_own = "//" in row.key and row.data is not None and isinstance(json.loads(row.data), dict)
    if not is_own:
        _LOG.warning("the entry %r of %s is not an item of a store", row.key, _KIND)
    return is_own


def _fields(key: str, data: str, created_at: int, updated_at: int) -> dict[str, Any]:
    namespace, name = key.split("//", 1)
    return {
        "namespace": tuple(map(unescape, namespace.split("/"))),
        "key": unescape(name),
        "value": json.loads(data),
        "created_at": _time(created_at),
        "updated_at": _time(updated_at),
    }


def _time(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / 1_000_000, timezone.utc)


def _matches_condition(namespace: tuple[str, ...], condition: MatchCondition) -> bool:
    """Returns `True` if a namespace has a prefix or a suffix, in which `*` is any part."""
    expected = tuple(condition.path)
    if len(namespace) < len(expected):
        return False
    part = namespace[: len(expected)] if condition.match_type == "prefix" else namespace[len(namespace) - len(expected) :]
    return all(label in ("*", found) for label, found in zip(expected, part, strict=True))


def _matches(value: Any, expected: Any) -> bool:
    """Returns `True` if a value satisfies a filter."""
    if isinstance(expected, dict):
        if any(name.startswith("$") for name in expected):
            return all(_compare(value, operator, operand) for operator, operand in expected.items())
        return isinstance(value, dict) and all(_matches(value.get(name), part) for name, part in expected.items())
    if isinstance(expected, (list, tuple)):
        return (
            isinstance(value, (list, tuple))
            and len(value) == len(expected)
            and all(_matches(one, part) for one, part in zip(value, expected, strict=True))
        )
    return bool(value == expected)


def _compare(value: Any, operator: str, operand: Any) -> bool:
    match operator:
        case "$eq":
            return bool(value == operand)
        case "$ne":
            return bool(value != operand)
        case "$gt":
            return float(value) > float(operand)
        case "$gte":
            return float(value) >= float(operand)
        case "$lt":
            return float(value) < float(operand)
        case "$lte":
            return float(value) <= float(operand)
    raise ValueError(f"unknown operator {operator}")
