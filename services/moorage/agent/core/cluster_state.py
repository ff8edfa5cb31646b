"""Keeps the state of the cluster, and which of it was not reported yet. Objects come in, rows of reports go out. Of most
pods only what they take of their node is kept."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from moorage.dra.allocated import DeviceClaims
from moorage.dra.classes import DeviceClasses
from moorage.dra.device_selectors import with_alike
from moorage.dra.objects import DeviceClaim, DeviceClass, DeviceTaintRule, ResourceQuota, Slice
from moorage.dra.quotas import Quotas
from moorage.dra.slices import DevicePool, Devices
from moorage.kube.objects import Key
from moorage.model.part_reports import DeviceReport
from moorage.model.reports import ContainerReport, CpuManager, NodeReport, PodReport, Taint
from moorage.model.shapes import PODS
from moorage.parsing import format_amount, parse_amount
from moorage.podspec import CLAIM, node_amount, parse_host_port, port_amounts

from .kube_types import ContainerStatus, Node, Pod, Topology
from .pod_fingerprint import pod_hash
from .pod_requests import exclusive_cores, has_exclusive_resources, host_ports, requests
from .zones import attribute, counted_pods, topology_manager_of, use_of_zones, zones_of

#: Label or annotation by which operators set it for nodes whose topology is not reported.
CPU_MANAGER = "moorage.dev/cpu-manager-policy"
_FINISHED = ("Succeeded", "Failed")
#: Longer annotations, in bytes, are not reported.
_LONGEST_ANNOTATION = 1024
_SKIPPED_ANNOTATIONS = ("kubectl.kubernetes.io/last-applied-configuration",)
_encode = msgspec.json.Encoder().encode

Requests = tuple[tuple[str, int], ...]


class BoundPod(NamedTuple):
    """The resources that a pod takes from its node. `cores` are exclusive. `exclusive`: it has cores or devices for itself.
    `started`: when, as its kubelet says. `name_hash` is that of the fingerprints of pods."""

    node: str
    requests: Requests
    cores: int
    host_ports: tuple[str, ...] = ()
    exclusive: bool = False
    started: str = ""
    name_hash: int = 0


class NodeRows(NamedTuple):
    nodes: list[bytes]
    nodes_gone: list[str]
    pods: list[bytes]
    pods_gone: list[str]

    def __bool__(self) -> bool:
        return any(self)


class ClusterState:
    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.bound: dict[str, BoundPod] = {}
        self.pods: dict[str, PodReport] = {}  # those that carry a claim
        self.messages: dict[str, str] = {}  # uid of a pod with a claim → why it does not run
        self.by_claim: dict[str, set[str]] = {}
        self._requested: dict[str, dict[str, int]] = {}  # by node
        self._pod_counts: dict[str, int] = {}
        self._cores: dict[str, int] = {}
        self._host_ports: dict[str, dict[str, int]] = {}  # by node: host port → pods that use it
        self.devices = Devices(self._mark, self._mark_all)
        self.device_claims = DeviceClaims(
            lambda device: self.devices.mark_pool(DevicePool(device.driver, device.pool)),
            self._mark_claims_of,
            self._claim_of,
        )
        self._waiting: dict[str, BoundPod] = {}  # pods with ResourceClaims that are not bound yet
        self.device_classes = DeviceClasses(self._mark_all)
        self.quotas = Quotas(lambda resource: self.device_classes.serving(resource))
        self.devices_known = False  # all slices and classes were read
        self.allocates = (
            False  # its agent gives devices to claims, so that no scheduler chooses between those that are alike
        )
        self._on_node: dict[str, set[str]] = {}  # uids of the pods there
        self._topologies: dict[str, Topology] = {}
        self._sent: dict[str, int] = {}  # node → hash of the row that was reported last
        self._sent_pods: set[str] = set()
        self._sent_parts: dict[str, dict[str, dict[str, str]]] = {}  # of pods that have devices
        self._dirty: dict[str, None] = {}
        self._dirty_pods: dict[str, None] = {}
        self._failed_unsent: dict[str, PodReport] = {}  # that were deleted before they were reported
        self._shared: dict[Any, Any] = {}
        self.on_change: Callable[[], None] = lambda: None

    def _share(self, value: Any) -> Any:
        """Keeps one copy of what thousands of pods have in common."""
        return self._shared.setdefault(value, value)

    def _mark(self, node: str) -> None:
        self._dirty[node] = None
        self.on_change()

    def _mark_all(self) -> None:
        self._dirty |= dict.fromkeys(self.nodes)
        self.on_change()

    def _mark_pod(self, uid: str) -> None:
        self._dirty_pods[uid] = None
        self.on_change()

    def _claim_of(self, uid: str) -> str:
        found = self.pods.get(uid)
        return found.claim if found is not None else ""

    def _mark_claims_of(self, uid: str) -> None:
        """Marks a pod that has other devices than before."""
        if uid in self._waiting:
            self._bind(uid, self._held_by_devices(uid))
        self._mark_pod(uid)

    # --- objects

    def put_node(self, _key: Key, node: Node) -> None:
        self.nodes[node.metadata.name] = node
        self._mark(node.metadata.name)

    def drop_node(self, key: Key, _uid: str) -> None:
        self.nodes.pop(key.name, None)
        self._mark(key.name)

    def put_pod(self, _key: Key, pod: Pod) -> None:
        meta, status = pod.metadata, pod.status
        bound = None
        self._waiting.pop(meta.uid, None)
        if (pod.spec.node_name or pod.spec.resource_claims) and status.phase not in _FINISHED:
            bound = BoundPod(
                self._share(pod.spec.node_name or ""),
                self._share(tuple(sorted(requests(pod).items()))),
                exclusive_cores(pod),
                self._share(host_ports(pod)),
                has_exclusive_resources(pod),
                status.start_time or "",
                pod_hash(meta.namespace, meta.name),
            )
            if not bound.node:
                self._waiting[meta.uid] = bound
                bound = self._held_by_devices(meta.uid)
        self._bind(meta.uid, bound)
        claim = (meta.labels or {}).get(CLAIM, "")
        if not claim:
            self._forget(meta.uid)
            return
        report = PodReport(
            uid=meta.uid,
            namespace=meta.namespace,
            name=meta.name,
            node=pod.spec.node_name or "",
            phase=status.phase,
            reason=status.reason if status.phase == "Failed" else "",
            message=status.message if status.phase == "Failed" else "",
            deleting=meta.deletion_timestamp is not None,
            labels=meta.labels or {},
            requests={name: format_amount(name, value) for name, value in sorted(requests(pod).items())},
            claim=claim,
            containers=[_container(c) for c in status.container_statuses or ()],
        )
        self.messages[meta.uid] = _message(pod)
        if self.pods.get(meta.uid) != report:
            self._forget(meta.uid)
            self.pods[meta.uid] = report
            self.by_claim.setdefault(claim, set()).add(meta.uid)
            self._mark_pod(meta.uid)
            self.device_claims.pod_changed(meta.uid)

    def _held_by_devices(self, uid: str) -> BoundPod | None:
        """Returns a pod that waits to be bound as if it was, on the node where it has devices: the scheduler chose the node before, and
        keeps its room for the pod. It may take long: devices may have conditions for binding."""
        node = self.device_claims.node_of(uid)
        return self._waiting[uid]._replace(node=self._share(node)) if node else None

    def drop_pod(self, _key: Key, uid: str) -> None:
        self._bind(uid, None)
        self._waiting.pop(uid, None)
        # A stateful set replaces a pod at once that its node refused; that it did must be known all the same.
        if (pod := self.pods.get(uid)) is not None and pod.phase == "Failed" and uid in self._dirty_pods:
            self._failed_unsent[uid] = pod
        self._forget(uid)
        self.messages.pop(uid, None)

    def put_slice(self, key: Key, found: Slice) -> None:
        self.devices.put(key.name, found)

    def drop_slice(self, key: Key, _uid: str) -> None:
        self.devices.drop(key.name)

    def put_device_claim(self, key: Key, found: DeviceClaim) -> None:
        self.device_claims.put(key, found)

    def drop_device_claim(self, key: Key, _uid: str) -> None:
        self.device_claims.drop(key)

    def put_device_class(self, key: Key, found: DeviceClass) -> None:
        self.device_classes.put(key.name, found)

    def drop_device_class(self, key: Key, _uid: str) -> None:
        self.device_classes.drop(key.name)

    def put_quota(self, key: Key, found: ResourceQuota) -> None:
        self.quotas.put(key, found)

    def drop_quota(self, key: Key, _uid: str) -> None:
        self.quotas.drop(key)

    def put_taint_rule(self, key: Key, found: DeviceTaintRule) -> None:
        self.devices.put_rule(key.name, found)

    def drop_taint_rule(self, key: Key, _uid: str) -> None:
        self.devices.drop_rule(key.name)

    def put_topology(self, key: Key, found: Topology) -> None:
        self._topologies[key.name] = found
        self._mark(key.name)

    def drop_topology(self, key: Key, _uid: str) -> None:
        self._topologies.pop(key.name, None)
        self._mark(key.name)

    def _bind(self, uid: str, bound: BoundPod | None) -> None:
        before = self.bound.get(uid)
        if before == bound:
            return
        for pod, sign in ((before, -1), (bound, 1)):
            if pod is None:
                continue
            on_node = self._on_node.setdefault(pod.node, set())
            if sign > 0:
                on_node.add(uid)
            else:
                on_node.discard(uid)
            sums = self._requested.setdefault(pod.node, {})
            for name, value in pod.requests:
                sums[name] = sums.get(name, 0) + sign * value
            self._pod_counts[pod.node] = self._pod_counts.get(pod.node, 0) + sign
            self._cores[pod.node] = self._cores.get(pod.node, 0) + sign * pod.cores
            if pod.host_ports:
                used = self._host_ports.setdefault(pod.node, {})
                for port in pod.host_ports:
                    used[port] = used.get(port, 0) + sign
            self._mark(pod.node)
        if bound is None:
            del self.bound[uid]
        else:
            self.bound[uid] = bound

    def _forget(self, uid: str) -> None:
        before = self.pods.pop(uid, None)
        if before is not None:
            uids = self.by_claim[before.claim]
            uids.discard(uid)
            if not uids:
                del self.by_claim[before.claim]
            self._mark_pod(uid)
            self.device_claims.pod_changed(uid)

    # --- reports

    def full(self) -> NodeRows:
        """Returns all rows."""
        self._sent = {}
        self._sent_pods = set()
        self._sent_parts = {}
        self._dirty = dict.fromkeys(self.nodes)
        self._dirty_pods = dict.fromkeys([*self.pods, *self._failed_unsent])
        return self.changed()

    def changed(self) -> NodeRows:
        """Returns the rows that differ from those returned before."""
        rows = NodeRows([], [], [], [])
        for name in self._dirty:
            node = self.nodes.get(name)
            if node is None:
                if not self._pod_counts.get(name):
                    self._requested.pop(name, None)
                    self._host_ports.pop(name, None)
                    self._on_node.pop(name, None)
                if self._sent.pop(name, None) is not None:
                    rows.nodes_gone.append(name)
                continue
            row = _encode(self.row(node))
            digest = hash(row)
            if self._sent.get(name) != digest:
                self._sent[name] = digest
                rows.nodes.append(row)
            self._mark_pods_with_devices(node)
        failed, self._failed_unsent = self._failed_unsent, {}
        for uid in self._dirty_pods:
            pod = self.pods.get(uid)
            if pod is not None:
                self._sent_pods.add(uid)
                if uid in self._waiting and uid in self.bound:
                    pod = msgspec.structs.replace(pod, node=self.bound[uid].node)
                parts = self._parts_of(pod)
                if parts or uid in self._sent_parts:
                    self._sent_parts[uid] = parts
                rows.pods.append(_encode(msgspec.structs.replace(pod, parts=parts) if parts else pod))
            elif uid in failed:
                self._sent_pods.add(uid)
                rows.pods.append(_encode(failed[uid]))
            elif uid in self._sent_pods:
                self._sent_pods.discard(uid)
                self._sent_parts.pop(uid, None)
                rows.pods_gone.append(uid)
        self._dirty, self._dirty_pods = {}, dict.fromkeys(failed)
        return rows

    def _parts_of(self, pod: PodReport) -> dict[str, dict[str, str]]:
        """Returns what a pod takes of devices."""
        node = self.nodes.get(pod.node) if self.device_claims.has_devices(pod.uid) else None
        return {} if node is None else self.device_claims.parts_of(pod.uid, self.devices.of(node).devices)

    def _mark_pods_with_devices(self, node: Node) -> None:
        """Marks the pods of a node that take something else of its devices than was reported."""
        for uid in self._on_node.get(node.metadata.name, ()) if self.device_claims.has_any else ():
            pod = self.pods.get(uid) if self.device_claims.has_devices(uid) or uid in self._sent_parts else None
            if pod is not None and self._parts_of(pod) != self._sent_parts.get(uid, {}):
                self._dirty_pods[uid] = None

    def row(self, node: Node) -> NodeReport:
        meta, status = node.metadata, node.status
        name = meta.name
        topology = self._topologies.get(name)
        found = self.devices.of(node)
        in_use = self.device_claims.in_use(found.devices)
        allocatable = {k: str(v) for k, v in (status.allocatable or {}).items()}
        return NodeReport(
            name=name,
            uid=meta.uid,
            labels=meta.labels or {},
            annotations={
                k: v
                for k, v in (meta.annotations or {}).items()
                if len(v) <= _LONGEST_ANNOTATION and k not in _SKIPPED_ANNOTATIONS
            },
            taints=[Taint(key=t.key, value=t.value, effect=t.effect) for t in node.spec.taints or ()],
            ready=_is_ready(node),
            unschedulable=node.spec.unschedulable,
            capacity={k: str(v) for k, v in (status.capacity or {}).items()},
            allocatable=self._backed_by_devices(name, found.devices, in_use, allocatable),
            requested={k: format_amount(k, v) for k, v in sorted(self._requested.get(name, {}).items()) if v},
            pod_count=self._pod_counts.get(name, 0),
            host_ports=sorted(port for port, pods in self._host_ports.get(name, {}).items() if pods),
            cpu_manager=self._cpu_manager(node, topology),
            zones=zones_of(topology) if topology is not None else [],
            topology_manager=topology_manager_of(topology) if topology is not None else None,
            in_use=(use_of_zones(topology) if topology is not None else {}) | in_use,
            counted=self._counted(name, topology) if topology is not None else [],
            devices=found.devices if self.allocates else with_alike(found.devices),
            counters=found.counters,
            device_classes=self.device_classes.reports(status.allocatable) if found.offers else [],
            incomplete_pools=bool(found.problems),
            invalid_pools=found.has_invalid_pools,
            problems=found.problems,
            created=meta.creation_timestamp or "",
        )

    def _backed_by_devices(
        self, name: str, devices: Sequence[DeviceReport], in_use: Container[str], allocatable: dict[str, str]
    ) -> dict[str, str]:
        """Adds the extended resources that no device plugin of the node offers and that a DeviceClass backs: what its pods have of
        them, and the devices that nobody has."""
        for resource, free in self.device_classes.extended_resources(devices, in_use).items():
            if allocatable.get(resource, "0") == "0":
                allocatable[resource] = str(free + self._requested.get(name, {}).get(resource, 0))
        return allocatable

    def _counted(self, node: str, topology: Topology) -> list[str]:
        """Returns the pods with a claim on this node that its zones count."""
        pods = {uid: self.bound[uid] for uid in self._on_node.get(node, ()) if uid not in self._waiting}
        started = {uid: pod.started for uid, pod in pods.items() if uid in self.pods}
        return counted_pods(topology, pods.values(), started)

    def _cpu_manager(self, node: Node, topology: Topology | None) -> CpuManager | None:
        """Returns the policy for whole cores from topology, label or annotation; None if there is none."""
        reported = attribute(topology, "cpuManagerPolicy")
        labels, annotations = node.metadata.labels or {}, node.metadata.annotations or {}
        policy = reported or labels.get(CPU_MANAGER, "") or annotations.get(CPU_MANAGER, "")
        if not policy:
            return None
        if policy != "static":
            return CpuManager(policy=policy)
        name = node.metadata.name
        cores = parse_amount("cpu", str((node.status.allocatable or {}).get("cpu", "0")), False) // 1000
        return CpuManager(policy=policy, exclusive_free=max(0, cores - self._cores.get(name, 0)))

    def free_on(self, name: str) -> dict[str, int] | None:
        """Returns what pods that are bound leave of a node, by resource; None if no pod may start there now."""
        node = self.nodes.get(name)
        if node is None or node.spec.unschedulable or not _is_ready(node):
            return None
        free = {k: parse_amount(k, str(v), False) for k, v in (node.status.allocatable or {}).items()}
        for resource, amount in self._requested.get(name, {}).items():
            free[resource] = free.get(resource, 0) - amount
        free[PODS] = free.get(PODS, 0) - self._pod_counts.get(name, 0)
        for port, pods in self._host_ports.get(name, {}).items():
            for resource, amount in port_amounts([parse_host_port(port)]).items() if pods else ():
                free[resource] = free.get(resource, node_amount(resource)) - amount
        return free

    # --- why pods do not run

    def trouble(self, claims: Iterable[str]) -> tuple[bool, str]:
        """Returns whether pods of these claims are stuck, so that waiting does not help, and a message why they do not run."""
        first = ""
        for claim in claims:
            for uid in sorted(self.by_claim.get(claim, ())):
                pod, message = self.pods[uid], self.messages.get(uid, "")
                first = first or message
                stuck = [container for container in pod.containers if container.reason in STUCK]
                if stuck:
                    return True, f"pod {pod.name}: {stuck[0].reason}" + (f": {message}" if message else "")
        return False, first


#: Reasons of waiting containers that do not go away by themselves.
STUCK = frozenset({"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "RunContainerError"})  # fmt: skip


def _container(status: ContainerStatus) -> ContainerReport:
    state = status.state
    if state is None:
        return ContainerReport(name=status.name)
    if state.waiting is not None:
        return ContainerReport(name=status.name, state="waiting", reason=state.waiting.reason)
    if state.terminated is not None:
        return ContainerReport(name=status.name, state="terminated", reason=state.terminated.reason)
    return ContainerReport(name=status.name, state="running" if state.running is not None else "")


def _is_ready(node: Node) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in node.status.conditions or ())


def _message(pod: Pod) -> str:
    """Returns why the pod does not run, from a waiting container or the scheduler."""
    statuses: list[ContainerStatus] = [
        *(pod.status.init_container_statuses or ()),
        *(pod.status.container_statuses or ()),
    ]
    for status in statuses:
        waiting = status.state.waiting if status.state else None
        if waiting is not None and waiting.message:
            return waiting.message
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.message or condition.reason
    return ""
