"""Farleaf: an ordered key-value store on disaggregated memory.

>>> import farleaf
>>> with farleaf.open("mem:") as db:
...     users = db.table("users", create=True)
...     users[b"ada"] = b"1815"
...     users.get(b"ada")
b'1815'

A table is a mutable mapping from ``bytes`` to ``bytes`` in the order of its keys, which every process that has the pool
open reads and changes. Single operations are linearizable across all of them. ``farleaf.aio`` has the same for asyncio.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, overload

try:
    from . import _native
except ImportError as _error:
    raise ImportError(
        f"farleaf's extension module cannot be loaded here ({_error}). Its wheels are for CPython 3.10 and later on "
        f"64-bit Linux; this is {sys.implementation.name} {sys.version.split()[0]} on {sys.platform}. Install the "
        "wheel of this platform, or reach tables through a gateway on a Linux machine (docs/redis.md)"
    ) from _error
from ._native import Exchange, Range
from .errors import (
    ClosedError,
    CorruptError,
    Error,
    ExistsError,
    FullError,
    InvalidError,
    NoPoolError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
    WrongTypeError,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self, Unpack

    from .options import OpenOptions, TableOptions

__all__ = [
    "ClosedError",
    "CorruptError",
    "Error",
    "Exchange",
    "ExistsError",
    "FullError",
    "InvalidError",
    "NoPoolError",
    "NotFoundError",
    "OutcomeUnknownError",
    "Range",
    "Store",
    "Table",
    "UnavailableError",
    "WrongTypeError",
    "open",
]

__version__ = "0.1.0"

_T = TypeVar("_T")
_Pairs = Union["Mapping[Any, Any]", "Iterable[tuple[Any, Any]]"]


class _Items(ItemsView[bytes, bytes]):
    """The pairs of a table: one walk, in place of a get for each key."""

    __slots__ = ()
    _mapping: Table

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return self._mapping.range()

    def __reversed__(self) -> Iterator[tuple[bytes, bytes]]:
        return self._mapping.range(reverse=True)


class _Values(ValuesView[bytes]):
    """The values of a table, in the order of their keys."""

    __slots__ = ()
    _mapping: Table

    def __iter__(self) -> Iterator[bytes]:
        return self._mapping._iterate("values", False)

    def __reversed__(self) -> Iterator[bytes]:
        return self._mapping._iterate("values", True)


class Table(_native.Table, MutableMapping[bytes, bytes]):
    """An ordered map from ``bytes`` to ``bytes``; ``Store.table`` makes it.

    Keys and values may be any objects with a contiguous buffer; ``bytes`` come back. Use a table from any thread. Every
    single operation takes effect at one moment between its call and its return. Batches, ranges and walks are no
    transactions: others may work meanwhile.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, key: slice, /) -> Range[tuple[bytes, bytes]]: ...
        @overload
        def __getitem__(self, key: Buffer, /) -> bytes: ...
        def __getitem__(self, key: Any, /) -> Any: ...
        def __setitem__(self, key: Buffer, value: Buffer, /) -> None: ...
        def __delitem__(self, key: Buffer, /) -> None: ...
        def __iter__(self) -> Range[bytes]: ...
        def __len__(self) -> int: ...
        def __contains__(self, key: object, /) -> bool: ...
        @overload
        def get(self, key: Buffer, default: None = None, /) -> bytes | None: ...
        @overload
        def get(self, key: Buffer, default: bytes, /) -> bytes: ...
        @overload
        def get(self, key: Buffer, default: _T, /) -> bytes | _T: ...
        def get(self, key: Any, default: Any = None, /) -> Any: ...

    def items(self) -> ItemsView[bytes, bytes]:
        """Return a view of the pairs; its iteration is one walk, in chunks."""
        return _Items(self)

    def values(self) -> ValuesView[bytes]:
        """Return a view of the values; its iteration is one walk, in chunks."""
        return _Values(self)

    def update(self, pairs: _Pairs = (), /) -> None:  # type: ignore[override]
        """Add or change the pairs of a mapping, or of an iterable of pairs; of a key that comes twice the last counts.

        Pairs are written in parts of 4,096, so a generator may be longer than memory. Ctrl-C ends it between two parts;
        after an error or Ctrl-C some of the pairs are in the table. ``insert_many`` does the same, and counts.
        """
        self.insert_many(pairs)

    def setdefault(self, key: Buffer, default: Buffer, /) -> bytes:
        """Return the value of ``key``; add ``default`` if it is absent, as one step."""
        while True:
            found = self.get(key)
            if found is not None:
                return found
            if self.insert_new(key, default):
                return bytes(default)

    @overload
    def pop(self, key: Buffer, /) -> bytes: ...
    @overload
    def pop(self, key: Buffer, default: bytes, /) -> bytes: ...
    @overload
    def pop(self, key: Buffer, default: _T, /) -> bytes | _T: ...
    def pop(self, key: Buffer, /, *default: Any) -> Any:
        """Remove ``key`` and return its value, as one step; ``default`` if it is absent, else ``KeyError``."""
        if len(default) > 1:
            raise TypeError(f"pop expected at most 2 arguments, got {len(default) + 1}")
        found = self.update_with(key, lambda held: None)
        if found is not None:
            return found
        if default:
            return default[0]
        raise KeyError(key)

    def popitem(self) -> tuple[bytes, bytes]:
        """Remove and return the pair with the smallest key, the removal as one step; ``KeyError`` if there is none."""
        while True:
            pair = self.first()
            if pair is None:
                raise KeyError(f"popitem: table {self.name!r} is empty")
            if self.compare_exchange(pair[0], pair[1], None):
                return pair

    def clear(self) -> None:
        """Remove all keys. It is no transaction: keys that others add meanwhile may stay."""
        self.remove_range()


