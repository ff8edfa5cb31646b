"""What the cluster is, and what of it the mesh has not been told yet. Objects come in, rows of reports go out; no clock and
no I/O. Of most pods only what they take of their node is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from moorage.kube.objects import Key
from moorage.model.reports import ContainerReport, CpuManager, NodeReport, PodReport, Taint
from moorage.parsing import format_amount, parse_amount

from .devices import Devices
from .kube_types import Condition, ContainerStatus, Node, Pod, Slice, Topology
from .pod_requests import exclusive_cores, requests

CLAIM = "moorage.dev/claim"
#: Where operators say it for nodes whose topology nobody reports.
CPU_MANAGER = "moorage.dev/cpu-manager-policy"
_FINISHED = ("Succeeded", "Failed")
_LONG = 1024  # bytes of an annotation; longer ones are for machines that we are not
_SKIPPED = ("kubectl.kubernetes.io/last-applied-configuration",)
_encode = msgspec.json.Encoder().encode

Taken = tuple[tuple[str, int], ...]


class PodState(NamedTuple):
    """What a pod takes of its node."""

    node: str
    taken: Taken
    cores: int


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
        self.held: dict[str, PodState] = {}
        self.pods: dict[str, PodReport] = {}  # those that carry a claim
        self.messages: dict[str, str] = {}  # uid of such a pod → why it does not run
        self.by_claim: dict[str, set[str]] = {}
        self._sums: dict[str, dict[str, int]] = {}
        self._counts: dict[str, int] = {}
        self._cores: dict[str, int] = {}
        self.devices = Devices(self._touch, self._touch_all)
        self._topologies: dict[str, Topology] = {}
        self._sent: dict[str, int] = {}  # node → hash of the row that was reported last
        self._sent_pods: set[str] = set()
        self._dirty: dict[str, None] = {}
        self._dirty_pods: dict[str, None] = {}
        self._shared: dict[Any, Any] = {}
        self.on_change: Callable[[], None] = lambda: None

    def _same(self, value: Any) -> Any:
        """One copy of what thousands of pods have in common."""
        return self._shared.setdefault(value, value)

    def _touch(self, node: str) -> None:
        self._dirty[node] = None
        self.on_change()

    def _touch_all(self) -> None:
        self._dirty |= dict.fromkeys(self.nodes)
        self.on_change()

    def _touch_pod(self, uid: str) -> None:
        self._dirty_pods[uid] = None
        self.on_change()

    # --- what comes in

    def put_node(self, _key: Key, node: Node) -> None:
        self.nodes[node.metadata.name] = node
        self._touch(node.metadata.name)

    def drop_node(self, key: Key, _uid: str) -> None:
        self.nodes.pop(key.name, None)
        self._touch(key.name)

    def put_pod(self, _key: Key, pod: Pod) -> None:
        meta, status = pod.metadata, pod.status
        ended = status.phase in _FINISHED
        held = None
        if pod.spec.node_name and not ended:
            taken = self._same(tuple(sorted(requests(pod).items())))
            held = PodState(self._same(pod.spec.node_name), taken, exclusive_cores(pod))
        self._hold(meta.uid, held)
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
            deleting=meta.deletion_timestamp is not None,
            labels=meta.labels or {},
            requests={name: format_amount(name, value) for name, value in sorted(requests(pod).items())},
            claim=claim,
            containers=[_container(c) for c in status.container_statuses or ()],
        )
        self.messages[meta.uid] = _why(pod)
        if self.pods.get(meta.uid) != report:
            self._forget(meta.uid)
            self.pods[meta.uid] = report
            self.by_claim.setdefault(claim, set()).add(meta.uid)
            self._touch_pod(meta.uid)

    def drop_pod(self, _key: Key, uid: str) -> None:
        self._hold(uid, None)
        self._forget(uid)
        self.messages.pop(uid, None)

    def put_slice(self, key: Key, found: Slice) -> None:
        self.devices.put(key.name, found)

    def drop_slice(self, key: Key, _uid: str) -> None:
        self.devices.drop(key.name)

    def put_topology(self, key: Key, found: Topology) -> None:
        self._topologies[key.name] = found
        self._touch(key.name)

    def drop_topology(self, key: Key, _uid: str) -> None:
        self._topologies.pop(key.name, None)
        self._touch(key.name)

    def _hold(self, uid: str, held: PodState | None) -> None:
        before = self.held.get(uid)
        if before == held:
            return
        for one, sign in ((before, -1), (held, 1)):
            if one is None:
                continue
            sums = self._sums.setdefault(one.node, {})
            for name, value in one.taken:
                sums[name] = sums.get(name, 0) + sign * value
            self._counts[one.node] = self._counts.get(one.node, 0) + sign
            self._cores[one.node] = self._cores.get(one.node, 0) + sign * one.cores
            self._touch(one.node)
        if held is None:
            del self.held[uid]
        else:
            self.held[uid] = held

    def _forget(self, uid: str) -> None:
        before = self.pods.pop(uid, None)
        if before is not None:
            uids = self.by_claim[before.claim]
            uids.discard(uid)
            if not uids:
                del self.by_claim[before.claim]
            self._touch_pod(uid)

    # --- what goes out

    def full(self) -> NodeRows:
        """Everything; from here on only what differs from it is news."""
        self._sent = {}
        self._sent_pods = set()
        self._dirty = dict.fromkeys(self.nodes)
        self._dirty_pods = dict.fromkeys(self.pods)
        return self.changed()

    def changed(self) -> NodeRows:
        """What differs from what was taken before."""
        rows = NodeRows([], [], [], [])
        for name in self._dirty:
            node = self.nodes.get(name)
            if node is None:
                self._sums.pop(name, None) if not self._counts.get(name) else None
                if self._sent.pop(name, None) is not None:
                    rows.nodes_gone.append(name)
                continue
            row = _encode(self.row(node))
            mark = hash(row)
            if self._sent.get(name) != mark:
                self._sent[name] = mark
                rows.nodes.append(row)
        for uid in self._dirty_pods:
            pod = self.pods.get(uid)
            if pod is not None:
                self._sent_pods.add(uid)
                rows.pods.append(_encode(pod))
            elif uid in self._sent_pods:
                self._sent_pods.discard(uid)
                rows.pods_gone.append(uid)
        self._dirty, self._dirty_pods = {}, {}
        return rows

    def row(self, node: Node) -> NodeReport:
        meta, status = node.metadata, node.status
        name = meta.name
        topology = self._topologies.get(name)
        return NodeReport(
            name=name,
            uid=meta.uid,
            labels=meta.labels or {},
            annotations={k: v for k, v in (meta.annotations or {}).items() if len(v) <= _LONG and k not in _SKIPPED},
            taints=[Taint(key=t.key, value=t.value, effect=t.effect) for t in node.spec.taints or ()],
            ready=any(c.type == "Ready" and c.status == "True" for c in status.conditions or ()),
            unschedulable=node.spec.unschedulable,
            capacity={k: str(v) for k, v in (status.capacity or {}).items()},
            allocatable={k: str(v) for k, v in (status.allocatable or {}).items()},
            requested={k: format_amount(k, v) for k, v in sorted(self._sums.get(name, {}).items()) if v},
            pod_count=self._counts.get(name, 0),
            cpu_manager=self._cpu_manager(node, topology),
            zones=list(topology.zones or ()) if topology is not None else [],
            devices=list(self.devices.of(node)),
        )

    def _cpu_manager(self, node: Node, topology: Topology | None) -> CpuManager | None:
        """None: nobody says how whole cores are given there."""
        said = [
            str(a.get("value", ""))
            for a in (topology.attributes if topology else None) or ()
            if a.get("name") == "cpuManagerPolicy"
        ]
        policy = (
            said[0]
            if said
            else (node.metadata.labels or {}).get(CPU_MANAGER, "")
            or (node.metadata.annotations or {}).get(CPU_MANAGER, "")
        )
        if not policy:
            return None
        if policy != "static":
            return CpuManager(policy=policy)
        name = node.metadata.name
        cores = parse_amount("cpu", str((node.status.allocatable or {}).get("cpu", "0")), False) // 1000
        return CpuManager(policy=policy, exclusive_free=max(0, cores - self._cores.get(name, 0)))

    # --- what others want to know

    def trouble(self, claims: Iterable[str]) -> tuple[bool, str]:
        """Why pods of these claims do not run: whether waiting will not help, and the words of whoever knows."""
        worst = (False, "")
        for claim in claims:
            for uid in sorted(self.by_claim.get(claim, ())):
                message = self.messages.get(uid, "")
                if message and not worst[1]:
                    worst = (False, message)
                stuck = [c for c in self.pods[uid].containers if c.reason in STUCK]
                if stuck:
                    return True, f"pod {self.pods[uid].name}: {stuck[0].reason}" + (f": {message}" if message else "")
        return worst


#: Reasons of waiting containers that somebody has to do something about.
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


def _why(pod: Pod) -> str:
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
            return _sentence(condition)
    return ""


def _sentence(condition: Condition) -> str:
    return condition.message or condition.reason
