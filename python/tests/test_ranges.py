"""Ranges: pairs in order, from both ends, near a key and by prefix, on each fabric."""

from __future__ import annotations

import threading

import pytest

import farleaf

WORDS = [b"a", b"ab", b"abc", b"b", b"b\x00", b"b\xff", b"c", b"\xff", b"\xff\xff"]


@pytest.fixture
def words(table: farleaf.Table) -> farleaf.Table:
    table.update((word, b"=" + word) for word in WORDS)
    return table


def keys(pairs: farleaf.Range[tuple[bytes, bytes]]) -> list[bytes]:
    return [key for key, value in pairs]


def test_ranges_are_half_open(words: farleaf.Table) -> None:
    assert list(words.range()) == [(word, b"=" + word) for word in WORDS]
    assert keys(words.range(b"ab", b"c")) == [b"ab", b"abc", b"b", b"b\x00", b"b\xff"]
    assert keys(words[b"ab":b"c"]) == keys(words.range(b"ab", b"c"))
    assert keys(words[:b"ab"]) == [b"a"] and keys(words[b"c":]) == [b"c", b"\xff", b"\xff\xff"]
    assert keys(words.range(b"c", b"ab")) == []
    assert keys(words.range(b"ab", b"c", reverse=True, limit=2)) == [b"b\xff", b"b\x00"]
    assert keys(words.range(limit=0)) == [] and keys(words.range(limit=1)) == [b"a"]
    assert keys(words.range(prefix=b"b")) == [b"b", b"b\x00", b"b\xff"]
    assert keys(words.range(prefix=b"\xff")) == [b"\xff", b"\xff\xff"]
    assert keys(words.range(prefix=b"", limit=2, reverse=True)) == [b"\xff\xff", b"\xff"]


def test_counts_and_removals_of_ranges(words: farleaf.Table) -> None:
    assert words.count() == len(words) == len(WORDS)
    assert words.count(b"ab", b"c") == 5 and words.count(prefix=b"b") == 3
    assert words.remove_range(prefix=b"b") == 3 and words.remove_range(prefix=b"b") == 0
    assert words.remove_range(b"c") == 3
    assert list(words) == [b"a", b"ab", b"abc"]


def test_the_pairs_nearest_to_a_key(words: farleaf.Table) -> None:
    pair = lambda key: (key, b"=" + key)  # noqa: E731
    assert words.floor(b"az") == pair(b"abc") and words.floor(b"ab") == pair(b"ab") and words.floor(b"") is None
    assert words.lower(b"ab") == pair(b"a") and words.ceiling(b"ac") == pair(b"b")
    assert words.higher(b"ab") == pair(b"abc") and words.higher(b"\xff\xff") is None
    assert words.longest_prefix(b"abcd") == pair(b"abc") and words.longest_prefix(b"zz") is None
    assert words.longest_prefix(b"b\x00\x00") == pair(b"b\x00")
    assert words.first() == pair(b"a") and words.last() == pair(b"\xff\xff")


def test_long_ranges_come_whole_in_chunks(table: farleaf.Table) -> None:
    all_keys = [b"%05d" % number for number in range(5_000)]
    table.update((key, key * 3) for key in all_keys)
    assert keys(table.range()) == all_keys
    assert keys(table.range(reverse=True)) == all_keys[::-1]
    assert keys(table.range(limit=1_234)) == all_keys[:1_234]
    assert list(table.values()) == [key * 3 for key in all_keys]


def test_a_range_goes_on_while_others_write(mem: farleaf.Table) -> None:
    mem.update((b"%04d" % number, b"") for number in range(0, 2_000, 2))
    pairs = mem.range()
    first = [next(pairs) for _ in range(10)]
    mem.update((b"%04d" % number, b"") for number in range(1, 2_000, 2))
    found = [key for key, _ in first] + keys(pairs)
    assert found == sorted(set(found)), "in order, none twice"
    assert set(found) >= {b"%04d" % number for number in range(0, 2_000, 2)}


def test_threads_share_a_table_and_none_loses_a_change(table: farleaf.Table) -> None:
    def add(held: bytes | None) -> bytes:
        return b"%d" % (int(held or b"0") + 1)

    def work() -> None:
        for number in range(50):
            table.update_with(b"n", add)
            table.get_many([b"n", b"%d" % number])
            list(table.range(limit=5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table[b"n"] == b"200"


def test_two_threads_cannot_tear_one_range(mem: farleaf.Table) -> None:
    mem.update((b"%05d" % number, b"") for number in range(20_000))
    pairs, found, refused = mem.range(), [], []

    def take() -> None:
        while True:
            try:
                found.append(next(pairs)[0])
            except StopIteration:
                return
            except ValueError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [b"%05d" % number for number in range(20_000)]
    assert set(refused) <= {"another thread is fetching from this range"}
