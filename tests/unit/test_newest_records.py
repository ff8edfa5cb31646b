"""Tests which stored records an intent store keeps in memory."""

from __future__ import annotations

import random

from moorage.intents.cache import NewestRecords


def test_a_record_is_found_at_its_revision_alone() -> None:
    records = NewestRecords()
    records.put("a", 3, b"old")
    records.put("a", 7, b"new")
    assert [records.get("a", at) for at in (0, 3, 7)] == [None, None, b"new"]
    assert records.get("b", 7) is None
    records.drop("a")
    records.drop("b")
    assert records.get("a", 7) is None


def test_the_newest_are_kept_up_to_so_many_bytes() -> None:
    rng = random.Random(1)
    records, written = NewestRecords(100), dict[str, tuple[int, int]]()
    for at in range(1, 500):
        if written and rng.random() < 0.1:
            records.drop(gone := rng.choice(list(written)))
            del written[gone]
        name, size = f"{rng.randrange(20)}", rng.randrange(41)
        records.put(name, at, bytes(size))
        written.pop(name, None)
        written[name] = at, size
        kept = [name for name, (at, _) in written.items() if records.get(name, at) is not None]
        sizes = [size for _, size in written.values()]
        fitting = next(n for n in range(len(sizes) + 1) if sum(sizes[n:]) <= 100)
        assert kept == list(written)[fitting:]
        written = {name: written[name] for name in kept}
    records.put("large", 500, bytes(101))
    assert records.get("large", 500) is None
