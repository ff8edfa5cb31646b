"""Moves slots off devices that failed: to others of the same node where pods of theirs run. What finds none there becomes an open
place that has to leave, which is assigned like all others. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from moorage.fit.budget import BudgetExceeded
from moorage.fit.inner_nodes import InnerNodes
from moorage.ledger import ActiveClaim, NodeAmounts
from moorage.ledger.families import Place as FamilyPlace
from moorage.ledger.held_devices import further_pods
from moorage.ledger.ledger import DEVICE_FAILED, MASS_FAILURE
from moorage.ledger.room import unshared_of
from moorage.model.claims import Shortfall
from moorage.model.part_names import is_class
from moorage.model.part_requests import DeviceToleration
from moorage.model.shapes import Shape
from moorage.model.slots import PodPlace, Slot, is_claimed, part_resources, with_parts
from moorage.parts.device_table import tolerated

from .device_failures import FailedDevice

if TYPE_CHECKING:
    from .open_places import Place as OpenPlace
    from .settlement_draft import Draft


class Mover(NamedTuple):
    """A place whose slot, of the object's newest claim, names a device that pods leave. `has_pod`: a pod is there, with the device."""

    active: ActiveClaim
    place: FamilyPlace
    has_pod: bool

    @property
    def slot(self) -> Slot:
        return self.place.slots[self.active.claim.id]


class ClaimFailures(NamedTuple):
    """The devices that matter to a claim, each with what is wrong. `left`: pods leave them; `held`: they would, but too many failed
    at once; `closed`: nothing new is placed on them, pods that are there stay."""

    left: Mapping[str, str] = {}
    held: Mapping[str, str] = {}
    closed: Mapping[str, str] = {}


_NONE = ClaimFailures()


def failures_of(draft: Draft, active: ActiveClaim) -> ClaimFailures:
    """Returns what failures of devices mean for a claim. Of one that is withdrawn, or whose document is not known, nothing."""
    failures, claim = draft.around.failures, active.claim
    if active.withdrawn or not failures.failed:
        return _NONE
    needs: dict[str, set[str]] = {part: set() for part in claim.vacated if part in failures.failed}
    for slot in claim.slots:
        for grant in slot.devices:
            if grant.part in failures.failed:
                needs.setdefault(grant.part, set()).add(grant.need)
    for runs in draft.fleet.pods.named(claim.id, draft.cid).values():
        for parts, _ in runs:
            needs |= {part: set() for part in parts if part in failures.failed and part not in needs}
    shape = draft.shape_of(claim, active.group) if needs else None
    if shape is None:
        return _NONE
    found = ClaimFailures({}, {}, {})
    for part, of in needs.items():
        device = failures.failed[part]
        tolerations = _tolerations(shape, of)
        if why := failures.why(device, tolerations):
            (found.held if device.kind in failures.masses else found.left)[part] = why  # type: ignore[index]
        elif why := _closed(device, tolerations):
            found.closed[part] = why  # type: ignore[index]
    return found


def _closed(device: FailedDevice, tolerations: Sequence[DeviceToleration]) -> str:
    found = next((taint for taint, _ in device.taints if not tolerated([taint], tolerations)), None)
    return f"it has the taint {found.key}:{found.effect}" if found is not None else ""


def _tolerations(shape: Shape, needs: Iterable[str]) -> list[DeviceToleration]:
    """Returns the tolerations with which devices were asked for, for these needs or, without any, for all."""
    found: list[DeviceToleration] = []
    of = list(needs)
    for group in shape.groups:
        if not group.devices:
            continue
        mine = [need for need in of if need == group.suffix or need.startswith(f"{group.suffix}/")]
        if of and not mine:
            continue
        names = {need[len(group.suffix) + 1 :] for need in mine}
        asks = [ask for ask in group.devices if ask.name and ask.name in names] or group.devices
        found += [toleration for ask in asks for toleration in ask.tolerations]
    return found


