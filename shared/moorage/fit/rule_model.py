"""Adds the rules of pods about each other to the integer program of a packing: a variable per group and node, and binary ones
for domains that have some pods or none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .packing import PackingProblem
from .pod_rules import Apart, Near, PodRules, Spread, sums
from .protocols import Ids, Mask

if TYPE_CHECKING:
    import highspy

Pairs = NDArray[np.intp]
_MANY = 1e30


class RuleModel:
    """`pairs` has group and node of each variable that the solver has already."""

    def __init__(self, solver: highspy.Highs, problem: PackingProblem, pairs: Pairs) -> None:
        assert problem.rules is not None
        self._solver: Any = solver
        self._rules: PodRules = problem.rules
        self._shape = np.array(problem.rules.groups, np.intp)[pairs[:, 0]]
        self._node = pairs[:, 1]
        self._pods = int(sum(problem.counts))

    def add(self) -> None:
        for apart in self._rules.apart:
            self._add_apart(apart)
        for spread in self._rules.spread:
            self._add_spread(spread)
        for near in self._rules.near:
            self._add_near(near)

    def _variable(self, upper: float, integral: bool = True) -> int:
        import highspy

        number: int = self._solver.getNumCol()
        self._solver.addVar(0.0, upper)
        if integral:
            self._solver.changeColIntegrality(number, highspy.HighsVarType.kInteger)
        return number

    def _row(self, lower: float, upper: float, *terms: tuple[Iterable[int], float]) -> None:
        columns = [column for chosen, _ in terms for column in chosen]
        values = [value for chosen, value in terms for _ in chosen]
        if columns:
            self._solver.addRow(lower, upper, len(columns), np.array(columns, np.int32), np.array(values, np.float64))

    def _columns(self, shapes: Mask, domains: Ids, domain: int) -> list[int]:
        """The variables of these shapes on the nodes of a domain."""
        found: list[int] = np.flatnonzero(shapes[self._shape] & (domains[self._node] == domain)).tolist()
        return found

    def _only(self, shape: int) -> Mask:
        mask: Mask = np.arange(len(self._rules.fixed)) == shape
        return mask

    def _add_apart(self, apart: Apart) -> None:
        mine, itself = self._only(apart.shape), apart.includes_itself
        others = apart.others & ~mine
        fixed_mine = sums(apart.domains, self._rules.fixed[apart.shape])
        fixed_others = sums(apart.domains, self._rules.fixed[others].sum(axis=0))
        for domain in range(len(fixed_mine)):
            here, there = self._columns(mine, apart.domains, domain), self._columns(others, apart.domains, domain)
            room = 1 if itself else self._pods
            if fixed_others[domain] or (itself and fixed_mine[domain]):
                room = 0
            self._row(0, room, (here, 1))
            if fixed_mine[domain]:
                self._row(0, 0, (there, 1))
            elif here and there and room:
                taken = self._variable(1)
                self._row(-_MANY, 0, (here, 1), ([taken], -room))
                self._row(-_MANY, self._pods, (there, 1), ([taken], self._pods))

    def _add_spread(self, spread: Spread) -> None:
        mine = self._only(spread.shape)
        fixed = sums(spread.domains, self._rules.fixed[spread.others].sum(axis=0))
        most = self._pods + int(fixed.max(initial=0))
        minimum = [] if spread.zero_minimum else [self._variable(most, integral=False)]
        for domain, pods in enumerate(fixed.tolist()):
            matched = self._columns(spread.others, spread.domains, domain)
            if minimum:
                self._row(-pods, _MANY, (matched, 1), (minimum, -1))
            here = self._columns(mine, spread.domains, domain)
            if here:
                used = self._variable(1)
                self._row(-_MANY, 0, (here, 1), ([used], -self._pods))
                self._row(-_MANY, spread.max_skew - pods + most, (matched, 1), (minimum, -1), ([used], most))

    def _add_near(self, near: Near) -> None:
        """Each domain with pods of the shape has others that support them; or the shape is among the others, and all of them
        that start without affinity are in one domain with it. Supporters that cannot start themselves are not told apart:
        the packing is checked."""
        mine = self._only(near.shape)
        fixed = self._rules.fixed[near.others].sum(axis=0)
        alone = near.others[near.shape] and not near.found_in(self._rules.fixed)
        free = near.others & self._rules.starts_free()
        together = [self._variable(1)] if alone else []
        for domains in near.domains:
            there = sums(domains, fixed)
            homes = []
            for domain, pods in enumerate(there.tolist()):
                here = self._columns(mine, domains, domain)
                if here and not pods:
                    supporters = self._columns(near.others & ~mine, domains, domain)
                    used = self._variable(1)
                    self._row(-_MANY, 0, (here, 1), ([used], -self._pods))
                    self._row(-_MANY, 0, ([used], 1), (supporters, -1), (together, -1))
                if together and (matched := self._columns(free, domains, domain)):
                    home = self._variable(1)
                    homes.append(home)
                    self._row(-_MANY, self._pods, (matched, 1), ([home], -self._pods), (together, self._pods))
            if together:
                self._row(-_MANY, 1, (homes, 1))
