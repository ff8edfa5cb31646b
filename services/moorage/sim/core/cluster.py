"""Simulates one cluster: its nodes, its pods and the objects applied to it. Pure: the time is an argument, and later work
becomes timers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from moorage.model.desired import Confirm, DesiredApp, ObjectStatus
from moorage.model.reports import PodReport
from moorage.model.shapes import PODS
from moorage.parsing import format_amount
from moorage.podspec import object_key
from moorage.selectors import tolerated

from .cluster_spec import ClusterSpec, NodeKind, encode, initial_usage
from .pod_needs import PodNeed, read_pod
from .scheduler import SchedulerNode, choose, passes_filters
from .workloads import SimulatedPod, Workload, next_steps

AppKey = tuple[str, str]  # group, app
WorkloadKey = tuple[AppKey, str]
#: Bound on the rounds of one reconciliation. A workload that needs more is faulty; it continues with the next event.
_MAX_ROUNDS = 10_000


class SimulatedCluster:
    """The state of a cluster. `timers` collects (when, action, argument); the simulator takes them out."""

    __slots__ = ("apps", "dirty_apps", "dirty_nodes", "dirty_pods", "failed", "gone_pods", "hold_until", "nodes", "pending", "pods", "serial", "spec", "timers", "unbound", "versions", "workloads")  # fmt: skip

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.nodes: dict[str, SchedulerNode] | None = None  # None: no pod ever ran here
        self.pods: dict[str, SimulatedPod] = {}
        self.workloads: dict[WorkloadKey, Workload] = {}
        self.apps: dict[AppKey, list[str]] = {}  # keys of the objects, in order
        self.versions: dict[AppKey, int] = {}
        self.failed: dict[WorkloadKey, str] = {}
        self.pending: dict[WorkloadKey, None] = {}  # to be reconciled
        self.dirty_apps: dict[AppKey, None] = {}
        self.dirty_nodes: set[str] = set()
        self.dirty_pods: set[str] = set()
        self.gone_pods: set[str] = set()
        self.unbound: dict[str, SimulatedPod] = {}
        self.hold_until = 0.0
        self.serial = 0
        self.timers: list[tuple[float, str, Any]] = []
        if spec.pods:
            self._materialize()

    # --- nodes

    def _materialize(self) -> dict[str, SchedulerNode]:
        """Creates the node objects, which only clusters with pods need."""
        if self.nodes is None:
            self.nodes = {}
            for number, (name, kind) in enumerate(self.spec.nodes()):
                used, pods = initial_usage(kind, self.spec.seed, number)
                self.nodes[name] = SchedulerNode(name, kind, dict(used), pods)
            self._place_given_pods()
        return self.nodes

    def _place_given_pods(self) -> None:
        """Places the pods of the document. They only take capacity; those with a claim are reported one by one."""
        assert self.nodes is not None
        for number, manifest in enumerate(self.spec.pods):
            need = read_pod(manifest)
            node = self.nodes.get(need.node_name)
            if node is None or (manifest.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                continue
            node.take(need)
            if need.claim:
                uid = f"{self.spec.id}/given-{number}"
                pod = SimulatedPod(uid, manifest["metadata"]["name"], "", need, "", 0)
                pod.node, pod.ready = node, True
                self.pods[uid] = pod
                self.dirty_pods.add(uid)

    def rows(self, names: Iterable[str] | None = None) -> Iterator[bytes]:
        """Encodes these nodes, or all, as rows of a report."""
        ident = self.spec.id
        if self.nodes is None:
            for number, (name, kind) in enumerate(self.spec.nodes()):
                used, pods = initial_usage(kind, self.spec.seed, number)
                yield kind.row(ident, name, used, pods, 0)
            return
        for name in self.nodes if names is None else names:
            node = self.nodes.get(name)
            if node is not None:
                yield node.kind.row(ident, name, node.used, node.pods, node.cores)

    def original_rows(self) -> Iterator[bytes]:
        """Encodes all nodes as they were before any pod ran here."""
        return SimulatedCluster(self.spec._replace(pods=())).rows()

    def pod_rows(self, uids: Iterable[str]) -> Iterator[bytes]:
        """Encodes those of these pods that carry a claim as rows of a report."""
        for uid in uids:
            pod = self.pods.get(uid)
            if pod is None or not pod.need.claim:
                continue
            work = self._workload_of(pod)
            report = PodReport(
                uid=uid,
                namespace=work.namespace if work is not None else "default",
                name=pod.name,
                node=pod.node.name if pod.node is not None else "",
                phase="Running" if pod.ready else "Pending",
                labels=pod.need.labels,
                requests={k: format_amount(k, v) for k, v in pod.need.requests.items() if k != PODS},
                claim=pod.need.claim,
            )
            yield encode(report)

    def change_spec(self, spec: ClusterSpec, now: float) -> None:
        """Gives the cluster other nodes. Pods stay on nodes that still exist and whose taints they tolerate."""
        self.spec = spec
        if self.nodes is None:
            if spec.pods:
                self._materialize()
            return
        self.nodes = None
        for uid in [uid for uid, pod in self.pods.items() if not pod.key]:
            del self.pods[uid]
            self.gone_pods.add(uid)
        nodes = self._materialize()
        for pod in list(self.pods.values()):
            if not pod.key or pod.node is None:
                continue
            node = nodes.get(pod.node.name)
            if node is None or not _tolerates_no_execute(node.kind, pod.need):
                pod.node = None
                self._delete(pod)
                continue
            pod.node = node
            node.take(pod.need)
            if pod.ready != node.kind.ready:
                pod.ready = node.kind.ready
                self._mark_changed(pod)
        self.pending.update(dict.fromkeys(self.workloads))
        self.reconcile(now)

    # --- what is applied

    def apply(self, app: DesiredApp, now: float) -> None:
        """Applies a version of an app: removes objects that it no longer has, creates and updates the others."""
        key = (app.group, app.app)
        if app.version < self.versions.get(key, 0):
            return
        self.versions[key] = app.version
        self.dirty_apps[key] = None
        self._materialize()
        names = [] if app.remove else [object_key(manifest) for manifest in app.objects]
        for old in self.apps.get(key, []):
            if old not in names:
                self._remove_workload((key, old))
        if app.remove:
            self.apps.pop(key, None)
            self.reconcile(now)
            return
        self.apps[key] = names
        for name, manifest in zip(names, app.objects, strict=True):
            self._apply_object((key, name), manifest)
        self.reconcile(now)

    def _apply_object(self, key: WorkloadKey, manifest: dict[str, Any]) -> None:
        work = self.workloads.get(key)
        self.failed.pop(key, None)
        try:
            if work is None:
                self.workloads[key] = Workload(manifest, key[1])
            else:
                work.update(manifest)
        except ValueError as error:
            self.failed[key] = str(error)
        else:
            self.pending[key] = None

    def refuse(self, app: DesiredApp, message: str) -> Confirm:
        """The confirmation of a version whose objects the API server refuses."""
        names = [object_key(manifest) for manifest in app.objects] or self.apps.get((app.group, app.app), [])
        objects = [ObjectStatus(object=name, state="Failed", message=message) for name in names]
        return Confirm(group=app.group, app=app.app, version=app.version, objects=objects)

    def confirm(self, key: AppKey) -> Confirm:
        """The status of an app, object by object."""
        version = self.versions.get(key, 0)
        if key not in self.apps:
            return Confirm(group=key[0], app=key[1], version=version, removed=True)
        objects = []
        for name in self.apps.get(key, []):
            message = self.failed.get((key, name))
            if message is not None:
                objects.append(ObjectStatus(object=name, state="Failed", message=message))
            else:
                objects.append(self.workloads[(key, name)].status())
        return Confirm(group=key[0], app=key[1], version=version, objects=objects)

    def _remove_workload(self, key: WorkloadKey) -> None:
        work = self.workloads.pop(key, None)
        self.pending.pop(key, None)
        self.failed.pop(key, None)
        for pod in list(work.pods) if work is not None else ():
            self._delete(pod, work)

    # --- pods

    def _workload_of(self, pod: SimulatedPod) -> Workload | None:
        return self.workloads.get(pod.owner) if pod.owner is not None else None

    def _mark_changed(self, pod: SimulatedPod) -> None:
        """Marks the pod, its workload and its app for the next report, reconciliation and confirmation."""
        self.dirty_pods.add(pod.uid)
        if pod.owner is not None:
            self.pending[pod.owner] = None
            self.dirty_apps[pod.owner[0]] = None

    def _delete(self, pod: SimulatedPod, work: Workload | None = None) -> None:
        work = work or self._workload_of(pod)
        pod.deleted = True
        self.pods.pop(pod.uid, None)
        self.unbound.pop(pod.uid, None)
        if work is not None and pod in work.pods:
            work.pods.remove(pod)
        if pod.node is not None:
            pod.node.take(pod.need, -1)
            self.dirty_nodes.add(pod.node.name)
            pod.node = None
        self._mark_changed(pod)
        self.dirty_pods.discard(pod.uid)
        if pod.need.claim:
            self.gone_pods.add(pod.uid)

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
        pod = SimulatedPod(f"{self.spec.id}/{self.serial}-{name}", name, work.key, need, work.template, number)
        pod.owner = key
        work.pods.append(pod)
        self.pods[pod.uid] = pod
        self._mark_changed(pod)
        if not self._bind(pod, now):
            self.unbound[pod.uid] = pod

    def _bind(self, pod: SimulatedPod, now: float) -> bool:
        nodes = self._materialize()
        if pod.need.node_name:
            named = nodes.get(pod.need.node_name)
            node = choose(pod.need, [named]) if named is not None else None
        else:
            node = choose(pod.need, nodes.values())
        if node is None:
            return False
        node.take(pod.need)
        pod.node = node
        self.dirty_nodes.add(node.name)
        self._mark_changed(pod)
        if not self.spec.ready_delay:
            pod.ready = node.kind.ready
        else:
            self.timers.append((now + self.spec.ready_delay, "ready", pod))
        return True

    def ready(self, pod: SimulatedPod, now: float) -> None:
        """Makes a pod ready, unless it was deleted or its node is not."""
        if not pod.deleted and pod.node is not None and not pod.ready and pod.node.kind.ready:
            pod.ready = True
            self._mark_changed(pod)
            self.reconcile(now)

    def lose_pods(self, hold: float, now: float) -> None:
        """Deletes half of the pods. For `hold` seconds no controller creates pods."""
        self.hold_until = now + hold
        self.timers.append((self.hold_until, "reconcile", None))
        for pod in [pod for pod in self.pods.values() if pod.key][::2]:
            self._delete(pod)
        self.reconcile(now)

    def reconcile(self, now: float) -> None:
        """Runs the controllers and the scheduler until nothing changes any more."""
        for _ in range(_MAX_ROUNDS):
            if not self.pending:
                break
            key = next(iter(self.pending))
            del self.pending[key]
            work = self.workloads.get(key)
            if work is None:
                continue
            eligible = None
            if work.kind == "DaemonSet" and work.need is not None:
                eligible = [node.name for node in self._materialize().values() if passes_filters(work.need, node)]
            steps = next_steps(work, eligible)
            for pod in steps.delete:
                self._delete(pod, work)
            on_hold = now < self.hold_until
            if not on_hold:
                for number, name in steps.create:
                    self._create(key, work, number, name, now)
            if steps.delete or (steps.create and not on_hold):
                self.pending[key] = None
            if not self.pending:
                self._rebind(now)
        if now >= self.hold_until:
            return
        self.pending.update(dict.fromkeys(self.workloads))

    def _rebind(self, now: float) -> None:
        """Schedules unbound pods again, because capacity may have become free."""
        if self.unbound:
            for pod in list(self.unbound.values()):
                if self._bind(pod, now):
                    self.unbound.pop(pod.uid, None)


def _tolerates_no_execute(kind: NodeKind, need: PodNeed) -> bool:
    """Whether the pod stays on a node of this kind. Taints with NoExecute evict it; a node that is not ready keeps its pods
    for a while in Kubernetes, and for good here."""
    return tolerated([t for t in kind.taints if t.effect == "NoExecute"], need.tolerations)
