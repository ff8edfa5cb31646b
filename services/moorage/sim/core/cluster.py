"""Simulates one cluster: the objects applied to it, their controllers, and what happens to its nodes and pods. Pure: the time
is an argument, and later work becomes timers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage.machine_groups.effects import Effect
from moorage.model.desired_state import DesiredApp, Pins
from moorage.podspec import object_key
from moorage.selectors import tolerated

from .applied_apps import AppKey, WorkloadKey
from .cluster_pods import REJECT_DELAY, ClusterPods
from .cluster_spec import ClusterSpec, NodeKind
from .pod_needs import PodNeed, read_pod
from .scheduler import SchedulerNode, passes_filters
from .simulated_machines import OWN, SimulatedMachines
from .workloads import SimulatedPod, next_steps

#: Bound on the rounds of one reconciliation. A workload that needs more is faulty; it continues with the next event.
_MAX_ROUNDS = 10_000
#: Failed pods of a workload that are kept.
MAX_REFUSED = 100


class SimulatedCluster(ClusterPods):
    """A cluster as the simulator drives it: each call happens at a time, and ends when its controllers rest."""

    __slots__ = ()

    def change_spec(self, spec: ClusterSpec, now: float) -> None:
        """Gives the cluster other nodes. Pods stay on nodes that still exist and whose taints they tolerate."""
        self.spec = spec
        if self.machines is not None:
            self.machines.set_spec(spec)
        elif spec.machines:
            self.machines = SimulatedMachines(spec, spec.id)
        self._begin_devices()
        if self.nodes is None:
            if spec.pods or spec.objects:
                self._materialize()
                self._rebind(now)
            self.run_machines(now)
            return
        before: Mapping[str, SchedulerNode] = self.nodes
        self.nodes = None
        self.binding.clear()
        for uid in [uid for uid, pod in self.pods.items() if not pod.key]:
            self.unbound.pop(uid, None)
            if self.pods.pop(uid).need.claim:
                self.gone_pods.add(uid)
        nodes = self._materialize()
        if self.devices is not None:
            self.devices.forget_others(self.pods)
        if spec.topology_delay:
            _keep_reports(before, nodes)
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
            self._admit(pod, node, now)
            if pod.ready != node.kind.ready:
                pod.ready = node.kind.ready
                self._mark_changed(pod)
        self._evict(now)
        self._rebind(now)
        self.applied.reconcile_all()
        self.reconcile(now)

    def apply(self, app: DesiredApp, now: float) -> None:
        """Applies a version of an app: removes objects that it no longer has, creates and updates the others."""
        key = (app.group, app.app)
        if app.version < self.applied.versions.get(key, 0):
            return
        self.applied.versions[key] = app.version
        self.dirty_apps[key] = None
        self._materialize()
        objects = self._with_quotas(key, app)
        names = [] if app.remove else [object_key(manifest) for manifest in objects]
        for old in self.applied.apps.get(key, []):
            if old not in names:
                self._remove_object((key, old))
        if app.remove:
            self.applied.apps.pop(key, None)
            self.reconcile(now)
            return
        self.applied.apps[key] = names
        if app.succeeds:
            self.applied.take_over(key, app)
        for name, manifest in zip(names, objects, strict=True):
            self._apply_object((key, name), manifest)
        self._evict(now)
        self.reconcile(now)

    def _with_quotas(self, key: AppKey, app: DesiredApp) -> list[dict[str, Any]]:
        """Returns the objects with pins in templates where quotas want that."""
        if self.devices is None:
            return app.objects
        objects, notices = self.devices.with_quotas(app.objects)
        for manifest, notice in zip(objects, notices, strict=True):
            self.applied.notices.pop((key, object_key(manifest)), None)
            if notice is not None:
                self.applied.notices[key, object_key(manifest)] = notice
        return objects

    def _apply_object(self, key: WorkloadKey, manifest: dict[str, Any]) -> None:
        if self.applied.is_handed_over(key):
            return
        try:
            if self.devices is not None:
                self.devices.put(manifest)
            self.applied.put(key, manifest)
        except ValueError as error:
            self.applied.fail(key, str(error))

    def _remove_object(self, key: WorkloadKey) -> None:
        work = self.applied.remove(key)
        if work is None:
            return
        for pod in [*work.pods, *work.refused]:
            self._delete(pod, work)
        if self.devices is not None:
            self.devices.remove(work.manifest)

    def evict(self, now: float) -> None:
        """Deletes the pods whose time on devices with taints is over."""
        self._evict(now)
        self.reconcile(now)

    def reject(self, pod: SimulatedPod, now: float) -> None:
        """Fails a pod that its kubelet did not admit. Its controller makes another one."""
        node = pod.node
        if pod.deleted or node is None:
            return
        self._release(pod)
        if self.devices is not None:
            self.devices.gone(pod.uid)
        pod.refused, pod.ready = node.name, False
        self.gates.refused(pod, node.name, now)
        self._mark_changed(pod)
        work = self._workload_of(pod)
        if work is not None and pod.owner is not None:
            again = work.rejections.note(work.kind, pod, node.name, now)
            if again is not None:
                self.timers.append((again, "retry", pod.owner))
            if work.kind == "StatefulSet":  # the next pod has the same name
                self.timers.append((now + REJECT_DELAY, "replace", pod))
            else:
                work.pods.remove(pod)
                work.refused.append(pod)
                for old in work.refused[:-MAX_REFUSED]:
                    self._delete(old, work)
        self.reconcile(now)

    def end(self, pod: SimulatedPod, now: float) -> None:
        """Ends a pod that ran as long as it may. Its controller makes another one, that of a Job `backoffLimit` times."""
        if pod.deleted or pod.node is None:
            return
        pod.refusal = "DeadlineExceeded", f"it may run for {pod.need.deadline} s"
        work = self._workload_of(pod)
        if work is not None and pod.owner is not None:
            again = work.rejections.note(work.kind, pod, pod.node.name, now, work.retries)
            if again is not None:
                self.timers.append((again, "retry", pod.owner))
        self._delete(pod)
        self.reconcile(now)

    def retry(self, key: WorkloadKey, now: float) -> None:
        """Lets a controller create pods for which it waited after rejections."""
        self.applied.pending[key] = None
        self.reconcile(now)

    def replace(self, pod: SimulatedPod, now: float) -> None:
        """Deletes a failed pod whose successor has the same name."""
        if not pod.deleted:
            self._delete(pod)
            self.reconcile(now)

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
        self._reconcile(now)
        if self.machines is not None:
            self.run_machines(now)

    def begin_machines(self) -> None:
        """Lets the cluster hold slots: the mesh has some for it."""
        if self.machines is None:
            self._materialize()
            self.machines = SimulatedMachines(self.spec, self.spec.id)

    def run_machines(self, now: float) -> None:
        """Lets what keeps the Machines of the cluster act until it rests."""
        if self.machines is None:
            return
        for _ in range(_MAX_ROUNDS):
            if not self.machines.step(now + self.wall, self._carry_out):
                break
            self._reconcile(now)
            self._rebind(now)
        if self.machines.wake_at is not None:
            self.timers.append((self.machines.wake_at - self.wall, "machines", None))

    def _carry_out(self, effect: Effect, made: dict[str, Any] | None) -> None:
        """Carries out what the core of Machines wants of a StatefulSet or of a pod."""
        if effect.kind == "Node":
            node = self._materialize().get(effect.name)
            if node is not None and made is not None:
                node.kind = node.kind.marked(made["metadata"].get("labels") or {}, made["spec"].get("taints") or [])
                self.dirty_nodes.add(node.name)
            return
        if effect.kind == "StatefulSet":
            key = (OWN, f"StatefulSet/{effect.name}")
            if made is None:
                self._remove_object(key)
            else:
                self._apply_object(key, made)
            return
        for pod in [p for p in self.pods.values() if p.name == effect.name and p.need.namespace == effect.namespace]:
            if made is None:
                self._delete(pod)
            else:
                pod.need = read_pod(made)._replace(node_name=pod.need.node_name, tolerations=pod.need.tolerations)
                self._mark_changed(pod)

    def _reconcile(self, now: float) -> None:
        for _ in range(_MAX_ROUNDS):
            if not self.applied.pending:
                break
            key = next(iter(self.applied.pending))
            del self.applied.pending[key]
            work = self.applied.workloads.get(key)
            if work is None:
                continue
            eligible = None
            if work.kind == "DaemonSet" and work.need is not None:
                eligible = [node.name for node in self._materialize().values() if passes_filters(work.need, node)]
            steps = next_steps(work, eligible)
            for pod in steps.delete:
                self._delete(pod, work)
            on_hold = now < self.hold_until
            create = [] if on_hold else [step for step in steps.create if work.rejections.allow(step[1], now)]
            for number, name in create:
                self._create(key, work, number, name, now)
            if steps.delete or create:
                self.applied.pending[key] = None
            if not self.applied.pending:
                self._open_gates(now)
                self._rebind(now)
        if now >= self.hold_until:
            return
        self.applied.reconcile_all()

    def set_pins(self, key: AppKey, pins: Pins, now: float) -> None:
        """Sets the slots to which the agent pins the pods of an app."""
        self.gates.set_pins(key, pins)
        self.try_gates(now)

    def try_gates(self, now: float) -> None:
        """Pins gated pods that stayed away from a node for a while."""
        self._open_gates(now)
        self._rebind(now)
        self.reconcile(now)


def _keep_reports(before: Mapping[str, SchedulerNode], nodes: Mapping[str, SchedulerNode]) -> None:
    """Leaves what is reported of zones as it was, until there are newer reports."""
    for name, node in nodes.items():
        old = before.get(name)
        if node.zones is None or old is None or old.zones is None or node.kind.topology != old.kind.topology:
            continue
        node.zones.report = old.zones.report


def _tolerates_no_execute(kind: NodeKind, need: PodNeed) -> bool:
    """Returns whether the pod stays on a node of this kind. Taints with NoExecute evict it; a node that is not ready
    keeps its pods for a while in Kubernetes, and for good here."""
    return tolerated([t for t in kind.taints if t.effect == "NoExecute"], need.tolerations)
