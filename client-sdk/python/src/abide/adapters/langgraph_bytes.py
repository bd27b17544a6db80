"""The bytes of LangGraph's values: each value is stored once.

LangGraph saves a message up to three times: as the input of a graph, as the pending write of a task, and in a channel. The
bytes that a value has in common with a stored value (its root) are not stored again: it is stored as parts of
the root and the bytes between them. What remains is compressed with a dictionary of the texts that occur in all
checkpoints and messages.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from .langgraph_dictionary import DICTIONARY, DICTIONARY_OF_ENTRIES
from .untrusted import Budget

_COMPRESS_FROM = 32

# Levels of zlib. The higher one saves a few percent, and takes up to three times as long.
_LEVEL = 6
_LEVEL_OF_LONG = 1
_LONG_FROM = 64 << 10

# A block of its own costs some tens of bytes.
_BLOCK_FROM = 256

# A shorter match costs more than it saves.
_PROBE_BYTES = 32
_SMALLEST_PART = 96

# Bytes of the root that are searched for the parts of one value.
_SEARCHED_BYTES = 4 << 20


class Copy(NamedTuple):
    """A part of a value that the root has too."""

    at: int
    """Where it is in the value."""
    offset: int
    """Where it is in the root."""
    length: int


def compress(raw: bytes) -> bytes | None:
    """Compresses bytes; returns `None` if they do not get smaller."""
    if len(raw) < _COMPRESS_FROM:
        return None
    level = _LEVEL if len(raw) < _LONG_FROM else _LEVEL_OF_LONG
    packer = zlib.compressobj(level, zlib.DEFLATED, -15, 8, zlib.Z_DEFAULT_STRATEGY, DICTIONARY)
    small = packer.compress(raw) + packer.flush()
    return small if len(small) < len(raw) else None


def compress_entry(first: bytes, second: bytes = b"") -> bytes:
    """Returns the bytes of an entry, whose second part has other bytes than the first one."""
    level = _LEVEL if len(first) + len(second) < _LONG_FROM else _LEVEL_OF_LONG
    packer = zlib.compressobj(level, zlib.DEFLATED, -15, 8, zlib.Z_DEFAULT_STRATEGY, DICTIONARY_OF_ENTRIES)
    small = packer.compress(first)
    if len(second) >= _BLOCK_FROM:
        small += packer.flush(zlib.Z_BLOCK)
    return small + packer.compress(second) + packer.flush()


def decompress_entry(small: bytes, budget: Budget) -> bytes:
    """Reverses `compress_entry`; see `decompress`."""
    return _inflated(small, DICTIONARY_OF_ENTRIES, budget)


def decompress(small: bytes, budget: Budget) -> bytes:
    """Reverses `compress`.

    Raises:
        LimitExceededError: the bytes exceed the budget.
        ValueError: they are not compressed bytes.
    """
    return _inflated(small, DICTIONARY, budget)


def _inflated(small: bytes, dictionary: bytes, budget: Budget) -> bytes:
    unpacker = zlib.decompressobj(-15, dictionary)
    raw = unpacker.decompress(small, budget.left + 1)
    budget.take(len(raw))
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("the compressed bytes have no end")
    return raw


def difference(value: bytes, root: bytes) -> tuple[list[int], bytes] | None:
    """Returns a value as parts of a root, and the bytes between them; `None` if they have less than a half of it in common.

    The parts are flat: the number of bytes before the part, its offset in the root, and its length.
    """
    for at in range(len(value) // 4, len(value) - _PROBE_BYTES, max(len(value) // 4, 1)):
        if value[at : at + _PROBE_BYTES] in root:
            break
    else:
        return None
    copies = sorted(_common_parts(value, root))
    if 2 * sum(copy.length for copy in copies) < len(value):
        return None
    flat: list[int] = []
    between: list[bytes] = []
    end = 0
    for copy in copies:
        between.append(value[end : copy.at])
        flat += (copy.at - end, copy.offset, copy.length)
        end = copy.at + copy.length
    between.append(value[end:])
    return flat, b"".join(between)


def rebuild(flat: list[int], between: bytes, root: bytes, budget: Budget) -> bytes:
    """Reverses `difference`.

    Raises:
        LimitExceededError: the bytes exceed the budget.
        ValueError: a part is not within its bytes.
    """
    parts: list[bytes] = []
    at = 0
    for nth in range(0, len(flat), 3):
        before, offset, length = flat[nth : nth + 3]
        if min(before, offset, length) < 0 or at + before > len(between) or offset + length > len(root):
            raise ValueError("a part is not within its bytes")
        budget.take(length)
        parts += (between[at : at + before], root[offset : offset + length])
        at += before
    parts.append(between[at:])
    return b"".join(parts)


def _common_parts(value: bytes, root: bytes) -> list[Copy]:
    """Yields long parts that occur in both. It searches for bytes in the middle, and extends what it finds in both directions."""
    found: list[Copy] = []
    waiting = [(0, len(value))]
    searched = 0
    while waiting and searched < _SEARCHED_BYTES:
        first, end = waiting.pop()
        if end - first < _SMALLEST_PART:
            continue
        middle = (first + end - _PROBE_BYTES) // 2
        offset = root.find(value[middle : middle + _PROBE_BYTES])
        searched += len(root) if offset < 0 else offset
        if offset < 0:
            waiting += ((first, middle), (middle + _PROBE_BYTES, end))
            continue
        before = _common_end(value[first:middle], root[:offset])
        after = _common_start(value[middle:end], root[offset:])
        copy = Copy(middle - before, offset - before, before + after)
        if copy.length >= _SMALLEST_PART:
            found.append(copy)
        waiting += ((first, copy.at), (copy.at + copy.length, end))
    return found


def _common_start(left: bytes, right: bytes) -> int:
    """Returns the number of equal bytes at the start."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _common_end(left: bytes, right: bytes) -> int:
    """Returns the number of equal bytes at the end."""
    most = min(len(left), len(right))
    return _common_start(left[len(left) - most :][::-1], right[len(right) - most :][::-1])
