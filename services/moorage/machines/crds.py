"""The CustomResourceDefinitions of Machine and MachineNodePool: what a schema can say of the rules. The hook says the rest."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
GROUP = "imperator.tenzen-y.io"
#: Those of status, and the words of another controller, which may still be there.
_CONDITIONS_OF_NODES = ("Ready", "Maintenance", "NotReady", "Healthy", "Unhealthy")
_LABEL = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_TYPE = "^[a-z]([-a-z0-9]*[a-z0-9])?$"


def _field(description: str, **more: Any) -> Schema:
    return {"description": description, **more}


def _string(description: str, **more: Any) -> Schema:
    return _field(description, type="string", **more)


def _any(description: str) -> Schema:
    return _field(description, **{"x-kubernetes-preserve-unknown-fields": True})


def _quantity(description: str) -> Schema:
    return _field(description, **{"x-kubernetes-int-or-string": True})


def _object(description: str, properties: dict[str, Schema], *required: str, **more: Any) -> Schema:
    found = _field(description, type="object", properties=properties, **more)
    return {**found, "required": list(required)} if required else found


def _list(description: str, items: Schema, key: str = "", **more: Any) -> Schema:
    keys = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]} if key else {}
    return _field(description, type="array", items=items, **keys, **more)


def _integer(description: str, minimum: int) -> Schema:
    return _field(description, type="integer", format="int32", minimum=minimum)


_NAMED = _object("A machine type.", {"name": _string("Name of the machine type.", minLength=1)}, "name")
_POOL_ENTRY = _object(
    "A Node, and what it is for.",
    {
        "name": _string("Name of the Node.", minLength=1, maxLength=253),
        "mode": _string(
            "Whether slots are held there; in maintenance nothing new goes there, and unused slots move.",
            enum=["ready", "maintenance"],
        ),
        "taint": _field("Keep Pods that are no guests away.", type="boolean", default=False),
        "machineType": _list("The machine types whose slots may be there.", _NAMED, "name", minItems=1),
        "cluster": _string(
            "Cluster of the Node, PROVIDER/NAME, in a Machine of the mesh. Default: spec.cluster, or the only cluster that has such a Node."
        ),
    },
    "name",
    "mode",
    "machineType",
)
_GPU = _object(
    "The GPUs of one slot, and the label of the Nodes that have such.",
    {
        "type": _string("Extended resource, such as nvidia.com/gpu.", pattern="^[^/]+/[^/]+$"),
        # Another controller may have stored text.
        "num": _field(
            "How many of them.", **{"x-kubernetes-int-or-string": True, "minimum": 1, "pattern": "^[1-9][0-9]{0,8}$"}
        ),
        "family": _string("Value of the label gpu.family of the Nodes, in the domain of the resource.", maxLength=63),
        "product": _string("Value of the label gpu.product of the Nodes.", maxLength=63),
        "machine": _string("Value of the label gpu.machine of the Nodes.", maxLength=63),
    },
    "type",
    "num",
    **{
        "x-kubernetes-validations": [
            {
                "rule": "(has(self.family) ? 1 : 0) + (has(self.product) ? 1 : 0) + (has(self.machine) ? 1 : 0) == 1",
                "message": "exactly one of family, product and machine is needed",
            }
        ]
    },
)
_WINDOW = _object(
    "Slots that only guests get that name the window, between two times.",
    {
        "name": _string("Name of the window, which guests name with a label.", minLength=1),
        "slots": _integer("How many slots it has.", 1),
        "from": _string("When its guests are let in (RFC 3339).", format="date-time"),
        "until": _string("When they have ended (RFC 3339).", format="date-time"),
        "projects": _list("Projects whose applications may use it. Default: all of them.", _string("A project.")),
    },
    "name",
    "slots",
    "from",
    "until",
)
_SIZE = _object(
    "The size of one slot.",
    {
        "cpu": _quantity("CPU of one slot. A type that depends on another may leave it out."),
        "memory": _quantity("Memory of one slot. A type that depends on another may leave it out."),
        "gpu": _GPU,
        "hostLimit": _any("The part of a Node that one slot may have: 0.5, or 50%. Default: all of it."),
        "dependence": _object(
            "The type has no slots of its own but lives in those of another.",
            {
                "machineType": _string("The type in whose slots it lives.", minLength=1),
                "availableRatio": _any("The share of such a slot that one of it has, at most 1."),
            },
            "machineType",
            "availableRatio",
        ),
    },
)
_MACHINE_TYPE = _object(
    "A size of slots, and how many of them there are.",
    {
        "name": _string("Name of the machine type, a DNS label.", minLength=1, maxLength=50, pattern=_TYPE),
        "spec": _SIZE,
        "available": _integer(
            "How many slots there are. Only a type that depends on another may leave it out: as many as fit.", 0
        ),
        "offlineSlots": _integer("How many of them the cluster gives out alone; the mesh never promises these.", 0),
        "windows": _list("Times for which slots are kept.", _WINDOW, "name"),
    },
    "name",
    "spec",
)
_CONDITIONS = _list(
    "What is to be known of the object as a whole.",
    _object(
        "A condition.",
        {
            "type": _string("Ready, CapacityShort or NodesHealthy."),
            "status": _string("True, False or Unknown."),
            "reason": _string("Code of the reason."),
            "message": _string("The reason in words, with numbers."),
            "lastTransitionTime": _string("When the status changed last.", format="date-time"),
            "observedGeneration": _field(
                "Generation of the object that this is about.", type="integer", format="int64"
            ),
        },
        "type",
        "status",
    ),
    "type",
)
_USAGE = _object(
    "How many of its slots are in which state.",
    {
        "maximum": _integer("Slots that are wanted.", 0),
        "reserved": _integer("Slots that reservations hold.", 0),
        "used": _integer("Slots that guests have.", 0),
        "waiting": _integer("Guests that wait for one.", 0),
    },
)


def _definition(
    kind: str, plural: str, singular: str, description: str, spec: Schema, status: Schema, columns: list[Schema]
) -> Schema:
    schema = _object(
        description,
        {
            "apiVersion": _string("Version of the schema of the object."),
            "kind": _string("Kind of the object."),
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
        "spec",
    )
    version = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
    }
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": singular}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}", "labels": {"app.kubernetes.io/part-of": "moorage"}},
        "spec": {"group": GROUP, "scope": "Cluster", "names": names, "versions": [version]},
    }


def _column(name: str, path: str, kind: str = "string") -> Schema:
    return {"name": name, "type": kind, "jsonPath": path}


def definitions() -> list[Schema]:
    allow = _object(
        "Who may use the slots. Default: everyone.",
        {
            "projects": _list("Projects whose applications may.", _string("A project.")),
            "namespaces": _list("Namespaces whose Pods may.", _string("A namespace.", pattern=_LABEL)),
        },
    )
    machine = _object(
        "The Nodes, and the slots that are held there.",
        {
            "nodePool": _list("The Nodes on which slots are held.", _POOL_ENTRY, minItems=1, maxItems=5000),
            "machineTypes": _list("The sizes of slots.", _MACHINE_TYPE, "name", minItems=1, maxItems=500),
            "allow": allow,
            "cluster": _string("Cluster of the Nodes that name none, PROVIDER/NAME, in a Machine of the mesh."),
        },
        "nodePool",
        "machineTypes",
    )
    row = _object("The slots of a machine type.", {"name": _string("The machine type."), "usage": _USAGE}, "name")
    machine_status = _object(
        "What became of it.",
        {"conditions": _CONDITIONS, "availableMachines": _list("The slots of each machine type.", row, "name")},
    )
    pool = _object(
        "What its Machine says; edits are put back.",
        {
            "machineGroup": _string("Group of the Machine."),
            # Another controller needs it while it is there.
            "machineGroupName": _string("Another name of machineGroup."),
            "nodePool": _list("The Nodes of the Machine.", _POOL_ENTRY),
            "machineTypeStock": _list("The machine types of the Machine.", _NAMED, "name"),
        },
    )
    node = _object(
        "A Node.",
        {
            "name": _string("Name of the Node."),
            "condition": _string("Whether slots can be there.", enum=list(_CONDITIONS_OF_NODES)),
        },
        "name",
    )
    pool_status = _object(
        "The health of the Nodes.",
        {"conditions": _CONDITIONS, "nodePool": _list("The condition of each Node.", node, "name")},
    )
    ready = _column("Ready", '.status.conditions[?(@.type=="Ready")].status')
    age = _column("Age", ".metadata.creationTimestamp", "date")
    group = _column("Group", f".metadata.labels.{GROUP.replace('.', chr(92) + '.')}/machine-group")
    short = _column("Short", '.status.conditions[?(@.type=="CapacityShort")].status')
    return [
        _definition(
            "Machine",
            "machines",
            "machine",
            "Slots of named sizes that are held on chosen Nodes.",
            machine,
            machine_status,
            [group, ready, short, age],
        ),
        _definition(
            "MachineNodePool",
            "machinenodepools",
            "machinenodepool",
            "The Nodes of a Machine, with their health. It is made from the Machine.",
            pool,
            pool_status,
            [ready, age],
        ),
    ]
