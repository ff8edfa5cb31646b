"""Reads Kubernetes objects: which of them have pods, and what one pod of each asks for where. Everything else in a
manifest passes through untouched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from moorage.model.problems import Violation
from moorage.model.shapes import Requirement, Toleration
from moorage.parsing import parse_amount
from moorage.podspec import WORKLOADS

Report = Callable[[str, str, str], None]
Number = int | float | str


class _Kube(msgspec.Struct, rename="camel", gc=False):
    """Only the fields that matter here; Kubernetes itself checks the rest, and null means not given."""


class _Resources(_Kube):
    requests: dict[str, Number] | None = None
    limits: dict[str, Number] | None = None


class _Port(_Kube):
    host_port: int | None = None


class _Container(_Kube):
    name: str
    resources: _Resources | None = None
    ports: list[_Port] | None = None
    restart_policy: str | None = None


class _Expression(_Kube):
    key: str
    operator: str
    values: list[str] | None = None


class _Term(_Kube):
    match_expressions: list[_Expression] | None = None
    match_fields: list[_Expression] | None = None


class _Selector(_Kube):
    node_selector_terms: list[_Term] | None = None


class _NodeAffinity(_Kube):
    required: _Selector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class _PodAffinity(_Kube):
    required: list[Any] | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class _Affinity(_Kube):
    node_affinity: _NodeAffinity | None = None
    pod_affinity: _PodAffinity | None = None
    pod_anti_affinity: _PodAffinity | None = None


class _Toleration(_Kube):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class _Spread(_Kube):
    when_unsatisfiable: str | None = None


class _PodSpec(_Kube):
    containers: list[_Container]
    init_containers: list[_Container] | None = None
    resources: _Resources | None = None
    host_network: bool | None = None
    overhead: dict[str, Number] | None = None
    node_selector: dict[str, str] | None = None
    node_name: str | None = None
    affinity: _Affinity | None = None
    tolerations: list[_Toleration] | None = None
    topology_spread_constraints: list[_Spread] | None = None


class _Template(_Kube):
    spec: _PodSpec


class _Rolling(_Kube):
    max_surge: int | str | None = None


class _Strategy(_Kube):
    type: str | None = None
    rolling_update: _Rolling | None = None


class _Workload(_Kube):
    template: _Template
    replicas: int | None = None
    parallelism: int | None = None
    completions: int | None = None
    strategy: _Strategy | None = None
    update_strategy: _Strategy | None = None


class _JobTemplate(_Kube):
    spec: _Workload


class _CronJob(_Kube):
    job_template: _JobTemplate


class Container(NamedTuple):
    name: str
    requests: dict[str, int]  # with what limits default them to
    limits: dict[str, int]
    init: bool = False
    sidecar: bool = False


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """The pods of one object. `terms` are ORed lists of ANDed requirements; empty = every node. `whole`: what the pod
    requests besides its containers, which is at least what they request together."""

    api_version: str
    kind: str
    name: str
    count: int
    containers: list[Container]
    overhead: dict[str, int]
    whole: dict[str, int]
    terms: list[list[Requirement]]
    tolerations: list[Toleration]
    template: dict[str, Any]
    surge: int | str = 0
    ignored: tuple[str, ...] = ()  # what keeps pods of Kubernetes apart and no shape expresses

    @property
    def object(self) -> str:
        return f"{self.kind}/{self.name}"


REPLICATED = {"Deployment", "StatefulSet", "ReplicaSet", "ReplicationController"}
JOBS = {"Job", "CronJob"}
_GROUPS = dict.fromkeys(("Deployment", "StatefulSet", "ReplicaSet", "DaemonSet"), "apps")
_GROUPS |= {"Job": "batch", "CronJob": "batch", "Pod": "", "ReplicationController": ""}

#: The DaemonSet controller of Kubernetes adds these to its pods.
_DAEMON = [
    Toleration(key="node.kubernetes.io/" + key, operator="Exists", effect=effect)
    for key, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
]


def has_pods(manifest: dict[str, Any]) -> bool:
    """By kind and API group: somebody's own kind `Job` in another group is a stranger."""
    kind, version = manifest.get("kind"), manifest.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str) or kind not in WORKLOADS:
        return False
    return version.rpartition("/")[0] == _GROUPS[kind]


def read(manifest: dict[str, Any], path: str, report: Report) -> PodTemplate | None:
    """The pods of an object that has some; None (and at least one report) where it cannot be read."""
    kind = manifest["kind"]
    try:
        if kind == "Pod":
            work = _Workload(template=msgspec.convert(manifest, _Template))
        elif kind == "CronJob":
            work = msgspec.convert(manifest.get("spec"), _CronJob).job_template.spec
        else:
            work = msgspec.convert(manifest.get("spec"), _Workload)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        inside = where.rstrip("`").replace("[...]", "")
        base = path if kind == "Pod" else f"{path}.spec"
        report(f"{base}{inside}", "InvalidManifest", message)
        return None
    template: Any = manifest
    at = path
    for step in WORKLOADS[kind]:
        template, at = template[step], f"{at}.{step}"
    spec = work.template.spec
    count = _count(kind, work)
    if count < 0:
        report(f"{path}.spec.{'parallelism' if kind in JOBS else 'replicas'}", "OutOfRange", "must not be negative")
        return None
    containers = [_container(c, False, f"{at}.spec.containers[{i}]", report) for i, c in enumerate(spec.containers)]
    containers += [
        _container(c, True, f"{at}.spec.initContainers[{i}]", report) for i, c in enumerate(spec.init_containers or ())
    ]
    if not spec.containers:
        report(f"{at}.spec.containers", "Required", "a pod needs at least one container")
    names = [c.name for c in containers]
    if len(set(names)) < len(names):
        report(f"{at}.spec.containers", "Duplicate", "two containers of the pod have the same name")
    return PodTemplate(
        api_version=manifest["apiVersion"],
        kind=kind,
        name=manifest["metadata"]["name"],
        count=count,
        containers=containers,
        overhead=_amounts(spec.overhead, f"{at}.spec.overhead", report) if spec.overhead else {},
        whole=_requested(spec.resources, f"{at}.spec.resources", report)[0],
        terms=_terms(spec),
        tolerations=[
            Toleration(key=t.key or "", operator=t.operator or "Equal", value=t.value or "", effect=t.effect or "")
            for t in spec.tolerations or ()
        ]
        + (_DAEMON if kind == "DaemonSet" else []),
        template=template,
        surge=_surge(kind, work, f"{path}.spec", report),
        ignored=_ignored(spec),
    )


