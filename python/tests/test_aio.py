"""asyncio: the same operations awaited, on each fabric; the loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

import farleaf
import farleaf.aio


def test_all_operations_can_be_awaited(db: farleaf.Store, name: str) -> None:
    async def main() -> None:
        table = farleaf.aio.Table(db.table(name, create=True))
        assert await table.insert(b"ada", b"1815") and not await table.insert(b"ada", b"1815")
        assert await table.get(b"ada") == b"1815" and await table.get(b"x", b"?") == b"?" and await table.get(b"x") is None
        assert await table.contains(b"ada") and not await table.contains(b"x")
        assert not await table.insert_new(b"ada", b"") and await table.replace(b"ada", b"1")
        assert (await table.compare_exchange(b"ada", b"?", None)).found == b"1"
        assert await table.compare_exchange(b"ada", b"1", b"2")
        assert await table.update_with(b"ada", lambda held: (held or b"") + b"!") == b"2"
        await table.update({b"ab": b"1", b"abc": b"2"})
        assert await table.insert_many([(b"b", b"3"), (b"ab", b"1")]) == 1
        assert await table.get_many([b"ab", b"?", b"b"]) == [b"1", None, b"3"]
        assert await table.longest_run([b"ab", b"b", b"?"]) == 2
        assert await table.first() == (b"ab", b"1") and await table.last() == (b"b", b"3")
        assert await table.floor(b"abb") == (b"ab", b"1") and await table.lower(b"ab") is None
        assert await table.ceiling(b"abd") == (b"ada", b"2!") and await table.higher(b"ada") == (b"b", b"3")
        assert await table.longest_prefix(b"abcd") == (b"abc", b"2")
        assert await table.count(prefix=b"ab") == 2 and await table.count() == 4
        assert await table.remove(b"b") and await table.remove_many([b"b", b"ada"]) == 1
        assert await table.remove_range(prefix=b"a") == 2
        assert [pair async for pair in table.range()] == []
        assert await table.first() is None and await table.last() is None

    asyncio.run(main())


def test_ranges_come_whole_from_both_ends(db: farleaf.Store, name: str) -> None:
    async def main() -> None:
        table = farleaf.aio.Table(db.table(name, create=True))
        pairs = [(b"%04d" % number, b"%d" % number) for number in range(2_000)]
        await table.update(pairs)
        assert [pair async for pair in table.range()] == pairs
        assert [pair async for pair in table.range(reverse=True)] == pairs[::-1]
        assert [pair async for pair in table.range(b"0100", b"0200", limit=50)] == pairs[100:150]
        assert [pair async for pair in table.range(b"0100", b"0200", limit=50, reverse=True)] == pairs[199:149:-1]
        assert [pair async for pair in table.range(prefix=b"00", reverse=True)] == pairs[99::-1]
        assert [pair async for pair in table.range(limit=0)] == []
        with pytest.raises(farleaf.InvalidError):
            async for _ in table.range(limit=-1):
                pass

    asyncio.run(main())


def test_the_readme_of_aio(memory_server) -> None:
    async def main() -> None:
        async with farleaf.aio.open(memory_server.address, create=True) as db:
            users = await db.table("aio-users", create=True)
            await users.insert(b"ada", b"1815")
            assert "aio-users" in await db.tables()
            assert [pair async for pair in users.range(prefix=b"a")] == [(b"ada", b"1815")]
            await db.drop_table("aio-users")
        with pytest.raises(farleaf.ClosedError):
            await users.get(b"ada")
        other = await farleaf.aio.open("mem:", pool_bytes="64MiB")
        await other.close()

    asyncio.run(main())


def test_a_thousand_operations_overlap(db: farleaf.Store, name: str) -> None:
    async def main() -> None:
        table = farleaf.aio.Table(db.table(name, create=True))
        await asyncio.gather(*(table.insert(b"%d" % number, b"%d" % number) for number in range(1_000)))
        found = await asyncio.gather(*(table.get(b"%d" % number) for number in range(1_000)))
        assert found == [b"%d" % number for number in range(1_000)]
        bridge = farleaf.aio._bridge(asyncio.get_running_loop())
        assert bridge.pending() == 0, "nothing is kept of what has ended"

    asyncio.run(main())


def test_a_cancelled_operation_harms_none_of_the_others(mem: farleaf.Table) -> None:
    async def main() -> None:
        table = farleaf.aio.Table(mem)
        tasks = [asyncio.ensure_future(table.insert(b"%d" % number, b"")) for number in range(100)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, asyncio.CancelledError) or outcome is True for outcome in done)
        assert done[1::2] == [True] * 50
        assert await table.count() >= 50

    asyncio.run(main())


def test_errors_are_raised_where_they_are_awaited(mem: farleaf.Table) -> None:
    async def main() -> None:
        table = farleaf.aio.Table(mem)
        with pytest.raises(TypeError, match=r"use key.encode\(\)"):
            await table.get("ada")  # type: ignore[arg-type]
        with pytest.raises(farleaf.InvalidError, match="1024"):
            await table.insert(b"k" * 2_000, b"")
        with pytest.raises(farleaf.InvalidError):
            await farleaf.aio.open("mme:")

    asyncio.run(main())


def test_each_loop_has_its_bridge_and_takes_it_along(mem: farleaf.Table) -> None:
    table = farleaf.aio.Table(mem)

    async def main() -> weakref.ref[object]:
        await table.insert(b"a", b"1")
        return weakref.ref(farleaf.aio._bridge(asyncio.get_running_loop()))

    first, second = asyncio.run(main()), asyncio.run(main())
    gc.collect()
    assert first() is None and second() is None
    with pytest.raises(RuntimeError, match="no running event loop"):
        table.get(b"a").send(None)


def test_the_loop_goes_on_while_operations_wait(mem: farleaf.Table) -> None:
    mem.update((b"%06d" % number, bytes(100)) for number in range(20_000))

    async def main() -> int:
        counting = asyncio.ensure_future(farleaf.aio.Table(mem).count())
        turns = 0
        while not counting.done():
            await asyncio.sleep(0)
            turns += 1
        assert await counting == 20_000
        return turns

    assert asyncio.run(main()) > 10
