"""Keeps what clusters reported of their Machines, the nodes of their pools and their guests."""

from __future__ import annotations

from dataclasses import dataclass, field

from moorage.model.machines import GuestReport, GuestRule, HeldReport, MachineReport, MachinesSync, PoolNodeReport


@dataclass(slots=True)
class ClusterMachines:
    """One cluster by its newest report. `known`: it reported in full since this worker started."""

    name: str
    session: str = ""
    sequence: int = 0
    term: int = 0
    known: bool = False
    machines: dict[str, MachineReport] = field(default_factory=dict)
    nodes: dict[str, PoolNodeReport] = field(default_factory=dict)
    held: dict[str, HeldReport] = field(default_factory=dict)
    guests: dict[str, GuestReport] = field(default_factory=dict)
    rules: dict[str, GuestRule] = field(default_factory=dict)  # of guests about each other, by kind
    controller: str = ""

    def refusal(self, sync: MachinesSync) -> str:
        """Returns why a report is not taken; "resync" asks for a full one."""
        if sync.term < self.term:
            return f"another holder of the cluster's lease reported: term {self.term}, this is {sync.term}"
        if not sync.full and (not self.known or sync.session != self.session or sync.sequence != self.sequence + 1):
            return "resync"
        return ""

    def take(self, sync: MachinesSync) -> None:
        """Takes over a report."""
        if sync.full:
            self.machines, self.nodes, self.held, self.guests, self.rules = {}, {}, {}, {}, {}
        self.session, self.sequence, self.term, self.known = sync.session, sync.sequence, sync.term, True
        self.controller = sync.controller
        if sync.rules is not None:
            self.rules = {rule.kind: rule for rule in sync.rules}
        for name in sync.machines_gone:
            self.machines.pop(name, None)
        for name in sync.nodes_gone:
            self.nodes.pop(name, None)
        for uid in sync.guests_gone:
            self.guests.pop(uid, None)
        self.machines.update((m.name, m) for m in sync.machines)
        self.nodes.update((n.name, n) for n in sync.nodes)
        self.held.update((h.machine, h) for h in sync.held)
        self.guests.update((g.uid, g) for g in sync.guests)
