"""Makes the final objects of an app on a cluster from manifests, contributions and claims. Inputs are never changed, and
whatever does not differ between clusters is shared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from moorage.collections import LruDict
from moorage.model.claims import Claim
from moorage.model.desired_state import Contribution
from moorage.model.object_names import DECISION
from moorage.model.slots import names_parts, own_parts
from moorage.podspec import (
    CLAIM,
    GATE,
    PARTS,
    WORKLOADS,
    object_key,
    parse_pointer,
    template,
    template_path,
    with_preferred,
    with_required,
    with_value,
    with_values,
)
from moorage.podspec.slot_views import readable_parts

from .class_needs import ClassNeeds, without_classes
from .device_pins import DevicePins
from .device_resources import with_device_resources
from .slot_devices import with_slot_devices

HOSTNAME = "kubernetes.io/hostname"
#: Kubernetes' largest weight: the claimed nodes outweigh what the manifest itself prefers.
CLAIMED_WEIGHT = 100
#: A longer annotation about parts is left out, in bytes: Kubernetes has 256 KiB for all annotations of an object.
MAX_ANNOTATION = 128 << 10
#: Sets of equal contributions whose objects are kept for the next cluster.
_KEPT_SETS = 8

Manifest = dict[str, Any]
_encode = msgspec.json.Encoder().encode
_annotation = msgspec.json.Encoder(order="sorted").encode


class FinalObjects:
    """The final objects of one app under one decision, on any of its clusters.

    `contributions` are the app's, without any that disagree; `nodes` are the preferred nodes by claim id, `held` the number of
    replicas of those that do not get all of them yet, `parts` the annotations of pods about parts of nodes, `needs` what pods ask for
    by classes, by object. Contributions are
    applied once for all clusters that have equal ones, and objects that carry no claim are encoded once for them."""

    def __init__(
        self,
        manifests: Sequence[Manifest],
        contributions: Iterable[Contribution],
        nodes: Mapping[str, Sequence[str]],
        decision: str,
        held: Mapping[str, int] | None = None,
        parts: Mapping[str, str] | None = None,
        needs: Mapping[str, ClassNeeds] | None = None,
    ) -> None:
        self._manifests, self._nodes, self._decision = [without_classes(m) for m in manifests], nodes, decision
        self._held, self._parts, self._needs = held or {}, parts or {}, needs or {}
        self._distinct: list[Contribution] = []
        numbers: dict[bytes, int] = {}  # encoded contribution, without its cluster → index in `_distinct`
        self._by_cluster: dict[str, list[tuple[int, int]]] = {}  # position among all, index in `_distinct`
        for position, contribution in enumerate(contributions):
            number = numbers.setdefault(_encode(msgspec.structs.replace(contribution, cluster="")), len(self._distinct))
            if number == len(self._distinct):
                self._distinct.append(contribution)
            self._by_cluster.setdefault(contribution.cluster, []).append((position, number))
        self._contributed = LruDict[tuple[int, ...], _Contributed](_KEPT_SETS)

    def on_cluster(self, cluster: str, claims: Iterable[Claim]) -> list[Manifest]:
        claims = list(claims)
        contributed, by_object = self._contributed_on(cluster), {claim.object: claim for claim in claims}
        manifests = [self._with_claim(manifest, by_object) or manifest for manifest in contributed.manifests]
        pins = DevicePins(contributed.manifests, claims, self._needs)
        if not pins.there_are:
            return manifests
        pinned = pins.pin(manifests)
        return [*pinned.manifests, *pinned.added]

    def encoded_on_cluster(self, cluster: str, claims: Iterable[Claim]) -> list[msgspec.Raw]:
        claims = list(claims)
        contributed, by_object = self._contributed_on(cluster), {claim.object: claim for claim in claims}
        if DevicePins(contributed.manifests, claims, self._needs).there_are:
            return [msgspec.Raw(_encode(manifest)) for manifest in self.on_cluster(cluster, claims)]
        encoded = []
        for index, manifest in enumerate(contributed.manifests):
            claimed = self._with_claim(manifest, by_object)
            encoded.append(contributed.encoded(index) if claimed is None else msgspec.Raw(_encode(claimed)))
        return encoded

    def _contributed_on(self, cluster: str) -> _Contributed:
        # In their original order: the order of affinity terms is part of a pod template, and another template restarts pods.
        positions = sorted((*self._by_cluster.get("", ()), *(self._by_cluster.get(cluster, ()) if cluster else ())))
        numbers = tuple(number for _, number in positions)
        found = self._contributed.use(numbers)
        if found is None:
            contributions = [self._distinct[number] for number in numbers]
            found = _Contributed(with_contributions(self._manifests, contributions, self._decision))
            self._contributed[numbers] = found
        return found

    def _with_claim(self, manifest: Manifest, claims: Mapping[str, Claim]) -> Manifest | None:
        """Returns the workload with its claim; None if it has none."""
        claim = claims.get(object_key(manifest))
        if claim is None or manifest.get("kind") not in WORKLOADS:
            return None
        if claim.id in self._held:
            manifest = with_value(manifest, ["spec", "replicas"], self._held[claim.id])
        needs = self._needs.get(claim.object)
        containers = needs.containers if needs is not None else {}
        manifest = with_slot_devices(with_device_resources(manifest, claim, containers), claim, containers)
        return with_claim(manifest, claim, self._nodes.get(claim.id, ()), self._parts.get(claim.id, ""))


class _Contributed:
    """Objects with their contributions, each encoded at most once."""

    def __init__(self, manifests: list[Manifest]) -> None:
        self.manifests = manifests
        self._encoded: dict[int, msgspec.Raw] = {}

    def encoded(self, index: int) -> msgspec.Raw:
        found = self._encoded.get(index)
        if found is None:
            found = self._encoded[index] = msgspec.Raw(_encode(self.manifests[index]))
        return found


def with_contributions(
    manifests: Sequence[Manifest], contributions: Iterable[Contribution], decision: str
) -> list[Manifest]:
    """Applies the contributions and annotates each object with the decision."""
    by_object: dict[str, list[Contribution]] = {}
    for contribution in contributions:
        by_object.setdefault(contribution.object, []).append(contribution)
    return [_with_contributions(m, by_object.get(object_key(m), ()), decision) for m in manifests]


def _with_contributions(manifest: Manifest, contributions: Sequence[Contribution], decision: str) -> Manifest:
    values: list[tuple[Sequence[str], Any]] = [(parse_pointer(c.path), c.value) for c in contributions if c.op == "set"]
    values.sort(key=lambda entry: len(entry[0]))  # what is inside another value is set after it
    values.append((("metadata", "annotations", DECISION), decision))
    manifest = with_values(manifest, values)
    for op in ("require", "prefer"):
        for contribution in contributions:
            if contribution.op == op:
                manifest = with_affinity(manifest, contribution)
    return manifest


def with_affinity(manifest: Manifest, contribution: Contribution) -> Manifest:
    """Adds a contribution's node affinity, required or preferred, to the pod template."""
    found = template(manifest)
    if found is None:
        return manifest
    add = with_required if contribution.op == "require" else with_preferred
    return _with_template(manifest, {**found, "spec": add(found.get("spec") or {}, contribution.value)})


