"""Errors of Farleaf, by what a caller would do about them.

A missing key of ``table[key]`` is a ``KeyError``, an object that is no bytes a ``TypeError``, and a refusal of the
operating system an ``OSError``.
"""

from __future__ import annotations

__all__ = [
    "ClosedError",
    "CorruptError",
    "Error",
    "ExistsError",
    "FullError",
    "InvalidError",
    "NoPoolError",
    "NotFoundError",
    "OutcomeUnknownError",
    "UnavailableError",
    "WrongTypeError",
]


class Error(Exception):
    """A failed call. Of this class itself: a fault of Farleaf."""


class InvalidError(Error, ValueError):
    """The request makes no sense: a key too large for the table, a malformed address. Nothing was done."""


class WrongTypeError(InvalidError):
    """The key holds a hash where a string is wanted. Nothing was done."""


class NotFoundError(Error, LookupError):
    """There is no such table. Nothing was done."""


class NoPoolError(NotFoundError):
    """There is no pool at the address. Nothing was done."""


class ExistsError(Error):
    """A table of that name is there. Nothing was done."""


class UnavailableError(Error):
    """The pool cannot be reached, or a lock was not released in time. Nothing was done; trying again may help."""


class OutcomeUnknownError(Error):
    """A change may have happened, or may still happen."""


class FullError(Error):
    """The pool has no memory left, or no free entry for one more table, thread or process. Nothing was done."""


class CorruptError(Error):
    """The pool does not hold what it must."""


class ClosedError(Error):
    """The store was closed, was opened before a fork, or this process was cut off: open it again. Nothing was done."""
