"""Shows Machines, their slots and their guests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from moorage.ledger import Ledger
from moorage.machine_groups.names import MACHINE_GROUP, machine_key
from moorage.machine_groups.written import spec_of
from moorage.model.machine_slots import reservation_claim
from moorage.model.machine_views import (
    ClusterCondition,
    GuestView,
    MachineCondition,
    MachineStatusView,
    MachineView,
    SlotView,
    TypeUsage,
)
from moorage.model.machines import GuestReport, Machine, MachineReport, Usage, WaitingReason

from .mesh_machines import StoredMachine
from .planner import Answer
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
        for kind in machine.types:
            key = machine_key(machine.group, kind.name)
            usages = {name: self._usage(cluster, key, 0) for name, cluster in clusters.items()}
            for name, usage in usages.items():
                reserved = self._ledger.machines.reserved.get(reservation_claim(key, name))
                usage.maximum = sum(reserved.slots.values()) if reserved is not None else 0
            total = Usage(
                maximum=kind.available,
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
            for kind in machine.types:
                usage = self._usage(cluster, machine_key(machine.group, kind.name), kind.available)
                found = TypeUsage(name=kind.name, usage=usage, clusters={cluster.name: usage})
                status.available_machines.append(found)
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

    def _usage(self, cluster: ClusterMachines, key: str, available: int) -> Usage:
        claim = reservation_claim(key, cluster.name)
        reserved = self._ledger.machines.reserved.get(claim)
        guests = [g for g in cluster.guests.values() if g.machine == key and not g.ended]
        used = sum(guest.state == "used" for guest in guests)
        held = len(self._ledger.machines.guests_of(claim))
        total = sum(reserved.slots.values()) if reserved is not None else max(0, available)
        return Usage(
            maximum=available,
            reserved=max(0, total - max(held, used)),
            used=used,
            waiting=sum(guest.state != "used" for guest in guests),
        )

    def slots(self, machine: str = "", only: str = "") -> Iterator[SlotView]:
        """Yields every slot, those that are missing too."""
        for name in sorted(self._clusters):
            if only and name != only:
                continue
            cluster = self._clusters[name]
            for key, available in _types(cluster):
                if not machine or key == machine:
                    yield from self._slots_of(cluster, key, available)

    def _slots_of(self, cluster: ClusterMachines, key: str, available: int) -> Iterator[SlotView]:
        claim = reservation_claim(key, cluster.name)
        reserved = self._ledger.machines.reserved.get(claim)
        slots: Mapping[str, int] = reserved.slots if reserved is not None else {}
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
        for ident in sorted(self._ledger.machines.within.get(claim, ())):
            active = self._ledger.claims[ident]
            for slot in active.claim.slots:
                # Places of the application whose pods have not come yet.
                for _ in range(slot.count - in_claims.get((ident, slot.node), 0)):
                    view = SlotView(
                        machine=key,
                        cluster=cluster.name,
                        node=slot.node,
                        state="granted",
                        claim=ident,
                        holder=active.group,
                    )
                    holders.setdefault(slot.node, []).append(view)
        for node in sorted({*slots, *holders}):
            held = holders.get(node, [])
            yield from held
            for _ in range(slots.get(node, 0) - len(held)):
                yield SlotView(machine=key, cluster=cluster.name, node=node, state="reserved", claim=claim)
        for _ in range(available - sum(slots.values())):
            yield SlotView(machine=key, cluster=cluster.name, state="short")

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


def _types(cluster: ClusterMachines) -> Iterable[tuple[str, int]]:
    for report in sorted(cluster.machines.values(), key=lambda report: report.name):
        for kind in report.machine.types if report.machine is not None else ():
            assert report.machine is not None
            yield machine_key(report.machine.group, kind.name), kind.available


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
    ready = not problems and not short
    first = problems[0] if problems else ("CapacityShort", "; ".join(short)) if short else ("", "")
    return [
        MachineCondition(type="Ready", status="True" if ready else "False", reason=first[0], message=first[1]),
        MachineCondition(type="CapacityShort", status="True" if short else "False", message="; ".join(short)),
        MachineCondition(type="NodesHealthy", status="False" if away else "True", message=", ".join(away)),
    ]
