"""Types: calls as users write them, which `mypy --strict` and `pyright` must accept with these types."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping

from typing_extensions import assert_type

import farleaf
import farleaf.aio


def blocking(db: farleaf.Store) -> None:
    users = db.table("users", create=True, engine="dex", settings={"cache": "1MiB"})
    assert_type(users, farleaf.Table)
    mapping: MutableMapping[bytes, bytes] = users
    assert_type(mapping[b"a"], bytes)
    users[bytearray(b"a")] = memoryview(b"1")
    assert_type(users[b"a"], bytes)
    assert_type(users[b"a":b"b"], farleaf.Range[tuple[bytes, bytes]])
    assert_type(users.get(b"a"), "bytes | None")
    assert_type(users.get(b"a", b""), bytes)
    assert_type(users.get(b"a", 0), "bytes | int")
    assert_type(users.pop(b"a"), bytes)
    assert_type(users.get_many([b"a"]), "list[bytes | None]")
    assert_type(users.insert_many({b"a": b"1"}), int)
    assert_type(users.floor(b"a"), "tuple[bytes, bytes] | None")
    for key, value in users.range(b"a", b"h", reverse=True, limit=10):
        assert_type(key, bytes)
        assert_type(value, bytes)
    for key in users:
        assert_type(key, bytes)
    for key, value in users.items():
        assert_type(value, bytes)
    outcome = users.compare_exchange(b"k", None, b"v")
    assert_type(outcome.found, "bytes | None")
    users.update({b"a": b"1"})
    users.update([(b"a", b"1")])
    assert_type(users.insert(b"a", b"1", expires_in=60), bool)
    assert_type(users.expiry(b"a"), "float | None")
    assert_type(users.hash(b"h"), "dict[bytes, bytes]")
    users.hash_set(b"h", {b"f": b"1"})


async def awaited() -> None:
    async with farleaf.aio.open("etcd://10.0.0.9:2379/orders", cache="1MiB") as db:
        users = await db.table("users")
        assert_type(await users.get(b"a"), "bytes | None")
        async for key, value in users.range(prefix=b"a"):
            assert_type(key, bytes)
            assert_type(value, bytes)
        assert_type(await users.hash(b"h"), "dict[bytes, bytes]")
        found = await asyncio.gather(users.get(b"a"), users.floor(b"a"))
        assert_type(found[1], "tuple[bytes, bytes] | None")
