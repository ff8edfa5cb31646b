"""Reads Machines, their node pools, slots and guests as the gateway lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .exit_codes import MISSING, Failure
from .output import Row

POOL_SUFFIX = "-node-pool"


def machine_usage(machine: Mapping[str, Any]) -> str:
    """Formats used and wanted slots of each type of a Machine: `large 1/4, small 0/8 (2 wait)`."""
    found = []
    for kind in machine["status"].get("availableMachines", ()):
        usage = kind["usage"]
        waiting = usage.get("waiting", 0)
        text = f"{kind['name']} {usage.get('used', 0)}/{usage.get('maximum', 0)}"
        found.append(f"{text} ({waiting} wait)" if waiting else text)
    return ", ".join(found)


def conditions(row: Row) -> Sequence[Row]:
    found: Sequence[Row] = row["status"].get("conditions", ())
    return found


def is_ready(row: Row) -> str:
    return next((c["status"] for c in conditions(row) if c["type"] == "Ready"), "")


def node_conditions(row: Row) -> str:
    return ",".join(f"{n['name']}={n.get('condition') or '?'}" for n in row["status"].get("nodePool", ()))


def pool_of(machine: Row) -> Row:
    """Returns the MachineNodePool of a Machine."""
    meta, status = machine["metadata"], machine["status"]
    return {
        "metadata": {"name": meta["name"] + POOL_SUFFIX, "labels": meta.get("labels", {})},
        "spec": {
            "machineGroup": next(iter(meta.get("labels", {}).values()), ""),
            "nodePool": machine["spec"].get("nodePool", []),
            "machineTypeStock": [{"name": kind["name"]} for kind in machine["spec"].get("machineTypes", ())],
        },
        "status": {
            "conditions": [c for c in conditions(machine) if c["type"] != "CapacityShort"],
            "nodePool": status.get("nodePool", []),
        },
    }


def machine_of_pool(name: str) -> str:
    """Returns the name of the Machine that has a pool of this name."""
    if not name.endswith(POOL_SUFFIX):
        raise Failure(
            f"machinenodepool {name!r} does not exist; the pool of a Machine is named MACHINE{POOL_SUFFIX}", MISSING
        )
    return name.removesuffix(POOL_SUFFIX)


def slots_named(name: str) -> tuple[dict[str, str], Callable[[Row], bool]]:
    """Returns the query and the test for slots by GROUP/TYPE[/PROVIDER/CLUSTER[/NODE]]."""
    group, machine_type, provider, cluster, node = [*name.split("/", 4), "", "", "", ""][:5]
    query = {"machine": f"{group}/{machine_type}"}
    if cluster:
        query["cluster"] = f"{provider}/{cluster}"
    return query, lambda row: not node or row.get("node") == node


def guests_named(name: str) -> tuple[dict[str, str], Callable[[Row], bool]]:
    """Returns the query and the test for guests by [[PROVIDER/CLUSTER/]NAMESPACE/]NAME."""
    return {}, lambda row: f"/{row['cluster']}/{row['namespace']}/{row['name']}".endswith(f"/{name}")