def names(slot: Slot, devices: Mapping[str, str]) -> bool:
    """Returns whether a slot has one of the devices."""
    return any(grant.part in devices for grant in slot.devices) if devices else False


def doomed_pods(draft: Draft, active: ActiveClaim) -> dict[str, int]:
    """Returns the pods by node that have a device that pods leave, without those that are being deleted."""
    left = draft.failures(active.claim.id).left
    pods, ident = draft.fleet.pods, active.claim.id
    found: dict[str, int] = {}
    for node, runs in pods.named(ident, draft.cid).items() if left else ():
        count = sum(number for parts, number in runs if not left.keys().isdisjoint(parts))
        staying = pods.live(ident, draft.cid).get(node, 0) - pods.ending(ident, draft.cid).get(node, 0)
        if count and staying > 0:
            found[node] = min(count, staying)
    return found


def pods_with(draft: Draft, active: ActiveClaim, node: str) -> tuple[set[str], int]:
    """Returns the parts that pods of a claim have on a node as far as it is told, and how many pods there are of which it is not."""
    runs = draft.fleet.pods.named(active.claim.id, draft.cid).get(node, ())
    live = draft.fleet.pods.live(active.claim.id, draft.cid).get(node, 0)
    return {part for parts, _ in runs for part in parts}, max(0, live - sum(count for _, count in runs))


def has_untold_devices(draft: Draft, place: OpenPlace, node: str) -> bool:
    """Returns whether a place has devices of which neither claims, nor pods on the node, nor the node's resources tell who has them."""
    pods = draft.fleet.pods
    return any(
        is_class(grant.name) and not is_claimed(slot, grant) and not pods.named(ident, draft.cid).get(node)
        for ident, slot in place.members.items()
        for grant in slot.devices
    )


def move_on_nodes(draft: Draft) -> None:
    """Gives slots other devices of their node, those of older groups first. The others leave the node if they can."""
    by_node: dict[tuple[str, str], list[Mover]] = {}
    for mover in draft.movers:
        by_node.setdefault((mover.active.claim.id, mover.place.node), []).append(mover)
    given: NodeAmounts = {}
    for (_, node), movers in sorted(by_node.items(), key=lambda item: _age(draft, item[1][0].active)):
        given.setdefault(node, {})
        found = _devices_on(draft, node, movers, given)
        for mover, inside in zip(movers, found, strict=False):
            slot = with_parts(mover.slot, [inside])[0]
            slot = msgspec.structs.replace(slot, count=1)
            for name, amount in part_resources(slot.parts).items():
                given[node][name] = given[node].get(name, 0) + amount
            draft.replace_device(mover, slot)
        for mover in movers[len(found) :]:
            draft.leave_device(mover)


def _age(draft: Draft, active: ActiveClaim) -> tuple[str, str, str]:
    document = draft.around.documents.get(active.group)
    return (document.instantiated if document is not None else "", active.group, active.claim.id)


def _devices_on(draft: Draft, node: str, movers: Sequence[Mover], given: NodeAmounts) -> Sequence[PodPlace]:
    """Returns what as many of the pods as possible take of parts of their node."""
    return devices_on(draft, node, movers[0].active, len(movers), given)


def devices_on(draft: Draft, node: str, active: ActiveClaim, pods: int, given: NodeAmounts) -> Sequence[PodPlace]:
    """Returns what up to so many pods of a claim take of parts of a node, as many as possible, without devices that its pods leave.
    `given`: what was given to others on each node, which may reach the same devices."""
    row, shape = draft.rows.get(node), draft.shape_of(active.claim, active.group)
    if row is None or shape is None or not draft.is_usable(node):
        return ()
    taken = dict(given.get(node, {}))
    left = draft.failures(active.claim.id).left
    for part in left:
        for name in part_resources({part: dict.fromkeys(_classes(draft, row, part), 1)}):
            taken[name] = max(taken.get(name, 0), unshared_of(draft.fleet, row, name) or 0)
    elsewhere = {draft.rows[other]: amounts for other, amounts in given.items() if other != node and amounts}
    staying = [slot for slot in active.claim.slots if not any(grant.part in left for grant in slot.devices)]
    shape = further_pods(shape, staying, draft.fleet, draft.cid)
    inner = InnerNodes(draft.fleet, np.array([row], np.intp), [shape], {**elsewhere, row: taken})
    for count in range(pods, 0, -1):
        try:
            found = inner.assign(0, [count], [[]])
        except BudgetExceeded:
            continue
        if found is not None and all(place.devices for place in found[0]):
            return found[0]
    return ()


