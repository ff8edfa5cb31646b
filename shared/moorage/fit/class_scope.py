"""Applies conditions on the cluster to selectors: a cluster may have a class of its own instead of the fleet's."""

from __future__ import annotations

import msgspec

from moorage.classes import CLUSTER, KIND, NOTHING, holds
from moorage.model.part_requests import DeviceAsk, PropertyCondition, PropertySelector
from moorage.model.shapes import Shape
from moorage.parts.identities import is_identity, names_identity

_IS_DEVICE = (PropertyCondition(key=KIND, operator="Exists"),)


def depends_on_cluster(shape: Shape) -> bool:
    """Returns whether devices are selected by their cluster."""
    return any(
        one.key == CLUSTER
        for group in shape.groups
        for ask in group.devices
        for alternative in ask.properties
        for one in alternative
    )


def within_cluster(shape: Shape, cluster: str) -> Shape:
    """Returns the shape as it asks one cluster, without conditions on that."""
    groups = [
        msgspec.structs.replace(group, devices=tuple(_ask(ask, cluster) for ask in group.devices))
        for group in shape.groups
    ]
    return msgspec.structs.replace(shape, groups=groups)


def _ask(ask: DeviceAsk, cluster: str) -> DeviceAsk:
    return msgspec.structs.replace(ask, properties=selector_in(ask.properties, cluster)) if ask.properties else ask


def selector_in(selector: PropertySelector, cluster: str | None) -> PropertySelector:
    """Returns the selector for the devices of a cluster; None: of any cluster, so that conditions on it count as met."""
    kept = [
        tuple(one for one in alternative if one.key != CLUSTER) or _IS_DEVICE
        for alternative in selector
        if alternative and all(one.key != CLUSTER or cluster is None or holds(cluster, one) for one in alternative)
    ]
    return tuple(kept) or NOTHING


def without_identities(selector: PropertySelector) -> PropertySelector:
    """Returns the selector in which conditions on the identities of devices count as met."""
    if not names_identity(selector):
        return selector
    return (
        tuple(tuple(one for one in each if not is_identity(one.key)) or _IS_DEVICE for each in selector if each)
        or NOTHING
    )
