"""Shows Machines, their slots and their guests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from moorage.ledger import Ledger
from moorage.machine_groups import Size, maximum, sizes
from moorage.machine_groups.names import MACHINE_GROUP, machine_key
from moorage.machine_groups.sizes import per_slot, root_of
from moorage.machine_groups.written import spec_of
from moorage.model.machine_slots import ReservedSlots, reservation_claim, slot_resource
from moorage.model.machine_views import (
    ClusterCondition,
    GuestView,
    MachineCondition,
    MachineStatusView,
    MachineView,
    SlotView,
    TypeUsage,
)
from moorage.model.machines import GuestReport, Machine, MachineReport, MachineType, Usage, WaitingReason

from .dependent_types import in_use, places_alone, types_below
from .layout import NodeCounts, NodeKey
from .mesh_machines import StoredMachine
from .planner import Answer
from .slot_pods import claims_within, given_alone, pods_in_slots
from .state import ClusterMachines


class MachineViews:
    """Reads the reports of clusters, what they were told last, and the ledger."""

    def __init__(
        self,
        clusters: Mapping[str, ClusterMachines],
        ledger: Ledger,
        answer_of: Callable[[str], Answer],
        documents: Mapping[str, StoredMachine],
    ) -> None:
        self._clusters, self._ledger, self._answer_of = clusters, ledger, answer_of
        self._documents = documents

    def machines(self) -> Iterator[MachineView]:
        for name in sorted(self._clusters):
            cluster = self._clusters[name]
            for report in sorted(cluster.machines.values(), key=lambda report: report.name):
                if report.origin == "cluster":
                    yield self._machine(cluster, report)
        for _, stored in sorted(self._documents.items()):
            yield self._of_mesh(stored)

    def _of_mesh(self, stored: StoredMachine) -> MachineView:
        """Returns a Machine of the mesh, with what its clusters have of it together."""
        machine, status = stored.machine, MachineStatusView()
        clusters = {name: self._clusters.get(name) or ClusterMachines(name) for name in stored.clusters}
        short: list[str] = []
        rows = {name: self._usages(cluster, machine) for name, cluster in clusters.items()}
        for kind in machine.types:
            key = machine_key(machine.group, kind.name)
            usages = {name: row[kind.name] for name, row in rows.items()}
            for name, usage in usages.items():
                usage.maximum = self._slots_in(machine, kind.name, name)
            total = Usage(
                maximum=maximum(machine, sizes(machine), kind.name),
                reserved=sum(usage.reserved for usage in usages.values()),
                used=sum(usage.used for usage in usages.values()),
                waiting=sum(usage.waiting for usage in usages.values()),
            )
            status.available_machines.append(TypeUsage(name=kind.name, usage=total, clusters=usages))
            told = [a.reservations[key].reason for c in clusters if key in (a := self._answer_of(c)).reservations]
            if reason := next(filter(None, told), ""):
                short.append(f"{kind.name}: {reason}")
        silent = [name for name, cluster in clusters.items() if not cluster.known]
        if silent:
            short.append(f"no agent of Machines reports from {', '.join(silent)}")
        away: list[str] = []
        for node in machine.node_pool:
            known = clusters[node.cluster].nodes.get(node.name)
            found = known.condition if known is not None else None
            status.node_pool.append(ClusterCondition(cluster=node.cluster, name=node.name, condition=found))
            if node.mode == "ready" and found not in ("Ready", None):
                away.append(f"{node.cluster}/{node.name}")
        status.conditions = _as_conditions([], short, away)
        metadata = {
            "name": stored.name,
            "uid": stored.uid,
            "generation": stored.generation,
            "creationTimestamp": stored.created,
            "labels": {MACHINE_GROUP: machine.group},
        }
        return MachineView(metadata=metadata, spec=spec_of(machine), origin="mesh", status=status)

    def _machine(self, cluster: ClusterMachines, report: MachineReport) -> MachineView:
        machine = report.machine
        status = MachineStatusView(conditions=_conditions(cluster, report, self._answer_of(cluster.name)))
        if machine is not None:
            for name, usage in self._usages(cluster, machine).items():
                status.available_machines.append(TypeUsage(name=name, usage=usage, clusters={cluster.name: usage}))
            for node in machine.node_pool:
                known = cluster.nodes.get(node.name)
                status.node_pool.append(
                    ClusterCondition(
                        cluster=cluster.name, name=node.name, condition=known.condition if known is not None else None
                    )
                )
        return MachineView(
            metadata={
                "name": f"{cluster.name}/{report.name}",
                "uid": report.uid,
                "generation": report.generation,
                "labels": {MACHINE_GROUP: machine.group} if machine is not None else {},
            },
            spec=spec_of(machine) if machine is not None else {},
            origin=cluster.name,
            status=status,
        )

    def _usages(self, cluster: ClusterMachines, machine: Machine) -> dict[str, Usage]:
        """Returns the slots of each type in a cluster. One in which other types live is used by these; nobody has those that are reserved."""
        bound: dict[str, NodeCounts] = {}
        waiting: dict[str, int] = {}
        for guest in cluster.guests.values():
            group, _, name = guest.machine.partition("/")
            if guest.ended or group != machine.group:
                continue
            if guest.state == "used":
                node, there = NodeKey(cluster.name, guest.node), bound.setdefault(name, {})
                there[node] = there.get(node, 0) + 1
            else:
                waiting[name] = waiting.get(name, 0) + 1
        used, found, usages = in_use(machine, bound), sizes(machine), dict[str, Usage]()
        for kind in machine.types:
            most, here = maximum(machine, found, kind.name), sum(used[kind.name].values())
            usages[kind.name] = Usage(
                maximum=most,
                reserved=sum(self._free(machine, found, kind.name, cluster.name).values()),
                used=here,
                waiting=waiting.get(kind.name, 0),
            )
        return usages

    def _slots_in(self, machine: Machine, name: str, cluster: str) -> int:
        """Returns how many slots of a type a cluster has."""
        found = sizes(machine)
        reserved = self._reservation(machine, root_of(found, name), cluster)
        room = sum(reserved.slots.values()) * per_slot(found, name) if reserved is not None else 0
        return min(room, maximum(machine, found, name))

    def _reservation(self, machine: Machine, root: str, cluster: str) -> ReservedSlots | None:
        return self._ledger.machines.reserved.get(reservation_claim(machine_key(machine.group, root), cluster))

    def _free(self, machine: Machine, found: Mapping[str, Size], name: str, cluster: str) -> dict[str, int]:
        """Returns the slots of a type by node that nobody has, and that may be had."""
        reserved = self._reservation(machine, root_of(found, name), cluster)
        if reserved is None:
            return {}
        pods = pods_in_slots(self._ledger, machine, (cluster,))
        alone = {
            slot_resource(machine_key(machine.group, other)): places
            for other, places in self._places_alone(machine, reserved).items()
        }
        free: dict[str, int] = {}
        for node, count in reserved.slots.items():
            counts = {
                slot_resource(machine_key(machine.group, other)): by_node.get(NodeKey(cluster, node), 0)
                for other, by_node in pods.items()
            }
            empty = reserved.at_times(()).shared(node)
            types = tuple(
                kind if kind.most is None else kind._replace(most=kind.most + alone.get(kind.resource, {}).get(node, 0))
                for kind in empty.types
            )
            slots = empty._replace(slots=count, types=types).with_taken(counts)
            free[node] = max(0, slots.free().get(slot_resource(machine_key(machine.group, name)), 0))
        return free

    def _places_alone(self, machine: Machine, reserved: ReservedSlots) -> dict[str, dict[str, int]]:
        """Returns how many a cluster gives out alone of types of which there are only so many, by node."""
        cluster = reserved.cluster
        known = self._clusters.get(cluster)  # None: it has not reported yet
        told = known.machines.get(machine.name) if known is not None else None
        own = (
            told.machine if told is not None and told.machine is not None else machine
        )  # its share of a Machine of the mesh
        offline = {NodeKey(cluster, node): count for node, count in reserved.offline.items()}
        found = places_alone(
            own, reserved.machine.partition("/")[2], offline, given_alone(self._ledger, own, (cluster,))
        )
        return {name: {node.name: count for node, count in places.items()} for name, places in found.items()}

    def slots(self, machine: str = "", only: str = "") -> Iterator[SlotView]:
        """Yields every slot, those that are missing too."""
        for name in sorted(self._clusters):
            if only and name != only:
                continue
            cluster = self._clusters[name]
            for report in sorted(cluster.machines.values(), key=lambda report: report.name):
                for kind in report.machine.types if report.machine is not None else ():
                    assert report.machine is not None
                    if not machine or machine_key(report.machine.group, kind.name) == machine:
                        yield from self._slots_of(cluster, report.machine, kind)

    def _slots_of(self, cluster: ClusterMachines, machine: Machine, kind: MachineType) -> Iterator[SlotView]:
        key, size = machine_key(machine.group, kind.name), sizes(machine)[kind.name]
        claim = reservation_claim(key, cluster.name)
        holders = self._holders(cluster, key)
        used = in_use(machine, pods_in_slots(self._ledger, machine, (cluster.name,)))
        for other, child in sizes(machine).items():
            for node, count in used[other].items() if child.parent == kind.name else ():
                holders.setdefault(node.name, []).extend(
                    [self._opened(cluster, machine, key, other, node.name)] * -(-count // child.per_parent)
                )
        if size.parent:  # those that nobody has are in the rows of the type in whose slots they live
            slots = self._places(machine, kind.name, cluster.name, used[kind.name])
            short = 0
        else:
            reserved = self._ledger.machines.reserved.get(claim)
            slots = reserved.slots if reserved is not None else {}
            short = kind.available - sum(slots.values())
        for name in sorted({*slots, *holders}):
            held = holders.get(name, [])
            yield from held
            for _ in range(slots.get(name, 0) - len(held)):
                yield SlotView(machine=key, cluster=cluster.name, node=name, state="reserved", claim=claim)
        for _ in range(short):
            yield SlotView(machine=key, cluster=cluster.name, state="short")

    def _places(self, machine: Machine, name: str, cluster: str, used: NodeCounts) -> dict[str, int]:
        """Returns how many of a type there may be by node in slots that it has opened."""
        found, key = sizes(machine), machine_key(machine.group, name)
        reserved, per_parent = self._reservation(machine, root_of(found, name), cluster), found[name].per_parent
        most = reserved.dependents[key].most if reserved is not None and key in reserved.dependents else None
        alone = self._places_alone(machine, reserved).get(name, {}) if reserved is not None else {}
        return {
            node.name: places if most is None else min(places, most.get(node.name, 0) + alone.get(node.name, 0))
            for node, count in used.items()
            for places in [per_parent * -(-count // per_parent)]
        }

    def _holders(self, cluster: ClusterMachines, key: str) -> dict[str, list[SlotView]]:
        """Returns the slots of a type that guests and applications have, by node."""
        claim = reservation_claim(key, cluster.name)
        holders: dict[str, list[SlotView]] = {}
        in_claims: dict[tuple[str, str], int] = {}
        for granted in sorted(self._ledger.machines.guests_of(claim), key=lambda granted: granted.uid):
            guest = cluster.guests.get(granted.uid)
            holders.setdefault(granted.node, []).append(
                SlotView(
                    machine=key,
                    cluster=cluster.name,
                    node=granted.node,
                    state="used" if guest is not None and guest.state == "used" else "granted",
                    claim=granted.claim,
                    holder=f"{granted.namespace}/{granted.name}",
                )
            )
            in_claims[granted.claim, granted.node] = in_claims.get((granted.claim, granted.node), 0) + 1
        for ident, nodes in claims_within(self._ledger, claim).items():
            for node, count in nodes.items():
                # Places of the application whose pods have not come yet.
                view = SlotView(
                    machine=key,
                    cluster=cluster.name,
                    node=node,
                    state="granted",
                    claim=ident,
                    holder=self._ledger.claims[ident].group,
                )
                holders.setdefault(node, []).extend([view] * (count - in_claims.get((ident, node), 0)))
        return holders

    def _opened(self, cluster: ClusterMachines, machine: Machine, key: str, other: str, node: str) -> SlotView:
        """Returns a slot in which pods of another type, or of types in slots of that one, are, or come."""
        child = machine_key(machine.group, other)
        kinds = {child, *(machine_key(machine.group, name) for name in types_below(machine, other))}
        is_used = any(
            guest.state == "used" and guest.machine in kinds and guest.node == node for guest in cluster.guests.values()
        )
        state: Literal["used", "granted"] = "used" if is_used else "granted"
        claim = reservation_claim(child, cluster.name)
        return SlotView(machine=key, cluster=cluster.name, node=node, state=state, claim=claim, holder=child)

    def guests(self, machine: str = "", only: str = "") -> Iterator[GuestView]:
        for name in sorted(self._clusters):
            if only and name != only:
                continue
            cluster = self._clusters[name]
            waiting = self._answer_of(name).waiting
            guests = (g for g in cluster.guests.values() if not g.ended and (not machine or g.machine == machine))
            for guest in sorted(guests, key=lambda guest: (guest.namespace, guest.name, guest.uid)):
                yield self._guest(name, guest, waiting)

    def _guest(self, cluster: str, guest: GuestReport, waiting: Mapping[str, WaitingReason]) -> GuestView:
        granted = self._ledger.machines.granted.get(guest.uid)
        active = self._ledger.claims.get(guest.claim or (granted.claim if granted is not None else ""))
        reason = waiting.get(guest.uid)
        return GuestView(
            machine=guest.machine,
            cluster=cluster,
            namespace=guest.namespace,
            name=guest.name,
            uid=guest.uid,
            window=guest.window,
            state=guest.state,
            node=guest.node or (granted.node if granted is not None else ""),
            group=active.group if active is not None else "",
            created_at=guest.created_at,
            granted_at=guest.granted_at,
            reason=reason.code if reason is not None and guest.state == "waiting" else "",
            message=reason.message if reason is not None and guest.state == "waiting" else "",
        )


def _conditions(cluster: ClusterMachines, report: MachineReport, answer: Answer) -> list[MachineCondition]:
    machine: Machine | None = report.machine
    problems: list[tuple[str, str]] = []
    if report.invalid:
        problems.append(("Invalid", report.invalid))
    if cluster.controller:
        problems.append(("OtherControllerActive", f"{cluster.controller} still acts on these Machines"))
    short: list[str] = []
    for kind in machine.types if machine is not None else ():
        assert machine is not None
        key = machine_key(machine.group, kind.name)
        told = answer.reservations.get(key)
        if told is not None and told.reason:
            short.append(f"{kind.name}: {told.reason}")
    away = [
        node.name
        for node in (machine.node_pool if machine is not None else ())
        if node.mode == "ready" and ((known := cluster.nodes.get(node.name)) is None or known.condition != "Ready")
    ]
    return _as_conditions(problems, short, away)


def _as_conditions(
    problems: Sequence[tuple[str, str]], short: Sequence[str], away: Sequence[str]
) -> list[MachineCondition]:
    reason, message = problems[0] if problems else ("", "")
    return [
        MachineCondition(type="Ready", status="False" if problems else "True", reason=reason, message=message),
        MachineCondition(
            type="CapacityShort",
            status="True" if short else "False",
            reason="CapacityShort" if short else "",
            message="; ".join(short),
        ),
        MachineCondition(type="NodesHealthy", status="False" if away else "True", message=", ".join(away)),
    ]
