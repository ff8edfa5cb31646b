"""Plans for the Machines of a cluster: what is reserved for them, and which guests get slots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType

import msgspec

from moorage.fleet import HOSTNAME, Fleet
from moorage.ledger import Ledger
from moorage.machine_groups import sizes
from moorage.machine_groups.guest_rules import PlacedGuests
from moorage.machine_groups.sizes import per_slot, root_of, slot_size
from moorage.machine_groups.windows import Span, next_time
from moorage.model.machine_slots import GrantedSlot, ReservedSlots, reservation_claim, slot_resource
from moorage.model.machines import (
    Allow,
    Grant,
    GuestReport,
    Machine,
    MachineDocument,
    MachineType,
    Reservation,
    WaitingReason,
)

from .grants import GrantPlan, SlotUse, plan_grants, short_of
from .layout import PATIENCE, NodeCounts, NodeKey, PooledNode, lay_out
from .mesh_machines import StoredMachine
from .slot_pods import (
    SlotsInUse,
    claims_within,
    slots_of_objects,
    times_of_claims,
)
from .state import ClusterMachines
from .type_reservations import changed, reserve_type


@dataclass(slots=True)
class ReservationPlan:
    """`changed`: reservations that differ from the ledger's. `why`: by machine type, why it has fewer slots than wanted. `again`: when
    to plan again, in seconds since 1970; 0: only when something changes."""

    changed: list[ReservedSlots] = field(default_factory=list)
    why: dict[str, str] = field(default_factory=dict)
    again: float = 0.0


@dataclass(slots=True)
class Answer:
    """The answer to a cluster."""

    reservations: dict[str, Reservation] = field(default_factory=dict)
    grants: dict[str, Grant] = field(default_factory=dict)
    waiting: dict[str, WaitingReason] = field(default_factory=dict)
    documents: dict[str, MachineDocument] = field(default_factory=dict)


class FleetRoom:
    """The room of nodes beside the slots of one Machine, and beside pods that count to them: those of a controller that was there before
    do so before the slots are reserved."""

    def __init__(self, fleet: Fleet, ledger: Ledger, machine: Machine) -> None:
        self._fleet, self._ledger, self._group = fleet, ledger, f"{machine.group}/"
        found = sizes(machine)
        self._sizes = {
            f"{machine.group}/{name}": slot_size(found, name) for name, size in found.items() if not size.parent
        }
        self._own: dict[
            str, list[tuple[Mapping[str, int], dict[str, int]]]
        ] = {}  # cluster → sizes, each with counts by node

    def row(self, node: NodeKey) -> int | None:
        cid = self._fleet.ids.get(node.cluster)
        return None if cid is None else self._fleet.row_of(cid, node.name)

    def free(self, node: NodeKey, resource: str) -> int:
        row, column = self.row(node), self._fleet.free(resource)
        own = sum(size.get(resource, 0) * counts.get(node.name, 0) for size, counts in self._own_in(node.cluster))
        # Slots on a node that is away stay as long as its pool says so.
        return own if row is None or column is None else int(column[row]) + own

    def _own_in(self, cluster: str) -> list[tuple[Mapping[str, int], dict[str, int]]]:
        """Returns the slots of the Machine in a cluster, or the pods that count to them where these are more."""
        if cluster not in self._own:
            cid = self._fleet.ids.get(cluster)
            held = {
                r.machine: r for r in self._ledger.machines.of_cluster(cluster) if r.machine.startswith(self._group)
            }
            found = self._own[cluster] = []
            for key in {**self._sizes, **held}:
                counts = dict(held[key].slots) if key in held else {}
                live = self._fleet.pods.live(reservation_claim(key, cluster), cid) if cid is not None else {}
                for name, count in live.items():
                    counts[name] = max(count, counts.get(name, 0))
                found.append((held[key].size if key in held else self._sizes[key], counts))
        return self._own[cluster]

    def allocatable(self, node: NodeKey, resource: str) -> int:
        row, column = self.row(node), self._fleet.allocatable(resource)
        return 0 if row is None or column is None else int(column[row])

    def has_label(self, node: NodeKey, label: tuple[str, str]) -> bool:
        row = self.row(node)
        labels = self._fleet.label_sets[int(self._fleet.labelset[row])] if row is not None else {}
        return labels.get(label[0]) == label[1]


def is_usable(fleet: Fleet, node: NodeKey) -> bool:
    """Returns whether the log takes new slots on a node: its agent of Machines may not have noticed yet what happened to it."""
    cid = fleet.ids.get(node.cluster)
    row = None if cid is None else fleet.row_of(cid, node.name)
    return row is not None and bool(fleet.usable[row])


class Planner:
    """Plans from the ledger, the fleet and what one cluster reported."""

    def __init__(
        self,
        fleet: Fleet,
        ledger: Ledger,
        cluster: ClusterMachines,
        now: float,
        documents: Sequence[StoredMachine] = (),
        why: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`documents`: Machines of the mesh with nodes in this cluster, and `why` their types have fewer slots than wanted."""
        self._fleet, self._ledger, self._cluster, self._now = fleet, ledger, cluster, now
        self._documents, self._why = documents, why
        self._planned: dict[NodeKey, dict[str, int]] = {}  # slots that guests get by this plan

    def machines(self) -> Iterator[Machine]:
        """Yields the Machines for which slots are reserved."""
        yield from self._own_machines()
        yield from (stored.machine for stored in self._documents)

    def _own_machines(self) -> Iterator[Machine]:
        """Yields those that were made in the cluster."""
        names = {stored.name for stored in self._documents}
        for report in self._cluster.machines.values():
            stands = report.machine is not None and not report.deleting and not report.invalid
            if stands and report.machine is not None and report.origin == "cluster" and report.name not in names:
                yield report.machine

    def _stays(self, key: str) -> bool:
        """Returns whether the slots of a type stay as they are in the ledger: its Machine is invalid, or is not known and may be one that is."""
        group = key.partition("/")[0]
        reports = [report for report in self._cluster.machines.values() if not report.deleting]
        of_group = [r.invalid for r in reports if r.machine is not None and r.machine.group == group]
        return any(of_group or (r.invalid for r in reports if r.machine is None))

    def reservations(self) -> ReservationPlan:
        plan = ReservationPlan()
        if self._cluster.name not in self._fleet.ids:
            return plan  # nothing is known of its nodes
        wanted: dict[str, ReservedSlots] = {}
        for machine in self._own_machines():
            nodes = [self._pooled(machine, number) for number in range(len(machine.node_pool))]
            held = {t.name: self._held(f"{machine.group}/{t.name}") for t in machine.types}
            in_use = SlotsInUse.read(self._ledger, machine, (self._cluster.name,), self._now)
            layouts = lay_out(machine, nodes, held, in_use.used(), FleetRoom(self._fleet, self._ledger, machine))
            for machine_type in machine.types:
                layout = layouts.get(machine_type.name)
                if layout is not None:
                    key = f"{machine.group}/{machine_type.name}"
                    own, allowed = (self._cluster.name,), self.allowed(machine, machine_type.name)
                    found = reserve_type(
                        machine, machine_type, layout.slots, own, self._ledger, self._now, in_use, allowed
                    )
                    wanted[key] = found.by_cluster[self._cluster.name]
                    if layout.short:
                        plan.why[key] = f"{layout.maximum - layout.short} of {layout.maximum} slots fit; {layout.why}"
        for machine in self.machines():
            plan.again = _sooner(plan.again, self._next(machine))
        plan.changed += [reserved for reserved in wanted.values() if changed(reserved, self._ledger)]
        known = {f"{s.machine.group}/{kind.name}" for s in self._documents for kind in s.machine.types} | wanted.keys()
        for reserved in self._ledger.machines.of_cluster(self._cluster.name):
            if reserved.machine not in known and not self._stays(reserved.machine):
                plan.changed.append(ReservedSlots(machine=reserved.machine, cluster=reserved.cluster))
        return plan

    def grants(self, *, new: bool = True) -> GrantPlan:
        """Plans the guests of all machine types. Of guests whose type has no slots here only ends are noted. `new`: gives out slots, too."""
        total = GrantPlan()
        guests: dict[str, list[GuestReport]] = {}
        for guest in self._cluster.guests.values():
            active = self._ledger.claims.get(guest.claim) if guest.claim else None
            # Clusters do not know projects.
            known = guest if active is None else msgspec.structs.replace(guest, project=active.claim.tenant)
            guests.setdefault(guest.machine, []).append(known)
        held: dict[str, dict[str, GrantedSlot]] = {}
        for uid, slot in self._granted().items():
            held.setdefault(slot.machine, {})[uid] = slot
        placed = self._placed()
        for key in sorted({*guests, *held}):
            slots = held.get(key, {})
            mine = [guest for guest in guests.get(key, ()) if new or guest.node or guest.uid in slots]
            if self._stays(key):  # a cluster that started since knows its guests no more
                text = f"{key} stays as it is until its Machine is valid again"
                total.waiting += [short_of(g, text) for g in mine if g.uid not in slots and g.state == "waiting"]
                continue
            found = plan_grants(self._use(key), mine, slots, self._offered, self._now, placed)
            for slot in found.granted:
                planned = self._planned.setdefault(NodeKey(self._cluster.name, slot.node), {})
                for resource, amount in slot.takes.items():
                    planned[resource] = planned.get(resource, 0) + amount
            total.granted += found.granted
            total.observed += found.observed
            total.withdrawn += found.withdrawn
            total.waiting += found.waiting
        if total.withdrawn or total.observed:
            total.granted = []  # of types that share slots, what is free is known once this is in the log
        return total

    def _placed(self) -> PlacedGuests:
        """Returns the guests that have slots, by what rules of guests see of them."""
        guests = self._cluster.guests
        placed = PlacedGuests(self._cluster.rules, lambda uid: guests[uid].kind if uid in guests else "", self._domain)
        if self._cluster.rules:
            for uid, slot in self._granted().items():
                placed.put(uid, slot.node)
            for uid, guest in guests.items():
                if guest.node and not guest.ended:
                    placed.put(uid, guest.node)
        return placed

    def _domain(self, node: str, topology_key: str) -> str | None:
        """Returns the value that a node has for a topology key."""
        cid = self._fleet.ids.get(self._cluster.name)
        row = None if cid is None else self._fleet.row_of(cid, node)
        if row is None:
            return None
        if topology_key == HOSTNAME and self._fleet.host_label[row]:
            return node
        return self._fleet.label_sets[int(self._fleet.labelset[row])].get(topology_key)

    def answer(self, plan: ReservationPlan, waiting: list[WaitingReason]) -> Answer:
        answer = Answer(waiting={reason.uid: reason for reason in waiting})
        keys = [f"{machine.group}/{kind.name}" for machine in self.machines() for kind in machine.types]
        held = {reserved.machine: reserved for reserved in self._ledger.machines.of_cluster(self._cluster.name)}
        for key in dict.fromkeys([*keys, *held]):
            reserved = held.get(key)
            answer.reservations[key] = Reservation(
                machine=key,
                claim=reservation_claim(key, self._cluster.name),
                slots=dict(reserved.slots) if reserved is not None else {},
                offline=dict(reserved.offline) if reserved is not None else {},
                reason=plan.why.get(key, "") or self._why.get(key, ""),
            )
        for uid, slot in self._granted().items():
            answer.grants[uid] = Grant(
                uid=uid,
                machine=slot.machine,
                node=slot.node,
                claim=slot.claim,
                window=slot.window,
                not_before=slot.not_before,
                until=slot.until,
            )
        return answer

    def _held(self, key: str) -> NodeCounts:
        reserved = self._ledger.machines.reserved.get(reservation_claim(key, self._cluster.name))
        slots: Mapping[str, int] = reserved.slots if reserved is not None else {}
        return {NodeKey(self._cluster.name, name): count for name, count in slots.items()}

    def _granted(self) -> dict[str, GrantedSlot]:
        return self._ledger.machines.granted_in(self._cluster.name)

    def _pooled(self, machine: Machine, number: int) -> PooledNode:
        node = machine.node_pool[number]
        report = self._cluster.nodes.get(node.name)
        key = NodeKey(self._cluster.name, node.name)
        ready = report is not None and report.condition == "Ready" and node.mode == "ready"
        waits = report is not None and report.condition == "NotReady" and self._now - report.since < PATIENCE
        takes = ready and is_usable(self._fleet, key)
        return PooledNode(key, node.machine_types, ready or (waits and node.mode == "ready"), takes)

    def _next(self, machine: Machine) -> float:
        """Returns when time alone changes the plan: a window begins or ends, or a node was not ready for long enough."""
        times = [t for kind in machine.types if (t := next_time(_spans(kind), self._now)) is not None]
        for node in machine.node_pool:
            report = self._cluster.nodes.get(node.name) if node.cluster in ("", self._cluster.name) else None
            if report is not None and report.condition == "NotReady" and report.since + PATIENCE > self._now:
                times.append(report.since + PATIENCE)
        waits = [g.not_before for g in self._cluster.guests.values() if g.not_before > self._now]
        return min([*times, *waits], default=0.0)

    def _use(self, key: str) -> SlotUse:
        group, _, name = key.partition("/")
        machine = next((m for m in self.machines() if m.group == group), None)
        kind = next((t for t in machine.types if t.name == name), None) if machine is not None else None
        claim = reservation_claim(key, self._cluster.name)
        ready = {
            name
            for name, report in self._cluster.nodes.items()
            if report.condition == "Ready" and is_usable(self._fleet, NodeKey(self._cluster.name, name))
        }
        if kind is not None and machine is not None and kind.spec.dependence is not None:
            return self._dependent_use(machine, name, frozenset(ready))
        reserved = self._ledger.machines.reserved.get(claim)
        offline = reserved.offline if reserved is not None else {}
        slots = {
            node: left
            for node, count in (reserved.slots if reserved is not None else {}).items()
            if (left := count - offline.get(node, 0)) > 0
        }
        claims = claims_within(self._ledger, claim)
        lent = times_of_claims(self._ledger, claims)
        in_windows = frozenset(i for i in claims if i not in lent and not self._uses(i, slot_resource(key)))
        windows = reserved.windows if reserved is not None else {}
        here = {
            name: sum(nodes.values()) for name, nodes in windows.items()
        }  # of a Machine of the mesh others may be elsewhere
        times = sorted(time for time in (reserved.before if reserved is not None else ()) if time > self._now)
        return SlotUse(
            machine=key,
            cluster=self._cluster.name,
            total=sum(slots.values()),
            slots=slots,
            windows=windows,
            spans=[s._replace(slots=here.get(s.window.name, 0)) for s in _spans(kind)] if kind is not None else [],
            allow=machine.allow if machine is not None else Allow(),
            claims=claims,
            in_windows=in_windows,
            promised={
                time: slots_of_objects(
                    self._ledger, {i: claims[i] for i in claims if i not in in_windows and lent.get(i, inf) == time}
                )
                for time in {inf, *lent.values()}
            },
            lent=lent,
            times=times,
            last=self._cluster.held[key].last if key in self._cluster.held else (),
            usable=frozenset(ready),
        )

    def _uses(self, ident: str, resource: str) -> bool:
        return any(resource in slot.resources for slot in self._ledger.claims[ident].claim.slots)

    def _dependent_use(self, machine: Machine, name: str, usable: frozenset[str]) -> SlotUse:
        """Returns how a type that lives in slots of another is used: in slots that are open already as long as there are any."""
        found, cluster = sizes(machine), self._cluster.name
        root, key = root_of(found, name), f"{machine.group}/{name}"
        reserved = self._ledger.machines.reserved.get(reservation_claim(f"{machine.group}/{root}", cluster))
        places: dict[str, int] = {}
        for node, count in reserved.slots.items() if reserved is not None else ():
            places[node] = per_slot(found, name) * (
                count - reserved.offline.get(node, 0) if reserved is not None else 0
            )
        most = reserved.dependents[key].most if reserved is not None and key in reserved.dependents else None
        above = found[name].per_parent
        promised = SlotsInUse.read(self._ledger, machine, (cluster,), self._now).promised
        return SlotUse(
            machine=key,
            cluster=cluster,
            total=sum(min(count, count if most is None else most.get(node, 0)) for node, count in places.items()),
            slots=places,
            allow=machine.allow,
            claims=claims_within(self._ledger, reservation_claim(key, cluster)),
            last=[node.name for node, count in promised[name].items() if count % above],
            usable=usable,
            parent=f"{machine.group}/{root}",
        )

    def allowed(self, machine: Machine, root: str) -> dict[str, NodeCounts]:
        """Returns how many pods of the types that live in slots of a type nodes may have by the ledger, of which there are only so many."""
        cluster = self._cluster.name
        reserved = self._ledger.machines.reserved.get(reservation_claim(f"{machine.group}/{root}", cluster))
        found: dict[str, NodeCounts] = {}
        for key, dependent in reserved.dependents.items() if reserved is not None else ():
            if dependent.most is not None:
                found[key.partition("/")[2]] = {NodeKey(cluster, n): count for n, count in dependent.most.items()}
        return found

    def _offered(self, node: NodeKey, resource: str) -> int:
        cid, column = self._fleet.ids.get(node.cluster), self._fleet.free(resource)
        row = None if cid is None else self._fleet.row_of(cid, node.name)
        if cid is None or row is None or column is None:
            return 0
        # Guests that get a slot by this plan take of what types have that share slots with theirs.
        planned = self._planned.get(node, {})
        for slots in self._fleet.shared_slots.get(cid, {}).get(node.name, ()) if planned else ():
            free = slots.with_taken(planned).free()
            if resource in free:
                return free[resource]
        return int(column[row])


def _spans(machine_type: MachineType) -> list[Span]:
    return [Span.of(window) for window in machine_type.windows]


def _sooner(one: float, other: float) -> float:
    return min(time for time in (one, other) if time) if one or other else 0.0
