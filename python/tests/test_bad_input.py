"""Bad input: each gets an error that says what is wrong and what to do, and nothing is lost."""

from __future__ import annotations

import asyncio
import collections
import copy
import itertools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable

import pytest

import farleaf
import farleaf.aio


def in_child(work: Callable[[], None]) -> None:
    """Run `work` in the child of a fork, which ends as a program does; a failure there is one here."""
    sys.stdout.flush()
    with warnings.catch_warnings():
        # Newer versions of Python warn of any fork beside threads, which the store has.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the child failed: its traceback is above"


KEYS_ARE_BYTES = "keys are bytes, not str: use key.encode()"


@pytest.mark.parametrize(
    "call",
    [
        lambda t: t["ada"],
        lambda t: t.__setitem__("ada", b""),
        lambda t: t.__delitem__("ada"),
        lambda t: "ada" in t,
        lambda t: t.get("ada"),
        lambda t: t.get_many(["ada"]),
        lambda t: t.get_many("ada"),
        lambda t: t.update({"ada": b""}),
        lambda t: t.range("a"),
        lambda t: t["a":],
        lambda t: t.range(prefix="a"),
        lambda t: t.count(None, "b"),
        lambda t: t.floor("a"),
        lambda t: t.longest_prefix("a"),
        lambda t: t.compare_exchange("a", None, None),
        lambda t: t.pop("a"),
        lambda t: t.setdefault("a", b""),
    ],
)
def test_a_str_key_says_encode(mem: farleaf.Table, call: Callable[[farleaf.Table], object]) -> None:
    mem[b"ada"] = b"1815"
    with pytest.raises(TypeError) as refused:
        call(mem)
    assert str(refused.value) == KEYS_ARE_BYTES
    assert dict(mem) == {b"ada": b"1815"}


def test_objects_that_are_no_bytes_are_refused(mem: farleaf.Table) -> None:
    with pytest.raises(TypeError, match="^values are bytes, not str: use value.encode"):
        mem[b"k"] = "v"
    with pytest.raises(TypeError, match="^keys are bytes, or other objects with a contiguous buffer, not int$"):
        mem[1]
    with pytest.raises(TypeError, match="not list$"):
        mem[[1, 2]]
    with pytest.raises(TypeError, match="not int$"):
        mem.get_many(b"ada")
    with pytest.raises(TypeError, match="not NoneType$"):
        mem[b"k"] = None
    with pytest.raises(TypeError, match=r"not contiguous: use bytes\(key\)"):
        mem[memoryview(b"abcd")[::2]]
    with pytest.raises(TypeError, match="pairs are tuples of a key and a value"):
        mem.update([b"ab"])
    with pytest.raises(TypeError, match="not iterable"):
        mem.get_many(5)
    assert len(mem) == 0


def test_ranges_that_make_no_sense_are_refused(mem: farleaf.Table) -> None:
    with pytest.raises(farleaf.InvalidError, match="a prefix, or start and stop, not both"):
        mem.range(b"a", prefix=b"b")
    with pytest.raises(farleaf.InvalidError, match="0 or more"):
        mem.range(limit=-1)
    with pytest.raises(ValueError, match="no step"):
        mem[b"a":b"b":2]
    with pytest.raises(TypeError, match=r"use remove_range\(\)"):
        del mem[b"a":b"b"]
    with pytest.raises(TypeError, match=r"by update\(\)"):
        mem[b"a":b"b"] = b""


def test_too_long_keys_and_values_are_refused(mem: farleaf.Table) -> None:
    with pytest.raises(farleaf.InvalidError, match="1024") as refused:
        mem[b"k" * 2000] = b""
    assert isinstance(refused.value, ValueError) and isinstance(refused.value, farleaf.Error)
    with pytest.raises(farleaf.InvalidError):
        mem[b"k"] = bytes((1 << 20) + 1)
    many = itertools.chain(((b"%05d" % number, b"") for number in range(8192)), [(b"k" * 2000, b"")])
    with pytest.raises(farleaf.InvalidError, match="^after 8192 pairs: ") as refused:
        mem.update(many)
    assert len(mem) == 8192


@pytest.mark.parametrize(
    ("address", "hint"),
    [
        ("mme:", 'did you mean "mem:"'),
        ("", "understood are"),
        ("/dev/shm/p", 'did you mean "shm:/dev/shm/p"'),
        ("tcp://host", "name each by host and port"),
        ("etcd://host:1", "names no cluster"),
        ("http://x", "understood are"),
    ],
)
def test_an_address_that_is_none_says_what_would_be(address: str, hint: str) -> None:
    with pytest.raises(farleaf.InvalidError, match=hint):
        farleaf.open(address)


def test_pools_that_cannot_be_opened(shm: str) -> None:
    with pytest.raises(farleaf.NoPoolError) as missing:
        farleaf.open(shm)
    assert isinstance(missing.value, LookupError) and shm in str(missing.value)
    with pytest.raises(farleaf.UnavailableError):
        farleaf.open("tcp://127.0.0.1:1")
    with pytest.raises(TypeError, match='an address is a str, as in "mem:", not bytes'):
        farleaf.open(b"mem:")
    with pytest.raises(PermissionError if os.geteuid() else OSError):
        farleaf.open("shm:/proc/1/farleaf", create=True)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"cache": "64K"}, "cache"),
        ({"pool_bytes": "lots"}, "pool_bytes"),
        ({"settings": {"cahce": "1MiB"}}, 'did you mean "cache"'),
        ({"listen": "here"}, "not an address and port"),
        ({"join_timeout": -1.0}, "join_timeout"),
        ({"tls_ca": "/ca.pem"}, "come together"),
        ({"etcd_user": "me"}, "come together"),
        ({"async_workers": 0}, "async workers"),
    ],
)
def test_options_that_make_no_sense_are_named(options, hint: str) -> None:
    with pytest.raises(farleaf.InvalidError, match=hint):
        farleaf.open("mem:", **options)
    with pytest.raises(TypeError, match="unexpected keyword"):
        farleaf.open("mem:", chache="1MiB")


