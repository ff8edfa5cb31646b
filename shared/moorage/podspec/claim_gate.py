"""Assigns gated pods to the slots of their claims. Pure; the same for agents and simulated clusters.

All that an assignment rests on is in the pods themselves, so that any agent comes to the same one: a pod has the slot of the node
to which it is bound or pinned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from moorage.model.desired_state import PinnedClaim
from moorage.model.object_names import CLAIM

from .host_ports import is_host_port, node_amount

#: The scheduling gate of pods that are pinned to slots.
GATE = CLAIM
#: The annotation of an object with the devices that slots of its claim name and pods get without ResourceClaims, as JSON.
SLOT_DEVICES = "moorage.dev/slot-devices"
#: Begins the names of DeviceClasses and templates that pin claims to devices.
PIN_PREFIX = "moorage-"
#: Annotations of a DeviceClass that pins a request: the class that was asked for, and the ids of the devices, as a JSON list.
CLASS_OF_PIN = "moorage.dev/device-class"
PINNED_DEVICES = "moorage.dev/pinned-devices"
#: On ResourceClaims that pods name: the claims of the mesh whose slots have their devices, with commas.
SLOT_CLAIMS = "moorage.dev/slot-claims"
#: Annotation of a DeviceClass that pins a request: by claim, the devices that failed and that its pods are to leave, as JSON.
VACATED_DEVICES = "moorage.dev/vacated-devices"
#: Annotation of a DeviceClass that pins a need: the resource class that was asked for.
CLASS_OF_NEED = "moorage.dev/resource-class"
#: Annotations beside it: the uid of that class (one that is deleted and made again is another), and what chose its devices.
CLASS_UID = "moorage.dev/resource-class-uid"
CLASS_ALGORITHM = "moorage.dev/algorithm"
#: Annotation of a template that is pinned: the slots of its claim, each with its node and devices by request, as JSON.
TEMPLATE_SLOTS = "moorage.dev/slots"
#: Annotation of a template with shares of devices: what requests take of which devices, by request, as JSON.
TEMPLATE_SHARES = "moorage.dev/shares"
#: The scheduling gate of pods whose claims an agent allocates itself, and the label of clusters where it does.
DEVICES_GATE = "moorage.dev/devices"
DRA_LABEL, ALLOCATES = "moorage.dev/dra", "allocate"
_GATED_KINDS = ("Deployment", "StatefulSet", "ReplicaSet", "ReplicationController", "Job", "CronJob")


def has_gate(kind: str) -> bool:
    """Returns whether pods of the kind can be gated. Those of a DaemonSet are bound to their nodes, and a bare Pod has one node."""
    return kind in _GATED_KINDS


def parts_on(claim: PinnedClaim, node: str) -> str:
    """Returns what the claim's pods take of the node's parts now, as the annotation of one that is pinned there: that of its
    template may be older. "" if they take none."""
    runs = [{"count": slot.count, "parts": slot.parts} for slot in claim.slots if slot.node == node and slot.parts]
    return msgspec.json.encode({node: runs}, order="sorted").decode() if runs else ""


class ClaimedPod(NamedTuple):
    """A pod that lives and carries a claim. `node`: where it is bound or pinned; `requests` include host ports and `pods`; `revision`
    differs between the templates of an object."""

    uid: str
    claim: str
    created: str
    requests: Mapping[str, int]
    node: str = ""
    bound: bool = False
    gated: bool = False
    ending: bool = False
    revision: str = ""


#: Returns what a node has free beside the pods that are bound to it; None if no pod may start there.
FreeOf = Callable[[str], Mapping[str, int] | None]
#: Returns whether a claim's pods should stay away from a node for now, because it refused one.
IsAvoided = Callable[[str, str], bool]


class Assignment(NamedTuple):
    """`opened`: pods whose gate may open, each with its node. `misplaced`: pods that are pinned to a node without a slot for them, and
    that no scheduler has bound: they can only be made again."""

    opened: dict[str, str]
    misplaced: list[str]


class _Rooms:
    """The room of nodes, less what pods that are pinned and not bound will take."""

    def __init__(self, free: FreeOf) -> None:
        self._free = free
        self._taken: dict[str, Counter[str]] = {}

    def take(self, pod: ClaimedPod, node: str) -> None:
        self._taken.setdefault(node, Counter()).update(pod.requests)

    def fits(self, pod: ClaimedPod, node: str) -> bool:
        free = self._free(node)
        if free is None:
            return False
        taken = self._taken.get(node, Counter[str]())
        return all(
            amount <= free.get(name, node_amount(name) if is_host_port(name) else 0) - taken.get(name, 0)
            for name, amount in pod.requests.items()
        )


def assign(
    claims: Iterable[PinnedClaim],
    pods: Mapping[str, Sequence[ClaimedPod]],
    free: FreeOf,
    avoided: IsAvoided = lambda _claim, _node: False,
) -> Assignment:
    """Assigns the gated pods. `claims`: of each object the newest last; `pods` are by claim. A pod waits at its gate until its node has
    room for it: during a rollout older pods leave one by one, and only Kubernetes knows which goes next."""
    rooms = _Rooms(free)
    families: dict[str, list[PinnedClaim]] = {}
    for claim in claims:
        families.setdefault(claim.object, []).append(claim)
        for pod in pods.get(claim.claim, ()):
            if pod.node and not pod.bound:
                rooms.take(pod, pod.node)
    assignment = Assignment({}, [])
    for family in families.values():
        waiting = any(pod.gated or not pod.bound for claim in family for pod in pods.get(claim.claim, ()))
        if waiting:
            _assign_family(family, pods, rooms, avoided, assignment)
    return assignment


def _assign_family(
    family: Sequence[PinnedClaim],
    pods: Mapping[str, Sequence[ClaimedPod]],
    rooms: _Rooms,
    avoided: IsAvoided,
    assignment: Assignment,
) -> None:
    """Assigns the pods of one object, those of its newest claim first."""
    there = Counter(pod.node for claim in family for pod in pods.get(claim.claim, ()) if pod.node)
    for claim in reversed(family):
        mine = sorted(pods.get(claim.claim, ()), key=lambda pod: (pod.created, pod.uid))
        if not claim.slots:
            continue
        places = _Places(claim, mine)
        assignment.misplaced.extend(places.misplaced())
        for pod in mine:
            if not pod.gated or pod.ending:
                continue
            nodes = [n for n in places.open_for(pod) if not avoided(claim.claim, n) and rooms.fits(pod, n)]
            if nodes:
                node = min(nodes, key=lambda n: (max(0, there[n] + 1 - places.total[n]), places.is_surge(n), n))
                assignment.opened[pod.uid] = node
                places.take(pod, node)
                rooms.take(pod, node)
                there[node] += 1


class _Places:
    """The slots of one claim and the pods that have them."""

    def __init__(self, claim: PinnedClaim, pods: Sequence[ClaimedPod]) -> None:
        self.total: Counter[str] = Counter()
        self._plain: Counter[str] = Counter()
        for slot in claim.slots:
            self.total[slot.node] += slot.count
            self._plain[slot.node] += 0 if slot.surge else slot.count
        self._on: dict[str, list[ClaimedPod]] = {}
        for pod in pods:
            if pod.node and not pod.ending:
                self.take(pod, pod.node)

    def take(self, pod: ClaimedPod, node: str) -> None:
        self._on.setdefault(node, []).append(pod)

    def is_surge(self, node: str) -> bool:
        return len(self._on.get(node, ())) >= self._plain[node]

    def open_for(self, pod: ClaimedPod) -> list[str]:
        """Returns the nodes with a slot that no pod has. If there is none, those where pods of another template have it: a rollout
        may start the next one before it ends them."""
        found = [node for node, count in self.total.items() if len(self._on.get(node, ())) < count]
        if found:
            return found
        return [node for node, count in self.total.items() if len(self._on[node]) - self._others(node, pod) < count]

    def _others(self, node: str, pod: ClaimedPod) -> int:
        return sum(other.bound and other.revision != pod.revision for other in self._on.get(node, ()))

    def misplaced(self) -> list[str]:
        """Returns the pods that wait for nodes where they have no slot, the youngest first, and gives up their places."""
        found: list[str] = []
        for node, pods in self._on.items():
            for pod in [pod for pod in reversed(pods) if not pod.bound]:
                if len(pods) - self._others(node, pod) > self.total[node]:
                    pods.remove(pod)
                    found.append(pod.uid)
        return found
