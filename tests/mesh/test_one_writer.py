"""Two patchers write the same values; one of them does not know that it was replaced."""

from __future__ import annotations

import msgspec
import pytest

from moorage.bus import Bus
from moorage.bus.fenced_bucket import FencedBucket, Superseded


def value(generation: int, what: str = "") -> bytes:
    return msgspec.json.encode({"generation": generation, "what": what})


async def stored_value(bus: Bus) -> bytes | None:
    entry = await bus.bucket("moorage-desired").get("k")
    return None if entry is None else entry.value


async def test_the_older_generation_is_superseded(bus: Bus) -> None:
    older, newer = (FencedBucket(bus.bucket("moorage-desired"), generation) for generation in (3, 7))
    await older.put("k", value(3))
    entry = await bus.bucket("moorage-desired").get("k")
    assert entry is not None
    newer.learn("k", entry.revision)
    await newer.put("k", value(7))
    for step in (older.put("k", value(3, "again")), older.delete("k")):
        with pytest.raises(Superseded):
            await step
    assert await stored_value(bus) == value(7)


async def test_the_newer_generation_overwrites_late_writes_of_the_older(bus: Bus) -> None:
    older, newer = (FencedBucket(bus.bucket("moorage-desired"), generation) for generation in (3, 7))
    await older.put("k", value(3))
    await newer.put("k", value(7))  # the value did not exist when it was read
    older, newer = (FencedBucket(bus.bucket("moorage-desired"), generation) for generation in (8, 9))
    await older.put("k", value(8))
    await newer.delete("k")  # never read, so this generation may not delete it
    assert await stored_value(bus) == value(8)
    await newer.put("k", value(9))
    assert await stored_value(bus) == value(9)
    await newer.delete("k")
    assert await stored_value(bus) is None
    await newer.put("k", value(9, "once more"))
    assert await stored_value(bus) == value(9, "once more")


async def test_values_that_the_broker_lost_are_detected(bus: Bus) -> None:
    bucket = bus.bucket("moorage-desired")
    fenced = FencedBucket(bucket, 3)
    await fenced.put("k", value(3))
    before = await bucket.get("k")
    assert before is not None and not fenced.differs("k", before.revision)
    await fenced.put("k", value(3, "acknowledged, and lost"))
    assert fenced.differs("k", before.revision), "as if the broker had come back with what was there before"
    assert not fenced.differs("k", before.revision)
    assert fenced.differs("k", 0) and not fenced.differs("k", 0)
    await fenced.put("k", value(3, "again"))
    assert await stored_value(bus) == value(3, "again")
