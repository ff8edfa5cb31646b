"""Decodes fleet documents strictly, reports every violation with its path, and expands counts."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any, Union

import msgspec

from moorage.model.documents import API_VERSION, Metadata, Strict
from moorage.model.names import is_name
from moorage.model.problems import Problem, Refused, Violation, invalid
from moorage.model.reports import Taint
from moorage.parsing import canonical_quantity, parse_amount
from moorage.parts.inside import zone_id

from .cluster_spec import ClusterSpec, NodeKind, NodeRun
from .device_documents import DeviceDocument, check_devices, counter_reports, device_reports, devices_in_use
from .inside_documents import ProviderDocument, TopologyManagerDocument, ZoneDocument, check_inside, inside_of
from .machine_documents import (
    MachineSlotsDocument,
    NodeSlots,
    check_machines,
    machines_of,
    node_labels,
    node_taints,
)
from .node_zones import NodeTopology
from .object_documents import check_objects
from .pod_needs import read_pod
from .policy_documents import check_policy_document, policy_topology
from .policy_zones import PolicyTopology
from .value_rules import amount_errors, resource_errors, text_of

MAX_CLUSTERS = 200_000
MAX_NODES = 20_000  # of one cluster
MAX_DELAY_MS = 10**10
MAX_CORES = 1 << 20  # exclusive ones of one node


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
    zones: list[ZoneDocument] = []
    devices: list[DeviceDocument] = []
    counters: dict[str, dict[str, str | int | float]] = {}
    providers: list[ProviderDocument] = []
    topology_manager: TopologyManagerDocument | None = None
    node_policy: dict[str, Any] | None = None
    machines: list[MachineSlotsDocument] = []


class Behaviour(Strict, kw_only=True):
    apply_delay_ms: float = 0
    ready_delay_ms: float = 0
    topology_delay_ms: float = 0
    binding_delay_ms: float = 0


class ClusterDocument(Strict, kw_only=True):
    name: str
    provider: str = "sim"
    count: int = 1
    labels: dict[str, str] = {}
    nodes: list[NodeDocument] = []
    pods: list[dict[str, Any]] = []
    objects: list[dict[str, Any]] = []
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
    """Returns the Struct in a type, and whether the type is a list of them."""
    origin = typing.get_origin(kind)
    if origin in (Union, types.UnionType):
        return next((_struct_of(arg) for arg in typing.get_args(kind) if arg is not type(None)), (None, False))
    if origin is list:
        inner, _ = _struct_of(typing.get_args(kind)[0])
        return inner, True
    return (kind, False) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else (None, False)


def _type_errors(data: Any, kind: type[msgspec.Struct], path: str) -> Iterator[Violation]:
    """Yields every unknown, missing and ill-typed field, where msgspec itself would stop at the first."""
    if not isinstance(data, dict):
        yield Violation(path=path, code="WrongType", message="must be an object")
        return
    fields = _fields(kind)
    for key, value in data.items():
        at = f"{path}.{key}" if path else str(key)
        field = fields.get(key)
        if field is None:
            known = ", ".join(fields)
            yield Violation(path=at, code="UnknownField", message=f"unknown field; known are {known}")
            continue
        struct, is_list = _struct_of(field.type)
        if struct is not None and is_list and isinstance(value, list):
            for i, item in enumerate(value):
                yield from _type_errors(item, struct, f"{at}[{i}]")
        elif struct is not None and not is_list and isinstance(value, dict):
            yield from _type_errors(value, struct, at)
        else:
            yield from _ill_typed(value, field.type, at)
    for key, field in fields.items():
        if field.required and key not in data:
            yield Violation(path=f"{path}.{key}" if path else key, code="Required", message="is required")


def _ill_typed(value: Any, kind: Any, path: str) -> list[Violation]:
    """Returns the violations of one field. In maps of text each value is reported by itself, with the quotes that YAML
    needs to read it as text."""
    if kind == dict[str, str] and isinstance(value, dict):
        return [
            Violation(path=f"{path}.{key}", code="WrongType", message=f"must be text{_quoted(item)}")
            for key, item in value.items()
            if not isinstance(item, str)
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


class _FleetRules:
    """Checks the rules that types cannot express, and collects the violations of the whole document."""

    def __init__(self) -> None:
        self.errors: list[Violation] = []

    def _report(self, path: str, code: str, message: str) -> None:
        self.errors.append(Violation(path=path, code=code, message=message))

    def fleet(self, document: FleetDocument) -> None:
        if document.kind != "Fleet":
            self._report("kind", "WrongKind", f"must be Fleet, not {document.kind!r}")
        if document.api_version != API_VERSION:
            self._report("apiVersion", "WrongKind", f"must be {API_VERSION}, not {document.api_version!r}")
        seen: dict[str, str] = {}
        if sum(max(c.count, 0) for c in document.clusters) > MAX_CLUSTERS:
            self._report("clusters", "OutOfRange", f"at most {MAX_CLUSTERS} clusters")
            return
        for i, cluster in enumerate(document.clusters):
            path = f"clusters[{i}]"
            self._cluster(cluster, path)
            for name in _names(cluster.name, cluster.count):
                ident = f"{cluster.provider}/{name}"
                if ident in seen:
                    self._report(f"{path}.name", "Duplicate", f"{ident} is defined by {seen[ident]} already")
                    break
                seen[ident] = path

    def _cluster(self, cluster: ClusterDocument, path: str) -> None:
        for field, value in (("name", cluster.name), ("provider", cluster.provider)):
            if not is_name(value):
                self._report(f"{path}.{field}", "BadName", f"{value!r} is not a name")
        self._count(cluster.count, MAX_CLUSTERS, f"{path}.count")
        behaviour = cluster.behaviour
        if not all(0 <= delay <= MAX_DELAY_MS for delay in msgspec.structs.astuple(behaviour)):  # nor is NaN
            self._report(f"{path}.behaviour", "OutOfRange", f"delays must be within 0 and {MAX_DELAY_MS} ms")
        names: set[str] = set()
        for i, node in enumerate(cluster.nodes):
            at = f"{path}.nodes[{i}]"
            self._node(node, at)
            if 1 <= node.count <= MAX_NODES:
                new = set(_names(node.name, node.count))
                if duplicates := names & new:
                    self._report(f"{at}.name", "Duplicate", f"two nodes are named {min(duplicates)}")
                names |= new
        if len(names) > MAX_NODES:
            self._report(f"{path}.nodes", "OutOfRange", f"at most {MAX_NODES} nodes in a cluster")
        if any(node.machines for node in cluster.nodes) and len(names) <= MAX_NODES:
            self.errors += check_machines(_slots_of(cluster), f"{path}.nodes")
        for i, pod in enumerate(cluster.pods):
            self._pod(pod, f"{path}.pods[{i}]", names)
        self.errors += check_objects(cluster.objects, names, f"{path}.objects") if cluster.objects else ()

    def _count(self, value: int, largest: int, path: str) -> None:
        if not 1 <= value <= largest:
            self._report(path, "OutOfRange", f"must be within 1 and {largest}, not {value}")

    def _node(self, node: NodeDocument, path: str) -> None:
        if not is_name(node.name):
            self._report(f"{path}.name", "BadName", f"{node.name!r} is not a name")
        self._count(node.count, MAX_NODES, f"{path}.count")
        self.errors += resource_errors(node.allocatable, f"{path}.allocatable")
        amounts: dict[str, int] = {}
        for name, value in node.allocatable.items():
            wrong = [*amount_errors(name, value, f"{path}.allocatable.{name}")]
            self.errors += wrong
            if not wrong:
                amounts[name] = parse_amount(name, text_of(value), False)
        for i, taint in enumerate(node.taints):
            if taint.effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
                self._report(f"{path}.taints[{i}].effect", "BadValue", f"{taint.effect!r} is not an effect of a taint")
        if node.cpu_manager is not None:
            if node.cpu_manager.policy not in ("none", "static"):
                self._report(f"{path}.cpuManager.policy", "BadValue", "must be none or static")
            if not 0 <= node.cpu_manager.exclusive <= MAX_CORES:
                self._report(f"{path}.cpuManager.exclusive", "OutOfRange", f"must be within 0 and {MAX_CORES}")
        inside: list[Violation] = []
        if node.zones or node.providers or node.topology_manager is not None:
            inside = check_inside(node.zones, node.providers, node.topology_manager, amounts, path)
            self.errors += inside
        if node.devices or node.counters:
            zones = {zone_id(zone.id) for zone in node.zones}
            self.errors += check_devices(node.devices, node.counters, zones, path)
        if node.node_policy is not None and not inside:
            self.errors += check_policy_document(node.zones, node.node_policy, f"{path}.nodePolicy")

    def _pod(self, pod: dict[str, Any], path: str, nodes: set[str]) -> None:
        try:
            need = read_pod(pod)
        except ValueError as error:
            self._report(path, "BadPod", str(error))
            return
        if any(amount < 0 for amount in need.requests.values()):
            self._report(path, "OutOfRange", "a container must not request less than nothing")
        if need.node_name and need.node_name not in nodes:
            self._report(f"{path}.spec.nodeName", "BadValue", f"{need.node_name!r} is not a node of this cluster")


def _names(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}-{i}" for i in range(count)]


def _slots_of(cluster: ClusterDocument) -> list[NodeSlots]:
    """Returns the slots of machines that each node of a cluster holds."""
    return [(name, node.machines) for node in cluster.nodes for name in _names(node.name, node.count)]


def cluster_names(document: FleetDocument) -> Iterator[str]:
    """Yields the names of all clusters, PROVIDER/NAME."""
    for cluster in document.clusters:
        yield from (f"{cluster.provider}/{name}" for name in _names(cluster.name, cluster.count))


def decode(data: Any) -> FleetDocument:
    """Decodes and validates a fleet document. Raises Refused with all violations."""
    errors = list(_type_errors(data, FleetDocument, ""))
    if errors:
        raise Refused(invalid(errors))
    try:
        document = msgspec.convert(data, FleetDocument)
    except msgspec.ValidationError as error:
        raise Refused(Problem(title="Not valid", status=400, code="Invalid", detail=str(error))) from None
    rules = _FleetRules()
    rules.fleet(document)
    if rules.errors:
        raise Refused(invalid(rules.errors))
    return document


def _kind(node: NodeDocument) -> NodeKind:
    manager = node.cpu_manager
    inside = inside_of(node.zones, node.providers, node.topology_manager)
    inside = inside._replace(used=inside.used | devices_in_use(node.devices))
    topology: NodeTopology | PolicyTopology | None = inside.topology(
        static_cpu=manager is None or manager.policy == "static"
    )
    fields = inside.fields
    if node.node_policy is not None:  # its agent reports the zones
        topology = policy_topology(node.zones, node.node_policy)
        fields.pop("zones", None)
    used = {} if topology is not None else {"inUse": inside.texts} if inside.used else {}
    return NodeKind(
        allocatable={name: canonical_quantity(text_of(value)) for name, value in node.allocatable.items()},
        labels=node.labels | node_labels(node.machines),
        taints=(
            *(Taint(key=t.key, value=t.value, effect=t.effect) for t in node.taints),
            *node_taints(node.machines),
        ),
        ready=node.ready,
        unschedulable=node.unschedulable,
        policy=manager.policy if manager is not None and node.node_policy is None else "",
        exclusive=manager.exclusive if manager is not None else 0,
        extras={
            **fields,
            **used,
            "devices": device_reports(node.devices),
            "counters": counter_reports(node.counters),
        },
        topology=topology,
        used=inside.node_use,
    )


def expand(document: FleetDocument) -> dict[str, ClusterSpec]:
    """Expands a document into clusters by id. The clusters of one entry share their node kinds."""
    fleet: dict[str, ClusterSpec] = {}
    for cluster in document.clusters:
        runs = tuple(NodeRun(_kind(node), node.name, node.count, numbered=node.count > 1) for node in cluster.nodes)
        machines = machines_of(_slots_of(cluster)) if any(node.machines for node in cluster.nodes) else ()
        for name in _names(cluster.name, cluster.count):
            ident = f"{cluster.provider}/{name}"
            fleet[ident] = ClusterSpec(
                ident,
                runs,
                cluster.labels,
                tuple(cluster.pods),
                cluster.behaviour.apply_delay_ms / 1e3,
                cluster.behaviour.ready_delay_ms / 1e3,
                cluster.behaviour.topology_delay_ms / 1e3,
                cluster.behaviour.binding_delay_ms / 1e3,
                machines=machines,
                objects=tuple(cluster.objects),
            )
    return fleet
