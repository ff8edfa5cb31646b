"""Generates small random fleets and shapes, and enumerates all placements: the reference for the fit package."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from moorage.fit import Rows
from moorage.fit.packing import PackingProblem
from moorage.fleet import Fleet
from moorage.model.reports import Taint
from moorage.model.shapes import OptionalNeed, Requirement, Shape, Toleration
from moorage.model.slots import Slot
from moorage.selectors import term_matches, tolerated

from .fleets import node

GPU = "x/gpu"
TAINT = Taint(key="t", effect="NoSchedule")


def shape(object_: str = "Deployment/a", **fields: Any) -> Shape:
    fields["resources"] = {"pods": 1, **fields.get("resources", {})}
    made = Shape(key="", object=object_, **fields)
    made.key = msgspec.json.encode(made).decode()
    return made


zones = st.sampled_from([{}, {"zone": "a"}, {"zone": "b"}])
nodes = st.builds(
    lambda labels, tainted, ready, cpu, memory, pods, gpu: node(
        labels=labels,
        taints=[TAINT] if tainted else [],
        ready=ready,
        cpu=str(cpu),
        memory=str(memory),
        pods=str(pods),
        resources={GPU: str(gpu)} if gpu else {},
    ),
    zones,
    st.sampled_from([False, False, False, True]),
    st.sampled_from([True, True, True, False]),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(0, 4),
    st.integers(0, 2),
)
clusters = st.lists(nodes, max_size=3)
amounts = st.builds(
    lambda cpu, memory, gpu: {"cpu": 1000 * cpu, "memory": memory, GPU: gpu},
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from([0, 0, 0, 1]),
)
in_zone = st.sampled_from(["a", "b"]).map(lambda z: Requirement(key="zone", operator="In", values=(z,)))
by_name = st.builds(
    Requirement,
    key=st.sampled_from(["metadata.name", "kubernetes.io/hostname"]),
    operator=st.sampled_from(["In", "NotIn", "Exists", "Gt"]),
    values=st.sampled_from([("n-0",), ("n-1", "n-2"), ("1",)]),
)
terms = st.lists(st.lists(in_zone | by_name, min_size=1, max_size=2), max_size=2)
optional = st.builds(
    OptionalNeed,
    consumer=st.just("c"),
    name=st.just("o"),
    weight=st.integers(1, 10),
    resources=st.sampled_from([{}, {"cpu": 1000}, {GPU: 1}]),
    label=st.sampled_from([None, None, ("zone", "a"), ("kubernetes.io/hostname", "n-0")]),
)
shapes = st.builds(
    shape,
    resources=amounts,
    count=st.integers(0, 3),
    per_node=st.sampled_from([False, False, False, True]),
    terms=terms,
    tolerations=st.sampled_from([[], [Toleration(operator="Exists")]]),
    optional=st.lists(optional, max_size=3),
)


# The reference: every row and pod by itself, in plain Python.


def labels_of(rows: Rows, row: int) -> dict[str, str]:
    labels = {"metadata.name": rows.node_name(row), **rows.label_sets[rows.labelset[row]]}
    if rows.host_label[row]:
        labels["kubernetes.io/hostname"] = rows.node_name(row)
    return labels


def may(rows: Rows, row: int, s: Shape) -> bool:
    labels = labels_of(rows, row)
    return (
        bool(rows.usable[row])
        and (not s.terms or any(term_matches(term, labels) for term in s.terms))
        and tolerated(rows.taint_sets[rows.taintset[row]], s.tolerations)
    )


def free_of(rows: Rows, row: int, resource: str) -> int:
    free = rows.free(resource)
    return 0 if free is None else int(free[row])


def placements(rows: Rows, where: Sequence[int], s: Shape, granted: Sequence[int]) -> list[tuple[int, ...]]:
    """Yields every assignment of the shape's pods to rows that labels and taints allow; ignores resources."""
    able = [row for row in where if may(rows, row, s)]
    wanted = [o.label for i in granted if (o := s.optional[i]).label]
    good = [row for row in able if all(labels_of(rows, row).get(k) == v for k, v in wanted)]
    if s.per_node:
        return [tuple(able)] if able and len(good) == len(able) else []
    return list(itertools.combinations_with_replacement(good, s.count))


