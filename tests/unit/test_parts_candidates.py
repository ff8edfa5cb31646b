"""Candidates against an exhaustive search by the definitions, on random forests."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from moorage.parts import (
    NAMELESS,
    SHARES,
    Budget,
    Candidate,
    Forest,
    Group,
    Inventory,
    Part,
    Request,
    SameSubtree,
    alike_trees,
    candidates,
    candidates_in_steps,
    solver,
)

TRAITS = ["T0", "T1", "T2"]
AGGREGATES = ["g0", "g1", "g2"]
CLASSES = ["VCPU", "VGPU", "VF"]

Key = tuple[object, ...]


def random_forest(rng: Random, copies: int = 1) -> tuple[Forest, list[Part]]:
    """Makes trees; of each so many that differ in what is used at most."""
    forest = Forest()
    parts: list[Part] = []
    for block in range(rng.randint(1, 3)):
        here: list[Part] = []
        for tree in range(rng.randint(1, 2)):
            root = f"b{block}t{tree}"
            names = [root]
            here.append(random_part(rng, root, None))
            for i in range(rng.randint(0, 5)):
                name = f"{root}p{i}"
                here.append(random_part(rng, name, rng.choice(names)))
                names.append(name)
        rng.shuffle(here)
        for number in range(copies):
            alike = [copied(rng, part, number) for part in here] if number else here
            forest.write(block + 10 * number, [Part("old")])  # what was there before leaves nothing behind
            forest.write(block + 10 * number, alike)
            parts += alike
    return forest, parts


def copied(rng: Random, part: Part, number: int) -> Part:
    used = {name: amount + (rng.random() < 0.1) for name, amount in part.used.items()}
    parent = f"{part.parent}c{number}" if part.parent is not None else None
    return part._replace(id=f"{part.id}c{number}", parent=parent, traits=part.traits - {SHARES}, used=used)


def random_part(rng: Random, name: str, parent: str | None) -> Part:
    inventories = {
        c: Inventory(
            total=rng.randint(1, 6),
            reserved=rng.choice([0, 0, 1]),
            min_unit=rng.choice([1, 1, 1, 2]),
            max_unit=rng.choice([100, 100, 3]),
            step_size=rng.choice([1, 1, 1, 2]),
            allocation_ratio=rng.choice([1.0, 1.0, 1.5]),
        )
        for c in CLASSES
        if rng.random() < 0.6
    }
    traits = {t for t in TRAITS if rng.random() < 0.4} | ({SHARES} if rng.random() < 0.15 else set())
    return Part(
        name,
        parent,
        frozenset(traits),
        frozenset(g for g in AGGREGATES if rng.random() < 0.3),
        inventories,
        {c: rng.choice([0, 0, 1, 2]) for c in inventories},
    )


def some(rng: Random, of: list[str], chance: float) -> frozenset[str]:
    return frozenset({rng.choice(of)}) if rng.random() < chance else frozenset()


def any_of(rng: Random, of: list[str], chance: float) -> tuple[frozenset[str], ...]:
    return tuple(
        frozenset(rng.sample(of, rng.randint(1, 2))) for _ in range(rng.randint(1, 2)) if rng.random() < chance
    )


def random_request(rng: Random, parts: list[Part]) -> Request:
    groups: dict[str, Group] = {}
    suffixes = [f"_{i}" for i in range(rng.randint(0, 3))]
    if rng.random() < 0.7 or not suffixes:
        groups[NAMELESS] = random_group(rng, parts, resourceless=0.15 if suffixes else 0.0)
    for suffix in suffixes:
        groups[suffix] = random_group(rng, parts, resourceless=0.2)
    relations = []
    for _ in range(rng.randint(0, 2)):
        if suffixes:
            together = frozenset(rng.sample(suffixes, rng.randint(1, len(suffixes))))
            rest = sorted(set(suffixes) - together)
            relations.append(SameSubtree(together, frozenset(rng.sample(rest, rng.randint(0, len(rest))))))
    isolated = frozenset(s for s in suffixes if rng.random() < 0.3)
    return Request(
        groups,
        tuple(relations),
        isolated,
        any_of(rng, TRAITS, 0.1),
        some(rng, TRAITS, 0.1),
        any_of(rng, AGGREGATES, 0.1),
        some(rng, AGGREGATES, 0.1),
    )


def random_group(rng: Random, parts: list[Part], resourceless: float) -> Group:
    resources = (
        {} if rng.random() < resourceless else {c: rng.randint(1, 3) for c in rng.sample(CLASSES, rng.randint(1, 2))}
    )
    return Group(
        resources,
        any_of(rng, TRAITS, 0.2),
        some(rng, TRAITS, 0.15),
        any_of(rng, AGGREGATES, 0.15),
        some(rng, AGGREGATES, 0.1),
        rng.choice(parts).id if rng.random() < 0.08 else None,
    )


# -- the definitions --------------------------------------------------------------------------------------------------


class Reference:
    def __init__(self, parts: list[Part], request: Request) -> None:
        self.parts = {part.id: part for part in parts}
        self.request = request

    def line(self, name: str) -> list[str]:
        found = [name]
        while (parent := self.parts[found[-1]].parent) is not None:
            found.append(parent)
        return found

    def root(self, name: str) -> str:
        return self.line(name)[-1]

    def candidates(self) -> set[Key]:
        return {key for anchor in self.parts if self.parts[anchor].parent is None for key in self.of(anchor)}

    def of(self, anchor: str) -> Iterator[Key]:
        request = self.request
        root = self.parts[anchor]
        if not all(s & root.traits for s in request.root_required) or request.root_forbidden & root.traits:
            return
        if not all(s & root.aggregates for s in request.root_member_of) or request.root_not_member_of & root.aggregates:
            return
        tree = [name for name in self.parts if self.root(name) == anchor]
        together = {g for name in tree for g in self.parts[name].aggregates}
        shared = [
            name
            for name, part in self.parts.items()
            if SHARES in part.traits and name not in tree and part.aggregates & together
        ]
        slots: list[tuple[str, dict[str, int]]] = []
        for suffix, group in request.groups.items():
            if suffix != NAMELESS:
                slots.append((suffix, dict(group.resources)))
            else:
                slots.extend((NAMELESS, {c: n}) for c, n in group.resources.items())
        witness = None
        nameless = request.groups.get(NAMELESS)
        if nameless is not None and not nameless.resources:
            found = [name for name in tree if self.meets(nameless, name, {}, anchor, alone=True)]
            if not found:
                return
            witness = found
        if nameless is not None and nameless.not_member_of & root.aggregates:
            return
        options = []
        for suffix, resources in slots:
            group = request.groups[suffix]
            from_shared = [] if suffix == NAMELESS and group.in_tree is not None else shared
            options.append(
                [n for n in [*tree, *from_shared] if self.meets(group, n, resources, anchor, alone=suffix != NAMELESS)]
            )
        for chosen in product(*options):
            if (key := self.candidate(slots, chosen)) is not None:
                yield (*key, None if witness is None else frozenset(witness))

    def meets(self, group: Group, name: str, resources: dict[str, int], anchor: str, alone: bool) -> bool:
        part = self.parts[name]
        own_tree = self.root(name) == anchor
        if group.in_tree is not None and self.root(group.in_tree) != self.root(name):
            return False
        if group.forbidden & part.traits or (alone and not all(s & part.traits for s in group.required)):
            return False
        member = all(s & part.aggregates for s in group.member_of)
        if not alone and own_tree:
            member = member or all(s & self.parts[anchor].aggregates for s in group.member_of)
        if not member or group.not_member_of & part.aggregates:
            return False
        if not alone and group.not_member_of & self.parts[self.root(name)].aggregates:
            return False
        return all(self.has_room(part, c, n) for c, n in resources.items())

    @staticmethod
    def has_room(part: Part, name: str, amount: int) -> bool:
        inventory = part.inventories.get(name)
        return (
            inventory is not None
            and part.used.get(name, 0) + amount <= (inventory.total - inventory.reserved) * inventory.allocation_ratio
            and inventory.min_unit <= amount <= inventory.max_unit
            and amount % inventory.step_size == 0
        )

    def candidate(self, slots: list[tuple[str, dict[str, int]]], chosen: tuple[str, ...]) -> Key | None:
        request = self.request
        sums: dict[tuple[str, str], int] = {}
        mappings: dict[str, set[str]] = {}
        for (suffix, resources), name in zip(slots, chosen, strict=True):
            mappings.setdefault(suffix, set()).add(name)
            for c, n in resources.items():
                sums[name, c] = sums.get((name, c), 0) + n
        for (name, c), n in sums.items():
            inventory = self.parts[name].inventories[c]
            capacity = (inventory.total - inventory.reserved) * inventory.allocation_ratio
            if self.parts[name].used.get(c, 0) + n > capacity or n > inventory.max_unit:
                return None
        nameless = request.groups.get(NAMELESS)
        if nameless is not None and nameless.resources:
            traits = {t for name in mappings[NAMELESS] for t in self.parts[name].traits}
            if not all(s & traits for s in nameless.required):
                return None
        single = {suffix: next(iter(names)) for suffix, names in mappings.items() if suffix != NAMELESS}
        for suffix in request.isolated:
            if any(single[other] == single[suffix] for other in single if other != suffix):
                return None
        for relation in request.same_subtree:
            names = [single[s] for s in relation.together]
            tops = [top for top in names if all(top in self.line(name) for name in names)]
            if not tops:
                return None
            for suffix in relation.apart:
                name = single[suffix]
                if tops[0] in self.line(name) or name in self.line(tops[0]):
                    return None
        return frozenset(sums.items()), frozenset((s, frozenset(names)) for s, names in mappings.items())


def key_of(forest: Forest, request: Request, found: Candidate, witness: bool) -> Key:
    sums = frozenset(
        ((forest.ids[row], c), n) for row, amounts in found.allocations.items() for c, n in amounts.items()
    )
    named = {s: frozenset(forest.ids[row] for row in rows) for s, rows in found.mappings.items()}
    extra = named.pop(NAMELESS) if witness else None
    return sums, frozenset(named.items()), extra


def check_world(seed: int, copies: int = 1) -> int:
    rng = Random(seed)
    forest, parts = random_forest(rng, copies)
    request = random_request(rng, parts)
    witness = NAMELESS in request.groups and not request.groups[NAMELESS].resources
    if not any(group.resources for group in request.groups.values()):
        return 0
    budget = Budget(10**7)
    found = [key_of(forest, request, c, witness) for c in candidates(forest, request, budget)]
    assert not budget.spent
    expected = {(sums, named) for sums, named, _ in Reference(parts, request).candidates()}
    assert len(found) == len(set(found)), "a candidate came twice"
    assert {(sums, named) for sums, named, _ in found} == expected, (request, parts)
    for c in islice(candidates(forest, request, Budget(10**7)), 20):
        take_all(forest, c)
    return len(expected)


def take_all(forest: Forest, found: Candidate) -> None:
    for row, amounts in found.allocations.items():
        for name, amount in amounts.items():
            assert amount <= forest.room(row, name)


@pytest.mark.parametrize(
    "start", [0, *(pytest.param(start, marks=pytest.mark.long) for start in range(500, 3000, 500))]
)
def test_candidates_are_those_of_the_definition(start: int) -> None:
    assert sum(check_world(seed) for seed in range(start, start + 500)) > 500


def test_trees_that_are_nearly_alike_have_their_own_candidates() -> None:
    assert sum(check_world(seed, copies=4) for seed in range(200)) > 500


def test_states_that_failed_are_remembered_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise small searches end before they remember any."""
    monkeypatch.setattr(solver, "PATIENCE", 0)
    monkeypatch.setattr(solver, "PAUSE", 1)
    assert sum(check_world(seed) for seed in range(3_000, 3_500)) > 500


