"""Compares what is proposed for changed objects with all there is to propose, and checks that rollouts end when others take all
that is left."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

import pytest

from moorage.model.claims import Claim, Decision, claim_id
from moorage.model.shapes import Shape, ShapedApp
from moorage.model.slots import Slot
from moorage_testkit.brute_force import taken_together
from moorage_testkit.fleets import node
from moorage_testkit.merger_harness import revision
from moorage_testkit.seeds import seeds

from .site import WEB, Site, on, web


def spread(nodes: Sequence[str], count: int) -> Iterator[dict[str, int]]:
    for counts in product(range(count + 1), repeat=len(nodes)):
        if sum(counts) == count:
            yield dict(zip(nodes, counts, strict=True))


@pytest.mark.parametrize("seed", seeds(75, 4000))
def test_an_update_is_proposed_if_and_only_if_it_fits(seed: int) -> None:
    """Any sequence of updates, number and size at once too, with pods in any state between."""
    rng = random.Random(seed)
    names = ["n-0", "n-1", "n-2"][: rng.randint(1, 3)]
    rooms = {n: (rng.randint(2, 8), rng.randint(2, 8)) for n in names}
    site = Site({"lab/one": [node(n, cpu=str(cpu), memory=str(memory)) for n, (cpu, memory) in rooms.items()]})
    count, cpu, memory, image = 2, 1, 1, 0
    placed = 0
    for number in range(1, 8):
        if number > 1 and rng.random() < 0.6:
            count = rng.randint(1, 4)
        if number > 1 and rng.random() < 0.6:
            cpu, memory = rng.randint(1, 4), rng.randint(1, 4)
        image += rng.random() < 0.5
        surge, missing = rng.choice([(0, 1), (1, 0), (1, 1), (2, 0)])
        wanted = web(
            count,
            cpu,
            template=f"{image}-{memory}-",
            resources={"memory": memory},
            surge=surge,
            unavailable=missing,
        )
        record = revision("g", ShapedApp(name="a", shapes=[wanted]), number=number)
        claim = claim_id(record.group, "a", WEB, "lab/one", wanted.template)
        older = [c for c in site.ledger.claims.values() if c.claim.id != claim]
        family = site.ledger.family_of(next(iter(site.ledger.families))) if site.ledger.families else []
        before = {n: counted(site, [c.slots for c in family], [c.id for c in family], n) for n in names}
        fits = {}
        for pods in {count, count + surge if older else count}:
            fits[pods] = any(
                all(fits_on(site, family, claim, wanted.resources, n, at[n], before[n], rooms[n]) for n in names)
                for at in spread(names, pods)
            )
        found = site.propose(record)
        expected = fits[count + surge if older else count] or (bool(missing) and fits[count])
        mine = site.ledger.claims.get(claim)
        if mine is None:  # else slots with pods stay where they are
            assert isinstance(found, Decision) == expected, (number, fits)
        if isinstance(found, Decision):
            placed += 1
            assert sum(on(found).values()) == count
            site.capacity.hold(found)
            assert site.capacity.fits(found.id)
            site.commit(found)
        shuffle(site, rng)
    assert placed


# In the world of seed 91076 pods of two claims outnumber the slots on a node; in that of 300800 an object gives room back.
@pytest.mark.parametrize("seed", [*seeds(20, 1000), 91076, 300800])
def test_updates_of_several_objects_are_proposed_if_and_only_if_they_fit_together(seed: int) -> None:
    rng = random.Random(seed)
    names = ["n-0", "n-1"]
    rooms = {n: (rng.randint(4, 9), rng.randint(4, 9)) for n in names}
    objects = ["StatefulSet/a", "StatefulSet/b", "StatefulSet/c"][: rng.randint(2, 3)]
    update_together(rng, rooms, objects, 2)


@pytest.mark.parametrize("seed", seeds(20, 1000))
def test_updates_of_many_objects_are_proposed_if_and_only_if_they_fit_together(seed: int) -> None:
    rng = random.Random(seed)
    rooms = {f"n-{i}": (rng.randint(4, 12), rng.randint(4, 12)) for i in range(rng.randint(2, 3))}
    update_together(rng, rooms, [f"StatefulSet/{name}" for name in "abcdef"[: rng.randint(3, 6)]], 1)


def update_together(
    rng: random.Random, rooms: Mapping[str, tuple[int, int]], objects: Sequence[str], most: int
) -> None:
    """Updates some of the objects again and again, to at most so many pods each."""
    site = Site({"lab/one": [node(n, cpu=str(cpu), memory=str(memory)) for n, (cpu, memory) in rooms.items()]})
    state = dict.fromkeys(objects, (1, 1, 1, 0))
    for number in range(1, 5):
        for obj in objects if number > 1 else ():
            if rng.random() < 0.7:
                state[obj] = (rng.randint(1, most), rng.randint(1, 4), rng.randint(1, 4), number)
        shapes = [
            web(count, cpu, template=f"{image}-{memory}-", resources={"memory": memory}, object_=obj)
            for obj, (count, cpu, memory, image) in state.items()
        ]
        record = revision("g", ShapedApp(name="a", shapes=shapes), number=number)
        families = [
            (claim_id(record.group, "a", one.object, "lab/one", one.template), family_of(site, one.object), one)
            for one in shapes
        ]
        found = site.propose(record)
        # Where pods and slots exceed a node, a settlement comes first.
        if not any(exceeds(site, [f for _, f, _ in families], n, room) for n, room in rooms.items()):
            assert isinstance(found, Decision) == fit_together(site, families, rooms), number
        if isinstance(found, Decision):
            site.capacity.hold(found)
            if not site.capacity.fits(found.id):  # fewer pods may turn one into a stray; then it is decided again
                return
            site.commit(found)
        shuffle(site, rng)


Families = Sequence[tuple[str, Sequence[Claim], Shape]]


def family_of(site: Site, obj: str) -> list[Claim]:
    return [c for family in site.ledger.families if family.object == obj for c in site.ledger.family_of(family)]


def used(site: Site, where: str) -> tuple[int, int]:
    return site.used("lab/one", where), site.used("lab/one", where, "memory")


def exceeds(site: Site, families: Sequence[Sequence[Claim]], where: str, room: tuple[int, int]) -> bool:
    open_slots = [counted(site, [c.slots for c in f], [c.id for c in f], where) for f in families]
    total = [u + sum(o[i] for o in open_slots) for i, u in enumerate(used(site, where))]
    return total[0] > 1000 * room[0] or total[1] > room[1]


def fit_together(site: Site, families: Families, rooms: Mapping[str, tuple[int, int]]) -> bool:
    """Returns whether any placement of all new slots leaves every node within its room, or no fuller than it is. Room that older claims
    of an object give back is counted until the update is recorded."""
    options: list[list[dict[str, int]]] = []
    for ident, family, one in families:
        mine = next((c for c in family if c.id == ident), None)
        if mine is not None:  # it stays
            options.append([{n: sum(s.count for s in mine.slots if s.node == n) for n in rooms}])
        else:
            options.append(list(spread(list(rooms), one.count)))

    @cache
    def fits(where: str, pods: tuple[int, ...]) -> bool:
        before, after = [0, 0], [0, 0]
        for count, (ident, family, one) in zip(pods, families, strict=True):
            others = [c for c in family if c.id != ident]
            new = [Slot(node=n, count=k, resources=dict(one.resources)) for n, k in ((where, count), ("x", 1)) if k]
            slots, idents = [*(c.slots for c in others), new], [*(c.id for c in others), ident]
            now = counted(site, [c.slots for c in family], [c.id for c in family], where)
            then = counted(site, slots, idents, where)
            for at, (have, want) in enumerate(zip(now, then, strict=True)):
                before[at] += have
                after[at] += max(have, want)  # what one object gives back is not another's yet
        limits = (1000 * rooms[where][0], rooms[where][1])
        return all(
            a <= b or a + u <= limit for a, b, u, limit in zip(after, before, used(site, where), limits, strict=True)
        )

    return any(all(fits(n, tuple(at[n] for at in choice)) for n in rooms) for choice in product(*options))


def counted(site: Site, slots: Sequence[Sequence[Slot]], ids: Sequence[str], where: str) -> tuple[int, int]:
    pods = [{n: c for (i, n), c in site.pods.items() if i == ident} for ident in ids]
    if not slots:
        return 0, 0
    return taken_together(slots, pods, where, "cpu"), taken_together(slots, pods, where, "memory")


def fits_on(
    site: Site,
    family: Sequence[Any],
    claim: str,
    resources: Mapping[str, int],
    where: str,
    count: int,
    before: tuple[int, int],
    room: tuple[int, int],
) -> bool:
    """Returns whether so many new slots on the node leave it within its room, or are no more than those that are there."""
    others = [c for c in family if c.id != claim]
    new = [Slot(node=n, count=k, resources=dict(resources)) for n, k in ((where, count), ("elsewhere", 1)) if k]
    after = counted(site, [*(c.slots for c in others), new], [*(c.id for c in others), claim], where)
    used = [0, 0]
    for (ident, n), pods in site.pods.items():
        if n == where:
            size = site.ledger.claims[ident].claim.slots[0].resources
            used = [used[0] + pods * size["cpu"], used[1] + pods * size["memory"]]
    limits = (1000 * room[0], room[1])
    return all(a <= b or a + u <= limit for a, b, u, limit in zip(after, before, used, limits, strict=True))


def shuffle(site: Site, rng: random.Random) -> None:
    """Lets some pods of older claims end and some new ones start where their slots are, as far as there is room."""
    for ident, active in list(site.ledger.claims.items()):
        for key in [key for key in site.pods if key[0] == ident and active.withdrawn]:
            site.pods[key] -= rng.randint(0, site.pods[key])
    site.pods = +site.pods
    for ident, active in site.ledger.claims.items():
        for slot in active.claim.slots if not active.withdrawn else ():
            for _ in range(rng.randint(0, slot.count)):
                key = ident, slot.node
                mine = sum(s.count for s in active.claim.slots if s.node == slot.node)
                if site.pods[key] < mine and site.has_room(slot):
                    site.pods[key] += 1
    site.pods = +site.pods
    site.report()
    if rng.random() < 0.5:
        site.release()
