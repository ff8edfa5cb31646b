"""Slots of machines in the decision log: which nodes hold how many of a machine type, and who has one of them.

A slot of a type is an amount 1 of a resource of its node, named after the type (`slot_resource`). A reservation offers it and
takes the room of the slots; whoever uses a slot takes one of it and no room of its own. So claims of applications and guests
made in a cluster are counted against each other like any resource, and the sum of a node never moves when a guest comes.

Types that depend on another have a resource each, too. What a node has of these follows from the slots of the type that they live in
(`shared_slots`).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping

import msgspec

from .base import Model, Value
from .machines import Allow
from .shared_slots import SharedSlots, SharedType

_PREFIX = "machine:"
_WINDOW = "@"
_BEFORE = "<"
_OPENED = "opened:"


def slot_resource(machine: str, window: str = "", before: int = 0) -> str:
    """Returns the name of the resource that slots of a machine type, GROUP/TYPE, are. Those kept for a window are another, and so are
    those for who is gone by a time, in seconds since 1970: every slot that no window has before it."""
    if before:
        return f"{_PREFIX}{machine}{_BEFORE}{before}"
    return f"{_PREFIX}{machine}{_WINDOW}{window}" if window else f"{_PREFIX}{machine}"


def opened_resource(resource: str) -> str:
    """Returns the name of what nodes have free of a type that lives in slots of another, in slots that its pods have taken already."""
    return f"{_OPENED}{resource}"


def machine_of(resource: str) -> tuple[str, str] | None:
    """Returns the machine type and the window of a resource; None if it is no slot of a machine."""
    if not resource.startswith(_PREFIX):
        return None
    machine, _, window = resource.removeprefix(_PREFIX).partition(_BEFORE)[0].partition(_WINDOW)
    return machine, window


def gone_by(resource: str) -> int:
    """Returns the time by which pods are gone that take a resource of slots, in seconds since 1970; 0: nobody knows."""
    return int(resource.partition(_BEFORE)[2] or 0) if resource.startswith(_PREFIX) else 0


def without_slots(amounts: Mapping[str, int]) -> dict[str, int]:
    """Returns the amounts that pods report themselves: no report says that a pod uses a slot of a machine."""
    return {name: amount for name, amount in amounts.items() if not name.startswith(_PREFIX)}


def uses_slots(amounts: Mapping[str, int]) -> bool:
    return any(name.startswith(_PREFIX) for name in amounts)


def reservation_claim(machine: str, cluster: str) -> str:
    """Returns the claim of all slots of a machine type in a cluster. It is a valid label value."""
    return hashlib.blake2b(f"machine\0{machine}\0{cluster}".encode(), digest_size=10).hexdigest()


class Dependent(Model, kw_only=True):
    """A machine type that lives in slots of `parent`, both GROUP/TYPE; `per_parent` of it in each. `most`: how many each node may have;
    None: as many as fit."""

    parent: str
    per_parent: int
    most: dict[str, int] | None = None


class ReservedSlots(Model, kw_only=True):
    """The slots of a machine type in a cluster. `size` is what one takes of its node. `slots` counts all of them by node; of these,
    `offline` are granted by the cluster alone, and `kept` are for guests of windows only. `windows`: those of each window, by node; of
    windows that do not overlap they may be the same ones. `allow`: who may use them; `window_projects`: which projects each window is for,
    if not for all. `before`: by a time, in seconds since 1970, how many each node has for those who are gone by then; not all of them are in
    `kept`, and none is `offline`. `children` and `dependents`: sizes of the types that live in these slots, and
    how; logs from before have the sizes only."""

    machine: str
    cluster: str
    size: dict[str, int] = {}
    slots: dict[str, int] = {}
    offline: dict[str, int] = {}
    kept: dict[str, int] = {}
    windows: dict[str, dict[str, int]] = {}
    before: dict[int, dict[str, int]] = {}
    allow: Allow = Allow()
    window_projects: dict[str, list[str]] = {}
    children: dict[str, dict[str, int]] = {}
    dependents: dict[str, Dependent] = {}

    @property
    def claim(self) -> str:
        return reservation_claim(self.machine, self.cluster)

    def users(self) -> dict[str, tuple[Allow, ...]]:
        """Returns who may use the slots, by resource, where that is not everyone: who meets all of these."""
        rules: tuple[Allow, ...] = (self.allow,) if self.allow != Allow() else ()
        found = {slot_resource(machine): rules for machine in (self.machine, *self.children) if rules}
        if rules:
            found |= {slot_resource(self.machine, before=time): rules for time in self.before}
        for window in self.windows:
            projects = self.window_projects.get(window)
            own = (*rules, Allow(projects=tuple(projects))) if projects else rules
            if own:
                found[slot_resource(self.machine, window)] = own
        return found

    def plain(self, node: str) -> int:
        """Returns how many slots on a node are neither for guests of windows nor for the cluster alone."""
        return self.slots.get(node, 0) - self.offline.get(node, 0) - self.kept.get(node, 0)

    def at_times(self, times: Iterable[int]) -> ReservedSlots:
        """Returns the same slots with those for who is gone by other times. Windows elsewhere have times of their own."""
        own = sorted(self.before)
        before: dict[int, dict[str, int]] = {}
        for time in times:
            at = bisect_left(own, time)
            free = self.before[own[at]] if at < len(own) else {}
            before[time] = {node: free.get(node, max(0, self.plain(node))) for node in self.slots}
        return msgspec.structs.replace(self, before=before)

    def shared(self, node: str) -> SharedSlots:
        """Returns the slots on a node that everyone may use, with nothing in them, and all types that live there. Who is gone by a time
        shares slots with everyone who may stay longer."""
        plain, found = self.plain(node), dict[str, SharedType]()
        free = [(time, self.before[time].get(node, 0)) for time in sorted(self.before)]
        for number, (time, there) in enumerate(free):
            resource = slot_resource(self.machine, before=time)
            found[resource] = SharedType(resource, number - 1, most=there if number else None)
        own = SharedType(slot_resource(self.machine), len(found) - 1, most=plain if found else None, offered=plain)
        found[self.machine] = own
        below = {key: self.dependents.get(key) or Dependent(parent=self.machine, per_parent=1) for key in self.children}
        while ready := sorted(key for key, kind in below.items() if kind.parent in found):
            for key in ready:
                kind = below.pop(key)
                most = None if kind.most is None else kind.most.get(node, 0)
                above = list(found).index(kind.parent)
                found[key] = SharedType(slot_resource(key), above, kind.per_parent, most)
        return SharedSlots(free[0][1] if free else plain, tuple(found.values()), (0,) * len(found))

    def offered(self, node: str) -> dict[str, int]:
        """Returns the slots on a node that decisions and grants may use, by resource."""
        found = {slot_resource(self.machine, w): n for w, nodes in self.windows.items() if (n := nodes.get(node, 0))}
        plain = self.plain(node)
        return {slot_resource(self.machine): plain, **found} if plain > 0 else found


class GrantedSlot(Value, kw_only=True, frozen=True):
    """A slot that a guest has. `claim` is the label of its Pod: the reservation's, or that of the app that a decision placed, whose
    claim has the slot already. `pool`: the window whose slot it is. `apart`: the slot is counted by `slots` alone: it is one of a window, and
    free again before the window begins; logs from before have such. `before`: the time by which it is over, if some of the slots that it
    may have had are kept for windows after that. `alone`: it is one of those that the cluster gives out alone, and did. `parent`: the type in a slot of which it lives; logs from before
    have some of these `apart`. `not_before` and `until` are in seconds since 1970."""

    uid: str
    machine: str
    cluster: str
    node: str
    claim: str
    namespace: str = ""
    name: str = ""
    project: str = ""
    window: str = ""
    pool: str = ""
    apart: bool = False
    not_before: float = 0.0
    until: float = 0.0
    at: float = 0.0
    parent: str = ""
    before: int = 0
    alone: bool = False

    @property
    def takes(self) -> dict[str, int]:
        """Returns what the guest takes of the node's slots beyond what the claim of its app does."""
        if (
            self.alone
            or (self.apart and not self.parent)
            or self.claim != reservation_claim(self.machine, self.cluster)
        ):
            return {}
        return {slot_resource(self.machine, self.pool, self.before): 1}
