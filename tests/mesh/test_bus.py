"""Tests the bus with a real server that is killed, restarted and sent unreadable messages."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal

import msgspec
import pytest

from moorage.bus import Bus, Conflict, Incoming, Lease, NoAnswer, Reply, subjects
from moorage.mesh.subjects import MAX_BATCH
from moorage.model.problems import Refused, not_found
from moorage_testkit.polling import until
from moorage_testkit.servers import NatsServer


async def test_connecting_to_no_server_times_out(nats: NatsServer) -> None:
    nats.kill()
    with pytest.raises(NoAnswer, match="did not answer"):
        await Bus.connect(nats.settings(), worker="admin", timeout=0.5)
    nats.start()


async def test_a_request_without_responders_fails_at_once(bus: Bus) -> None:
    started = asyncio.get_running_loop().time()
    with pytest.raises(NoAnswer, match="nobody listens"):
        await bus.request("nobody.home", b"{}", timeout=60)
    assert asyncio.get_running_loop().time() - started < 30


async def test_refusals_unreadable_messages_and_failures_are_answered(bus: Bus) -> None:
    async def handle(incoming: Incoming) -> bytes:
        what = msgspec.json.decode(incoming.data)
        if what == "missing":
            raise Refused(not_found("it"))
        if what == "large":
            return b" " * (bus.nc.max_payload + 1)
        return b'{"ok": %d}' % (1 // what)

    await bus.serve("moorage.test.ask", handle, max_bytes=100)

    async def problem(data: bytes) -> tuple[int, str]:
        answer = msgspec.json.decode(await bus.request("moorage.test.ask", data, timeout=30))["problem"]
        return answer["status"], answer["code"]

    assert await problem(b'"missing"') == (404, "NotFound")
    assert await problem(b"{") == (400, "Undecodable")
    assert await problem(b"0") == (500, "Internal")
    assert await problem(b"[" * 99) == (400, "Undecodable")
    assert await problem(b" " * 101) == (413, "TooLarge")
    assert await problem(b'"large"') == (413, "TooLarge")
    assert msgspec.json.decode(await bus.request("moorage.test.ask", b"1", timeout=30)) == {"ok": 1}
    rejected: list[bytes] = []
    await bus.log("MOORAGE_REJECTED").follow(1, lambda _, data: rejected.append(data))
    await until(lambda: len(rejected) >= 3)
    assert [msgspec.json.decode(k)["problem"]["code"] for k in rejected] == ["Undecodable", "Undecodable", "TooLarge"]


async def test_unreadable_events_are_stored_as_rejected(bus: Bus) -> None:
    received: list[object] = []
    await bus.subscribe("moorage.test.event", lambda _, data: received.append(msgspec.json.decode(data)), max_bytes=100)
    for data in (b"{", b"1", b"[" * 99, b"\xff", b" " * 101, b"2"):
        await bus.publish("moorage.test.event", data)
    await until(lambda: received == [1, 2])
    rejected: list[bytes] = []
    await bus.log("MOORAGE_REJECTED").follow(1, lambda _, data: rejected.append(data))
    await until(lambda: len(rejected) >= 4)
    records = [msgspec.json.decode(k) for k in rejected]
    assert {r["subject"] for r in records} == {"moorage.test.event"}
    assert [r["problem"]["code"] for r in records] == ["Undecodable"] * 3 + ["TooLarge"]
    assert bus.counts["rejected"] == 4 and "handler_errors" not in bus.counts


async def test_an_event_without_a_cause_has_an_empty_cause(bus: Bus) -> None:
    received: list[dict[str, object]] = []
    await bus.subscribe("moorage.events.test.>", lambda _, data: received.append(msgspec.json.decode(data)))
    await bus.emit("moorage.events.test.a", {"x": 1})
    await bus.emit("moorage.events.test.b", {}, cause="why")
    await until(lambda: len(received) == 2)
    assert [event["cause"] for event in received] == ["", "why"]
    assert all({"id", "cause", "time", "subject", "data"} == set(event) for event in received)


async def test_requests_above_the_limit_are_refused(bus: Bus) -> None:
    go = asyncio.Event()

    async def handle(_: Incoming) -> bytes:
        await go.wait()
        return b"{}"

    await bus.serve("moorage.test.slow", handle, limit=2)
    asks = [asyncio.create_task(bus.request("moorage.test.slow", b"{}", timeout=30)) for _ in range(5)]
    await until(lambda: sum(a.done() for a in asks) == 3)
    assert all(msgspec.json.decode(a.result())["problem"]["code"] == "Busy" for a in asks if a.done())
    go.set()
    await asyncio.gather(*asks)


async def test_ask_many_keeps_each_deadline(bus: Bus) -> None:
    go = asyncio.Event()

    async def late(_: Incoming) -> bytes:
        await go.wait()
        return b"late"

    async def quick(_: Incoming) -> bytes:
        return b"quick"

    await bus.serve("t.late", late)
    await bus.serve("t.quick", quick)
    started = asyncio.get_running_loop().time()
    replies = await bus.ask_many({"late": ("t.late", 0.1), "quick": ("t.quick", 60), "gone": ("t.gone", 60)}, b"?")
    assert asyncio.get_running_loop().time() - started < 30, "0.1 s on a quiet machine"
    assert {n: r.outcome for n, r in replies.items()} == {"late": "timeout", "quick": "answered", "gone": "timeout"}
    assert replies["quick"].data == b"quick"
    go.set()
    await asyncio.sleep(0.3)  # nobody waits for the late answer any more
    assert bus._waiting == {}


async def test_concurrent_asks_are_batched(bus: Bus) -> None:
    alone: list[bytes] = []
    together: list[list[bytes]] = []

    async def single(incoming: Incoming) -> bytes:
        alone.append(incoming.data)
        return b'"alone"'

    async def many(incoming: Incoming) -> bytes:
        asks = msgspec.json.decode(incoming.data)["asks"]
        together.append(asks)
        return msgspec.json.encode({"answers": {ask: f"answer to {ask}" for ask in asks if ask != "no"}})

    await bus.serve("t.a", single)
    await bus.serve(subjects.batch("t.a"), many)

    async def ask(ident: str, deadline: float = 30) -> Reply:
        replies = await bus.ask_many({"a": ("t.a", deadline)}, b'"%b"' % ident.encode(), ident=ident, together={"a"})
        return replies["a"]

    assert (await ask("x")).data == b'"alone"'
    assert together == []  # a single ask is sent as a plain request
    count = MAX_BATCH + 3
    replies = await asyncio.gather(*(ask(f"q{i}") for i in range(count)))
    assert [len(asks) for asks in together] == [MAX_BATCH, 3]
    assert [reply.data for reply in replies] == [b'"answer to q%d"' % i for i in range(count)]
    yes, no = await asyncio.gather(ask("yes"), ask("no", 1))
    assert (yes.outcome, no.outcome) == ("answered", "timeout")
    assert len(alone) == 1
    assert bus._waiting == {}
    assert bus._batches == {}


NO_ANSWERS = {
    "a problem": b'{"problem":{"title":"Busy"}}',
    "not JSON": b"\xff{",
    "a list": b'{"answers":[1]}',
    "a name that is not text": b'{"answers":{"\xff":1}}',
    "too deep": b'{"answers":{"0":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    "too deep beside it": b'{"other":' + b"[" * 100_000,
    "nothing": None,
}


@pytest.mark.parametrize("answer", NO_ANSWERS.values(), ids=NO_ANSWERS)
async def test_an_invalid_batch_answer_fails_each_ask(bus: Bus, answer: bytes | None) -> None:
    async def many(_: Incoming) -> bytes:
        assert answer is not None
        return answer

    if answer is not None:
        await bus.serve(subjects.batch("t.b"), many)
    asks = [bus.ask_many({"b": ("t.b", 60)}, b"{}", ident=str(i), together={"b"}) for i in range(3)]
    started = asyncio.get_running_loop().time()
    replies = [reply["b"] for reply in await asyncio.gather(*asks)]
    assert asyncio.get_running_loop().time() - started < 30
    assert {(r.outcome, r.data) for r in replies} == {("timeout", b"") if answer is None else ("answered", answer)}
    assert bus._batches == {}
    await bus.settle()  # the requester still gets the answer


async def test_kv_writes_compare_and_set(bus: Bus) -> None:
    bucket = bus.bucket("moorage-groups")
    first = await bucket.create("a", b"1")
    with pytest.raises(Conflict):
        await bucket.create("a", b"2")
    second = await bucket.update("a", b"2", first)
    with pytest.raises(Conflict):
        await bucket.update("a", b"3", first)
    await bucket.delete("a", second)
    assert await bucket.get("a") is None
    await bucket.create("a", b"4")
    entry = await bucket.get("a")
    assert entry is not None
    assert entry.value == b"4"


async def test_one_of_concurrent_appends_at_a_sequence_wins(bus: Bus) -> None:
    log = bus.log("MOORAGE_LEDGER")
    results = await asyncio.gather(*(log.append(b"%d" % i, expected=0) for i in range(8)), return_exceptions=True)
    assert [r for r in results if not isinstance(r, Conflict)] == [1]
    assert await log.last() == 1


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
async def test_followers_and_mirrors_miss_nothing_across_a_restart(nats: NatsServer, bus: Bus, sig: int) -> None:
    log, bucket = bus.log("MOORAGE_LEDGER"), bus.bucket("moorage-groups")
    folded: list[int] = []
    state: dict[str, bytes] = {}

    def apply(key: str, value: bytes | None, _revision: int) -> None:
        if value is None:
            del state[key]
        else:
            state[key] = value

    for i in range(10):
        await log.append(b"%d" % i, expected=i)
        await bucket.put(f"k{i}", b"%d" % i)
    await log.follow(1, lambda _, data: folded.append(int(data)))
    await bucket.mirror(apply)
    assert folded == list(range(10))
    assert len(state) == 10
    nats.restart(sig)
    other = await Bus.connect(nats.settings(), worker="admin")
    await other.bucket("moorage-groups").delete("k3")
    await other.bucket("moorage-groups").put("k4", b"new")
    for i in range(10, 20):
        await other.log("MOORAGE_LEDGER").append(b"%d" % i, expected=i)
    await until(lambda: len(folded) == 20 and "k3" not in state and state["k4"] == b"new")
    assert folded == list(range(20))
    await other.close()


async def test_a_purged_log_is_detected(bus: Bus) -> None:
    log = bus.log("MOORAGE_LEDGER")
    for i in range(5):
        await log.append(b"%d" % i, expected=i)
    await log.purge(3)
    gaps: list[int] = []
    await log.follow(2, lambda *_: None, gap=gaps.append)
    assert gaps == [4]
    assert await log.append(b"5", expected=5) == 6


async def test_the_next_lease_holder_has_a_higher_generation(nats: NatsServer, bus: Bus) -> None:
    first, second = Lease(bus, "x", ttl=4), Lease(bus, "x", ttl=4)
    await first.hold()
    waiting = asyncio.create_task(second.hold())
    await asyncio.sleep(5)
    assert not waiting.done()
    assert first.generation > 0
    before = first.generation
    await first.release()
    async with asyncio.timeout(60):
        await waiting
    assert second.generation > before
    await second.release()


async def test_a_lease_holder_without_the_broker_stops_before_its_lease_ends(nats: NatsServer, bus: Bus) -> None:
    lease = Lease(bus, "x", ttl=0.8)
    await lease.hold()
    nats.process.send_signal(signal.SIGSTOP)  # type: ignore[union-attr]
    async with asyncio.timeout(60):
        await lease.lost.wait()
    assert lease.generation == 0
    nats.process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]


async def test_services_are_discovered(bus: Bus) -> None:
    missing = ["redis"]
    await bus.announce(lambda: {"ok": not missing, "missing": missing, "role": "standby"})
    for verb in ("PING", "INFO", "STATS"):
        answer = msgspec.json.decode(await bus.request(f"$SRV.{verb}.moorage-admin", b"", timeout=30))
        assert answer["type"] == f"io.nats.micro.v1.{verb.lower()}_response"
        expected = {"pid": str(os.getpid()), "ok": "false", "missing": "redis", "role": "standby"}
        assert answer["metadata"] == expected
    missing.clear()
    for verb in ("PING", "INFO", "STATS"):
        answer = msgspec.json.decode(await bus.request(f"$SRV.{verb}", b"", timeout=30))
        assert (answer["metadata"]["ok"], answer["metadata"]["missing"]) == ("true", "")


async def test_services_report_request_statistics(nats: NatsServer, bus: Bus) -> None:
    async def slow(incoming: Incoming) -> bytes:
        await asyncio.sleep(0.02)
        if incoming.data == b"bad":
            raise RuntimeError
        return b"{}"

    server = await Bus.connect(nats.settings(), worker="server")
    await server.announce(dict)
    await server.serve("moorage.tests.*.ask", slow, queue="servers")
    await server.serve("moorage.tests.quiet", slow)
    for data in (b"", b"", b"bad"):
        await bus.request("moorage.tests.x.ask", data, timeout=30)
    info = msgspec.json.decode(await bus.request("$SRV.INFO.moorage-server", b"", timeout=30))
    assert [(e["name"], e["subject"], e["queue_group"]) for e in info["endpoints"]] == [
        ("tests-ask", "moorage.tests.*.ask", "servers"),
        ("tests-quiet", "moorage.tests.quiet", ""),
    ]
    stats = msgspec.json.decode(await bus.request(f"$SRV.STATS.moorage-server.{info['id']}", b"", timeout=30))
    served, quiet = stats["endpoints"]
    assert (served["num_requests"], served["num_errors"]) == (3, 1)
    assert (quiet["num_requests"], quiet["num_errors"], quiet["processing_time"]) == (0, 0, 0)
    assert 60e6 <= served["processing_time"] < 10e9
    assert served["average_processing_time"] == served["processing_time"] // 3
    await server.close()


async def test_objects_are_stored_and_listed(bus: Bus) -> None:
    objects = bus.objects("moorage-snapshots")
    assert await objects.get("none") is None
    data = b"x" * 3_000_000
    await objects.put("1", data)
    assert await objects.get("1") == data
    assert await objects.names() == ["1"]
    await objects.delete("1")
    assert await objects.names() == []


async def test_deleted_objects_leave_nothing(bus: Bus, nats: NatsServer) -> None:
    objects = bus.objects("moorage-snapshots")
    for number in range(6):
        await objects.put(str(number), b"x")
        if number:
            await objects.delete(str(number - 1))
    state = (await bus.nc.jetstream().stream_info("OBJ_moorage-snapshots")).state
    assert await objects.names() == ["5"] and state.messages == 2  # its description and its only chunk


async def test_a_cancelled_connect_leaves_no_socket_open(nats: NatsServer) -> None:
    """The cancellation comes at any moment. An open socket would cause a ResourceWarning, which fails the test."""
    loop = asyncio.get_running_loop()
    before = open_sockets()
    for step in range(60):
        task = asyncio.create_task(Bus.connect(nats.settings(), worker="admin"))
        end = loop.time() + step * 0.0001
        while loop.time() < end:  # noqa: ASYNC110 - the test needs this exact moment, not an event
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await task).close()
    gc.collect()
    await until(lambda: open_sockets() <= before, 40, "all sockets are closed")


def open_sockets() -> int:
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
    return found
