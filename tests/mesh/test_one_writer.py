"""Two patchers that write the same values, one of them without knowing that it was replaced."""

from __future__ import annotations

import msgspec
import pytest

from moorage.bus import Bus
from moorage.bus.fenced_bucket import FencedBucket, Superseded


def value(generation: int, what: str = "") -> bytes:
    return msgspec.json.encode({"generation": generation, "what": what})


async def stands(bus: Bus) -> bytes | None:
    entry = await bus.bucket("moorage-desired").get("k")
    return None if entry is None else entry.value


async def test_the_older_one_gives_way(bus: Bus) -> None:
    older, newer = (FencedBucket(bus.bucket("moorage-desired"), generation) for generation in (3, 7))
    await older.put("k", value(3))
    entry = await bus.bucket("moorage-desired").get("k")
    assert entry is not None
    newer.learn("k", entry.revision)
    await newer.put("k", value(7))
    for step in (older.put("k", value(3, "again")), older.delete("k")):
        with pytest.raises(Superseded):
            await step
    assert await stands(bus) == value(7)


async def test_the_newer_one_overwrites_what_the_older_one_wrote_last(bus: Bus) -> None:
    older, newer = (FencedBucket(bus.bucket("moorage-desired"), generation) for generation in (3, 7))
    await older.put("k", value(3))
    await newer.put("k", value(7))  # it was not there when it looked
    older, newer = (FencedBucket(bus.bucket("moorage-desired"), generation) for generation in (8, 9))
    await older.put("k", value(8))
    await newer.delete("k")  # never seen, so not ours to take away
    assert await stands(bus) == value(8)
    await newer.put("k", value(9))
    assert await stands(bus) == value(9)
    await newer.delete("k")
    assert await stands(bus) is None
    await newer.put("k", value(9, "once more"))
    assert await stands(bus) == value(9, "once more")


async def test_what_the_broker_lost_is_noticed(bus: Bus) -> None:
    bucket = bus.bucket("moorage-desired")
    mine = FencedBucket(bucket, 3)
    await mine.put("k", value(3))
    before = await bucket.get("k")
    assert before is not None and not mine.differs("k", before.revision)
    await mine.put("k", value(3, "acknowledged, and lost"))
    assert mine.differs("k", before.revision), "as if the broker had come back with what was there before"
    assert not mine.differs("k", before.revision)
    assert mine.differs("k", 0) and not mine.differs("k", 0)
    await mine.put("k", value(3, "again"))
    assert await stands(bus) == value(3, "again")
