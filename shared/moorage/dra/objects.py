"""The fields of ResourceSlices, ResourceClaims, DeviceClasses and DeviceTaintRules that are read. All others are skipped while
decoding."""

from __future__ import annotations

from typing import Any

import msgspec

from moorage.kube.objects import Object, ObjectMetadata
from moorage.podspec import SLOT_CLAIMS


class _Kube(msgspec.Struct, kw_only=True, rename="camel", frozen=True):
    pass


class Pool(_Kube, kw_only=True, frozen=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class SelectorRequirement(_Kube, kw_only=True, frozen=True):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class NodeTerm(_Kube, kw_only=True, frozen=True):
    match_expressions: list[SelectorRequirement] | None = None
    match_fields: list[SelectorRequirement] | None = None


class NodeSelector(_Kube, kw_only=True, frozen=True):
    node_selector_terms: list[NodeTerm] | None = None


class CounterSet(_Kube, kw_only=True, frozen=True):
    name: str = ""
    counters: dict[str, Any] | None = None


class CounterUse(_Kube, kw_only=True, frozen=True):
    counter_set: str = ""
    counters: dict[str, Any] | None = None


class DeviceBody(_Kube, kw_only=True, frozen=True):
    attributes: dict[str, Any] | None = None
    capacity: dict[str, Any] | None = None
    taints: list[dict[str, Any]] | None = None
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    consumes_counters: list[CounterUse] | None = None
    allow_multiple_allocations: bool | None = None
    binding_conditions: list[str] | None = None


class Device(DeviceBody, kw_only=True, frozen=True):
    """A device of a ResourceSlice. In v1beta1 all but the name is in `basic`."""

    name: str = ""
    basic: DeviceBody | None = None

    @property
    def body(self) -> DeviceBody:
        return self if self.basic is None else self.basic


class SliceSpec(_Kube, kw_only=True, frozen=True):
    driver: str = ""
    pool: Pool = Pool()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: list[Device] | None = None
    shared_counters: list[CounterSet] | None = None


class Slice(Object, kw_only=True):
    """`resource.k8s.io` ResourceSlice, v1 or v1beta1."""

    spec: SliceSpec = SliceSpec()


class CelSelector(_Kube, kw_only=True, frozen=True):
    expression: str = ""


class DeviceSelector(_Kube, kw_only=True, frozen=True):
    cel: CelSelector | None = None


class DeviceClassSpec(_Kube, kw_only=True, frozen=True):
    selectors: list[DeviceSelector] | None = None
    config: list[Any] | None = None
    extended_resource_name: str | None = None


class DeviceClass(Object, kw_only=True):
    """`resource.k8s.io` DeviceClass."""

    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceTaintSelector(_Kube, kw_only=True, frozen=True):
    """Selects the devices that a DeviceTaintRule taints. Fields without a value select all."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(_Kube, kw_only=True, frozen=True):
    device_selector: DeviceTaintSelector | None = None
    taint: dict[str, Any] | None = None


class DeviceTaintRule(Object, kw_only=True):
    """`resource.k8s.io` DeviceTaintRule."""

    spec: DeviceTaintRuleSpec = DeviceTaintRuleSpec()


class AllocatedDevice(_Kube, kw_only=True, frozen=True):
    driver: str = ""
    pool: str = ""
    device: str = ""
    request: str = ""
    admin_access: bool | None = None
    consumed_capacity: dict[str, str | int | float] | None = None

    @classmethod
    def of(cls, ident: str, request: str) -> AllocatedDevice:
        driver, _, rest = ident.partition("/")
        pool, _, name = rest.rpartition("/")
        return cls(driver=driver, pool=pool, device=name, request=request)

    @property
    def ident(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


class AllocatedDevices(_Kube, kw_only=True, frozen=True):
    results: list[AllocatedDevice] | None = None


class Allocation(_Kube, kw_only=True, frozen=True):
    devices: AllocatedDevices | None = None
    node_selector: NodeSelector | None = None

    @property
    def node(self) -> str:
        """Returns the only node where pods can have the devices; "" if there may be several."""
        terms = (self.node_selector.node_selector_terms or ()) if self.node_selector is not None else ()
        names = [r.values or () for term in terms for r in term.match_fields or () if r.key == "metadata.name"]
        return names[0][0] if len(terms) == len(names) == 1 and len(names[0]) == 1 else ""


class ClaimConsumer(_Kube, kw_only=True, frozen=True):
    resource: str = ""
    uid: str = ""


class DeviceClaimStatus(_Kube, kw_only=True, frozen=True):
    allocation: Allocation | None = None
    reserved_for: list[ClaimConsumer] | None = None


class Owner(_Kube, kw_only=True, frozen=True):
    kind: str = ""
    uid: str = ""


class ClaimMetadata(ObjectMetadata, kw_only=True):
    owner_references: list[Owner] | None = None


class DeviceClaim(Object, kw_only=True):
    """`resource.k8s.io` ResourceClaim, v1 or v1beta1."""

    metadata: ClaimMetadata
    status: DeviceClaimStatus | None = None

    @property
    def results(self) -> list[AllocatedDevice]:
        allocation = self.status.allocation if self.status is not None else None
        return (allocation.devices.results or []) if allocation is not None and allocation.devices is not None else []

    @property
    def devices(self) -> frozenset[str]:
        """Returns the ids of the devices that it takes: with admin access a device is seen, not taken."""
        return frozenset(result.ident for result in self.results if not result.admin_access)

    @property
    def pods(self) -> tuple[str, ...]:
        """Returns the uids of the pods that have the devices, or of the one for which they are allocated."""
        consumers = (self.status.reserved_for or []) if self.status is not None else []
        if not consumers and self.results:
            return tuple(dict.fromkeys(o.uid for o in self.metadata.owner_references or () if o.kind == "Pod"))
        return tuple(dict.fromkeys(consumer.uid for consumer in consumers if consumer.resource == "pods"))

    @property
    def slot_claims(self) -> tuple[str, ...]:
        """Returns the claims of the mesh whose slots have the devices, of a claim that pods name."""
        return tuple(filter(None, (self.metadata.annotations or {}).get(SLOT_CLAIMS, "").split(",")))

    @property
    def node(self) -> str:
        """Returns the only node where the allocated devices are; "" if there may be several."""
        allocation = self.status.allocation if self.status is not None else None
        return allocation.node if allocation is not None else ""


class QuotaSpec(_Kube, kw_only=True, frozen=True):
    hard: dict[str, Any] | None = None


class ResourceQuota(Object, kw_only=True):
    spec: QuotaSpec = QuotaSpec()


resource_quota = msgspec.json.Decoder(ResourceQuota).decode
slice_ = msgspec.json.Decoder(Slice).decode
device_claim = msgspec.json.Decoder(DeviceClaim).decode
device_class = msgspec.json.Decoder(DeviceClass).decode
device_taint_rule = msgspec.json.Decoder(DeviceTaintRule).decode
