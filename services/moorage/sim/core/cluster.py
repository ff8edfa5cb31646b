"""One simulated cluster without its connection: nodes, pods and the objects that were applied to it. Pure: time comes in,
and what is due later goes out as timers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from moorage.model.desired import Confirm, DesiredApp, ObjectStatus
from moorage.model.reports import PodReport
from moorage.model.shapes import PODS
from moorage.parsing import format_amount
from moorage.podspec import object_key
from moorage.selectors import tolerated

from .cluster_spec import ClusterSpec, NodeKind, encode, usage
from .pod_needs import PodNeed, read_pod
from .scheduler import SchedulerNode, choose, selects
from .workloads import SimulatedPod, Workload, step

AppKey = tuple[str, str]  # group, app
WorkKey = tuple[AppKey, str]
#: A workload whose steps do not end within these has a fault of its own; it goes on with the next event.
_ROUNDS = 10_000


class SimulatedCluster:
    """`timers` is filled with (when, what, argument) and emptied by whoever keeps the time."""

    __slots__ = ("apps", "dirty", "dirty_apps", "dirty_nodes", "dirty_pods", "failed", "gone_pods", "hold_until", "nodes", "pods", "serial", "spec", "timers", "unbound", "versions", "works")  # fmt: skip

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.nodes: dict[str, SchedulerNode] | None = None  # None: nothing ever happened here
        self.pods: dict[str, SimulatedPod] = {}
        self.works: dict[WorkKey, Workload] = {}
        self.apps: dict[AppKey, list[str]] = {}  # keys of the objects, in order
        self.versions: dict[AppKey, int] = {}
        self.failed: dict[WorkKey, str] = {}
        self.dirty: dict[WorkKey, None] = {}
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
        """Nodes as objects: only where something runs, or is to run."""
        if self.nodes is None:
            self.nodes = {}
            for number, (name, kind) in enumerate(self.spec.nodes()):
                used, pods = usage(kind, self.spec.seed, number)
                self.nodes[name] = SchedulerNode(name, kind, dict(used), pods)
            self._strangers()
        return self.nodes

    def _strangers(self) -> None:
        """Pods of the document: they only take room, and are told one by one if they carry a claim."""
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
        """Nodes as they stand in a report; all of them without names."""
        ident = self.spec.id
        if self.nodes is None:
            for number, (name, kind) in enumerate(self.spec.nodes()):
                used, pods = usage(kind, self.spec.seed, number)
                yield kind.row(ident, name, used, pods, 0)
            return
        for name in self.nodes if names is None else names:
            node = self.nodes.get(name)
            if node is not None:
                yield node.kind.row(ident, name, node.used, node.pods, node.cores)

    def original_rows(self) -> Iterator[bytes]:
        """As they were before anything ran here."""
        return SimulatedCluster(self.spec._replace(pods=())).rows()

    def pod_rows(self, uids: Iterable[str]) -> Iterator[bytes]:
        for uid in uids:
            pod = self.pods.get(uid)
            if pod is None or not pod.need.claim:
                continue
            work = self._work_of(pod)
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

    def respec(self, spec: ClusterSpec, now: float) -> None:
        """The same cluster with other nodes: pods stay where they can."""
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
            if node is None or not _stays(node.kind, pod.need):
                pod.node = None
                self._delete(pod)
                continue
            pod.node = node
            node.take(pod.need)
            if pod.ready != node.kind.ready:
                pod.ready = node.kind.ready
                self._touch(pod)
        self.dirty.update(dict.fromkeys(self.works))
        self.settle(now)

    # --- what is applied

    def apply(self, app: DesiredApp, now: float) -> None:
        """A version of an app. Objects that it no longer has are taken away; the rest becomes what it says."""
        key = (app.group, app.app)
        if app.version < self.versions.get(key, 0):
            return
        self.versions[key] = app.version
        self.dirty_apps[key] = None
        self._materialize()
        names = [] if app.remove else [object_key(manifest) for manifest in app.objects]
        for old in self.apps.get(key, []):
            if old not in names:
                self._drop((key, old))
        if app.remove:
            self.apps.pop(key, None)
            self.settle(now)
            return
        self.apps[key] = names
        for name, manifest in zip(names, app.objects, strict=True):
            work = self.works.get((key, name))
            self.failed.pop((key, name), None)
            try:
                if work is None:
                    self.works[(key, name)] = Workload(manifest, name)
                else:
                    work.become(manifest)
            except ValueError as error:
                self.failed[(key, name)] = str(error)
            else:
                self.dirty[(key, name)] = None
        self.settle(now)

    def refuse(self, app: DesiredApp, message: str) -> Confirm:
        names = [object_key(manifest) for manifest in app.objects] or self.apps.get((app.group, app.app), [])
        objects = [ObjectStatus(object=name, state="Failed", message=message) for name in names]
        return Confirm(group=app.group, app=app.app, version=app.version, objects=objects)

    def confirm(self, key: AppKey) -> Confirm:
        """How an app is doing, object by object."""
        version = self.versions.get(key, 0)
        if key not in self.apps:
            return Confirm(group=key[0], app=key[1], version=version, removed=True)
        objects = []
        for name in self.apps.get(key, []):
            message = self.failed.get((key, name))
            if message is not None:
                objects.append(ObjectStatus(object=name, state="Failed", message=message))
            else:
                objects.append(self.works[(key, name)].status())
        return Confirm(group=key[0], app=key[1], version=version, objects=objects)

    def _drop(self, key: WorkKey) -> None:
        work = self.works.pop(key, None)
        self.dirty.pop(key, None)
        self.failed.pop(key, None)
        for pod in list(work.pods) if work is not None else ():
            self._delete(pod, work)

    # --- pods

    def _work_of(self, pod: SimulatedPod) -> Workload | None:
        return self.works.get(pod.owner) if pod.owner is not None else None

    def _touch(self, pod: SimulatedPod) -> None:
        self.dirty_pods.add(pod.uid)
        if pod.owner is not None:
            self.dirty[pod.owner] = None
            self.dirty_apps[pod.owner[0]] = None

    def _delete(self, pod: SimulatedPod, work: Workload | None = None) -> None:
        work = work or self._work_of(pod)
        pod.deleted = True
        self.pods.pop(pod.uid, None)
        self.unbound.pop(pod.uid, None)
        if work is not None and pod in work.pods:
            work.pods.remove(pod)
        if pod.node is not None:
            pod.node.take(pod.need, -1)
            self.dirty_nodes.add(pod.node.name)
            pod.node = None
        self._touch(pod)
        self.dirty_pods.discard(pod.uid)
        if pod.need.claim:
            self.gone_pods.add(pod.uid)

    def _create(self, key: WorkKey, work: Workload, number: int, node: str, now: float) -> None:
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
        self._touch(pod)
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
        self._touch(pod)
        if not self.spec.ready_delay:
            pod.ready = node.kind.ready
        else:
            self.timers.append((now + self.spec.ready_delay, "ready", pod))
        return True

    def ready(self, pod: SimulatedPod, now: float) -> None:
        if not pod.deleted and pod.node is not None and not pod.ready and pod.node.kind.ready:
            pod.ready = True
            self._touch(pod)
            self.settle(now)

    def lose(self, hold: float, now: float) -> None:
        """Half of the pods vanish, and for a while nobody makes them again."""
        self.hold_until = now + hold
        self.timers.append((self.hold_until, "settle", None))
        for pod in [pod for pod in self.pods.values() if pod.key][::2]:
            self._delete(pod)
        self.settle(now)

    def settle(self, now: float) -> None:
        """Everything that follows from what happened: pods go, come and are bound, until nothing moves."""
        for _ in range(_ROUNDS):
            if not self.dirty:
                break
            key = next(iter(self.dirty))
            del self.dirty[key]
            work = self.works.get(key)
            if work is None:
                continue
            eligible = None
            if work.kind == "DaemonSet" and work.need is not None:
                eligible = [node.name for node in self._materialize().values() if selects(work.need, node)]
            steps = step(work, eligible)
            for pod in steps.delete:
                self._delete(pod, work)
            held = now < self.hold_until
            if not held:
                for number, name in steps.create:
                    self._create(key, work, number, name, now)
            if steps.delete or (steps.create and not held):
                self.dirty[key] = None
            if not self.dirty:
                self._rebind(now)
        if now >= self.hold_until:
            return
        self.dirty.update(dict.fromkeys(self.works))

    def _rebind(self, now: float) -> None:
        """Pods that found no node try again when something may have made room."""
        if self.unbound:
            for pod in list(self.unbound.values()):
                if self._bind(pod, now):
                    self.unbound.pop(pod.uid, None)


def _stays(kind: NodeKind, need: PodNeed) -> bool:
    """NoExecute drives pods away; a node that is not ready keeps them for a while (and here, for good)."""
    return tolerated([t for t in kind.taints if t.effect == "NoExecute"], need.tolerations)
