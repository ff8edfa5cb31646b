"""Reads Kubernetes objects: which of them have pods, and what one pod of each asks for. Nothing else in a manifest is
looked at or changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from moorage.model.shapes import Requirement, Toleration
from moorage.parsing import parse_amount
from moorage.podspec import (
    DAEMON_SET_TOLERATIONS,
    REPLICATED,
    WORKLOADS,
    ContainerResources,
    HostPort,
    container_resources,
    host_port,
)
from moorage.podspec.device_shares import THOUSANDTHS, count_and_share, is_class_resource

from .device_needs import thousandths
from .diagnostics import Diagnostics
from .pod_fields import (
    ContainerFields,
    CronJobSpec,
    PodAffinityTerm,
    PodSpecFields,
    PodTemplateFields,
    Quantity,
    ResourceQuantities,
    RollingUpdate,
    SelectorRequirement,
    TopologySpread,
    WorkloadSpec,
)

#: More devices of a class than any node has, pages of memory among them.
_MAX_DEVICES = 1_000_000


class RollingNumbers(NamedTuple):
    """Numbers or percentages: how many pods a rolling update may run beyond the object's number, and how many may be
    missing."""

    max_surge: int | str = 0
    max_unavailable: int | str = 1


class PodSchedulingRules(NamedTuple):
    """Required anti-affinity, affinity and topology spread."""

    apart: tuple[PodAffinityTerm, ...] = ()
    near: tuple[PodAffinityTerm, ...] = ()
    spread: tuple[TopologySpread, ...] = ()


class PodClaim(NamedTuple):
    """A claim to devices by the pod's name for it: a ResourceClaim, or a template that each pod gets a claim of."""

    name: str
    claim: str = ""
    template: str = ""


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
    rolling: RollingNumbers
    host_ports: tuple[HostPort, ...] = ()
    namespace: str = "default"
    labels: dict[str, str] = field(default_factory=dict)
    rules: PodSchedulingRules = PodSchedulingRules()  # noqa: RUF009
    device_claims: tuple[PodClaim, ...] = ()

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


def read(manifest: dict[str, Any], path: str, diagnostics: Diagnostics) -> PodTemplate | None:
    """Reads the pods of an object that has some. Returns None, with at least one error, where they cannot be read."""
    kind = manifest["kind"]
    workload = _workload(manifest, path, diagnostics)
    if workload is None:
        return None
    count = _count(kind, workload)
    if count < 0:
        diagnostics.error(
            f"{path}.spec.{'parallelism' if kind in JOBS else 'replicas'}", "OutOfRange", "must not be negative"
        )
        return None
    template: Any = manifest
    for step in WORKLOADS[kind]:
        template = template[step]
    spec, at = workload.template.spec, ".".join((path, *WORKLOADS[kind], "spec"))
    requests, limits = _resources(spec.resources, f"{at}.resources", diagnostics)
    return PodTemplate(
        api_version=manifest["apiVersion"],
        kind=kind,
        name=manifest["metadata"]["name"],
        count=count,
        containers=_containers(spec, at, diagnostics),
        overhead=_amounts(spec.overhead, f"{at}.overhead", diagnostics) if spec.overhead else {},
        requests=requests,
        limits=limits,
        terms=_terms(spec),
        tolerations=[
            Toleration(key=t.key or "", operator=t.operator or "Equal", value=t.value or "", effect=t.effect or "")
            for t in spec.tolerations or ()
        ]
        + (list(DAEMON_SET_TOLERATIONS) if kind == "DaemonSet" else []),
        template=template,
        rolling=_rolling_update(kind, workload, f"{path}.spec", diagnostics),
        host_ports=_host_ports(spec, at, diagnostics),
        namespace=str(manifest["metadata"].get("namespace") or "default"),
        labels=_pod_labels(template),
        rules=_rules(spec, at, diagnostics),
        device_claims=tuple(
            PodClaim(claim.name, claim.resource_claim_name or "", claim.resource_claim_template_name or "")
            for claim in spec.resource_claims or ()
        ),
    )


