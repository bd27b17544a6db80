"""Values of channels: stored once for each version, and lists as the difference to an earlier version.

A list that grows by two messages a turn is stored as two messages a turn. An entry of a list names its base (an earlier
version), the number of items that it keeps of it, and the new items. `Values` remembers the items of the latest versions in
this process, so that it can find the difference, and so that a load does not read what it knows.
"""

from __future__ import annotations

import copy
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol

_COMPRESS_FROM = 256
_REMEMBERED_ITEMS = 200_000


@dataclass(frozen=True, slots=True)
class Stored:
    """What an entry holds: a description (JSON) and bytes; and the version of the entry, if it was read."""

    data: dict[str, Any]
    blob: bytes
    seq: int = 0


def pack(serde: SerializerProtocol, value: Any) -> tuple[str, bytes]:
    """A value as bytes, compressed if that makes it smaller, and how to read them."""
    kind, raw = serde.dumps_typed(value)
    if len(raw) >= _COMPRESS_FROM:
        small = zlib.compress(raw, 1)
        if len(small) < len(raw):
            return f"{kind}+z", small
    return kind, raw


def unpack(serde: SerializerProtocol, kind: str, blob: bytes | None) -> Any:
    """The inverse of `pack`."""
    raw = blob or b""
    if kind.endswith("+z"):
        return serde.loads_typed((kind[:-2], zlib.decompress(raw)))
    return serde.loads_typed((kind, raw))


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a list that this process remembers."""

    key: str
    """The key of its entry."""
    seq: int
    """The version of the entry itself."""
    items: list[Any]
    """Its items, of which no caller has a reference."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A version of a channel, ready to be written."""

    channel: str
    key: str
    stored: Stored
    base: Version | None
    """What the entry refers to; it must exist when the entry is written."""
    items: list[Any] | None
    """The items of a list, to be remembered when the entry is written."""


class Values:
    """Encodes and decodes the values of channels of one saver."""

    def __init__(self, serde: SerializerProtocol) -> None:
        self._serde = serde
        # By collection and channel: the latest version. The number of all items is bounded.
        self._remembered: OrderedDict[tuple[str, str], Version] = OrderedDict()
        self._count = 0

    def encode(self, collection: str, channel: str, key: str, value: Any) -> Encoded:
        """A version of a channel, to be stored under a key."""
        if type(value) is not list or not value:
            kind, blob = pack(self._serde, value)
            return Encoded(channel, key, Stored({"t": kind}, blob), None, None)
        base = self._remembered.get((collection, channel))
        kept = 0
        for item, master in zip(value, base.items if base else (), strict=False):
            if not self._is_same(item, master):
                break
            kept += 1
        added = value[kept:]
        kind, blob = pack(self._serde, added)
        data: dict[str, Any] = {"t": kind, "n": len(added)}
        if base is None or not kept:
            return Encoded(channel, key, Stored(data, blob), None, _copies(added))
        copies = _copies(added)
        items = None if copies is None else base.items[:kept] + copies
        return Encoded(channel, key, Stored({**data, "b": base.key, "k": kept}, blob), base, items)

    def written(self, collection: str, encoded: Encoded, seq: int) -> None:
        """Remembers a version: it is durable now."""
        if encoded.items is not None:
            self._remember(collection, encoded.channel, Version(encoded.key, seq, encoded.items))

    def known(self, collection: str, channel: str, key: str) -> list[Any] | None:
        """The value of a version that this process remembers."""
        version = self._remembered.get((collection, channel))
        if version is None or version.key != key:
            return None
        self._remembered.move_to_end((collection, channel))
        return _copies(version.items)

    def decode(self, collection: str, channel: str, key: str, chain: dict[str, Stored]) -> Any:
        """The value of a version. `chain` has its entry, and those of its bases."""
        if "n" not in chain[key].data:
            return unpack(self._serde, chain[key].data["t"], chain[key].blob)
        parts: list[Stored] = []
        at: str | None = key
        while at is not None:
            parts.append(chain[at])
            at = chain[at].data.get("b")
        value: list[Any] = []
        for part in reversed(parts):
            del value[part.data.get("k", 0) :]
            value += unpack(self._serde, part.data["t"], part.blob)
        copies = _copies(value)
        if copies is not None:
            self._remember(collection, channel, Version(key, chain[key].seq, copies))
        return value

    def forget(self, collection: str) -> None:
        """Forgets the versions of a collection."""
        for name in [name for name in self._remembered if name[0] == collection]:
            self._count -= len(self._remembered.pop(name).items)

    def _remember(self, collection: str, channel: str, version: Version) -> None:
        name = (collection, channel)
        before = self._remembered.pop(name, None)
        self._count += len(version.items) - (len(before.items) if before else 0)
        self._remembered[name] = version
        while self._count > _REMEMBERED_ITEMS and len(self._remembered) > 1:
            _, oldest = self._remembered.popitem(last=False)
            self._count -= len(oldest.items)

    def _is_same(self, item: Any, master: Any) -> bool:
        """Whether an item equals what is stored, types included."""
        if type(item) is not type(master):
            return False
        if type(item) in _IMMUTABLE:
            return bool(item == master)
        if isinstance(item, BaseMessage) and not item.__pydantic_extra__ and not master.__pydantic_extra__:
            fields, others = item.__dict__, master.__dict__
            return fields.keys() == others.keys() and all(
                value == others[name] if type(value) in _IMMUTABLE else self._is_equal(value, others[name])
                for name, value in fields.items()
            )
        return self._is_equal(item, master)

    def _is_equal(self, value: Any, other: Any) -> bool:
        if not value and not other:
            return type(value) is type(other)
        return self._serde.dumps_typed(value) == self._serde.dumps_typed(other)


def _copied(item: Any) -> Any:
    """A deep copy. Messages have a fast path: almost all of their fields are immutable or empty."""
    if not isinstance(item, BaseMessage) or item.__pydantic_extra__ or item.__pydantic_private__:
        return copy.deepcopy(item)
    made = object.__new__(type(item))
    fields = {
        name: value if type(value) in _IMMUTABLE else copy.deepcopy(value) if value else type(value)()
        for name, value in item.__dict__.items()
    }
    object.__setattr__(made, "__dict__", fields)
    object.__setattr__(made, "__pydantic_fields_set__", set(item.__pydantic_fields_set__))
    object.__setattr__(made, "__pydantic_extra__", copy.copy(item.__pydantic_extra__))
    object.__setattr__(made, "__pydantic_private__", copy.copy(item.__pydantic_private__))
    return made


_IMMUTABLE = frozenset({str, int, float, bool, type(None), bytes})


def _copies(items: list[Any]) -> list[Any] | None:
    """Deep copies; `None` if an item cannot be copied."""
    try:
        return list(map(_copied, items))
    except Exception:
        return None
