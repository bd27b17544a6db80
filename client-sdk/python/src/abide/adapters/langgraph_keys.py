"""Keys of the entries of a LangGraph thread.

Ids are UUIDs, which are stored with 22 characters instead of 36, in the same order. Any other id is stored as it is.
A version of a channel is a count, and a random part that distinguishes the branches of a thread.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache

from .collection import escape, path, unescape

_IS_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch

_USUAL = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_IN_ORDER = bytes(sorted(_USUAL))
_TO_ORDER = bytes.maketrans(_USUAL, _IN_ORDER)
_FROM_ORDER = bytes.maketrans(_IN_ORDER, _USUAL)


@lru_cache(maxsize=1024)
def short_id(name: str) -> str:
    """An id as a part of a key."""
    if not _IS_UUID(name):
        return f"%3D{escape(name[1:])}" if name.startswith("=") else escape(name)
    encoded = urlsafe_b64encode(bytes.fromhex(name.replace("-", "")))
    return f"={encoded[:22].translate(_TO_ORDER).decode()}"


def long_id(part: str) -> str:
    """The inverse of `short_id`."""
    if not part.startswith("="):
        return unescape(part)
    digits = urlsafe_b64decode(part[1:].encode().translate(_FROM_ORDER) + b"==").hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


@lru_cache(maxsize=1024)
def checkpoint_key(namespace: str, checkpoint_id: str) -> str:
    """The key of a checkpoint."""
    return f"{path('c', namespace)}/{short_id(checkpoint_id)}"


def writes_prefix(checkpoint: str) -> str:
    """The first characters of the keys of its pending writes."""
    return f"w{checkpoint[1:]}/"


def value_key(checkpoint: str, channel: str, version: str) -> str:
    """The key of a version of a channel; both are escaped. `checkpoint` is a key of its namespace."""
    return f"v/{checkpoint.split('/', 2)[1]}/{channel}/{version}"


def base_key(key: str, base: str) -> str:
    """The key of the version that another one is based on. Both are of one channel, so only the version is stored."""
    # Older entries have the whole key. A version is escaped, so it has no separator.
    return base if "/" in base else f"{key.rsplit('/', 1)[0]}/{base}"


def version_prefix(count: int) -> str:
    """A count as the first part of a version: its digits after a letter for their number, so that texts have its order."""
    digits = str(count)
    return chr(ord("a") + len(digits) - 1) + digits


def version_count(version: str) -> int:
    """The count of a version. Those of other savers, and older ones, are digits only, and are before all others."""
    count = version.split(".", 1)[0]
    return int(count[1:] if count[:1].isalpha() else count)