class Store(_native.Store):
    """A pool that is open; ``farleaf.open`` makes it. A context manager, which closes it."""

    def table(self, name: str, **options: Unpack[TableOptions]) -> Table:
        """Open the table ``name``.

        ``create=True`` makes it if it is missing, by ``engine`` (``docs/engines.md`` says which is for whom), with keys
        of exactly ``key_bytes`` or at most ``key_bytes_max`` bytes (1,024), values of exactly ``value_bytes`` (any
        length), ``content`` ``"raw"`` or ``"records"`` (what the gateway makes), and ``settings`` of the engine. A table
        that exists keeps those that it was made with.

        Raises ``NotFoundError`` if there is none and ``create`` is false.
        """
        return Table(self, name, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> Literal[False]:
        self.close()
        return False


def open(address: str, **options: Unpack[OpenOptions]) -> Store:
    """Open the pool at ``address``.

    ``"mem:"`` is memory of this process, ``"shm:/dev/shm/name"`` a folder that processes of this machine share,
    ``"tcp://host:port,..."`` and ``"verbs://host:port,..."`` memory servers, ``"etcd://host:port/cluster"`` those of a
    cluster.

    ``create=True`` makes the pool if there is none, of ``pool_bytes`` (``"1GiB"``; 4 GiB). ``cache`` is the size of each
    table's cache (``"256MiB"``), ``settings`` a dictionary of engine options by which this process opens tables.
    ``docs/python.md`` has the other options.

    Raises ``InvalidError`` for an address that is none, ``NoPoolError`` if there is no pool, ``UnavailableError`` if it
    cannot be reached.
    """
    if not isinstance(address, str):
        raise TypeError(f"an address is a str, as in \"mem:\", not {type(address).__name__}")
    store = Store(address, **options)
    _open_stores.add(store)
    return store


_open_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def _close_all() -> None:
    """Leave all pools in order: a process that ends without that looks dead to the others for the time of a lease."""
    for store in list(_open_stores):
        try:
            store.close()
        except Error:
            # Others clear up after this process.
            pass


def _after_fork() -> None:
    """Forget what the parent has open."""
    _native.after_fork()
    _open_stores.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)
