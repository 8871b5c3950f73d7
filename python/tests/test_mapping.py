"""Mapping: a table is a mutable mapping, in the order of its keys, on each fabric."""

from __future__ import annotations

import array
from collections.abc import Mapping, MutableMapping

import pytest

import farleaf


def test_a_table_is_a_mutable_mapping(table: farleaf.Table) -> None:
    assert isinstance(table, MutableMapping)
    assert not table and len(table) == 0
    table[b"ada"] = b"1815"
    table[b"alan"] = b"1912"
    assert table and len(table) == 2
    assert table[b"ada"] == b"1815"
    assert b"ada" in table and b"bob" not in table
    assert table.get(b"bob") is None and table.get(b"bob", b"?") == b"?" and table.get(b"ada", b"?") == b"1815"
    with pytest.raises(KeyError) as missing:
        table[b"bob"]
    assert missing.value.args == (b"bob",)
    del table[b"ada"]
    with pytest.raises(KeyError):
        del table[b"ada"]
    assert dict(table) == {b"alan": b"1912"} == table


def test_views_go_in_the_order_of_the_keys(table: farleaf.Table) -> None:
    pairs = {b"%03d" % number: b"v%d" % number for number in range(100)}
    table.update(reversed(pairs.items()))
    assert list(table) == list(table.keys()) == list(pairs)
    assert list(table.items()) == list(pairs.items())
    assert list(table.values()) == list(pairs.values())
    assert list(reversed(table)) == list(reversed(pairs))
    assert list(reversed(table.items())) == list(reversed(pairs.items()))
    assert list(reversed(table.values())) == list(reversed(pairs.values()))
    assert b"007" in table.keys() and (b"007", b"v7") in table.items() and b"v7" in table.values()
    assert table == pairs and table != {**pairs, b"007": b"?"}


def test_mixins_of_a_mapping_change_one_key_in_one_step(table: farleaf.Table) -> None:
    assert table.setdefault(b"k", b"1") == b"1" == table.setdefault(b"k", b"2")
    assert table.pop(b"k") == b"1" and table.pop(b"k", None) is None and table.pop(b"k", b"d") == b"d"
    with pytest.raises(KeyError):
        table.pop(b"k")
    table.update({b"b": b"2", b"a": b"1"})
    assert table.popitem() == (b"a", b"1") and table.popitem() == (b"b", b"2")
    with pytest.raises(KeyError, match="is empty"):
        table.popitem()
    table.update([(b"a", b"1"), (b"a", b"2")])
    assert table[b"a"] == b"2"
    table.clear()
    assert list(table) == []


def test_single_operations_say_what_was_there(table: farleaf.Table) -> None:
    assert table.insert(b"k", b"1") and not table.insert(b"k", b"2")
    assert not table.insert_new(b"k", b"3") and table[b"k"] == b"2"
    assert table.replace(b"k", b"4") and not table.replace(b"x", b"5") and b"x" not in table
    assert table.remove(b"k") and not table.remove(b"k")
    assert table.compare_exchange(b"k", None, b"v")
    refused = table.compare_exchange(b"k", None, b"w")
    assert not refused and not refused.exchanged and refused.found == b"v"
    assert table.compare_exchange(b"k", b"v", None) and b"k" not in table
    assert table.compare_exchange(b"k", b"v", b"w").found is None


