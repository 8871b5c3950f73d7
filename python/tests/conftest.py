"""Fixtures: pools on each fabric but `verbs`, and memory servers for them."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import farleaf

ROOT = Path(__file__).resolve().parents[2]
POOL_BYTES = "64MiB"


def program() -> str:
    """The command `farleaf`, whose memory servers the pools on `tcp` lie on."""
    found = os.environ.get("FARLEAF") or shutil.which("farleaf")
    if not found or not Path(found).exists():
        pytest.fail("no program farleaf: set FARLEAF to it (make python does), or put it on PATH")
    return found


class MemoryServer:
    """A memory server of its own."""

    def __init__(self) -> None:
        command = [program(), "memory", "--server", "0", "--servers", "1", "--size", POOL_BYTES]
        self.process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().split()
        assert line[:1] == ["address"], line
        self.address = f"tcp://{line[1]}"

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="session")
def memory_server() -> Iterator[MemoryServer]:
    server = MemoryServer()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def farleaf_program() -> str:
    return program()


@pytest.fixture
def shm() -> Iterator[str]:
    """The address of a folder in which there is no pool yet."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="farleaf-python-", dir=base)
    yield f"shm:{folder}/pool"
    shutil.rmtree(folder)


_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """A name that no other table of this run has."""
    return f"t{next(_numbers)}"


@pytest.fixture(params=["mem", "shm", "tcp"])
def db(request: pytest.FixtureRequest) -> Iterator[farleaf.Store]:
    """A store on each fabric."""
    if request.param == "mem":
        address = "mem:"
    elif request.param == "shm":
        address = request.getfixturevalue("shm")
    else:
        address = request.getfixturevalue("memory_server").address
    with farleaf.open(address, create=True, pool_bytes=POOL_BYTES) as db:
        yield db


@pytest.fixture
def table(db: farleaf.Store, name: str) -> farleaf.Table:
    return db.table(name, create=True)


@pytest.fixture
def mem(name: str) -> Iterator[farleaf.Table]:
    """A table of a store of its own in memory."""
    with farleaf.open("mem:", pool_bytes=POOL_BYTES) as db:
        yield db.table(name, create=True)
