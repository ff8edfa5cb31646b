"""Keeps the nodes and pods of a simulated cluster: places pods on nodes, with zones and devices, and takes them off. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moorage.podspec import ALLOCATES, DRA_LABEL

from .applied_apps import AppKey, AppliedApps, WorkloadKey
from .claim_gates import ClaimGates
from .cluster_spec import HOSTNAME, ClusterSpec, initial_usage
from .node_zones import ReportedZones
from .pod_needs import PodNeed, pinned, read_pod
from .scheduler import NodeDevicesFilter, SchedulerNode, choose
from .simulated_machines import OWN, SimulatedMachines
from .workloads import SimulatedPod, Workload

if TYPE_CHECKING:
    from .simulated_devices import SimulatedDevices

#: Seconds until a kubelet has rejected a pod.
REJECT_DELAY = 0.25


class ClusterPods:
    """Nodes and pods of a cluster. `timers` collects (when, action, argument), and `late_zones` what is reported of zones after a
    delay; the simulator takes them out."""

    __slots__ = ("applied", "binding", "devices", "dirty_apps", "dirty_nodes", "dirty_pods", "gates", "gone_pods", "hold_until", "late_zones", "leaving", "machines", "nodes", "pods", "serial", "spec", "timers", "unbound", "wall")  # fmt: skip

    def __init__(self, spec: ClusterSpec, wall: float = 0.0) -> None:
        """`wall`: what the time of day is more than the time of calls."""
        self.spec, self.wall = spec, wall
        self.machines = SimulatedMachines(spec, spec.id) if spec.machines else None
        self.nodes: dict[str, SchedulerNode] | None = None  # None: no pod ever ran here
        self.pods: dict[str, SimulatedPod] = {}
        self.applied = AppliedApps()
        self.dirty_apps: dict[AppKey, None] = {}
        self.dirty_nodes: set[str] = set()
        self.dirty_pods: set[str] = set()
        self.gone_pods: set[str] = set()
        self.unbound: dict[str, SimulatedPod] = {}
        self.gates = ClaimGates()
        self.hold_until = 0.0
        self.serial = 0
        self.timers: list[tuple[float, str, Any]] = []
        self.late_zones: list[tuple[SchedulerNode, ReportedZones]] = []  # to be reported after the delay
        self.devices: SimulatedDevices | None = None
        self.leaving: dict[str, float] = {}  # pods that must leave devices with taints, and when
        #: Pods that wait for devices on a node, and until when.
        self.binding: dict[str, tuple[SchedulerNode, float]] = {}
        self._begin_devices()
        if spec.pods or spec.objects:
            self._materialize()
            self._rebind(0.0)

    def _materialize(self) -> dict[str, SchedulerNode]:
        """Creates the node objects, which only clusters with pods need."""
        if self.nodes is None:
            self.nodes = {}
            for number, (name, kind) in enumerate(self.spec.nodes()):
                used, pods = initial_usage(kind, self.spec.seed, number)
                self.nodes[name] = SchedulerNode(name, kind, dict(used), pods)
            if self.devices is not None:
                self.devices.set_nodes({n.name: {HOSTNAME: n.name, **n.kind.labels} for n in self.nodes.values()})
                self.devices.set_objects(self.spec.objects)
            self._place_given_pods()
            for node in self.nodes.values():
                if node.zones is not None and (now := node.zones.now()) != node.zones.report:
                    if self.spec.topology_delay:
                        self.late_zones.append((node, now))
                    else:
                        node.zones.report = now
        return self.nodes

    def _place_given_pods(self) -> None:
        """Places the pods of the document: they take capacity and devices. Those without a node are scheduled. Those with a claim are
        reported one by one."""
        assert self.nodes is not None
        for manifest in self.spec.pods:
            need, name = read_pod(manifest), manifest["metadata"]["name"]
            node = self.nodes.get(need.node_name)
            if (manifest.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                continue
            uid = f"{self.spec.id}/given/{need.namespace}/{name}"
            pod = SimulatedPod(uid, name, "", need, "", 0)
            if node is None:
                self.pods[uid] = self.unbound[uid] = pod
                continue
            if node.zones is not None and not node.zones.admit(uid, need, name):
                continue
            node.take(need)
            served = self._served_by_devices(need, node)
            if self.devices is not None:
                self.devices.take(uid, need, node.name, served)
            if need.claim or need.device_claims or served:
                pod.node, pod.ready = node, True
                self.pods[uid] = pod
                self.dirty_pods.add(uid)

    def _begin_devices(self) -> None:
        """Lets the cluster have devices of drivers: its document has objects."""
        if self.devices is None and self.spec.objects:
            from .simulated_devices import SimulatedDevices  # imports what few fleets need

            # The sets of what is to be reported are others after each report.
            self.devices = SimulatedDevices(
                lambda node: self.dirty_nodes.add(node), lambda uid: self.dirty_pods.add(uid), self._claim_of
            )
            for work in self.applied.workloads.values():
                self.devices.put(work.manifest)
        if self.devices is not None:
            self.devices.allocates = self.spec.labels.get(DRA_LABEL) == ALLOCATES

    def _workload_of(self, pod: SimulatedPod) -> Workload | None:
        return self.applied.workloads.get(pod.owner) if pod.owner is not None else None

    def _mark_changed(self, pod: SimulatedPod) -> None:
        """Marks the pod, its workload and its app for the next report, reconciliation and confirmation."""
        self.dirty_pods.add(pod.uid)
        if pod.owner is not None:
            self.applied.pending[pod.owner] = None
            if pod.owner[0] != OWN:
                self.dirty_apps[pod.owner[0]] = None

    def _create(self, key: WorkloadKey, work: Workload, number: int, node: str, now: float) -> None:
        assert work.need is not None
        self.serial += 1
        work.serial += 1
        if work.kind == "StatefulSet":
            name = f"{work.name}-{number}"
        elif work.kind == "Pod":
            name = work.name
        else:
            name = f"{work.name}-{work.template[:6]}-{work.serial}"
        need = work.need._replace(node_name=node) if node else work.need
        uid = f"{self.spec.id}/{self.serial}-{name}"
        if self.machines is not None and work.pod_template is not None:
            admitted = self.machines.admit(uid, name, work.pod_template, need, work.key, now + self.wall)
            if isinstance(admitted, str):
                work.message = admitted
                return
            need = admitted
        pod = SimulatedPod(uid, name, work.key, need, work.template, number)
        pod.owner, pod.serial = key, self.serial
        work.pods.append(pod)
        self.pods[pod.uid] = pod
        self._mark_changed(pod)
        if not self._bind(pod, now):
            self.unbound[pod.uid] = pod

    def _bind(self, pod: SimulatedPod, now: float) -> bool:
        if pod.need.gates:
            return False
        waits = self.binding.get(pod.uid)
        if waits is not None:
            if waits[1] > now:
                return False
            node: SchedulerNode | None = self.binding.pop(pod.uid)[0]
        else:
            node = self._scheduled(pod)
            if node is not None and self._waits_for_devices(pod, node, now):
                return False
        if node is None:
            return False
        pod.node = node
        if self.machines is not None:
            self.machines.bound(pod.uid, node.name)
        self.dirty_nodes.add(node.name)
        self._mark_changed(pod)
        if pod.need.deadline:
            self.timers.append((now + pod.need.deadline, "deadline", pod))
        if not self._admit(pod, node, now):
            return True
        if not self.spec.ready_delay:
            pod.ready = node.kind.ready
        else:
            self.timers.append((now + self.spec.ready_delay, "ready", pod))
        return True

    def _scheduled(self, pod: SimulatedPod) -> SchedulerNode | None:
        """Returns the node that the scheduler chooses for a pod, which has room and devices there from now on."""
        nodes = self._materialize()
        if self.devices is not None and not self.devices.passes_gate(pod.uid, pod.need):
            return None
        devices = self._devices_filter(pod)
        if pod.need.node_name:
            named = nodes.get(pod.need.node_name)
            node = choose(pod.need, [named], nodes.values(), devices) if named is not None else None
        else:
            node = choose(pod.need, nodes.values(), devices=devices)
        if node is not None:
            if self.devices is not None:
                self.devices.take(pod.uid, pod.need, node.name, self._served_by_devices(pod.need, node))
            node.take(pod.need)
        return node

    def _rebind(self, now: float) -> None:
        """Schedules unbound pods again, because capacity may have become free."""
        if self.unbound:
            for pod in list(self.unbound.values()):
                if self._bind(pod, now):
                    self.unbound.pop(pod.uid, None)

    def _open_gates(self, now: float) -> None:
        """Does what an agent does: pins gated pods to slots, and deletes pods that wait for a node without a slot for them."""
        if not self.gates or not self.unbound:
            return
        assignment = self.gates.assign(self.pods.values(), self._materialize(), now)
        for uid, node in assignment.opened.items():
            pod = self.pods[uid]
            pod.need, pod.pin = pinned(pod.need, node, self.gates.parts_on(pod.need.claim, node)), node
        for uid in assignment.misplaced:
            self._delete(self.pods[uid])
        if (when := self.gates.next_try(now)) is not None:
            self.timers.append((when, "gates", None))

    def _delete(self, pod: SimulatedPod, work: Workload | None = None) -> None:
        work = work or self._workload_of(pod)
        pod.deleted = True
        self.pods.pop(pod.uid, None)
        if self.machines is not None:
            self.machines.gone(pod.uid)
        self.unbound.pop(pod.uid, None)
        self.leaving.pop(pod.uid, None)
        for pods in (work.pods, work.refused) if work is not None else ():
            if pod in pods:
                pods.remove(pod)
        self._release(pod)
        if self.devices is not None:
            self.devices.gone(pod.uid)
        self._mark_changed(pod)
        self.dirty_pods.discard(pod.uid)
        if pod.need.claim:
            self.gone_pods.add(pod.uid)

    def _release(self, pod: SimulatedPod) -> None:
        """Takes a pod off its node."""
        node = pod.node
        if node is None:
            if (waits := self.binding.pop(pod.uid, None)) is not None:
                waits[0].take(pod.need, -1)
                self.dirty_nodes.add(waits[0].name)
            return
        node.take(pod.need, -1)
        self.dirty_nodes.add(node.name)
        pod.node = None
        if node.zones is not None:
            node.zones.leave(pod.uid)
            self._zones_changed(node)

    def _served_by_devices(self, need: PodNeed, node: SchedulerNode) -> dict[str, int]:
        """Returns the extended resources of a pod that devices of a node serve, because no device plugin of it does."""
        if self.devices is None:
            return {}
        return {
            name: amount
            for name, amount in need.requests.items()
            if "/" in name and not node.kind.amounts.get(name) and self.devices.backed(name)
        }

    def _devices_filter(self, pod: SimulatedPod) -> NodeDevicesFilter | None:
        devices = self.devices
        if devices is None or not (pod.need.device_claims or any("/" in name for name in pod.need.requests)):
            return None
        return NodeDevicesFilter(
            self._served_by_devices,
            lambda need, node: devices.fits(pod.uid, need, node.name, self._served_by_devices(need, node)),
        )

    def _claim_of(self, uid: str) -> str:
        pod = self.pods.get(uid)
        return pod.need.claim if pod is not None else ""

    def _waits_for_devices(self, pod: SimulatedPod, node: SchedulerNode, now: float) -> bool:
        """Returns whether a pod is bound only after conditions of its devices hold, which takes their driver some time."""
        delay = self.spec.binding_delay
        if not delay or self.devices is None or not self.devices.waits_for_conditions(pod.uid, node.name):
            return False
        self.binding[pod.uid] = node, now + delay
        self.dirty_nodes.add(node.name)
        self.dirty_pods.add(pod.uid)
        self.timers.append((now + delay, "gates", None))
        return True

    def _evict(self, now: float) -> None:
        """Deletes pods with devices that have taints that they do not tolerate, or not any longer, and those of slots that left
        devices that failed."""
        if self.devices is None:
            return
        running = {uid: pod.node.name for uid, pod in self.pods.items() if pod.node is not None}
        found: dict[str, float] = dict(self.devices.evictions(running))
        found.update(dict.fromkeys(self.devices.vacating({uid: self.pods[uid].need.claim for uid in running}), 0.0))
        self.leaving = {uid: when for uid, when in self.leaving.items() if uid in found}
        for uid, after in found.items():
            if uid not in self.leaving:
                self.leaving[uid] = now + after
                if after:
                    self.timers.append((now + after, "evict", None))
        for uid in [uid for uid, when in self.leaving.items() if when <= now]:
            self._delete(self.pods[uid])

    def _admit(self, pod: SimulatedPod, node: SchedulerNode, now: float) -> bool:
        """Lets the node's kubelet give zones to a pod that was bound to it. It rejects a pod a moment later."""
        if node.zones is None:
            return True
        admitted = node.zones.admit(pod.uid, pod.need, pod.name)
        if admitted:
            self._zones_changed(node)
        else:
            pod.refusal = node.zones.refusal
            self.timers.append((now + REJECT_DELAY, "reject", pod))
        return admitted

    def _zones_changed(self, node: SchedulerNode) -> None:
        """Reports what is in use of the zones now, or later where that takes its time."""
        assert node.zones is not None
        if self.spec.topology_delay:
            self.late_zones.append((node, node.zones.now()))
        else:
            node.zones.report = node.zones.now()
            self.dirty_nodes.add(node.name)

    def report_zones(self, node: SchedulerNode, report: ReportedZones) -> None:
        """Reports what was in use of a node's zones a while ago."""
        if node.zones is not None and self.nodes is not None and self.nodes.get(node.name) is node:
            node.zones.report = report
            self.dirty_nodes.add(node.name)
