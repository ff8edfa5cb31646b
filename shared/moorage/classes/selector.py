"""Compiles the selector of a resource class: one of its terms, of which all requirements hold.

A selector without terms selects nothing, as does a term without requirements; other terms are not affected by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from moorage.model.part_reports import PropertyValue
from moorage.model.part_requests import PropertyCondition, PropertySelector
from moorage.model.resource_classes import ResourceClassSpec

from .conditions import holds

KIND, NAME, VENDOR, DRIVER, NODE, CLUSTER, NUMA = "Kind", "Name", "Vendor", "Driver", "Node", "Cluster", "numa"
#: Properties that every device has, if they are known of it. A device's own properties of these names are not seen.
BUILT_IN = (KIND, NAME, VENDOR, DRIVER, NODE, CLUSTER, NUMA)
ALIASES: Mapping[str, str] = {"kind": KIND}
#: Selects nothing, where no alternatives mean everything (`PartGroup.properties`).
NOTHING: PropertySelector = ((),)


_IS_DEVICE = PropertyCondition(key=KIND, operator="Exists")


def _needs_kind(condition: PropertyCondition) -> bool:
    return condition.key == KIND and condition.operator not in ("NotIn", "DoesNotExist")


class Selector(NamedTuple):
    """Alternatives, each a conjunction that is not empty. Without any, nothing is selected."""

    alternatives: PropertySelector = ()

    @property
    def keys(self) -> frozenset[str]:
        """Returns the properties that are looked at."""
        return frozenset(condition.key for alternative in self.alternatives for condition in alternative)

    @property
    def of_devices(self) -> Selector:
        """Returns the selector for parts of which not all are devices: only devices have a kind."""
        return Selector(
            tuple(one if any(map(_needs_kind, one)) else (*one, _IS_DEVICE) for one in self.alternatives),
        )

    @property
    def of_group(self) -> PropertySelector:
        """Returns the selector in the form of `PartGroup.properties`, where no alternatives mean everything."""
        return self.of_devices.alternatives or NOTHING

    def matches(self, properties: Mapping[str, PropertyValue], counts: Counter[str] | None = None) -> bool:
        """Returns whether a device is selected that has these properties, the built-in ones among them. `counts` counts
        comparisons that cannot hold, by code."""
        return any(
            all(holds(properties.get(one.key), one, counts) for one in alternative) for alternative in self.alternatives
        )

    def at(self, *, cluster: str, node: str) -> Selector:
        """Returns the selector of the devices of one node, which does not look at Cluster and Node any more."""
        if self.keys.isdisjoint((CLUSTER, NODE)):
            return self
        here: dict[str, str] = {CLUSTER: cluster, NODE: node}
        kept = [
            tuple(one for one in alternative if one.key not in here)
            for alternative in self.alternatives
            if all(holds(here[one.key] or None, one) for one in alternative if one.key in here)
        ]
        if not all(kept):  # it selects every device of the node
            return ALL_DEVICES
        return Selector(tuple(kept))


ALL_DEVICES = Selector(((_IS_DEVICE,),))


def compile_class(spec: ResourceClassSpec | None) -> Selector:
    """Compiles a spec in which `class_problems` found nothing wrong."""
    alternatives = []
    for term in (spec.resource_selector if spec is not None else None) or ():
        requirements = (term.match_expressions if term is not None else None) or ()
        alternative = tuple(
            PropertyCondition(
                key=ALIASES.get(one.key, one.key),
                operator="In" if one.operator == "Eq" else one.operator,  # type: ignore[arg-type]
                values=tuple(one.values or ()),
            )
            for one in requirements
        )
        if alternative:
            alternatives.append(alternative)
    return Selector(tuple(alternatives))
