"""Names of labels, taints and annotations of Machines and their guests."""

from __future__ import annotations

GROUP_VERSION = "imperator.tenzen-y.io/v1alpha1"
DOMAIN = "imperator.tenzen-y.io/"
#: Namespaces are enabled by a label of either domain.
NAMESPACE_LABELS = (DOMAIN + "inject-resource", "imperator.tenzen.io/inject-resource")
ENABLED = "enabled"

MACHINE_GROUP = DOMAIN + "machine-group"
MACHINE_TYPE = DOMAIN + "machine-type"
#: Another name of MACHINE_TYPE.
MACHINE = DOMAIN + "machine"
POD_ROLE = DOMAIN + "pod-role"
GUEST, RESERVATION = "guest", "reservation"
CONTAINER = DOMAIN + "injecting-container"
#: Another name of CONTAINER, on Pods.
CONTAINER_ALIAS = DOMAIN + "inject-resource"
WINDOW = DOMAIN + "window"
NODE_POOL = DOMAIN + "node-pool"
#: What NODE_POOL is called elsewhere; replaced on Nodes of pools.
NODE_POOL_ALIAS = DOMAIN + "nodePool"
#: The scheduling gate of guests and reservations.
SLOT_GATE = DOMAIN + "slot"

#: Of a guest: GROUP/TYPE. The injector writes it, and with it the Pod counts whatever becomes of its namespace.
SLOT_OF = "moorage.dev/slot"
#: Of a guest: when its gate was taken off, in milliseconds since the epoch.
GRANTED_AT = "moorage.dev/granted-at"
#: Of a guest whose slot the cluster gave out alone.
GIVEN_ALONE = "moorage.dev/given-alone"
#: Of a Machine: `mesh` where it was written for a document of the mesh.
ORIGIN, MESH = "moorage.dev/origin", "mesh"
#: Of a Node: what Machines put on it.
NODE_MARKS = "moorage.dev/machine-marks"
#: Of a StatefulSet: the slots of its type, and the guests that are to get them.
SLOTS = "moorage.dev/slots"
GRANTS = "moorage.dev/grants"

#: The controller that acts on Machines elsewhere, and what it leaves: StatefulSets and Services GROUP-TYPE in its namespace, and this
#: finalizer on pools.
OTHER_NAMESPACE, OTHER_CONTROLLER = "imperator-system", "imperator-controller"
OTHER_HOOKS = "imperator-mutating-webhook-configuration", "imperator-validating-webhook-configuration"
OTHER_FINALIZER = "imperator-machinenodepool-finalizer"
#: Names of machine types that would be keys of ours on Nodes and Pods.
RESERVED = frozenset(
    {
        "node-pool",
        "nodePool",
        "machine-group",
        "machine-type",
        "machine",
        "pod-role",
        "injecting-container",
        "inject-resource",
        "window",
        "slot",
    }
)
#: The longest name of a StatefulSet whose Pods can have the label of their revision.
MAX_OBJECT_NAME = 52


def object_name(group: str, machine_type: str) -> str:
    """Returns the name of the StatefulSet and the Service of a type."""
    return f"{machine_type}-{group}"


def pool_name(machine: str) -> str:
    return f"{machine}-node-pool"


def type_key(machine_type: str) -> str:
    """Returns the key of the label and the taint of a type's Nodes."""
    return DOMAIN + machine_type


def machine_key(group: str, machine_type: str) -> str:
    return f"{group}/{machine_type}"
