"""Copies a LangGraph thread."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from operator import itemgetter
from typing import TypeAlias, cast

from .collection import Collections, put
from .writer import Entry

_ROWS = 500
_PAGE = f"""SELECT key, data, blob, seq FROM entries
  WHERE collection_id = :c AND key > :after AND key < :end ORDER BY key LIMIT {_ROWS}"""

Copy: TypeAlias = tuple[int, Entry]
"""The version of an entry, and its copy."""


async def copy(collections: Collections, source: str, target: str) -> None:
    """Copies all entries. A checkpoint is written after what it refers to: writes, large values, and earlier checkpoints."""
    async for page in _pages(collections, source, "d", "\U0010ffff"):
        for call in _calls(page):
            await collections.write(target, call)
    async for page in _pages(collections, source, "", "d"):
        await collections.write(target, [entry for _, entry in page])


async def _pages(collections: Collections, source: str, after: str, end: str) -> AsyncIterator[list[Copy]]:
    """Yields entries in pages. Those of one task are on one page, unless they are more than a page."""
    while True:
        rows = (await collections.client.sql(_PAGE, {"c": source, "after": after, "end": end})).cells
        if not rows:
            return
        if len(rows) == _ROWS and str(rows[-1][0]).startswith("w/"):
            last = _task_key(str(rows[-1][0]))
            rows = [row for row in rows if _task_key(str(row[0])) != last] or rows
        after = str(rows[-1][0])
        yield [
            (cast(int, seq), put(str(key), None if data is None else json.loads(str(data)), cast("bytes | None", blob)))
            for key, data, blob, seq in rows
        ]


def _calls(copies: list[Copy]) -> Iterator[list[Entry]]:
    """Yields the entries of each call. The first writes of a task count, so those that it has repeated are in later calls."""
    first: dict[str, Entry] = {}
    later: list[Entry] = []
    for _, entry in sorted(copies, key=itemgetter(0)):
        key: str = entry["key"]
        if first.setdefault(_task_key(key) if key.startswith("w/") else key, entry) is not entry:
            later.append(entry)
    yield list(first.values())
    for entry in later:
        yield [entry]


def _task_key(key: str) -> str:
    return key.rsplit("/", 1)[0]