def _workload(manifest: dict[str, Any], path: str, diagnostics: Diagnostics) -> WorkloadSpec | None:
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
        diagnostics.error(f"{base}{inside}", "InvalidManifest", message)
        return None


def _count(kind: str, workload: WorkloadSpec) -> int:
    if kind in REPLICATED:
        return 1 if workload.replicas is None else workload.replicas
    if kind in JOBS:
        parallelism = 1 if workload.parallelism is None else workload.parallelism
        return parallelism if workload.completions is None else min(parallelism, max(workload.completions, 0))
    return 1


def _containers(spec: PodSpecFields, path: str, diagnostics: Diagnostics) -> list[ContainerResources]:
    containers = [_container(c, False, f"{path}.containers[{i}]", diagnostics) for i, c in enumerate(spec.containers)]
    containers += [
        _container(c, True, f"{path}.initContainers[{i}]", diagnostics)
        for i, c in enumerate(spec.init_containers or ())
    ]
    if not spec.containers:
        diagnostics.error(f"{path}.containers", "Required", "a pod needs at least one container")
    if len({c.name for c in containers}) < len(containers):
        diagnostics.error(f"{path}.containers", "Duplicate", "two containers of the pod have the same name")
    return containers


def _container(container: ContainerFields, init: bool, path: str, diagnostics: Diagnostics) -> ContainerResources:
    requests, limits = _resources(container.resources, f"{path}.resources", diagnostics)
    return container_resources(container.name, requests, limits, init=init, restart_policy=container.restart_policy)


def _resources(
    resources: ResourceQuantities | None, path: str, diagnostics: Diagnostics
) -> tuple[dict[str, int], dict[str, int]]:
    """Requests and limits of a container or of a whole pod."""
    if resources is None:
        return {}, {}
    limits = _amounts(resources.limits, f"{path}.limits", diagnostics) if resources.limits else {}
    requests = _amounts(resources.requests, f"{path}.requests", diagnostics) if resources.requests else {}
    for resource, amount in requests.items():
        if amount > limits.get(resource, amount):
            diagnostics.error(f"{path}.requests.{resource}", "RequestsAboveLimits", "is more than its limit")
    return requests, limits


def _amounts(quantities: dict[str, Quantity], path: str, diagnostics: Diagnostics) -> dict[str, int]:
    """Returns amounts by resource; of resource classes thousandths of devices."""
    amounts = {}
    for resource, quantity in quantities.items():
        text = quantity if type(quantity) is str else repr(quantity)
        try:
            if is_class_resource(resource):
                amounts[resource] = thousandths(text)
                if count_and_share(amounts[resource] or THOUSANDTHS)[0] > _MAX_DEVICES:
                    raise ValueError(f"must be at most {_MAX_DEVICES}")
            else:
                amounts[resource] = parse_amount(resource, text, True)
        except ValueError as error:
            diagnostics.error(f"{path}.{resource}", "InvalidQuantity", str(error))
            continue
        if amounts[resource] < 0:
            diagnostics.error(f"{path}.{resource}", "InvalidQuantity", "must not be negative")
    return amounts


def _requirement(requirement: SelectorRequirement) -> Requirement:
    return Requirement(key=requirement.key, operator=requirement.operator, values=tuple(requirement.values or ()))


def _terms(spec: PodSpecFields) -> list[list[Requirement]]:
    """Returns the node selector terms: what nodeSelector and nodeName require holds in each of them."""
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


#: By kind: the field of the strategy, and the defaults of `maxSurge` and `maxUnavailable` in a rolling update.
_ROLLING = {"Deployment": ("strategy", "25%", "25%"), "DaemonSet": ("updateStrategy", "0", "1")}


