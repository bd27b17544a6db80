"""Cells and messages: Python values to JSON and back, without loss.

| SQL | JSON | Python |
|---|---|---|
| NULL | `null` | `None` |
| INTEGER | a number without fraction and exponent | `int` |
| REAL | a number with a fraction or exponent, `{"$real": "Infinity"}` | `float` |
| TEXT | a string | `str` |
| BLOB | `{"$blob": "<base64>"}` | `bytes` |
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from .errors import BadRequestError, LimitExceededError, ProtocolError

Cell: TypeAlias = int | float | str | bytes | None
"""A cell of a row: one of SQLite's five storage classes."""

Row: TypeAlias = tuple[Cell, ...]
"""The cells of one row, in the order of the columns."""

Params: TypeAlias = Mapping[str, Any] | Sequence[Any]
"""Parameters of a statement, by name without the sigil, or by position."""

MESSAGE_BYTES = 16 << 20
"""The longest message that a server reads."""

DEPTH = 127
"""How deep lists and objects of a message may be nested. A server cannot say which message was too deep."""


def decode_cell(value: Any) -> Cell:
    """Decodes a cell.

    Raises:
        ProtocolError: the form is unknown.
    """
    if type(value) not in _UNUSUAL:
        return value  # type: ignore[no-any-return]
    match value:
        case {"$blob": str(text)}:
            return b64decode(text)
        case {"$real": "Infinity"}:
            return math.inf
        case {"$real": "-Infinity"}:
            return -math.inf
    raise ProtocolError(f"a cell is a {type(value).__name__} of an unknown form")


_UNUSUAL = frozenset({dict, list, bool})
"""Types of JSON values that are not cells, or another cell."""


def decode_row(cells: list[Any]) -> Row:
    """Decodes a row."""
    return tuple([decode_cell(cell) if type(cell) in _UNUSUAL else cell for cell in cells])


def encode_cell(value: Any) -> Any:
    """Encodes a parameter.

    Raises:
        BadRequestError: it is NaN, which SQLite does not have.
    """
    match value:
        case bytes() | bytearray() | memoryview():
            return encode_blob(bytes(value))
        case float() if math.isnan(value):
            raise BadRequestError(
                "a parameter is NaN, which is not a value in SQLite", code="bad_arguments", hint="use None for NULL"
            )
        case float() if math.isinf(value):
            return {"$real": "Infinity" if value > 0 else "-Infinity"}
    return value


def encode_blob(data: bytes) -> dict[str, str]:
    """Encodes bytes."""
    return {"$blob": b64encode(data).decode("ascii")}


def encode_params(params: Params | None) -> dict[str, Any]:
    """Encodes the parameters of a statement; positions count from 1."""
    if params is None:
        return {}
    if isinstance(params, Mapping):
        return {str(name): encode_cell(value) for name, value in params.items()}
    return {str(at): encode_cell(value) for at, value in enumerate(params, start=1)}


def _encode_other(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return encode_blob(bytes(value))
    raise TypeError(f"a {type(value).__name__} has no JSON form")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_encode_other)


def encode_message(message: dict[str, Any], what: str) -> bytes:
    """Encodes a message of the client as UTF-8. `what` names it in errors.

    Raises:
        BadRequestError: a value has no JSON form.
        LimitExceededError: it is longer than a server reads.
    """
    try:
        text = _ENCODER.encode(message).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise BadRequestError(
            f"{what}: {exc}",
            code="bad_arguments",
            hint="arguments are JSON: None, bool, int, finite float, str, bytes, list and dict",
        ) from exc
    if len(text) > MESSAGE_BYTES:
        raise LimitExceededError(
            f"{what}: the message has {len(text)} bytes; the limit is {MESSAGE_BYTES}",
            code="limit_exceeded",
            hint="send several smaller requests",
        )
    if text.count(b"[") + text.count(b"{") > DEPTH and _depth(message) > DEPTH:
        detail = f"{what}: lists and objects are nested more than {DEPTH} deep"
        raise BadRequestError(detail, code="bad_arguments", hint="store a flatter value, or a text")
    return text


def _depth(value: Any) -> int:
    """Returns how deep lists and objects are nested in a value that was encoded."""
    depth, level = 0, [value]
    while level:
        depth += 1
        inner: list[Any] = []
        for one in level:
            inner += [item for item in (one.values() if isinstance(one, dict) else one) if isinstance(item, (dict, list, tuple))]
        level = inner
    return depth