def _count(kind: str, work: _Workload) -> int:
    if kind in REPLICATED:
        return 1 if work.replicas is None else work.replicas
    if kind in JOBS:
        parallel = 1 if work.parallelism is None else work.parallelism
        return parallel if work.completions is None else min(parallel, max(work.completions, 0))
    return 1


def _container(given: _Container, init: bool, path: str, report: Report) -> Container:
    requests, limits = _requested(given.resources, f"{path}.resources", report)
    return Container(given.name, requests, limits, init, init and given.restart_policy == "Always")


def _requested(given: _Resources | None, path: str, report: Report) -> tuple[dict[str, int], dict[str, int]]:
    """Requests, with what limits default them to, and limits."""
    requests: dict[str, int] = {}
    limits: dict[str, int] = {}
    if given is not None:
        if given.limits:
            limits = _amounts(given.limits, f"{path}.limits", report)
        if given.requests:
            requests = _amounts(given.requests, f"{path}.requests", report)
            for resource, wanted in requests.items():
                if resource in limits and wanted > limits[resource]:
                    report(f"{path}.requests.{resource}", "RequestsAboveLimits", "is more than its limit")
    return limits | requests, limits


def _amounts(given: dict[str, Number], path: str, report: Report) -> dict[str, int]:
    found = {}
    for resource, value in given.items():
        try:
            found[resource] = parse_amount(resource, value if type(value) is str else repr(value), True)
        except ValueError as error:
            report(f"{path}.{resource}", "InvalidQuantity", str(error))
            continue
        if found[resource] < 0:
            report(f"{path}.{resource}", "InvalidQuantity", "must not be negative")
    return found


def _requirement(given: _Expression) -> Requirement:
    return Requirement(key=given.key, operator=given.operator, values=tuple(given.values or ()))


def _terms(spec: _PodSpec) -> list[list[Requirement]]:
    always = [Requirement(key=k, operator="In", values=(v,)) for k, v in (spec.node_selector or {}).items()]
    if spec.node_name:
        always.append(Requirement(key="metadata.name", operator="In", values=(spec.node_name,)))
    node = spec.affinity.node_affinity if spec.affinity is not None else None
    selector = node.required if node is not None else None
    if selector is None:
        return [always] if always else []
    terms = []
    for term in selector.node_selector_terms or ():
        wanted = [_requirement(e) for e in term.match_expressions or ()]
        wanted += [_requirement(e) for e in term.match_fields or ()]
        if wanted:  # an empty term matches no node in Kubernetes
            terms.append(always + wanted)
    return terms or [[Requirement(key="metadata.name", operator="In", values=())]]


def _surge(kind: str, work: _Workload, path: str, report: Report) -> int | str:
    if kind == "Deployment":
        strategy, default, field = work.strategy, "25%", "strategy"
    elif kind == "DaemonSet":
        strategy, default, field = work.update_strategy, "0", "updateStrategy"
    else:
        return 0
    if strategy is not None and strategy.type not in (None, "RollingUpdate"):
        return 0
    given: int | str = default
    if strategy is not None and strategy.rolling_update is not None and strategy.rolling_update.max_surge is not None:
        given = strategy.rolling_update.max_surge
    digits = given.removesuffix("%") if isinstance(given, str) else given
    if isinstance(digits, str) and not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        report(f"{path}.{field}.rollingUpdate.maxSurge", "Invalid", "must be a number or a percentage like 25%")
        return 0
    if isinstance(digits, int) and digits < 0:
        report(f"{path}.{field}.rollingUpdate.maxSurge", "OutOfRange", "must not be negative")
        return 0
    return given


def surge_of(pods: PodTemplate, count: int) -> int:
    """How many pods more than `count` a rollout may run at once; percentages round up, as in Kubernetes."""
    if isinstance(pods.surge, int):
        return pods.surge
    if pods.surge.endswith("%"):
        return -(-count * int(pods.surge[:-1]) // 100)
    return int(pods.surge)


def _ignored(spec: _PodSpec) -> tuple[str, ...]:
    found = []
    affinity = spec.affinity
    if affinity is not None:
        if affinity.pod_affinity is not None and affinity.pod_affinity.required:
            found.append("podAffinity")
        if affinity.pod_anti_affinity is not None and affinity.pod_anti_affinity.required:
            found.append("podAntiAffinity")
    if any(s.when_unsatisfiable != "ScheduleAnyway" for s in spec.topology_spread_constraints or ()):
        found.append("topologySpreadConstraints")
    ports = [port for c in (*spec.containers, *(spec.init_containers or ())) for port in c.ports or ()]
    if any(port.host_port for port in ports) or (spec.host_network and ports):
        found.append("hostPort")
    return tuple(found)


def reporter(errors: list[Violation]) -> Report:
    def report(path: str, code: str, message: str) -> None:
        errors.append(Violation(path=path, code=code, message=message))

    return report
