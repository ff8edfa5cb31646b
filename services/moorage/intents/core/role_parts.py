"""Works out what a pod with a role asks of the zones of its node: a zone that is open to the role, with its CPUs and memory."""

from __future__ import annotations

from collections.abc import Sequence

from moorage.model.part_names import HW_NUMA_ROOT
from moorage.model.part_reports import RoleKind
from moorage.model.part_requests import PartGroup, Relation, RoleAsk, RoleZone
from moorage.podspec import ContainerResources, pod_requests
from moorage.qos.node_policy import ALIASES
from moorage.qos.role_locks import shares_with_itself
from moorage.qos.role_parts import ROLE_GROUP, group_of_resource, known_role, role_amounts, role_trait

from .part_groups import PartNeeds

#: Units of an extended resource that may come from different devices of a zone.
_MOST_DEVICES = 16
_PAGES = "hugepages-"


def with_role(
    parts: PartNeeds, role: str, namespace: str, main: str, containers: Sequence[ContainerResources]
) -> PartNeeds:
    """Returns what a pod asks of parts, with what its role asks, if it has one. Nodes that do not know the role, or keep it for other
    namespaces, have no such zone. How much they take of it is for their policies to say."""
    if not role:
        return parts
    ask = _ask(role, main, containers)
    found = known_role(role)
    kind = RoleKind()
    if found is not None:
        shares = shares_with_itself(role, found)
        kind = RoleKind(exclusive=found.exclusive, one_zone=found.binds, binds=found.binds, shares=shares)
    own = PartGroup(
        suffix=ROLE_GROUP,
        resources=role_amounts(ask, kind),
        required=((HW_NUMA_ROOT,), (role_trait(role), role_trait(role, namespace))),
        role=ask,
    )
    groups = [*parts.groups, own, *_resource_groups(containers)]
    given = [group.suffix for group in groups if group.devices or group.suffix.startswith(f"{ROLE_GROUP}/")]
    relations: list[Relation] = [RoleZone(groups=(ROLE_GROUP, *given))] if given else []
    return PartNeeds(groups, [*parts.relations, *relations])


def _ask(role: str, main: str, containers: Sequence[ContainerResources]) -> RoleAsk:
    """Init containers and sidecars run on the CPUs of the main container."""
    total = pod_requests(containers)
    plain = [c for c in containers if not c.init]
    leader = next((c for c in plain if c.name == main), plain[0] if plain else None)
    cores = -(-leader.requests.get("cpu", 0) // 1000) if leader is not None else 0
    memory = {name: n for name, n in total.items() if n and (name == "memory" or name.startswith(_PAGES))}
    return RoleAsk(name=ALIASES.get(role, role), cores=cores, memory=memory)


def _resource_groups(containers: Sequence[ContainerResources]) -> list[PartGroup]:
    """Returns a group for each extended resource: where plugins of the node's agent give it out, it is of the zone of the role."""
    found = []
    for name, amount in sorted(pod_requests(containers).items()):
        if "/" in name and amount:
            single = amount > _MOST_DEVICES
            resources, count = {name: amount if single else 1}, 1 if single else amount
            found.append(PartGroup(suffix=group_of_resource(name), resources=resources, count=count))
    return found
