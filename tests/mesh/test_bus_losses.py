"""What gets lost on the way, or is said twice, or by one who has slept: nothing is missed, kept twice, or done by two."""

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
    """Deliveries get lost in front of whoever follows a stream: those that are named, the first time they come."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *lost: bytes) -> None:
        self.lost = list(lost)
        received = OrderedConsumer._received

        async def lossy(self_: OrderedConsumer, msg: Msg) -> None:
            if msg.data in self.lost:
                self.lost.remove(msg.data)
            else:
                await received(self_, msg)

        monkeypatch.setattr(OrderedConsumer, "_received", lossy)


async def appended(bus: Bus, numbers: range) -> None:
    for i in numbers:
        await bus.log("MOORAGE_LEDGER").append(b"%d" % i, expected=i)


@pytest.mark.parametrize("lost", [[b"3"], [b"0"], [b"2", b"4"], [b"2", b"3"]])
async def test_a_delivery_that_was_lost_is_noticed_with_the_next(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, lost: list[bytes]
) -> None:
    lossy = Lossy(monkeypatch, *lost)
    folded: list[int] = []
    await bus.log("MOORAGE_LEDGER").follow(1, lambda _, data: folded.append(int(data)))
    await appended(bus, range(6))
    await until(lambda: len(folded) == 6)
    assert folded == list(range(6)) and not lossy.lost
    assert bus.counts["tail_restarts"] >= 1


async def test_the_last_delivery_that_was_lost_is_noticed_by_a_heartbeat(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered_consumer, "HEARTBEAT", 0.2)
    Lossy(monkeypatch, b"5")
    folded: list[int] = []
    await bus.log("MOORAGE_LEDGER").follow(1, lambda _, data: folded.append(int(data)))
    await appended(bus, range(6))
    await until(lambda: folded == list(range(6)), 5)
    assert bus.counts["tail_restarts"] == 1


async def test_a_mirror_that_missed_a_change_begins_anew(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_what_is_said_once_is_kept_once(bus: Bus) -> None:
    subject = "moorage.events.fleet.joined.lab.one"
    for ident, once in [("a", True), ("a", True), ("b", True), ("a", True), ("c", False), ("c", False), ("end", False)]:
        await bus.emit(subject, {}, id=ident, once=once)
    kept: list[str] = []
    await bus.log("MOORAGE_EVENTS").follow(1, lambda _, data: kept.append(msgspec.json.decode(data)["id"]))
    await until(lambda: "end" in kept)
    assert kept == ["a", "b", "c", "c", "end"]


def challenged(nats: NatsServer, told: Callable[[int], None]) -> threading.Thread:
    """Somebody else who wants the lease, in a loop of his own; `told` its generation."""

    async def challenge() -> None:
        bus = await Bus.connect(nats.settings(), worker="admin")
        lease = Lease(bus, "x", ttl=0.6)
        await lease.hold()
        told(lease.generation)
        await lease.release()
        await bus.close()

    thread = threading.Thread(target=lambda: asyncio.run(challenge()))
    thread.start()
    return thread


async def test_a_holder_that_slept_is_not_sure_although_it_does_not_know_yet(nats: NatsServer, bus: Bus) -> None:
    lease = Lease(bus, "x", ttl=0.6)
    assert not lease.is_certain
    await lease.hold()
    assert lease.is_certain
    taken: list[int] = []
    thread = challenged(nats, taken.append)
    end = time.monotonic() + 10
    while not taken and time.monotonic() < end:
        time.sleep(0.02)  # noqa: ASYNC251 - the whole process of the holder stands still
    assert taken and taken[0] > lease.generation
    assert lease.generation and not lease.lost.is_set(), "nobody has told it"
    assert not lease.is_certain
    async with asyncio.timeout(3):
        await lease.lost.wait()
    assert not lease.is_certain
    thread.join()


async def test_a_holder_is_unsure_before_anybody_else_may_be_one(bus: Bus) -> None:
    """Of its time it leaves a quarter to whoever has asked it just before."""
    lease = Lease(bus, "x", ttl=0.8)
    await lease.hold()
    assert lease.is_certain
    time.sleep(0.75 * 0.8)  # noqa: ASYNC251
    assert lease.generation and not lease.is_certain
    await lease.release()
    assert not lease.is_certain
