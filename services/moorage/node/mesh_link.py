"""Connects a node agent to the mesh, if it has credentials: reports what changes with pods at once, all else each period."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from moorage.qos.messages import Refusal
from moorage.qos.nic_plugin import NIC, NicPlugin

from .core.node_report import NO_DEVICES, NodeDescription, NodeRows, Offered
from .mesh_reports import BadCredentials, MeshReports, read_credentials
from .pod_admission import Outcome

if TYPE_CHECKING:
    from .agent import NodeAgent


class MeshLink:
    def __init__(self, agent: NodeAgent) -> None:
        self._agent = agent
        self._refused: dict[str, Refusal] = {}
        self._description = NodeDescription(agent.settings.node, agent.machine)
        self.reports: MeshReports | None = None

    def start(self) -> None:
        """Starts to report. Raises BadCredentials for a file that is not for this node and cluster."""
        agent, settings = self._agent, self._agent.settings
        if settings.credentials is None:
            return
        found = read_credentials(settings.credentials)
        if found.node != settings.node or (settings.cluster and found.cluster != settings.cluster):
            raise BadCredentials(f"{settings.credentials} is for node {found.node} of cluster {found.cluster}")
        self.reports = MeshReports(found, self.rows)
        agent.admission.on_outcome = self._decided
        agent.devices.changed = self.reports.changed.set
        agent.spawn(self.reports.run())
        agent.spawn(self._follow_room(self.reports))

    async def _follow_room(self, reports: MeshReports) -> None:
        """Reports at once when something was given back."""
        room = self._agent.admission.room
        while True:
            async with room:
                await room.wait()
            reports.changed.set()

    def _decided(self, outcome: Outcome) -> None:
        self._refused.pop(outcome.uid, None)
        if outcome.refusals:
            self._refused[outcome.uid] = outcome.refusals[0]
        while len(self._refused) > 1000:
            del self._refused[next(iter(self._refused))]
        self._agent.devices.wake()
        if self.reports is not None:
            self.reports.changed.set()

    def rows(self) -> NodeRows:
        """Returns what is reported now."""
        agent, cpu = self._agent, self._agent.cpu
        return self._description.rows(
            agent.policy.policy,
            agent.live_records(),
            self._refused,
            enabled=agent.admission.enabled,
            exclusive_free=cpu.capacity(cpu.free()) if cpu is not None else 0,
            offered=self._offered(),
            zones_free=cpu.free_by_zone() if cpu is not None else None,
            plugins=self._plugins() if agent.admission.enabled else NO_DEVICES,
        )

    def _plugins(self) -> Offered:
        devices = self._agent.devices
        found = devices.capacity()
        return Offered(devices.devices(), found.capacity, found.allocatable, found.removed, devices.held)

    def _offered(self) -> Mapping[str, int]:
        """Returns the zones where each plugin that runs can give its resource. Those of others may have it in any."""
        every = (1 << self._agent.machine.zones) - 1
        found = {endpoint.resource: every for endpoint in self._agent.registry.endpoints()}
        plugin = self._agent.plugin(NIC)
        if isinstance(plugin, NicPlugin):
            found[NIC] = sum({1 << nic.numa for nic in plugin.nics.values()})
        return found
