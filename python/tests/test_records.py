"""Records: strings that expire and small hashes, on each fabric; and those that Redis's clients have written."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time

import pytest

import farleaf
import farleaf.aio


@pytest.fixture
def records(db: farleaf.Store, name: str) -> farleaf.Table:
    return db.table(name, create=True, content="records")


def test_strings_expire(records: farleaf.Table) -> None:
    before = time.time()
    assert records.insert(b"a", b"1", expires_in=60.0) and records[b"a"] == b"1"
    expires = records.expiry(b"a")
    assert expires is not None and before + 59.9 < expires < time.time() + 60.1
    assert records.set_expiry(b"a", None) and records.expiry(b"a") is None
    assert records.replace(b"a", b"2", expires_in=30) and records.expiry(b"a") is not None
    records[b"a"] = b"3"
    assert records.expiry(b"a") is None, "a plain change drops it"
    assert records.insert_new(b"b", b"1", expires_in=0.02) and not records.insert_new(b"a", b"", expires_in=1)
    time.sleep(0.05)
    assert b"b" not in records and list(records.items()) == [(b"a", b"3")] and len(records) == 1
    with pytest.raises(KeyError) as missing:
        records.expiry(b"b")
    assert missing.value.args == (b"b",)
    assert not records.set_expiry(b"b", 1.0) and not records.replace(b"b", b"", expires_in=1)
    assert records.set_expiry(b"a", 0.0) and b"a" not in records


def test_a_hash_changes_as_one(records: farleaf.Table) -> None:
    assert records.hash(b"h") == {} and records.hash_get(b"h", [b"x"]) == [None]
    assert records.hash_set(b"h", [(b"b", b"2"), (bytearray(b"a"), memoryview(b"1"))]) == 2
    assert records.hash_set(b"h", {b"a": b"3", b"c": b"4"}) == 1
    assert records.hash(b"h") == {b"a": b"3", b"b": b"2", b"c": b"4"}
    assert records.hash_get(b"h", [b"c", b"x", b"a"]) == [b"4", None, b"3"]
    assert records.set_expiry(b"h", 60) and records.hash_remove(b"h", [b"a", b"x"]) == 1
    assert records.expiry(b"h") is not None, "changes of fields keep it"
    assert records.hash_remove(b"h", [b"b", b"c"]) == 2 and b"h" not in records


def test_hashes_stand_among_strings(records: farleaf.Table) -> None:
    records.update({b"a": b"1", b"z": b"2"})
    records.hash_set(b"h", {b"f": b"1"})
    assert list(records) == [b"a", b"h", b"z"] == list(reversed(list(reversed(records)))) and len(records) == 3
    assert b"h" in records
    for walk in [records.range(), records.values()]:
        pairs = iter(walk)
        next(pairs)
        with pytest.raises(farleaf.WrongTypeError, match="the key b'h' holds a hash"):
            next(pairs)
    for call in [lambda: records[b"h"], lambda: records.hash(b"a"), lambda: records.hash_set(b"a", {b"f": b""})]:
        with pytest.raises(farleaf.WrongTypeError):
            call()


def test_raw_tables_and_wrong_times_are_refused(mem: farleaf.Table) -> None:
    mem[b"a"] = b"1"
    for call in [
        lambda: mem.insert(b"a", b"2", expires_in=1),
        lambda: mem.set_expiry(b"a", 1),
        lambda: mem.expiry(b"a"),
        lambda: mem.hash_set(b"a", {b"f": b"1"}),
    ]:
        with pytest.raises(farleaf.InvalidError, match="raw"):
            call()
    for time_left in [-1.0, float("nan"), float("inf")]:
        with pytest.raises(farleaf.InvalidError, match="expires_in="):
            mem.insert(b"a", b"2", expires_in=time_left)
    with pytest.raises(TypeError, match="not str"):
        mem.hash_set(b"h", {"f": b"1"})
    assert dict(mem) == {b"a": b"1"}


def test_records_can_be_awaited(records: farleaf.Table) -> None:
    async def main() -> None:
        table = farleaf.aio.Table(records)
        assert await table.insert(b"a", b"1", expires_in=60) and await table.expiry(b"a") is not None
        assert await table.replace(b"a", b"2", expires_in=60) and not await table.insert_new(b"a", b"", expires_in=1)
        assert await table.set_expiry(b"a", None) and await table.expiry(b"a") is None
        with pytest.raises(KeyError):
            await table.expiry(b"x")
        assert await table.hash_set(b"h", {b"f": b"1", b"g": b"2"}) == 2
        assert await table.hash(b"h") == {b"f": b"1", b"g": b"2"}
        assert await table.hash_get(b"h", [b"g", b"x"]) == [b"2", None]
        assert await table.hash_remove(b"h", [b"f"]) == 1
        with pytest.raises(farleaf.WrongTypeError):
            await table.get(b"h")

    asyncio.run(main())


def test_the_records_of_a_gateway(shm: str, name: str, farleaf_program: str) -> None:
    command = [farleaf_program, "redis", shm, "--create", "--pool-bytes", "64MiB", "--table", name, "--address", "127.0.0.1:0"]
    gateway = subprocess.Popen([*command, "--end-with-stdin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert gateway.stdin is not None and gateway.stdout is not None
    try:
        told = gateway.stdout.readline().split()
        assert told[:1] == ["redis"], told
        host, port = told[1].split(":")
        with socket.create_connection((host, int(port)), 10) as client, client.makefile("rb") as replies:
            client.sendall(b"SET a 1 EX 100\r\nHSET h f 1 g 2\r\n")
            assert [replies.readline(), replies.readline()] == [b"+OK\r\n", b":2\r\n"]
            with farleaf.open(shm) as db:
                table = db.table(name)
                assert table[b"a"] == b"1" and table.expiry(b"a") is not None
                assert table.hash(b"h") == {b"f": b"1", b"g": b"2"}
                table.hash_set(b"h", {b"f": b"3"})
            client.sendall(b"HMGET h f g\r\n")
            assert b"".join(replies.readline() for _ in range(5)) == b"*2\r\n$1\r\n3\r\n$1\r\n2\r\n"
    finally:
        gateway.stdin.close()
        assert gateway.wait(20) == 0
        gateway.stdout.close()
