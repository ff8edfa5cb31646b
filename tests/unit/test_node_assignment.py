"""The joint assignment of parts against an exhaustive search by the definitions, on random small trees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from random import Random

import pytest

from moorage.model.part_names import HW_NUMA_ROOT
from moorage.model.part_reports import PropertyValue
from moorage.model.part_requests import OneZone, PartGroup, PropertyCondition, PropertySelector
from moorage.model.shapes import Shape
from moorage.parts import NAMELESS, Budget, Group, Inventory, Request, SameSubtree, pod_request
from moorage.parts.forest import Take
from moorage.parts.node_assignment import PodShare, assign_on_nodes
from moorage.parts.pod_choices import NodePart, NodeTree

CLASSES = ["cpu", "GPU", "VF"]
TRAITS = ["T0", "T1"]
AGGREGATES = ["g0", "g1"]

PROPERTIES: list[frozenset[tuple[str, PropertyValue]]] = [
    frozenset(),
    *(frozenset({("speed", speed), ("kind", kind)}) for speed in (1, 2, 3) for kind in "xy"),
]
SELECTORS: list[PropertySelector] = [
    *[()] * 4,
    (
        (
            PropertyCondition(key="speed", operator="Gt", values=("1",)),
            PropertyCondition(key="kind", operator="In", values=("x", "z")),
        ),
    ),
    (
        (PropertyCondition(key="kind", operator="NotIn", values=("y",)),),
        (PropertyCondition(key="speed", operator="GtEq", values=("3",)),),
    ),
]

Amounts = dict[tuple[int, str], int]


def assign_on_node(tree: NodeTree, pods: Sequence[tuple[Request, int]], budget: Budget) -> list[list[PodShare]] | None:
    found = assign_on_nodes([tree], [pods], frozenset(), budget)
    return None if found is None else found[0]


def random_tree(rng: Random) -> list[NodePart]:
    parts = [NodePart("n", traits=frozenset(rng.sample(TRAITS, rng.randint(0, 1))))]
    open_parts = [0]
    for i in range(rng.randint(1, 5)):
        while open_parts and rng.random() < 0.4 and len(open_parts) > 1:
            open_parts.pop()
        parent = open_parts[-1]
        zone = parent == 0 and rng.random() < 0.6
        free = {name: rng.randint(0, 4) for name in CLASSES if rng.random() < 0.6}
        units = {name: Inventory(9, max_unit=2, step_size=rng.choice([1, 2])) for name in free if rng.random() < 0.15}
        takes = (
            Take(above, rng.choice(sorted(parts[above].free)), rng.randint(1, 2))
            for above in (parent,)
            if parts[above].free
        )
        consumes = dict.fromkeys([name for name in free if rng.random() < 0.3], tuple(takes))
        parts.append(
            NodePart(
                f"n/{i}",
                parent,
                frozenset([HW_NUMA_ROOT] if zone else rng.sample(TRAITS, rng.randint(0, 2))),
                frozenset(rng.sample(AGGREGATES, rng.randint(0, 1))),
                free,
                units,
                consumes,
                rng.random() < 0.95,
                rng.choice(PROPERTIES),
            )
        )
        open_parts.append(len(parts) - 1)
    return parts


def random_pod(rng: Random) -> Request:
    groups: dict[str, Group] = {}
    for suffix in rng.sample(["", "_A", "_B"], rng.randint(0, 3)):
        resources = {name: rng.randint(1, 2) for name in rng.sample(CLASSES, rng.randint(1, 2))}
        if suffix and rng.random() < 0.2:
            resources = {}
        groups[suffix] = Group(
            resources,
            tuple(frozenset([t]) for t in rng.sample([*TRAITS, HW_NUMA_ROOT], rng.choice([0, 0, 1]))),
            frozenset(rng.sample(TRAITS, rng.choice([0, 0, 1]))),
            tuple(frozenset([g]) for g in rng.sample(AGGREGATES, rng.choice([0, 0, 0, 1]))),
            frozenset(rng.sample(AGGREGATES, rng.choice([0, 0, 0, 1]))),
            properties=rng.choice(SELECTORS),
        )
    named = [s for s in groups if s]
    relations = []
    if len(named) == 2 and rng.random() < 0.5:
        relations.append(SameSubtree(frozenset(named)))
    isolated = frozenset(named if len(named) == 2 and rng.random() < 0.3 else ())
    return Request(groups, tuple(relations), isolated)


def ancestors(parts: list[NodePart], i: int) -> list[int]:
    found = [i]
    while parts[found[-1]].parent >= 0:
        found.append(parts[found[-1]].parent)
    return found


def ways_of(parts: list[NodePart], pod: Request) -> Iterator[Amounts]:
    """Lists what a pod may take, by the definitions."""
    asked: list[tuple[str, Mapping[str, int]]] = []
    for suffix, group in pod.groups.items():
        if suffix == NAMELESS:
            asked += [(suffix, {name: amount}) for name, amount in group.resources.items()]
        else:
            asked.append((suffix, group.resources))
    for choice in product(range(len(parts)), repeat=len(asked)):
        if not all(parts[i].usable for i in choice):
            continue
        if not all(_meets(parts, i, suffix, pod) for i, (suffix, _) in zip(choice, asked, strict=True)):
            continue
        if not _together(parts, choice, asked, pod):
            continue
        single: dict[tuple[int, str, str], int] = {}
        total: Amounts = {}
        for i, (suffix, resources) in zip(choice, asked, strict=True):
            for name, amount in resources.items():
                single[i, name, suffix] = single.get((i, name, suffix), 0) + amount
                total[i, name] = total.get((i, name), 0) + amount
        if all(_allowed(parts[i], name, amount) for (i, name, _), amount in single.items()) and all(
            amount <= parts[i].units.get(name, Inventory(0)).max_unit for (i, name), amount in total.items()
        ):
            yield _with_consumed(parts, total)


def _allowed(part: NodePart, name: str, amount: int) -> bool:
    return name in part.free and amount % part.units.get(name, Inventory(0)).step_size == 0


def _with_consumed(parts: list[NodePart], total: Amounts) -> Amounts:
    found = dict(total)
    for (i, name), amount in total.items():
        for above, resource, each in parts[i].consumes.get(name, ()):
            found[above, resource] = found.get((above, resource), 0) + amount * each
    return found


def _meets(parts: list[NodePart], i: int, suffix: str, pod: Request) -> bool:
    group, part, root = pod.groups[suffix], parts[i], parts[0]
    if group.forbidden & part.traits:
        return False
    speed, kind = (dict(part.properties).get(name) for name in ("speed", "kind"))
    if group.properties == SELECTORS[-2] and not (speed in (2, 3) and kind == "x"):
        return False
    if group.properties == SELECTORS[-1] and not (kind != "y" or speed == 3):
        return False
    if suffix:
        return (
            all(s & part.traits for s in group.required)
            and all(s & part.aggregates for s in group.member_of)
            and not group.not_member_of & part.aggregates
        )
    member = all(s & part.aggregates for s in group.member_of) or all(s & root.aggregates for s in group.member_of)
    return member and not group.not_member_of & (part.aggregates | root.aggregates)


def _together(
    parts: list[NodePart],
    choice: tuple[int, ...],
    asked: list[tuple[str, Mapping[str, int]]],
    pod: Request,
) -> bool:
    at = {suffix: i for i, (suffix, _) in zip(choice, asked, strict=True) if suffix}
    nameless = pod.groups.get(NAMELESS)
    if nameless is not None:
        used = [i for i, (suffix, _) in zip(choice, asked, strict=True) if suffix == ""]
        if not all(any(s & parts[i].traits for i in used) for s in nameless.required):
            return False
    for relation in pod.same_subtree:
        together = [at[s] for s in relation.together]
        if not any(all(top in ancestors(parts, i) for i in together) for top in together):
            return False
    for suffix in pod.isolated:
        if any(at[other] == at[suffix] for other in at if other != suffix):
            return False
    return True


def fits(parts: list[NodePart], pods: list[tuple[Request, int]]) -> bool:
    ways = [list({tuple(sorted(w.items())): w for w in ways_of(parts, pod)}.values()) for pod, n in pods if n]
    kinds = [kind for kind, (_, n) in enumerate(p for p in pods if p[1]) for _ in range(n)]

    def place(at: int, used: Amounts) -> bool:
        if at == len(kinds):
            return True
        for way in ways[kinds[at]]:
            after = dict(used)
            for cell, amount in way.items():
                after[cell] = after.get(cell, 0) + amount
            room = all(amount <= parts[i].free.get(name, 1 << 30) for (i, name), amount in after.items())
            if room and place(at + 1, after):
                return True
        return False

    return place(0, {})


@pytest.mark.parametrize("seed", range(8))
def test_the_solver_finds_what_fits_and_refuses_what_does_not(seed: int) -> None:
    rng = Random(seed)
    found_some = refused_some = 0
    for _ in range(60):
        parts = random_tree(rng)
        pods = [(random_pod(rng), rng.randint(0, 3)) for _ in range(rng.randint(1, 2))]
        budget = Budget(100_000)
        found = assign_on_node(NodeTree(parts), pods, budget)
        assert not budget.spent
        expected = fits(parts, pods)
        assert (found is not None) == expected, (parts, pods)
        if found is None:
            refused_some += 1
            continue
        found_some += 1
        number = {part.id: i for i, part in enumerate(parts)}
        total: Amounts = {}
        for (pod, count), given in zip(pods, found, strict=True):
            assert len(given) == count
            ways = list(ways_of(parts, pod)) if count else []
            for share in given:
                one = {(number[p], name): a for p, by in share.amounts.items() for name, a in by.items()}
                taken = _with_consumed(parts, one)
                assert taken in ways
                for cell, amount in taken.items():
                    total[cell] = total.get(cell, 0) + amount
        assert all(amount <= parts[i].free.get(name, 1 << 30) for (i, name), amount in total.items())
    assert found_some > 5 and refused_some > 5


def zones(count: int, cards: int) -> NodeTree:
    parts = [NodePart("n")]
    for z in range(count):
        at = len(parts)
        parts.append(NodePart(f"n/numa{z}", 0, frozenset([HW_NUMA_ROOT]), free={"cpu": 4}))
        parts += [NodePart(f"n/numa{z}/fpga{c}", at, free={"FPGA": 1}) for c in range(cards)]
    return NodeTree(parts)


def below_one_zone() -> Request:
    groups = {"_C": Group({"cpu": 2}), "_A": Group({"FPGA": 1})}
    return Request(groups, (SameSubtree(frozenset(groups)),))


def test_pods_are_spread_over_zones_and_the_one_too_many_is_refused() -> None:
    pod = below_one_zone()
    found = assign_on_node(zones(2, 1), [(pod, 2)], Budget(1000))
    assert found == [
        [
            PodShare({"n/numa0": {"cpu": 2}, "n/numa0/fpga0": {"FPGA": 1}}),
            PodShare({"n/numa1": {"cpu": 2}, "n/numa1/fpga0": {"FPGA": 1}}),
        ]
    ]
    assert assign_on_node(zones(2, 1), [(pod, 3)], Budget(1000)) is None


def test_a_proof_for_many_equal_pods_costs_no_factorial() -> None:
    crowd = Request({"": Group({"cpu": 3})})
    budget = Budget(20_000)
    assert assign_on_node(zones(8, 0), [(crowd, 9)], budget) is None and not budget.spent
    mixed = [(below_one_zone(), 8), (Request({"": Group({"cpu": 1})}), 17)]
    budget = Budget(20_000)
    assert assign_on_node(zones(8, 2), mixed, budget) is None and not budget.spent


def test_a_search_that_ends_early_says_so() -> None:
    budget = Budget(3)
    assert assign_on_node(zones(4, 2), [(below_one_zone(), 4)], budget) is None and budget.spent


def test_a_pod_of_one_zone_takes_all_of_it() -> None:
    tree = zones(2, 1)
    fpga = PartGroup(suffix="_A", resources={"FPGA": 1})
    shape = Shape(key="k", object="Pod/p", resources={"cpu": 3, "pods": 1}, groups=[fpga], relations=[OneZone()])
    pod = pod_request(shape, (), tree.zone_classes)
    assert assign_on_node(tree, [(pod, 2)], Budget(1000)) == [
        [
            PodShare({"n/numa0": {"cpu": 3}, "n/numa0/fpga0": {"FPGA": 1}}),
            PodShare({"n/numa1": {"cpu": 3}, "n/numa1/fpga0": {"FPGA": 1}}),
        ]
    ]
    other = Request({"": Group({"FPGA": 1})})
    assert assign_on_node(tree, [(other, 1), (pod, 2)], Budget(1000)) is None