def with_claim(manifest: Manifest, claim: Claim, nodes: Sequence[str], parts: str = "") -> Manifest:
    """Labels the pod template with the claim, and adds node affinity to the claimed nodes or, for pinned pods, the gate at which an
    agent pins each of them. `parts`: what the pods take of parts of nodes."""
    found = template(manifest)
    if found is None:
        return manifest
    found = with_value(found, ["metadata", "labels", CLAIM], claim.id)
    if parts:
        found = with_value(found, ["metadata", "annotations", PARTS], parts)
    if claim.pinned:
        return _with_template(manifest, _with_gate(found))
    if nodes:
        requirement = {"key": HOSTNAME, "operator": "In", "values": list(nodes)}
        spec = found.get("spec") or {}
        if is_confined(claim):
            spec = with_required(spec, [requirement])
        # A DaemonSet's pods are bound by name already; a preference would only make its template change with nodes.
        if manifest.get("kind") != "DaemonSet" and not claim.required_nodes:
            spec = with_preferred(spec, {"weight": CLAIMED_WEIGHT, "preference": {"matchExpressions": [requirement]}})
        found = {**found, "spec": spec}
    return _with_template(manifest, found)


def _with_gate(pod_template: Manifest) -> Manifest:
    """Returns the pod template with the gate. Kubernetes refuses gates beside the name of a node."""
    spec = pod_template.get("spec") or {}
    gates = spec.get("schedulingGates") or []
    if spec.get("nodeName") or {"name": GATE} in gates:
        return pod_template
    return {**pod_template, "spec": {**spec, "schedulingGates": [*gates, {"name": GATE}]}}


def parts_annotation(claim: Claim) -> str:
    """Returns what the claim's pods take of parts, by node, as the annotation of its pods; "" if they take none."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for slot in claim.slots:
        if slot.node and (parts := own_parts(slot)):
            runs.setdefault(slot.node, []).append({"count": slot.count, "parts": readable_parts(parts)})
    text = _annotation(runs).decode() if runs else ""
    return text if len(text) <= MAX_ANNOTATION else ""


def preferred_nodes(claim: Claim) -> list[str]:
    """Lists the claim's nodes by their hostname labels: a preference for several nodes cannot name them otherwise."""
    return sorted({slot.host or slot.node for slot in claim.slots if slot.node})


def required_nodes(claim: Claim) -> list[str]:
    """Lists the nodes that the claim's pods are confined to by their hostname labels."""
    return sorted({host or node for node, host in claim.required_nodes.items()})


def is_confined(claim: Claim) -> bool:
    """Returns whether the claim's pods may run on its nodes only. Pinned pods run in slots anyway, and their template names no
    nodes. Claims of earlier versions that name parts do not list the nodes."""
    return not claim.pinned and (bool(claim.required_nodes) or names_parts(claim.slots))


def _with_template(manifest: Manifest, pod_template: Manifest) -> Manifest:
    changed: Manifest = with_value(manifest, template_path(manifest) or (), pod_template)
    return changed
