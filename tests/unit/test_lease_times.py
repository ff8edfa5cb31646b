"""Leases in time that is made up: who is cut off stops being sure before anybody else may be active."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple

import pytest

from moorage.bus import Conflict, Lease, NoAnswer
from moorage.merger.durability import TIMEOUT, Confirmation, DurableRevisions

TTL = 4.0


class Entry(NamedTuple):
    value: bytes
    revision: int


class Key:
    """A key of the broker. A client that is cut off gets no answer for as long as it would wait."""

    def __init__(self) -> None:
        self.entry: Entry | None = None
        self.last = 0

    def put(self, value: bytes) -> int:
        self.last += 1
        self.entry = Entry(value, self.last)
        return self.last


class Link:
    """A connection and its bucket, in one."""

    def __init__(self, key: Key) -> None:
        self.key, self.cut = key, False
        self.tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        self.tasks.add(asyncio.get_running_loop().create_task(work))

    async def _reach(self) -> None:
        await asyncio.sleep(0.01)
        if self.cut:
            await asyncio.sleep(TTL / 3)
            raise NoAnswer("cut off")

    async def get(self, _key: str) -> Entry | None:
        await self._reach()
        return self.key.entry

    async def create(self, _key: str, value: bytes) -> int:
        await self._reach()
        if self.key.entry is not None:
            raise Conflict
        return self.key.put(value)

    async def update(self, _key: str, value: bytes, revision: int) -> int:
        await self._reach()
        if self.key.last != revision:
            raise Conflict
        return self.key.put(value)


def lease(link: Link) -> Lease:
    made = Lease(link, "x", ttl=TTL)  # type: ignore[arg-type]
    made._bucket = link  # type: ignore[assignment]
    return made


async def ended(*links: Link) -> None:
    for link in links:
        for task in link.tasks:
            task.cancel()
        await asyncio.gather(*link.tasks, return_exceptions=True)


@pytest.mark.looptime
async def test_a_holder_that_renews_stays_the_holder() -> None:
    key = Key()
    one, other = Link(key), Link(key)
    first, second = lease(one), lease(other)
    await first.hold()
    challenge = asyncio.create_task(second.hold())
    for _ in range(30):
        await asyncio.sleep(20.3)
        assert first.is_certain and not second.is_certain and not first.lost.is_set()
    challenge.cancel()
    await ended(one, other)


@pytest.mark.looptime
@pytest.mark.parametrize("late", [0.0, 0.3, 0.6, 0.9, 1.2])
async def test_who_is_cut_off_is_unsure_before_another_begins(late: float) -> None:
    """Cuts off the holder at each moment between two renewals."""
    key = Key()
    one, other = Link(key), Link(key)
    first, second = lease(one), lease(other)
    await first.hold()
    challenge = asyncio.create_task(second.hold())
    await asyncio.sleep(10 + late)
    one.cut = True
    loop = asyncio.get_running_loop()
    began, unsure = loop.time(), 0.0
    while not second.is_certain:
        if not first.is_certain and not unsure:
            unsure = loop.time()
        await asyncio.sleep(0.02)
    assert began <= unsure < loop.time(), "there is a while in which nobody is"
    assert loop.time() - began < 3 * TTL, "and not for long"
    assert second.generation > 1 and not first.generation and first.lost.is_set()
    await challenge
    await ended(one, other)


@pytest.mark.looptime
async def test_what_was_given_back_is_taken_at_once() -> None:
    key = Key()
    one, other = Link(key), Link(key)
    first, second = lease(one), lease(other)
    await first.hold()
    challenge = asyncio.create_task(second.hold())
    await asyncio.sleep(10)
    await first.release()
    assert first.lost.is_set() and not first.is_certain
    async with asyncio.timeout(TTL):
        await challenge
    await ended(one, other)


@pytest.mark.looptime
async def test_a_renewal_whose_answer_was_lost_is_found_to_be_ones_own() -> None:
    key = Key()
    link = Link(key)
    only = lease(link)
    await only.hold()
    assert key.entry is not None
    await asyncio.sleep(TTL / 4 - 0.1)
    key.put(key.entry.value)  # as if it had written it itself
    await asyncio.sleep(10 * TTL)
    assert only.is_certain and not only.lost.is_set()
    await ended(link)


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("after", "stands"), [(-1.0, True), (0.0, True), (TIMEOUT - 0.01, True), (TIMEOUT + 0.01, False)]
)
async def test_a_record_is_waited_for_so_long_and_no_longer(after: float, stands: bool) -> None:
    confirmations = DurableRevisions()
    loop = asyncio.get_running_loop()
    if after < 0:
        confirmations.record_stored("", b'{"id":"hint"}')
    else:
        loop.call_later(after, confirmations.record_stored, "", b'{"id":"hint"}')
    loop.call_later(after / 2, confirmations.record_stored, "", b'{"id":"another"}')
    began = loop.time()
    assert await confirmations.wait_durable("hint") is stands
    assert loop.time() - began <= TIMEOUT + 0.001


@pytest.mark.looptime
async def test_a_confirmation_can_be_waited_for_again() -> None:
    revisions = DurableRevisions()
    asyncio.get_running_loop().call_later(0.1, revisions.record_stored, "", b'{"id":"hint"}')
    stored, missing = Confirmation(revisions, "hint"), Confirmation(revisions, "another")
    assert [await stored.wait(), await stored.wait()] == [True, True]
    assert [await missing.wait(), await missing.wait()] == [False, False]
