"""The workload controllers of a simulated cluster: they decide which pods an object has, and report its status.

They simulate only what matters for placement: jobs run until they are deleted or as long as they may, cron jobs never reach their
schedule.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from moorage.machine_groups.names import MACHINE_TYPE
from moorage.model.object_names import DECISION
from moorage.model.status import ObjectStatus
from moorage.podspec import REPLICATED, object_key, template

from .pod_needs import PodNeed, read_template
from .scheduler import SchedulerNode

#: The label by which a controller tells apart the pods of its revisions.
_REVISION = {
    "Deployment": "pod-template-hash",
    "StatefulSet": "controller-revision-hash",
    "DaemonSet": "controller-revision-hash",
}
#: Seconds until the first pod in place of a rejected one, doubled each time, and the longest wait.
_BACK_OFF = {"DaemonSet": (1.0, 900.0), "Job": (10.0, 360.0)}


class SimulatedPod:
    """A pod of a workload, or one that the fleet document gives. `refused`: the node whose kubelet did not admit it; `pin`: the one to
    which it was pinned when its gate was opened."""

    __slots__ = ("deleted", "key", "name", "need", "node", "number", "owner", "pin", "ready", "refusal", "refused", "serial", "template", "uid")  # fmt: skip

    def __init__(self, uid: str, name: str, key: str, need: PodNeed, template: str, number: int) -> None:
        self.uid = uid
        self.name = name
        self.key = key  # of its object; empty: given by the document, and managed by no controller
        self.owner: tuple[tuple[str, str], str] | None = None
        self.need = need
        self.template = template
        self.number = number  # ordinal of a StatefulSet's pod
        self.node: SchedulerNode | None = None
        self.ready = False
        self.deleted = False
        self.refused = ""
        self.refusal = ("", "")  # the reason and the message with which it failed
        self.pin = ""
        self.serial = 0  # the order in which the cluster's pods were created


def template_hash(manifest: Mapping[str, Any]) -> str:
    """Hashes the pod template: a change restarts the pods. A Pod is its own template, without the annotation that names its
    decision."""
    hashed: Any = template(dict(manifest))
    if manifest.get("kind") == "Pod":
        metadata = dict(hashed.get("metadata") or {})
        annotations = {k: v for k, v in (metadata.pop("annotations", None) or {}).items() if k != DECISION}
        hashed = {**hashed, "metadata": {**metadata, **({"annotations": annotations} if annotations else {})}}
    encoded = msgspec.json.encode(hashed, order="deterministic")
    return hashlib.blake2b(encoded, digest_size=5).hexdigest()


def _share(value: Any, of: int, up: bool) -> int:
    """Resolves a number or a percentage of `of`, rounded as in Kubernetes."""
    if isinstance(value, str) and value.endswith("%"):
        parts = of * int(value[:-1])
        return -(-parts // 100) if up else parts // 100
    return int(value)


class Rejections:
    """Delays pods in place of those that kubelets rejected, as the controllers of Kubernetes do: those of replica sets and
    stateful sets come at once, those of daemon sets and jobs later each time, bare pods never. `last`: the pod that was
    rejected last, and why."""

    def __init__(self) -> None:
        self.last = ""
        self._count: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def note(
        self, kind: str, rejected: SimulatedPod, node: str, now: float, retries: int | None = None
    ) -> float | None:
        """Notes a rejected pod, or one that failed later. Returns when the next one may come, if it has to wait. `retries`: how often one
        may come."""
        self.last = f"pod {rejected.name}: {': '.join(rejected.refusal)}"
        place = node if kind == "DaemonSet" else ""
        if kind == "Pod":
            self._until[place] = float("inf")
        if kind not in _BACK_OFF:
            return None
        first, most = _BACK_OFF[kind]
        times = self._count[place] = self._count.get(place, 0) + 1
        if retries is not None and times > retries:
            self._until[place] = float("inf")
            return None
        self._until[place] = now + min(first * 2.0 ** min(times - 1, 20), most)
        return self._until[place]

    def allow(self, node: str, now: float) -> bool:
        """Returns whether a pod may be created now, for a daemon set on this node."""
        return now >= self._until.get(node, 0.0)


class Workload:
    """One applied object and its pods. Raises ValueError where Kubernetes would refuse the object."""

    __slots__ = ("key", "kind", "manifest", "message", "name", "namespace", "need", "ordered", "partition", "pod_template", "pods", "refused", "rejections", "retries", "rolling", "serial", "surge", "template", "unavailable", "wanted")  # fmt: skip

    def __init__(self, manifest: Mapping[str, Any], key: str) -> None:
        self.key = key
        self.pods: list[SimulatedPod] = []
        self.refused: list[SimulatedPod] = []  # pods that failed, which no controller counts any more
        self.rejections = Rejections()
        self.serial = 0
        self.template = ""
        self.update(manifest)

    def update(self, manifest: Mapping[str, Any]) -> None:
        """Takes over a new version of the object."""
        metadata, spec = manifest.get("metadata") or {}, manifest.get("spec") or {}
        self.manifest = manifest
        self.kind = str(manifest.get("kind", ""))
        self.name = str(metadata.get("name", ""))
        self.namespace = str(metadata.get("namespace") or "default")
        self.message = ""
        if not self.kind or not self.name or not manifest.get("apiVersion"):
            raise ValueError(f"{object_key(dict(manifest))}: apiVersion, kind and metadata.name are required")
        self.need: PodNeed | None = None
        self.wanted = 0
        self.surge, self.unavailable, self.ordered = 0, 0, False
        self.retries: int | None = None  # of a Job whose pods fail
        self.pod_template: Mapping[str, Any] | None = None  # of pods that use slots of machines, or hold them
        self.partition = 0  # pods of a StatefulSet with a smaller ordinal are not updated
        self.rolling: Mapping[str, Any] | None = {}  # of a DaemonSet; None: pods are updated once somebody deletes them
        body = template(dict(manifest))
        if body is None:
            return
        if self.template != (template_now := template_hash(manifest)):
            self.rejections = Rejections()
        self.template = template_now
        if MACHINE_TYPE in ((body.get("metadata") or {}).get("labels") or {}):
            self.pod_template = body
        self.need = read_template(
            body,
            daemon=self.kind == "DaemonSet",
            namespace=self.namespace,
            generated={_REVISION[self.kind]: self.template} if self.kind in _REVISION else None,
        )
        try:
            self._update_counts(spec)
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{self.key}: {error}") from error

    def _update_counts(self, spec: Mapping[str, Any]) -> None:
        if self.kind in REPLICATED:
            replicas = spec.get("replicas")
            self.wanted = 1 if replicas is None else int(replicas)
        elif self.kind == "Job":
            parallel = spec.get("parallelism")
            self.wanted = 1 if parallel is None else int(parallel)
            if spec.get("completions") is not None:
                self.wanted = min(self.wanted, int(spec["completions"]))
            self.retries = 6 if spec.get("backoffLimit") is None else int(spec["backoffLimit"])
        elif self.kind == "Pod":
            self.wanted = 1
        elif self.kind == "CronJob":
            self.need = None
            self.message = "nothing runs until it is scheduled"
        self._update_strategy(spec)

    def _update_strategy(self, spec: Mapping[str, Any]) -> None:
        if self.kind == "StatefulSet":
            self.ordered = spec.get("podManagementPolicy") != "Parallel"
            strategy = spec.get("updateStrategy") or {}
            partition = (strategy.get("rollingUpdate") or {}).get("partition") or 0
            self.partition = self.wanted if strategy.get("type") == "OnDelete" else int(partition)
        if self.kind == "Deployment":
            strategy = spec.get("strategy") or {}
            rolling = strategy.get("rollingUpdate") or {}
            if strategy.get("type") == "Recreate":
                self.unavailable = self.wanted
            else:
                self.surge = _share(rolling.get("maxSurge", "25%"), self.wanted, True)
                self.unavailable = _share(rolling.get("maxUnavailable", "25%"), self.wanted, False)
                if not self.surge and not self.unavailable:
                    self.unavailable = 1
        elif self.kind == "DaemonSet":
            strategy = spec.get("updateStrategy") or {}
            self.rolling = None if strategy.get("type") == "OnDelete" else strategy.get("rollingUpdate") or {}
            self.count_nodes(1)

    def count_nodes(self, nodes: int) -> None:
        """Resolves the numbers of a DaemonSet for this many nodes."""
        self.wanted = nodes
        rolling = self.rolling or {}
        self.surge = _share(rolling.get("maxSurge", 0), nodes, True)
        self.unavailable = _share(rolling.get("maxUnavailable", 0 if self.surge else 1), nodes, True)
        if not self.surge and not self.unavailable:
            self.unavailable = 1

    def current(self) -> list[SimulatedPod]:
        """Returns the pods of the current template. A ReplicaSet counts all its pods, because it never replaces older
        ones."""
        if self.kind in ("ReplicaSet", "ReplicationController"):
            return list(self.pods)
        return [pod for pod in self.pods if pod.template == self.template]

    def status(self) -> ObjectStatus:
        if self.need is None:
            return ObjectStatus(object=self.key, state="Ready", message=self.message)
        current = self.current()
        ready = sum(pod.ready for pod in current)
        done = ready >= self.wanted and len(current) == len(self.pods) == self.wanted
        message = ""
        if not done and any(pod.node is None for pod in self.pods):
            gated = all(pod.need.gates for pod in self.pods if pod.node is None)
            message = "SchedulingGated: no slot has room yet" if gated else "Unschedulable: no node fits"
        if not done and self.rejections.last:
            message = self.rejections.last
        return ObjectStatus(
            object=self.key,
            state="Ready" if done else "Progressing",
            message=message,
            ready=ready,
            wanted=self.wanted,
        )


class Steps(NamedTuple):
    """The pods that a controller creates (each with its ordinal and the node it must be on) and deletes next."""

    create: list[tuple[int, str]] = []
    delete: list[SimulatedPod] = []


def next_steps(work: Workload, eligible: list[str] | None = None) -> Steps:
    """Decides the next steps of a workload; none when it is as it should be. `eligible`: the nodes of a DaemonSet."""
    if work.need is None:
        return Steps(delete=list(work.pods))
    if work.kind == "DaemonSet":
        return _daemon_set_steps(work, eligible or [])
    if work.kind == "StatefulSet":
        return _stateful_set_steps(work)
    if work.kind == "Deployment":
        return _deployment_steps(work)
    return _job_steps(work)


def _job_steps(work: Workload) -> Steps:
    """Yields the steps for jobs and bare pods: their pods are recreated, never patched."""
    current = work.current()
    outdated = [pod for pod in work.pods if pod not in current]
    return Steps(delete=outdated) if outdated else _scale_steps(work, current)


def _scale_steps(work: Workload, current: list[SimulatedPod]) -> Steps:
    """Creates missing pods, or deletes surplus ones: those that are not ready first."""
    if len(current) < work.wanted:
        return Steps(create=[(0, "")] * (work.wanted - len(current)))
    surplus = sorted(current, key=lambda pod: (pod.ready, pod.node is not None))
    return Steps(delete=surplus[: len(current) - work.wanted])


def _deployment_steps(work: Workload) -> Steps:
    current = work.current()
    old = [pod for pod in work.pods if pod.template != work.template]
    if not old:
        return _scale_steps(work, current)
    if not work.surge and work.unavailable >= work.wanted:  # Recreate
        return Steps(delete=old)
    allowed = work.wanted + work.surge - len(work.pods)
    create = [(0, "")] * max(0, min(allowed, work.wanted - len(current)))
    ready = sum(pod.ready for pod in work.pods)
    spare = ready - (work.wanted - work.unavailable)
    delete = [pod for pod in old if not pod.ready]
    delete += [pod for pod in old if pod.ready][: max(0, spare)]
    return Steps(create, delete)


def _stateful_set_steps(work: Workload) -> Steps:
    by_number = {pod.number: pod for pod in work.pods}
    create: list[tuple[int, str]] = []
    delete = [pod for pod in work.pods if pod.number >= work.wanted]
    for number in range(work.wanted):
        pod = by_number.get(number)
        if pod is None:
            create.append((number, ""))
        if work.ordered and (pod is None or not pod.ready):
            break
    if create or delete:
        return Steps(create, delete)
    # Updated from the last to the first, one at a time; a pod that never became ready does not block the update.
    outdated = [pod for pod in work.pods if pod.template != work.template and pod.number >= work.partition]
    unready = [pod for pod in outdated if not pod.ready]
    if not unready and outdated and all(pod.ready for pod in work.pods):
        return Steps(delete=[max(outdated, key=lambda pod: pod.number)])
    return Steps(delete=unready)


def _daemon_set_steps(work: Workload, eligible: list[str]) -> Steps:
    """Replaces pods of older templates on their nodes: new pods come after these, or, as far as `maxSurge` allows, before."""
    work.count_nodes(len(eligible))
    by_node: dict[str, list[SimulatedPod]] = {name: [] for name in eligible}
    delete: list[SimulatedPod] = []
    for pod in work.pods:
        by_node.get(pod.need.node_name, delete).append(pod)
    create: list[tuple[int, str]] = []
    outdated: list[SimulatedPod] = []
    surging = 0
    for name, pods in by_node.items():
        new = [pod for pod in pods if pod.template == work.template]
        old = [pod for pod in pods if pod.template != work.template]
        if not pods:
            create.append((0, name))
        elif new and old:
            surging += 1
            delete += old if any(pod.ready for pod in new) else [pod for pod in old if not pod.ready]
        else:
            outdated += old
    if create or delete or work.rolling is None:
        return Steps(create, delete)
    unready = [pod for pod in outdated if not pod.ready]
    if unready:
        return Steps(delete=unready)
    if work.surge:
        return Steps(create=[(0, pod.need.node_name) for pod in outdated[: max(0, work.surge - surging)]])
    down = sum(not pod.ready for pod in work.pods)
    return Steps(delete=outdated[: max(0, work.unavailable - down)])
