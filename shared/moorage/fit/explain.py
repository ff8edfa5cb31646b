"""Why a shape has no room, with numbers, cluster by cluster and need by need: the first thing that stands against each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from moorage.model.shapes import Requirement, Shape
from moorage.parsing import format_amount

from .fit_cache import per_row, rows_in, unsupported_reason
from .node_filter import matching_labels, selected_by_terms, tolerated_rows
from .protocols import Amounts, Ids, Mask, Rows


@dataclass(frozen=True, slots=True)
class Quantity:
    """`clusters` fail for this. Amounts as in shapes; for CapacityShort they count pods, for labels they are 0."""

    code: str
    clusters: Mask
    resource: str = ""
    needed: int = 0
    best: int = 0  # the most that one node there has free
    label: str = ""  # "key=value", or the requirement as it reads
    message: str = ""


def _words(term: Iterable[Requirement]) -> str:
    parts = []
    for r in term:
        if r.operator == "In" and len(r.values) == 1:
            parts.append(f"{r.key}={r.values[0]}")
        else:
            parts.append(" ".join(filter(None, (r.key, r.operator, ",".join(r.values)))))
    return ", ".join(parts)


class _Open:
    """Clusters not explained yet, and their rows that are not ruled out yet."""

    def __init__(self, rows: Rows, clusters: Mask) -> None:
        self.rows = rows
        self.clusters = clusters.copy()
        at = rows.cluster[: rows.n]
        self.ids: Ids = np.flatnonzero((at >= 0) & self.clusters[at])

    def of(self, ids: Ids) -> Mask:
        mask = np.zeros(self.rows.size, np.bool_)
        mask[self.rows.cluster[ids]] = True
        return mask

    def settle(self, without: Mask) -> Mask:
        """Those still open among `without`; they and their rows are out from here on."""
        settled = self.clusters & without
        self.clusters &= ~settled
        self.ids = self.ids[~settled[self.rows.cluster[self.ids]]]
        return settled


class Shortage(NamedTuple):
    resource: str
    needed: int
    free: int

    def shown(self) -> dict[str, str]:
        """As the fields of a reason."""
        return {
            "need": self.resource,
            "needed": format_amount(self.resource, self.needed),
            "free": format_amount(self.resource, self.free),
        }

    @property
    def caveat(self) -> str:
        """For the end of a sentence with the numbers: they alone would do."""
        return ", but not on its nodes as they are" if self.free >= self.needed else ""


def largest_shortage(rows: Rows, shapes: Iterable[Shape], clusters: Mask) -> Shortage | None:
    """Of all that these pods need together, what there is least of in that one of the clusters that has most of it."""
    wanted: dict[str, int] = {}
    for shape in shapes:
        for resource, need in () if shape.per_node else shape.resources.items():
            wanted[resource] = wanted.get(resource, 0) + need * shape.count
    ids = rows_in(rows, np.flatnonzero(clusters))
    ids = ids[rows.usable[ids]]
    found: list[Shortage] = []
    for resource, needed in wanted.items():
        free = rows.free(resource)
        if needed > 0 and free is not None and len(ids):
            sums = np.bincount(rows.cluster[ids], np.maximum(free[ids], 0), minlength=rows.size)
            found.append(Shortage(resource, needed, int(sums[clusters].max())))
    return max(found, key=lambda one: one.needed / max(one.free, 1), default=None)


def explain(rows: Rows, shape: Shape, clusters: Mask) -> list[Quantity]:
    """For each of `clusters`, which are known and have no room for the shape, the first reason found, grouped."""
    reason = unsupported_reason(shape)
    if reason:
        return [Quantity("Unsupported", clusters, message=reason)]
    left = _Open(rows, clusters)
    figures = [*_labels(rows, shape, left), *_unusable(rows, shape, left), *_short(rows, shape, left)]
    if not shape.per_node:
        figures += _together(rows, shape, left)
    return [figure for figure in figures if figure.clusters.any()]


def _labels(rows: Rows, shape: Shape, left: _Open) -> list[Quantity]:
    """Labels that no node of the cluster carries, whatever else stands against its nodes."""
    figures = []
    if len(shape.terms) == 1:  # then each requirement can be blamed by itself
        for requirement in shape.terms[0]:
            mask = matching_labels(rows, (requirement,), left.ids)
            if mask is not None:
                lacking = left.settle(~left.of(left.ids[mask]) & left.of(left.ids))
                figures.append(Quantity("LabelMissing", lacking, label=_words((requirement,))))
    mask = selected_by_terms(rows, shape.terms, left.ids)
    if mask is not None:
        lacking = left.settle(~left.of(left.ids[mask]) & left.of(left.ids))
        label = " or ".join(_words(term) for term in shape.terms)
        figures.append(Quantity("LabelMissing", lacking, label=label, message="no node carries all of these"))
        mask = selected_by_terms(rows, shape.terms, left.ids)
        left.ids = left.ids if mask is None else left.ids[mask]
    return figures


def _unusable(rows: Rows, shape: Shape, left: _Open) -> list[Quantity]:
    able = rows.usable[left.ids].copy()
    mask = tolerated_rows(rows, shape.tolerations, left.ids)
    if mask is not None:
        able &= mask
    left.ids = left.ids[able]
    return [Quantity("NodesUnusable", left.settle(~left.of(left.ids)))]


def _best(rows: Rows, free: Amounts, ids: Ids, clusters: Mask) -> int:
    return int(free[ids[clusters[rows.cluster[ids]]]].max(initial=0))


def _short(rows: Rows, shape: Shape, left: _Open) -> list[Quantity]:
    """One resource of which no node has enough; then several that no node has enough of at once. A pod for every node
    is refused by any node that has too little."""
    figures = []
    needs = {r: need for r, need in shape.resources.items() if need > 0}
    for resource, need in needs.items():
        column = rows.free(resource)
        free = np.zeros(rows.n, np.int64) if column is None else column
        ids, enough = left.ids, free[left.ids] >= need
        short = left.of(ids[~enough]) if shape.per_node else ~left.of(ids[enough])
        settled = left.clusters & short
        worst = ids[~enough] if shape.per_node else ids
        best = _best(rows, free, worst, settled)
        figures.append(Quantity("ResourceShort", left.settle(short), resource, need, best))
    if shape.per_node:
        return figures
    roomy = per_row(rows, needs, 1, left.ids) > 0
    settled = left.settle(~left.of(left.ids[roomy]))
    figures.append(Quantity("ResourceShort", settled, message="no node has enough of all its resources free at once"))
    return figures


def _together(rows: Rows, shape: Shape, left: _Open) -> list[Quantity]:
    pods = np.zeros(rows.size, np.int64)
    np.add.at(pods, rows.cluster[left.ids], per_row(rows, shape.resources, shape.count, left.ids))
    short = left.settle(pods < shape.count)
    return [Quantity("CapacityShort", short, needed=shape.count, best=int(pods[short].max(initial=0)))]
