"""Sums up per cluster what a revision asks for: what is free, and what its group has there already."""

from __future__ import annotations

import numpy as np

from moorage.candidates import FreeCapacity, OwnRoom
from moorage.fleet import Fleet
from moorage.ledger import OwnClaims, own_amounts
from moorage.model.groups import Revision
from moorage.model.shapes import EXCLUSIVE
from moorage.podspec import is_host_port


def summed_resources(record: Revision) -> list[str]:
    """Returns the asked resources that are summed up per cluster. Left out are host ports, which say nothing about how full a
    cluster is, and exclusive cores: clusters that do not report them have no meaningful sum."""
    asked = {r: None for app in record.apps for s in app.shapes for r, need in s.resources.items() if need > 0}
    return [r for r in asked if r != EXCLUSIVE and not is_host_port(r)]


def free_capacity(record: Revision, fleet: Fleet) -> FreeCapacity:
    """Sums up the asked resources per cluster."""
    rows = {resource: row for row, resource in enumerate(summed_resources(record))}
    needs = np.zeros((len(record.apps), len(rows)), dtype=np.float64)
    free = np.zeros((len(rows), fleet.size), dtype=np.float64)
    allocatable = np.zeros((len(rows), fleet.size), dtype=np.float64)
    for resource, row in rows.items():
        free[row], allocatable[row] = fleet.sums(resource)
    for number, app in enumerate(record.apps):
        total = [0] * len(rows)
        for shape in app.shapes:
            if shape.per_node:
                continue  # the number of pods differs from cluster to cluster
            for resource, need in shape.resources.items():
                if (at := rows.get(resource)) is not None:
                    total[at] += need * shape.count
        needs[number] = total
    return FreeCapacity(free, allocatable, needs)


def own_room(record: Revision, fleet: Fleet, own: OwnClaims) -> list[OwnRoom]:
    """Sums up what each app has already of the asked resources, per cluster."""
    asked = summed_resources(record) if own else []
    return [
        {
            cid: np.array([amounts.get(resource, 0) for resource in asked], np.float64)
            for cluster, claims in own.get(app.name, {}).items()
            if (cid := fleet.ids.get(cluster)) is not None
            for amounts in (own_amounts(claims, cid, fleet),)
        }
        for app in record.apps
    ]
