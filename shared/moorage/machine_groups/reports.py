"""Reports of a cluster to the mesh about its Machines and guests, and what it does with the answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from moorage.model.machines import (
    GuestReport,
    GuestRule,
    HeldReport,
    MachineDocument,
    MachineReport,
    MachinesSync,
    MachinesSynced,
    PoolNodeReport,
)

from .cluster import ClusterMachines
from .handover import Handover
from .handover_records import Guest
from .names import MESH, ORIGIN, machine_key

_Item = TypeVar("_Item")


class MeshReports:
    """The reports of one session. `take` what `report` made before the next one is made."""

    def __init__(self, state: ClusterMachines, cluster: str, session: str, term: int) -> None:
        self._state, self._cluster, self._session, self._term = state, cluster, session, term
        self._sequence = self._generation = self._revision = 0
        self._full = True
        self._machines: dict[str, MachineReport] = {}
        self._nodes: dict[str, PoolNodeReport] = {}
        self._held: dict[str, HeldReport] = {}
        self._guests: dict[str, GuestReport] = {}
        self._kinds_changed = False
        self.refused = ""
        self.documents: dict[str, MachineDocument] | None = None  # Machines of the mesh; None: nobody told of them yet

    @property
    def has_news(self) -> bool:
        """Returns whether something may have changed since the last report."""
        state = self._state
        return self._full or bool(state.lost_guests or state.nodes_changed) or any(h.touched for h in state.handovers())

    def begin_again(self) -> None:
        """Reports in full the next time: nobody knows what became of the last one."""
        self._full = True

    def report(self) -> MachinesSync:
        """Returns what changed since the last report, or everything."""
        if self._full:
            self._machines, self._nodes, self._held, self._guests = {}, {}, {}, {}
        self._sequence += 1
        machines, nodes, held = self._machine_reports(), self._node_reports(), self._held_reports()
        rules = self._rules()
        guests, gone = self._guest_reports()
        report = MachinesSync(
            cluster=self._cluster,
            session=self._session,
            sequence=self._sequence,
            term=self._term,
            full=self._full,
            generation=self._generation,
            revision=self._revision,
            machines=_changed(self._machines, machines),
            machines_gone=_gone(self._machines, machines),
            nodes=_changed(self._nodes, nodes),
            nodes_gone=_gone(self._nodes, nodes),
            held=_changed(self._held, held),
            guests=guests,
            guests_gone=gone,
            rules=rules,
            controller=self._state.other_controller,
        )
        self._machines, self._nodes, self._held = machines, nodes, held
        self._full = False
        return report

    def take(self, answer: MachinesSynced, now: float) -> None:
        """Takes over the slots of an answer. One of an older holder of the lease of `slots` is not carried out."""
        state = self._state
        self.refused = answer.refused
        if answer.generation < self._generation:
            return
        if answer.resync or answer.refused:
            self._full = True
            return
        self._generation, self._revision = answer.generation, answer.revision
        if answer.full:
            for machine in state.orders.keys() - {r.machine for r in answer.reservations}:
                state.drop_order(machine)
            for uid in state.grants.keys() - {g.uid for g in answer.grants}:
                state.drop_grant(uid)
            state.mesh_reasons.clear()
            self.documents = {}
        for reservation in answer.reservations:
            state.set_order(reservation)
        for name in answer.reservations_gone:
            state.drop_order(name)
        for grant in answer.grants:
            state.set_grant(grant, now)
            state.mesh_reasons.pop(grant.uid, None)
        for uid in answer.withdrawn:
            state.drop_grant(uid)
        if self.documents is not None:
            self.documents |= {document.name: document for document in answer.documents}
            for name in answer.documents_gone:
                self.documents.pop(name, None)
        state.mesh_reasons |= {reason.uid: reason for reason in answer.waiting if reason.uid in self._guests}

    # --- the parts of a report

    def _machine_reports(self) -> dict[str, MachineReport]:
        groups = {group.machine.name: group.machine for group in self._state.groups().values()}
        found = {}
        for name, raw in self._state.machines.items():
            meta: Mapping[str, Any] = raw["metadata"]
            violations = self._state.invalid.get(name, ())
            found[name] = MachineReport(
                name=name,
                uid=str(meta.get("uid", "")),
                generation=int(meta.get("generation") or 0),
                machine=groups.get(name),
                invalid="; ".join(f"{v.path}: {v.message}" for v in violations[:5]),
                deleting="deletionTimestamp" in meta,
                origin="mesh" if (meta.get("labels") or {}).get(ORIGIN) == MESH else "cluster",
            )
        return found

    def _node_reports(self) -> dict[str, PoolNodeReport]:
        since = self._state.unhealthy_since
        states = self._state.pool_conditions_by_node()
        return {n: PoolNodeReport(name=n, condition=state, since=since(n)) for n, state in states.items()}

    def _held_reports(self) -> dict[str, HeldReport]:
        found: dict[str, HeldReport] = {}
        for handover in self._state.handovers():
            group = handover.machine.group
            for name in handover.sizes:
                found[machine_key(group, name)] = HeldReport(machine=machine_key(group, name))
            for pod in sorted(handover.reservations.values(), key=lambda p: -p.ordinal):
                held = found.get(machine_key(group, pod.type))
                if held is None or not pod.node:
                    continue
                held.last.append(pod.node)
                if pod.unschedulable and not pod.bound:
                    held.unschedulable[pod.node] = held.unschedulable.get(pod.node, 0) + 1
        return found

    def _rules(self) -> list[GuestRule] | None:
        """Returns the rules of guests about each other; None as long as they are those that were reported."""
        kinds = self._state.shapes.kinds
        rules = kinds.rules()
        if not (self._full or kinds.changed):
            return None
        self._kinds_changed, kinds.changed = kinds.changed, False
        return list(rules.values())

    def _guest_reports(self) -> tuple[list[GuestReport], list[str]]:
        """Returns the guests of which something changed, and those that are gone."""
        changed: list[GuestReport] = []
        gone = [uid for uid in self._state.lost_guests if uid in self._guests]
        everything = self._full or self._state.nodes_changed or self._kinds_changed
        self._kinds_changed = False
        for handover in self._state.handovers():
            uids = handover.touched | handover.guests.keys() if everything else handover.touched
            for uid in uids:
                guest = handover.guests.get(uid)
                if guest is None or (guest.deleting and not guest.bound):
                    if uid in self._guests:
                        gone.append(uid)
                    continue
                report = self._guest_report(handover, guest)
                if self._guests.get(uid) != report:
                    self._guests[uid] = report
                    changed.append(report)
            handover.touched.clear()
        for uid in gone:
            self._guests.pop(uid, None)
            self._state.mesh_reasons.pop(uid, None)
        self._state.lost_guests.clear()
        self._state.nodes_changed = False
        return changed, gone

    def _guest_report(self, handover: Handover, guest: Guest) -> GuestReport:
        pause_ends = handover.pause_of(guest.uid)
        pinned = bool(guest.node) and not guest.bound
        allowed: list[str] | None = [guest.node] if pinned else None
        if not guest.node:
            nodes = self._state.allowed_nodes(handover.machine.group, guest)
            entries = {node.name for node in handover.machine.node_pool}
            usable = (entries if nodes is None else nodes) - handover.avoided(guest)
            allowed = None if usable >= entries else sorted(usable)
        waits = not guest.bound and (guest.gated or pause_ends > 0)
        return GuestReport(
            uid=guest.uid,
            namespace=guest.namespace,
            name=guest.name,
            machine=machine_key(handover.machine.group, guest.type),
            state="used" if guest.bound else "waiting" if waits else "granted",
            node=guest.node,
            window=guest.window,
            claim=guest.claim,
            priority=guest.priority,
            created_at=guest.created,
            granted_at=int(guest.granted_at * 1000) if not guest.gated else 0,
            seconds=guest.seconds,
            grace=guest.grace,
            nodes=allowed,
            ready=guest.ready,
            not_before=pause_ends,
            reason="SlotUnbound" if pause_ends else "",
            kind=self._state.shapes.kinds.kind_of(guest.uid),
            alone=guest.alone,
        )


def _changed(before: Mapping[str, _Item], now: Mapping[str, _Item]) -> list[_Item]:
    return [item for key, item in now.items() if before.get(key) != item]


def _gone(before: Mapping[str, _Item], now: Mapping[str, _Item]) -> list[str]:
    return sorted(before.keys() - now.keys())
