"""Keys of the entries of a LangGraph thread, and names of the values in them.

Ids are UUIDs, which are stored with 22 characters instead of 36, in the same order. Any other id is stored as it is.

The name of a value is the key of its entry. The entry of a checkpoint has several values: their names begin with the key of
the entry, and end with the channel, or with the task and index of a write.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import datetime, timedelta, timezone
from functools import lru_cache

from .collection import escape, path, unescape

_IS_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch

_USUAL = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_IN_ORDER = bytes(sorted(_USUAL))
_TO_ORDER = bytes.maketrans(_USUAL, _IN_ORDER)
_FROM_ORDER = bytes.maketrans(_IN_ORDER, _USUAL)

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EPOCH_OF_UUIDS = 0x01B21DD213814000
"""The same moment in the units of a UUID, 100 ns since 1582."""


@lru_cache(maxsize=1024)
def short_id(name: str) -> str:
    """Shortens an id, for a key."""
    if not _IS_UUID(name):
        return f"%3D{escape(name[1:])}" if name.startswith("=") else escape(name)
    return bytes_to_short_id(bytes.fromhex(name.replace("-", "")))


def long_id(part: str) -> str:
    """Reverses `short_id`."""
    if not part.startswith("="):
        return unescape(part)
    digits = short_id_to_bytes(part).hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def short_id_to_bytes(part: str) -> bytes:
    """Returns the bytes of a UUID from its short form."""
    return urlsafe_b64decode(part[1:].encode().translate(_FROM_ORDER) + b"==")


def bytes_to_short_id(uuid: bytes) -> str:
    """Returns the short form of a UUID."""
    return f"={urlsafe_b64encode(uuid)[:22].translate(_TO_ORDER).decode()}"


@lru_cache(maxsize=1024)
def checkpoint_key(namespace: str, checkpoint_id: str) -> str:
    """Returns the key of a checkpoint."""
    return f"{path('c', namespace)}/{short_id(checkpoint_id)}"


def writes_prefix(checkpoint: str) -> str:
    """Returns the first characters of the keys of the pending writes of a checkpoint."""
    return f"w{checkpoint[1:]}/"


def value_key(checkpoint: str, channel: str, version: str) -> str:
    """Returns the key of a value with an entry of its own; its parts are escaped. `checkpoint` is a key of its namespace."""
    return f"v/{checkpoint.split('/', 2)[1]}/{channel}/{version}"


def entry_key(name: str) -> str:
    """Returns the key of the entry that has a value."""
    return "/".join(name.split("/", 3)[:3]) if name.startswith("c/") else name


def base_key(key: str, base: str) -> str:
    """Returns the name of the base of a version with its own entry. A base of the same channel is stored as its last part."""
    return base if "/" in base else f"{key.rsplit('/', 1)[0]}/{base}"


def version_prefix(count: int) -> str:
    """Returns a count as a version: a letter for the number of digits, then the digits, so that texts sort as the counts do."""
    digits = str(count)
    return chr(ord("a") + len(digits) - 1) + digits


def version_count(version: str) -> int:
    """Returns the count of a version. Versions of other savers are digits only, and come before all others."""
    count = version.split(".", 1)[0]
    return int(count[1:] if count[:1].isalpha() else count)


def time_after(checkpoint_id: str, time: str) -> int | str:
    """Returns a time as microseconds after the time in the id of its checkpoint; the same text if it has no such form."""
    try:
        after = (datetime.fromisoformat(time) - _id_time(checkpoint_id)) // timedelta(microseconds=1)
        return after if time_at(checkpoint_id, after) == time else time
    except (ValueError, TypeError, OverflowError):
        return time


def time_at(checkpoint_id: str, after: int) -> str:
    """Reverses `time_after`."""
    return (_id_time(checkpoint_id) + timedelta(microseconds=after)).isoformat()


def _id_time(checkpoint_id: str) -> datetime:
    """Returns when an id was made: LangGraph's are UUIDs of version 6."""
    digits = checkpoint_id.replace("-", "")
    ticks = int(digits[:12], 16) << 12 | int(digits[13:16], 16)
    return _EPOCH + timedelta(microseconds=(ticks - _EPOCH_OF_UUIDS) // 10)
