"""Follows what plugins that are not built in have to give, and which of it pods have: for the node's status and for the mesh."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from moorage.model.part_reports import DeviceReport
from moorage.qos.admission import PodRecord
from moorage.qos.builtin import BUILT_IN
from moorage.qos.device_reports import DeviceAmounts, amounts_by_hint, amounts_told, device_reports, path_of
from moorage.qos.messages import AllocatableResource, ResourceAllocation, TopologyAwareResource

from .node_capacity import Capacity, capacity_of
from .plugin_endpoint import PluginEndpoint, PluginFailed
from .plugin_registry import PluginRegistry

if TYPE_CHECKING:
    from .agent import NodeAgent

#: Seconds until a plugin that did not answer is asked again.
RETRY = 1.0


class PluginDevices:
    """`changed` is called when something is known that was not."""

    def __init__(self, agent: NodeAgent) -> None:
        self._agent = agent
        self._registry: PluginRegistry = agent.registry
        self._zones = frozenset(node.id for node in agent.machine.memory) | frozenset(agent.machine.cpus.numas)
        self._offers: dict[str, Mapping[str, AllocatableResource]] = {}  # by plugin
        self._held: dict[str, tuple[PodRecord, DeviceAmounts]] = {}
        self._wake = asyncio.Event()
        self.changed: Callable[[], None] = lambda: None

    def wake(self) -> None:
        """Has plugins and pods looked at again, at once."""
        self._wake.set()

    async def run(self) -> None:
        """Follows plugins that come and go, and pods that are admitted, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not await self.refresh():
                await asyncio.sleep(RETRY)
                self._wake.set()

    async def refresh(self) -> bool:
        """Asks plugins what they have, and what pods have of it that are new. Returns whether all of them answered."""
        before = self.devices(), self.capacity(), dict(self._held)
        answered = await self._ask_offers()
        answered &= await self._ask_pods()
        if (self.devices(), self.capacity(), self._held) != before:
            self.changed()
        return answered

    # --- what there is

    async def _ask_offers(self) -> bool:
        known = {name for name in self._registry.names() if name not in BUILT_IN}
        self._offers = {name: offer for name, offer in self._offers.items() if name in known}
        endpoints = self._running()
        answers = await asyncio.gather(*(e.allocatable() for e in endpoints), return_exceptions=True)
        for endpoint, answer in zip(endpoints, answers, strict=True):
            if isinstance(answer, Mapping):
                self._offers[endpoint.resource] = answer
            elif not isinstance(answer, PluginFailed):
                raise answer
        return not any(isinstance(answer, PluginFailed) and not answer.unimplemented for answer in answers)

    def _running(self) -> list[PluginEndpoint]:
        return [e for e in self._registry.endpoints() if e.resource not in BUILT_IN]

    def _all_offers(self) -> dict[str, AllocatableResource]:
        """Returns what there is by resource. What a plugin says of the resource of a built-in one does not count."""
        offers = {resource: offer for found in self._offers.values() for resource, offer in found.items()}
        return {resource: offer for resource, offer in offers.items() if resource not in BUILT_IN}

    def devices(self) -> list[DeviceReport]:
        running = {resource for e in self._running() for resource in self._offers.get(e.resource, ())}
        return device_reports(self._all_offers(), running, self._zones)

    def capacity(self) -> Capacity:
        """Returns the amounts of the node that the kubelet knows nothing of, and the resources that are gone."""
        removed = (name for name in self._registry.removed() if name not in BUILT_IN)
        return capacity_of(self._all_offers(), removed)

    def free_by_zone(self, resource: str) -> dict[int, float]:
        """Returns what is free of a resource by zone, as far as its plugin tells of zones."""
        found: dict[int, float] = {}
        taken = [self.held(uid, record) for uid, record in self._agent.live_records().items()]
        for device in self.devices():
            if device.resource == resource:
                zone = int(device.zone.removeprefix("numa-"))
                used = sum(amounts.get(path_of(device), {}).get(resource, 0) for amounts in taken)
                found[zone] = found.get(zone, 0.0) + max(0, device.quantity - used)
        return found

    # --- what pods have

    def held(self, uid: str, record: PodRecord) -> DeviceAmounts:
        """Returns what a pod has of devices, as far as it is known."""
        known = self._held.get(uid)
        if known is not None and known[0] is record:
            return known[1]
        return self._by_hints(record, self.devices()) if any(map(_foreign, record.containers.values())) else {}

    async def _ask_pods(self) -> bool:
        records = self._agent.live_records()
        self._held = {uid: found for uid, found in self._held.items() if records.get(uid) is found[0]}
        fresh = {
            uid: record
            for uid, record in records.items()
            if uid not in self._held and any(map(_foreign, record.containers.values()))
        }
        if not fresh:
            return True
        devices = self.devices()
        found = await asyncio.gather(*(self._ask_pod(uid, record, devices) for uid, record in fresh.items()))
        for (uid, record), amounts in zip(fresh.items(), found, strict=True):
            if amounts is not None:
                self._held[uid] = record, amounts
        return None not in found

    async def _ask_pod(self, uid: str, record: PodRecord, devices: Iterable[DeviceReport]) -> DeviceAmounts | None:
        """Returns what a pod has; None if a plugin that should tell does not."""
        found: DeviceAmounts = {}
        for container, given in _own(record).items():
            told: dict[str, TopologyAwareResource] = {}
            for name in _foreign(given):
                endpoint = self._registry.get(name)
                try:
                    told |= await endpoint.topology_aware_resources(uid, container) if endpoint is not None else {}
                except PluginFailed as failed:
                    if not failed.unimplemented:
                        return None
            _add(found, amounts_told(told, devices))
            for name in _foreign(given):
                if name not in told or not told[name].quantities:
                    _add(found, amounts_by_hint(name, given[name], devices))
        return found

    @staticmethod
    def _by_hints(record: PodRecord, devices: Iterable[DeviceReport]) -> DeviceAmounts:
        found: DeviceAmounts = {}
        for given in _own(record).values():
            for name in _foreign(given):
                _add(found, amounts_by_hint(name, given[name], devices))
        return found


def _own(record: PodRecord) -> dict[str, ResourceAllocation]:
    """Returns the allocations of containers, one for a pod as a whole once."""
    return dict(list(record.containers.items())[:1]) if record.whole else record.containers


def _foreign(given: ResourceAllocation) -> list[str]:
    return [name for name in given if name not in BUILT_IN and not name.startswith("hugepages-")]


def _add(total: DeviceAmounts, more: DeviceAmounts) -> None:
    for path, amounts in more.items():
        here = total.setdefault(path, {})
        for name, amount in amounts.items():
            here[name] = here.get(name, 0) + amount
