"""Model: random operations on a table, beside a sorted dict, on each fabric but `verbs`."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

import farleaf

KEYS = st.lists(st.sampled_from([b"\x00", b"a", b"b", b"\xff"]), max_size=4).map(b"".join)
VALUES = st.binary(max_size=40)
ENDS = st.none() | KEYS
NUMBERS = itertools.count()
# FARLEAF_SOAK multiplies the runs, as in the other suites.
RUNS = 25 * int(os.environ.get("FARLEAF_SOAK", "1"))


class Machine(RuleBasedStateMachine):
    """A table and a dict that are changed alike and must be equal."""

    db: farleaf.Store
    engine: str

    def __init__(self) -> None:
        super().__init__()
        self.name = f"model{next(NUMBERS)}"
        self.table = self.db.table(self.name, create=True, engine=self.engine)
        self.model: dict[bytes, bytes] = {}

    def teardown(self) -> None:
        assert dict(self.table) == self.model
        self.db.drop_table(self.name)

    def pairs(self, start: bytes | None, stop: bytes | None) -> list[tuple[bytes, bytes]]:
        return [
            (key, self.model[key])
            for key in sorted(self.model)
            if (start is None or key >= start) and (stop is None or key < stop)
        ]

    @rule(key=KEYS, value=VALUES)
    def put(self, key: bytes, value: bytes) -> None:
        assert self.table.insert(key, value) == (key not in self.model)
        self.model[key] = value

    @rule(key=KEYS, value=VALUES)
    def put_new(self, key: bytes, value: bytes) -> None:
        assert self.table.insert_new(key, value) == (key not in self.model)
        self.model.setdefault(key, value)

    @rule(key=KEYS, value=VALUES)
    def replace(self, key: bytes, value: bytes) -> None:
        assert self.table.replace(key, value) == (key in self.model)
        if key in self.model:
            self.model[key] = value

    @rule(key=KEYS)
    def remove(self, key: bytes) -> None:
        assert self.table.pop(key, None) == self.model.pop(key, None)

    @rule(key=KEYS, expected=st.none() | VALUES, new=st.none() | VALUES, as_held=st.booleans())
    def exchange(self, key: bytes, expected: bytes | None, new: bytes | None, as_held: bool) -> None:
        held = self.model.get(key)
        expected = held if as_held else expected
        outcome = self.table.compare_exchange(key, expected, new)
        assert bool(outcome) == (held == expected)
        if not outcome:
            assert outcome.found == held
        elif new is None:
            self.model.pop(key, None)
        else:
            self.model[key] = new

    @rule(pairs=st.lists(st.tuples(KEYS, VALUES), max_size=20))
    def put_many(self, pairs: list[tuple[bytes, bytes]]) -> None:
        assert self.table.insert_many(pairs) == len(dict(pairs).keys() - self.model.keys())
        self.model.update(pairs)

    @rule(keys=st.lists(KEYS, max_size=20))
    def get_many(self, keys: list[bytes]) -> None:
        assert self.table.get_many(keys) == [self.model.get(key) for key in keys]
        run = list(itertools.takewhile(self.model.__contains__, keys))
        assert self.table.longest_run(keys) == len(run)

    @rule(key=KEYS)
    def get(self, key: bytes) -> None:
        assert self.table.get(key) == self.model.get(key)
        assert (key in self.table) == (key in self.model)

    @rule(key=KEYS)
    def near(self, key: bytes) -> None:
        below, above = self.pairs(None, key), self.pairs(key, None)
        own = [(key, self.model[key])] if key in self.model else []
        assert self.table.lower(key) == (below[-1] if below else None)
        assert self.table.floor(key) == ((own or below[-1:] or [None])[0])
        assert self.table.ceiling(key) == (above[0] if above else None)
        higher = above[len(own) :]
        assert self.table.higher(key) == (higher[0] if higher else None)
        prefixes = [pair for pair in self.pairs(None, None) if key.startswith(pair[0])]
        assert self.table.longest_prefix(key) == (max(prefixes) if prefixes else None)

    @rule(start=ENDS, stop=ENDS, reverse=st.booleans(), limit=st.none() | st.integers(0, 30))
    def walk(self, start: bytes | None, stop: bytes | None, reverse: bool, limit: int | None) -> None:
        expected = self.pairs(start, stop)
        assert self.table.count(start, stop) == len(expected)
        expected = expected[::-1] if reverse else expected
        assert list(self.table.range(start, stop, reverse=reverse, limit=limit)) == expected[:limit]

    @rule(prefix=KEYS)
    def walk_prefix(self, prefix: bytes) -> None:
        expected = [pair for pair in self.pairs(None, None) if pair[0].startswith(prefix)]
        assert list(self.table.range(prefix=prefix)) == expected

    @rule(start=ENDS, stop=KEYS)
    def remove_range(self, start: bytes | None, stop: bytes) -> None:
        gone = self.pairs(start, stop)
        assert self.table.remove_range(start, stop) == len(gone)
        for key, _ in gone:
            del self.model[key]

    @invariant()
    def ends_agree(self) -> None:
        pairs = self.pairs(None, None)
        assert self.table.first() == (pairs[0] if pairs else None)
        assert self.table.last() == (pairs[-1] if pairs else None)
        assert bool(self.table) == bool(pairs)


@pytest.mark.parametrize(
    ("fabric", "engine"),
    [("mem", "btree"), ("mem", "dex"), ("mem", "dart"), ("shm", "btree"), ("shm", "smart"), ("tcp", "btree")],
)
def test_a_table_is_a_sorted_dict(fabric: str, engine: str, request: pytest.FixtureRequest) -> None:
    folder = tempfile.mkdtemp(prefix="farleaf-python-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    try:
        address = {"mem": "mem:", "shm": f"shm:{folder}/pool"}.get(fabric)
        if address is None:
            address = request.getfixturevalue("memory_server").address
        with farleaf.open(address, create=True, pool_bytes="64MiB") as db:
            machine: Any = type("Own", (Machine,), {"db": db, "engine": engine})
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=RUNS,
                    stateful_step_count=30,
                    deadline=None,
                    derandomize=True,
                    database=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
            if fabric != "tcp":
                assert db.verify() == []
    finally:
        shutil.rmtree(folder)
