"""Deep copies of pydantic models. `copy.deepcopy` takes most of the time of a long conversation, in which each turn copies all."""

from __future__ import annotations

import copy
from typing import Any

from pydantic import BaseModel

IMMUTABLE = frozenset({str, int, float, bool, type(None), bytes})
"""Types whose values need no copy."""

_CONTAINERS = (list, dict)

_set = object.__setattr__


class Prototype:
    """A value that does not change, and from which copies are made."""

    __slots__ = ("_empty", "_extra", "_fields", "_fields_set", "_kind", "_nested", "_private", "is_simple", "value")

    def __init__(self, value: Any) -> None:
        self.value: Any = value
        """The value: only for reading."""
        self._kind = kind = type(value)
        # The members of a model or dictionary. Members that need a copy are in `_nested`, empty containers in `_empty`.
        self._fields: dict[Any, Any] | None = None
        self._empty: list[tuple[Any, type]] = []
        self._nested: list[tuple[Any, Prototype]] = []
        self._fields_set: set[str] | None = None
        self._extra: Any = None
        self._private: Any = None
        self.is_simple: bool = False
        """`True` if it is a model whose fields are text, null, or empty lists and dictionaries."""
        if kind is dict:
            self._fields = value
        elif kind is list:
            self._nested = [(None, Prototype(part)) for part in value]
        elif kind not in IMMUTABLE and isinstance(value, BaseModel):
            self._fields = value.__dict__
            self._fields_set = value.__pydantic_fields_set__
            self._extra, self._private = value.__pydantic_extra__, value.__pydantic_private__
            self.is_simple = not self._extra and all(map(_is_simple, self._fields.values()))
        if self._fields is not None:
            for name, part in self._fields.items():
                if not part and type(part) in _CONTAINERS:
                    self._empty.append((name, type(part)))
                elif type(part) not in IMMUTABLE:
                    self._nested.append((name, Prototype(part)))

    def copy(self) -> Any:
        """Returns a deep copy."""
        kind = self._kind
        if kind is list:
            return [part.copy() for _, part in self._nested]
        if self._fields is None:
            return self.value if kind in IMMUTABLE else copy.deepcopy(self.value)
        fields = self._fields.copy()
        for name, empty in self._empty:
            fields[name] = empty()
        for name, part in self._nested:
            fields[name] = part.copy()
        if self._fields_set is None:
            return fields
        duplicate = object.__new__(kind)
        _set(duplicate, "__dict__", fields)
        _set(duplicate, "__pydantic_fields_set__", self._fields_set.copy())
        _set(duplicate, "__pydantic_extra__", None if self._extra is None else copy.deepcopy(self._extra))
        _set(duplicate, "__pydantic_private__", None if self._private is None else copy.deepcopy(self._private))
        return duplicate


def _is_simple(value: Any) -> bool:
    return value is None or type(value) is str or (not value and type(value) in _CONTAINERS)
