"""Compiles the rules of pods about each other for one cluster, and checks packings against them: anti-affinity, affinity and
topology spread, as the filters of kube-scheduler see them.

Pods come in any order and are tried again until they start, so anti-affinity and spread must hold for all of them together.
Affinity is different: a pod must find others that started before it, so the supporting pods must be able to start without it.
(Where pods can only start after others, a spread may hold at their start and not in the end. That is refused.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moorage.model.shapes import PodRule, Shape

from .budget import Budget, BudgetExceeded
from .node_filter import label_numbers, selected_by_terms, tolerated_rows
from .protocols import Amounts, Ids, Mask, Rows

#: Pods that may be the first of their series; beyond, a packing is taken for one whose pods do not all start.
MAX_FIRST_PODS = 256

#: Pods per shape and node.
Counts = NDArray[np.int64]


def sums(domains: Ids, pods: Amounts) -> Amounts:
    """The pods per domain. Nodes outside of every domain (-1) do not count."""
    inside = domains >= 0
    return np.bincount(domains[inside], pods[inside], minlength=int(domains.max(initial=-1)) + 1).astype(np.int64)


def at_nodes(per_domain: Amounts, domains: Ids) -> Amounts:
    """The value of each node's domain; 0 for nodes in none."""
    return np.append(per_domain, 0)[domains]


class Apart(NamedTuple):
    """Pods of the shape share no domain with pods of `others`; if they are among them, each has a domain to itself."""

    shape: int
    others: Mask  # by shape
    domains: Ids  # by node

    @property
    def includes_itself(self) -> bool:
        return bool(self.others[self.shape])

    def holds(self, new: Counts, total: Counts) -> bool:
        mine = sums(self.domains, total[self.shape])
        matched = sums(self.domains, total[self.others].sum(axis=0))
        added = sums(self.domains, new[self.shape] + new[self.others].sum(axis=0))
        return not ((mine > 0) & (matched > self.includes_itself) & (added > 0)).any()


class Near(NamedTuple):
    """Pods of the shape run only where a pod of `others` runs in the same domain, for each of the labels."""

    shape: int
    others: Mask
    domains: list[Ids]

    def labelled(self) -> Mask:
        """The nodes that are in a domain of each label."""
        mask: Mask = np.logical_and.reduce([domains >= 0 for domains in self.domains])
        return mask

    def found_in(self, pods: Counts) -> bool:
        """Returns whether Kubernetes finds any of the others among these pods. It ignores pods on nodes without the labels."""
        counted = np.logical_or.reduce([domains >= 0 for domains in self.domains])
        return bool(pods[self.others][:, counted].any())


class Spread(NamedTuple):
    """Limits how far the pods of `others` in a domain with a pod of the shape may exceed those of any domain: by `max_skew`.
    `domains` are those of nodes that count."""

    shape: int
    others: Mask
    domains: Ids
    max_skew: int
    zero_minimum: bool  # there are fewer domains than wanted

    def minimum(self, counts: Amounts) -> int:
        return 0 if self.zero_minimum or not counts.size else int(counts.min())

    def holds(self, new: Counts, total: Counts) -> bool:
        counts = sums(self.domains, total[self.others].sum(axis=0))
        added = sums(self.domains, new[self.shape])
        return not ((added > 0) & (counts - self.minimum(counts) > self.max_skew)).any()


@dataclass(slots=True)
class PodRules:
    """The rules of shapes on the nodes of a cluster. `fixed` are pods that stand already, `groups` the shapes whose pods are
    to be placed."""

    fixed: Counts
    groups: list[int]
    apart: list[Apart] = field(default_factory=list)
    near: list[Near] = field(default_factory=list)
    spread: list[Spread] = field(default_factory=list)

    @property
    def key(self) -> bytes:
        """Equal for equal rules."""
        parts: list[bytes] = [self.fixed.tobytes(), bytes(self.groups)]
        parts += [b"a%d" % a.shape + a.others.tobytes() + a.domains.tobytes() for a in self.apart]
        parts += [
            b"n%d" % n.shape + n.others.tobytes() + b"".join(map(np.ndarray.tobytes, n.domains)) for n in self.near
        ]
        parts += [
            b"s%d,%d,%d" % (s.shape, s.max_skew, s.zero_minimum) + s.others.tobytes() + s.domains.tobytes()
            for s in self.spread
        ]
        return b"|".join(parts)

    def after(self, placed: Counts) -> PodRules:
        """The rules once these pods stand, too."""
        return replace(self, fixed=self.fixed + placed)

    def new_pods(self, packed: Counts) -> Counts:
        """The pods of a packing by shape instead of by group."""
        new = np.zeros_like(self.fixed)
        new[self.groups] = packed
        return new

    def allows(self, packed: Counts) -> bool:
        """Returns whether a packing, by group, keeps the rules."""
        return self.holds(self.new_pods(packed))

    def holds(self, new: Counts) -> bool:
        """Returns whether the rules hold with these pods, by shape, added to those that stay."""
        total = self.fixed + new
        if not (all(a.holds(new, total) for a in self.apart) and all(s.holds(new, total) for s in self.spread)):
            return False
        return not self.near or self._all_start(total)

    def starts_free(self) -> Mask:
        """The shapes without affinity, which start whatever the others do."""
        free = np.ones(len(self.fixed), np.bool_)
        free[[near.shape for near in self.near]] = False
        return free

    def _all_start(self, total: Counts) -> bool:
        """Returns whether all pods with affinity start, whatever the order."""
        started = np.where(self.starts_free()[:, None], total, self.fixed)
        return self._rest_starts(total, started, Budget(MAX_FIRST_PODS))

    def _rest_starts(self, total: Counts, started: Counts, budget: Budget) -> bool:
        """Starts what is supported by pods that started, again and again. Then Kubernetes lets the first pod of a series
        start that is near itself; with whichever it begins, the others must follow."""
        progress = True
        while progress:
            progress = False
            for near in self.near:
                able = (total[near.shape] > started[near.shape]) & supported(near, started)
                if able.any():
                    started[near.shape, able] = total[near.shape, able]
                    progress = True
        if (started == total).all():
            return True
        firsts = [
            (near.shape, node)
            for near in self.near
            if near.others[near.shape] and not near.found_in(started)
            for node in np.flatnonzero((total[near.shape] > 0) & near.labelled()).tolist()
        ]
        try:
            budget.spend(len(firsts))
        except BudgetExceeded:
            return False
        return bool(firsts) and all(self._rest_starts(total, _with_pod(started, *first), budget) for first in firsts)


