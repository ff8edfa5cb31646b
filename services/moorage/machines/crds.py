"""The CustomResourceDefinitions of Machine and MachineNodePool: what a schema can say of the rules. The hook says the rest."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
GROUP = "imperator.tenzen-y.io"
#: Those of status, and the words of another controller, which may still be there.
_CONDITIONS_OF_NODES = ("Ready", "Maintenance", "NotReady", "Healthy", "Unhealthy")
_LABEL = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_TYPE = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
_ANY: Schema = {"x-kubernetes-preserve-unknown-fields": True}
_QUANTITY: Schema = {"x-kubernetes-int-or-string": True}


def _string(**more: Any) -> Schema:
    return {"type": "string", **more}


def _object(properties: dict[str, Schema], *required: str, **more: Any) -> Schema:
    found: Schema = {"type": "object", "properties": properties, **more}
    return {**found, "required": list(required)} if required else found


def _list(items: Schema, key: str = "", **more: Any) -> Schema:
    keys = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]} if key else {}
    return {"type": "array", "items": items, **keys, **more}


def _integer(minimum: int) -> Schema:
    return {"type": "integer", "format": "int32", "minimum": minimum}


_NAMED = _object({"name": _string(minLength=1)}, "name")
_POOL_ENTRY = _object(
    {
        "name": _string(minLength=1, maxLength=253),
        "mode": _string(enum=["ready", "maintenance"]),
        "taint": {"type": "boolean", "default": False},
        "machineType": _list(_NAMED, "name", minItems=1),
        "cluster": _string(),
    },
    "name",
    "mode",
    "machineType",
)
_GPU = _object(
    {
        "type": _string(pattern="^[^/]+/[^/]+$"),
        # Another controller may have stored text.
        "num": {"x-kubernetes-int-or-string": True, "minimum": 1, "pattern": "^[1-9][0-9]{0,8}$"},
        "family": _string(maxLength=63),
        "product": _string(maxLength=63),
        "machine": _string(maxLength=63),
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
    {
        "name": _string(minLength=1),
        "slots": _integer(1),
        "from": _string(format="date-time"),
        "until": _string(format="date-time"),
        "projects": _list(_string()),
    },
    "name",
    "slots",
    "from",
    "until",
)
_MACHINE_TYPE = _object(
    {
        "name": _string(minLength=1, maxLength=50, pattern=_TYPE),
        "spec": _object(
            {
                "cpu": _QUANTITY,
                "memory": _QUANTITY,
                "gpu": _GPU,
                "hostLimit": _ANY,
                "dependence": _object(
                    {"machineType": _string(minLength=1), "availableRatio": _ANY}, "machineType", "availableRatio"
                ),
            }
        ),
        "available": _integer(0),
        "offlineSlots": _integer(0),
        "windows": _list(_WINDOW, "name"),
    },
    "name",
    "spec",
)
_CONDITIONS = _list(
    _object(
        {
            "type": _string(),
            "status": _string(),
            "reason": _string(),
            "message": _string(),
            "lastTransitionTime": _string(format="date-time"),
            "observedGeneration": {"type": "integer", "format": "int64"},
        },
        "type",
        "status",
    ),
    "type",
)
_USAGE = _object({name: _integer(0) for name in ("maximum", "reserved", "used", "waiting")})


def _definition(kind: str, plural: str, singular: str, spec: Schema, status: Schema, columns: list[Schema]) -> Schema:
    schema = _object(
        {"apiVersion": _string(), "kind": _string(), "metadata": {"type": "object"}, "spec": spec, "status": status},
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
    allow = _object({"projects": _list(_string()), "namespaces": _list(_string(pattern=_LABEL))})
    machine = _object(
        {
            "nodePool": _list(_POOL_ENTRY, minItems=1, maxItems=5000),
            "machineTypes": _list(_MACHINE_TYPE, "name", minItems=1, maxItems=500),
            "allow": allow,
            "cluster": _string(),
        },
        "nodePool",
        "machineTypes",
    )
    machine_status = _object(
        {
            "conditions": _CONDITIONS,
            "availableMachines": _list(_object({"name": _string(), "usage": _USAGE}, "name"), "name"),
        }
    )
    pool = _object(
        {
            "machineGroup": _string(),
            "machineGroupName": _string(),  # another name of it, which another controller needs while it is there
            "nodePool": _list(_POOL_ENTRY),
            "machineTypeStock": _list(_NAMED, "name"),
        }
    )
    pool_status = _object(
        {
            "conditions": _CONDITIONS,
            "nodePool": _list(
                _object({"name": _string(), "condition": _string(enum=list(_CONDITIONS_OF_NODES))}, "name"),
                "name",
            ),
        }
    )
    ready = _column("Ready", '.status.conditions[?(@.type=="Ready")].status')
    age = _column("Age", ".metadata.creationTimestamp", "date")
    group = _column("Group", f".metadata.labels.{GROUP.replace('.', chr(92) + '.')}/machine-group")
    short = _column("Short", '.status.conditions[?(@.type=="CapacityShort")].status')
    return [
        _definition("Machine", "machines", "machine", machine, machine_status, [group, ready, short, age]),
        _definition("MachineNodePool", "machinenodepools", "machinenodepool", pool, pool_status, [ready, age]),
    ]
