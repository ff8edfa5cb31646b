"""Works out what a pod with a role asks of the zones of its node: a zone that is open to the role, with its CPUs and memory."""

from __future__ import annotations

from collections.abc import Sequence

from moorage.model.part_names import HW_NUMA_ROOT
from moorage.model.part_requests import PartGroup
from moorage.podspec import ContainerResources, pod_requests
from moorage.qos.node_policy import RoleSpec
from moorage.qos.role_parts import ROLE_GROUP, ROLE_LOCK, known_role, lock_amount, role_trait


def role_group(role: str, namespace: str, main: str, containers: Sequence[ContainerResources]) -> PartGroup | None:
    """Returns the group of a pod with a role; None for one without. Nodes that do not know the role, or keep it for other
    namespaces, have no such zone. What roles of their own give, nodes decide alone."""
    if not role:
        return None
    found = known_role(role)
    return PartGroup(
        suffix=ROLE_GROUP,
        resources=_amounts(role, found, main, containers) if found is not None and found.binds else {},
        required=((HW_NUMA_ROOT,), (role_trait(role), role_trait(role, namespace))),
    )


def _amounts(name: str, role: RoleSpec, main: str, containers: Sequence[ContainerResources]) -> dict[str, int]:
    """Init containers and sidecars run on the CPUs of the main container."""
    total = pod_requests(containers)
    plain = [c for c in containers if not c.init]
    leader = next((c for c in plain if c.name == main), plain[0] if plain else None)
    cores = -(-leader.requests.get("cpu", 0) // 1000) if leader is not None and role.exclusive else 0
    amounts = {"cpu": cores * 1000, "memory": total.get("memory", 0), ROLE_LOCK: lock_amount(name, role)}
    return {resource: amount for resource, amount in amounts.items() if amount}
