"""Knows the pods of claims, and decides which of them may pass their scheduling gate and to which node. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from moorage.kube.objects import Key
from moorage.model.desired_state import PinnedClaim, Pins
from moorage.model.shapes import PODS
from moorage.podspec import (
    CLAIM,
    GATE,
    PARTS,
    Assignment,
    ClaimedPod,
    Refusals,
    assign,
    is_refusal,
    parse_host_port,
    parts_on,
    pinned_node,
    pinned_to,
    port_amounts,
)

from .kube_types import Pod
from .pod_requests import host_ports, requests

_REVISIONS = ("pod-template-hash", "controller-revision-hash")
_read = msgspec.json.Decoder(dict[str, Any] | None).decode


class WaitingPod(NamedTuple):
    """A pod that is bound to no node, as the API server has it."""

    key: Key
    uid: str
    version: str
    gates: tuple[str, ...]
    affinity: dict[str, Any] | None


class GatedPods:
    """`pinning` has the pods for which a request is under way, each with its node and the version that the request is for."""

    def __init__(self) -> None:
        self.waiting: dict[str, WaitingPod] = {}
        self.pinning: dict[str, tuple[str, str]] = {}
        self.refusals = Refusals()
        self._pods: dict[str, ClaimedPod] = {}
        self._by_claim: dict[str, dict[str, ClaimedPod]] = {}
        self._apps: dict[str, Pins] = {}  # by label
        self._claims: dict[str, PinnedClaim] = {}

    # --- what is known

    def set_pins(self, app: str, pins: Pins) -> None:
        """Sets the slots of an app's claims; without claims, its pods are let alone."""
        if pins.claims:
            self._apps[app] = pins
        else:
            self._apps.pop(app, None)
        self._claims = {claim.claim: claim for pins in self._apps.values() for claim in pins.claims}
        self.refusals.forget_claims(self._claims.__contains__)

    def put(self, key: Key, pod: Pod, now: float) -> None:
        meta, spec, status = pod.metadata, pod.spec, pod.status
        labels = meta.labels or {}
        claim = labels.get(CLAIM, "")
        self._forget(meta.uid)
        if not claim:
            return
        if spec.node_name and is_refusal(status.phase, status.reason):
            self.refusals.note(meta.uid, claim, spec.node_name, now)
        if status.phase in ("Succeeded", "Failed"):
            self.pinning.pop(meta.uid, None)
            return
        gates = tuple(gate.name for gate in spec.scheduling_gates or ())
        node = spec.node_name or ""
        if not node:
            affinity = _read(spec.affinity)
            self.waiting[meta.uid] = WaitingPod(key, meta.uid, meta.resource_version, gates, affinity)
            node = "" if GATE in gates else pinned_node({"affinity": affinity})
        pinning = self.pinning.get(meta.uid)
        if pinning is not None and (GATE not in gates or pinning[1] != meta.resource_version):
            del self.pinning[meta.uid]
        ports = port_amounts([parse_host_port(port) for port in host_ports(pod)])
        found = ClaimedPod(
            uid=meta.uid,
            claim=claim,
            created=meta.creation_timestamp or "",
            requests={**requests(pod), **ports, PODS: 1},
            node=node,
            bound=bool(spec.node_name),
            gated=GATE in gates,
            ending=meta.deletion_timestamp is not None,
            revision=next((labels[name] for name in _REVISIONS if name in labels), ""),
        )
        self._pods[meta.uid] = found
        self._by_claim.setdefault(claim, {})[meta.uid] = found

    def drop(self, uid: str) -> None:
        self._forget(uid)
        self.pinning.pop(uid, None)
        self.refusals.forget(uid)

    def _forget(self, uid: str) -> None:
        self.waiting.pop(uid, None)
        before = self._pods.pop(uid, None)
        if before is not None:
            of_claim = self._by_claim[before.claim]
            del of_claim[uid]
            if not of_claim:
                del self._by_claim[before.claim]

    # --- what to do

    @property
    def is_idle(self) -> bool:
        """Returns whether no pod of a pinned claim waits for a node."""
        return not any(self._pods[uid].claim in self._claims for uid in self.waiting)

    def assign(self, free: Callable[[str], Mapping[str, int] | None], now: float) -> Assignment:
        pods = {
            claim: [self._as_pinned(pod) for pod in self._by_claim.get(claim, {}).values()] for claim in self._claims
        }
        known: dict[str, Mapping[str, int] | None] = {}

        def once(node: str) -> Mapping[str, int] | None:
            if node not in known:
                known[node] = free(node)
            return known[node]

        return assign(
            list(self._claims.values()),
            pods,
            once,
            lambda claim, node: self.refusals.avoids(claim, node, now),
        )

    def _as_pinned(self, pod: ClaimedPod) -> ClaimedPod:
        pinning = self.pinning.get(pod.uid)
        return pod if pinning is None else pod._replace(node=pinning[0], gated=False)

    def open(self, uid: str, node: str) -> bytes:
        """Returns the merge patch that pins a pod and opens its gate, if nothing of the pod has changed. From now on it has the slot."""
        pod = self.waiting[uid]
        self.pinning[uid] = node, pod.version
        affinity = pinned_to({"affinity": pod.affinity or {}}, node)["affinity"]
        gates = [{"name": gate} for gate in pod.gates if gate != GATE]
        metadata: dict[str, Any] = {"uid": uid, "resourceVersion": pod.version}
        if parts := parts_on(self._claims[self._pods[uid].claim], node):
            metadata["annotations"] = {PARTS: parts}
        spec = {"schedulingGates": gates or None, "affinity": {"nodeAffinity": affinity["nodeAffinity"]}}
        return msgspec.json.encode({"metadata": metadata, "spec": spec})
