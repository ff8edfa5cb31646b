"""Controllers answer the newest asks again after the fleet changed, while nothing is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sized

import pytest

from moorage.model.candidates import Ask, OwnClaim
from moorage.model.shapes import ShapedApp
from moorage.sdk import controller, declared
from moorage.sdk.preparation import KEPT, MANY, QUIET, TOGETHER, Preparation
from moorage_testkit.brute_force import shape


def ask(ident: str, memory: int = 1, **more: object) -> Ask:
    app = ShapedApp(name="a", replicas=1, shapes=[shape("o", resources={"memory": memory})])
    return Ask(id=ident, group=ident, revision=1, budget_ms=100.0, epoch="", tenant="t", apps=[app], **more)  # type: ignore[arg-type]


async def answered(seen: Sized, times: int) -> None:
    async with asyncio.timeout(10):
        while len(seen) < times:  # noqa: ASYNC110 - it only grows
            await asyncio.sleep(0.001)


@pytest.mark.looptime
async def test_the_newest_ask_about_each_shape_is_answered_again() -> None:
    seen: list[str] = []
    preparation = Preparation(lambda one: seen.append(one.id))
    for number in range(KEPT + 2):
        preparation.asked(ask(f"old-{number}", memory=number))
        preparation.asked(ask(f"new-{number}", memory=number))
    assert not seen
    preparation.changed()
    preparation.changed()  # while it waits, it is one change
    await answered(seen, KEPT)
    assert seen == [f"new-{number}" for number in reversed(range(2, KEPT + 2))]
    preparation.changed()
    await answered(seen, 2 * KEPT)
    assert len(seen) == 2 * KEPT


@pytest.mark.looptime
async def test_nothing_is_prepared_without_a_change_or_for_one_group_alone() -> None:
    seen: list[str] = []
    preparation = Preparation(lambda one: seen.append(one.id))
    preparation.changed()
    preparation.asked(ask("explained", explain=True))
    preparation.asked(ask("held", held={"a": ["p/c"]}))
    preparation.asked(ask("own", own={"a": {"p/c": [OwnClaim(id="c", object="o", slots=[])]}}))
    preparation.changed()
    preparation.asked(ask("plain", memory=2))
    preparation.changed()
    await answered(seen, 1)
    assert seen == ["plain"]


@pytest.mark.looptime
async def test_it_waits_while_asks_come() -> None:
    loop = asyncio.get_running_loop()
    came: list[tuple[str, float]] = []
    preparation = Preparation(lambda one: came.append((one.id, loop.time())))
    preparation.asked(ask("first"))
    preparation.changed()
    last = loop.time() + 1
    while loop.time() < last:
        await asyncio.sleep(QUIET / 2)
        preparation.asked(ask("second", memory=2))
    await answered(came, 2)
    assert [ident for ident, _ in came] == ["second", "first"]
    assert last <= came[0][1] < came[1][1]


@pytest.mark.looptime
async def test_nothing_is_prepared_while_many_groups_are_decided() -> None:
    loop = asyncio.get_running_loop()
    came: list[float] = []
    preparation = Preparation(lambda _one: came.append(loop.time()))
    first = loop.time()
    for number in range(MANY):
        preparation.asked(ask(f"g-{number}"))
        preparation.changed()
    async with asyncio.timeout(10):
        while not came:  # noqa: ASYNC110 - it only grows
            await asyncio.sleep(0.001)
    assert came[0] >= first + TOGETHER


@pytest.mark.looptime
async def test_a_controller_that_fails_does_so_alone_and_once() -> None:
    seen: list[str] = []

    def fail(one: Ask) -> None:
        seen.append(one.id)
        raise ValueError(one.id)

    preparation = Preparation(fail)
    preparation.asked(ask("a"))
    preparation.asked(ask("b", memory=2))
    preparation.changed()
    await answered(seen, 2)
    preparation.changed()
    preparation.asked(ask("b", memory=2))
    preparation.changed()
    await answered(seen, 3)
    await asyncio.sleep(1)
    assert seen == ["b", "a", "b"], "until it is asked again"


def test_only_plain_functions_prepare() -> None:
    async def decide(ask: object, fleet: object) -> dict[str, object]:
        return {}

    with pytest.raises(ValueError, match="only a plain function can be called to prepare"):
        controller("waits", prepare=True)(decide)  # type: ignore[arg-type]
    controller("quick", prepare=True)(lambda ask, fleet: {})
    (one,) = declared()
    assert one.prepare


@pytest.mark.looptime
async def test_an_ask_comes_between_others_that_are_answered_again() -> None:
    loop = asyncio.get_running_loop()
    came: list[tuple[str, float]] = []
    preparation = Preparation(lambda one: came.append((one.id, loop.time())))
    for number in range(KEPT):
        preparation.asked(ask(f"ask-{number}", memory=number))
    preparation.changed()
    await answered(came, 1)
    preparation.asked(ask("again", memory=0))
    asked_at = loop.time()
    await answered(came, KEPT)
    await asyncio.sleep(1)
    assert len(came) == KEPT
    assert came[1][1] >= asked_at + QUIET
