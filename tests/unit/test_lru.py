"""The bounded dictionary."""

from __future__ import annotations

from moorage.collections import LruDict


def test_the_entry_used_least_recently_is_dropped() -> None:
    entries = LruDict[str, int](2)
    entries["a"], entries["b"] = 1, 2
    assert entries.use("a") == 1 and entries.use("z") is None
    entries["c"] = 3
    assert list(entries.items()) == [("a", 1), ("c", 3)]
    entries["a"] = 4
    entries["d"] = 5
    assert list(entries.items()) == [("a", 4), ("d", 5)]


def test_given_items_count() -> None:
    assert list(LruDict(2, [("a", 1), ("b", 2), ("c", 3)])) == ["b", "c"]
