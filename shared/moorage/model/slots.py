"""Slots: the places of pods on nodes, and the optional needs that these have there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from .base import Model, Value
from .part_names import is_class

#: Amounts by part and class, of one pod.
PartAmounts = dict[str, dict[str, int]]
#: The same in a form that can be counted.
PodParts = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
_OF = "\x1f"  # stands in no name of a resource


class DeviceGrant(Value, kw_only=True, frozen=True):
    """An amount of a part that serves a need of one pod. `resource_class`: by which the device was asked for."""

    part: str = ""
    need: str = ""
    name: str = msgspec.field(default="", name="class")
    amount: int = 0
    resource_class: str = ""


class Slot(Model, kw_only=True):
    """Places for `count` equal pods on one node. `host` is the node's hostname label where that differs from its name.
    `parts`: what one pod takes of parts of the node; pods with other parts are another slot. `aligned`: which of that the
    kubelet takes from zones, so that what they report in use includes it at some time. `starting`: what an
    init container takes of a zone before, where that may bind the pod to a zone without room for the rest. `instances`: the parts of each
    pod where they are told apart. `devices`: which need of the pod each of its parts serves, where needs are told apart. `surge`: for pods beyond the object's number, which a rollout starts before it ends older
    ones; it counts only while an older claim of the object does."""

    node: str = ""
    host: str = ""
    count: int = 1
    resources: dict[str, int] = {}
    parts: PartAmounts = {}
    aligned: PartAmounts = {}
    starting: dict[str, int] = {}
    instances: list[str] = []
    devices: list[DeviceGrant] = []
    surge: bool = False


def names_parts(slots: Iterable[Slot]) -> bool:
    """Returns whether slots name something inside their nodes, which is valid only there. Devices that pods have by ResourceClaims
    do not count: claims are pinned to them, which keeps pods off other nodes."""
    return any(own_parts(slot) or any(not is_claimed(slot, grant) for grant in slot.devices) for slot in slots)


def own_parts(slot: Slot) -> PartAmounts:
    """Returns what a pod takes of parts but by ResourceClaims."""
    claimed = {grant.part for grant in slot.devices if is_claimed(slot, grant)}
    return {part: amounts for part, amounts in slot.parts.items() if part not in claimed} if claimed else slot.parts


def is_claimed(slot: Slot, grant: DeviceGrant) -> bool:
    """Returns whether pods get a device by a ResourceClaim: one of the document, or one that is made for a need for a device that
    a DRA driver offers, DRIVER/POOL/NAME. The ids of other parts begin with their node."""
    of_driver = grant.part.count("/") >= 2 and not grant.part.startswith(f"{slot.node}/")
    return of_driver or is_of_claim(grant.need)


def is_of_claim(need: str) -> bool:
    """Returns whether a need is a request of a ResourceClaim: CLAIM/REQUEST or CLAIM/REQUEST/ALTERNATIVE."""
    return "/" in need


#: Stands for a part where open pods are counted: what `starting` has.
STARTING = ""


def resource_of_part(part: str, name: str) -> str:
    """Returns the name of a part's class among the amounts of a node, which are by resource."""
    return f"{name}{_OF}{part}"


def part_and_class(resource: str) -> tuple[str, str] | None:
    """Returns the part and the class that this name stands for; None if it is a resource of nodes."""
    name, of, part = resource.partition(_OF)
    return (part, name) if of else None


def taken_by(slot: Slot) -> dict[str, int]:
    """Returns what one pod of the slot takes of its node and of the node's parts."""
    if not slot.parts:
        return slot.resources
    taken = slot.resources | part_resources(slot.parts)
    for name, amount in resources_of_devices(slot.devices).items():
        taken[name] = taken.get(name, 0) + amount
    return taken


def resources_of_devices(grants: Iterable[DeviceGrant]) -> dict[str, int]:
    """Returns what the devices that a pod has are of the resources of its node: extended resources and huge pages, as which the
    node counts them, too."""
    found: dict[str, int] = {}
    for grant in grants:
        if not is_class(grant.name):
            found[grant.name] = found.get(grant.name, 0) + grant.amount
    return found


def pod_parts(parts: PartAmounts) -> PodParts:
    """Returns what one pod takes of parts as a value that can be counted."""
    return tuple(sorted((part, tuple(sorted(amounts.items()))) for part, amounts in parts.items()))


def part_resources(parts: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Returns amounts of parts by the names that they have among the amounts of a node."""
    return {
        resource_of_part(part, name): amount
        for part, amounts in parts.items()
        for name, amount in amounts.items()
        if amount
    }


def resized(slot: Slot, count: int, *, surge: bool | None = None) -> Slot:
    """Returns the slot for so many of its pods."""
    kept = slot.surge if surge is None else surge
    if slot.count == count and slot.surge == kept:
        return slot
    return msgspec.structs.replace(slot, count=count, surge=kept, instances=slot.instances[:count])


def moved(slot: Slot, node: str, host: str, count: int = 1) -> Slot:
    """Returns a slot for such pods on a node. What is inside another node stays behind: nothing there is known yet."""
    if node == slot.node:
        return msgspec.structs.replace(slot, host=host, count=count, instances=slot.instances[:count])
    return msgspec.structs.replace(
        slot, node=node, host=host, count=count, parts={}, aligned={}, starting={}, instances=[], devices=[]
    )


def followed(slot: Slot, node: str, host: str) -> Slot:
    """Returns the slot where a pod of it is on a node. What pods get by ResourceClaims stays until it is told which devices those are
    that the pod has there."""
    claimed = [grant for grant in slot.devices if is_claimed(slot, grant)]
    parts = {grant.part: slot.parts[grant.part] for grant in claimed if grant.part in slot.parts}
    there = moved(slot, node, host)
    return there if there.parts or not parts else msgspec.structs.replace(there, parts=parts, devices=claimed)


class PodPlace(NamedTuple):
    """`parts`, `aligned`, `starting` and `devices` of a slot, of one pod."""

    parts: PartAmounts
    aligned: PartAmounts
    starting: dict[str, int] = {}
    devices: list[DeviceGrant] = []


def place_in(slot: Slot) -> PodPlace:
    return PodPlace(slot.parts, slot.aligned, slot.starting, slot.devices)


def with_parts(slot: Slot, found: Iterable[PodPlace]) -> list[Slot]:
    """Returns the slot split into runs of pods with equal parts. `found` has those of each pod."""
    runs: list[Slot] = []
    for place in found:
        if runs and place_in(runs[-1]) == place:
            runs[-1].count += 1
        else:
            runs.append(msgspec.structs.replace(slot, count=1, **place._asdict()))
    return runs


class OptionalGrant(Value, kw_only=True, frozen=True):
    """The answer whether all pods of a claim have an optional need."""

    consumer: str
    need: str
    granted: bool