def test_update_with_makes_the_new_value_of_the_old_one(table: farleaf.Table) -> None:
    add = lambda held: b"%d" % (int(held or b"0") + 1)  # noqa: E731
    assert table.update_with(b"n", add) is None
    assert table.update_with(b"n", add) == b"1"
    assert table[b"n"] == b"2"
    assert table.update_with(b"n", lambda held: None) == b"2" and b"n" not in table
    with pytest.raises(ZeroDivisionError):
        table.update_with(b"n", lambda held: b"" if 1 // 0 else b"")


def test_batches_answer_in_order(table: farleaf.Table) -> None:
    assert table.insert_many((b"%05d" % number, b"%d" % number) for number in range(3_000)) == 3_000
    assert table.insert_many({b"00001": b"one", b"new": b""}) == 1
    assert table.get_many([b"00001", b"?", b"00002", b"00001"]) == [b"one", None, b"2", b"one"]
    assert table.get_many([]) == [] and table.get_many(iter([b"new"])) == [b""]
    keys = [b"%05d" % number for number in range(2_999)]
    assert table.get_many(keys)[5:] == [b"%d" % number for number in range(5, 2_999)]
    assert table.longest_run([b"00001", b"00002", b"?", b"00003"]) == 2
    assert table.remove_many(keys) == 2_999 and table.remove_many(keys) == 0
    assert list(table) == [b"02999", b"new"]


@pytest.mark.parametrize("wrap", [bytearray, memoryview, lambda raw: array.array("B", raw)])
def test_any_contiguous_buffer_goes_in_and_bytes_come_out(mem: farleaf.Table, wrap) -> None:
    mem[wrap(b"key")] = wrap(b"value")
    assert wrap(b"key") in mem and mem[wrap(b"key")] == b"value" == mem.get(wrap(b"key"))
    assert mem.get_many([wrap(b"key")]) == [b"value"]
    assert list(mem.range(wrap(b"k"), wrap(b"l"))) == [(b"key", b"value")]
    assert type(mem[b"key"]) is bytes
    assert mem.compare_exchange(wrap(b"key"), wrap(b"value"), wrap(b""))
    assert mem[b"key"] == b""


def test_a_subclass_of_bytes_is_bytes(mem: farleaf.Table) -> None:
    class Name(bytes):
        pass

    mem[Name(b"k")] = Name(b"v")
    assert mem[b"k"] == b"v" and type(mem[b"k"]) is bytes


def test_large_values_and_long_keys(table: farleaf.Table) -> None:
    big = bytes(range(256)) * 1024
    table[b"k" * 1024] = big
    assert table[b"k" * 1024] == big and table.get_many([b"k" * 1024]) == [big]
    table[b""] = b"empty"
    assert table.first() == (b"", b"empty")


def test_any_mapping_can_be_loaded(mem: farleaf.Table, name: str) -> None:
    class Own(Mapping):
        def __getitem__(self, key):
            return {b"a": b"1"}[key]

        def __iter__(self):
            return iter([b"a"])

        def __len__(self):
            return 1

    mem.update(Own())
    assert dict(mem) == {b"a": b"1"}
    mem.update(mem)
    assert dict(mem) == {b"a": b"1"}


def test_tables_of_a_store(db: farleaf.Store, name: str) -> None:
    with pytest.raises(farleaf.NotFoundError):
        db.table(name)
    table = db.table(name, create=True, engine="dart", settings={})
    assert table.name == name and table.engine == "dart" and repr(table) == f'<farleaf.Table "{name}", dart>'
    assert name in db.tables()
    table[b"a"] = b"1"
    assert db.table(name, create=True, engine="btree").engine == "dart", "it keeps the engine that it has"
    assert db.verify() == []
    db.drop_table(name)
    assert name not in db.tables()
    with pytest.raises(farleaf.NotFoundError, match="dropped"):
        table[b"a"]


def test_formats_of_keys_and_values(mem: farleaf.Table, name: str) -> None:
    with farleaf.open("mem:", pool_bytes="64MiB", cache="1MiB", settings={"durability": "volatile"}) as db:
        counts = db.table(name, create=True, engine="dex", key_bytes=8, value_bytes=8)
        counts[bytes(8)] = bytes(8)
        with pytest.raises(farleaf.InvalidError):
            counts[b"short"] = bytes(8)
        records = db.table(name + "r", create=True, content="records")
        records[b"a"] = b"1"
        assert records[b"a"] == b"1"
