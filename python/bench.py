#!/usr/bin/env python3
"""Figures of the wheel: single gets beside py-lmdb's, batches beside the Rust library's, in the same run.

    make python-bench

Rounds alternate, and the medians of the rounds are compared; the spread stands beside them. Fails if a bar does not
hold: a warm get of the caching engine at half of py-lmdb's rate, batches within 1.5 times the time of the Rust library.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import lmdb

import farleaf


CACHES = "dex"
LMDB_SHARE_MIN = 0.5
RUST_TIMES_MAX = 1.5


def rate(work: Callable[[], object], operations: int) -> float:
    start = time.perf_counter()
    work()
    return operations / (time.perf_counter() - start)


def alternate(works: dict[str, Callable[[], object]], operations: int, rounds: int) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in works}
    for name, work in works.items():
        work()
    for _ in range(rounds):
        for name, work in works.items():
            rates[name].append(rate(work, operations))
    return rates


def show(what: str, rates: dict[str, list[float]]) -> None:
    print(what)
    for name, all_rates in rates.items():
        middle = statistics.median(all_rates)
        print(f"  {name:34} {middle / 1e6:7.3f} M/s  {1e9 / middle:7.0f} ns  ({min(all_rates) / 1e6:.3f} to {max(all_rates) / 1e6:.3f})")


def share(rates: dict[str, list[float]], one: str, other: str) -> float:
    return statistics.median(rates[one]) / statistics.median(rates[other])


def bar(what: str, holds: bool) -> bool:
    print(f"  {what}: {'holds' if holds else 'does not hold'}")
    return holds


def main() -> int:
    hold = []
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--gets", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rust", help="the example get_many of the Rust library, for its figures")
    args = parser.parse_args()

    pairs = [(b"%016d" % number, b"%016d" % number) for number in range(args.keys)]
    draw = random.Random(1)
    wanted = [draw.choice(pairs)[0] for _ in range(args.gets)]

    with farleaf.open("mem:", pool_bytes="1GiB") as db, tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        with farleaf.open(f"shm:{folder}/pool", create=True, pool_bytes="256MiB") as shared:
            gets: dict[str, Callable[[], object]] = {}
            tables = {}
            for engine in ["btree", "dex", "dart", "smart"]:
                tables[engine] = db.table(engine, create=True, engine=engine)
                tables[engine].update(pairs)
                gets[f"farleaf mem: {engine}"] = lambda get=tables[engine].get: [get(key) for key in wanted]
            shm = shared.table("t", create=True)
            shm.update(pairs)
            gets["farleaf shm: btree"] = lambda get=shm.get: [get(key) for key in wanted]
            env = lmdb.open(f"{folder}/lmdb", map_size=1 << 30, sync=False)
            with env.begin(write=True) as transaction:
                for key, value in pairs:
                    transaction.put(key, value)

            def each() -> None:
                for key in wanted:
                    with env.begin() as transaction:
                        transaction.get(key)

            def one() -> None:
                with env.begin() as transaction:
                    get = transaction.get
                    for key in wanted:
                        get(key)

            gets["py-lmdb, a transaction for each get"] = each
            gets["py-lmdb, one transaction for all"] = one
            rates = alternate(gets, args.gets, args.rounds)
            show(f"single gets, {args.keys} keys of 16 B, values of 16 B, at random", rates)
            for engine in tables:
                print(
                    f"  {engine}: {share(rates, f'farleaf mem: {engine}', 'py-lmdb, a transaction for each get'):.2f} of "
                    f"py-lmdb by a transaction each, {share(rates, f'farleaf mem: {engine}', 'py-lmdb, one transaction for all'):.2f} "
                    "of one for all"
                )
            best = share(rates, f"farleaf mem: {CACHES}", "py-lmdb, a transaction for each get")
            hold.append(bar(f"{CACHES} at least {LMDB_SHARE_MIN} of py-lmdb by a transaction each", best >= LMDB_SHARE_MIN))
            batches = [wanted[at : at + 1000] for at in range(0, len(wanted), 1000)]
            many: dict[str, Callable[[], object]] = {}
            for engine, table in tables.items():
                many[engine] = lambda get_many=table.get_many: [get_many(keys) for keys in batches]
            rates = alternate(many, args.gets, args.rounds)
            show("get_many of 1,000", rates)
            if args.rust:
                command = [args.rust, str(args.keys), str(args.gets), str(args.rounds)]
                rust = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                for engine, own in rust.items():
                    ours = 1e9 / statistics.median(rates[engine])
                    print(f"  {engine}: Rust {own:.0f} ns, Python {ours:.0f} ns, {ours / own:.2f} times")
                    hold.append(bar(f"{engine} at most {RUST_TIMES_MAX} times Rust's", ours <= RUST_TIMES_MAX * own))
    return 0 if all(hold) else 1


if __name__ == "__main__":
    sys.exit(main())
