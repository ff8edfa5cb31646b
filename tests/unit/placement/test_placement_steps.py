"""Answers about many providers and consumers are made in steps, between which others are served."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Generator
from typing import Any, cast
from urllib.parse import parse_qsl

import msgspec
import pytest

from moorage.model.allocations import Consumer, ConsumerWrite, InventoryRecord
from moorage.placement.core.call import Answer, Call, LongBody, finished
from moorage.placement.core.records import Change, Provider
from moorage.placement.core.routes import ROUTES
from moorage.placement.core.state import State
from moorage.placement.steps import Steps
from moorage_testkit.polling import until

HOSTS = 6_000


@pytest.fixture(scope="module")
def state() -> State:
    """Hosts with a zone each, and a provider of which very many consumers hold something."""
    found = State()
    made = [provider("pool", None, DISK_GB=10**6)]
    for number in range(HOSTS):
        made.append(provider(f"host-{number}", None))
        made.append(provider(f"zone-{number}", made[-1].uuid, VCPU=8))
    writes = [
        ConsumerWrite(
            consumer=Consumer(
                uuid=ident(f"consumer-{number}"),
                project="p",
                user="u",
                type="T",
                generation=1,
                allocations={ident("pool"): {"DISK_GB": 1}},
                updated=float(number),
            ),
            expected=None,
        )
        for number in range(2_500)
    ]
    found.apply(Change({p.uuid: p for p in made}, consumers=tuple(writes)))
    return found


def ident(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, name))


def provider(name: str, parent: str | None, **amounts: int) -> Provider:
    inventories = {resource: InventoryRecord(total=total) for resource, total in amounts.items()}
    return Provider(uuid=ident(name), name=name, parent=parent, generation=1, inventories=inventories)


def asked(state: State, route: str, query: str = "", **path: str) -> tuple[Any, int, float | None]:
    """Returns what is answered, in how many steps, and when it was modified."""
    operation = ROUTES[route]["GET"][-1].operation
    answer = operation(Call(state, 40, path, parse_qsl(query), now=1e6))
    steps = cast("Generator[None, None, Answer]", answer)
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Answer = end.value
            break
        count += 1
    if isinstance(found.body, LongBody):
        return msgspec.json.decode(b"".join(found.body.pieces)), count, found.modified
    return found.body, count, found.modified


def test_all_consumers_of_a_provider_are_shown(state: State) -> None:
    body, steps, modified = asked(state, "/resource_providers/{uuid}/allocations", uuid=ident("pool"))
    assert len(body["allocations"]) == 2_500 and body["resource_provider_generation"] == state.generation(ident("pool"))
    assert body["allocations"][ident("consumer-7")] == {"resources": {"DISK_GB": 1}, "consumer_generation": 1}
    assert steps > 1 and modified == 2_499
    body, steps, modified = asked(state, "/resource_providers/{uuid}/allocations", uuid=ident("host-1"))
    assert body == {"allocations": {}, "resource_provider_generation": 1} and modified == 1e6


def test_a_search_that_finds_nothing_goes_on_tree_by_tree(state: State) -> None:
    query = "&".join(f"resources_{number}=VCPU:3" for number in range(3))
    body, steps, _ = asked(state, "/allocation_candidates", query)
    assert body["allocation_requests"] == [] and steps >= HOSTS / 1024


def test_a_condition_of_each_group_is_a_step(state: State) -> None:
    query = "&".join(f"resources_{number}=VCPU:{number + 1}" for number in range(5))
    body, steps, _ = asked(state, "/allocation_candidates/explain", query)
    assert body.candidates == 0 and [group.with_room for group in body.groups] == [HOSTS] * 5 and steps >= 10


def test_the_children_of_a_wide_tree_are_not_compared_with_each_other(state: State) -> None:
    """Comparing each part of each group with each ancestor took 7 s here."""
    made = [provider("wide", None)]
    made += [provider(f"child-{number}", made[0].uuid, VGPU=4) for number in range(4_000)]
    state.apply(Change({p.uuid: p for p in made}))
    groups = "&".join(f"resources_{number}=VGPU:1" for number in range(8))
    began = time.thread_time()
    body, _, _ = asked(state, "/allocation_candidates", f"{groups}&same_subtree={','.join(f'_{n}' for n in range(8))}")
    assert body["allocation_requests"] == [] and time.thread_time() - began < 5


def test_groups_over_a_wide_tree_are_read_in_steps_and_once(state: State) -> None:
    """One step read the room of all parts for each group, which took 4 us each."""
    made = [provider("broad", None)]
    made += [provider(f"broad-{number}", made[0].uuid, PGPU=4) for number in range(4_000)]
    state.apply(Change({p.uuid: p for p in made}))
    counts = []
    for number in (2, 16):
        groups = "&".join(f"resources_{group}=PGPU:1" for group in range(number))
        body, steps, _ = asked(state, "/allocation_candidates", f"{groups}&isolate=_0&limit=3")
        assert len(body["allocation_requests"]) == 3 and len(body["provider_summaries"]) == 4_001
        counts.append(steps)
    assert counts[0] >= 10 and counts[1] - counts[0] < 4
    body, steps, _ = asked(state, "/allocation_candidates", "resources_A=PGPU:1&resources_B=VGPU:1&same_subtree=_A,!_B")
    assert body["allocation_requests"] == []


def test_what_changes_of_a_wide_tree_is_written_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing such a tree takes 100 ms."""
    state = State()
    made = [provider("root", None)]
    made += [provider(f"child-{number}", made[0].uuid, VGPU=4) for number in range(30_000)]
    state.apply(Change({p.uuid: p for p in made}))
    rows = dict(state.forest.rows)
    larger = msgspec.structs.replace(made[7], inventories={"VGPU": InventoryRecord(total=5)})
    again = provider("again", made[9].uuid, VGPU=7)
    monkeypatch.setattr(state.forest, "write", None)
    for ident, new in ((larger.uuid, larger), (made[8].uuid, None), (again.uuid, again)):
        state.apply(Change({ident: new}))
    assert state.forest.room(state.forest.rows[larger.uuid], "VGPU") == 5
    assert state.forest.parent[state.forest.rows[again.uuid]] == state.forest.rows[made[9].uuid]
    assert state.forest.rows[made[7].uuid] == rows[made[7].uuid] and made[8].uuid not in state.forest.rows


