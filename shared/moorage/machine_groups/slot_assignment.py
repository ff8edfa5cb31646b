"""Tells who has the slots of one group, and gives free ones to guests: those that the mesh granted, or without it by priority and age.
Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .handover import REPLACED_BY, Handover
from .handover_records import OFFLINE, Guest, Situation, StoredGrant
from .sizes import root_of
from .windows import Holder, end_of, may_enter, next_time

#: Seconds in which a guest has to be bound after its gate was taken off.
BIND_WITHIN = 60.0
#: Grants that are stored with one type at a time: packed, an annotation has room for some more, also where names of Nodes are long.
MAX_GRANTS = 3000


class SlotAssignment:
    """`on`: Node → type → guests that have or get a slot there."""

    def __init__(self, handover: Handover, now: float, situation: Situation) -> None:
        self.h, self.now, self.s = handover, now, situation
        self.on: dict[str, Counter[str]] = {}
        self.offline_on: dict[str, Counter[str]] = {}
        self.offline_total: Counter[str] = Counter()  # type → slots given alone, to it or to types in it
        self.total: Counter[str] = Counter()
        self.grants: dict[str, dict[str, StoredGrant]] = {}
        self.opened: set[str] = set()  # uids of guests that are pinned and expected to be bound
        self.places: dict[str, str] = {}  # uid → Node of the slot of a guest that could not be pinned
        self.times: list[float] = []
        self.evictions: list[Guest] = []
        self.retries: dict[str, list[Guest]] = {}  # type → pinned guests that could not use their slots
        #: (type, Node) where a reservation finds no room: the next guest there would be left without one.
        self.full = {(p.type, p.node) for p in handover.reservations.values() if p.unschedulable and not p.bound}

    def run(self) -> None:
        self._count_holders()
        self._keep_grants()
        if (time := self.h.end_avoidance(self.now)) is not None:
            self.times.append(time)
        if self.s.ordered is not None:
            self._take_orders()
        else:
            for name in self.h.sizes:
                self._grant(name)

    # --- who has slots

    def _hold(self, machine_type: str, node: str, granted: str = "", *, alone: bool) -> None:
        if granted:
            self.s.placed.put(granted, node)
        self.on.setdefault(node, Counter())[machine_type] += 1
        self.total[machine_type] += 1
        if alone:
            there = self.offline_on.setdefault(node, Counter())
            self.offline_total.update(self._more_taken(machine_type, there))
            there[machine_type] += 1

    def _count_holders(self) -> None:
        """Counts guests that are bound, and those that are pinned and may still be bound."""
        for name in {*self.h.sizes, *self.h.types_in_use}:
            stored = self.s.stored.get(name)
            for guest in self.h.holding(name):
                if guest.bound:
                    self._hold(name, guest.node, alone=guest.alone)
                    continue
                grant = stored.grants.get(guest.uid) if stored is not None else None
                if guest.is_loose:
                    self._count_loose(guest, grant)
                    continue
                since = max(guest.granted_at, grant.at if grant is not None else 0.0)
                if self.now < since + BIND_WITHIN:
                    self._hold(name, guest.node, alone=guest.alone)
                    self.opened.add(guest.uid)
                    self.times.append(since + BIND_WITHIN)
                else:
                    self._give_up(guest, since)

    def _count_loose(self, guest: Guest, grant: StoredGrant | None) -> None:
        """Counts a guest of another controller where it has a slot; without one it waits for the next."""
        if grant is not None and self.now < grant.at + BIND_WITHIN:
            self._hold(guest.type, grant.node, alone=grant.alone)
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
        if guest.owner in REPLACED_BY:
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
            grants = (stored.grants if stored is not None else {}).items()
            for uid, grant in sorted(grants, key=lambda item: item[1].alone):
                guest = self.h.guests.get(uid)
                if guest is None or guest.deleting or guest.bound or guest.type != name:
                    continue
                if not guest.gated:
                    if uid in self.opened:
                        mine[uid] = grant
                        self.s.placed.put(uid, grant.node)
                    continue
                # Slots that were given alone and are empty still are the mesh's again: it does not know that they were given.
                withdrawn = self.s.ordered is not None and (grant.alone or uid not in self.s.ordered)
                if (withdrawn and uid not in self.h.opening) or not guest.ready or self._is_over(grant):
                    continue
                if self.h.pause_of(uid) > self.now:
                    continue
                if uid in self.h.opening:
                    mine[uid] = grant
                    self._hold(name, grant.node, uid, alone=grant.alone)
                    continue
                if grant.node not in self.s.usable or (grant.alone and not self._has_slot(name, grant.node)):
                    continue  # fewer slots may be set aside there than before
                mine[uid] = grant
                self._hold(name, grant.node, uid, alone=grant.alone)

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
            if guest.gated and not self.s.placed.allows(uid, grant.node):
                # A guest came meanwhile of which the mesh did not know. Told of a failure, it gives another slot.
                self.h.note_failure(guest, self.now)
                continue
            mine[uid] = grant
            self._hold(guest.type, grant.node, uid, alone=grant.alone)

    # --- who gets slots, without the mesh

    def _has_slot(self, machine_type: str, node: str) -> bool:
        """Returns whether a Node has one more slot that the cluster may grant alone."""
        root = root_of(self.h.sizes, machine_type)
        if (root, node) in self.full:
            return False
        most = self.s.slots.get(root, {}).get(node, 0)
        alone = self.s.offline.get(root, {}).get(node, 0)
        one_more = Counter(self.on.get(node, Counter()))
        one_more[machine_type] += 1
        if self.h.taken(one_more, root) > most:
            return False
        alone_more = Counter(self.offline_on.get(node, Counter()))
        alone_more[machine_type] += 1
        return self.h.taken(alone_more, root) <= alone and self._is_set_aside(machine_type, node)

    def _is_set_aside(self, machine_type: str, node: str) -> bool:
        """Returns whether the cluster may have one more alone on a Node, of a type and of those in which it lives."""
        more = self._more_taken(machine_type, self.offline_on.get(node, Counter()))
        limits = ((name, self.s.set_aside.get(name)) for name in more)
        return all(most is None or self.offline_total[name] + more[name] <= most for name, most in limits)

    def _more_taken(self, machine_type: str, there: Counter[str]) -> dict[str, int]:
        """Returns how many slots one more guest takes of its type and of each in which that lives, on a Node where these are."""
        with_it = there + Counter([machine_type])
        more: dict[str, int] = {}
        while machine_type in self.h.sizes:
            more[machine_type] = self.h.taken(with_it, machine_type) - self.h.taken(there, machine_type)
            machine_type = self.h.sizes[machine_type].parent
        return more

    def _grant(self, name: str) -> None:
        """Gives free slots to guests by priority and age. Those that leave first are given first, so that no other has to move."""
        root = root_of(self.h.sizes, name)
        leaving = sorted((p for p in self.h.reservations.values() if p.type == root), key=lambda p: -p.ordinal)
        nodes = list(dict.fromkeys([p.node for p in leaving if p.node] + sorted(self.s.slots.get(root, {}))))
        free = [n for n in nodes if n in self.s.usable and self._has_slot(name, n)]
        if not free:
            return
        hopeless: set[tuple[str, str, frozenset[str]]] = set()
        for guest in self.retries.get(name, ()):
            node = self._node_for(guest, free)
            if node and self._may_enter(guest):
                self._give(guest, node)
                free = [n for n in free if self._has_slot(name, n)]
        for order in self.h.waiting(name):
            if not free or self.total[name] >= self.h.maximum[name] or len(self.grants[name]) >= MAX_GRANTS:
                return
            guest = self.h.guests[order[2]]
            alike = guest.shape, self.s.placed.kind_of(guest.uid), self.h.avoided(guest)
            if guest.uid in self.grants[name] or not guest.ready or alike in hopeless:
                continue
            if (pause_ends := self.h.pause_of(guest.uid)) > self.now:
                self.times.append(pause_ends)
                continue
            node = self._node_for(guest, free)
            if not node:
                hopeless.add(alike)
                continue
            if not self._may_enter(guest):
                continue
            self._give(guest, node)
            if not self._has_slot(name, node):
                free.remove(node)

    def _node_for(self, guest: Guest, free: Sequence[str]) -> str:
        """Returns the first of these Nodes that a guest may use; "" if it may use none."""
        if guest.node:
            return guest.node if guest.node in free else ""
        allowed, avoided, placed = self.s.nodes_for(guest), self.h.avoided(guest), self.s.placed
        usable = (n for n in free if (allowed is None or n in allowed) and n not in avoided)
        return next((n for n in usable if placed.allows(guest.uid, n)), "")

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
        self._hold(guest.type, node, guest.uid, alone=True)
