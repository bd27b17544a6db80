"""The entries of a LangGraph thread as bytes, and what they refer to.

The entry of a checkpoint is one deflated MessagePack list: its parent, the checkpoint with its metadata, the places of its
values in other entries, the pending writes that were stored together with it, and its own values. A value is its bytes, or
what distinguishes it from another value: the bytes that another value (its root) does not have, and for a list the number of
items that it keeps of an earlier version (its base). The entry of a pending write is the same without a checkpoint: channels,
path of the task, value.

A value of more than 4 KiB has an entry of its own, so that a list is read without the other values of its checkpoints. There
the description is JSON: `t` is how the bytes are read, absent for the usual way; `n` marks a list, `b` is its base and `k` the
number of items that it keeps; `f` is the root and `o` the parts of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ormsgpack

from . import langgraph_bytes
from .langgraph_keys import base_key, bytes_to_short_id, entry_key, short_id_to_bytes
from .untrusted import Budget

MOST_IN_ENTRY = 4 << 10
"""A value of more bytes has an entry of its own."""

_USUAL_KIND = "msgpack"
_USUAL_WAY = "msgpack+d"

# How LangGraph begins the path of a usual task; the name of its node follows.
_PATH_OF_NODE = "~__pregel_pull, "

_OWN = 0
_PARENT = 1

_pack = ormsgpack.packb


@dataclass(slots=True)
class Value:
    """A value: its bytes, or what distinguishes it from others."""

    between: bytes
    """Its bytes; those between the parts of the root if it has one."""
    kind: str = _USUAL_KIND
    """The name that the serializer gives them."""
    root: str | None = None
    """The name of a value that has most of its bytes."""
    parts: list[int] | None = None
    """The parts of the root, see `langgraph_bytes`."""
    kept: int | None = None
    """How many items a list keeps of its base; `None` if it is not a list. The bytes are the other items."""
    base: str | None = None
    """The name of an earlier version."""


@dataclass(slots=True)
class CheckpointEntry:
    """The entry of a checkpoint."""

    parent: str | None
    """The short id of its parent."""
    kind: str
    head: bytes
    """The checkpoint without values, its metadata, and small values."""
    places: dict[str, str]
    """The names of its values in other entries, by channel."""
    own: dict[str, Value]
    """Values in this entry, by channel. One whose channel also has a place belongs to other checkpoints."""
    writes: dict[str, WriteEntry] = field(default_factory=dict)
    """Its first pending writes, by task and index."""


@dataclass(slots=True)
class WriteEntry:
    """The pending writes of a task."""

    channels: str | list[str]
    """The channel of a write, or a list of channels for several writes."""
    path: str
    """The path of the task."""
    value: Value
    """The value, or a list of values for several writes."""
    indexes: list[int] | None = None
    """The indexes of several writes, if they are not consecutive."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An entry as it was read."""

    data: Any
    """Its JSON."""
    blob: bytes
    seq: int
    """Its version."""


class Entries:
    """Entries of a thread that were read, and the values in them. Each is decompressed, and counted, once."""

    def __init__(self, budget: Budget) -> None:
        self.stored: dict[str, Stored] = {}
        self.budget = budget
        self._checkpoints: dict[str, CheckpointEntry] = {}
        self._values: dict[str, Value] = {}
        self._writes: dict[str, WriteEntry] = {}

    def add(self, key: str, data: str | None, blob: bytes | None, seq: int) -> None:
        """Adds a row."""
        self.stored[key] = Stored(None if data is None else json.loads(data), blob or b"", seq)

    def has(self, name: str) -> bool:
        """Returns `True` if the entry with a value was read."""
        return entry_key(name) in self.stored

    def checkpoint(self, key: str) -> CheckpointEntry:
        """Returns a checkpoint.

        Raises:
            ValueError: it does not exist. Malformed entries also raise other errors.
        """
        found = self._checkpoints.get(key)
        if found is None:
            found = self._checkpoints[key] = read_checkpoint(key, self._entry(key), self.budget)
        return found

    def write(self, key: str) -> WriteEntry:
        """Returns pending writes, by the name of their value."""
        if key.startswith("c/"):
            return self.checkpoint(entry_key(key)).writes[key.split("/", 3)[3]]
        found = self._writes.get(key)
        if found is None:
            found = self._writes[key] = read_write(key, self._entry(key), self.budget)
        return found

    def value(self, name: str) -> Value:
        """Returns the value with a name."""
        found = self._values.get(name)
        if found is None:
            found = self._values[name] = self._read_value(name)
        return found

    def _read_value(self, name: str) -> Value:
        is_write = name.startswith("w/") or name.count("/") == 4
        if is_write:
            return self.write(name).value
        if name.startswith("c/"):
            return self.checkpoint(entry_key(name)).own[name.rsplit("/", 1)[1]]
        stored = self._entry(name)
        return _value_from_json(name, stored.data, stored.blob, self.budget)

    def raw(self, name: str) -> bytes:
        """Returns the bytes of a value, with those of its root."""
        value = self.value(name)
        if value.root is None:
            return value.between
        root = self.value(value.root)
        if root.root is not None or value.parts is None:
            raise ValueError("a root has a root, or no parts")
        return langgraph_bytes.rebuild(value.parts, value.between, root.between, self.budget)

    def _entry(self, key: str) -> Stored:
        found = self.stored.get(key)
        if found is None:
            raise ValueError(f"{key!r} does not exist")
        return found


