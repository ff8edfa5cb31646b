"""Plays the agent's part for pods with a scheduling gate: pins each to a slot of its claim, as agents of real clusters do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from moorage.model.desired_state import PinnedClaim, Pins
from moorage.model.shapes import PODS
from moorage.podspec import GATE, Assignment, ClaimedPod, Refusals, assign, node_amount, parts_on, port_amounts

from .scheduler import SchedulerNode
from .workloads import SimulatedPod

_AppKey = tuple[str, str]


class ClaimGates:
    def __init__(self) -> None:
        self._apps: dict[_AppKey, Pins] = {}
        self._claims: dict[str, PinnedClaim] = {}
        self._refusals = Refusals()
        self._next_try = 0.0

    def __bool__(self) -> bool:
        """Returns whether pods of any claim are pinned."""
        return bool(self._apps)

    def set_pins(self, app: _AppKey, pins: Pins) -> None:
        if pins.claims:
            self._apps[app] = pins
        else:
            self._apps.pop(app, None)
        self._claims = {claim.claim: claim for pins in self._apps.values() for claim in pins.claims}
        self._refusals.forget_claims(self._claims.__contains__)

    def refused(self, pod: SimulatedPod, node: str, now: float) -> None:
        """Notes that a node's kubelet did not admit a pod."""
        if pod.need.claim in self._claims:
            self._refusals.note(pod.uid, pod.need.claim, node, now)

    def assign(self, pods: Iterable[SimulatedPod], nodes: Mapping[str, SchedulerNode], now: float) -> Assignment:
        by_claim: dict[str, list[ClaimedPod]] = {}
        for pod in pods:
            if pod.need.claim in self._claims and not pod.refused:
                by_claim.setdefault(pod.need.claim, []).append(_claimed(pod))
        free: dict[str, Mapping[str, int] | None] = {}

        def free_on(name: str) -> Mapping[str, int] | None:
            if name not in free:
                free[name] = _free(nodes.get(name))
            return free[name]

        return assign(
            list(self._claims.values()), by_claim, free_on, lambda claim, node: self._refusals.avoids(claim, node, now)
        )

    def parts_on(self, claim: str, node: str) -> str:
        """Returns the annotation of a pod of the claim that is pinned to the node; "" if its pods take no parts."""
        return parts_on(self._claims[claim], node)

    def next_try(self, now: float) -> float | None:
        """Returns when pods may be sent to a node again that refused some, the first time that it is asked for."""
        when = self._refusals.next(now)
        if when is None or when == self._next_try:
            return None
        self._next_try = when
        return when


def _claimed(pod: SimulatedPod) -> ClaimedPod:
    need = pod.need
    return ClaimedPod(
        uid=pod.uid,
        claim=need.claim,
        created=f"{pod.serial:012}",
        requests={**need.requests, **port_amounts(need.host_ports)},
        node=pod.node.name if pod.node is not None else pod.pin,
        bound=pod.node is not None,
        gated=GATE in need.gates,
        revision=pod.template,
    )


def _free(node: SchedulerNode | None) -> dict[str, int] | None:
    if node is None or not node.kind.ready or node.kind.unschedulable:
        return None
    free = {name: amount - node.used.get(name, 0) for name, amount in node.kind.amounts.items()}
    free[PODS] = node.kind.amounts[PODS] - node.pods
    taken: Counter[str] = Counter()
    for port, pods in node.ports.items():
        taken.update({name: pods * amount for name, amount in port_amounts([port]).items()})
    return free | {name: node_amount(name) - amount for name, amount in taken.items()}
