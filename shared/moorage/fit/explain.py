"""Explains, with amounts, why a shape does not fit: for each cluster the first filter or need that rejects it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from moorage.model.machine_slots import machine_of
from moorage.model.shapes import Requirement, Shape
from moorage.parsing import format_amount
from moorage.podspec import is_host_port, node_amount, port_text

from .asked_parts import asks_parts
from .cluster_fit import pods_inside, pods_per_row, rows_of_clusters, unsupported_reason
from .node_filter import matching_labels, selected_by_terms, tolerated_rows, with_rule_labels
from .protocols import Amounts, Ids, Mask, Rows
from .rule_limits import own_rules, rule_limits


@dataclass(frozen=True, slots=True)
class Rejection:
    """A reason that rejects these clusters. Amounts are in the units of shapes; for CapacityShort they count pods, for
    labels they are 0."""

    code: str
    clusters: Mask
    resource: str = ""
    needed: int = 0
    best: int = 0  # the most that one node of these clusters has free
    unusable: int = 0  # as much, if it suffices, of nodes that are not ready, unschedulable or have a taint
    label: str = ""  # "key=value", or the requirement as text
    message: str = ""


def term_text(term: Iterable[Requirement]) -> str:
    parts = []
    for r in term:
        if r.operator == "In" and len(r.values) == 1:
            parts.append(f"{r.key}={r.values[0]}")
        else:
            parts.append(" ".join(filter(None, (r.key, r.operator, ",".join(r.values)))))
    return ", ".join(parts)


class _Unexplained:
    """The clusters not explained yet, and their rows that no filter has rejected yet."""

    def __init__(self, rows: Rows, clusters: Mask) -> None:
        self.rows = rows
        self.clusters = clusters.copy()
        at = rows.cluster[: rows.n]
        self.ids: Ids = np.flatnonzero((at >= 0) & self.clusters[at])
        self.unusable: Ids = self.ids[:0]  # that no other filter rejected

    def clusters_of(self, ids: Ids) -> Mask:
        """Returns the clusters that have any of these rows."""
        mask = np.zeros(self.rows.size, np.bool_)
        mask[self.rows.cluster[ids]] = True
        return mask

    def settle(self, rejected: Mask) -> Mask:
        """Removes the rejected clusters and their rows, and returns those that were not explained before."""
        settled = self.clusters & rejected
        self.clusters &= ~settled
        self.ids = self.ids[~settled[self.rows.cluster[self.ids]]]
        return settled


class Shortage(NamedTuple):
    """The amount of a resource that is short. Of host ports the amounts count pods, and the nodes where the port is free."""

    resource: str
    needed: int
    free: int

    def reason_fields(self) -> dict[str, str]:
        """Returns the shortage as fields of a reason."""
        return {
            "need": port_text(self.resource) if is_host_port(self.resource) else self.resource,
            "needed": format_amount(self.resource, self.needed),
            "free": format_amount(self.resource, self.free),
        }

    @property
    def caveat(self) -> str:
        """Ends a sentence with the amounts: where the sum suffices, its distribution over the nodes does not."""
        return ", but not on its nodes as they are" if self.free >= self.needed else ""


def largest_shortage(rows: Rows, shapes: Iterable[Shape], clusters: Mask) -> Shortage | None:
    """Finds the resource with the largest ratio of demand (of all these pods together) to supply (the most that one of
    these clusters has free)."""
    demand: dict[str, int] = {}
    for shape in shapes:
        for resource, need in () if shape.per_node else shape.resources.items():
            demand[resource] = demand.get(resource, 0) + need * shape.count
    ids = rows_of_clusters(rows, np.flatnonzero(clusters))
    ids = ids[rows.usable[ids]]
    shortages: list[Shortage] = []
    for resource, needed in demand.items():
        free = rows.free(resource)
        if needed > 0 and free is not None and len(ids):
            unit = node_amount(resource) if is_host_port(resource) else 1
            needed = -(-needed // unit)
            sums = np.bincount(rows.cluster[ids], np.maximum(free[ids], 0) // unit, minlength=rows.size)
            shortages.append(Shortage(resource, needed, int(sums[clusters].max())))
    return max(shortages, key=lambda shortage: shortage.needed / max(shortage.free, 1), default=None)


def explain(rows: Rows, shape: Shape, clusters: Mask) -> list[Rejection]:
    """Returns the first reason found for each of `clusters`, which all have nodes and do not fit the shape, grouped by
    reason."""
    reason = unsupported_reason(shape)
    if reason:
        return [Rejection("Unsupported", clusters, message=reason)]
    unexplained = _Unexplained(rows, clusters)
    rejections = [
        *_missing_labels(rows, shape, unexplained),
        *_unusable_nodes(rows, shape, unexplained),
        *_resources_short(rows, shape, unexplained),
    ]
    if not shape.per_node:
        rejections += _capacity_short(rows, shape, unexplained)
    if own_rules(shape):
        rejections += _rules_short(rows, shape, unexplained)
    if asks_parts(shape, rows):
        rejections.append(_parts_short(rows, shape, unexplained))
    return [rejection for rejection in rejections if rejection.clusters.any()]


def _missing_labels(rows: Rows, shape: Shape, unexplained: _Unexplained) -> list[Rejection]:
    """Returns the clusters where no node carries the labels, whatever else rejects its nodes."""
    rejections = []
    if len(shape.terms) == 1:  # with a single term each requirement can be blamed by itself
        for requirement in shape.terms[0]:
            mask = matching_labels(rows, (requirement,), unexplained.ids)
            if mask is not None:
                lacking = unexplained.settle(
                    ~unexplained.clusters_of(unexplained.ids[mask]) & unexplained.clusters_of(unexplained.ids)
                )
                rejections.append(Rejection("LabelMissing", lacking, label=term_text((requirement,))))
    mask = selected_by_terms(rows, shape.terms, unexplained.ids)
    if mask is not None:
        lacking = unexplained.settle(
            ~unexplained.clusters_of(unexplained.ids[mask]) & unexplained.clusters_of(unexplained.ids)
        )
        label = " or ".join(term_text(term) for term in shape.terms)
        rejections.append(Rejection("LabelMissing", lacking, label=label, message="no node carries all of these"))
        mask = selected_by_terms(rows, shape.terms, unexplained.ids)
        unexplained.ids = unexplained.ids if mask is None else unexplained.ids[mask]
    mask = with_rule_labels(rows, shape, unexplained.ids)
    if mask is not None:
        unexplained.ids = unexplained.ids[mask]
        label = ", ".join(dict.fromkeys(rule.key for rule in shape.rules if rule.kind != "apart"))
        message = "no node carries all labels that affinity and spread go by"
        lacking = unexplained.settle(~unexplained.clusters_of(unexplained.ids))
        rejections.append(Rejection("LabelMissing", lacking, label=label, message=message))
    return rejections


def _unusable_nodes(rows: Rows, shape: Shape, unexplained: _Unexplained) -> list[Rejection]:
    usable = rows.usable[unexplained.ids]
    tolerated = tolerated_rows(rows, shape.tolerations, unexplained.ids)
    kept = usable if tolerated is None else usable & tolerated
    unexplained.unusable, unexplained.ids = unexplained.ids[~kept], unexplained.ids[kept]
    return [Rejection("NodesUnusable", unexplained.settle(~unexplained.clusters_of(unexplained.ids)))]


def _largest_free(rows: Rows, free: Amounts, ids: Ids, clusters: Mask) -> int:
    return int(free[ids[clusters[rows.cluster[ids]]]].max(initial=0))


def _resources_short(rows: Rows, shape: Shape, unexplained: _Unexplained) -> list[Rejection]:
    """Returns the clusters where no node has enough of one resource; then those where no node has enough of all at once.
    A pod for every node is rejected by any node that has too little."""
    rejections = []
    needs = {r: need for r, need in shape.resources.items() if need > 0}
    for resource, need in needs.items():
        column = rows.free(resource)
        free = np.zeros(rows.n, np.int64) if column is None else column
        ids, enough = unexplained.ids, free[unexplained.ids] >= need
        short = unexplained.clusters_of(ids[~enough]) if shape.per_node else ~unexplained.clusters_of(ids[enough])
        settled = unexplained.clusters & short
        if is_host_port(resource):
            rejections.append(Rejection("HostPortTaken", unexplained.settle(short), resource, shape.count, 0))
            continue
        rejecting = ids[~enough] if shape.per_node else ids
        best = _largest_free(rows, free, rejecting, settled)
        code = "ResourceShort" if machine_of(resource) is None else "SlotShort"
        unusable = 0 if shape.per_node else _largest_free(rows, free, unexplained.unusable, settled)
        unusable = unusable if unusable >= need else 0
        rejections.append(Rejection(code, unexplained.settle(short), resource, need, best, unusable))
    if shape.per_node:
        return rejections
    holds_one = pods_per_row(rows, needs, 1, unexplained.ids) > 0
    settled = unexplained.settle(~unexplained.clusters_of(unexplained.ids[holds_one]))
    rejections.append(
        Rejection("ResourceShort", settled, message="no node has enough of all its resources free at once")
    )
    return rejections


def _capacity_short(rows: Rows, shape: Shape, unexplained: _Unexplained) -> list[Rejection]:
    pods = np.zeros(rows.size, np.int64)
    np.add.at(pods, rows.cluster[unexplained.ids], pods_per_row(rows, shape.resources, shape.count, unexplained.ids))
    short = unexplained.settle(pods < shape.count)
    code = "SlotShort" if shape.machine else "CapacityShort"
    return [Rejection(code, short, needed=shape.count, best=int(pods[short].max(initial=0)))]


def _parts_short(rows: Rows, shape: Shape, unexplained: _Unexplained) -> Rejection:
    """Returns the clusters where parts of the nodes serve too few pods."""
    pods = np.zeros(rows.size, np.int64)
    count = 1 if shape.per_node else shape.count
    outside = pods_per_row(rows, shape.resources, count, unexplained.ids)
    np.add.at(pods, rows.cluster[unexplained.ids], pods_inside(rows, shape, (), unexplained.ids, outside))
    wanted = np.bincount(rows.cluster[unexplained.ids], minlength=rows.size) if shape.per_node else shape.count
    short = unexplained.settle(pods < wanted)
    best = int(pods[short].max(initial=0))
    needed = shape.count if isinstance(wanted, int) else int(wanted[short].max(initial=0))
    return Rejection("PartShort", short, needed=needed, best=best, message="parts of the nodes serve too few pods")


def _rules_short(rows: Rows, shape: Shape, unexplained: _Unexplained) -> list[Rejection]:
    """Clusters where the object's rules about its own pods leave too few places."""
    ids = rows_of_clusters(rows, np.flatnonzero(unexplained.clusters))
    held = np.zeros(rows.n, np.int64)
    count = 1 if shape.per_node else shape.count
    held[unexplained.ids] = pods_per_row(rows, shape.resources, count, unexplained.ids)
    wanted = np.bincount(rows.cluster[ids], held[ids], minlength=rows.size) if shape.per_node else shape.count
    rejections = []
    for code, limit in rule_limits(rows, shape, ids, held[ids]):
        short = unexplained.settle(limit < wanted)
        needed = shape.count if isinstance(wanted, int) else int(wanted[short].max(initial=0))
        rejections.append(Rejection(code, short, needed=needed, best=int(limit[short].max(initial=0))))
    return rejections
