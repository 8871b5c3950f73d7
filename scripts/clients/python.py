"""Assertions of redis-py or valkey-py, blocking and async: clients.py MODULE PORT."""

import asyncio
import importlib
import sys

module = importlib.import_module(sys.argv[1])
aio = importlib.import_module(sys.argv[1] + ".asyncio")
port = int(sys.argv[2])
Client = getattr(module, "Redis", None) or module.Valkey
AsyncClient = getattr(aio, "Redis", None) or aio.Valkey
ResponseError = module.exceptions.ResponseError


def blocking(protocol):
    client = Client(port=port, protocol=protocol, db=1)
    assert client.ping() is True
    client.flushdb()
    key, value = b"\x00k\r\n\xff", bytes(range(256))
    assert client.get(key) is None
    assert client.set(key, value) is True
    assert client.get(key) == value
    assert client.strlen(key) == 256
    assert client.getrange(key, 1, 3) == b"\x01\x02\x03"
    assert client.getrange(key, -2, -1) == b"\xfe\xff"
    assert client.exists(key, key, "none") == 2
    assert client.type(key) == b"string"
    assert client.type("none") == b"none"
    assert client.set(key, "x", nx=True) is None
    assert client.set("none", "x", xx=True) is None
    assert client.set(key, "x", xx=True) is True
    assert client.set(key, "y", get=True) == b"x"
    assert client.setnx("new", "1") in (True, 1)
    assert client.getdel("new") == b"1"
    assert client.mset({"a": 1, "b": 2, "c": 3}) is True
    assert client.mget("a", "none", "c") == [b"1", None, b"3"]
    assert client.incr("a") == 2 and client.incrby("a", 40) == 42
    assert client.decr("a") == 41 and client.decrby("a", 1) == 40
    assert float(client.incrbyfloat("a", 0.5)) == 40.5
    assert client.append("b", "x") == 2 and client.get("b") == b"2x"
    assert client.setrange("b", 3, "y") == 4 and client.get("b") == b"2x\x00y"
    assert client.delete("a", "b", "none") == 2
    assert client.unlink("c") == 1 and client.touch("c") == 0
    try:
        client.incr(key)
        raise AssertionError("a text is no number")
    except ResponseError as error:
        assert "value is not an integer or out of range" in str(error)
    try:
        client.execute_command("GET")
        raise AssertionError("GET takes a key")
    except ResponseError as error:
        assert "wrong number of arguments for 'get' command" in str(error)
    # The most that a table of records takes.
    large = b"v" * ((1 << 20) - 1)
    assert client.set("large", large) and client.get("large") == large
    with client.pipeline(transaction=False) as pipe:
        for number in range(500):
            pipe.set(f"key:{number:04}", number).get(f"key:{number:04}")
        replies = pipe.execute()
    assert replies[1::2] == [b"%d" % number for number in range(500)]
    found = list(client.scan_iter(match="key:*", count=17))
    assert sorted(set(found)) == [b"key:%04d" % number for number in range(500)]
    assert len(client.keys("key:00*")) == 100
    assert client.dbsize() == 502
    other = Client(port=port, protocol=protocol, db=0, client_name="other")
    assert other.get("large") is None
    assert other.client_getname() in (b"other", "other")
    assert other.client_id() != client.client_id()
    assert other.echo("x") == b"x"
    assert int(other.info("server")["redis_version"].split(".")[0]) >= 6
    assert "appendonly" in other.config_get("append*")
    assert len(other.time()) == 2
    assert client.flushdb() and client.dbsize() == 0


async def asynchronous(protocol):
    client = AsyncClient(port=port, protocol=protocol)
    await client.set("n", 0)
    await asyncio.gather(*(client.incr("n") for _ in range(100)))
    assert await client.get("n") == b"100"
    pipe = client.pipeline(transaction=False)
    for number in range(100):
        pipe.set(f"async:{number}", number)
    assert all(await pipe.execute())
    found = {key async for key in client.scan_iter(match="async:*")}
    assert len(found) == 100
    assert await client.mget("async:7", "none") == [b"7", None]
    assert await client.delete(*found, "n") == 101
    await client.aclose()


for protocol in (2, 3):
    blocking(protocol)
    asyncio.run(asynchronous(protocol))