def test_table_options_that_make_no_sense_are_named(name: str) -> None:
    with farleaf.open("mem:", pool_bytes="64MiB") as db:
        with pytest.raises(farleaf.InvalidError, match="there are: .*btree"):
            db.table(name, create=True, engine="b-tree")
        with pytest.raises(farleaf.InvalidError, match="not both"):
            db.table(name, create=True, key_bytes=8, key_bytes_max=8)
        with pytest.raises(ValueError, match='"raw" or "records"'):
            db.table(name, create=True, content="hash")
        with pytest.raises(farleaf.InvalidError):
            db.table("", create=True)
        assert db.tables() == []


def test_after_close_every_handle_says_so(name: str) -> None:
    db = farleaf.open("mem:", pool_bytes="64MiB")
    table = db.table(name, create=True)
    table.update((b"%04d" % number, b"") for number in range(1000))
    pairs = table.range()
    next(pairs)
    db.close()
    db.close()
    for call in [
        lambda: table[b"a"],
        lambda: table.insert(b"a", b""),
        lambda: table.get_many([b"a"]),
        lambda: len(table),
        lambda: b"a" in table,
        lambda: list(pairs),
        lambda: db.table(name),
        lambda: db.tables(),
        lambda: asyncio.run(farleaf.aio.Table(table).get(b"a")),
    ]:
        with pytest.raises(farleaf.ClosedError, match="closed"):
            call()


def test_after_fork_every_handle_of_before_says_so(shm: str, memory_server, name: str) -> None:
    for address in ["mem:", shm, memory_server.address]:
        with farleaf.open(address, create=True, pool_bytes="64MiB") as db:
            table = db.table(name, create=True)
            table[b"a"] = b"1"
            pairs = table.range()

            def child() -> None:
                for call in [
                    lambda: table[b"a"],
                    lambda: table.insert(b"a", b"2"),
                    lambda: list(pairs),
                    lambda: db.tables(),
                    lambda: db.close(),
                    lambda: table.count(),
                    lambda: repr(table),
                ]:
                    with pytest.raises(farleaf.ClosedError, match="before fork: open it in the child"):
                        call()
                # It may open the pool by itself, and ends as any process does.
                with farleaf.open(address, create=True, pool_bytes="64MiB") as own:
                    if address != "mem:":
                        assert own.table(name)[b"a"] == b"1"
                        own.table(name)[b"child"] = b"was here"

            in_child(child)
            assert table[b"a"] == b"1", "the child has left nothing of the parent's"
            table[b"b"] = b"2"
            assert (b"child" in table) == (address != "mem:")
            assert db.verify() == []


def test_a_child_that_ends_by_itself_leaves_the_parent_in_the_pool(shm: str, name: str) -> None:
    program = f"""
import farleaf, os, sys
db = farleaf.open({shm!r}, create=True, pool_bytes="64MiB")
table = db.table("t", create=True)
table[b"a"] = b"1"
pid = os.fork()
if pid == 0:
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
table[b"b"] = b"2"
assert db.verify() == []
print(sorted(table))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[b'a', b'b']\n"), done.stderr


def _get(table: farleaf.Table) -> bytes:
    return table[b"a"]


def test_handles_cannot_be_pickled(mem: farleaf.Table) -> None:
    mem[b"a"] = b"1"
    with farleaf.open("mem:", pool_bytes="64MiB") as db:
        for handle in [db, mem, mem.range(), mem._to_async()]:
            for call in [pickle.dumps, copy.copy, copy.deepcopy]:
                with pytest.raises(TypeError, match="cannot be pickled.*open the store in|.*open it in the other process"):
                    call(handle)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        with pytest.raises(TypeError, match="open it in the other process"):
            pool.map(_get, [mem])


def test_errors_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(farleaf.InvalidError("why")))
    assert type(error) is farleaf.InvalidError and str(error) == "why"


def interrupted(work: Callable[[], object]) -> float:
    """Seconds that `work` goes on after Ctrl-C."""
    sent: list[float] = []

    def send() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.2, send)
    # A program that a shell has started in the background ignores Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            work()
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    return time.monotonic() - sent[0]


def test_ctrl_c_ends_long_ranges_and_loads_between_chunks(mem: farleaf.Table) -> None:
    mem.update((b"%06d" % number, bytes(50)) for number in range(20_000))

    def forever(work: Callable[[], object]) -> None:
        while True:
            work()

    # In C alone: Python runs no bytecode, and so looks for no signals itself.
    endless = itertools.chain.from_iterable(mem.range() for _ in itertools.repeat(None))
    assert interrupted(lambda: collections.deque(endless, maxlen=0)) < 1
    assert interrupted(lambda: forever(mem.count)) < 1
    assert interrupted(lambda: mem.update(zip(itertools.cycle([b"k"]), itertools.repeat(b"v")))) < 1
    assert interrupted(lambda: forever(lambda: mem.get_many([b"%06d" % number for number in range(20_000)]))) < 2
    assert len(mem) == 20_001, "the table is whole"


def test_an_error_of_an_iterator_ends_a_load(mem: farleaf.Table) -> None:
    def pairs():
        yield b"a", b"1"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        mem.update(pairs())
    with pytest.raises(ZeroDivisionError):
        mem.get_many(key for key, _ in pairs())
    assert len(mem) == 0
