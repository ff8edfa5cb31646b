"""Fleet documents: decoded strictly, every violation named with its path, counts expanded."""

from __future__ import annotations

import types
import typing
from functools import cache
from typing import Any, Union

import msgspec

from moorage.model.documents import API_VERSION, Metadata, Strict
from moorage.model.names import is_name
from moorage.model.problems import Problem, Refused, Violation, invalid
from moorage.model.reports import Taint
from moorage.parsing import canonical_quantity, parse_amount

from .cluster_spec import ClusterSpec, NodeKind, Run

MAX_CLUSTERS = 200_000
MAX_NODES = 20_000  # of one cluster


class TaintDocument(Strict, kw_only=True):
    key: str
    effect: str
    value: str = ""


class CpuManagerDocument(Strict, kw_only=True):
    policy: str = "none"
    exclusive: int = 0


class NodeDocument(Strict, kw_only=True):
    name: str
    allocatable: dict[str, str | int | float]
    count: int = 1
    labels: dict[str, str] = {}
    taints: list[TaintDocument] = []
    ready: bool = True
    unschedulable: bool = False
    cpu_manager: CpuManagerDocument | None = None
    zones: list[dict[str, Any]] = []
    devices: list[dict[str, Any]] = []
    providers: list[dict[str, Any]] = []
    machines: list[dict[str, Any]] = []


class Behaviour(Strict, kw_only=True):
    apply_delay_ms: float = 0
    ready_delay_ms: float = 0


class ClusterDocument(Strict, kw_only=True):
    name: str
    provider: str = "sim"
    count: int = 1
    labels: dict[str, str] = {}
    nodes: list[NodeDocument] = []
    pods: list[dict[str, Any]] = []
    behaviour: Behaviour = msgspec.field(default_factory=Behaviour)


class FleetDocument(Strict, kw_only=True):
    clusters: list[ClusterDocument]
    kind: str = "Fleet"
    api_version: str = API_VERSION
    metadata: Metadata | None = None


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def _struct_of(kind: Any) -> tuple[type[msgspec.Struct] | None, bool]:
    """The Struct that a type is made of, and whether it is a list of them."""
    origin = typing.get_origin(kind)
    if origin in (Union, types.UnionType):
        return next((_struct_of(arg) for arg in typing.get_args(kind) if arg is not type(None)), (None, False))
    if origin is list:
        inner, _ = _struct_of(typing.get_args(kind)[0])
        return inner, True
    return (kind, False) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else (None, False)


def _check(data: Any, kind: type[msgspec.Struct], path: str, errors: list[Violation]) -> None:
    """Every unknown, missing and ill-typed field, where msgspec itself would stop at the first."""
    if not isinstance(data, dict):
        errors.append(Violation(path=path, code="WrongType", message="must be an object"))
        return
    fields = _fields(kind)
    for key, value in data.items():
        at = f"{path}.{key}" if path else str(key)
        field = fields.get(key)
        if field is None:
            known = ", ".join(fields)
            errors.append(Violation(path=at, code="UnknownField", message=f"unknown field; known are {known}"))
            continue
        inner, many = _struct_of(field.type)
        if inner is not None and many and isinstance(value, list):
            for i, item in enumerate(value):
                _check(item, inner, f"{at}[{i}]", errors)
        elif inner is not None and not many and isinstance(value, dict):
            _check(value, inner, at, errors)
        else:
            errors += _ill_typed(value, field.type, at)
    errors += [
        Violation(path=f"{path}.{key}" if path else key, code="Required", message="is required")
        for key, field in fields.items()
        if field.required and key not in data
    ]


def _ill_typed(value: Any, kind: Any, path: str) -> list[Violation]:
    """Of maps of texts each value by itself: what YAML reads as something else is written in quotes."""
    if kind == dict[str, str] and isinstance(value, dict):
        return [
            Violation(path=f"{path}.{key}", code="WrongType", message=f"must be text{_quoted(one)}")
            for key, one in value.items()
            if not isinstance(one, str)
        ]
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        return [Violation(path=path, code="WrongType", message=str(error))]
    return []


def _quoted(value: Any) -> str:
    if not isinstance(value, bool | int | float):
        return ""
    return f", in quotes: '{str(value).lower()}'"


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else repr(value)


