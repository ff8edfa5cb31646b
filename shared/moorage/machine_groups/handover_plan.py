"""Plans the steps of hand-overs that can be taken now: what StatefulSets are to store, which reservations come, go and are pinned, and
which guests may be let in. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from .handover import Handover
from .handover_records import Opening, Plan, ReservationPod, Situation, Stored
from .sizes import root_of
from .slot_assignment import SlotAssignment


def plan_handover(handover: Handover, now: float, situation: Situation) -> Plan:
    return _Planner(handover, now, situation).plan()


class _Planner:
    """One plan. `a`: who has slots."""

    def __init__(self, handover: Handover, now: float, situation: Situation) -> None:
        self.h, self.now, self.s = handover, now, situation
        self.a = SlotAssignment(handover, now, situation)
        self.replicas: dict[str, int] = {}
        self._there: dict[str, Counter[str]] | None = None

    def plan(self) -> Plan:
        self.a.run()
        stores = self._stores()
        pins, removals = self._place_reservations()
        openings = self._openings()
        replaced = self._replaced(pins)
        # Nobody ends them there, and their StatefulSet makes no others of their numbers before they are gone.
        forced = [p.name for p in self.h.reservations.values() if p.deleting and p.node in self.s.silent]
        next_time = min(self.a.times, default=None)
        return Plan(stores, pins, removals, forced, openings, self.a.evictions, replaced, next_time)

    # --- reservations

    def _open_parents(self, name: str, node: str) -> int:
        """Returns how many slots of the parent of a type are open for it on a Node."""
        return -(-self.h.taken(self.a.on.get(node, Counter()), name) // self.h.sizes[name].per_parent)

    def _wanted_on(self, name: str) -> dict[str, int]:
        """Returns how many reservations of a type each Node is to have."""
        size = self.h.sizes[name]
        if not size.parent:
            slots = self.s.slots.get(name, {})
            wanted = {n: count - self.h.taken(self.a.on.get(n, Counter()), name) for n, count in slots.items()}
            return {n: count for n, count in wanted.items() if count > 0}
        room = self.h.maximum[name] - self._total_taken(name)
        found: dict[str, int] = {}
        for node in sorted(self.a.on):
            taken = self.h.taken(self.a.on[node], name)
            spare = min(room, self._open_parents(name, node) * size.per_parent - taken)
            if spare > 0:
                found[node] = spare
                room -= spare
        return found

    def _total_taken(self, name: str) -> int:
        return sum(self.h.taken(counts, name) for counts in self.a.on.values())

    def _stores(self) -> dict[str, Stored]:
        stores: dict[str, Stored] = {}
        for name, size in self.h.sizes.items():
            if size.parent:
                replicas = sum(self._wanted_on(name).values())
            else:
                replicas = max(0, self.h.maximum[name] - self._total_taken(name))
            self.replicas[name] = replicas
            stored = self.s.stored.get(name)
            if stored is None:
                continue  # it is created first
            before = {uid: grant for uid, grant in stored.grants.items() if self._matters(uid)}
            if stored.replicas != replicas or before != self.a.grants[name]:
                stores[name] = Stored(replicas, self.a.grants[name])
        return stores

    def _matters(self, uid: str) -> bool:
        """Returns whether a stored grant still says something. Those of guests that are bound or gone go with the next change."""
        guest = self.h.guests.get(uid)
        if guest is None or guest.deleting or guest.bound:
            return False
        return guest.gated or uid in self.a.opened

    def _place_reservations(self) -> tuple[dict[str, str], list[str]]:
        """Pins gated reservations to Nodes with slots for them, and removes those that stand where a guest comes."""
        pins: dict[str, str] = {}
        removals: list[str] = []
        by_type: dict[str, list[ReservationPod]] = {}
        for pod in self.h.reservations.values():
            by_type.setdefault(pod.type, []).append(pod)
        for name in self.h.sizes:
            stored = self.s.stored.get(name)
            pods = by_type.get(name, [])
            if stored is None or not pods:
                continue
            # A type whose StatefulSet does not say yet what is planned waits for that.
            settled = stored.replicas == self.replicas[name]
            wanted = self._wanted_on(name)
            kept = sorted((p for p in pods if p.ordinal < self.replicas[name]), key=lambda p: p.ordinal)
            have: Counter[str] = Counter()
            for pod in kept:
                node = pod.node or self.h.pinning.get(pod.name, "")
                if pod.deleting or pod.name in self.h.removing or not node:
                    continue
                have[node] += 1
            if settled:
                for pod in sorted(kept, key=lambda pod: (pod.bound, -pod.ordinal)):  # first those that hold nothing
                    stays = pod.deleting or pod.name in self.h.removing or not pod.node
                    if not stays and have[pod.node] > wanted.get(pod.node, 0):
                        removals.append(pod.name)
                        have[pod.node] -= 1
            free = [n for n, count in wanted.items() if n in self.s.usable and have[n] < count]
            for pod in kept:
                if not free:
                    break
                if pod.node or pod.deleting or pod.name in self.h.pinning or pod.name in self.h.removing:
                    continue
                node = next((n for n in free if self._has_room(name, n)), "")
                if not node:
                    break
                pins[pod.name] = node
                self._present(node)[name] += 1
                have[node] += 1
                if have[node] >= wanted[node]:
                    free.remove(node)
        return pins, removals

    # --- what is on Nodes

    def _present(self, node: str) -> Counter[str]:
        """Returns how many Pods of each type are on a Node or may come there: reservations until they are gone, and guests."""
        if self._there is None:
            self._there = {}
            for pod in self.h.reservations.values():
                at = pod.node or self.h.pinning.get(pod.name, "")
                if at:
                    self._there.setdefault(at, Counter())[pod.type] += 1
            for pod in self.s.left_over:
                if pod.node:
                    self._there.setdefault(pod.node, Counter())[pod.type] += 1
            for name in {*self.h.sizes, *self.h.types_in_use}:
                for guest in self.h.holding(name):
                    if guest.bound or guest.uid in self.a.opened:
                        at = guest.node or self.a.places.get(guest.uid, "")
                        self._there.setdefault(at, Counter())[name] += 1
            for uid, at in self.h.opening.items():
                waiting = self.h.guests.get(uid)
                if waiting is not None and waiting.gated:
                    self._there.setdefault(at, Counter())[waiting.type] += 1
        return self._there.setdefault(node, Counter())

    def _has_room(self, name: str, node: str) -> bool:
        """Returns whether one more Pod of a type may come to a Node."""
        root = root_of(self.h.sizes, name)
        there = Counter(self._present(node))
        there[name] += 1
        return self.h.taken(there, root) <= self.s.slots.get(root, {}).get(node, 0)

    def _openings(self) -> list[Opening]:
        """Returns the guests whose slots are empty. Their grants are stored, so that no other process gives these slots away."""
        found: list[Opening] = []
        for name, grants in self.a.grants.items():
            stored = self.s.stored.get(name)
            for uid, grant in grants.items():
                guest = self.h.guests[uid]
                if not guest.gated or uid in self.h.opening:
                    continue
                if stored is None or stored.grants.get(uid) != grant:
                    continue
                if grant.not_before > self.now:
                    self.a.times.append(grant.not_before)
                elif self._has_room(name, grant.node):
                    self._present(grant.node)[name] += 1
                    found.append(Opening(guest, grant))
        return found

    # --- what another controller left

    def _replaced(self, pins: Mapping[str, str]) -> list[ReservationPod]:
        """Returns the reservations of another controller that leave now, one at a time on each Node: where its place is wanted by one that
        waits to be pinned or by a guest. Those without a Node leave first, as they would take the places of the others."""
        pods = [pod for pod in self.s.left_over if not pod.deleting]
        if homeless := [pod for pod in pods if not pod.bound]:
            return homeless
        busy = {pod.node for pod in self.s.left_over if pod.deleting}
        busy |= {*pins.values(), *self.h.pinning.values(), *self.h.opening.values()}
        busy |= {p.node for p in self.h.reservations.values() if p.node and not p.bound and not p.unschedulable}
        waiting = Counter(
            pod.type
            for pod in self.h.reservations.values()
            if not (pod.node or pod.deleting or pod.name in self.h.pinning or pod.name in pins)
        )
        found: list[ReservationPod] = []
        for pod in sorted(pods, key=lambda pod: -pod.ordinal):
            if pod.node not in busy and self._may_be_replaced(pod, waiting):
                found.append(pod)
                busy.add(pod.node)
        return found

    def _may_be_replaced(self, pod: ReservationPod, waiting: Counter[str]) -> bool:
        size = self.h.sizes.get(pod.type)
        if size is None or size.parent:
            return True
        if self._has_room(pod.type, pod.node):
            return False  # the next one comes there first
        if any(grant.node == pod.node and not self.h.guests[uid].bound for g in self.a.grants.values() for uid, grant in g.items()):  # fmt: skip
            return True
        own = [p for p in self.h.reservations.values() if p.type == pod.type]
        if sum(p.bound and not p.deleting for p in own) >= self.replicas[pod.type]:
            return True
        have = sum(p.node == pod.node for p in own)
        if waiting[pod.type] and self._wanted_on(pod.type).get(pod.node, 0) > have and pod.node in self.s.usable:
            waiting[pod.type] -= 1
            return True
        return False
