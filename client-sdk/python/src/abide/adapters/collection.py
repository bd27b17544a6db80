"""Collections of entries (`write_entries`, `delete_entries`), as the adapters use them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote, unquote

from ..client import Abide

MOST_PUTS = 1000
"""Entries that one call can write."""

_PART_BYTES = 2 << 20
_CALL_BYTES = 6 << 20
"""Writes up to this size are one call, which may have at most 8 MiB."""

# All printable ASCII except the separator, the escape, and the character that ids reserve.
_SAFE = " !\"#$&'()*+,-.:;<=>?@[\\]^_`{|}"


def escape(part: str) -> str:
    """A part of an id or key without separators, control characters, and characters that ids reserve."""
    # `quote` leaves ~ as it is.
    return quote(part, safe=_SAFE).replace("~", "%7E")


def unescape(part: str) -> str:
    """The inverse of `escape`."""
    return unquote(part)


def path(*parts: str) -> str:
    """An id or a key of these parts. Keys that begin with the same parts are neighbours."""
    return "/".join(map(escape, parts))


def put(
    key: str,
    data: Any = None,
    blob: bytes | None = None,
    *,
    keep: bool = False,
    expected_seq: int | None = None,
) -> dict[str, Any]:
    """An entry to write. `keep` leaves an entry that exists; `expected_seq` is that of the entry to replace."""
    entry: dict[str, Any] = {"key": key}
    if data is not None:
        entry["data"] = data
    if blob is not None:
        entry["blob"] = blob
    if keep:
        entry["keep"] = True
    if expected_seq is not None:
        entry["expected_seq"] = expected_seq
    return entry


class Collections:
    """The collections of one kind."""

    def __init__(self, client: Abide, kind: str) -> None:
        self.client = client
        self.kind = kind
        self._namespace: str | None = None

    async def stored_id(self, *parts: str) -> str:
        """The stored id of a collection. A caller with a scope has its own namespace."""
        name = path(self.kind, *parts)
        if self._namespace is None:
            # Without entries the call changes nothing.
            made = await self.client.call.write_entries(collection_id=self.kind)
            self._namespace = made["collection_id"][: -len(self.kind)]
        return self._namespace + name

    def parts(self, stored_id: str) -> list[str]:
        """The parts of a stored id."""
        name = stored_id[len(self._namespace or "") :]
        return [unescape(part) for part in name.split("/")[1:]]

    async def write(self, collection_id: str, puts: list[dict[str, Any]], deletes: Sequence[str] = ()) -> int:
        """Writes entries: all or nothing, unless they are too many for one call. Returns the last seq."""
        if len(puts) + len(deletes) <= MOST_PUTS and sum(map(_size, puts)) <= _CALL_BYTES:
            return await self._write(collection_id, puts, deletes)
        seq = 0
        for at in range(0, len(deletes), MOST_PUTS):
            seq = await self._write(collection_id, [], deletes[at : at + MOST_PUTS])
        for part in _parts(puts):
            seq = await self._write(collection_id, part, ())
        return seq

    async def _write(self, collection_id: str, puts: list[dict[str, Any]], deletes: Sequence[str]) -> int:
        args: dict[str, Any] = {"collection_id": collection_id, "kind": self.kind}
        if puts:
            args["puts"] = puts
        if deletes:
            args["deletes"] = list(deletes)
        return (await self.client.call("write_entries", args)).seq

    async def delete(self, collection_id: str, prefix: str | None = None) -> None:
        """Deletes the entries with a prefix; all entries and the collection without one."""
        args = {"collection_id": collection_id, "prefix": prefix}
        while (await self.client.call("delete_entries", args))["more"]:
            pass


def _parts(puts: list[dict[str, Any]]) -> Iterable[list[dict[str, Any]]]:
    """Parts that each fit one call, in order."""
    part: list[dict[str, Any]] = []
    size = 0
    for entry in puts:
        if part and (len(part) == MOST_PUTS or size + _size(entry) > _PART_BYTES):
            yield part
            part, size = [], 0
        part.append(entry)
        size += _size(entry)
    if part:
        yield part


def _size(entry: dict[str, Any]) -> int:
    """The bytes of an entry in a call, where bytes are base64."""
    data = entry.get("data")
    return len(entry.get("blob") or b"") * 4 // 3 + (0 if data is None else len(json.dumps(data, ensure_ascii=False).encode()))
