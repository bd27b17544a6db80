"""Entries that this process has read, by collection.

A read fetches only what has changed since the last one. The version of an entry is the event that wrote it, and a
statement reads one state, with its seq. So the entries with a version after the seq of the last read are all that were
written since. The number of entries shows whether one was deleted: if it differs, everything is read again. A connection
with another timeline has another history, so nothing that was read before it counts.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from ..client import Abide
from ..errors import LimitExceededError, MalformedEntryError, describe
from ..records import Result

Decode: TypeAlias = Callable[[str, str], Any]
"""Makes the value of an entry from its key and its JSON."""

_CACHE_BYTES = 64 << 20

_ATTEMPTS = 10

_AT_ONCE = 5000
_PAGE = 1000

# Bytes in memory for each byte of JSON, and for each value: measured with messages of 100 to 1,000 bytes.
_BYTES_PER_BYTE = 2
BYTES_PER_VALUE = 600

_CHANGED = """SELECT NULL AS collection_id, NULL AS key, count(*) AS seq, NULL AS data FROM entries WHERE collection_id = :c
UNION ALL SELECT * FROM (
  SELECT collection_id, key, seq, data FROM entries WHERE collection_id = :c AND seq > :seq LIMIT :limit)
UNION ALL SELECT collection_id, key, seq, data FROM entries WHERE collection_id IN (SELECT value FROM json_each(:others))"""

_OTHERS = "SELECT collection_id, data FROM entries WHERE collection_id IN (SELECT value FROM json_each(:others))"

_PAGED = "SELECT key, seq, data FROM entries WHERE collection_id = :c AND key > :after ORDER BY key LIMIT :limit"


class Cached(NamedTuple):
    """An entry."""

    seq: int
    """Its version."""
    value: Any
    """Its value, which belongs to the cache: give callers copies."""
    size: int


class Read(NamedTuple):
    """The result of a read."""

    entries: dict[str, Cached]
    """The entries by key, in the order of the keys."""
    others: list[tuple[str, Any]]
    """Collection and JSON value of the entries of other collections."""


class _Known:
    """The entries that were read of a collection."""

    __slots__ = ("entries", "lock", "seq", "size", "timeline")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.clear(None)

    def clear(self, timeline: str | None) -> None:
        self.timeline = timeline
        self.entries: dict[str, Cached] = {}
        self.seq = 0
        self.size = 0


class Cache:
    """The entries of the collections of one kind. Their memory is bounded."""

    def __init__(self, client: Abide, decode: Decode, bytes_per_value: int = BYTES_PER_VALUE) -> None:
        self._client = client
        self._decode = decode
        self._bytes_per_value = bytes_per_value
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._size = 0

    def has(self, collection_id: str) -> bool:
        """Returns `True` if a read will fetch only what has changed."""
        known = self._known.get(collection_id)
        return known is not None and known.seq > 0

    def peek(self, collection_id: str, key: str) -> Cached | None:
        """Returns an entry as it was at the last read."""
        known = self._known.get(collection_id)
        return known.entries.get(key) if known is not None else None

    def forget(self, collection_id: str) -> None:
        """Forgets a collection."""
        known = self._known.pop(collection_id, None)
        if known is not None:
            self._size -= known.size

    def update(self, collection_id: str, key: str, seq: int, data: str) -> None:
        """Notes that this process has written an entry that exists. The next read fetches it again."""
        known = self._known.get(collection_id)
        earlier = known.entries.get(key) if known is not None else None
        if known is not None and earlier is not None and earlier.seq < seq:
            self._put(collection_id, known, [(key, seq, data)])

    async def read(self, collection_id: str, others: Sequence[str] = ()) -> Read:
        """Returns all entries of a collection as they are now, and all entries of other collections."""
        known = self._known.get(collection_id) or self._known.setdefault(collection_id, _Known())
        async with known.lock:
            found = None
            for _ in range(_ATTEMPTS):
                found = await self._update(collection_id, known, others)
                if found is not None:
                    break
            if found is None:
                # Others delete all the time from a long list: its pages are read one after the other.
                await self._load(collection_id, known)
                rows = (await self._client.sql(_OTHERS, {"others": json.dumps(list(others))})).cells
                found = [(str(owner), json.loads(str(data))) for owner, data in rows]
            if self._known.get(collection_id) is known:
                self._known.move_to_end(collection_id)
                self._evict()
            return Read(known.entries, found)

    async def _update(self, collection_id: str, known: _Known, others: Sequence[str]) -> list[tuple[str, Any]] | None:
        """Fetches what has changed. Returns the other entries; `None` if it must be tried again."""
        timeline = self._client.timeline
        if known.timeline != timeline:
            self._clear(collection_id, known)
        params = {"c": collection_id, "seq": known.seq, "limit": _AT_ONCE, "others": json.dumps(list(others))}
        try:
            result = await self._client.sql(_CHANGED, params)
        except LimitExceededError:
            await self._load(collection_id, known)
            return None
        if self._client.timeline != timeline or result.seq < known.seq:
            self._clear(collection_id, known)
            return None
        count = 0
        changed: list[tuple[str, int, str]] = []
        found: list[tuple[str, Any]] = []
        for collection, key, seq, data in result.cells:
            if key is None:
                count = int(str(seq))
            elif collection == collection_id:
                changed.append((str(key), int(str(seq)), str(data)))
            else:
                found.append((str(collection), json.loads(str(data))))
        if len(changed) == _AT_ONCE:
            await self._load(collection_id, known)
            return None
        self._put(collection_id, known, changed)
        known.seq = result.seq
        if len(known.entries) != count:
            self._clear(collection_id, known)
            return None
        return found

    async def _load(self, collection_id: str, known: _Known) -> None:
        """Reads all entries in pages. Their state is not the same, so the next read looks for later changes."""
        timeline = self._client.timeline
        self._clear(collection_id, known)
        after, limit = "", _PAGE
        while True:
            try:
                page: Result[Any] = await self._client.sql(_PAGED, {"c": collection_id, "after": after, "limit": limit})
            except LimitExceededError:
                if limit == 1:
                    raise
                limit //= 2
                continue
            if self._client.timeline != timeline:
                self._clear(collection_id, known)
                return
            known.seq = known.seq or page.seq
            self._put(collection_id, known, [(str(key), int(str(seq)), str(data)) for key, seq, data in page.cells])
            if len(page.cells) < limit:
                return
            after = str(page.cells[-1][0])

    def _put(self, collection_id: str, known: _Known, changed: list[tuple[str, int, str]]) -> None:
        """Keeps entries, in the order of their keys."""
        if not changed:
            return
        last = next(reversed(known.entries), "")
        before = known.size
        changed.sort()
        is_sorted = True
        for key, seq, data in changed:
            earlier = known.entries.get(key)
            is_sorted = is_sorted and (earlier is not None or key > last)
            size = len(data) * _BYTES_PER_BYTE + self._bytes_per_value
            try:
                value = self._decode(key, data)
            except Exception as exc:
                known.size = before
                self._clear(collection_id, known)
                raise MalformedEntryError(f"the entry {key!r} of {collection_id!r} is malformed: {describe(exc)}") from exc
            known.size += size - (earlier.size if earlier is not None else 0)
            known.entries[key] = Cached(seq, value, size)
        if not is_sorted:
            known.entries = dict(sorted(known.entries.items()))
        if self._known.get(collection_id) is known:
            self._size += known.size - before

    def _clear(self, collection_id: str, known: _Known) -> None:
        if self._known.get(collection_id) is known:
            self._size -= known.size
        known.clear(self._client.timeline)

    def _evict(self) -> None:
        while self._size > _CACHE_BYTES:
            _, oldest = self._known.popitem(last=False)
            self._size -= oldest.size


def copy_json(value: Any) -> Any:
    """Returns a deep copy of a JSON value."""
    if type(value) is dict:
        return {name: copy_json(part) if type(part) in _NESTED else part for name, part in value.items()}
    if type(value) is list:
        return [copy_json(part) if type(part) in _NESTED else part for part in value]
    return value


_NESTED = frozenset({dict, list})