class _Names:
    """Names of values as they are stored in an entry: relative to its checkpoint and to the parent of it."""

    def __init__(self, key: str, parent: str | None) -> None:
        _, self.namespace, self.own, *_ = key.split("/")
        self.parent = parent

    def pack(self, name: str) -> Any:
        kind, namespace, first, second, *rest = name.split("/")
        if namespace != self.namespace:
            return name
        if kind == "v":
            return [_packed_id(second), first, True]
        checkpoint = _OWN if first == self.own else _PARENT if first == self.parent else _packed_id(first)
        if not rest:
            return [checkpoint, second]
        return [checkpoint, _packed_id(second), rest[0], *([True] if kind == "c" else [])]

    def unpack(self, packed: Any) -> str:
        if isinstance(packed, str):
            return packed
        first, second, *rest = packed
        if rest == [True]:
            return f"v/{self.namespace}/{second}/{_unpacked_id(first)}"
        checkpoint = self.own if first == _OWN else self.parent if first == _PARENT else _unpacked_id(first)
        if not rest:
            return f"c/{self.namespace}/{checkpoint}/{second}"
        kind = "w" if len(rest) == 1 else "c"
        return f"{kind}/{self.namespace}/{checkpoint}/{_unpacked_id(second)}/{rest[0]}"

    def in_parent(self, channel: str) -> str:
        """Returns the value of a channel in the entry of the parent."""
        return f"c/{self.namespace}/{self.parent}/{channel}"


def write_checkpoint(key: str, entry: CheckpointEntry) -> bytes:
    """Returns the bytes of a checkpoint."""
    names = _Names(key, entry.parent)
    parent = None if entry.parent is None else _packed_id(entry.parent)
    head = entry.head if entry.kind == _USUAL_KIND else [entry.kind, entry.head]
    places = {channel: _PARENT if name == names.in_parent(channel) else names.pack(name) for channel, name in entry.places.items()}
    own = {channel: _packed_value(value, names, channel) for channel, value in entry.own.items()}
    writes = []
    for name, one in entry.writes.items():
        task, index = name.split("/")
        writes.append([_packed_id(task), index, *_packed_write(one, names)])
    # Values have other bytes than the rest, so they get a block of their own in the compressed bytes.
    first = b"".join(map(_pack, (parent, head, places, writes)))
    return langgraph_bytes.compress_entry(b"\x95" + first, _pack(own))


def read_checkpoint(key: str, stored: Stored, budget: Budget) -> CheckpointEntry:
    """Reverses `write_checkpoint`."""
    parent, head, places, writes, own = ormsgpack.unpackb(langgraph_bytes.decompress_entry(stored.blob, budget))
    names = _Names(key, None if parent is None else _unpacked_id(parent))
    kind, head = (_USUAL_KIND, head) if isinstance(head, bytes) else head
    return CheckpointEntry(
        names.parent,
        kind,
        _bytes(head),
        {channel: names.in_parent(channel) if place == _PARENT else names.unpack(place) for channel, place in places.items()},
        {channel: _unpacked_value(packed, names, channel) for channel, packed in own.items()},
        {f"{_unpacked_id(task)}/{index}": _unpacked_write(packed, names) for task, index, *packed in writes},
    )


def write_writes(key: str, entry: WriteEntry) -> tuple[dict[str, Any] | None, bytes | None]:
    """Returns the JSON and the bytes of pending writes."""
    path, value = entry.path, entry.value
    if len(value.between) > MOST_IN_ENTRY:
        data, blob = value_to_json(key, value)
        path_field = {"q": path.removeprefix(_PATH_OF_NODE)} if path.startswith(_PATH_OF_NODE) else {"p": path} if path else {}
        if entry.indexes is not None:
            data["i"] = entry.indexes
        return {**data, "c": entry.channels, **path_field}, blob
    return None, langgraph_bytes.compress_entry(_pack(_packed_write(entry, _Names(key, None))))


