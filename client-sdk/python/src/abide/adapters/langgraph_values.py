"""Values of channels and pending writes: the bytes of each are stored once, and lists as the difference to an earlier version.

A list that grows by two messages a turn is stored as two messages a turn. A version of a list names its base (an earlier
version), the number of items that it keeps of it, and the new items. A value that has most of its bytes in common with
another one names that as its root (see `langgraph_bytes`). `Values` remembers the latest versions of lists and the latest
bytes in this process, so that it can find both, and so that a load does not read what it knows.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol

from . import langgraph_bytes
from .langgraph_entries import CheckpointEntry, Entries, Value
from .langgraph_keys import entry_key, writes_prefix
from .models import IMMUTABLE, Prototype
from .untrusted import decoding, too_large
from .writer import Entry, Write

_LIST_BYTES = 128 << 20
_RAW_BYTES = 64 << 20

# Bytes in memory of a message with short fields, measured.
_BYTES_PER_ITEM = 2_500

# Similar values are stored soon after each other: the input, the write and the new version of a channel.
_ROOTS = 3
_ROOT_FROM = 128
_RAW_UP_TO = 4 << 20
_RAWS_OF_A_COLLECTION = 32

_CHECKPOINTS = 4
_COLLECTIONS = 10_000


class Place(NamedTuple):
    """Where a checkpoint has the value of a channel."""

    version: str | int | float | None
    """The version of the channel; `None` if it has none."""
    name: str
    """The name of the value."""


@dataclass(slots=True)
class Pending:
    """A checkpoint whose write begins. Pending writes become a part of its entry until it is sent."""

    entry: CheckpointEntry
    put: Entry
    """The entry as it is sent."""
    size: int
    """The bytes of its values."""
    parent: str | None
    """The key of its parent."""


@dataclass(slots=True)
class Known:
    """A checkpoint that this process remembers."""

    written: Write | int
    """The version of its entry, or the write that makes it."""
    places: dict[str, Place]
    """Its values, by channel."""
    pending: Pending | None = None
    """The written values, as long as this process writes them for the first time."""

    def mark_ended(self, _: object) -> None:
        """Forgets the written values: the write has ended."""
        self.pending = None

    @property
    def has_failed(self) -> bool:
        """`True` if the entry may not exist."""
        return isinstance(self.written, Write) and self.written.has_failed


@dataclass(frozen=True, slots=True)
class Raw:
    """The bytes of a value that this process remembers."""

    kind: str
    raw: bytes
    written: Write | int
    """The version of its entry, or the write that makes it."""
    is_root: bool
    """`True` if others can refer to it."""
    is_value: bool
    """`True` if it is the value of a version: not only the new items of a list, and no pending write."""

    @property
    def seq(self) -> int:
        """The version of its entry; 0 if it is not written."""
        return self.written if isinstance(self.written, int) else self.written.seq

    @property
    def has_failed(self) -> bool:
        """`True` if the entry may not exist."""
        return isinstance(self.written, Write) and self.written.has_failed


@dataclass(slots=True)
class Encoded:
    """A value, ready to be written."""

    name: str
    value: Value
    raw: bytes
    """Its bytes; for a list, the bytes of the new items."""
    needs: dict[str, Write | int] = field(default_factory=dict)
    """The keys of the entries that it refers to."""
    folder: str | None = None
    """Namespace and channel, if it is the value of a channel."""
    items: list[Prototype] | None = None
    """The items of a list."""
    size: int = 0
    """The bytes of all items."""

    @property
    def is_root(self) -> bool:
        """`True` if others can refer to it."""
        return self.value.root is None and len(self.raw) >= _ROOT_FROM


class Values:
    """Encodes and decodes the values of one saver."""

    def __init__(self, serde: SerializerProtocol, max_bytes: int) -> None:
        self._serde = serde
        self.max_bytes = max_bytes
        self._timeline: str | None = None
        self._lists = _Lists()
        self._raws = _Raws()
        self._checkpoints: OrderedDict[str, OrderedDict[str, Known]] = OrderedDict()

    def check_timeline(self, timeline: str | None) -> None:
        """Forgets everything that was written in another history of the database."""
        if timeline != self._timeline:
            self._timeline = timeline
            self._lists, self._raws, self._checkpoints = _Lists(), _Raws(), OrderedDict()

    def dump(self, value: Any) -> tuple[str, bytes]:
        """Returns the kind and the bytes of a value.

        Raises:
            LimitExceededError: they are too many.
        """
        kind, raw = self._serde.dumps_typed(value)
        if len(raw) > self.max_bytes:
            raise too_large(self.max_bytes)
        return kind, raw

    def load(self, kind: str, raw: bytes) -> Any:
        """Reverses `dump`."""
        return self._serde.loads_typed((kind, raw))

    def encode(self, collection: str, name: str, value: Any, earlier: list[Encoded] | None) -> Encoded:
        """Encodes a value, to be stored under a name after others of the same write. Without `earlier` it refers to nothing."""
        kind, raw = self.dump(value)
        if earlier is not None and len(raw) >= _ROOT_FROM:
            for root_name, root, written in self._roots(collection, earlier):
                found = langgraph_bytes.difference(raw, root)
                if found is not None:
                    flat, between = found
                    needs = {} if written is None else {entry_key(root_name): written}
                    return Encoded(name, Value(between, kind, root_name, flat), raw, needs)
        return Encoded(name, Value(raw, kind), raw)

    def encode_channel(self, collection: str, folder: str, name: str, value: Any, earlier: list[Encoded] | None) -> Encoded:
        """Returns the value of a channel, see `encode`. `folder` is its namespace and the channel."""
        if type(value) is not list or not value:
            whole = self.encode(collection, name, value, earlier)
            whole.folder = folder
            return whole
        base = self._lists.get(collection, folder) if earlier is not None else None
        kept = 0
        if base is not None:
            for item, prototype in zip(value, base.items, strict=False):
                if not self._equals(item, prototype):
                    break
                kept += 1
        added = value[kept:]
        encoded = self.encode(collection, name, added, earlier)
        encoded.folder = folder
        encoded.value.kept = kept
        encoded.size = len(encoded.raw)
        items = _items(added)
        if base is not None and kept:
            encoded.size += base.size
            encoded.value.base = base.name
            encoded.needs[entry_key(base.name)] = base.written
            items = None if items is None else base.items[:kept] + items
        encoded.items = items
        return encoded

    def _roots(self, collection: str, earlier: list[Encoded]) -> Iterator[tuple[str, bytes, Write | int | None]]:
        """Yields values that one can refer to, the latest first. Those of the same write need no check."""
        for one in reversed(earlier):
            if one.is_root:
                yield one.name, one.raw, None
        for name in reversed(self._raws.roots(collection)):
            raw = self._raws.get(collection, name)
            if raw is not None and not raw.has_failed:
                yield name, raw.raw, raw.written

    def needs(self, collection: str, needs: dict[str, Write | int], parent: str | None) -> list[tuple[str, Write | int]]:
        """Returns the entries that must exist. A checkpoint needs its values and writes, so the parent stands for them."""
        known = self.known(collection, parent)
        if known is None or parent is None:
            return list(needs.items())
        keys = {parent, *(entry_key(place.name) for place in known.places.values())}
        prefix = writes_prefix(parent)
        left: list[tuple[str, Write | int]] = []
        for key, written in needs.items():
            if not (key in keys or key.startswith(prefix)) or (isinstance(written, Write) and not written.seq):
                left.append((key, written))
        if len(left) < len(needs):
            left.append((parent, known.written))
        return left

    def known(self, collection: str, key: str | None) -> Known | None:
        """Returns a checkpoint that this process remembers."""
        found = self._checkpoints.get(collection, _NO_CHECKPOINTS).get(key or "")
        return None if found is None or found.has_failed else found

    def remember(self, collection: str, key: str, known: Known) -> None:
        """Remembers a checkpoint that was read, or whose write begins."""
        checkpoints = self._checkpoints.setdefault(collection, OrderedDict())
        checkpoints[key] = known
        checkpoints.move_to_end(key)
        self._checkpoints.move_to_end(collection)
        if len(checkpoints) > _CHECKPOINTS:
            checkpoints.popitem(last=False)
        if len(self._checkpoints) > _COLLECTIONS:
            self._checkpoints.popitem(last=False)

    def remember_write(self, collection: str, encoded: list[Encoded], write: Write) -> None:
        """Remembers what a write has, which begins now. If it fails, nothing refers to it."""
        for one in encoded:
            if one.folder is not None and one.items is not None:
                self._lists.put(collection, one.folder, _Version(one.name, write, one.items, one.size))
            is_value = one.folder is not None and one.value.kept is None
            if one.is_root or is_value:
                self._raws.put(collection, one.name, Raw(one.value.kind, one.raw, write, one.is_root, is_value))

    def expected(self, collection: str, prefix: str) -> list[str]:
        """Returns the keys of the entries whose values the process probably remembers.

        They belong to the latest checkpoint with a prefix.
        """
        for key, known in reversed(self._checkpoints.get(collection, _NO_CHECKPOINTS).items()):
            if key.startswith(prefix):
                keys = {entry_key(place.name) for place in known.places.values()}
                keys.discard(key)
                return list(keys)
        return []

    def remembered(self, collection: str, folder: str, name: str, seq: int) -> tuple[Any] | None:
        """Returns the value of a channel, if this process remembers this version of its entry."""
        version = self._lists.get(collection, folder)
        if version is not None and version.name == name and version.seq == seq:
            copies = _copies(version.items)
            return None if copies is None else (copies,)
        raw = self._raws.get(collection, name)
        return None if raw is None or raw.seq != seq or not raw.is_value else (self.load(raw.kind, raw.raw),)

    def decode(self, collection: str, folder: str, name: str, entries: Entries) -> Any:
        """Returns the value of a channel. `entries` has its entry, and those that it refers to.

        Raises:
            MalformedEntryError: entries are malformed, refer to each other in a circle, or to an entry that does not exist.
        """
        with decoding(f"the value {name!r} of {collection!r}"):
            stored = entries.value(name)
            if stored.kept is not None:
                return self._decode_list(collection, folder, name, entries)
            raw = entries.raw(name)
            value = self.load(stored.kind, raw)
            is_root = stored.root is None and len(raw) >= _ROOT_FROM
            seq = entries.stored[entry_key(name)].seq
            self._raws.put(collection, name, Raw(stored.kind, raw, seq, is_root, True))
            return value

    def _decode_list(self, collection: str, folder: str, name: str, entries: Entries) -> list[Any]:
        parts: dict[str, Value] = {}
        at: str | None = name
        while at is not None:
            if at in parts:
                raise ValueError(f"{at!r} is its own base")
            parts[at] = entries.value(at)
            at = parts[at].base
        value: list[Any] = []
        size = 0
        for part, stored in reversed(parts.items()):
            kept = stored.kept
            if kept is None or kept > len(value):
                raise ValueError(f"{part!r} keeps more items than there are")
            del value[kept:]
            raw = entries.raw(part)
            items_of_part = self.load(stored.kind, raw)
            if type(items_of_part) is not list:
                raise ValueError(f"{part!r} is not a list")
            value += items_of_part
            size += len(raw)
        items = _items(value)
        if items is not None:
            seq = entries.stored[entry_key(name)].seq
            self._lists.put(collection, folder, _Version(name, seq, items, size))
        return value

    def forget(self, collection: str) -> None:
        """Forgets a collection."""
        self._lists.forget(collection)
        self._raws.forget(collection)
        self._checkpoints.pop(collection, None)

    def _equals(self, item: Any, prototype: Prototype) -> bool:
        """Returns `True` if an item equals what is stored, types included."""
        value = prototype.value
        if type(item) is not type(value):
            return False
        if prototype.is_simple and not item.__pydantic_extra__:
            return bool(item.__dict__ == value.__dict__)
        if isinstance(item, BaseMessage) and not item.__pydantic_extra__ and not value.__pydantic_extra__:
            item, value = item.__dict__, value.__dict__
        return _is_identical(item, value, self._serde)


class _Version:
    """The latest version of a list."""

    __slots__ = ("items", "name", "size", "written")

    def __init__(self, name: str, written: Write | int, items: list[Prototype], size: int) -> None:
        self.name = name
        self.written = written
        self.items = items
        self.size = size
        """The bytes of its items."""

    @property
    def memory(self) -> int:
        return self.size + len(self.items) * _BYTES_PER_ITEM

    @property
    def seq(self) -> int:
        return self.written if isinstance(self.written, int) else self.written.seq


class _Lists:
    """The latest versions of lists, by collection and folder. Their memory is bounded."""

    def __init__(self) -> None:
        self._all: OrderedDict[str, dict[str, _Version]] = OrderedDict()
        self._size = 0

    def get(self, collection: str, folder: str) -> _Version | None:
        version = self._all.get(collection, {}).get(folder)
        if version is None or (isinstance(version.written, Write) and version.written.has_failed):
            return None
        self._all.move_to_end(collection)
        return version

    def put(self, collection: str, folder: str, version: _Version) -> None:
        versions = self._all.setdefault(collection, {})
        self._size += version.memory - (versions[folder].memory if folder in versions else 0)
        versions[folder] = version
        self._all.move_to_end(collection)
        while self._size > _LIST_BYTES and self._all:
            self.forget(next(iter(self._all)))

    def forget(self, collection: str) -> None:
        for version in self._all.pop(collection, {}).values():
            self._size -= version.memory


_NONE: OrderedDict[str, Raw] = OrderedDict()
_NO_KEYS: deque[str] = deque()
_NO_CHECKPOINTS: OrderedDict[str, Known] = OrderedDict()


class _Raws:
    """The latest bytes, by collection and name. Their memory is bounded."""

    def __init__(self) -> None:
        self._all: OrderedDict[str, OrderedDict[str, Raw]] = OrderedDict()
        self._roots: dict[str, deque[str]] = {}
        self._size = 0

    def get(self, collection: str, name: str) -> Raw | None:
        raws = self._all.get(collection)
        return raws.get(name) if raws is not None else None

    def roots(self, collection: str) -> deque[str]:
        """Returns the names of the latest that can be roots, the last one at the end."""
        return self._roots.get(collection, _NO_KEYS)

    def put(self, collection: str, name: str, raw: Raw) -> None:
        if len(raw.raw) > _RAW_UP_TO:
            return
        raws = self._all.setdefault(collection, OrderedDict())
        self._all.move_to_end(collection)
        before = raws.pop(name, None)
        self._size += len(raw.raw) - (len(before.raw) if before else 0)
        raws[name] = raw
        if raw.is_root:
            self._roots.setdefault(collection, deque(maxlen=_ROOTS)).append(name)
        if len(raws) > _RAWS_OF_A_COLLECTION:
            self._size -= len(raws.popitem(last=False)[1].raw)
        while self._size > _RAW_BYTES:
            self.forget(next(iter(self._all)))

    def forget(self, collection: str) -> None:
        self._roots.pop(collection, None)
        for raw in self._all.pop(collection, _NONE).values():
            self._size -= len(raw.raw)


def _is_identical(value: Any, other: Any, serde: SerializerProtocol) -> bool:
    """Returns `True` if two values are equal, types included."""
    kind = type(value)
    if kind is not type(other):
        return False
    if kind in IMMUTABLE:
        return bool(value == other)
    if kind is dict:
        return value.keys() == other.keys() and all(_is_identical(part, other[name], serde) for name, part in value.items())
    if kind is list:
        return len(value) == len(other) and all(_is_identical(*parts, serde) for parts in zip(value, other, strict=True))
    return serde.dumps_typed(value) == serde.dumps_typed(other)


def _items(values: list[Any]) -> list[Prototype] | None:
    """Returns items with deep copies of these values; `None` if one cannot be copied."""
    try:
        return [Prototype(Prototype(value).copy()) for value in values]
    except Exception:
        return None


def _copies(items: list[Prototype]) -> list[Any] | None:
    try:
        return [item.copy() for item in items]
    except Exception:
        return None
