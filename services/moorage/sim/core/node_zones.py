"""Simulates the zones of a node: its kubelet admits pods from them, and what is in use of them is reported later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from moorage.parsing import format_amount
from moorage.parts.kubelet import (
    TOPOLOGY_AFFINITY_ERROR,
    TOPOLOGY_AFFINITY_MESSAGE,
    Alignment,
    Amounts,
    Kubelet,
    Taken,
    TopologyManager,
    ZoneAmounts,
    aligned_steps,
)
from moorage.podspec import ContainerResources, is_guaranteed

from .pod_needs import PodNeed

_encode = msgspec.json.Encoder(order="deterministic").encode


class SimulatedZone(NamedTuple):
    """A zone, its amounts, and what is in use of it from the start. CPU is in milli."""

    id: str
    total: Amounts
    used: Amounts = {}


class NodeTopology(NamedTuple):
    """The zones of a kind of node, lowest first, and how its kubelet aligns pods with them. `others` is what is in use, always,
    of parts that are no zones."""

    manager: TopologyManager
    zones: tuple[SimulatedZone, ...]
    others: Mapping[str, Mapping[str, int]] = {}


class ZoneUse(NamedTuple):
    """The amounts in use of each zone, by class, and the pods that these include."""

    in_use: Mapping[str, Mapping[str, int]]
    counted: tuple[str, ...] = ()

    def fields(self, listed: Sequence[str] = ()) -> bytes:
        """Encodes the fields of a node's row about it. `listed`: the pods that are reported one by one."""
        texts = {
            zone: {name: format_amount(name, amount) for name, amount in sorted(amounts.items())}
            for zone, amounts in self.in_use.items()
        }
        found = b',"inUse":%b' % _encode(texts) if texts else b""
        return found + (b',"counted":%b' % _encode(sorted(listed)) if listed else b"")


class ReportedZones(Protocol):
    """The reported use of a node's zones, and the pods that it includes."""

    @property
    def counted(self) -> tuple[str, ...]: ...
    def fields(self, listed: Sequence[str] = ()) -> bytes: ...


class Zones(Protocol):
    """The zones of one node, for which something on the node admits pods. `report` is what is known outside, which may be
    older; `refusal` the reason and the message of the pod that was refused last."""

    report: Any

    @property
    def topology(self) -> object: ...
    @property
    def refusal(self) -> tuple[str, str]: ...
    def admit(self, uid: str, need: PodNeed, name: str = "") -> bool: ...
    def leave(self, uid: str) -> None: ...
    def now(self) -> ReportedZones: ...


class NodeZones:
    """The zones of one node. `report` is what is known outside, which may be older than `kubelet`."""

    __slots__ = ("_asked", "_taken", "kubelet", "report", "topology")

    def __init__(self, topology: NodeTopology) -> None:
        self.topology = topology
        self.kubelet = Kubelet(
            topology.manager,
            [
                ZoneAmounts(z.total, {name: amount - z.used.get(name, 0) for name, amount in z.total.items()})
                for z in topology.zones
            ],
        )
        self._taken: dict[str, Taken] = {}
        self._asked: dict[int, tuple[tuple[ContainerResources, ...], Alignment]] = {}
        self.report = self.now()

    @property
    def refusal(self) -> tuple[str, str]:
        """The reason and the message with which a pod fails that is rejected."""
        return TOPOLOGY_AFFINITY_ERROR, TOPOLOGY_AFFINITY_MESSAGE

    def admit(self, uid: str, need: PodNeed, name: str = "") -> bool:
        """Gives a pod what its kubelet gives it of the zones; False: the pod is rejected."""
        taken = self.kubelet.admit(self._alignment(need.containers))
        if taken is None:
            return False
        self._taken[uid] = taken
        return True

    def leave(self, uid: str) -> None:
        """Takes back what a pod had. Pods that were not admitted had nothing."""
        taken = self._taken.pop(uid, None)
        if taken is not None:
            self.kubelet.give_back(taken)

    def now(self) -> ZoneUse:
        """Returns what is in use at this moment."""
        in_use = {}
        for spec, zone in zip(self.topology.zones, self.kubelet.zones, strict=True):
            amounts = {name: spec.total[name] - zone.free[name] for name in spec.total}
            in_use[spec.id] = {name: amount for name, amount in amounts.items() if amount}
        used = {zone: amounts for zone, amounts in in_use.items() if amounts}
        return ZoneUse({**used, **self.topology.others}, tuple(self._taken))

    def _alignment(self, containers: tuple[ContainerResources, ...]) -> Alignment:
        """Returns what is aligned of a pod. Pods of one template share their containers."""
        known = self._asked.get(id(containers))
        if known is None:
            guaranteed = all(map(is_guaranteed, containers))
            steps = aligned_steps(containers, guaranteed, self.topology.manager, self.kubelet.reported)
            known = self._asked[id(containers)] = containers, steps
        return known[1]
