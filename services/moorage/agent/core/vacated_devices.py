"""Finds pods that have devices which their claims left because they failed. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from moorage.dra.objects import DeviceClaim, DeviceClass
from moorage.dra.pins import vacated_by
from moorage.kube.objects import Key
from moorage.podspec import CLAIM, PIN_PREFIX

from .kube_types import Pod


class PodOnDevice(NamedTuple):
    """A live pod that is bound, with the ResourceClaims that it has."""

    key: Key
    uid: str
    claim: str
    claims: tuple[Key, ...]


class VacatedDevices:
    """Reads the classes as the cluster has them: a pod that ends then gets another device."""

    def __init__(self) -> None:
        self._pods: dict[str, PodOnDevice] = {}
        self._of_claim: dict[str, set[str]] = {}  # claim → pods
        self._devices: dict[Key, frozenset[str]] = {}
        self._vacated: dict[str, dict[str, frozenset[str]]] = {}  # class → claim → devices

    @property
    def is_idle(self) -> bool:
        """Returns whether no claim left a device."""
        return not self._vacated

    def put_pod(self, key: Key, pod: Pod) -> None:
        meta, spec = pod.metadata, pod.spec
        self.drop_pod(meta.uid)
        claim = (meta.labels or {}).get(CLAIM, "")
        ended = meta.deletion_timestamp is not None or pod.status.phase in ("Succeeded", "Failed")
        if not claim or not spec.node_name or not spec.resource_claims or ended:
            return
        made = pod.made_claims
        names = [entry.resource_claim_name or made.get(entry.name, "") for entry in spec.resource_claims]
        found = PodOnDevice(key, meta.uid, claim, tuple(Key(key.namespace, name) for name in names if name))
        self._pods[meta.uid] = found
        self._of_claim.setdefault(claim, set()).add(meta.uid)

    def drop_pod(self, uid: str) -> None:
        before = self._pods.pop(uid, None)
        if before is not None:
            pods = self._of_claim[before.claim]
            pods.discard(uid)
            if not pods:
                del self._of_claim[before.claim]

    def put_claim(self, key: Key, claim: DeviceClaim) -> None:
        self._devices[key] = claim.devices

    def drop_claim(self, key: Key) -> None:
        self._devices.pop(key, None)

    def put_class(self, name: str, found: DeviceClass) -> None:
        self.drop_class(name)
        by_claim = vacated_by(found.metadata.annotations) if name.startswith(PIN_PREFIX) else {}
        if by_claim:
            self._vacated[name] = by_claim

    def drop_class(self, name: str) -> None:
        self._vacated.pop(name, None)

    def pods(self) -> Iterator[PodOnDevice]:
        """Yields the pods to end."""
        left: dict[str, frozenset[str]] = {}
        for by_claim in self._vacated.values():
            for claim, devices in by_claim.items():
                left[claim] = left.get(claim, frozenset()) | devices
        for claim, devices in sorted(left.items()):
            for uid in sorted(self._of_claim.get(claim, ())):
                pod = self._pods[uid]
                if any(not devices.isdisjoint(self._devices.get(key, ())) for key in pod.claims):
                    yield pod
