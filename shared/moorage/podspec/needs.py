"""Interprets a need of a consumer: whether it is mandatory, what it requests, and how it changes a container."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from moorage.model.documents import Need
from moorage.model.part_names import KUBERNETES_RESOURCES, is_part_class, short_name
from moorage.parsing import need_amount

#: The class of cores that a pod has for itself.
DEDICATED = "PCPU"


class NeedAmounts(NamedTuple):
    """The sum of all needs for one resource of one container. A limit of 0 means that they set none."""

    requests: int = 0
    limits: int = 0

    def plus(self, other: NeedAmounts) -> NeedAmounts:
        return NeedAmounts(self.requests + other.requests, self.limits + other.limits)

    def limit(self, manifest: int) -> int:
        """Returns the limit of the container (0 = none), where its manifest has the limit `manifest`. Kubernetes refuses
        a limit below the requests, so it rises with them."""
        limit = self.limits or manifest
        return max(limit, self.requests) if limit else 0


def is_mandatory(need: Need) -> bool:
    """A need is mandatory unless it says otherwise; a weight alone makes it optional, since only optional needs have one."""
    return need.weight is None if need.mandatory is None else need.mandatory


def asks_class(need: Need) -> bool:
    """Returns whether the need is for devices of a resource class."""
    return bool(need.class_ or need.one_of)


def overcommits(resource: str) -> bool:
    """Only these resources may have requests below limits; Kubernetes wants both equal for all others."""
    return resource in ("cpu", "memory", "ephemeral-storage")


def kubernetes_need(need: Need) -> Need:
    """Returns the need with the name that its resource has behind the decoders. VCPU, PCPU, MEMORY_MB and DISK_GB become what a
    container requests; PCPU has equal requests and limits, as whole cores need them. Raises ValueError for units beside such
    a class, or for amounts that are not numbers."""
    if is_part_class(need.resource):
        return msgspec.structs.replace(need, resource=short_name(need.resource))
    resource = KUBERNETES_RESOURCES.get(need.resource)
    if resource is None:
        return need
    if need.units:
        raise ValueError(f"{need.resource}: the class has its units in its name; leave units out")
    if need.resource == "VCPU":
        return msgspec.structs.replace(need, resource=resource.name)
    requests, limits = (_times(need.resource, value, resource.units) for value in (need.requests, need.limits))
    if need.resource == DEDICATED:
        requests = limits if requests is None else requests
        return msgspec.structs.replace(
            need, resource="cpu", requests=requests, limits=requests if limits is None else limits
        )
    return msgspec.structs.replace(need, resource=resource.name, requests=requests, limits=limits, units="B")


def _times(name: str, value: float | str | None, units: int) -> int | None:
    return None if value is None else need_amount(name, value) * units


def need_amounts(need: Need) -> NeedAmounts:
    """Reads the amounts of a need for a resource. Limits alone are requests too, as in Kubernetes."""
    value = need.limits if need.requests is None else need.requests
    if value is None:
        raise ValueError(f"{need.resource}: give requests or limits or both")
    requests = need_amount(need.resource, value, need.units)
    if not overcommits(need.resource):
        return NeedAmounts(requests, requests)
    return NeedAmounts(requests, 0 if need.limits is None else need_amount(need.resource, need.limits, need.units))


def label_text(value: str | float) -> str:
    """Spells the value of a label as Kubernetes does: `true` and `1` may be written without quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
