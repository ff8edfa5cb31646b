"""Reports of the inside of a node: zones, providers and devices, each with what it can give."""

from __future__ import annotations

from .base import Value


class InventoryReport(Value, kw_only=True, frozen=True):
    """An amount of one class. `total` and `reserved` are quantities; `max_unit` 0 is no limit."""

    total: str = "0"
    reserved: str = "0"
    min_unit: int = 1
    max_unit: int = 0
    step_size: int = 1
    allocation_ratio: float = 1.0


class ZoneReserve(Value, kw_only=True, frozen=True):
    cpus: int | str = ""
    memory: str = ""


class ZoneReport(Value, kw_only=True, frozen=True):
    """A NUMA zone, or another part of a machine that its kubelet knows. The part is NODE/ID; of a number N it is NODE/numa-N.
    `cpus` is a list like `0-9,20-29`, or their number; it and `memory` are short for inventories, of which `reserved` is not
    for pods."""

    id: int | str = ""
    kind: str = "zone"
    parent: int | str = ""  # another zone; empty: the node
    inventories: dict[str, str | InventoryReport] = {}
    cpus: int | str = ""
    memory: str = ""
    reserved: ZoneReserve | None = None
    exclusive_free: int | None = None  # CPUs that a pod could have for itself now, where an agent tells
    distances: dict[str, int] = {}  # by the other zone's id
    roles: list[str] = []  # bound to it now
    traits: list[str] = []
    aggregates: list[str] = []


class RoleKind(Value, kw_only=True, frozen=True):
    """The resources that pods of a role get from a node agent. `exclusive`: the main container has its CPUs alone. `one_zone`: they come from
    one zone, or the pod is refused. `binds`: memory, too. `shares`: several of its pods may be bound to one zone, each of which takes
    `lock` of its lock."""

    exclusive: bool = False
    one_zone: bool = False
    binds: bool = False
    shares: bool = False
    lock: int = 0


#: A value whose type is not seen from it; one of the fields. Versions, quantities and bandwidths are not ordered as text is.
class Typed(Value, kw_only=True, frozen=True):
    version: str = ""
    quantity: str = ""
    bandwidth: str = ""
    string: str = ""


Scalar = bool | int | float | str | Typed
#: A list is an array of values.
PropertyValue = bool | int | float | str | Typed | tuple[Scalar, ...]


class ProviderReport(Value, kw_only=True, frozen=True):
    """A part with inventories of its own, for example a card or one of its functions. The part is NODE/ID."""

    id: str = ""
    kind: str = "provider"
    parent: int | str = ""  # a zone or another provider; empty: the node
    inventories: dict[str, str | InventoryReport] = {}
    traits: list[str] = []
    aggregates: list[str] = []
    properties: dict[str, PropertyValue] = {}
    healthy: bool = True


class DeviceTaint(Value, kw_only=True, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str = ""


class CapacityPolicy(Value, kw_only=True, frozen=True):
    """The amounts of a capacity that are given: the `default` if none is asked for, multiples of `step` from `minimum` to
    `maximum`, or one of `values`. Quantities; empty is no limit."""

    default: str = ""
    minimum: str = ""
    maximum: str = ""
    step: str = ""
    values: tuple[str, ...] = ()


class DeviceReport(Value, kw_only=True, frozen=True):
    """A device that a DRA driver or a node agent offers, or one without a driver: the part is NODE/ZONE/NAME. `kind`: if it is
    empty the driver. `properties`: those besides attributes and capacities. `quantity`: how many equal ones they are.
    `resource`: the extended resource or huge pages of the node that counts them; one is `unit` of it. `shared`: other nodes
    can use it, or the counters that it takes of, too. `elsewhere`: only other nodes can use it; it is told because it takes of
    counters that devices of this node take of. `divisible`: several pods may have it at once, each an amount of its
    capacity, according to `policies`. `consumes`: what it takes of sets of counters of its pool, by set and counter.
    `binding_conditions`: what must become true before a pod that has it is bound. `alike`: a number that devices of a
    cluster have in common which no selector tells apart; 0: that does not matter, or it has an identity of its own."""

    id: str = ""
    driver: str = ""
    pool: str = ""
    name: str = ""
    kind: str = ""
    vendor: str = ""
    properties: dict[str, PropertyValue] = {}
    healthy: bool = True
    zone: str = ""
    quantity: int = 1
    resource: str = ""
    unit: int = 1
    attributes: dict[str, PropertyValue] = {}
    capacity: dict[str, str] = {}
    taints: list[DeviceTaint] = []
    shared: bool = False
    elsewhere: bool = False
    divisible: bool = False
    policies: dict[str, CapacityPolicy] = {}
    consumes: dict[str, dict[str, str]] = {}
    binding_conditions: list[str] = []
    alike: int = 0


class CounterSetReport(Value, kw_only=True, frozen=True):
    """Counters that devices of a pool have in common, for example those of a card and of its slices."""

    driver: str = ""
    pool: str = ""
    name: str = ""
    counters: dict[str, str] = {}


class DeviceClassReport(Value, kw_only=True, frozen=True):
    """A DeviceClass of the cluster. `selectors` are CEL expressions, all of which select its devices; `extended_resource` is a
    resource by which containers may ask for them."""

    name: str = ""
    selectors: list[str] = []
    extended_resource: str = ""


class TopologyManager(Value, kw_only=True, frozen=True):
    """The alignment of a kubelet: `policy` none, best-effort, restricted or single-numa-node, for each container
    or for the whole pod (`scope`)."""

    policy: str = "none"
    scope: str = "container"
