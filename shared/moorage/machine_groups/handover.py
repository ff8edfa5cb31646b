"""Hands the slots of one group over: from reservations to guests and back. Pure: Pods and what is stored come in, what is to be done
comes out. Everything is computed from what is there, so that events may come late, twice or not at all, and any process may go on.

A guest gets a slot in three steps, each of which can be repeated: its grant is stored in the StatefulSet with one reservation less;
the reservation leaves; when it is gone, the guest is pinned and its gate taken off. At no time are more Pods let onto a Node than it has slots.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from moorage.model.machines import Machine

from .sizes import Size, children_of, maximum
from .windows import Holder, Span, end_of, may_enter, next_time

#: Seconds in which a guest has to be bound after its gate was taken off.
BIND_WITHIN = 60.0
FIRST_PAUSE, LONGEST_PAUSE = 60.0, 3600.0
#: Grants that are stored with one type at a time: an annotation has room for about two thousand.
MAX_GRANTS = 1000
#: Claims that the cluster gave alone.
OFFLINE = "offline-"
#: Owners whose Pods are replaced by others, which may go to other Nodes. Of all others a deletion would be a failure.
_REPLACED_BY = ("ReplicaSet", "StatefulSet", "ReplicationController")

#: The Nodes that a guest may use beside others that have slots, by uid and Node; None: all.
NodesFor = Callable[["Guest", Mapping[str, str]], frozenset[str] | None]
#: Whether a guest may not be on a Node because of others that have slots.
Barred = Callable[["Guest", str, Mapping[str, str]], bool]


class Guest(msgspec.Struct, frozen=True, kw_only=True):
    """A Pod that was let in and is not over. `node`: where it is bound, or else pinned. Guests of one `shape` may use the same Nodes.
    `is_marked`: its Pod says that it was let in; those of another controller do not."""

    uid: str
    namespace: str
    name: str
    version: str
    type: str
    bound: bool = False
    gated: bool = False
    ready: bool = True
    deleting: bool = False
    node: str = ""
    window: str = ""
    claim: str = ""
    owner: str = ""
    shape: str = ""
    created: str = ""
    priority: int = 0
    seconds: int = 0
    grace: int = 30
    granted_at: float = 0.0
    is_marked: bool = True

    @property
    def is_loose(self) -> bool:
        """Returns whether it was let in by another controller and is not bound: it has no gate, and its Node cannot be chosen any more."""
        return not (self.bound or self.gated or self.node)

    @property
    def order(self) -> tuple[int, str, str]:
        return (-self.priority, self.created, self.uid)


class ReservationPod(msgspec.Struct, frozen=True, kw_only=True):
    """A Pod of the StatefulSet of a type. `node`: where it is bound or pinned."""

    uid: str
    name: str
    version: str
    type: str
    ordinal: int
    node: str = ""
    bound: bool = False
    deleting: bool = False
    unschedulable: bool = False
    claim: str = ""


class StoredGrant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A grant as the StatefulSet has it. `at`: when it was given, in seconds since the epoch."""

    node: str
    claim: str
    at: float
    window: str = ""
    not_before: float = 0.0
    until: float = 0.0


class Stored(NamedTuple):
    """What a StatefulSet has."""

    replicas: int
    grants: Mapping[str, StoredGrant]


class Situation(NamedTuple):
    """What a plan rests on besides the Pods. `slots`: per type and Node; `offline`: those of them that the cluster grants alone; `usable`:
    Nodes that are Ready; `ordered`: grants of the mesh, None without it; `stored`: by type; `left_over`: reservations of
    another controller, which hold places until they are replaced; `is_barred`: by rules about other guests."""

    slots: Mapping[str, Mapping[str, int]]
    offline: Mapping[str, Mapping[str, int]]
    usable: frozenset[str]
    stored: Mapping[str, Stored]
    ordered: Mapping[str, StoredGrant] | None
    nodes_for: NodesFor
    left_over: Sequence[ReservationPod] = ()
    is_barred: Barred = lambda _guest, _node, _placed: False


class Opening(NamedTuple):
    guest: Guest
    grant: StoredGrant


