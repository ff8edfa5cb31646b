"""Works out what is written on pods about their devices: what the cluster allocated, whatever was chosen before; of devices that no
ResourceClaim allocates, those that their slots name. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from moorage.dra.objects import AllocatedDevice, DeviceClaim
from moorage.kube.objects import Key
from moorage.podspec import CLAIM, CLASS_ALGORITHM, CLASS_OF_NEED, CLASS_OF_PIN, CLASS_UID, PIN_PREFIX

from .claim_allocation import classes_of
from .kube_types import Pod

#: The annotation with the devices of a pod, as a JSON list.
DEVICES = "moorage.dev/devices"
#: Begins annotations of the form PREFIX_CLASS_DEVICE: QUANTITY.
LEGACY = "scheduler.alpha.kubernetes.io/resClass"
_LEGAL = re.compile("[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
#: Begins a part's path in its node where that is in a zone.
_ZONE = re.compile("^numa-[0-9]+/")
#: What chooses devices for requests of ResourceClaims.
_BY_CLAIM = "first-fit"
_encode = msgspec.json.Encoder(order="sorted").encode
Manifest = dict[str, Any]


class _Use(NamedTuple):
    """A claim of a pod: its object, the template that it was made of, and the containers that have it or one request of it."""

    claim: str
    template: str
    containers: tuple[tuple[str, str], ...]  # container and request


class SlotDevices(msgspec.Struct, kw_only=True):
    """Devices of one need of a pod that no ResourceClaim allocates: how many of each part."""

    name: str = msgspec.field(name="class", default="")
    class_uid: str = msgspec.field(name="classUid", default="")
    algorithm: str = ""
    request: str = ""
    containers: list[str] = []
    parts: dict[str, int] = {}


class SlotRun(msgspec.Struct, kw_only=True):
    """So many slots of one node with the same devices."""

    node: str
    count: int = 1
    devices: list[SlotDevices] = []


_slot_devices = msgspec.json.Decoder(dict[str, list[SlotRun]]).decode


@lru_cache(256)
def read_slot_devices(text: str) -> Mapping[str, list[SlotRun]]:
    """Returns what the slots of claims name, from the annotation of an object. What somebody else wrote there says nothing."""
    try:
        return _slot_devices(text)
    except msgspec.MsgspecError:
        return {}


class _Class(NamedTuple):
    """A class that was asked for, and the algorithm that chose its devices."""

    name: str
    uid: str
    algorithm: str


class _Pod(NamedTuple):
    key: Key
    uid: str
    version: str
    claim: str
    annotations: dict[str, str]
    uses: tuple[_Use, ...]
    node: str


class PodAnnotations(NamedTuple):
    """Annotations that a pod lacks."""

    key: Key
    uid: str
    version: str
    annotations: dict[str, str | None]


class DeviceAnnotations:
    """Knows the bound pods of claims that have devices. `wanted` returns an object that an app wants, by kind, namespace and name;
    `decision_of` the decision of a claim; `uid_of` the uid of a DeviceClass, or ""; `slots` what slots name that no ResourceClaim
    allocates, by claim."""

    def __init__(
        self,
        wanted: Callable[[str, str, str], Manifest | None],
        decision_of: Callable[[str], str],
        uid_of: Callable[[str], str],
        slots: Callable[[], Mapping[str, Sequence[SlotRun]]] = dict,
    ) -> None:
        self._wanted, self._decision_of, self._uid_of, self._slots = wanted, decision_of, uid_of, slots
        self._pods: dict[str, _Pod] = {}
        self._users: dict[Key, set[str]] = {}  # pods by claim
        self._unchecked: set[str] = set()
        self._results: dict[Key, list[AllocatedDevice]] = {}

    @property
    def is_idle(self) -> bool:
        """Returns whether there is no pod whose annotations may be wrong."""
        return not self._unchecked

    def put_pod(self, key: Key, pod: Pod) -> None:
        meta, spec = pod.metadata, pod.spec
        self.drop_pod(meta.uid)
        claim = (meta.labels or {}).get(CLAIM, "")
        if not claim or not spec.node_name or meta.deletion_timestamp is not None:
            return
        made = pod.made_claims
        containers = [*(spec.containers or ()), *(spec.init_containers or ())]
        uses = tuple(
            _Use(
                entry.resource_claim_name or made.get(entry.name, ""),
                entry.resource_claim_template_name or "",
                tuple(
                    (container.name, one.request or "")
                    for container in containers
                    for one in (container.resources.claims if container.resources else None) or ()
                    if one.name == entry.name
                ),
            )
            for entry in spec.resource_claims or ()
        )
        own = {k: v for k, v in (meta.annotations or {}).items() if k == DEVICES or k.startswith(LEGACY)}
        self._pods[meta.uid] = _Pod(key, meta.uid, meta.resource_version, claim, own, uses, spec.node_name)
        self._unchecked.add(meta.uid)
        for use in uses:
            self._users.setdefault(Key(key.namespace, use.claim), set()).add(meta.uid)

    def drop_pod(self, uid: str) -> None:
        before = self._pods.pop(uid, None)
        self._unchecked.discard(uid)
        if before is None:
            return
        for key in {Key(before.key.namespace, use.claim) for use in before.uses}:
            users = self._users[key]
            users.discard(uid)
            if not users:
                del self._users[key]

    def check_again(self, uid: str) -> None:
        if uid in self._pods:
            self._unchecked.add(uid)

    def check_slots(self) -> None:
        """Looks again at the pods of which slots may name other devices now."""
        slots = self._slots()
        self._unchecked |= {uid for uid, pod in self._pods.items() if pod.claim in slots} if slots else set()

    def put_claim(self, key: Key, found: DeviceClaim) -> None:
        self._results[key] = found.results
        self._unchecked |= self._users.get(key, set())

    def drop_claim(self, key: Key) -> None:
        self._results.pop(key, None)

    def missing(self) -> Iterator[PodAnnotations]:
        """Yields the pods whose annotations say something else than the status of their claims. A pod whose template is not known,
        as after a restart, is looked at again later."""
        slots = self._slots() if self._unchecked else {}
        for uid in sorted(self._unchecked):
            pod = self._pods[uid]
            uses = [use for use in pod.uses if use.claim]
            pinned = [use.template for use in uses if use.template.startswith(PIN_PREFIX)]
            if any(self._wanted("ResourceClaimTemplate", pod.key.namespace, name) is None for name in pinned):
                continue
            self._unchecked.discard(uid)
            if not all(self._results.get(Key(pod.key.namespace, use.claim)) for use in uses):
                continue
            named = self._named(pod, slots.get(pod.claim, ()))
            if not uses and not named and pod.claim not in slots:
                continue  # it has no devices, or what its slots name is not known yet
            wanted = self._annotations(pod, uses, named) if uses or named else {}
            if wanted != pod.annotations:
                gone = dict.fromkeys(pod.annotations.keys() - wanted.keys())
                yield PodAnnotations(pod.key, pod.uid, pod.version, {**wanted, **gone})

    def _named(self, pod: _Pod, runs: Sequence[SlotRun]) -> Sequence[SlotDevices]:
        """Returns the devices of the pod's slot. Those of slots of one node are dealt to its pods in the order of these."""
        here = [run for run in runs if run.node == pod.node]
        if len(here) < 2:
            return here[0].devices if here else ()
        places = [run for run in here for _ in range(run.count)]
        mates = sorted(uid for uid, other in self._pods.items() if (other.claim, other.node) == (pod.claim, pod.node))
        return places[min(mates.index(pod.uid), len(places) - 1)].devices

    def _annotations(self, pod: _Pod, uses: list[_Use], named: Sequence[SlotDevices]) -> dict[str, str]:
        entries: list[Manifest] = []
        legacy: dict[str, int] = {}
        decision = self._decision_of(pod.claim)
        for one in named:
            entries.append(
                {
                    "class": one.name,
                    "classUid": one.class_uid,
                    "request": one.request,
                    "containers": one.containers,
                    "parts": sorted(one.parts),
                    "quantity": sum(one.parts.values()),
                    "algorithm": one.algorithm,
                    "decision": decision,
                }
            )
            for part, count in one.parts.items():
                device = _ZONE.sub("", part.removeprefix(f"{pod.node}/"))
                suffix = f"resClass_{one.name}_{device}"
                if one.name and _LEGAL.fullmatch(suffix):
                    key = f"{LEGACY}_{one.name}_{device}"
                    legacy[key] = legacy.get(key, 0) + count
        for use in uses:
            classes = self._classes(pod.key.namespace, use.template)
            by_request: dict[str, list[AllocatedDevice]] = {}
            for result in self._results[Key(pod.key.namespace, use.claim)]:
                by_request.setdefault(result.request, []).append(result)
            for request, results in by_request.items():
                found = classes.get(request, _Class("", "", ""))
                name = found.name
                of = sorted({c for c, only in use.containers if only in ("", request, request.partition("/")[0])})
                entries.append(
                    {
                        "class": name,
                        "classUid": found.uid,
                        "claim": use.claim,
                        "request": request,
                        "containers": of,
                        "parts": [r.ident for r in results],
                        "quantity": len(results),
                        "algorithm": found.algorithm,
                        "decision": decision,
                    }
                )
                for result in results:
                    suffix = f"resClass_{name}_{result.device}"
                    if name and _LEGAL.fullmatch(suffix):
                        key = f"{LEGACY}_{name}_{result.device}"
                        legacy[key] = legacy.get(key, 0) + 1
        return {DEVICES: _encode(entries).decode()} | {key: str(count) for key, count in sorted(legacy.items())}

    def _classes(self, namespace: str, template: str) -> dict[str, _Class]:
        """Returns the class that was asked for by request."""
        found = self._wanted("ResourceClaimTemplate", namespace, template) or {}
        classes: dict[str, _Class] = {}
        for request, name in classes_of(found).items():
            annotations: dict[str, str] = {}
            if name.startswith(PIN_PREFIX):
                pin = self._wanted("DeviceClass", "default", name) or {"metadata": {}}
                annotations = pin["metadata"].get("annotations") or {}
                name = annotations.get(CLASS_OF_PIN, "") or annotations.get(CLASS_OF_NEED, "")
            uid = annotations.get(CLASS_UID, "") or self._uid_of(name)
            classes[request] = _Class(name, uid, annotations.get(CLASS_ALGORITHM, _BY_CLAIM))
        return classes
