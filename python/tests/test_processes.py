"""Processes: two on one pool, one of them killed; what it had acknowledged stays."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

import farleaf

WRITER = """
import sys, farleaf
db = farleaf.open(sys.argv[1])
table = db.table(sys.argv[2])
print("ready", flush=True)
number = 0
while True:
    table[b"%08d" % number] = b"v%d" % number
    table.update_with(b"count", lambda held: b"%d" % (int(held or b"0") + 1))
    print(number, flush=True)
    number += 1
"""


T = TypeVar("T")


def patiently(work: Callable[[], T]) -> T:
    """Do `work` again while what it needs is a dead process's, until the lease of that is over."""
    until = time.monotonic() + 20
    while True:
        try:
            return work()
        except farleaf.UnavailableError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


@pytest.mark.parametrize("engine", ["btree", "dex"])
@pytest.mark.parametrize("fabric", ["shm", "tcp"])
def test_a_killed_process_loses_no_acknowledged_change(
    fabric: str, engine: str, name: str, request: pytest.FixtureRequest
) -> None:
    address = request.getfixturevalue("shm") if fabric == "shm" else request.getfixturevalue("memory_server").address
    with farleaf.open(address, create=True, pool_bytes="64MiB") as db:
        table = db.table(name, create=True, engine=engine)
        own = 0
        for _ in range(2):
            table.clear()
            writer = subprocess.Popen(
                [sys.executable, "-c", WRITER, address, name], stdout=subprocess.PIPE, text=True
            )
            assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
            until = time.monotonic() + 0.7
            own = 0
            while time.monotonic() < until:
                table.update_with(b"count", lambda held: b"%d" % (int(held or b"0") + 1))
                own += 1
                # The owner of a key changes it so quickly that others, who ask it, would never find it unchanged.
                time.sleep(0.001)
            os.kill(writer.pid, signal.SIGKILL)
            told = [int(line) for line in writer.stdout.read().split("\n")[:-1] if line]
            assert writer.wait() == -signal.SIGKILL
            writer.stdout.close()
            assert told, "it has written something"
            # If keys have owners, those of the dead one are read once its lease is over.
            found = patiently(lambda: {int(key): value for key, value in table.range(b"0", b"9")})
            assert all(found[number] == b"v%d" % number for number in told)
            assert set(found) - set(told) <= {len(told)}, "one more may have happened"
            count = int(patiently(lambda: table[b"count"]))
            assert own + len(told) <= count <= own + len(told) + 1
            table[b"after"] = b"1"
        if fabric == "shm":
            # The rest of what the dead one had comes back with its recovery.
            until = time.monotonic() + 20
            while db.verify() != [] and time.monotonic() < until:
                time.sleep(0.1)
            assert db.verify() == []


def test_changes_are_seen_by_the_other_process_at_once(shm: str, name: str) -> None:
    with farleaf.open(shm, create=True, pool_bytes="64MiB") as db:
        table = db.table(name, create=True)
        table[b"from"] = b"parent"
        program = (
            "import sys, farleaf\n"
            "with farleaf.open(sys.argv[1]) as db:\n"
            "    table = db.table(sys.argv[2])\n"
            "    assert table[b'from'] == b'parent'\n"
            "    table[b'from'] = b'child'\n"
        )
        subprocess.run([sys.executable, "-c", program, shm, name], check=True, timeout=60)
        assert table[b"from"] == b"child"


def test_a_program_that_ends_without_close_leaves_in_order(shm: str) -> None:
    # The function that is registered first runs last.
    program = """
import atexit, sys
def look():
    try:
        db.tables()
    except farleaf.ClosedError:
        print("left")
atexit.register(look)
import farleaf
db = farleaf.open(sys.argv[1], create=True, pool_bytes="64MiB")
db.table("t", create=True)[b"a"] = b"1"
"""
    done = subprocess.run([sys.executable, "-c", program, shm], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr
    with farleaf.open(shm) as db:
        assert db.table("t")[b"a"] == b"1"


def test_a_child_does_not_pass_for_its_killed_parent(shm: str) -> None:
    program = """
import farleaf, os, sys, time
db = farleaf.open(sys.argv[1])
db.table("t")[b"a"] = b"1"
pid = os.fork()
if pid == 0:
    time.sleep(60)
    os._exit(0)
time.sleep(0.2)
print(pid, flush=True)
time.sleep(60)
"""
    with farleaf.open(shm, create=True, pool_bytes="64MiB") as db:
        db.table("t", create=True)
        parent = subprocess.Popen([sys.executable, "-c", program, shm], stdout=subprocess.PIPE, text=True)
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            parent.kill()
            parent.wait()
            locked = 0
            for life in (Path(shm.removeprefix("shm:")) / "members").iterdir():
                with life.open("r+b") as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        locked += 1
            assert locked == 1, "this process alone is alive"
        finally:
            os.kill(child, signal.SIGKILL)
            parent.stdout.close()
