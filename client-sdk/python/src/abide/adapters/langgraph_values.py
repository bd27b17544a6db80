"""Values of channels and pending writes: the bytes of each are stored once, and lists as the difference to an earlier version.

A list that grows by two messages a turn is stored as two messages a turn. An entry of a list names its base (an earlier
version), the number of items that it keeps of it, and the new items. A value that has most of its bytes in common with
another entry names that as its root (see `langgraph_bytes`). `Values` remembers the latest versions of lists and the latest
bytes in this process, so that it can find both, and so that a load does not read what it knows.

The JSON of an entry: `t` is how the bytes are read, absent for the usual way; `n` the number of items, `b` the version of
the base and `k` the items that it keeps, for lists; `f` the root and `o` the parts of it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.base import SerializerProtocol

from . import langgraph_bytes
from .langgraph_keys import base_key, writes_prefix
from .models import IMMUTABLE, Master
from .untrusted import Budget, decoding, too_large
from .writer import Write

_LIST_BYTES = 128 << 20
_RAW_BYTES = 64 << 20

# Bytes in memory of a message with short fields, measured.
_BYTES_PER_ITEM = 2_500

# What is similar is stored soon after each other: the input, the write and the new version of a channel.
_ROOTS = 3
_ROOT_FROM = 128
_RAW_UP_TO = 4 << 20
_RAWS_OF_A_COLLECTION = 32

_CHECKPOINTS = 4
_COLLECTIONS = 10_000

_USUAL = "msgpack+d"


@dataclass(frozen=True, slots=True)
class Stored:
    """What an entry holds: a description (JSON) and bytes; and the version of the entry."""

    data: dict[str, Any]
    blob: bytes | None
    """`None` if it was not read, or is empty."""
    seq: int


@dataclass(frozen=True, slots=True)
class Raw:
    """The bytes of a value that this process remembers."""

    kind: str
    raw: bytes
    written: Write | int
    """The version of its entry, or the write that makes it."""
    is_root: bool
    """Whether others can refer to it."""
    is_value: bool
    """Whether it is the value of a version: not only the new items of a list, and no pending write."""

    @property
    def seq(self) -> int:
        """The version of its entry; 0 if it is not written."""
        return self.written if isinstance(self.written, int) else self.written.seq

    @property
    def has_failed(self) -> bool:
        """Whether the entry may not exist."""
        return isinstance(self.written, Write) and self.written.has_failed


@dataclass(slots=True)
class Encoded:
    """A value, ready to be written."""

    key: str
    data: dict[str, Any]
    blob: bytes
    needs: dict[str, Write | int] = field(default_factory=dict)
    """Entries that it refers to."""
    kind: str = ""
    raw: bytes = b""
    """Its bytes."""
    is_root: bool = False
    """Whether others can refer to it."""
    channel: str | None = None
    items: list[Master] | None = None
    """The items of a list."""
    size: int = 0
    """The bytes of all items."""


class Values:
    """Encodes and decodes the values of one saver."""

    def __init__(self, serde: SerializerProtocol, max_bytes: int) -> None:
        self._serde = serde
        self.max_bytes = max_bytes
        self._timeline: str | None = None
        self._lists = _Lists()
        self._raws = _Raws()
        self._checkpoints: OrderedDict[str, OrderedDict[str, tuple[Write, frozenset[str]]]] = OrderedDict()

    def begin(self, timeline: str | None) -> None:
        """Forgets everything that was written in another history of the database."""
        if timeline != self._timeline:
            self._timeline = timeline
            self._lists, self._raws, self._checkpoints = _Lists(), _Raws(), OrderedDict()

    def pack(self, value: Any) -> tuple[dict[str, Any], bytes]:
        """A value without references: its description and bytes."""
        return _compressed(*self._dump(value))

    def _dump(self, value: Any) -> tuple[str, bytes]:
        kind, raw = self._serde.dumps_typed(value)
        if len(raw) > self.max_bytes:
            raise too_large(self.max_bytes)
        return kind, raw

    def encode(self, collection: str, key: str, value: Any, earlier: list[Encoded] | None) -> Encoded:
        """A value to be stored under a key, after others of the same write. Without `earlier` it refers to nothing."""
        kind, raw = self._dump(value)
        if earlier is not None and len(raw) >= _ROOT_FROM:
            for root_key, root, written in self._roots(collection, earlier):
                found = langgraph_bytes.difference(raw, root)
                if found is not None:
                    flat, between = found
                    data, blob = _compressed(kind, between)
                    needs = {} if written is None else {root_key: written}
                    return Encoded(key, {**data, "f": root_key, "o": flat}, blob, needs, kind, raw)
        return Encoded(key, *_compressed(kind, raw), kind=kind, raw=raw, is_root=len(raw) >= _ROOT_FROM)

    def encode_channel(self, collection: str, channel: str, key: str, value: Any, earlier: list[Encoded] | None) -> Encoded:
        """A version of a channel, see `encode`."""
        if type(value) is not list or not value:
            whole = self.encode(collection, key, value, earlier)
            whole.channel = channel
            return whole
        base = self._lists.get(collection, channel) if earlier is not None else None
        kept = 0
        if base is not None:
            for item, master in zip(value, base.items, strict=False):
                if not self._is_same(item, master):
                    break
                kept += 1
        added = value[kept:]
        encoded = self.encode(collection, key, added, earlier)
        encoded.channel = channel
        encoded.data["n"] = len(added)
        encoded.size = len(encoded.raw)
        items = _items(added)
        if base is not None and kept:
            encoded.size += base.size
            encoded.data |= {"b": base.key.rsplit("/", 1)[1], "k": kept}
            encoded.needs[base.key] = base.written
            items = None if items is None else base.items[:kept] + items
        encoded.items = items
        return encoded

    def _roots(self, collection: str, earlier: list[Encoded]) -> Iterator[tuple[str, bytes, Write | int | None]]:
        """Entries that a value can refer to, the latest first. Those of the same write need no check."""
        for one in reversed(earlier):
            if one.is_root:
                yield one.key, one.raw, None
        for key in reversed(self._raws.roots(collection)):
            raw = self._raws.get(collection, key)
            if raw is not None and not raw.has_failed:
                yield key, raw.raw, raw.written

    def needs(self, collection: str, encoded: list[Encoded], parent: str | None) -> list[tuple[str, Write | int]]:
        """The entries that must exist. A checkpoint has all of its values and writes, so that the parent stands for them."""
        needs = {key: written for one in encoded for key, written in one.needs.items()}
        checkpoints = self._checkpoints.get(collection)
        known = checkpoints.get(parent or "") if checkpoints is not None else None
        if known is None or known[0].has_failed:
            return list(needs.items())
        write, values = known
        prefix = writes_prefix(parent or "")
        covered = [
            key
            for key, written in needs.items()
            if (key in values or key.startswith(prefix)) and not (isinstance(written, Write) and not written.seq)
        ]
        for key in covered:
            del needs[key]
        if covered:
            needs[parent or ""] = write
        return list(needs.items())

    def wrote_checkpoint(self, collection: str, key: str, values: list[str], write: Write) -> None:
        """Remembers a checkpoint and the keys of its values."""
        checkpoints = self._checkpoints.setdefault(collection, OrderedDict())
        checkpoints[key] = (write, frozenset(values))
        checkpoints.move_to_end(key)
        self._checkpoints.move_to_end(collection)
        if len(checkpoints) > _CHECKPOINTS:
            checkpoints.popitem(last=False)
        if len(self._checkpoints) > _COLLECTIONS:
            self._checkpoints.popitem(last=False)

    def wrote(self, collection: str, encoded: list[Encoded], write: Write) -> None:
        """Remembers what a write has, which begins now. If it fails, nothing refers to it."""
        for one in encoded:
            if one.channel is not None and one.items is not None:
                self._lists.put(collection, one.channel, _Version(one.key, write, one.items, one.size))
            is_value = one.channel is not None and "n" not in one.data
            if one.is_root or is_value:
                self._raws.put(collection, one.key, Raw(one.kind, one.raw, write, one.is_root, is_value))

    def known(self, collection: str) -> list[int]:
        """The versions of the entries that need not be read."""
        return self._lists.seqs(collection) + self._raws.seqs(collection)

    def remembered(self, collection: str, channel: str, key: str, seq: int) -> tuple[Any] | None:
        """The value of a channel, if this process remembers this version of its entry."""
        version = self._lists.get(collection, channel)
        if version is not None and version.key == key and version.seq == seq:
            copies = _copies(version.items)
            return None if copies is None else (copies,)
        raw = self._raws.get(collection, key)
        return None if raw is None or raw.seq != seq or not raw.is_value else (self._serde.loads_typed((raw.kind, raw.raw)),)

    def decode(self, collection: str, channel: str, key: str, chain: dict[str, Stored], budget: Budget) -> Any:
        """The value of a version. `chain` has its entry, and those that it refers to.

        Raises:
            MalformedEntry: entries are malformed, refer to each other in a circle, or to an entry that does not exist.
        """
        with decoding(f"the entry {key!r} of {collection!r}"):
            if "n" not in chain[key].data:
                kind, raw = _raw(key, chain, budget)
                is_root = "f" not in chain[key].data and len(raw) >= _ROOT_FROM
                value = self._serde.loads_typed((kind, raw))
                self._raws.put(collection, key, Raw(kind, raw, chain[key].seq, is_root, True))
                return value
            return self._decode_list(collection, channel, key, chain, budget)

    def _decode_list(self, collection: str, channel: str, key: str, chain: dict[str, Stored], budget: Budget) -> list[Any]:
        parts: dict[str, None] = {}
        at: str | None = key
        while at is not None:
            if at in parts:
                raise ValueError(f"{at!r} is its own base")
            parts[at] = None
            base = _entry(at, chain).data.get("b")
            at = None if base is None else base_key(at, base)
        value: list[Any] = []
        size = 0
        for part in reversed(parts):
            kept = chain[part].data.get("k", 0)
            if type(kept) is not int or not 0 <= kept <= len(value):
                raise ValueError(f"{part!r} keeps more items than there are")
            del value[kept:]
            kind, raw = _raw(part, chain, budget)
            items_of_part = self._serde.loads_typed((kind, raw))
            if type(items_of_part) is not list:
                raise ValueError(f"{part!r} is no list")
            value += items_of_part
            size += len(raw)
        items = _items(value)
        if items is not None:
            self._lists.put(collection, channel, _Version(key, chain[key].seq, items, size))
        return value

    def unpack(self, data: Mapping[str, Any], blob: bytes, budget: Budget) -> Any:
        """The inverse of `pack`."""
        return self._serde.loads_typed(_decompressed(data, blob, budget))

    def decode_write(self, key: str, chain: dict[str, Stored], budget: Budget) -> Any:
        """The value of a pending write. `chain` has its entry and its root."""
        return self._serde.loads_typed(_raw(key, chain, budget))

    def forget(self, collection: str) -> None:
        """Forgets a collection."""
        self._lists.forget(collection)
        self._raws.forget(collection)
        self._checkpoints.pop(collection, None)

    def _is_same(self, item: Any, master: Master) -> bool:
        """Whether an item equals what is stored, types included."""
        value = master.value
        if type(item) is not type(value):
            return False
        if master.is_simple and not item.__pydantic_extra__:
            return bool(item.__dict__ == value.__dict__)
        if isinstance(item, BaseMessage) and not item.__pydantic_extra__ and not value.__pydantic_extra__:
            item, value = item.__dict__, value.__dict__
        return _is_identical(item, value, self._serde)


class _Version:
    """The latest version of a list."""

    __slots__ = ("items", "key", "size", "written")

    def __init__(self, key: str, written: Write | int, items: list[Master], size: int) -> None:
        self.key = key
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
    """The latest versions of lists, by collection and channel. Their memory is bounded."""

    def __init__(self) -> None:
        self._all: OrderedDict[str, dict[str, _Version]] = OrderedDict()
        self._size = 0

    def get(self, collection: str, channel: str) -> _Version | None:
        version = self._all.get(collection, {}).get(channel)
        if version is None or (isinstance(version.written, Write) and version.written.has_failed):
            return None
        self._all.move_to_end(collection)
        return version

    def seqs(self, collection: str) -> list[int]:
        return [version.seq for version in self._all.get(collection, {}).values()]

    def put(self, collection: str, channel: str, version: _Version) -> None:
        channels = self._all.setdefault(collection, {})
        self._size += version.memory - (channels[channel].memory if channel in channels else 0)
        channels[channel] = version
        self._all.move_to_end(collection)
        while self._size > _LIST_BYTES and self._all:
            self.forget(next(iter(self._all)))

    def forget(self, collection: str) -> None:
        for version in self._all.pop(collection, {}).values():
            self._size -= version.memory


_NONE: OrderedDict[str, Raw] = OrderedDict()
_NO_KEYS: deque[str] = deque()


class _Raws:
    """The latest bytes, by collection and key. Their memory is bounded."""

    def __init__(self) -> None:
        self._all: OrderedDict[str, OrderedDict[str, Raw]] = OrderedDict()
        self._roots: dict[str, deque[str]] = {}
        self._size = 0

    def get(self, collection: str, key: str) -> Raw | None:
        raws = self._all.get(collection)
        return raws.get(key) if raws is not None else None

    def seqs(self, collection: str) -> list[int]:
        return [raw.seq for raw in self._all.get(collection, _NONE).values() if raw.seq and raw.is_value]

    def roots(self, collection: str) -> deque[str]:
        """The keys of the latest that can be roots, the last one at the end."""
        return self._roots.get(collection, _NO_KEYS)

    def put(self, collection: str, key: str, raw: Raw) -> None:
        if len(raw.raw) > _RAW_UP_TO:
            return
        raws = self._all.setdefault(collection, OrderedDict())
        self._all.move_to_end(collection)
        before = raws.pop(key, None)
        self._size += len(raw.raw) - (len(before.raw) if before else 0)
        raws[key] = raw
        if raw.is_root:
            self._roots.setdefault(collection, deque(maxlen=_ROOTS)).append(key)
        if len(raws) > _RAWS_OF_A_COLLECTION:
            self._size -= len(raws.popitem(last=False)[1].raw)
        while self._size > _RAW_BYTES:
            self.forget(next(iter(self._all)))

    def forget(self, collection: str) -> None:
        self._roots.pop(collection, None)
        for raw in self._all.pop(collection, _NONE).values():
            self._size -= len(raw.raw)


def _compressed(kind: str, raw: bytes) -> tuple[dict[str, Any], bytes]:
    if not raw and kind == "msgpack":
        return {}, raw
    small = langgraph_bytes.compress(raw)
    way = kind if small is None else f"{kind}+d"
    return ({} if way == _USUAL else {"t": way}), raw if small is None else small


def _decompressed(data: Mapping[str, Any], blob: bytes, budget: Budget) -> tuple[str, bytes]:
    kind: str = data.get("t", _USUAL if blob else "msgpack")
    if kind.endswith("+d"):
        return kind[:-2], langgraph_bytes.decompress(blob, budget)
    budget.take(len(blob))
    return kind, blob


def _raw(key: str, chain: dict[str, Stored], budget: Budget) -> tuple[str, bytes]:
    """The kind and bytes of an entry."""
    data = chain[key].data
    kind, raw = _decompressed(data, chain[key].blob or b"", budget)
    if "f" not in data:
        return kind, raw
    name = data["f"]
    if name not in budget.roots:
        root = _entry(name, chain)
        if "f" in root.data:
            raise ValueError("a root has a root")
        budget.roots[name] = _decompressed(root.data, root.blob or b"", budget)[1]
    return kind, langgraph_bytes.rebuild(data["o"], raw, budget.roots[name], budget)


def _entry(key: str, chain: Mapping[str, Stored]) -> Stored:
    found = chain.get(key)
    if found is None:
        raise ValueError(f"{key!r} does not exist")
    return found


def _is_identical(value: Any, other: Any, serde: SerializerProtocol) -> bool:
    """Whether two values are equal, types included."""
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


def _items(values: list[Any]) -> list[Master] | None:
    """Items with deep copies of these values; `None` if one cannot be copied."""
    try:
        return [Master(Master(value).copied()) for value in values]
    except Exception:
        return None


def _copies(items: list[Master]) -> list[Any] | None:
    try:
        return [item.copied() for item in items]
    except Exception:
        return None
