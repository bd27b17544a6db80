"""Packages that only a part of this package needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import AbideError


class MissingPackageError(AbideError, ImportError):
    """A package that an adapter or a conversion needs is not installed."""

    code = "missing_package"


MissingPackage = MissingPackageError
"""The former name of `MissingPackageError`."""


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Names the extra `name` of this package in the error if an import in this context fails.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as exc:
        raise MissingPackageError(f"there is no module {exc.name}", hint=f'pip install "abide-client[{name}]"') from exc
