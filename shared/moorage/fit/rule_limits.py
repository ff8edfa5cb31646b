"""Bounds how many pods of one object a cluster takes under the object's rules about its own pods. Over the whole fleet at
once; exact for an object with one rule, necessary for several."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from moorage.model.shapes import PodRule, Shape

from .node_filter import label_numbers
from .pod_rules import counted_rows
from .protocols import Amounts, Ids, Mask, Rows

#: The reason codes by kind of rule.
CODES = {"apart": "PodAntiAffinity", "near": "PodAffinity", "spread": "TopologySpread"}


def own_rules(shape: Shape) -> list[PodRule]:
    """The rules of pods of the object about each other. Those that pods of other objects can help to keep are left out."""
    about_itself = [rule for rule in shape.rules if rule.pods in shape.marks or (rule.kind == "near" and rule.pods)]
    rules = [rule for rule in about_itself if rule.kind == "apart" or not rule.shared]
    if shape.per_node:  # a pod of a DaemonSet selects its node, so for its spread no other counts
        rules = [rule for rule in rules if rule.kind != "spread" or not rule.honor_affinity]
    return rules


def rule_limits(rows: Rows, shape: Shape, ids: Ids, pods: Amounts) -> Iterator[tuple[str, Amounts]]:
    """Yields, for each of the object's own rules, its reason code and the most pods per cluster. `ids` are all rows of some
    clusters, `pods` what each of them holds."""
    inside = rows.cluster[ids] >= 0
    ids, pods = ids[inside], pods[inside]
    for rule in own_rules(shape):
        numbers = label_numbers(rows, rule.key, ids)
        if rule.kind == "apart":
            alone = _per_cluster(rows, ids, np.where(numbers < 0, pods, 0))
            domains = _Domains(rows, ids, numbers, numbers >= 0)
            limit = alone + domains.per_cluster(np.minimum(domains.sums(pods), 1))
        elif rule.kind == "near":
            domains = _Domains(rows, ids, numbers, numbers >= 0)
            limit = np.zeros(rows.size, np.int64)
            if rule.pods in shape.marks:  # else no pod at all is one that it may be near to
                np.maximum.at(limit, domains.clusters, domains.sums(pods))
        else:
            domains = _Domains(rows, ids, numbers, counted_rows(rows, shape, rule, ids))
            limit = _spread_limit(rows, rule, domains, domains.sums(pods))
        yield CODES[rule.kind], limit


def within_rules(rows: Rows, shape: Shape, ids: Ids, pods: Amounts, wanted: Amounts | int) -> Mask:
    """The clusters whose rules leave room for so many pods of the object."""
    fits = np.ones(rows.size, np.bool_)
    for _, limit in rule_limits(rows, shape, ids, pods):
        fits &= limit >= wanted
    return fits


def _per_cluster(rows: Rows, ids: Ids, values: Amounts) -> Amounts:
    return np.bincount(rows.cluster[ids], values, minlength=rows.size).astype(np.int64)


def _spread_limit(rows: Rows, rule: PodRule, domains: _Domains, hold: Amounts) -> Amounts:
    """Each domain takes what it holds, up to `max_skew` more than the one that holds least."""
    least = np.full(rows.size, np.iinfo(np.int64).max)
    np.minimum.at(least, domains.clusters, hold)
    few = np.bincount(domains.clusters, minlength=rows.size) < rule.min_domains
    least[few] = 0
    return domains.per_cluster(np.minimum(hold, least[domains.clusters] + rule.max_skew))


class _Domains:
    """The domains of all clusters: rows of `ids` in `counted` with equal numbers in one cluster."""

    def __init__(self, rows: Rows, ids: Ids, numbers: NDArray[np.intp], counted: Mask) -> None:
        self._size, self._counted = rows.size, counted
        width = int(numbers.max(initial=0)) + 1
        keys = rows.cluster[ids[counted]].astype(np.int64) * width + numbers[counted]
        known, self._of = np.unique(keys, return_inverse=True)
        self.clusters: NDArray[np.int64] = known // width

    def sums(self, pods: Amounts) -> Amounts:
        """The pods per domain."""
        return np.bincount(self._of, pods[self._counted], minlength=len(self.clusters)).astype(np.int64)

    def per_cluster(self, values: Amounts) -> Amounts:
        return np.bincount(self.clusters, values, minlength=self._size).astype(np.int64)
