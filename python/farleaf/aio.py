"""Farleaf for asyncio.

>>> import asyncio, farleaf.aio
>>> async def main():
...     async with farleaf.aio.open("mem:") as db:
...         users = await db.table("users", create=True)
...         await users.insert(b"ada", b"1815")
...         return [pair async for pair in users.range(prefix=b"a")]
>>> asyncio.run(main())
[(b'ada', b'1815')]

Worker threads of the store do the operations. An operation begins when its coroutine first runs. Cancelling it does not
undo it: it may take effect or not. Methods do what those of the same name of ``farleaf.Table`` do.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Optional, TypeVar, cast

from . import Store as _Store
from . import Table as _Table
from . import _native
from . import open as _open
from .errors import InvalidError, UnavailableError

if TYPE_CHECKING:
    from typing_extensions import Buffer, Concatenate, ParamSpec, Self, Unpack

    from ._native import Exchange
    from .options import OpenOptions, TableOptions

    _P = ParamSpec("_P")

__all__ = ["Store", "Table", "open"]

_T = TypeVar("_T")
_Pair = tuple[bytes, bytes]

_bridges: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _native.Bridge] = weakref.WeakKeyDictionary()

# Pairs that a range fetches first and at most; each fetch doubles the count.
_CHUNK_FIRST = 16
_CHUNK_MAX = 512


def _bridge(loop: asyncio.AbstractEventLoop) -> _native.Bridge:
    """Return what completes futures of `loop`."""
    bridge = _bridges.get(loop)
    if bridge is None:
        bridge = _bridges[loop] = _native.Bridge()
        loop.add_reader(bridge.fileno(), bridge.drain)
    return bridge


class Table:
    """A table whose operations are awaited; ``Store.table`` makes it. Use it on any event loop."""

    __slots__ = ("_native", "_table")

    def __init__(self, table: _Table) -> None:
        self._table = table
        self._native = table._to_async()

    @property
    def name(self) -> str:
        """The table's name."""
        return self._table.name

    @property
    def engine(self) -> str:
        """The design of its index."""
        return self._table.engine

    def __repr__(self) -> str:
        return f"<farleaf.aio.Table {self.name!r}, {self.engine}>"

    @staticmethod
    def _begin(
        method: Callable[Concatenate[_native.Bridge, Any, _P], None], *args: _P.args, **kwargs: _P.kwargs
    ) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Any] = loop.create_future()
        method(_bridge(loop), waiter, *args, **kwargs)
        return waiter

    async def get(self, key: Buffer, default: Optional[bytes] = None, /) -> Optional[bytes]:
        """Return the value of ``key``, or ``default``."""
        return cast("Optional[bytes]", await self._begin(self._native.get, key, default))

    async def contains(self, key: Buffer) -> bool:
        """Return whether ``key`` is present."""
        return cast("bool", await self._begin(self._native.contains, key))

    async def insert(self, key: Buffer, value: Buffer, *, expires_in: float | None = None) -> bool:
        """Add or change ``key``; true if it was absent."""
        return cast("bool", await self._begin(self._native.put, "insert", key, value, expires_in))

    async def insert_new(self, key: Buffer, value: Buffer, *, expires_in: float | None = None) -> bool:
        """Add ``key``; false if it is present, and then nothing is changed."""
        return cast("bool", await self._begin(self._native.put, "insert_new", key, value, expires_in))

    async def replace(self, key: Buffer, value: Buffer, *, expires_in: float | None = None) -> bool:
        """Change ``key``; false if it is absent, and then nothing is changed."""
        return cast("bool", await self._begin(self._native.put, "replace", key, value, expires_in))

    async def remove(self, key: Buffer) -> bool:
        """Remove ``key``; false if it was absent."""
        return cast("bool", await self._begin(self._native.remove, key))

    async def compare_exchange(self, key: Buffer, expected: Buffer | None, new: Buffer | None) -> Exchange:
        """Give ``key`` the value ``new`` (``None``: remove it) if it holds ``expected`` (``None``: is absent)."""
        return cast("Exchange", await self._begin(self._native.compare_exchange, key, expected, new))

    async def expiry(self, key: Buffer) -> float | None:
        """Return the time at which ``key`` expires, in seconds since 1970; ``None`` if it does not.

        Raises ``KeyError`` if it is absent.
        """
        return cast("Optional[float]", await self._begin(self._native.expiry, key))

    async def set_expiry(self, key: Buffer, expires_in: float | None) -> bool:
        """Let ``key`` expire after some seconds (``None``: no more); false if it is absent."""
        return cast("bool", await self._begin(self._native.set_expiry, key, expires_in))

    async def hash(self, key: Buffer) -> dict[bytes, bytes]:
        """Return the fields of the hash of ``key``; none if the key is absent."""
        return cast("dict[bytes, bytes]", await self._begin(self._native.hash, key))

    async def hash_get(self, key: Buffer, names: Iterable[Buffer]) -> list[bytes | None]:
        """Return the values of some fields of the hash of ``key``, in their order."""
        return cast("list[bytes | None]", await self._begin(self._native.hash_get, key, names))

    async def hash_set(self, key: Buffer, fields: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> int:
        """Give fields of the hash of ``key`` values, all at one moment; return how many of the fields were new."""
        return cast("int", await self._begin(self._native.hash_set, key, fields))

    async def hash_remove(self, key: Buffer, names: Iterable[Buffer]) -> int:
        """Remove fields of the hash of ``key``, all at one moment; return how many were there."""
        return cast("int", await self._begin(self._native.hash_remove, key, names))

    async def get_many(self, keys: Iterable[Buffer]) -> list[bytes | None]:
        """Return the values of ``keys``, in their order; ``None`` for those that are absent."""
        return cast("list[bytes | None]", await self._begin(self._native.get_many, keys))

    async def insert_many(self, pairs: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> int:
        """Add or change the pairs of a mapping, or of an iterable of pairs; return how many keys were absent."""
        return cast("int", await self._begin(self._native.insert_many, pairs))

    async def update(self, pairs: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        """Add or change the pairs of a mapping, or of an iterable of pairs."""
        await self._begin(self._native.insert_many, pairs)

    async def remove_many(self, keys: Iterable[Buffer]) -> int:
        """Remove ``keys``; return how many were present."""
        return cast("int", await self._begin(self._native.remove_many, keys))

    async def longest_run(self, keys: Iterable[Buffer]) -> int:
        """Count the ``keys`` that are present before the first that is not, in their order."""
        return cast("int", await self._begin(self._native.longest_run, keys))

    async def update_with(self, key: Buffer, change: Callable[[bytes | None], Buffer | None]) -> bytes | None:
        """Give ``key`` what ``change`` makes of its value, as one step; return the value before."""
        held = await self.get(key)
        for attempt in range(_native.UPDATE_ATTEMPTS_MAX):
            new = change(held)
            if new == held:
                return held
            outcome = await self.compare_exchange(key, held, new)
            if outcome:
                return held
            held = outcome.found
            wait = _native.update_wait(attempt)
            if wait > 0:
                await asyncio.sleep(wait)
        raise UnavailableError(
            f"another client changed the key in each of {_native.UPDATE_ATTEMPTS_MAX} attempts: try again"
        )

    async def first(self) -> _Pair | None:
        """Return the pair with the smallest key."""
        pairs = [pair async for pair in self.range(limit=1)]
        return pairs[0] if pairs else None

    async def last(self) -> _Pair | None:
        """Return the pair with the largest key."""
        pairs = [pair async for pair in self.range(reverse=True, limit=1)]
        return pairs[0] if pairs else None

    async def lower(self, key: Buffer) -> _Pair | None:
        """Return the pair with the largest key below ``key``."""
        return cast("Optional[_Pair]", await self._begin(self._native.near, "lower", key))

    async def floor(self, key: Buffer) -> _Pair | None:
        """Return the pair of ``key``, or else that with the largest key below it."""
        return cast("Optional[_Pair]", await self._begin(self._native.near, "floor", key))

    async def ceiling(self, key: Buffer) -> _Pair | None:
        """Return the pair of ``key``, or else that with the smallest key above it."""
        return cast("Optional[_Pair]", await self._begin(self._native.near, "ceiling", key))

    async def higher(self, key: Buffer) -> _Pair | None:
        """Return the pair with the smallest key above ``key``."""
        return cast("Optional[_Pair]", await self._begin(self._native.near, "higher", key))

    async def longest_prefix(self, key: Buffer) -> _Pair | None:
        """Return the pair with the longest key that ``key`` starts with, ``key`` itself included."""
        return cast("Optional[_Pair]", await self._begin(self._native.near, "longest_prefix", key))

    async def range(
        self,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        *,
        prefix: Buffer | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> AsyncIterator[_Pair]:
        """Yield the pairs from ``start`` to below ``stop``, or of the keys with a prefix, in chunks."""
        if limit is not None and limit < 0:
            raise InvalidError("a limit is 0 or more")
        if prefix is not None:
            if start is not None or stop is not None:
                raise InvalidError("a range has a prefix, or start and stop, not both")
            start, stop = prefix, _native.prefix_end(prefix)
        chunk, after = _CHUNK_FIRST, False
        while limit is None or limit > 0:
            most = chunk if limit is None else min(chunk, limit)
            pairs: list[_Pair] = await self._begin(self._native.scan, start, after, stop, reverse, most)
            for pair in pairs:
                yield pair
            if len(pairs) < most:
                return
            if reverse:
                stop = pairs[-1][0]
            else:
                start, after = pairs[-1][0], True
            chunk = min(chunk * 2, _CHUNK_MAX)
            if limit is not None:
                limit -= len(pairs)

    async def count(
        self, start: Buffer | None = None, stop: Buffer | None = None, *, prefix: Buffer | None = None
    ) -> int:
        """Count the keys of a range, by a walk over it."""
        return cast("int", await self._begin(self._native.walk, "count", start, stop, prefix))

    async def remove_range(
        self, start: Buffer | None = None, stop: Buffer | None = None, *, prefix: Buffer | None = None
    ) -> int:
        """Remove the keys of a range; return how many."""
        return cast("int", await self._begin(self._native.walk, "remove_range", start, stop, prefix))


class Store:
    """A pool that is open; ``farleaf.aio.open`` makes it. Its own calls run in a thread of the loop's executor."""

    __slots__ = ("_store",)

    def __init__(self, store: _Store) -> None:
        self._store = store

    @property
    def address(self) -> str:
        """The address by which it was opened."""
        return self._store.address

    async def table(self, name: str, **options: Unpack[TableOptions]) -> Table:
        """Open the table ``name``; the options are those of ``farleaf.Store.table``."""
        return Table(await asyncio.to_thread(self._store.table, name, **options))

    async def tables(self) -> list[str]:
        """Return the names of all tables."""
        return await asyncio.to_thread(self._store.tables)

    async def drop_table(self, name: str) -> None:
        """Take a table out of the pool and free its memory."""
        await asyncio.to_thread(self._store.drop_table, name)

    async def verify(self) -> list[str]:
        """Walk every node of every table; return the problems, an empty list if all is well."""
        return await asyncio.to_thread(self._store.verify)

    async def close(self) -> None:
        """Leave the pool. Operations that have begun end first."""
        await asyncio.to_thread(self._store.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


class _Opening:
    """A store that is being opened: awaited, or entered as a context manager."""

    __slots__ = ("_address", "_options", "_store")

    def __init__(self, address: str, options: Any) -> None:
        self._address = address
        self._options = options

    async def _open(self) -> Store:
        return Store(await asyncio.to_thread(_open, self._address, **self._options))

    def __await__(self) -> Generator[Any, None, Store]:
        return self._open().__await__()

    async def __aenter__(self) -> Store:
        self._store = await self._open()
        return self._store

    async def __aexit__(self, *exception: object) -> None:
        await self._store.close()


def open(address: str, **options: Unpack[OpenOptions]) -> _Opening:
    """Open the pool at ``address``: ``await`` it, or enter it with ``async with``; the options are ``farleaf.open``'s."""
    return _Opening(address, options)
