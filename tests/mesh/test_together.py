"""Asks about several groups travel in one message, with the permissions of a custom controller: none waits for another."""

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


class SelectiveController:
    """A controller that answers at once, except for groups whose names ask for something else."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.waiting = 0
        self.asked: list[str] = []

    def candidates(self, ask: Ask, fleet: Fleet) -> Mapping[str, Allowed] | Awaitable[Mapping[str, Allowed]]:
        self.asked.append(ask.group)
        if "busy" in ask.group:
            time.sleep(0.1)
        if "broken" in ask.group and "slow" not in ask.group:
            raise KeyError("an error")
        answer = {app.name: allow([f"lab/{ask.group}"]) for app in ask.apps}
        return self.answer_later(ask, answer) if "slow" in ask.group else answer

    async def answer_later(self, ask: Ask, answer: Mapping[str, Allowed]) -> Mapping[str, Allowed]:
        self.waiting += 1
        await self.go.wait()
        if "broken" in ask.group:
            raise KeyError("a late error")
        return answer


@pytest_asyncio.fixture
async def selective() -> SelectiveController:
    return SelectiveController()


@pytest_asyncio.fixture
async def bus(secure_nats: NatsServer, redis: RedisServer, selective: SelectiveController) -> AsyncIterator[Bus]:
    admin = await Bus.connect(secure_nats.settings("admin"), worker="admin")
    await admin.provision(installed().stores.values())
    known: dict[str, Controller] = {}

    def registered(key: str, data: bytes | None, _revision: int) -> None:
        if data is not None:
            known[key] = msgspec.json.decode(data, type=Controller)

    await admin.bucket("moorage-controllers").mirror(registered)
    declared = Declared(NAME, candidates=selective.candidates)
    mains = [load(kind)(secure_nats.settings(kind, redis.url)) for kind in ("intents", "inventory")]
    merger = await Bus.connect(secure_nats.settings("merger"), worker="merger")
    try:
        async with running_workers(*mains, run(secure_nats.settings("controller", redis.url), [declared])):
            await until(lambda: token(NAME) in known, seconds=20)
            assert known[token(NAME)].together
            yield merger
    finally:
        await merger.close()
        await admin.close()


def ask_about(group: str, budget_ms: float = 5000) -> Ask:
    apps = [ShapedApp(name="web")]
    return Ask(id=f"id-{group}", group=group, revision=1, budget_ms=budget_ms, epoch="0.0", tenant="t", apps=apps)


async def ask_all(bus: Bus, *groups: str, budget_ms: float = 5000) -> dict[str, asyncio.Task[Any]]:
    """Asks about all groups at once, and returns the replies."""

    async def send(ask: Ask) -> Answer | str:
        asks = {NAME: (subjects.candidates(NAME), 5.0)}
        reply = (await bus.ask_many(asks, msgspec.json.encode(ask), ident=ask.id, together={NAME}))[NAME]
        if b'"problem"' in reply.data:
            return str(msgspec.json.decode(reply.data)["problem"]["code"])
        return msgspec.json.decode(reply.data, type=Answer) if reply.outcome == "answered" else reply.outcome

    tasks = {group: asyncio.create_task(send(ask_about(group, budget_ms))) for group in groups}
    await asyncio.sleep(0)
    return tasks


async def test_a_slow_ask_of_a_batch_does_not_delay_the_others(bus: Bus, selective: SelectiveController) -> None:
    tasks = await ask_all(bus, "a", "slow-1", "b", "broken", "slow-2", "slow-broken", "c")
    quick = [tasks[group] for group in ("a", "b", "c", "broken")]
    async with asyncio.timeout(30):
        await asyncio.gather(*quick)
    assert tasks["a"].result().apps["web"].groups[0].clusters == ["lab/a"]
    assert "an error" in tasks["broken"].result().error
    assert tasks["b"].result().error == ""
    assert not tasks["slow-1"].done()
    selective.go.set()  # each of these has a message of its own, so there are more answers than asks
    async with asyncio.timeout(30):
        await asyncio.gather(*tasks.values())
    assert tasks["slow-2"].result().apps["web"].groups[0].clusters == ["lab/slow-2"]
    assert "a late error" in tasks["slow-broken"].result().error
    assert {task.result().cause for task in tasks.values()} == {f"id-{group}" for group in tasks}


async def test_one_ask_of_a_batch_can_time_out_alone(bus: Bus) -> None:
    tasks = await ask_all(bus, "a", "slow", "b", budget_ms=2000)
    async with asyncio.timeout(30):
        await asyncio.gather(*tasks.values())
    assert tasks["slow"].result().error == "out of time"
    assert {tasks[group].result().error for group in "ab"} == {""}


async def test_asks_above_the_limit_are_refused_at_once(bus: Bus, selective: SelectiveController) -> None:
    waiting = await ask_all(bus, *(f"slow-{i}" for i in range(MAX_CONCURRENT)))
    await until(lambda: selective.waiting == MAX_CONCURRENT)
    more = await ask_all(bus, "more-1", "more-2")
    async with asyncio.timeout(30):
        assert [await task for task in more.values()] == ["Busy", "Busy"]
    selective.go.set()
    async with asyncio.timeout(30):
        answers = await asyncio.gather(*waiting.values())
    assert all(answer.apps["web"].groups for answer in answers)


async def test_unreadable_asks_of_a_batch_are_answered_with_a_problem(bus: Bus) -> None:
    for junk in (b"{", b'{"asks":[{"group":1}]}', b'{"asks":7}'):
        reply = await bus.request(subjects.batch(subjects.candidates(NAME)), junk, timeout=30)
        assert msgspec.json.decode(reply)["problem"]["code"] == "Undecodable"
    good = msgspec.json.encode(Asks(asks=[ask_about("a")]))
    reply = await bus.request(subjects.batch(subjects.candidates(NAME)), good, timeout=30)
    assert msgspec.json.decode(reply)["answers"]["id-a"]["apps"]["web"]["groups"]


async def test_expired_asks_are_not_started(bus: Bus, selective: SelectiveController) -> None:
    groups = [f"busy-{i}" for i in range(6)]
    tasks = await ask_all(bus, *groups, budget_ms=250)
    async with asyncio.timeout(30):
        await asyncio.gather(*tasks.values())
    assert [task.result().error for task in tasks.values()][-1] == "out of time"
    assert selective.asked == groups[: len(selective.asked)] and len(selective.asked) < len(groups)
