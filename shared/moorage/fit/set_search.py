"""Packs different pods onto nodes that they fill almost completely, by choosing a set of pods for each node.

What all nodes together have to spare bounds what each of them may leave free, so on full nodes few sets qualify. They are listed
for each node. A beam search chooses sets for the nodes with the fewest; a depth-first search chooses the rest for each state of
the beam. Sets that leave little free come first, and of these the ones with few, large pods, because small ones fit later.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .packing import PackingProblem

#: Sets are bits of one word.
MAX_PODS = 64
#: Partial sets that are listed for a node before the list is given up: it is made once other nodes have their pods. Long lists are
#: worth their time where less than this part of a resource is to spare.
MAX_PARTIAL_SETS, MAX_TIGHT_SETS, TIGHT = 8000, 20_000, 0.03
#: States of the beam, pairs of states and sets that are looked at for one node, and nodes that are left for the depth-first search.
BEAM, MAX_PAIRS, LEFT = 64, 150_000, 3
#: Nodes of the tree that the depth-first search visits for each state, and sets that it tries at each of them.
MAX_VISITS, TRIES = 30, 6
#: What one more pod in a set counts, in the first rounds; later rounds draw it. A node has about a third to leave free.
POD_COSTS, MOST_POD_COST = (0.03, 0.1, 0.0), 0.12

Bits = NDArray[np.uint64]
Amounts = NDArray[np.int64]
Floats = NDArray[np.float64]
_ONE = np.uint64(1)


class _Sets(NamedTuple):
    """Sets of pods for one node, and what each leaves free there."""

    pods: Bits
    waste: Amounts

    def within(self, used: np.uint64, spare: Amounts) -> _Sets:
        """Returns the sets without used pods that leave no more free than there is to spare."""
        keep = ((self.pods & used) == 0) & (self.waste <= spare).all(axis=1)
        return _Sets(self.pods[keep], self.waste[keep])

    def costs(self, spare: Amounts, pod_cost: float) -> Floats:
        waste: Floats = (self.waste / np.maximum(spare, 1)).sum(axis=1)
        return waste + pod_cost * np.bitwise_count(self.pods)


class _Beam(NamedTuple):
    """Partial choices: the pods that are used, what is left to spare, the cost so far, and the sets by node."""

    used: Bits
    spare: Amounts
    cost: Floats
    chosen: Bits  # state by node; 0: none yet


#: Per node, the pods that it takes.
Chosen = dict[int, np.uint64]


class _OutOfVisits(Exception):
    pass


def is_tight(problem: PackingProblem) -> bool:
    """Tells whether little of some resource is to spare, so that few sets of pods fill a node."""
    free = np.maximum(problem.free, 0).sum(axis=0)
    return bool((free - problem.counts @ problem.needs < TIGHT * free).any())


class SetSearch:
    """Searches in turns: each call of `run` goes on where the one before ended."""

    def __init__(self, problem: PackingProblem) -> None:
        group = np.repeat(np.arange(len(problem.counts)), problem.counts)
        self.need, self.feasible = problem.needs[group], problem.feasible[group]
        self.free: Amounts = np.maximum(problem.free, 0)
        self.bits = np.arange(len(group), dtype=np.uint64)
        self.spare: Amounts = self.free.sum(axis=0) - self.need.sum(axis=0)
        self.most_partial = MAX_TIGHT_SETS if is_tight(problem) else MAX_PARTIAL_SETS
        self.hopeless = not 0 < len(group) <= MAX_PODS or bool((self.spare < 0).any())
        self.every: dict[int, _Sets | None] = {}  # by node: all its sets, None where there are too many
        self.random = np.random.default_rng(0)
        self.rounds = 0
        self.deadline = 0.0
        self.visits = 0
        self.pod_cost = 0.0

    def run(self, seconds: float) -> NDArray[np.intp] | None:
        """Returns for each pod its node; None if nothing is found in this time, which proves nothing."""
        self.deadline = time.perf_counter() + seconds
        while not self.hopeless and time.perf_counter() < self.deadline:
            chosen = self._round()
            if chosen is not None:
                return self._placement(chosen)
        return None

    def _placement(self, chosen: Chosen) -> NDArray[np.intp] | None:
        placement = np.full(len(self.bits), -1)
        for node, pods in chosen.items():
            placement[(pods >> self.bits & _ONE).astype(np.bool_)] = node
        return placement if (placement >= 0).all() else None

    def _round(self) -> Chosen | None:
        """Chooses sets with another order of the nodes, or another cost of a pod, than the rounds before."""
        nodes = range(len(self.free))
        if not self.every:
            self.every = {node: self._list(node, np.uint64(0), self.spare) for node in nodes}
        lists = {node: found for node, found in self.every.items() if found is not None}
        if len(lists) < len(nodes) // 4 or not all(len(found.pods) for found in lists.values()):
            self.hopeless = True
            return None
        sizes = np.array([len(lists[node].pods) if node in lists else np.inf for node in nodes])
        if self.rounds >= len(POD_COSTS):
            self.pod_cost = self.random.random() * MOST_POD_COST
        else:
            self.pod_cost = POD_COSTS[self.rounds]
        # Another order of the nodes leads to other states.
        order = (sizes * (self.random.uniform(0.5, 2, len(sizes)) if self.rounds else 1)).argsort().tolist()
        self.rounds += 1
        first = [node for node in order[: max(0, len(order) - LEFT)] if node in lists]
        return self._complete(self._beam(first, lists))

    def _list(self, node: int, used: np.uint64, spare: Amounts) -> _Sets | None:
        """Returns the sets of unused pods for a node; None if there are too many."""
        free = self.free[node]
        unused = (used >> self.bits & _ONE) == 0
        pods = np.flatnonzero(unused & self.feasible[:, node] & (self.need <= free).all(axis=1))
        need, bit = self.need[pods], _ONE << self.bits[pods]
        # What the pods from each on have in sum: a set that still leaves too much free with all of them is given up.
        rest = np.concatenate([need[::-1].cumsum(axis=0)[::-1], np.zeros((1, need.shape[1]), np.int64)])
        load, last, mask = np.zeros((1, need.shape[1]), np.int64), np.array([-1]), np.zeros(1, np.uint64)
        found: list[_Sets] = []
        listed = 0
        while len(load):
            listed += len(load)
            if listed > self.most_partial:
                return None
            waste = free - load
            full = (waste <= spare).all(axis=1)
            found.append(_Sets(mask[full], waste[full]))
            live = (waste - rest[last + 1] <= spare).all(axis=1)
            load, last, mask = load[live], last[live], mask[live]
            before, added = (np.arange(len(pods)) > last[:, None]).nonzero()
            grown = load[before] + need[added]
            fits = (grown <= free).all(axis=1)
            load, last, mask = grown[fits], added[fits], (mask[before] | bit[added])[fits]
        return _Sets(np.concatenate([s.pods for s in found]), np.concatenate([s.waste for s in found]))

    def _beam(self, order: list[int], lists: dict[int, _Sets]) -> _Beam:
        """Chooses sets for these nodes, one after the other, and keeps the best states."""
        beam = _Beam(np.zeros(1, np.uint64), self.spare[None], np.zeros(1), np.zeros((1, len(self.free)), np.uint64))
        for node in order:
            sets = lists[node]
            costs = sets.costs(self.spare, self.pod_cost)
            most = MAX_PAIRS // max(1, len(beam.used))
            if len(costs) > most:
                best = costs.argpartition(most)[:most]
                sets, costs = _Sets(sets.pods[best], sets.waste[best]), costs[best]
            possible = (sets.pods & beam.used[:, None]) == 0
            for resource in range(self.spare.size):
                possible &= sets.waste[:, resource] <= beam.spare[:, resource, None]
            state, number = possible.nonzero()
            cost = beam.cost[state] + costs[number]
            if len(cost) > BEAM:
                best = cost.argpartition(BEAM)[:BEAM]
                state, number, cost = state[best], number[best], cost[best]
            used = beam.used[state] | sets.pods[number]
            used, different = np.unique(used, return_index=True)
            state, number = state[different], number[different]
            chosen = beam.chosen[state]
            chosen[:, node] = sets.pods[number]
            beam = _Beam(used, beam.spare[state] - sets.waste[number], cost[different], chosen)
        return beam

    def _complete(self, beam: _Beam) -> Chosen | None:
        """Tries to choose sets for the nodes that are left, from the cheapest state on."""
        for state in beam.cost.argsort().tolist():
            if time.perf_counter() > self.deadline:
                return None
            taken: Chosen = {node: pods for node, pods in enumerate(beam.chosen[state]) if pods}
            # A node may be left empty by choice; trying it again then costs little.
            left = {node: sets for node, sets in self.every.items() if node not in taken}
            self.visits = 0
            try:
                rest = self._choose(left, beam.used[state], beam.spare[state])
            except _OutOfVisits:
                continue
            if rest is not None:
                return taken | rest
        return None

    def _choose(self, left: dict[int, _Sets | None], used: np.uint64, spare: Amounts) -> Chosen | None:
        """Chooses sets for these nodes depth first, for the node with the fewest sets first."""
        self.visits += 1
        if self.visits > MAX_VISITS or time.perf_counter() > self.deadline:
            raise _OutOfVisits
        if not left:
            return {}
        current = {n: None if sets is None else sets.within(used, spare) for n, sets in left.items()}
        known = {n: sets for n, sets in current.items() if sets is not None}
        if not known:
            listed = {n: self._list(n, used, spare) for n in left}
            known = {n: sets for n, sets in listed.items() if sets is not None}
            current |= known
        if not known or not all(len(sets.pods) for sets in known.values()):
            return None
        node, sets = min(known.items(), key=lambda item: len(item[1].pods))
        rest = {n: s for n, s in current.items() if n != node}
        for number in sets.costs(spare, self.pod_cost).argsort()[:TRIES].tolist():
            pods = sets.pods[number]
            found = self._choose(rest, used | pods, spare - sets.waste[number])
            if found is not None:
                return {**found, node: pods}
        return None