class Plan(NamedTuple):
    """What is to be done now. `stores`: by type, only what differs. `next`: when to look again."""

    stores: dict[str, Stored]
    pins: dict[str, str]  # name of a reservation → Node
    removals: list[str]  # names of reservations
    openings: list[Opening]
    evictions: list[Guest]
    replaced: list[ReservationPod]  # of another controller
    next: float | None


class TypeCounts(NamedTuple):
    maximum: int
    reserved: int
    used: int
    waiting: int
    granted: int


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
        self.touched: set[str] = set()  # uids of guests of which something changed
        self.set_machine(machine, sizes)

    def set_machine(self, machine: Machine, sizes: Mapping[str, Size]) -> None:
        self.machine, self.sizes = machine, sizes
        self.children = children_of(sizes)
        #: What the Machine says, and what is held: nothing of types that have no Node.
        self.declared = {name: maximum(machine, sizes, name) for name in sizes}
        placed = {name for node in machine.node_pool for name in node.machine_types}
        self.maximum = {name: most if self.root(name) in placed else 0 for name, most in self.declared.items()}
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

    def root(self, machine_type: str) -> str:
        while self.sizes[machine_type].parent:
            machine_type = self.sizes[machine_type].parent
        return machine_type

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

    # --- planning

    def plan(self, now: float, situation: Situation) -> Plan:
        return _Planner(self, now, situation).plan()

    def pause_of(self, uid: str) -> float:
        """Returns until when a guest that could not use its slot waits; 0 for others."""
        failed = self._attempts.get(uid)
        if failed is None:
            return 0.0
        return failed[1] + min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failed[0] - 1, 10))

    def note_failure(self, guest: Guest, now: float) -> None:
        self.touched.add(guest.uid)
        times, _ = self._attempts.get(guest.uid, (0, 0.0))
        self._attempts[guest.uid] = (times + 1, now)

    def holding(self, machine_type: str) -> Iterable[Guest]:
        return self._holding.get(machine_type, {}).values()

    def waiting(self, machine_type: str) -> list[tuple[int, str, str]]:
        return self._waiting.get(machine_type, [])


