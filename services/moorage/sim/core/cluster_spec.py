"""Describes simulated clusters. A kind of node is shared by all nodes of that kind in the whole fleet; a single node is only
a number until a pod runs on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from moorage.model.machines import Machine
from moorage.model.reports import Taint
from moorage.model.shapes import PODS
from moorage.parsing import format_amount, parse_amount
from moorage.podspec import HostPort

from .node_zones import NodeTopology, NodeZones, Zones
from .policy_zones import PolicyTopology, PolicyZones

HOSTNAME = "kubernetes.io/hostname"
_NOT_READY = "node.kubernetes.io/not-ready"
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"

encode = msgspec.json.Encoder(order="deterministic").encode


class NodeKind:
    """The properties that all nodes of one kind share, and their JSON, encoded once."""

    def __init__(
        self,
        *,
        allocatable: dict[str, str],
        labels: dict[str, str] | None = None,
        taints: tuple[Taint, ...] = (),
        ready: bool = True,
        unschedulable: bool = False,
        policy: str = "",
        exclusive: int = 0,
        extras: Mapping[str, Any] | None = None,
        topology: NodeTopology | PolicyTopology | None = None,
        used: Mapping[str, int] | None = None,
    ) -> None:
        self.labels = labels or {}
        self.taints = taints
        self.ready = ready
        self.unschedulable = unschedulable
        self.policy = policy
        self.exclusive = exclusive
        self.extras = {key: value for key, value in (extras or {}).items() if value}
        self.topology = topology
        self.used = dict(used or {})  # from the start, by pods that are not told one by one
        self.texts = {PODS: "110", **allocatable}
        self.amounts = {name: parse_amount(name, text, False) for name, text in self.texts.items()}

    def marked(self, labels: Mapping[str, str], taints: Iterable[Mapping[str, str]]) -> NodeKind:
        """Returns the kind of a node with other labels and taints."""
        found = copy(self)
        found.__dict__ = {k: v for k, v in self.__dict__.items() if k not in ("_json", "repelling_taints")}
        found.labels = dict(labels)
        found.taints = tuple(Taint(key=t["key"], value=t.get("value", ""), effect=t.get("effect", "")) for t in taints)
        return found

    def _fields(self) -> tuple[Any, ...]:
        return (
            self.labels, self.taints, self.ready, self.unschedulable,
            self.policy, self.exclusive, self.extras, self.amounts, self.topology, self.used,
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, NodeKind) and self._fields() == other._fields())

    def __hash__(self) -> int:
        return hash((self.ready, self.policy, len(self.labels), *self.amounts.values()))

    @cached_property
    def repelling_taints(self) -> tuple[Taint, ...]:
        """Returns the taints of the node with those that Kubernetes adds for its state."""
        added = []
        if not self.ready:
            added += [Taint(key=_NOT_READY, effect="NoSchedule"), Taint(key=_NOT_READY, effect="NoExecute")]
        if self.unschedulable:
            added.append(Taint(key=_UNSCHEDULABLE, effect="NoSchedule"))
        return (*self.taints, *added)

    @cached_property
    def initial_zones(self) -> bytes:
        """Returns the fields of a row about the zones of a node where no pod ran."""
        zones = self.zones_of("")
        return b"" if zones is None else zones.report.fields()

    def zones_of(self, node: str) -> Zones | None:
        """Returns the zones of a node of this kind on which nothing runs; None if it has none."""
        if isinstance(self.topology, PolicyTopology):
            return PolicyZones(self.topology, node)
        return None if self.topology is None else NodeZones(self.topology)

    @cached_property
    def _json(self) -> tuple[bytes, bytes]:
        """Returns the labels after the host name, and all fields that never change."""
        labels = {key: value for key, value in self.labels.items() if key != HOSTNAME}
        fixed: dict[str, Any] = {"allocatable": self.texts, "capacity": self.texts, **self.extras}
        if self.taints:
            fixed["taints"] = self.taints
        if not self.ready:
            fixed["ready"] = False
        if self.unschedulable:
            fixed["unschedulable"] = True
        return b"," + encode(labels)[1:] if labels else b"}", encode(fixed)[1:-1]

    def row(
        self,
        cluster: str,
        name: str,
        used: dict[str, int],
        pods: int,
        cores: int,
        ports: Iterable[HostPort] = (),
        zones: bytes = b"",
    ) -> bytes:
        """Encodes a node as a row of a report; `cores` of it are exclusively allocated. `zones`: fields about what is in use
        of its zones."""
        labels, fixed = self._json
        hostname = encode(self.labels.get(HOSTNAME, name))
        requested = encode({key: format_amount(key, value) for key, value in used.items() if value and key != PODS})
        manager = b""
        if self.policy:
            manager = b',"cpuManager":{"policy":%b,"exclusiveFree":%d}' % (
                encode(self.policy),
                max(0, self.exclusive - cores),
            )
        if ports:
            manager += b',"hostPorts":%b' % encode(sorted(map(str, ports)))
        manager += zones
        return b'{"name":%b,"uid":%b,"labels":{"kubernetes.io/hostname":%b%b,%b,"requested":%b,"podCount":%d%b}' % (
            encode(name), encode(f"{cluster}/{name}"), hostname, labels, fixed, requested, pods, manager,
        )  # fmt: skip


class NodeRun(NamedTuple):
    """`copies` nodes of a kind. `own`: their names begin with the cluster's name, so that they are unique in the fleet."""

    kind: NodeKind
    name: str
    copies: int = 1
    own: bool = False
    numbered: bool = False


