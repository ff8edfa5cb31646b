"""Tests lost deliveries, repeated publishes and suspended lease holders: nothing is missed, stored twice or done by two workers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import msgspec
import pytest
from nats.aio.msg import Msg

from moorage.bus import Bus, Lease, ordered_consumer
from moorage.bus.ordered_consumer import OrderedConsumer
from moorage_testkit.polling import until
from moorage_testkit.servers import NatsServer


class Lossy:
    """Drops the first delivery of the named messages to consumers of a stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *lost: bytes) -> None:
        self.lost = list(lost)
        received = OrderedConsumer._received

        def lossy(self_: OrderedConsumer, msg: Msg) -> None:
            if msg.data in self.lost:
                self.lost.remove(msg.data)
            else:
                received(self_, msg)

        monkeypatch.setattr(OrderedConsumer, "_received", lossy)


async def appended(bus: Bus, numbers: range) -> None:
    for i in numbers:
        await bus.log("MOORAGE_LEDGER").append(b"%d" % i, expected=i)


@pytest.mark.parametrize("lost", [[b"3"], [b"0"], [b"2", b"4"], [b"2", b"3"]])
async def test_a_lost_delivery_is_detected_with_the_next_one(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, lost: list[bytes]
) -> None:
    lossy = Lossy(monkeypatch, *lost)
    folded: list[int] = []
    await bus.log("MOORAGE_LEDGER").follow(1, lambda _, data: folded.append(int(data)))
    await appended(bus, range(6))
    await until(lambda: len(folded) == 6)
    assert folded == list(range(6)) and not lossy.lost
    assert bus.counts["tail_restarts"] >= 1


async def test_a_lost_last_delivery_is_detected_by_a_heartbeat(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_consumer, "HEARTBEAT", 0.2)
    Lossy(monkeypatch, b"5")
    folded: list[int] = []
    await bus.log("MOORAGE_LEDGER").follow(1, lambda _, data: folded.append(int(data)))
    await appended(bus, range(6))
    await until(lambda: folded == list(range(6)), 40)
    assert bus.counts["tail_restarts"] >= 1


async def test_a_mirror_that_missed_a_change_restarts(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_consumer, "HEARTBEAT", 0.2)
    Lossy(monkeypatch, b"second", b"lost and last")
    state: dict[str, bytes] = {}

    def apply(key: str, value: bytes | None, _revision: int) -> None:
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value

    bucket = bus.bucket("moorage-groups")
    await bucket.put("a", b"first")
    await bucket.put("gone", b"soon")
    await bucket.mirror(apply)
    await bucket.put("a", b"second")
    await bucket.delete("gone")
    await bucket.put("b", b"other")
    await until(lambda: state == {"a": b"second", "b": b"other"})
    await bucket.put("a", b"lost and last")
    await until(lambda: state == {"a": b"lost and last", "b": b"other"})


async def test_a_repeated_publish_is_stored_once(bus: Bus) -> None:
    subject = "moorage.events.fleet.joined.lab.one"
    for ident, once in [("a", True), ("a", True), ("b", True), ("a", True), ("c", False), ("c", False), ("end", False)]:
        await bus.emit(subject, {}, id=ident, once=once)
    stored: list[str] = []
    await bus.log("MOORAGE_EVENTS").follow(1, lambda _, data: stored.append(msgspec.json.decode(data)["id"]))
    await until(lambda: "end" in stored)
    assert stored == ["a", "b", "c", "c", "end"]


def start_contender(nats: NatsServer, on_held: Callable[[int], None]) -> threading.Thread:
    """Another contender for the lease in an event loop of its own; calls `on_held` with its generation."""

    async def contend() -> None:
        bus = await Bus.connect(nats.settings(), worker="admin")
        lease = Lease(bus, "x", ttl=2)
        await lease.hold()
        on_held(lease.generation)
        await lease.release()
        await bus.close()

    thread = threading.Thread(target=lambda: asyncio.run(contend()))
    thread.start()
    return thread


async def test_a_suspended_lease_holder_is_not_certain_when_it_resumes(nats: NatsServer, bus: Bus) -> None:
    lease = Lease(bus, "x", ttl=2)
    assert not lease.is_certain
    await lease.hold()
    assert lease.is_certain
    taken: list[int] = []
    thread = start_contender(nats, taken.append)
    end = time.monotonic() + 60
    while not taken and time.monotonic() < end:
        time.sleep(0.02)  # noqa: ASYNC251 - suspends the whole process of the holder
    assert taken and taken[0] > lease.generation
    assert lease.generation and not lease.lost.is_set(), "it has not noticed yet"
    assert not lease.is_certain
    async with asyncio.timeout(60):
        await lease.lost.wait()
    assert not lease.is_certain
    thread.join()


async def test_a_lease_holder_is_uncertain_before_another_can_hold_the_lease(bus: Bus) -> None:
    """It gives up the last quarter of its time, for requests that it has just been asked."""
    lease = Lease(bus, "x", ttl=2)
    await lease.hold()
    assert lease.is_certain
    time.sleep(0.75 * 2)  # noqa: ASYNC251
    assert lease.generation and not lease.is_certain
    await lease.release()
    assert not lease.is_certain