def read_write(key: str, stored: Stored, budget: Budget) -> WriteEntry:
    """Reverses `write_writes`."""
    data = stored.data
    if data is not None:
        path = _PATH_OF_NODE + str(data["q"]) if "q" in data else data.get("p", "")
        return WriteEntry(data["c"], path, _value_from_json(key, data, stored.blob, budget), data.get("i"))
    packed = ormsgpack.unpackb(langgraph_bytes.decompress_entry(stored.blob, budget))
    return _unpacked_write(packed, _Names(key, None))


def value_to_json(key: str, value: Value) -> tuple[dict[str, Any], bytes | None]:
    """Returns the JSON and the bytes of a value with an entry of its own."""
    data, blob = _compressed(value.kind, value.between)
    if value.kept is not None:
        data["n"] = 1
        if value.base is not None:
            is_near = value.base.rsplit("/", 1)[0] == key.rsplit("/", 1)[0]
            data |= {"b": value.base.rsplit("/", 1)[1] if is_near else value.base, "k": value.kept}
    if value.root is not None:
        data |= {"f": value.root, "o": value.parts}
    return data, blob or None


def references_in_json(name: str, data: Any) -> list[str]:
    """Returns the names in the JSON of a value."""
    if not isinstance(data, dict):
        return []
    base, root = data.get("b"), data.get("f")
    return [*([base_key(name, base)] if isinstance(base, str) else []), *([root] if isinstance(root, str) else [])]


def references_in_value(value: Value) -> list[str]:
    """Returns the names of the values that one refers to."""
    return [name for name in (value.base, value.root) if name is not None]


def _value_from_json(name: str, data: Any, blob: bytes, budget: Budget) -> Value:
    kind, between = _decompressed(data, blob, budget)
    value = Value(between, kind)
    if "n" in data:
        value.kept = _count(data.get("k", 0))
        if "b" in data:
            value.base = base_key(name, data["b"])
    if "f" in data:
        value.root, value.parts = _optional_text(data["f"]), data["o"]
    return value


def _packed_write(entry: WriteEntry, names: _Names) -> list[Any]:
    path = entry.path
    node = [path.removeprefix(_PATH_OF_NODE)] if path.startswith(_PATH_OF_NODE) else path
    packed = [entry.channels, node, _packed_value(entry.value, names, "")]
    return packed if entry.indexes is None else [*packed, entry.indexes]


def _unpacked_write(packed: Any, names: _Names) -> WriteEntry:
    channels, path, value, *rest = packed
    if isinstance(path, list):
        path = _PATH_OF_NODE + path[0]
    return WriteEntry(channels, path, _unpacked_value(value, names, ""), rest[0] if rest else None)


def _packed_value(value: Value, names: _Names, channel: str) -> Any:
    is_usual = value.kind == _USUAL_KIND
    if is_usual and value.root is None and value.kept is None:
        return value.between
    # The base in the entry of the parent is the usual one.
    base = None if value.base is None or value.base == names.in_parent(channel) else names.pack(value.base)
    root = None if value.root is None else names.pack(value.root)
    packed = [value.between, None if is_usual else value.kind, root, value.parts, value.kept, base]
    while packed[-1] is None:
        packed.pop()
    return packed


def _unpacked_value(packed: Any, names: _Names, channel: str) -> Value:
    if isinstance(packed, bytes):
        return Value(packed)
    between, *rest = packed
    kind, root, parts, kept, base = rest + [None] * (5 - len(rest))
    value = Value(_bytes(between), kind or _USUAL_KIND, None if root is None else names.unpack(root), parts)
    if kept is not None:
        value.kept = _count(kept)
        if base is not None:
            value.base = names.unpack(base)
        elif kept:
            value.base = names.in_parent(channel)
    return value


def _packed_id(part: str) -> bytes | str:
    return short_id_to_bytes(part) if part.startswith("=") and len(part) == 23 else part


def _unpacked_id(packed: Any) -> str:
    if isinstance(packed, bytes):
        if len(packed) != 16:
            raise ValueError("an id has not 16 bytes")
        return bytes_to_short_id(packed)
    if not isinstance(packed, str) or "/" in packed:
        raise ValueError("an id is neither bytes nor a text without a slash")
    return packed


def _compressed(kind: str, raw: bytes) -> tuple[dict[str, Any], bytes]:
    if not raw and kind == _USUAL_KIND:
        return {}, raw
    small = langgraph_bytes.compress(raw)
    way = kind if small is None else f"{kind}+d"
    return ({} if way == _USUAL_WAY else {"t": way}), raw if small is None else small


def _decompressed(data: Mapping[str, Any], blob: bytes, budget: Budget) -> tuple[str, bytes]:
    kind: str = data.get("t", _USUAL_WAY if blob else _USUAL_KIND)
    if kind.endswith("+d"):
        return kind[:-2], langgraph_bytes.decompress(blob, budget)
    budget.take(len(blob))
    return kind, blob


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("a list keeps a negative number of items")
    return value


def _optional_text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError("an id is not a string")
    return value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("bytes are missing")
    return value