class _Rules:
    """What types cannot say. Goes over the whole document before anything is refused."""

    def __init__(self, errors: list[Violation]) -> None:
        self.errors = errors

    def say(self, path: str, code: str, message: str) -> None:
        self.errors.append(Violation(path=path, code=code, message=message))

    def fleet(self, document: FleetDocument) -> None:
        if document.kind != "Fleet":
            self.say("kind", "WrongKind", f"must be Fleet, not {document.kind!r}")
        if document.api_version != API_VERSION:
            self.say("apiVersion", "WrongKind", f"must be {API_VERSION}, not {document.api_version!r}")
        seen: dict[str, str] = {}
        if sum(max(c.count, 0) for c in document.clusters) > MAX_CLUSTERS:
            self.say("clusters", "OutOfRange", f"at most {MAX_CLUSTERS} clusters")
            return
        for i, cluster in enumerate(document.clusters):
            path = f"clusters[{i}]"
            self.cluster(cluster, path)
            for name in _names(cluster.name, cluster.count):
                ident = f"{cluster.provider}/{name}"
                if ident in seen:
                    self.say(f"{path}.name", "Duplicate", f"{ident} is {seen[ident]} already")
                    break
                seen[ident] = path

    def cluster(self, cluster: ClusterDocument, path: str) -> None:
        for field, value in (("name", cluster.name), ("provider", cluster.provider)):
            if not is_name(value):
                self.say(f"{path}.{field}", "BadName", f"{value!r} is not a name")
        self.count(cluster.count, MAX_CLUSTERS, f"{path}.count")
        if cluster.behaviour.apply_delay_ms < 0 or cluster.behaviour.ready_delay_ms < 0:
            self.say(f"{path}.behaviour", "OutOfRange", "delays must not be negative")
        names: set[str] = set()
        for i, node in enumerate(cluster.nodes):
            at = f"{path}.nodes[{i}]"
            self.node(node, at)
            if 1 <= node.count <= MAX_NODES:
                new = set(_names(node.name, node.count))
                if twice := names & new:
                    self.say(f"{at}.name", "Duplicate", f"two nodes are named {min(twice)}")
                names |= new
        if len(names) > MAX_NODES:
            self.say(f"{path}.nodes", "OutOfRange", f"at most {MAX_NODES} nodes in a cluster")
        for i, pod in enumerate(cluster.pods):
            self.pod(pod, f"{path}.pods[{i}]", names)

    def count(self, value: int, top: int, path: str) -> None:
        if not 1 <= value <= top:
            self.say(path, "OutOfRange", f"must be within 1 and {top}, not {value}")

    def node(self, node: NodeDocument, path: str) -> None:
        if not is_name(node.name):
            self.say(f"{path}.name", "BadName", f"{node.name!r} is not a name")
        self.count(node.count, MAX_NODES, f"{path}.count")
        for name, value in node.allocatable.items():
            try:
                if parse_amount(name, _text(value), False) < 0:
                    self.say(f"{path}.allocatable.{name}", "OutOfRange", "must not be negative")
            except ValueError as error:
                self.say(f"{path}.allocatable.{name}", "BadQuantity", str(error))
        for i, taint in enumerate(node.taints):
            if taint.effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
                self.say(f"{path}.taints[{i}].effect", "BadValue", f"{taint.effect!r} is no effect of a taint")
        if node.cpu_manager is not None:
            if node.cpu_manager.policy not in ("none", "static"):
                self.say(f"{path}.cpuManager.policy", "BadValue", "must be none or static")
            if node.cpu_manager.exclusive < 0:
                self.say(f"{path}.cpuManager.exclusive", "OutOfRange", "must not be negative")

    def pod(self, pod: dict[str, Any], path: str, nodes: set[str]) -> None:
        from .pod_needs import read_pod

        try:
            need = read_pod(pod)
        except ValueError as error:
            self.say(path, "BadPod", str(error))
            return
        if need.node_name not in nodes:
            self.say(f"{path}.spec.nodeName", "BadValue", f"{need.node_name!r} is not a node of this cluster")


def _names(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}-{i}" for i in range(count)]


def decode(data: Any) -> FleetDocument:
    """Raises Refused with everything that is wrong."""
    errors: list[Violation] = []
    _check(data, FleetDocument, "", errors)
    if errors:
        raise Refused(invalid(errors))
    try:
        document = msgspec.convert(data, FleetDocument)
    except msgspec.ValidationError as error:
        raise Refused(Problem(title="Not valid", status=400, code="Invalid", detail=str(error))) from None
    _Rules(errors).fleet(document)
    if errors:
        raise Refused(invalid(errors))
    return document


def _kind(node: NodeDocument) -> NodeKind:
    manager = node.cpu_manager
    return NodeKind(
        allocatable={name: canonical_quantity(_text(value)) for name, value in node.allocatable.items()},
        labels=node.labels,
        taints=tuple(Taint(key=t.key, value=t.value, effect=t.effect) for t in node.taints),
        ready=node.ready,
        unschedulable=node.unschedulable,
        policy=manager.policy if manager is not None else "",
        exclusive=manager.exclusive if manager is not None else 0,
        extras={
            "zones": node.zones,
            "devices": node.devices,
            "providers": node.providers,
            "machines": node.machines,
        },
    )


def expand(document: FleetDocument) -> dict[str, ClusterSpec]:
    """Every cluster by its id. Clusters of one entry share all they are made of."""
    fleet: dict[str, ClusterSpec] = {}
    for cluster in document.clusters:
        runs = tuple(Run(_kind(node), node.name, node.count, numbered=node.count > 1) for node in cluster.nodes)
        for name in _names(cluster.name, cluster.count):
            ident = f"{cluster.provider}/{name}"
            fleet[ident] = ClusterSpec(
                ident,
                runs,
                cluster.labels,
                tuple(cluster.pods),
                cluster.behaviour.apply_delay_ms / 1e3,
                cluster.behaviour.ready_delay_ms / 1e3,
            )
    return fleet
