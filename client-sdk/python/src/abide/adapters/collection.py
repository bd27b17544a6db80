"""Collections of entries (`write_entries`, `delete_entries`), as the adapters use them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from ..client import Abide, Call
from ..namespace import fetch_namespace
from .cache import BYTES_PER_VALUE, Cache, Decode
from .writer import MOST_PUTS, Entry, Needs, Write, Writer, split_entries

T = TypeVar("T")

_PART_BYTES = 2 << 20
_PARTS_OF_A_BATCH = 6

# `delete_entries` deletes at least so much.
_DELETED_BY_A_CALL = 200
_BYTES_DELETED_BY_A_CALL = 16 << 20

_SIZE = "SELECT count(*), sum(length(CAST(data AS BLOB))) FROM entries WHERE collection_id = :c"

# All printable ASCII except the separator, the escape, and the character that ids reserve.
_SAFE = " !\"#$&'()*+,-.:;<=>?@[\\]^_`{|}"


_IS_PLAIN = re.compile(f"[A-Za-z0-9{re.escape(_SAFE)}]*").fullmatch


def escape(part: str) -> str:
    """Escapes separators, control characters, and characters that ids reserve, in a part of an id or key."""
    if _IS_PLAIN(part):
        return part
    # `quote` leaves ~ as it is.
    return quote(part, safe=_SAFE).replace("~", "%7E")


def unescape(part: str) -> str:
    """Reverses `escape`."""
    return unquote(part) if "%" in part else part


def path(*parts: str) -> str:
    """Returns the id or key of these parts. Keys that begin with the same parts are neighbours."""
    return "/".join(map(escape, parts))


def put(
    key: str,
    data: Any = None,
    blob: bytes | None = None,
    *,
    keep: bool = False,
    expected_seq: int | None = None,
    append: bool = False,
) -> dict[str, Any]:
    """Returns an entry to write.

    Args:
        key: the key.
        data: a JSON value.
        blob: bytes.
        keep: an entry that exists is left as it is.
        expected_seq: the version of the entry that is replaced; 0 for a new one.
        append: the server adds digits to the key, which put the entry after all that were appended before.
    """
    entry: dict[str, Any] = {"key": key}
    if data is not None:
        entry["data"] = data
    if blob is not None:
        entry["blob"] = blob
    if keep:
        entry["keep"] = True
    if expected_seq is not None:
        entry["expected_seq"] = expected_seq
    if append:
        entry["append"] = True
    return entry


class Collections:
    """The collections of one kind. All adapters of a client share them."""

    def __init__(self, client: Abide, kind: str, decode: Decode, bytes_per_value: int) -> None:
        self.client = client
        self.kind = kind
        self.cache: Cache = Cache(client, decode, bytes_per_value)
        """The entries that have been read."""
        self._writer = _get_or_create(client, "writer", lambda: Writer(client))

    @staticmethod
    def for_client(
        client: Abide,
        kind: str,
        decode: Decode = lambda _, data: json.loads(data),
        bytes_per_value: int = BYTES_PER_VALUE,
    ) -> Collections:
        """Returns the collections of a client. `decode` makes the cached value of an entry from its key and its JSON."""
        return _get_or_create(client, f"collections {kind}", lambda: Collections(client, kind, decode, bytes_per_value))

    async def stored_id(self, *parts: str) -> str:
        """Returns the stored id of a collection. A caller with a scope has its own namespace."""
        return await fetch_namespace(self.client) + path(self.kind, *parts)

    def parts(self, stored_id: str) -> list[str]:
        """Returns the parts of a stored id; none if the id belongs to another scope, or does not begin with the kind.

        Any caller of the scope can make a collection of a kind.
        """
        namespace = self.client.namespace or ""
        kind, *parts = stored_id.removeprefix(namespace).split("/")
        return list(map(unescape, parts)) if kind == self.kind and stored_id.startswith(namespace) else []

    def begin(self, collection_id: str, puts: list[Entry], needs: Needs = (), is_repeatable: bool = False) -> Write | None:
        """Begins a write, if it fits one call; await its `done`. If it does not, see `write`.

        `needs` are keys of entries with their versions or writes: if one of them does not exist or has been replaced, the
        write is a conflict.
        """
        write = Write(self.kind, collection_id, puts, (), needs, is_repeatable)
        if not write.fits:
            return None
        self._writer.add(write)
        return write

    async def write(self, collection_id: str, puts: list[Entry], deletes: Sequence[str] = (), needs: Needs = ()) -> Write:
        """Writes entries: all or nothing, unless they are too many for one call. Returns the last write."""
        write = Write(self.kind, collection_id, puts, deletes, needs)
        if write.fits:
            return await self._run_write(write)
        for at in range(0, len(deletes), MOST_PUTS):
            write = await self._run_write(Write(self.kind, collection_id, [], deletes[at : at + MOST_PUTS]))
        for part in split_entries(puts, _PART_BYTES):
            write = await self._run_write(Write(self.kind, collection_id, part, (), needs))
            needs = ()
        return write

    async def _run_write(self, write: Write) -> Write:
        self._writer.add(write)
        await write.done
        return write

    async def replace(self, collection_id: str, puts: list[Entry]) -> None:
        """Replaces all entries of a collection in one transaction, if the new ones are at most 12 MiB."""
        parts = list(split_entries(puts, _PART_BYTES))
        first, rest = parts[:_PARTS_OF_A_BATCH], parts[_PARTS_OF_A_BATCH:]
        writes = [Call("write_entries", {"collection_id": collection_id, "kind": self.kind, "puts": part}) for part in first]
        while True:
            [count, size] = (await self.client.sql(_SIZE, {"c": collection_id})).cells[0]
            # One more than needed, for what another process adds until the calls are executed.
            needed = int(count or 0) // _DELETED_BY_A_CALL + int(size or 0) // _BYTES_DELETED_BY_A_CALL + 2
            delete = Call("delete_entries", {"collection_id": collection_id, "prefix": None})
            results = (await self.client.batch([delete] * needed + writes)).value
            if not results[needed - 1]["more"]:
                break
        for part in rest:
            await self._run_write(Write(self.kind, collection_id, part))

    async def delete(self, collection_id: str, prefix: str | None = None) -> None:
        """Deletes the entries with a prefix; all entries and the collection without one."""
        args = {"collection_id": collection_id, "prefix": prefix}
        while (await self.client.call("delete_entries", args))["more"]:
            pass


def _get_or_create(client: Abide, name: str, make: Callable[[], T]) -> T:
    """Returns what the adapters of a client share under a name; the first one makes it."""
    found: T = client._shared.get(name) or client._shared.setdefault(name, make())
    return found