def _with_pod(started: Counts, shape: int, node: int) -> Counts:
    started = started.copy()
    started[shape, node] += 1
    return started


def supported(near: Near, started: Counts) -> Mask:
    """The nodes where a pod of the shape finds one of `others` in each of its domains."""
    pods = started[near.others].sum(axis=0)
    able = np.ones(len(pods), np.bool_)
    for domains in near.domains:
        able &= at_nodes(sums(domains, pods), domains) > 0
    return able


class ExclusiveNodes(NamedTuple):
    """Anti-affinity by nodes as a resource: of `free` units on each node, a pod of each shape takes `needs`."""

    free: Amounts
    needs: Amounts


def compile_rules(
    rows: Rows, where: Ids, shapes: Sequence[Shape], fixed: Counts, groups: list[int], *, as_resources: bool = True
) -> tuple[PodRules, list[ExclusiveNodes]]:
    """Returns the rules of these shapes, apart from those of them that a resource can express."""
    rules = PodRules(fixed, groups)
    exclusive: list[ExclusiveNodes] = []
    numbers: dict[str, Ids] = {}

    def domains_of(key: str) -> Ids:
        if key not in numbers:
            numbers[key] = label_numbers(rows, key, where)
        return numbers[key]

    for number, shape in enumerate(shapes):
        near: dict[str, list[Ids]] = {}
        for rule in shape.rules:
            if not rule.pods:
                continue  # it selects no pods, and only asks for the label
            others = np.array([rule.pods in other.marks for other in shapes], np.bool_)
            if rule.kind == "apart":
                apart = Apart(number, others, domains_of(rule.key))
                by_node = as_resources and apart.includes_itself
                if by_node and np.bincount(apart.domains[apart.domains >= 0]).max(initial=0) <= 1:
                    exclusive.append(_exclusive(apart, shapes, fixed))
                else:
                    rules.apart.append(apart)
            elif rule.kind == "near":
                near.setdefault(rule.pods, []).append(domains_of(rule.key))
            elif not (shape.per_node and rule.honor_affinity):  # pods of a DaemonSet count only their own node
                rules.spread.append(_spread(rows, where, number, shape, rule, others))
        rules.near += [
            Near(number, np.array([mark in other.marks for other in shapes], np.bool_), domains)
            for mark, domains in near.items()
        ]
    return rules, exclusive


def _exclusive(apart: Apart, shapes: Sequence[Shape], fixed: Counts) -> ExclusiveNodes:
    """Each node has more units than there are pods. The shape's pods take all, pods of the others one."""
    all_units = int(fixed.sum()) + sum(shape.count for shape in shapes) + len(shapes) + 1
    needs = apart.others.astype(np.int64)
    needs[apart.shape] = all_units
    free = np.where(apart.domains >= 0, all_units, all_units * all_units) - needs @ fixed
    return ExclusiveNodes(free, needs)


def counted_rows(rows: Rows, shape: Shape, rule: PodRule, where: Ids | slice) -> Mask:
    """The rows that count for a topology spread, with the shape's other labels of spreads. A node need not be usable."""
    ids = np.arange(rows.n)[where] if isinstance(where, slice) else where
    counted = rows.cluster[ids] >= 0
    for other in shape.rules:
        if other.kind == "spread":
            counted &= label_numbers(rows, other.key, ids) >= 0
    if rule.honor_affinity and (selected := selected_by_terms(rows, shape.terms, ids)) is not None:
        counted &= selected
    if rule.honor_taints:
        tolerated = tolerated_rows(rows, shape.tolerations, ids)
        # What makes a node unusable is a taint in Kubernetes.
        counted &= rows.usable[ids] if tolerated is None else tolerated & rows.usable[ids]
    return counted


def _spread(rows: Rows, where: Ids, number: int, shape: Shape, rule: PodRule, others: Mask) -> Spread:
    counted = counted_rows(rows, shape, rule, where)
    values = label_numbers(rows, rule.key, where)
    domains = np.full(len(where), -1, np.intp)
    known, domains[counted] = np.unique(values[counted], return_inverse=True)
    return Spread(number, others, domains, rule.max_skew, len(known) < rule.min_domains)
