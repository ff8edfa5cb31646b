"""Devices of one simulated cluster: what its ResourceSlices offer, which ResourceClaims there are, and what these have. Agents of real
clusters keep the same by the same code; here the scheduler's part is played, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from moorage.dra import objects as dra
from moorage.dra.allocated import DeviceClaims
from moorage.dra.classes import DeviceClasses
from moorage.dra.device_selectors import with_alike
from moorage.dra.pins import UnknownClass, completed, is_pin, vacated_by
from moorage.dra.quotas import PINNED_BY_TEMPLATE, Quotas, with_quotas
from moorage.dra.shares import has_shares, with_shares
from moorage.dra.slices import DevicePool, Devices, NodeDevices
from moorage.dra.template_slots import SchedulerAllocates, TemplateSlot, open_slot, slots_of_template
from moorage.kube.objects import Key, Object, ObjectMetadata
from moorage.model.part_reports import DeviceClassReport, DeviceTaint
from moorage.model.part_requests import DeviceAsk, DeviceToleration
from moorage.parts.device_table import tolerates
from moorage.podspec import PIN_PREFIX
from moorage.podspec.device_claims import MAX_DEVICES, Ask, ClaimDevices, ClaimSpec, Request, claim_needs, read_claim
from moorage.podspec.device_shares import DEVICE_CLASS

from .device_allocator import NodeView, allocate
from .object_documents import key_of
from .pod_needs import DeviceClaimNeed, PodNeed

Manifest = dict[str, Any]
#: Pods that may have one claim together.
MAX_CONSUMERS = 256
#: A label of namespaces in which claims may ask for admin access.
ADMIN_ACCESS = "resource.kubernetes.io/admin-access"


class Eviction(NamedTuple):
    """A pod that has to leave a device with a taint, so many seconds after the taint was put there."""

    pod: str
    after: float


class _Claim:
    """A ResourceClaim. `fixed`: the document says what it has; `made`: for one pod, with which it ends; `only_there`: its allocation is for
    its node alone."""

    __slots__ = ("annotations", "fixed", "made", "node", "only_there", "pods", "removed", "results", "spec")

    def __init__(self, spec: ClaimSpec, *, made: bool = False) -> None:
        self.spec, self.made = spec, made
        self.results: list[dra.AllocatedDevice] | None = None
        self.node = ""
        self.pods: dict[str, None] = {}
        self.fixed = self.removed = self.only_there = False
        self.annotations: dict[str, str] = {}

    def reaches(self, node: str, devices: Collection[tuple[str, str, str]]) -> bool:
        """Returns whether pods on a node can have what is allocated. `devices`: those of the node by driver, pool and name."""
        if self.only_there and self.node != node:
            return False
        return all((result.driver, result.pool, result.device) in devices for result in self.results or ())


class SimulatedDevices:
    """`mark_node` gets each node whose devices changed, or what is in use of them; `mark_pod` each pod that has others. `claim_of`:
    the claim of the mesh that a pod is of; "" if it is of none."""

    def __init__(
        self, mark_node: Callable[[str], None], mark_pod: Callable[[str], None], claim_of: Callable[[str], str]
    ) -> None:
        self._mark_node, self._mark_pod = mark_node, mark_pod
        self._nodes: dict[str, Object] = {}
        self._known: dict[str, NodeDevices] = {}
        self._slices = Devices(self._changed, self._changed_all)
        self._allocated = DeviceClaims(
            lambda device: self._slices.mark_pool(DevicePool(device.driver, device.pool)), mark_pod, claim_of
        )
        self._classes = DeviceClasses(self._changed_all)
        self._given: dict[tuple[str, str, str], Manifest] = {}  # of the document
        self._pins: dict[str, Manifest] = {}
        self._completed: dict[str, DeviceClassReport] = {}
        self._templates: dict[Key, ClaimSpec] = {}
        self._slots: dict[Key, list[TemplateSlot]] = {}  # of pinned templates
        self._claims: dict[Key, _Claim] = {}
        self._of_pod: dict[str, dict[str, Key]] = {}  # the claims of each pod, by the pod's name for them
        self._taken: set[str] | None = None  # devices that claims have; None: to be collected again
        self._admin_namespaces: set[str] = set()
        self.quotas = Quotas(self._classes.serving)
        self.allocates = False  # the cluster's agent gives pinned claims the devices of their slots

    def _changed(self, node: str) -> None:
        self._known.pop(node, None)
        self._completed.clear()
        self._mark_node(node)

    def _changed_all(self) -> None:
        self._completed.clear()
        for name in self._nodes:
            self._changed(name)

    # --- what there is

    def set_nodes(self, labels: Mapping[str, Mapping[str, str]]) -> None:
        """Gives the cluster these nodes, each with its labels."""
        self._nodes = {name: Object(metadata=ObjectMetadata(name=name, labels=dict(of))) for name, of in labels.items()}
        self._changed_all()

    def set_objects(self, objects: Iterable[Manifest]) -> None:
        """Makes the objects of the document equal to these. What pods have of devices stays theirs."""
        wanted = {key_of(manifest): manifest for manifest in objects}
        for key in [key for key in self._given if key not in wanted]:
            self.remove(self._given.pop(key))
        for key, manifest in wanted.items():
            if self._given.get(key) != manifest:
                self._given[key] = manifest
                self.put(manifest)

    def put(self, manifest: Mapping[str, Any]) -> None:
        """Takes an object over. Raises ValueError where the API server would refuse it."""
        kind, namespace, name = key_of(manifest)
        key = Key(namespace, name)
        try:
            if kind == "ResourceSlice":
                self._slices.put(name, msgspec.convert(manifest, dra.Slice))
            elif kind == "DeviceTaintRule":
                self._slices.put_rule(name, msgspec.convert(manifest, dra.DeviceTaintRule))
            elif kind == "DeviceClass" and is_pin(manifest):
                self._pins[name] = dict(manifest)
                self._completed.pop(name, None)
            elif kind == "DeviceClass":
                self._classes.put(name, msgspec.convert(manifest, dra.DeviceClass))
            elif kind == "ResourceClaimTemplate":
                if has_shares(manifest):
                    manifest = with_shares(dict(manifest), self._slices)
                self._templates[key] = read_claim((manifest.get("spec") or {}).get("spec") or {})
                self._slots[key] = slots_of_template(manifest)
            elif kind == "ResourceClaim":
                self._put_claim(key, manifest)
            elif kind == "ResourceQuota":
                self.quotas.put(key, msgspec.convert(manifest, dra.ResourceQuota))
            elif kind == "Namespace" and (manifest["metadata"].get("labels") or {}).get(ADMIN_ACCESS) == "true":
                self._admin_namespaces.add(name)
        except msgspec.ValidationError as error:
            raise ValueError(f"{kind}/{name}: {error}") from error

    def _put_claim(self, key: Key, manifest: Mapping[str, Any]) -> None:
        spec = read_claim(manifest.get("spec") or {})
        claim = self._claims.get(key)
        if claim is not None and claim.spec != spec and (claim.pods or claim.results is not None) and not claim.fixed:
            raise ValueError(f"ResourceClaim/{key.name}: spec cannot be changed")
        if claim is None or claim.spec != spec:
            claim = self._claims[key] = _Claim(spec)
        claim.removed, self._taken = False, None
        claim.annotations = dict(manifest["metadata"].get("annotations") or {})
        given = msgspec.convert(manifest, dra.DeviceClaim)
        if given.results or claim.fixed:
            claim.fixed, claim.results = bool(given.results), given.results or None
            self._tell(key, claim)

    def remove(self, manifest: Mapping[str, Any]) -> None:
        kind, namespace, name = key_of(manifest)
        key = Key(namespace, name)
        if kind == "ResourceSlice":
            self._slices.drop(name)
        elif kind == "DeviceTaintRule":
            self._slices.drop_rule(name)
        elif kind == "DeviceClass":
            self._pins.pop(name, None)
            self._classes.drop(name)
        elif kind == "ResourceClaimTemplate":
            self._templates.pop(key, None)
            self._slots.pop(key, None)
        elif kind == "ResourceQuota":
            self.quotas.drop(key)
        elif kind == "Namespace":
            self._admin_namespaces.discard(name)
        elif kind == "ResourceClaim" and (claim := self._claims.get(key)) is not None:
            claim.removed = True
            self._end_unused(key, claim)

    def on_node(self, node: str) -> NodeDevices:
        found = self._known.get(node)
        if found is None:
            found = self._known[node] = self._slices.of(self._nodes[node])
        return found

    def with_devices(self, node: str, row: bytes) -> bytes:
        """Adds to a node's row what its agent reports of devices."""
        found = self.on_node(node)
        if not found.devices and not found.problems:
            return row
        in_use = self._allocated.in_use(found.devices)
        fields: dict[str, Any] = msgspec.json.decode(row)
        more: dict[str, list[Any]] = {
            "devices": found.devices if self.allocates else with_alike(found.devices),
            "counters": found.counters,
            "deviceClasses": self._classes.reports(fields["allocatable"]) if found.offers else [],
            "problems": found.problems,
        }
        for name, values in more.items():
            if values:
                fields[name] = [*fields.get(name, ()), *values]
        if in_use:
            fields["inUse"] = {**fields.get("inUse", {}), **in_use}
        if found.problems:
            fields["incompletePools"] = True
            fields["invalidPools"] = found.has_invalid_pools
        allocatable, requested = fields["allocatable"], fields["requested"]
        for resource, free in self._classes.extended_resources(found.devices, in_use).items():
            if allocatable.get(resource, "0") == "0":
                allocatable[resource] = str(free + int(requested.get(resource, "0")))
        return msgspec.json.encode(fields)

    # --- pods

    def backed(self, resource: str) -> str:
        """Returns the DeviceClass of which devices serve an extended resource; "" if none does."""
        if resource.startswith(DEVICE_CLASS):
            return resource[len(DEVICE_CLASS) :]
        return self._classes.serving(resource)

    def passes_gate(self, uid: str, need: PodNeed) -> bool:
        """Returns whether a pod is let to the scheduler. Where the cluster's agent allocates, it gives the pinned claims of the pod the
        devices of a slot before, if they are free."""
        templates = {
            entry.name: entry.template for entry in need.device_claims if entry.template.startswith(PIN_PREFIX)
        }
        if not self.allocates or not templates:
            return True
        if self._claims_of(uid, need, {}) is None:
            return False
        keys = {template: self._of_pod[uid][name] for name, template in templates.items()}
        own = {result.ident for key in keys.values() for result in self._claims[key].results or ()}
        taken = self._taken
        if taken is None:
            taken = {r.ident for claim in self._claims.values() for r in claim.results or () if not r.admin_access}
        slots = {template: self._slots.get(Key(need.namespace, template), []) for template in keys}
        try:
            found = open_slot(slots, own, taken, self._slices.is_allocable)
        except SchedulerAllocates:
            return True
        for template, slot in (found or {}).items():
            claim = self._claims[keys[template]]
            if claim.results is None and slot.devices:
                claim.results = [dra.AllocatedDevice.of(i, request) for request, of in slot.devices.items() for i in of]
                claim.node, claim.only_there, claim.pods[uid] = slot.node, True, None
                self._tell(keys[template], claim)
                taken.update(result.ident for result in claim.results if not result.admin_access)
        self._taken = taken
        return found is not None

    def waits_for_conditions(self, uid: str, node: str) -> bool:
        """Returns whether a pod has devices on a node that it is bound with only after some conditions hold."""
        results = {r.ident for key in self._of_pod.get(uid, {}).values() for r in self._claims[key].results or ()}
        return any(device.binding_conditions for device in self.on_node(node).devices if device.id in results)

    def fits(self, uid: str, need: PodNeed, node: str, short: Mapping[str, int]) -> bool:
        """Returns whether the pod's claims have devices of the node, or could. `short`: extended resources that devices of the node
        must serve, because no device plugin of it does."""
        return self._plan(uid, need, node, short) is not None

    def take(self, uid: str, need: PodNeed, node: str, short: Mapping[str, int]) -> None:
        """Gives a pod that is bound to a node the devices for its claims."""
        plan = self._plan(uid, need, node, short)
        for key, results in (plan or {}).items():
            claim = self._claims[key]
            if claim.results is None:
                claim.results, claim.node, self._taken = results, node, None
            claim.pods[uid] = None
            self._tell(key, claim)

    def _plan(
        self, uid: str, need: PodNeed, node: str, short: Mapping[str, int]
    ) -> dict[Key, list[dra.AllocatedDevice]] | None:
        if not need.device_claims and not short:
            return {}
        keys = self._claims_of(uid, need, short)
        if keys is None:
            return None
        plan: dict[Key, list[dra.AllocatedDevice]] = {}
        open_claims: list[Key] = []
        reached = {(d.driver, d.pool, d.name) for d in self.on_node(node).devices if not getattr(d, "elsewhere", False)}
        for key in keys:
            claim = self._claims[key]
            if claim.removed or len(claim.pods) >= MAX_CONSUMERS:
                return None
            if claim.results is None:
                open_claims.append(key)
            elif claim.reaches(node, reached):
                plan[key] = claim.results
            else:
                return None
        if not open_claims:
            return plan
        specs = [self._claims[key].spec for key in open_claims]
        classes = {ask.device_class_name for spec in specs for ask in _asks(spec)}
        found = self.on_node(node)
        reports = [report for name in sorted(classes) if (report := self._class(name)) is not None]
        results = allocate(NodeView(node, found, self._allocated.in_use(found.devices), reports), specs)
        return None if results is None else plan | dict(zip(open_claims, results, strict=True))

    def _class(self, name: str) -> DeviceClassReport | None:
        """Returns a class, a pin as its agent completes it."""
        pin = self._pins.get(name)
        if pin is None:
            return next((found for found in self._classes.reports() if found.name == name), None)
        report = self._completed.get(name)
        if report is None:
            try:
                spec = completed(pin, self._classes, self._slices)["spec"]
            except UnknownClass:
                return None
            expressions = [selector["cel"]["expression"] for selector in spec["selectors"]]
            report = self._completed[name] = DeviceClassReport(name=name, selectors=expressions)
        return report

    def _claims_of(self, uid: str, need: PodNeed, short: Mapping[str, int]) -> list[Key] | None:
        """Returns the claims of a pod, which are made of templates now; None if one cannot be."""
        made = self._of_pod.setdefault(uid, {})
        for entry in need.device_claims:
            if entry.name not in made:
                key = self._claim_for(uid, need.namespace, entry)
                if key is None:
                    return None
                made[entry.name] = key
        keys = [made[entry.name] for entry in need.device_claims]
        for resource, count in short.items():
            spec = _of_resource(self.backed(resource), count)
            key = Key(need.namespace, f"{uid}-{resource}")
            if key not in self._claims or self._claims[key].spec != spec:
                self._claims[key], self._taken = _Claim(spec, made=True), None
            made[resource] = key
            keys.append(key)
        return list(dict.fromkeys(keys)) if all(key in self._claims for key in keys) else None

    def _claim_for(self, uid: str, namespace: str, entry: DeviceClaimNeed) -> Key | None:
        if entry.claim:
            key = Key(namespace, entry.claim)
            return key if key in self._claims else None
        spec = self._templates.get(Key(namespace, entry.template))
        if spec is None:
            return None
        if any(ask.admin_access for ask in _asks(spec)) and namespace not in self._admin_namespaces:
            return None  # the API server refuses the claim
        if self._exceeds_quota(namespace, spec):
            return None
        key = Key(namespace, f"{uid}-{entry.name}")
        self._claims[key] = _Claim(spec, made=True)
        return key

    def _exceeds_quota(self, namespace: str, spec: ClaimSpec) -> bool:
        """Returns whether with one more claim a namespace would ask for more devices of a class than a quota allows."""
        asked = _counted(spec)
        limits = {name: self.quotas.limit(namespace, name) for name in asked}
        if all(limit is None for limit in limits.values()):
            return False
        total = Counter(asked)
        for key, claim in self._claims.items():
            if key.namespace == namespace:
                total.update(_counted(claim.spec))
        return any(limit is not None and total[name] > limit for name, limit in limits.items())

    def with_quotas(self, manifests: Sequence[Manifest]) -> tuple[list[Manifest], list[tuple[str, str] | None]]:
        """Does what agents do where quotas count devices by class. Returns the objects, and what to tell of each: a code and words."""
        found = with_quotas(manifests, self.quotas.of, lambda: self._slices)
        words = [found.notice(*key_of(manifest)) for manifest in found.manifests]
        return found.manifests, [(PINNED_BY_TEMPLATE, text) if text else None for text in words]

    def gone(self, uid: str) -> None:
        """Takes from a pod that has ended what it has. A claim that no pod has any more gives its devices back."""
        for key in self._of_pod.pop(uid, {}).values():
            claim = self._claims.get(key)
            if claim is None:
                continue
            claim.pods.pop(uid, None)
            if not claim.pods and not claim.fixed:
                claim.results, claim.node, claim.only_there, self._taken = None, "", False, None
            self._tell(key, claim)
            self._end_unused(key, claim)

    def forget_others(self, uids: Iterable[str]) -> None:
        """Takes what pods have that are not among these."""
        kept = set(uids)
        for uid in [uid for uid in self._of_pod if uid not in kept]:
            self.gone(uid)

    def _end_unused(self, key: Key, claim: _Claim) -> None:
        if (claim.made or claim.removed) and not claim.pods:
            del self._claims[key]
            self._taken = None
            self._allocated.drop(key)

    def _tell(self, key: Key, claim: _Claim) -> None:
        """Tells what a claim has, as its status does."""
        consumers = [dra.ClaimConsumer(resource="pods", uid=uid) for uid in claim.pods]
        allocation = dra.Allocation(devices=dra.AllocatedDevices(results=claim.results)) if claim.results else None
        status = dra.DeviceClaimStatus(allocation=allocation, reserved_for=consumers)
        metadata = dra.ClaimMetadata(name=key.name, annotations=claim.annotations)
        self._allocated.put(key, dra.DeviceClaim(metadata=metadata, status=status))

    def parts_of(self, uid: str, node: str) -> dict[str, dict[str, str]]:
        """Returns what a pod takes of devices, as its agent reports it."""
        if node not in self._nodes or not self._allocated.has_devices(uid):
            return {}
        return self._allocated.parts_of(uid, self.on_node(node).devices)

    # --- devices that fail

    def evictions(self, nodes: Mapping[str, str]) -> Iterator[Eviction]:
        """Yields the pods that must leave devices with taints. `nodes`: where each pod with claims runs."""
        for uid, keys in self._of_pod.items():
            node = nodes.get(uid, "")
            after = [
                seconds
                for key in keys.values()
                if node in self._nodes and key in self._claims
                for seconds in self._leaves_after(self._claims[key], node)
            ]
            if after:
                yield Eviction(uid, min(after))

    def vacating(self, claims: Mapping[str, str]) -> Iterator[str]:
        """Yields the pods that an agent ends, because the slots of their claims left devices that failed. `claims`: by pod."""
        left: dict[str, set[str]] = {}
        for pin in self._pins.values():
            for claim, devices in vacated_by(pin["metadata"].get("annotations")).items():
                left.setdefault(claim, set()).update(devices)
        for uid, keys in self._of_pod.items() if left else ():
            results = [r for key in keys.values() if key in self._claims for r in self._claims[key].results or ()]
            names = {result.ident for result in results}
            if not names.isdisjoint(left.get(claims.get(uid, ""), ())):
                yield uid

    def _leaves_after(self, claim: _Claim, node: str) -> Iterator[float]:
        devices = {(d.driver, d.pool, d.name): d for d in self.on_node(node).devices}
        for result in claim.results or ():
            device = devices.get((result.driver, result.pool, result.device))
            for taint in device.taints if device is not None else ():
                if taint.effect == "NoExecute":
                    seconds = _tolerated_for(taint, _tolerations(claim.spec, result.request))
                    if seconds is not None:
                        yield seconds


