"""The checksum with which both ends of a subscription verify that they hold the same rows.

It is a sum over the rows as a multiset, defined to the byte in `schema/src/checksum.rs`.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

from .values import Cell, Row

_BASIS = 0xCBF29CE484222325
_PRIME = 0x100000001B3
_MASK = (1 << 64) - 1
_INTEGER = Struct("<Bq")
_REAL = Struct("<Bd")
_LENGTH = Struct("<BQ")


def checksum(rows: Iterable[Row]) -> int:
    """Returns the checksum of a multiset of rows; 0 for no rows."""
    return sum(map(row_hash, rows)) & _MASK


def row_hash(row: Row) -> int:
    """Returns the term of one row."""
    hashed = _BASIS
    for byte in b"".join(map(_cell_bytes, row)):
        hashed = ((hashed ^ byte) * _PRIME) & _MASK
    hashed = ((hashed ^ (hashed >> 33)) * 0xFF51AFD7ED558CCD) & _MASK
    hashed = ((hashed ^ (hashed >> 33)) * 0xC4CEB9FE1A85EC53) & _MASK
    return hashed ^ (hashed >> 33)


def _cell_bytes(cell: Cell) -> bytes:
    if cell is None:
        return b"\0"
    if isinstance(cell, str):
        text = cell.encode()
        return _LENGTH.pack(3, len(text)) + text
    if isinstance(cell, float):
        return _REAL.pack(2, cell)
    if isinstance(cell, int):
        return _INTEGER.pack(1, cell)
    return _LENGTH.pack(4, len(cell)) + cell
