"""The controllers of a simulated cluster: from an object to its pods, and what became of them. No more of Kubernetes than
placement can be told by: jobs run until they are taken away, cron jobs wait for a schedule that never comes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from moorage.model.desired import ObjectStatus
from moorage.podspec import REPLICATED, object_key, template

from .pod_needs import PodNeed, read_template
from .scheduler import SchedulerNode

DECISION = "moorage.dev/decision"


class SimulatedPod:
    __slots__ = ("deleted", "key", "name", "need", "node", "number", "owner", "ready", "template", "uid")

    def __init__(self, uid: str, name: str, key: str, need: PodNeed, template: str, number: int) -> None:
        self.uid = uid
        self.name = name
        self.key = key  # of its object; empty: nobody here manages it
        self.owner: tuple[tuple[str, str], str] | None = None
        self.need = need
        self.template = template
        self.number = number  # ordinal of a StatefulSet's pod
        self.node: SchedulerNode | None = None
        self.ready = False
        self.deleted = False


def template_hash(manifest: Mapping[str, Any]) -> str:
    """What restarts pods when it changes. A Pod is its own template, but for the note which decision it is from."""
    found: Any = template(dict(manifest))
    if manifest.get("kind") == "Pod":
        metadata = dict(found.get("metadata") or {})
        notes = {k: v for k, v in (metadata.pop("annotations", None) or {}).items() if k != DECISION}
        found = {**found, "metadata": {**metadata, **({"annotations": notes} if notes else {})}}
    encoded = msgspec.json.encode(found, order="deterministic")
    return hashlib.blake2b(encoded, digest_size=5).hexdigest()


def _share(value: Any, of: int, up: bool) -> int:
    """A number, or a percentage as Kubernetes rounds it."""
    if isinstance(value, str) and value.endswith("%"):
        parts = of * int(value[:-1])
        return -(-parts // 100) if up else parts // 100
    return int(value)


class Workload:
    """One object that an agent applied. ValueError where Kubernetes would refuse it."""

    __slots__ = ("key", "kind", "message", "name", "namespace", "need", "ordered", "pods", "serial", "surge", "template", "unavailable", "wanted")  # fmt: skip

    def __init__(self, manifest: Mapping[str, Any], key: str) -> None:
        self.key = key
        self.pods: list[SimulatedPod] = []
        self.serial = 0
        self.template = ""
        self.become(manifest)

    def become(self, manifest: Mapping[str, Any]) -> None:
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
            self._counts(spec)
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{self.key}: {error}") from error

    def _counts(self, spec: Mapping[str, Any]) -> None:
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
        """Pods of the template as it is now. A ReplicaSet leaves its older ones alone."""
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


class Steps:
    """What a step of a workload wants done; the cluster does it."""

    __slots__ = ("create", "delete")

    def __init__(self) -> None:
        self.create: list[tuple[int, str]] = []  # ordinal, node it must be on
        self.delete: list[SimulatedPod] = []


def step(work: Workload, eligible: list[str] | None = None) -> Steps:
    """The next thing to do for a workload; nothing when it is as it should be. `eligible`: nodes of a DaemonSet."""
    steps = Steps()
    if work.need is None:
        steps.delete = list(work.pods)
    elif work.kind == "DaemonSet":
        _daemons(work, eligible or [], steps)
    elif work.kind == "StatefulSet":
        _ordinals(work, steps)
    elif work.kind == "Deployment":
        _rolling(work, steps)
    else:
        _plain(work, steps)
    return steps


def _plain(work: Workload, steps: Steps) -> None:
    """Jobs and bare pods are made again, never patched."""
    current = work.current()
    steps.delete = [pod for pod in work.pods if pod not in current]
    if not steps.delete:
        _scale(work, current, work.wanted, steps)


def _scale(work: Workload, current: list[SimulatedPod], to: int, steps: Steps) -> None:
    if len(current) < to:
        steps.create = [(0, "")] * (to - len(current))
    elif len(current) > to:
        spare = sorted(current, key=lambda pod: (pod.ready, pod.node is not None))
        steps.delete = spare[: len(current) - to]


def _rolling(work: Workload, steps: Steps) -> None:
    current = work.current()
    old = [pod for pod in work.pods if pod.template != work.template]
    if not old:
        _scale(work, current, work.wanted, steps)
        return
    if not work.surge and work.unavailable >= work.wanted:  # Recreate
        steps.delete = old
        return
    room = work.wanted + work.surge - len(work.pods)
    steps.create = [(0, "")] * max(0, min(room, work.wanted - len(current)))
    ready = sum(pod.ready for pod in work.pods)
    spare = ready - (work.wanted - work.unavailable)
    for pod in sorted(old, key=lambda pod: pod.ready):
        if pod.ready:
            if spare <= 0:
                break
            spare -= 1
        steps.delete.append(pod)


def _ordinals(work: Workload, steps: Steps) -> None:
    by_number = {pod.number: pod for pod in work.pods}
    steps.delete = [pod for pod in work.pods if pod.number >= work.wanted]
    for number in range(work.wanted):
        pod = by_number.get(number)
        if pod is None:
            steps.create.append((number, ""))
        if work.ordered and (pod is None or not pod.ready):
            break
    if steps.create or steps.delete:
        return
    # Rolled from the last to the first, one at a time; a pod that never got ready does not hold it up.
    outdated = [pod for pod in work.pods if pod.template != work.template]
    waiting = [pod for pod in outdated if not pod.ready]
    if waiting:
        steps.delete = waiting
    elif outdated and all(pod.ready for pod in work.pods):
        steps.delete = [max(outdated, key=lambda pod: pod.number)]


def _daemons(work: Workload, eligible: list[str], steps: Steps) -> None:
    work.wanted = len(eligible)
    by_node = {pod.need.node_name: pod for pod in work.pods}
    steps.create = [(0, name) for name in eligible if name not in by_node]
    there = set(eligible)
    steps.delete = [pod for pod in work.pods if pod.need.node_name not in there]
    if steps.create or steps.delete:
        return
    outdated = [pod for pod in work.pods if pod.template != work.template]
    waiting = [pod for pod in outdated if not pod.ready]
    down = sum(not pod.ready for pod in work.pods)
    steps.delete = waiting or outdated[: max(0, work.unavailable - down)]