def _rolling_update(kind: str, workload: WorkloadSpec, path: str, diagnostics: Diagnostics) -> RollingNumbers:
    """Reads the `maxSurge` and `maxUnavailable` of a rolling update. Where there is none, older pods end first."""
    if kind not in _ROLLING:
        return RollingNumbers()
    field, surge, unavailable = _ROLLING[kind]
    strategy = workload.strategy if kind == "Deployment" else workload.update_strategy
    if strategy is not None and strategy.type not in (None, "RollingUpdate"):
        return RollingNumbers()
    rolling = (strategy.rolling_update if strategy is not None else None) or RollingUpdate()
    at = f"{path}.{field}.rollingUpdate"
    if kind == "DaemonSet" and rolling.max_surge not in (None, 0, "0", "0%"):
        unavailable = "0"  # only one of the two may be set
    return RollingNumbers(
        _number_or_percentage(rolling.max_surge, surge, f"{at}.maxSurge", diagnostics),
        _number_or_percentage(rolling.max_unavailable, unavailable, f"{at}.maxUnavailable", diagnostics),
    )


def _number_or_percentage(value: int | str | None, default: str, path: str, diagnostics: Diagnostics) -> int | str:
    if value is None:
        return default
    digits = value.removesuffix("%") if isinstance(value, str) else value
    if isinstance(digits, str) and not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        diagnostics.error(path, "Invalid", "must be a number or a percentage like 25%")
        return 0
    if isinstance(digits, int) and digits < 0:
        diagnostics.error(path, "OutOfRange", "must not be negative")
        return 0
    return value


def rollout_of(pods: PodTemplate, count: int) -> tuple[int, int]:
    """Returns how many pods more than `count` a rollout may run at once, and how many may be missing, as Kubernetes resolves
    them. The former rounds up; so does the latter for a DaemonSet, whose numbers are for one of its nodes here."""
    daemon_set = pods.kind == "DaemonSet"
    of = 1 if daemon_set else count
    surge = _resolved(pods.rolling.max_surge, of, up=True)
    unavailable = _resolved(pods.rolling.max_unavailable, of, up=daemon_set)
    if not surge:
        return 0, max(1, unavailable)
    return min(surge, 1) if daemon_set else surge, unavailable


def _resolved(value: int | str, count: int, *, up: bool) -> int:
    if isinstance(value, str) and value.endswith("%"):
        parts = count * int(value[:-1])
        return -(-parts // 100) if up else parts // 100
    return int(value)


def _rules(spec: PodSpecFields, path: str, diagnostics: Diagnostics) -> PodSchedulingRules:
    """Returns the required rules of the pod about other pods."""
    affinity = spec.affinity
    apart = affinity.pod_anti_affinity.required if affinity and affinity.pod_anti_affinity else None
    near = affinity.pod_affinity.required if affinity and affinity.pod_affinity else None
    spread = []
    for i, constraint in enumerate(spec.topology_spread_constraints or ()):
        at = f"{path}.topologySpreadConstraints[{i}]"
        if constraint.max_skew < 1:
            diagnostics.error(f"{at}.maxSkew", "OutOfRange", "must be at least 1")
        if constraint.when_unsatisfiable != "ScheduleAnyway":
            spread.append(constraint)
    return PodSchedulingRules(tuple(apart or ()), tuple(near or ()), tuple(spread))


def _pod_labels(template: dict[str, Any]) -> dict[str, str]:
    metadata = template.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    return {str(k): str(v) for k, v in labels.items()} if isinstance(labels, dict) else {}


def _host_ports(spec: PodSpecFields, path: str, diagnostics: Diagnostics) -> tuple[HostPort, ...]:
    """Returns the host ports that the pod uses as long as it runs: those of its containers and sidecars. In the node's
    network every port is one."""
    found = set()
    lists = (("containers", spec.containers), ("initContainers", spec.init_containers or []))
    for where, containers in lists:
        for i, container in enumerate(containers):
            if where == "initContainers" and container.restart_policy != "Always":
                continue
            for j, port in enumerate(container.ports or ()):
                number = port.host_port or (port.container_port if spec.host_network else 0) or 0
                if not 0 <= number < 1 << 16:
                    diagnostics.error(
                        f"{path}.{where}[{i}].ports[{j}].hostPort", "OutOfRange", "must be between 1 and 65535"
                    )
                elif number:
                    found.add(host_port(number, port.protocol, port.host_ip))
    return tuple(sorted(found))