def need_of(s: Shape, granted: Sequence[int]) -> dict[str, int]:
    need = dict(s.resources)
    for i in granted:
        for resource, more in s.optional[i].resources.items():
            need[resource] = need.get(resource, 0) + more
    return need


def holds(
    rows: Rows, group: Sequence[Shape], granted: Sequence[Sequence[int]], chosen: Sequence[Sequence[int]]
) -> bool:
    used: dict[tuple[int, str], int] = {}
    for s, which, places in zip(group, granted, chosen, strict=True):
        for row in places:
            for resource, need in need_of(s, which).items():
                if need:
                    used[row, resource] = used.get((row, resource), 0) + need
    return all(amount <= free_of(rows, row, resource) for (row, resource), amount in used.items())


def exists(rows: Rows, where: Sequence[int], group: Sequence[Shape], granted: Sequence[Sequence[int]]) -> bool:
    """Returns whether all pods of the group can be placed; tries every placement, shape by shape."""
    ways = [placements(rows, where, s, which) for s, which in zip(group, granted, strict=True)]

    def placed(chosen: list[tuple[int, ...]]) -> bool:
        done = len(chosen)
        if not holds(rows, group[:done], granted[:done], chosen):
            return False
        return done == len(group) or any(placed([*chosen, way]) for way in ways[done])

    return placed([])


def rows_in(fleet: Fleet, cid: int) -> list[int]:
    return [int(row) for row in fleet.rows_of(cid)]


def planted_packing(rng: np.random.Generator, pods: int, nodes: int, resources: int, spare: float) -> PackingProblem:
    """Returns a problem built around a packing: different pods use up all nodes but for the part `spare`."""
    node = np.concatenate([np.arange(nodes), rng.integers(0, nodes, pods - nodes)])
    needs, free = np.zeros((pods, resources), np.int64), np.zeros((nodes, resources), np.int64)
    for number in range(nodes):
        there = np.flatnonzero(node == number)
        for resource in range(resources):
            size = int(rng.choice([80, 160, 320, 640]))
            needs[there, resource] = 100 * np.maximum(1, rng.dirichlet(np.ones(len(there))) * size).astype(np.int64)
            free[number, resource] = np.ceil(needs[there, resource].sum() * (1 + spare))
    return PackingProblem(free, needs[rng.permutation(pods)], [1] * pods, np.ones((pods, nodes), np.bool_))


def taken_together(claims: Sequence[Sequence[Slot]], pods: Sequence[Mapping[str, int]], node: str, name: str) -> int:
    """Returns what the claims of one object, the newest last, take of a resource on a node beyond their pods there, one pod at
    a time. `pods`: by claim, live pods by node. Pods of older claims that have no slot there are followed like slots."""
    sizes = [
        [s.resources.get(name, 0) for s in slots for _ in range(s.count) if s.node == node and (number or not s.surge)]
        for number, slots in enumerate(claims)
    ]
    running = 0
    for number, (slots, mine, live) in enumerate(zip(claims, sizes, pods, strict=True), 1):
        without = [slots[0].resources.get(name, 0)] * max(0, live.get(node, 0) - len(mine)) if slots else []
        running += sum([*mine, *without][: live.get(node, 0)])
        if number < len(claims):
            mine += without
    most = max(sum(mine) for mine in sizes)
    pairs = sum(
        max(size, *(old[k] if k < len(old) else 0 for old in [*sizes[:-1], []])) for k, size in enumerate(sizes[-1])
    )
    return max(0, max(most, pairs) - running)
