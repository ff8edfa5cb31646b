"""Decides which devices the claims of gated pods get, on clusters where nothing but Moorage allocates. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from moorage.dra.objects import DeviceClaim
from moorage.dra.template_slots import SchedulerAllocates, open_slot, slots_of_template
from moorage.kube.objects import Key
from moorage.podspec import DEVICES_GATE, PIN_PREFIX

from .kube_types import Pod

Manifest = dict[str, Any]


class WaitingPod(NamedTuple):
    """A pod at the gate. `claims`: its ResourceClaims that are made of pinned templates, with these; "" is one that is not made
    yet."""

    key: Key
    uid: str
    version: str
    created: str
    gates: tuple[str, ...]
    claims: tuple[tuple[str, str], ...]


class Claim(NamedTuple):
    uid: str
    version: str
    finalizers: tuple[str, ...]
    devices: frozenset[str]  # those that are allocated; empty: it is not


class ClaimAllocation(NamedTuple):
    """The devices that a claim gets, by request."""

    key: Key
    claim: Claim
    template: str
    devices: Mapping[str, Sequence[str]]


class PodAllocation(NamedTuple):
    """The claims of a pod that are still to be allocated, and its node; without a node its gate is opened for the scheduler."""

    pod: WaitingPod
    node: str
    claims: list[ClaimAllocation]


class GatedClaims:
    """`allocating` has the devices that requests under way are for, by claim."""

    def __init__(self) -> None:
        self.waiting: dict[str, WaitingPod] = {}
        self.allocating: dict[str, frozenset[str]] = {}
        self._claims: dict[Key, Claim] = {}
        self._holders: dict[str, set[Key]] = {}

    def put_pod(self, key: Key, pod: Pod) -> None:
        meta, spec = pod.metadata, pod.spec
        gates = tuple(gate.name for gate in spec.scheduling_gates or ())
        self.waiting.pop(meta.uid, None)
        if DEVICES_GATE not in gates or meta.deletion_timestamp is not None:
            return
        made = pod.made_claims
        claims = tuple(
            (made.get(claim.name, ""), claim.resource_claim_template_name)
            for claim in spec.resource_claims or ()
            if claim.resource_claim_template_name and claim.resource_claim_template_name.startswith(PIN_PREFIX)
        )
        created = meta.creation_timestamp or ""
        self.waiting[meta.uid] = WaitingPod(key, meta.uid, meta.resource_version, created, gates, claims)

    def drop_pod(self, uid: str) -> None:
        self.waiting.pop(uid, None)

    def put_claim(self, key: Key, found: DeviceClaim) -> None:
        known = self._claims.get(key)
        if (
            known is not None
            and known.uid == found.metadata.uid
            and _newer(known.version, found.metadata.resource_version)
        ):
            return
        self.drop_claim(key)
        devices = found.devices
        meta = found.metadata
        self._claims[key] = Claim(meta.uid, meta.resource_version, tuple(meta.finalizers or ()), devices)
        for device in devices:
            self._holders.setdefault(device, set()).add(key)
        if devices:
            self.allocating.pop(meta.uid, None)

    def confirm(self, key: Key, uid: str, found: DeviceClaim | None) -> None:
        """Takes what the API server says of a claim after a request for it failed; None: it is gone."""
        if found is not None and key in self._claims:
            self.put_claim(key, found)
        self.allocating.pop(uid, None)

    def drop_claim(self, key: Key) -> None:
        before = self._claims.pop(key, None)
        for device in before.devices if before is not None else ():
            self._holders[device].discard(key)
            if not self._holders[device]:
                del self._holders[device]

    def plan(
        self, template: Callable[[str, str], Manifest | None], is_allocable: Callable[[str], bool | None]
    ) -> Iterator[PodAllocation]:
        """Yields what can be done for pods, the oldest first. `template` returns a pinned template by namespace and name.
        `is_allocable`: whether a device exists and can be allocated as a whole; None if the scheduler has to do it."""
        taken = self._holders.keys() | {device for devices in self.allocating.values() for device in devices}
        for pod in sorted(self.waiting.values(), key=lambda pod: (pod.created, pod.key)):
            found = self._allocation(pod, template, is_allocable, taken)
            if found is not None:
                taken |= {device for one in found.claims for of in one.devices.values() for device in of}
                yield found

    def _allocation(
        self,
        pod: WaitingPod,
        template: Callable[[str, str], Manifest | None],
        is_allocable: Callable[[str], bool | None],
        taken: set[str],
    ) -> PodAllocation | None:
        keys = [(Key(pod.key.namespace, name), of) for name, of in pod.claims]
        if any(key not in self._claims or self._claims[key].uid in self.allocating for key, _ in keys):
            return None  # they are not made yet, or requests are under way
        templates = {of: template(pod.key.namespace, of) for _, of in keys}
        if any(found is None for found in templates.values()):
            return None  # another decision is being applied
        of_template = {of: slots_of_template(found or {}) for of, found in templates.items()}
        own = {device for key, _ in keys for device in self._claims[key].devices}
        try:
            slots = open_slot(of_template, own, taken, is_allocable)
        except SchedulerAllocates:
            return PodAllocation(pod, "", [])
        if slots is not None:
            left = [
                ClaimAllocation(key, self._claims[key], of, slots[of].devices)
                for key, of in keys
                if not self._claims[key].devices and slots[of].devices
            ]
            return PodAllocation(pod, next(iter(slots.values())).node, left)
        return None if keys else PodAllocation(pod, "", [])


def _newer(one: str, other: str) -> bool:
    """Returns whether the first of two versions of an object is newer."""
    return one.isdigit() and other.isdigit() and int(one) > int(other)


def allocation_of(
    devices: Mapping[str, Sequence[str]], node: str, template: Manifest, configs: Mapping[str, list[Any]], now: str
) -> Manifest:
    """Returns the allocation of a claim. `configs`: the configuration of the class of each request."""
    asked = (template.get("spec", {}).get("spec") or {}).get("devices") or {}
    tolerations = dict(_tolerations(asked.get("requests") or ()))
    results = []
    for request, idents in devices.items():
        for ident in idents:
            driver, _, rest = ident.partition("/")
            pool, _, name = rest.rpartition("/")
            result = {"request": request, "driver": driver, "pool": pool, "device": name}
            results.append(result | ({"tolerations": tolerations[request]} if tolerations.get(request) else {}))
    config = [
        {**entry, "source": "FromClass", "requests": [request]}
        for request in devices
        for entry in configs.get(request, ())
    ]
    config += [{**entry, "source": "FromClaim"} for entry in asked.get("config") or ()]
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    return {
        "allocationTimestamp": now,
        "devices": {"results": results} | ({"config": config} if config else {}),
        "nodeSelector": {"nodeSelectorTerms": terms},
    }


def classes_of(template: Manifest) -> dict[str, str]:
    """Returns the class of each request, by REQUEST[/ALTERNATIVE]."""
    requests = ((template.get("spec", {}).get("spec") or {}).get("devices") or {}).get("requests") or ()
    return {name: str(ask.get("deviceClassName", "")) for name, ask in _asks(requests)}


def _tolerations(requests: Sequence[Manifest]) -> Iterator[tuple[str, list[Any]]]:
    for name, ask in _asks(requests):
        yield name, ask.get("tolerations") or []


def _asks(requests: Sequence[Manifest]) -> Iterator[tuple[str, Manifest]]:
    for request in requests:
        name = str(request.get("name", ""))
        for alternative in request.get("firstAvailable") or ():
            yield f"{name}/{alternative.get('name')}", alternative
        if not request.get("firstAvailable"):
            yield name, request.get("exactly") or request