class ClusterSpec(NamedTuple):
    """A cluster as its document describes it. `seed`: its nodes are in use from the start, each to a different degree."""

    id: str  # provider/name
    runs: tuple[NodeRun, ...]
    labels: dict[str, str] = {}
    pods: tuple[dict[str, Any], ...] = ()
    apply_delay: float = 0.0
    ready_delay: float = 0.0
    topology_delay: float = 0.0  # until what is in use of zones is reported
    binding_delay: float = 0.0  # until binding conditions of devices hold
    seed: int = 0
    machines: tuple[Machine, ...] = ()
    objects: tuple[dict[str, Any], ...] = ()  # of Kubernetes, as they are in a cluster

    @property
    def size(self) -> int:
        return sum(run.copies for run in self.runs)

    def nodes(self) -> Iterator[tuple[str, NodeKind]]:
        """Name and kind of every node."""
        short = self.id.partition("/")[2]
        for run in self.runs:
            base = f"{short}-{run.name}" if run.own else run.name
            if not run.numbered:
                yield base, run.kind
                continue
            for i in range(run.copies):
                yield f"{base}-{i}", run.kind


_MASK = (1 << 64) - 1


def pseudo_random(*parts: int) -> int:
    """Returns a pseudo-random number that depends on `parts` only (splitmix64), so that usage needs no memory."""
    state = 0
    for part in parts:
        state = (state ^ part) * 0x9E3779B97F4A7C15 + 0x2545F4914F6CDD1D & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def initial_usage(kind: NodeKind, seed: int, number: int) -> tuple[dict[str, int], int]:
    """Returns the requests and the number of pods that are on a node from the start: a fifth of the nodes is idle, a few
    are full."""
    if not seed:
        return dict(kind.used), 0
    random_number = pseudo_random(seed, number)
    share = 0 if random_number % 5 == 0 else min(1000, random_number // 7 % 1100)
    used = {}
    for position, (name, allocatable) in enumerate(kind.amounts.items()):
        if name == PODS:
            continue
        if name in ("cpu", "memory", "ephemeral-storage"):
            unit = 50 if name == "cpu" else 1 << 20
            used[name] = allocatable * share // 1000 // unit * unit
        else:
            used[name] = pseudo_random(seed, number, position) % (allocatable + 1) if share else 0
    return used, min(kind.amounts[PODS], share * 40 // 1000)
