"""Says what the agent reports of its node: zones, roles, what each pod takes of which zones, and what was decided about pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from moorage.model.part_reports import DeviceReport
from moorage.model.reports import AdmissionReport, CpuManager, NodeReport, PodReport, parts_of
from moorage.qos.admission import PodRecord
from moorage.qos.device_reports import DeviceAmounts
from moorage.qos.machine import Machine
from moorage.qos.messages import Refusal
from moorage.qos.node_policy import NodePolicy
from moorage.qos.zone_reports import (
    ZoneAmounts,
    amount_texts,
    qos_report,
    roles_there,
    zone_amounts,
    zone_reports,
)

#: Refusals of so many pods are reported.
MOST_ADMISSIONS = 1000
_encode = msgspec.json.Encoder(order="deterministic").encode


class NodeRows(NamedTuple):
    """Encoded rows: the node's, and by uid those of pods and of admissions."""

    node: bytes
    pods: Mapping[str, bytes]
    admissions: Mapping[str, bytes]


NOTHING = NodeRows(b"", {}, {})


class Offered(NamedTuple):
    """The resources of plugins that are not built in: their devices, the amounts of the node by resource, and the resources that
    are gone. `held` returns what a pod has of the devices."""

    devices: Sequence[DeviceReport] = ()
    capacity: Mapping[str, int] = {}
    allocatable: Mapping[str, int] = {}
    removed: Sequence[str] = ()
    held: Callable[[str, PodRecord], DeviceAmounts] = lambda uid, record: {}


NO_DEVICES = Offered()


class _Known(NamedTuple):
    record: PodRecord
    amounts: ZoneAmounts
    devices: DeviceAmounts
    pod: bytes
    admission: bytes


class NodeDescription:
    """Describes a node again and again. What is told of a pod is worked out once for each record of it."""

    def __init__(self, name: str, machine: Machine) -> None:
        self._name, self._machine = name, machine
        self._known: dict[str, _Known] = {}
        self._policy: NodePolicy | None = None

    def rows(
        self,
        policy: NodePolicy,
        records: Mapping[str, PodRecord],
        refused: Mapping[str, Refusal],
        *,
        enabled: bool,
        exclusive_free: int,
        offered: Mapping[str, int],
        plugins: Offered = NO_DEVICES,
        zones_free: Mapping[int, int] | None = None,
    ) -> NodeRows:
        """Returns what is to be reported now. `refused`: the pods that were refused last, with the first reason. `zones_free`: the
        CPUs of each zone that pods could have alone; None: they get none. With the gate off only zones are told, and no role is
        open."""
        if policy is not self._policy:
            self._known, self._policy = {}, policy
        self._known = {
            uid: self._pod(uid, record, policy, plugins.held(uid, record)) for uid, record in records.items()
        }
        in_use = _summed(known.amounts for known in self._known.values())
        used = {f"numa-{zone}": amount_texts(found) for zone, found in in_use.items()}
        for path, amounts in _summed(known.devices for known in self._known.values()).items():
            used[path] = amount_texts(amounts)
        there = roles_there((known.record.pod.role, known.amounts) for known in self._known.values())
        zones = zone_reports(self._machine, policy, there, offered if enabled else {}, zones_free if enabled else None)
        if not enabled:
            zones = [msgspec.structs.replace(zone, traits=[]) for zone in zones]
        node = NodeReport(
            name=self._name,
            cpu_manager=CpuManager(policy="static", exclusive_free=exclusive_free) if enabled else None,
            zones=zones,
            devices=list(plugins.devices),
            capacity={name: str(amount) for name, amount in sorted(plugins.capacity.items())},
            allocatable={name: str(amount) for name, amount in sorted(plugins.allocatable.items())},
            removed=sorted(plugins.removed),
            in_use=used,
            counted=sorted(records),
            qos=qos_report(policy, enabled=enabled),
        )
        admissions = {uid: known.admission for uid, known in self._known.items()}
        for uid, refusal in list(refused.items())[-MOST_ADMISSIONS:]:
            if uid not in records:
                said = AdmissionReport(pod=uid, outcome="refused", code=refusal.code, message=refusal.message[:1000])
                admissions[uid] = _encode(said)
        return NodeRows(_encode(node), {uid: known.pod for uid, known in self._known.items()}, admissions)

    def _pod(self, uid: str, record: PodRecord, policy: NodePolicy, devices: DeviceAmounts) -> _Known:
        known = self._known.get(uid)
        if known is not None and known.record is record and known.devices == devices:
            return known
        amounts = zone_amounts(record, policy)
        parts = {f"{self._name}/numa-{zone}": amount_texts(found) for zone, found in amounts.items()}
        parts |= {f"{self._name}/{path}": amount_texts(found) for path, found in devices.items()}
        return _Known(
            record, amounts, devices, _encode(PodReport(uid=uid, parts=parts)), _encode(AdmissionReport(pod=uid))
        )


_Part = TypeVar("_Part", int, str)


def _summed(amounts: Iterable[Mapping[_Part, Mapping[str, float]]]) -> dict[_Part, dict[str, float]]:
    total: dict[_Part, dict[str, float]] = {}
    for found in amounts:
        for part, here in found.items():
            for name, amount in here.items():
                classes = total.setdefault(part, {})
                classes[name] = classes.get(name, 0) + amount
    return total


def report_bodies(before: NodeRows, now: NodeRows) -> list[bytes]:
    """Returns the members of a report of what changed, divided into parts: one part without members if nothing did."""
    pods = [row for uid, row in now.pods.items() if before.pods.get(uid) != row]
    gone = [_encode(uid) for uid in before.pods if uid not in now.pods]
    admissions = [row for uid, row in now.admissions.items() if before.admissions.get(uid) != row]
    node = [now.node] if now.node != before.node else []
    return parts_of({"nodes": node, "pods": pods, "podsGone": gone, "admissions": admissions})
