"""Questions about several groups in one message, with the rights of a controller of one's own: none waits for another's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any

import msgspec
import pytest_asyncio

from moorage.bus import Bus, subjects
from moorage.cli.workers import load
from moorage.fleet import Fleet
from moorage.mesh.discovery import installed
from moorage.model.candidates import Answer, Ask, Asks
from moorage.model.controllers import Controller
from moorage.model.names import token
from moorage.model.shapes import ShapedApp
from moorage.sdk import Allowed, Declared, allow, run
from moorage.sdk.runner import MAX_CONCURRENT
from moorage_testkit.polling import until
from moorage_testkit.running_workers import running_workers
from moorage_testkit.servers import NatsServer, RedisServer

NAME = "odd"


class Odd:
    """A plain function that answers at once, but for groups whose names say otherwise."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.waiting = 0
        self.asked: list[str] = []

    def candidates(self, ask: Ask, fleet: Fleet) -> Mapping[str, Allowed] | Awaitable[Mapping[str, Allowed]]:
        self.asked.append(ask.group)
        if "busy" in ask.group:
            time.sleep(0.1)
        if "broken" in ask.group and "slow" not in ask.group:
            raise KeyError("nobody knows")
        said = {app.name: allow([f"lab/{ask.group}"]) for app in ask.apps}
        return self.slowly(ask, said) if "slow" in ask.group else said

    async def slowly(self, ask: Ask, said: Mapping[str, Allowed]) -> Mapping[str, Allowed]:
        self.waiting += 1
        await self.go.wait()
        if "broken" in ask.group:
            raise KeyError("somebody forgot")
        return said


@pytest_asyncio.fixture
async def odd() -> Odd:
    return Odd()


@pytest_asyncio.fixture
async def bus(secure_nats: NatsServer, redis: RedisServer, odd: Odd) -> AsyncIterator[Bus]:
    admin = await Bus.connect(secure_nats.settings("admin"), worker="admin")
    await admin.provision(installed().stores.values())
    known: dict[str, Controller] = {}

    def registered(key: str, data: bytes | None, _revision: int) -> None:
        if data is not None:
            known[key] = msgspec.json.decode(data, type=Controller)

    await admin.bucket("moorage-controllers").mirror(registered)
    one = Declared(NAME, candidates=odd.candidates)
    mains = [load(kind)(secure_nats.settings(kind, redis.url)) for kind in ("intents", "inventory")]
    merger = await Bus.connect(secure_nats.settings("merger"), worker="merger")
    try:
        async with running_workers(*mains, run(secure_nats.settings("controller", redis.url), [one])):
            await until(lambda: token(NAME) in known, seconds=20)
            assert known[token(NAME)].together
            yield merger
    finally:
        await merger.close()
        await admin.close()


def question(group: str, budget_ms: float = 5000) -> Ask:
    apps = [ShapedApp(name="web")]
    return Ask(id=f"id-{group}", group=group, revision=1, budget_ms=budget_ms, epoch="0.0", tenant="t", apps=apps)


async def said(bus: Bus, *groups: str, budget_ms: float = 5000) -> dict[str, asyncio.Task[Any]]:
    """Asked all at once."""

    async def ask(one: Ask) -> Answer | str:
        asks = {NAME: (subjects.candidates(NAME), 5.0)}
        reply = (await bus.ask_many(asks, msgspec.json.encode(one), ident=one.id, together={NAME}))[NAME]
        if b'"problem"' in reply.data:
            return str(msgspec.json.decode(reply.data)["problem"]["code"])
        return msgspec.json.decode(reply.data, type=Answer) if reply.outcome == "answered" else reply.outcome

    tasks = {group: asyncio.create_task(ask(question(group, budget_ms))) for group in groups}
    await asyncio.sleep(0)
    return tasks


async def test_what_takes_longer_comes_later_and_nobody_waits_for_it(bus: Bus, odd: Odd) -> None:
    tasks = await said(bus, "a", "slow-1", "b", "broken", "slow-2", "slow-broken", "c")
    quick = [tasks[group] for group in ("a", "b", "c", "broken")]
    async with asyncio.timeout(3):
        await asyncio.gather(*quick)
    assert tasks["a"].result().apps["web"].groups[0].clusters == ["lab/a"]
    assert "nobody knows" in tasks["broken"].result().error
    assert tasks["b"].result().error == ""
    assert not tasks["slow-1"].done()
    odd.go.set()  # each of these comes in a message of its own: more answers than questions were heard
    async with asyncio.timeout(3):
        await asyncio.gather(*tasks.values())
    assert tasks["slow-2"].result().apps["web"].groups[0].clusters == ["lab/slow-2"]
    assert "somebody forgot" in tasks["slow-broken"].result().error
    assert {task.result().cause for task in tasks.values()} == {f"id-{group}" for group in tasks}


async def test_past_its_budget_one_is_out_of_time_and_the_others_are_not(bus: Bus) -> None:
    tasks = await said(bus, "a", "slow", "b", budget_ms=200)
    async with asyncio.timeout(3):
        await asyncio.gather(*tasks.values())
    assert tasks["slow"].result().error == "out of time"
    assert {tasks[group].result().error for group in "ab"} == {""}


async def test_more_than_can_be_under_way_is_refused_at_once(bus: Bus, odd: Odd) -> None:
    waiting = await said(bus, *(f"slow-{i}" for i in range(MAX_CONCURRENT)))
    await until(lambda: odd.waiting == MAX_CONCURRENT)
    more = await said(bus, "more-1", "more-2")
    async with asyncio.timeout(3):
        assert [await task for task in more.values()] == ["Busy", "Busy"]
    odd.go.set()
    async with asyncio.timeout(10):
        answers = await asyncio.gather(*waiting.values())
    assert all(answer.apps["web"].groups for answer in answers)


async def test_junk_in_a_bundle_is_answered_with_a_problem(bus: Bus) -> None:
    for junk in (b"{", b'{"asks":[{"group":1}]}', b'{"asks":7}'):
        reply = await bus.request(subjects.batch(subjects.candidates(NAME)), junk)
        assert msgspec.json.decode(reply)["problem"]["code"] == "Undecodable"
    good = msgspec.json.encode(Asks(asks=[question("a")]))
    reply = await bus.request(subjects.batch(subjects.candidates(NAME)), good)
    assert msgspec.json.decode(reply)["answers"]["id-a"]["apps"]["web"]["groups"]


async def test_what_nobody_waits_for_any_more_is_not_begun(bus: Bus, odd: Odd) -> None:
    groups = [f"busy-{i}" for i in range(6)]
    tasks = await said(bus, *groups, budget_ms=250)
    async with asyncio.timeout(3):
        await asyncio.gather(*tasks.values())
    assert [task.result().error for task in tasks.values()][-1] == "out of time"
    assert odd.asked == groups[: len(odd.asked)] and len(odd.asked) < len(groups)