def _tolerated_for(taint: DeviceTaint, tolerations: Sequence[DeviceToleration]) -> float | None:
    """Returns for how long a pod stays on a device with this taint; None for ever."""
    found = [one.seconds for one in tolerations if tolerates(one, taint)]
    if None in found:
        return None
    return float(max(0, min(seconds for seconds in found if seconds is not None))) if found else 0.0


def _tolerations(spec: ClaimSpec, request: str) -> Sequence[DeviceToleration]:
    asks: dict[str, DeviceAsk] = {}
    for group in claim_needs("", spec).groups:
        for ask in group.devices:
            asks[f"{group.suffix}/{ask.name}"[1:] if ask.name else group.suffix[1:]] = ask
    found = asks.get(request)
    return found.tolerations if found is not None else ()


def _asks(spec: ClaimSpec) -> Iterator[Ask]:
    for request in spec.devices.requests or ():
        yield from request.first_available or (request.exactly or request,)


def _counted(spec: ClaimSpec) -> dict[str, int]:
    """Returns how many devices of each class quotas count for a claim: the most that it may have."""
    found: Counter[str] = Counter()
    for request in spec.devices.requests or ():
        most: dict[str, int] = {}
        for ask in request.first_available or (request.exactly or request,):
            count = MAX_DEVICES if ask.allocation_mode == "All" else 1 if ask.count is None else ask.count
            most[ask.device_class_name] = max(count, most.get(ask.device_class_name, 0))
        found.update(most)
    return found


def _of_resource(device_class: str, count: int) -> ClaimSpec:
    ask = Ask(device_class_name=device_class, count=count)
    return ClaimSpec(devices=ClaimDevices(requests=[Request(name="resource", exactly=ask)]))
