"""Reads Kubernetes objects: which of them have pods, and what one pod of each asks for. Nothing else in a manifest is
looked at or changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from moorage.model.shapes import Requirement, Toleration
from moorage.parsing import parse_amount
from moorage.podspec import DAEMON_SET_TOLERATIONS, REPLICATED, WORKLOADS, ContainerResources, container_resources

from .pod_fields import (
    ContainerFields,
    CronJobSpec,
    PodSpecFields,
    PodTemplateFields,
    Quantity,
    ResourceQuantities,
    SelectorRequirement,
    WorkloadSpec,
)
from .violations import Report


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """The pods of one object. `terms` are ORed lists of ANDed requirements; empty = every node. `requests` and `limits`
    are those of the whole pod, which stand beside those of its containers."""

    api_version: str
    kind: str
    name: str
    count: int
    containers: list[ContainerResources]
    overhead: dict[str, int]
    requests: dict[str, int]
    limits: dict[str, int]
    terms: list[list[Requirement]]
    tolerations: list[Toleration]
    template: dict[str, Any]
    surge: int | str = 0
    ignored: tuple[str, ...] = ()  # rules of the manifest that shapes cannot express

    @property
    def object(self) -> str:
        return f"{self.kind}/{self.name}"


JOBS = {"Job", "CronJob"}
_GROUPS = dict.fromkeys(("Deployment", "StatefulSet", "ReplicaSet", "DaemonSet"), "apps")
_GROUPS |= {"Job": "batch", "CronJob": "batch", "Pod": "", "ReplicationController": ""}


def has_pods(manifest: dict[str, Any]) -> bool:
    """Goes by kind and API group: a custom resource of kind `Job` in another group has no pods."""
    kind, version = manifest.get("kind"), manifest.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str) or kind not in WORKLOADS:
        return False
    return version.rpartition("/")[0] == _GROUPS[kind]


def read(manifest: dict[str, Any], path: str, report: Report) -> PodTemplate | None:
    """Reads the pods of an object that has some. Returns None, with at least one report, where they cannot be read."""
    kind = manifest["kind"]
    workload = _workload(manifest, path, report)
    if workload is None:
        return None
    count = _count(kind, workload)
    if count < 0:
        report(f"{path}.spec.{'parallelism' if kind in JOBS else 'replicas'}", "OutOfRange", "must not be negative")
        return None
    template: Any = manifest
    for step in WORKLOADS[kind]:
        template = template[step]
    spec, at = workload.template.spec, ".".join((path, *WORKLOADS[kind], "spec"))
    requests, limits = _resources(spec.resources, f"{at}.resources", report)
    return PodTemplate(
        api_version=manifest["apiVersion"],
        kind=kind,
        name=manifest["metadata"]["name"],
        count=count,
        containers=_containers(spec, at, report),
        overhead=_amounts(spec.overhead, f"{at}.overhead", report) if spec.overhead else {},
        requests=requests,
        limits=limits,
        terms=_terms(spec),
        tolerations=[
            Toleration(key=t.key or "", operator=t.operator or "Equal", value=t.value or "", effect=t.effect or "")
            for t in spec.tolerations or ()
        ]
        + (list(DAEMON_SET_TOLERATIONS) if kind == "DaemonSet" else []),
        template=template,
        surge=_surge(kind, workload, f"{path}.spec", report),
        ignored=_ignored(spec),
    )


def _workload(manifest: dict[str, Any], path: str, report: Report) -> WorkloadSpec | None:
    kind = manifest["kind"]
    try:
        if kind == "Pod":
            return WorkloadSpec(template=msgspec.convert(manifest, PodTemplateFields))
        if kind == "CronJob":
            return msgspec.convert(manifest.get("spec"), CronJobSpec).job_template.spec
        return msgspec.convert(manifest.get("spec"), WorkloadSpec)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        inside = where.rstrip("`").replace("[...]", "")
        base = path if kind == "Pod" else f"{path}.spec"
        report(f"{base}{inside}", "InvalidManifest", message)
        return None


def _count(kind: str, workload: WorkloadSpec) -> int:
    if kind in REPLICATED:
        return 1 if workload.replicas is None else workload.replicas
    if kind in JOBS:
        parallelism = 1 if workload.parallelism is None else workload.parallelism
        return parallelism if workload.completions is None else min(parallelism, max(workload.completions, 0))
    return 1


def _containers(spec: PodSpecFields, path: str, report: Report) -> list[ContainerResources]:
    containers = [_container(c, False, f"{path}.containers[{i}]", report) for i, c in enumerate(spec.containers)]
    containers += [
        _container(c, True, f"{path}.initContainers[{i}]", report) for i, c in enumerate(spec.init_containers or ())
    ]
    if not spec.containers:
        report(f"{path}.containers", "Required", "a pod needs at least one container")
    if len({c.name for c in containers}) < len(containers):
        report(f"{path}.containers", "Duplicate", "two containers of the pod have the same name")
    return containers


def _container(container: ContainerFields, init: bool, path: str, report: Report) -> ContainerResources:
    requests, limits = _resources(container.resources, f"{path}.resources", report)
    return container_resources(container.name, requests, limits, init=init, restart_policy=container.restart_policy)


def _resources(
    resources: ResourceQuantities | None, path: str, report: Report
) -> tuple[dict[str, int], dict[str, int]]:
    """Requests and limits of a container or of a whole pod."""
    if resources is None:
        return {}, {}
    limits = _amounts(resources.limits, f"{path}.limits", report) if resources.limits else {}
    requests = _amounts(resources.requests, f"{path}.requests", report) if resources.requests else {}
    for resource, amount in requests.items():
        if amount > limits.get(resource, amount):
            report(f"{path}.requests.{resource}", "RequestsAboveLimits", "is more than its limit")
    return requests, limits


def _amounts(quantities: dict[str, Quantity], path: str, report: Report) -> dict[str, int]:
    amounts = {}
    for resource, quantity in quantities.items():
        try:
            amounts[resource] = parse_amount(resource, quantity if type(quantity) is str else repr(quantity), True)
        except ValueError as error:
            report(f"{path}.{resource}", "InvalidQuantity", str(error))
            continue
        if amounts[resource] < 0:
            report(f"{path}.{resource}", "InvalidQuantity", "must not be negative")
    return amounts


def _requirement(requirement: SelectorRequirement) -> Requirement:
    return Requirement(key=requirement.key, operator=requirement.operator, values=tuple(requirement.values or ()))


def _terms(spec: PodSpecFields) -> list[list[Requirement]]:
    """The node selector terms: what nodeSelector and nodeName require holds in each of them."""
    required = [Requirement(key=k, operator="In", values=(v,)) for k, v in (spec.node_selector or {}).items()]
    if spec.node_name:
        required.append(Requirement(key="metadata.name", operator="In", values=(spec.node_name,)))
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    selector = affinity.required if affinity is not None else None
    if selector is None:
        return [required] if required else []
    terms = []
    for term in selector.node_selector_terms or ():
        requirements = [_requirement(e) for e in (*(term.match_expressions or ()), *(term.match_fields or ()))]
        if requirements:  # an empty term matches no node in Kubernetes
            terms.append(required + requirements)
    return terms or [[Requirement(key="metadata.name", operator="In", values=())]]


def _surge(kind: str, workload: WorkloadSpec, path: str, report: Report) -> int | str:
    """The `maxSurge` of a rolling update: a number or a percentage."""
    if kind == "Deployment":
        strategy, default, field = workload.strategy, "25%", "strategy"
    elif kind == "DaemonSet":
        strategy, default, field = workload.update_strategy, "0", "updateStrategy"
    else:
        return 0
    if strategy is not None and strategy.type not in (None, "RollingUpdate"):
        return 0
    surge: int | str = default
    if strategy is not None and strategy.rolling_update is not None and strategy.rolling_update.max_surge is not None:
        surge = strategy.rolling_update.max_surge
    digits = surge.removesuffix("%") if isinstance(surge, str) else surge
    if isinstance(digits, str) and not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        report(f"{path}.{field}.rollingUpdate.maxSurge", "Invalid", "must be a number or a percentage like 25%")
        return 0
    if isinstance(digits, int) and digits < 0:
        report(f"{path}.{field}.rollingUpdate.maxSurge", "OutOfRange", "must not be negative")
        return 0
    return surge


def surge_of(pods: PodTemplate, count: int) -> int:
    """How many pods more than `count` a rollout may run at once; percentages round up, as in Kubernetes."""
    if isinstance(pods.surge, int):
        return pods.surge
    if pods.surge.endswith("%"):
        return -(-count * int(pods.surge[:-1]) // 100)
    return int(pods.surge)


def _ignored(spec: PodSpecFields) -> tuple[str, ...]:
    """The scheduling rules of the pod that only Kubernetes looks at."""
    rules = []
    affinity = spec.affinity
    if affinity is not None:
        if affinity.pod_affinity is not None and affinity.pod_affinity.required:
            rules.append("podAffinity")
        if affinity.pod_anti_affinity is not None and affinity.pod_anti_affinity.required:
            rules.append("podAntiAffinity")
    if any(s.when_unsatisfiable != "ScheduleAnyway" for s in spec.topology_spread_constraints or ()):
        rules.append("topologySpreadConstraints")
    ports = [port for c in (*spec.containers, *(spec.init_containers or ())) for port in c.ports or ()]
    if any(port.host_port for port in ports) or (spec.host_network and ports):
        rules.append("hostPort")
    return tuple(rules)
