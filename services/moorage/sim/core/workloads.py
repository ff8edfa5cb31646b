"""The workload controllers of a simulated cluster: they decide which pods an object has, and report its status.

They simulate only what matters for placement: jobs run until they are deleted, cron jobs never reach their schedule.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from moorage.model.desired import ObjectStatus
from moorage.podspec import REPLICATED, object_key, template

from .pod_needs import PodNeed, read_template
from .scheduler import SchedulerNode

DECISION = "moorage.dev/decision"


class SimulatedPod:
    """A pod of a workload, or one that the fleet document gives."""

    __slots__ = ("deleted", "key", "name", "need", "node", "number", "owner", "ready", "template", "uid")

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


class Workload:
    """One applied object and its pods. Raises ValueError where Kubernetes would refuse the object."""

    __slots__ = ("key", "kind", "message", "name", "namespace", "need", "ordered", "pods", "serial", "surge", "template", "unavailable", "wanted")  # fmt: skip

    def __init__(self, manifest: Mapping[str, Any], key: str) -> None:
        self.key = key
        self.pods: list[SimulatedPod] = []
        self.serial = 0
        self.template = ""
        self.update(manifest)

    def update(self, manifest: Mapping[str, Any]) -> None:
        """Takes over a new version of the object."""
        metadata, spec = manifest.get("metadata") or {}, manifest.get("spec") or {}
        self.kind = str(manifest.get("kind", ""))
        self.name = str(metadata.get("name", ""))
        self.namespace = str(metadata.get("namespace") or "default")
        self.message = ""
        if not self.kind or not self.name or not manifest.get("apiVersion"):
            raise ValueError(f"{object_key(dict(manifest))}: apiVersion, kind and metadata.name are required")
        self.need: PodNeed | None = None
        self.wanted = 0
        self.surge, self.unavailable, self.ordered = 0, 0, False
        body = template(dict(manifest))
        if body is None:
            return
        self.need = read_template(body, daemon=self.kind == "DaemonSet")
        self.template = template_hash(manifest)
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
        elif self.kind == "Pod":
            self.wanted = 1
        elif self.kind == "CronJob":
            self.need = None
            self.message = "nothing runs until it is scheduled"
        self._update_strategy(spec)

    def _update_strategy(self, spec: Mapping[str, Any]) -> None:
        if self.kind == "StatefulSet":
            self.ordered = spec.get("podManagementPolicy") != "Parallel"
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
            rolling = (spec.get("updateStrategy") or {}).get("rollingUpdate") or {}
            self.unavailable = max(1, int(_share(rolling.get("maxUnavailable", 1), 1, True)))

    def current(self) -> list[SimulatedPod]:
        """The pods of the current template. A ReplicaSet counts all its pods, because it never replaces older ones."""
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
            message = "Unschedulable: no node fits"
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
    """Pods of jobs and bare pods are recreated, never patched."""
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
    outdated = [pod for pod in work.pods if pod.template != work.template]
    unready = [pod for pod in outdated if not pod.ready]
    if not unready and outdated and all(pod.ready for pod in work.pods):
        return Steps(delete=[max(outdated, key=lambda pod: pod.number)])
    return Steps(delete=unready)


def _daemon_set_steps(work: Workload, eligible: list[str]) -> Steps:
    work.wanted = len(eligible)
    nodes = set(eligible)
    by_node = {pod.need.node_name: pod for pod in work.pods}
    create = [(0, name) for name in eligible if name not in by_node]
    delete = [pod for pod in work.pods if pod.need.node_name not in nodes]
    if create or delete:
        return Steps(create, delete)
    outdated = [pod for pod in work.pods if pod.template != work.template]
    unready = [pod for pod in outdated if not pod.ready]
    down = sum(not pod.ready for pod in work.pods)
    return Steps(delete=unready or outdated[: max(0, work.unavailable - down)])