def unlike_trees(count: int) -> Forest:
    """Returns trees of which each has other parts; none has two below the same one."""
    rng, forest = Random(7), Forest()
    for number in range(count):
        root = Part(f"{number}")
        names = [f"{number}-{i}" for i in range(16)]
        parts = [Part(name, root.id, inventories={rng.choice(CLASSES[:2]): Inventory(1)}) for name in names]
        forest.write(number, [root, *parts])
    return forest


UNMET = Request({f"_{name}": Group({name: 1}) for name in CLASSES[:2]}, (SameSubtree(frozenset(("_VCPU", "_VGPU"))),))


def test_short_searches_of_many_trees_make_pauses_together() -> None:
    budget = Budget(10**7)
    found = list(candidates_in_steps(unlike_trees(600), UNMET, budget))
    steps = 10**7 - budget.left
    assert not any(found) and steps > 20 * solver.PAUSE and len(found) > steps / solver.PAUSE / 2


def test_a_search_for_ancestors_says_that_its_budget_is_spent() -> None:
    budget = Budget(10)
    assert list(candidates(unlike_trees(3), UNMET, budget)) == [] and budget.spent


def test_equal_hashes_of_trees_do_not_make_them_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_equal(
        codes: object, starts: NDArray[np.int64], sizes: object
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return np.zeros(1, np.intp), np.zeros(len(starts), np.intp)

    monkeypatch.setattr(alike_trees, "_by_hash", all_equal)
    assert sum(check_world(seed, copies=3) for seed in range(100)) > 200
