"""The Pods of one group of which some have slots and others wait for them. Pure: everything is computed from what is there, so that events
may come late, twice or not at all, and any process may go on.

A guest gets a slot in three steps, each of which can be repeated: its grant is stored in the StatefulSet with one reservation less;
the reservation leaves; when it is gone, the guest is pinned and its gate taken off. At no time are more Pods let onto a Node than it has slots.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from moorage.model.machines import Machine

from .avoided_nodes import AvoidedNodes, pause_after
from .handover_records import Guest, ReservationPod, TypeCounts
from .sizes import Size, children_of, maximum, root_of
from .windows import Span

#: Owners whose Pods are replaced by others, which may go to other Nodes. Of all others a deletion would be a failure.
REPLACED_BY = ("ReplicaSet", "StatefulSet", "ReplicationController")


class Handover:
    """The Pods of one group."""

    def __init__(self, machine: Machine, sizes: Mapping[str, Size]) -> None:
        self.guests: dict[str, Guest] = {}
        self.reservations: dict[str, ReservationPod] = {}
        self.opening: dict[str, str] = {}  # uid → Node: requests under way
        self.pinning: dict[str, str] = {}  # name → Node: requests under way
        self.removing: set[str] = set()
        self._holding: dict[str, dict[str, Guest]] = {}  # type → guests that are bound or pinned
        self._waiting: dict[str, list[tuple[int, str, str]]] = {}  # type → guests at their gates
        #: uid → failed attempts, and when the last one ended
        self._attempts: dict[str, tuple[int, float]] = {}
        self._avoided = AvoidedNodes()
        self.touched: set[str] = set()  # uids of guests of which something changed
        self.set_machine(machine, sizes)

    def set_machine(self, machine: Machine, sizes: Mapping[str, Size]) -> None:
        self.machine, self.sizes = machine, sizes
        self.children = children_of(sizes)
        #: What the Machine says, and what is held: nothing of types that have no Node.
        self.declared = {name: maximum(machine, sizes, name) for name in sizes}
        placed = {name for node in machine.node_pool for name in node.machine_types}
        self.maximum = {
            name: most if root_of(self.sizes, name) in placed else 0 for name, most in self.declared.items()
        }
        self.spans = {t.name: [Span.of(w) for w in t.windows] for t in machine.types}

    # --- what is there

    def put_guest(self, guest: Guest) -> None:
        self.drop_guest(guest.uid)
        self.guests[guest.uid] = guest
        if guest.bound or not guest.gated:
            if guest.bound or not guest.deleting:
                self._holding.setdefault(guest.type, {})[guest.uid] = guest
        elif not guest.deleting:
            bisect.insort(self._waiting.setdefault(guest.type, []), guest.order)
        if guest.bound:
            self._attempts.pop(guest.uid, None)
            self._avoided.note_success(guest.owner_uid, guest.node)

    def drop_guest(self, uid: str) -> None:
        self.touched.add(uid)
        before = self.guests.pop(uid, None)
        if before is None:
            return
        self._holding.get(before.type, {}).pop(uid, None)
        queue = self._waiting.get(before.type, [])
        i = bisect.bisect_left(queue, before.order)
        if i < len(queue) and queue[i] == before.order:
            del queue[i]

    def forget_guest(self, uid: str) -> None:
        self.drop_guest(uid)
        self._attempts.pop(uid, None)

    def put_reservation(self, pod: ReservationPod) -> None:
        self.reservations[pod.name] = pod

    def drop_reservation(self, name: str, uid: str) -> None:
        if name in self.reservations and self.reservations[name].uid == uid:
            del self.reservations[name]

    @property
    def types_in_use(self) -> set[str]:
        """Returns the types with guests, also those that the Machine does not have any more."""
        found = {t for t, guests in self._holding.items() if guests} | {
            t for t, queue in self._waiting.items() if queue
        }
        return found

    # --- counting

    def taken(self, counts: Mapping[str, int], machine_type: str) -> int:
        """Returns how many slots of a type are in use on one Node where `counts` Pods of each type are."""
        own = counts.get(machine_type, 0)
        for child in self.children.get(machine_type, ()):
            own += -(-self.taken(counts, child) // self.sizes[child].per_parent)
        return own

    def counts(self, usable: frozenset[str]) -> dict[str, TypeCounts]:
        """Returns the rows of the status."""
        used: dict[str, Counter[str]] = {}  # node → type → bound guests
        waiting: Counter[str] = Counter()
        granted: Counter[str] = Counter()
        for guests in self._holding.values():
            for guest in guests.values():
                if guest.bound:
                    used.setdefault(guest.node, Counter())[guest.type] += 1
                else:
                    waiting[guest.type] += 1
                    granted[guest.type] += 1
        for machine_type, queue in self._waiting.items():
            waiting[machine_type] += len(queue)
        own: dict[str, Counter[str]] = {}  # type → node → reservations
        for pod in self.reservations.values():
            if pod.bound and not pod.deleting and pod.node in usable:
                own.setdefault(pod.type, Counter())[pod.node] += 1
        rows = {}
        for name in [*self.sizes, *sorted(self.types_in_use - set(self.sizes))]:
            if name in self.sizes:
                taken = sum(self.taken(counts, name) for counts in used.values())
            else:
                taken = sum(counts[name] for counts in used.values())
            reserved, most = sum(own.get(name, Counter()).values()), self.declared.get(name, 0)
            if name in self.sizes and (parent := self.sizes[name].parent):
                intact = sum(own.get(parent, Counter()).values())
                reserved = max(0, min(reserved + intact * self.sizes[name].per_parent, most - taken))
            rows[name] = TypeCounts(most, reserved, taken, waiting[name], granted[name])
        return rows

    # --- attempts, and who holds and waits

    def pause_of(self, uid: str) -> float:
        """Returns until when a guest that could not use its slot waits; 0 for others."""
        failed = self._attempts.get(uid)
        if failed is None:
            return 0.0
        return failed[1] + pause_after(failed[0])

    def note_failure(self, guest: Guest, now: float) -> None:
        self.touched.add(guest.uid)
        times, _ = self._attempts.get(guest.uid, (0, 0.0))
        self._attempts[guest.uid] = (times + 1, now)
        if guest.owner in REPLACED_BY and guest.node:
            before = self.avoided(guest)
            self._avoided.note_failure(guest.owner_uid, guest.node, now)
            if self.avoided(guest) != before:
                self._touch_pods_of({guest.owner_uid})

    def avoided(self, guest: Guest) -> frozenset[str]:
        """Returns the Nodes where Pods of the same owner were not bound."""
        return self._avoided.of(guest.owner_uid)

    def end_avoidance(self, now: float) -> float | None:
        """Lets Nodes be tried again whose time has come. Returns when that of the next one comes."""
        time = self._avoided.next_time()
        if time is None or time > now:
            return time
        self._touch_pods_of(self._avoided.expire(now, {guest.owner_uid for guest in self.guests.values()}))
        return self._avoided.next_time()

    def _touch_pods_of(self, owners: Collection[str]) -> None:
        self.touched |= {uid for uid, guest in self.guests.items() if guest.owner_uid in owners}

    def holding(self, machine_type: str) -> Iterable[Guest]:
        return self._holding.get(machine_type, {}).values()

    def waiting(self, machine_type: str) -> list[tuple[int, str, str]]:
        return self._waiting.get(machine_type, [])