def test_summaries_that_changed_while_they_were_made_are_not_kept(state: State) -> None:
    made = [provider("busy", None)]
    made += [provider(f"busy-{number}", made[0].uuid, PGPU=4) for number in range(10)]
    state.apply(Change({p.uuid: p for p in made}))
    consumer = Consumer(
        uuid=ident("late"), project="p", user="u", type="T", generation=1, allocations={made[1].uuid: {"PGPU": 3}}
    )
    root = state.forest.rows[made[0].uuid]
    steps = state.summaries.of_tree(root, 4)
    next(steps)
    state.apply(Change(consumers=(ConsumerWrite(consumer=consumer, expected=None),)))
    finished(steps)
    assert state.summaries.kept(root) is None
    finished(state.summaries.of_tree(root, 4))
    assert f'"{made[1].uuid}":{{"resources":{{"PGPU":{{"capacity":4,"used":3}}}}' in (state.summaries.kept(root) or "")


@pytest.mark.parametrize("again", [False, True])
def test_all_candidates_are_gathered_in_steps(state: State, again: bool) -> None:
    """Summaries of trees are kept; taking them from there takes its time, too."""
    body, steps, _ = asked(state, "/allocation_candidates", "resources=VCPU:1")
    assert len(body["allocation_requests"]) == HOSTS and len(body["provider_summaries"]) == 2 * HOSTS
    rounds = HOSTS / 1024 + 8
    assert steps > rounds + (HOSTS / 2_000 if again else HOSTS / 200)


def test_lists_have_the_providers_of_a_tree_and_with_room(state: State) -> None:
    body, steps, _ = asked(state, "/resource_providers", f"in_tree={ident('zone-9')}")
    assert [p["name"] for p in body["resource_providers"]] == ["host-9", "zone-9"] and steps > 6
    body, _, _ = asked(state, "/resource_providers", "resources=VCPU:8")
    assert len(body["resource_providers"]) == HOSTS
    body, _, _ = asked(state, "/resource_providers", f"resources=VCPU:8&in_tree={ident('zone-9')}")
    assert [p["name"] for p in body["resource_providers"]] == ["zone-9"]
    assert asked(state, "/resource_providers", "resources=VCPU:8,DISK_GB:1")[0] == {"resource_providers": []}
    assert asked(state, "/resource_providers", f"in_tree={ident('nothing')}")[0] == {"resource_providers": []}


class Answers:
    """Answers that are made until they are let go, and what was brought up to date before each began."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.steps = Steps(lambda: self.told.append("trees"), lambda: self.told.append("free"))
        self._open: dict[str, bool] = {}

    def begin(self, name: str) -> asyncio.Task[Answer]:
        self._open[name] = True
        return asyncio.create_task(self.steps.run(lambda: self._made(name)))

    def end(self, name: str) -> None:
        self._open[name] = False

    def _made(self, name: str) -> Generator[None, None, Answer]:
        self.told.append(name)
        while self._open[name]:
            yield
        return Answer()

    async def until(self, name: str) -> None:
        await until(lambda: name in self.told)


async def test_what_is_free_is_counted_while_answers_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moorage.placement.steps.SLICE_SECONDS", -1.0)
    answers = Answers()
    long = answers.begin("long")
    await answers.until("long")
    answers.told.clear()
    await answers.steps.run(Answer)
    assert answers.told == ["free"], "trees must not change"
    answers.end("long")
    await long


async def test_answers_without_a_gap_wait_for_trees_that_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moorage.placement.steps.SLICE_SECONDS", -1.0)
    monkeypatch.setattr("moorage.placement.steps.LATE", 1e9)
    answers = Answers()
    first, second = answers.begin("first"), answers.begin("second")
    await answers.until("second")
    assert "trees" not in answers.told[answers.told.index("first") :], "they are not late yet"
    monkeypatch.setattr("moorage.placement.steps.LATE", -1.0)
    third = answers.begin("third")
    for name in ("first", "second"):
        for _ in range(10):
            await asyncio.sleep(0)
        assert "third" not in answers.told
        answers.end(name)
    await answers.until("third")
    assert answers.told[-2:] == ["trees", "third"]
    answers.end("third")
    await asyncio.gather(first, second, third)