def _classes(draft: Draft, row: int, part: str) -> list[str]:
    """Returns the classes of a part of a node."""
    _, layout = draft.fleet.inside(row)
    at = layout.at.get(draft.fleet.path_of(row, part, layout))
    return list(layout.parts[at].inventories) if at is not None else []


def vacated(draft: Draft, slots: Mapping[str, Sequence[Slot]]) -> dict[str, list[str]]:
    """Returns the devices that pods are to leave because their slots, these or those that they have, did: by claim, of those for
    which that changes."""
    found: dict[str, list[str]] = {}
    for ident, active in draft.active.items():
        if active.withdrawn:
            continue
        left = draft.failures(ident).left
        held = {
            part for runs in draft.fleet.pods.named(ident, draft.cid).values() for parts, _ in runs for part in parts
        }
        named = {grant.part for slot in slots.get(ident, active.claim.slots) for grant in slot.devices}
        wanted = sorted((left.keys() & held) - named)
        if wanted != active.claim.vacated:
            found[ident] = wanted
    return found


def shortfall_of(draft: Draft, group: str, code: str) -> Shortfall | None:
    """Returns the devices that failed and that slots of the group name, and how many of their kind could serve instead."""
    devices: dict[str, str] = {}
    for ident, active in draft.active.items():
        if active.group == group and not active.withdrawn:
            found = draft.failures(ident)
            wrong = found.held if code == MASS_FAILURE else {**found.closed, **found.left}
            if code == DEVICE_FAILED:
                leaving = [x.members[ident] for x in draft.places if ident in x.members and x.leaves]
                leaving += draft.waiting.get(ident, ())
                wrong = {p: w for p, w in wrong.items() if any(names(slot, {p: w}) for slot in leaving)}
            else:
                wrong = {p: w for p, w in wrong.items() if any(names(slot, {p: w}) for slot in active.claim.slots)}
            devices |= wrong
    if not devices:
        return None
    kind = draft.around.failures.failed[min(devices)].kind
    mass = draft.around.failures.masses.get(kind)
    if code == MASS_FAILURE and mass is not None:
        return Shortfall(resource=kind, needed=mass.failed, free=mass.of - mass.failed, code=code, devices=devices)
    free = _free_of_kind(draft, kind)
    return Shortfall(resource=kind, needed=len(devices), free=free, code=code, devices=devices)


def _free_of_kind(draft: Draft, kind: str) -> int:
    """Returns how many whole devices of a kind are healthy and nobody has."""
    parts = draft.fleet.parts
    if kind not in parts.kinds:
        return 0
    here = parts.rows_of(draft.cid)
    number = parts.kinds.index(kind)
    rows = here.start + np.flatnonzero((parts.kind[here] == number) & parts.healthy[here] & (parts.unit[here] >= 0))
    free = 0
    for unit in np.unique(parts.unit[rows]).tolist():
        of_unit = rows[parts.unit[rows] == unit]
        entries = parts.classes[parts.class_names[unit]]
        at = entries.positions(draft.cid, of_unit)
        left = entries.capacity[at] - entries.used[at] - entries.claimed[at]
        free += int((np.maximum(left, 0) // np.maximum(parts.unit_size[of_unit], 1)).sum())
    return free