class _Planner:
    """One plan. `on`: Node → type → guests that have or get a slot there."""

    def __init__(self, handover: Handover, now: float, situation: Situation) -> None:
        self.h, self.now, self.s = handover, now, situation
        self.on: dict[str, Counter[str]] = {}
        self.offline_on: dict[str, Counter[str]] = {}
        self.total: Counter[str] = Counter()
        self.grants: dict[str, dict[str, StoredGrant]] = {}
        self.opened: set[str] = set()  # uids of guests that are pinned and expected to be bound
        self.places: dict[str, str] = {}  # uid → Node of the slot of a guest that could not be pinned
        self.placed: dict[str, str] = {}  # uid → Node of guests with grants
        self.times: list[float] = []
        self.evictions: list[Guest] = []
        self.retries: dict[str, list[Guest]] = {}  # type → pinned guests that could not use their slots
        self.replicas: dict[str, int] = {}

    def plan(self) -> Plan:
        self._count_holders()
        self._keep_grants()
        if self.s.ordered is not None:
            self._take_orders()
        else:
            for name in self.h.sizes:
                self._grant(name)
        stores = self._stores()
        pins, removals = self._place_reservations()
        openings = self._openings()
        replaced = self._replaced(pins)
        return Plan(stores, pins, removals, openings, self.evictions, replaced, min(self.times, default=None))

    # --- who has slots

    def _hold(self, machine_type: str, node: str, claim: str, granted: str = "") -> None:
        if granted:
            self.placed[granted] = node
        self.on.setdefault(node, Counter())[machine_type] += 1
        self.total[machine_type] += 1
        if claim.startswith(OFFLINE):
            self.offline_on.setdefault(node, Counter())[machine_type] += 1

    def _count_holders(self) -> None:
        """Counts guests that are bound, and those that are pinned and may still be bound."""
        for name in {*self.h.sizes, *self.h.types_in_use}:
            stored = self.s.stored.get(name)
            for guest in self.h.holding(name):
                if guest.bound:
                    self._hold(name, guest.node, guest.claim)
                    continue
                grant = stored.grants.get(guest.uid) if stored is not None else None
                if guest.is_loose:
                    self._count_loose(guest, grant)
                    continue
                since = max(guest.granted_at, grant.at if grant is not None else 0.0)
                if self.now < since + BIND_WITHIN:
                    self._hold(name, guest.node, guest.claim)
                    self.opened.add(guest.uid)
                    self.times.append(since + BIND_WITHIN)
                else:
                    self._give_up(guest, since)

    def _count_loose(self, guest: Guest, grant: StoredGrant | None) -> None:
        """Counts a guest of another controller where it has a slot; without one it waits for the next."""
        if grant is not None and self.now < grant.at + BIND_WITHIN:
            self._hold(guest.type, grant.node, grant.claim)
            self.opened.add(guest.uid)
            self.places[guest.uid] = grant.node
            self.times.append(grant.at + BIND_WITHIN)
            return
        if grant is not None and self.h.pause_of(guest.uid) < grant.at:
            self.h.note_failure(guest, grant.at + BIND_WITHIN)
        pause_ends = self.h.pause_of(guest.uid)
        if pause_ends > self.now:
            self.times.append(pause_ends)
        else:
            self.retries.setdefault(guest.type, []).append(guest)

    def _give_up(self, guest: Guest, since: float) -> None:
        """Withdraws the slot of a guest that was not bound in time."""
        if self.h.pause_of(guest.uid) < since:
            self.h.note_failure(guest, since + BIND_WITHIN)
        if guest.owner in _REPLACED_BY:
            self.evictions.append(guest)
            return
        pause_ends = self.h.pause_of(guest.uid)
        if pause_ends > self.now:
            self.times.append(pause_ends)
        else:
            self.retries.setdefault(guest.type, []).append(guest)

    def _keep_grants(self) -> None:
        """Keeps the stored grants of guests that wait at their gates."""
        for name in self.h.sizes:
            mine = self.grants[name] = {}
            stored = self.s.stored.get(name)
            for uid, grant in (stored.grants if stored is not None else {}).items():
                guest = self.h.guests.get(uid)
                if guest is None or guest.deleting or guest.bound or guest.type != name:
                    continue
                if not guest.gated:
                    if uid in self.opened:
                        mine[uid] = grant
                        self.placed[uid] = grant.node
                    continue
                withdrawn = self.s.ordered is not None and uid not in self.s.ordered
                if (withdrawn and not grant.claim.startswith(OFFLINE)) or not guest.ready or self._is_over(grant):
                    continue
                if self.h.pause_of(uid) > self.now:
                    continue
                if uid in self.h.opening:
                    mine[uid] = grant
                    self._hold(name, grant.node, grant.claim, uid)
                    continue
                if grant.node not in self.s.usable:
                    continue
                mine[uid] = grant
                self._hold(name, grant.node, grant.claim, uid)

    def _is_over(self, grant: StoredGrant) -> bool:
        return bool(grant.until) and grant.until <= self.now

    def _take_orders(self) -> None:
        """Takes over the grants of the mesh, and those that it gave again to guests that are pinned already."""
        assert self.s.ordered is not None
        for uid, grant in self.s.ordered.items():
            guest = self.h.guests.get(uid)
            if guest is None or guest.deleting or guest.bound or guest.type not in self.grants:
                continue
            mine = self.grants[guest.type]
            if uid in mine or uid in self.opened or self._is_over(grant) or len(mine) >= MAX_GRANTS:
                continue
            if grant.node not in self.s.usable or not (guest.ready or not guest.gated):
                continue
            if (not guest.gated and grant.at <= guest.granted_at) or self.h.pause_of(uid) > self.now:
                continue
            if guest.gated and self.s.is_barred(guest, grant.node, self.placed):
                # The mesh does not know rules about other guests. Told of a failure, it gives another slot.
                self.h.note_failure(guest, self.now)
                continue
            mine[uid] = grant
            self._hold(guest.type, grant.node, grant.claim, uid)

    # --- who gets slots, without the mesh

    def _has_slot(self, machine_type: str, node: str) -> bool:
        """Returns whether a Node has one more slot that the cluster may grant alone."""
        root = self.h.root(machine_type)
        most = self.s.slots.get(root, {}).get(node, 0)
        alone = self.s.offline.get(root, {}).get(node, 0)
        one_more = Counter(self.on.get(node, Counter()))
        one_more[machine_type] += 1
        if self.h.taken(one_more, root) > most:
            return False
        alone_more = Counter(self.offline_on.get(node, Counter()))
        alone_more[machine_type] += 1
        return self.h.taken(alone_more, root) <= alone

    def _grant(self, name: str) -> None:
        """Gives free slots to guests by priority and age. Those that leave first are given first, so that no other has to move."""
        root = self.h.root(name)
        leaving = sorted((p for p in self.h.reservations.values() if p.type == root), key=lambda p: -p.ordinal)
        nodes = list(dict.fromkeys([p.node for p in leaving if p.node] + sorted(self.s.slots.get(root, {}))))
        free = [n for n in nodes if n in self.s.usable and self._has_slot(name, n)]
        if not free:
            return
        hopeless: set[str] = set()
        for guest in self.retries.get(name, ()):
            allowed = frozenset({guest.node}) if guest.node else self.s.nodes_for(guest, self.placed)
            node = next((n for n in free if allowed is None or n in allowed), "")
            if node and self._may_enter(guest):
                self._give(guest, node)
                free = [n for n in free if self._has_slot(name, n)]
        for order in self.h.waiting(name):
            if not free or self.total[name] >= self.h.maximum[name] or len(self.grants[name]) >= MAX_GRANTS:
                return
            guest = self.h.guests[order[2]]
            if guest.uid in self.grants[name] or not guest.ready or guest.shape in hopeless:
                continue
            if (pause_ends := self.h.pause_of(guest.uid)) > self.now:
                self.times.append(pause_ends)
                continue
            allowed = self.s.nodes_for(guest, self.placed)
            node = next((n for n in free if allowed is None or n in allowed), "")
            if not node:
                hopeless.add(guest.shape)
                continue
            if not self._may_enter(guest):
                continue
            self._give(guest, node)
            if not self._has_slot(name, node):
                free.remove(node)

    def _may_enter(self, guest: Guest) -> bool:
        total = self.h.maximum[guest.type]
        if self.total[guest.type] >= total:
            return False
        spans = self.h.spans.get(guest.type, [])
        if not spans:
            return not guest.window
        if (time := next_time(spans, self.now)) is not None:
            self.times.append(time)
        asking = Holder(guest.window, end_of(self.now, guest.seconds, guest.grace))
        return may_enter(total, spans, self._window_holders(guest.type), asking, self.now)

    def _window_holders(self, name: str) -> list[Holder]:
        found = [
            Holder(guest.window, end_of(guest.granted_at or self.now, guest.seconds, guest.grace))
            for guest in self.h.holding(name)
            if guest.bound or guest.uid in self.opened
        ]
        for uid in self.grants[name]:
            guest = self.h.guests[uid]
            if guest.gated:
                found.append(Holder(guest.window, end_of(self.now, guest.seconds, guest.grace)))
        return found

    def _give(self, guest: Guest, node: str) -> None:
        span = next((s for s in self.h.spans.get(guest.type, []) if s.window.name == guest.window), None)
        grant = StoredGrant(
            node=node,
            claim=f"{OFFLINE}{guest.uid}",
            at=self.now,
            window=guest.window,
            not_before=span.begin if span is not None else 0.0,
            until=span.end if span is not None else 0.0,
        )
        self.grants[guest.type][guest.uid] = grant
        self._hold(guest.type, node, grant.claim, guest.uid)

    # --- reservations

    def _open_parents(self, name: str, node: str) -> int:
        """Returns how many slots of the parent of a type are open for it on a Node."""
        return -(-self.h.taken(self.on.get(node, Counter()), name) // self.h.sizes[name].per_parent)

    def _wanted_on(self, name: str) -> dict[str, int]:
        """Returns how many reservations of a type each Node is to have."""
        size = self.h.sizes[name]
        if not size.parent:
            slots = self.s.slots.get(name, {})
            wanted = {n: count - self.h.taken(self.on.get(n, Counter()), name) for n, count in slots.items()}
            return {n: count for n, count in wanted.items() if count > 0}
        room = self.h.maximum[name] - self.total_taken(name)
        found: dict[str, int] = {}
        for node in sorted(self.on):
            taken = self.h.taken(self.on[node], name)
            spare = min(room, self._open_parents(name, node) * size.per_parent - taken)
            if spare > 0:
                found[node] = spare
                room -= spare
        return found

    def total_taken(self, name: str) -> int:
        return sum(self.h.taken(counts, name) for counts in self.on.values())

    def _stores(self) -> dict[str, Stored]:
        stores: dict[str, Stored] = {}
        for name, size in self.h.sizes.items():
            if size.parent:
                replicas = sum(self._wanted_on(name).values())
            else:
                replicas = max(0, self.h.maximum[name] - self.total_taken(name))
            self.replicas[name] = replicas
            stored = self.s.stored.get(name)
            if stored is None:
                continue  # it is created first
            before = {uid: grant for uid, grant in stored.grants.items() if self._matters(uid)}
            if stored.replicas != replicas or before != self.grants[name]:
                stores[name] = Stored(replicas, self.grants[name])
        return stores

    def _matters(self, uid: str) -> bool:
        """Returns whether a stored grant still says something. Those of guests that are bound or gone go with the next change."""
        guest = self.h.guests.get(uid)
        if guest is None or guest.deleting or guest.bound:
            return False
        return guest.gated or uid in self.opened

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
                for pod in reversed(kept):
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
        if not hasattr(self, "_there"):
            self._there: dict[str, Counter[str]] = {}
            for pod in self.h.reservations.values():
                at = pod.node or self.h.pinning.get(pod.name, "")
                if at:
                    self._there.setdefault(at, Counter())[pod.type] += 1
            for pod in self.s.left_over:
                if pod.node:
                    self._there.setdefault(pod.node, Counter())[pod.type] += 1
            for name in {*self.h.sizes, *self.h.types_in_use}:
                for guest in self.h.holding(name):
                    if guest.bound or guest.uid in self.opened:
                        at = guest.node or self.places.get(guest.uid, "")
                        self._there.setdefault(at, Counter())[name] += 1
            for uid, at in self.h.opening.items():
                waiting = self.h.guests.get(uid)
                if waiting is not None and waiting.gated:
                    self._there.setdefault(at, Counter())[waiting.type] += 1
        return self._there.setdefault(node, Counter())

    def _has_room(self, name: str, node: str) -> bool:
        """Returns whether one more Pod of a type may come to a Node."""
        root = self.h.root(name)
        there = Counter(self._present(node))
        there[name] += 1
        return self.h.taken(there, root) <= self.s.slots.get(root, {}).get(node, 0)

    def _openings(self) -> list[Opening]:
        """Returns the guests whose slots are empty. Their grants are stored, so that no other process gives these slots away."""
        found: list[Opening] = []
        for name, grants in self.grants.items():
            stored = self.s.stored.get(name)
            for uid, grant in grants.items():
                guest = self.h.guests[uid]
                if not guest.gated or uid in self.h.opening:
                    continue
                if stored is None or stored.grants.get(uid) != grant:
                    continue
                if grant.not_before > self.now:
                    self.times.append(grant.not_before)
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
        if any(grant.node == pod.node and not self.h.guests[uid].bound for g in self.grants.values() for uid, grant in g.items()):  # fmt: skip
            return True
        own = [p for p in self.h.reservations.values() if p.type == pod.type]
        if sum(p.bound and not p.deleting for p in own) >= self.replicas[pod.type]:
            return True
        have = sum(p.node == pod.node for p in own)
        if waiting[pod.type] and self._wanted_on(pod.type).get(pod.node, 0) > have and pod.node in self.s.usable:
            waiting[pod.type] -= 1
            return True
        return False
