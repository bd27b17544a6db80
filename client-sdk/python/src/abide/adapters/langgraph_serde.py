"""The serializer of LangGraph's values, restricted to types that are known to be safe.

LangGraph's serializer imports and calls whatever a stored value names, unless it has a list of types. Every caller of a
scope can write entries, so without the list each of them could run code in the application.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

AllowedTypes: TypeAlias = Iterable[type | tuple[str, str]]
"""Classes, or pairs of module and name."""

# The types that it writes. The JSON of early versions of LangGraph names classes too.
_KINDS = frozenset({"null", "bytes", "bytearray", "msgpack"})


class StrictSerializer(JsonPlusSerializer):
    """Makes messages of LangChain, types of LangGraph, values of the standard library, and the types that it is given.

    The data of any other object is returned without it, as a dictionary, list or text, and LangGraph logs a warning.
    """

    def __init__(self, allowed_types: AllowedTypes = ()) -> None:
        super().__init__(allowed_msgpack_modules=tuple(map(_type_name, allowed_types)) or None)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Decodes a value."""
        if data[0] not in _KINDS:
            raise ValueError(f"values of the kind {data[0]!r} are not read")
        return super().loads_typed(data)


def _type_name(allowed: type | tuple[str, str]) -> tuple[str, str]:
    # A stored object names its class by `__name__`.
    return (allowed.__module__, allowed.__name__) if isinstance(allowed, type) else allowed
