"""Works out what a pod asks of the parts of its node: the groups of its consumers, and the relations between these."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from moorage.model.documents import Need, Topology
from moorage.model.part_names import is_part_class
from moorage.model.part_requests import (
    NAMELESS,
    Isolated,
    OneZone,
    PartGroup,
    PodContainer,
    Relation,
    RootConditions,
    SameSubtree,
)
from moorage.podspec import ContainerResources, is_guaranteed, pod_requests
from moorage.podspec.needs import asks_class, is_mandatory, need_amounts

from .consumer_matching import SourcedConsumer
from .device_needs import device_needs, devices_in_groups
from .part_conditions import Conditions, aggregates, traits

#: Resources that a kubelet aligns only for pods of the QoS class Guaranteed.
_ALIGNED_IF_GUARANTEED = ("cpu", "memory", "ephemeral-storage")


class PartNeeds(NamedTuple):
    groups: list[PartGroup]
    relations: list[Relation]


def part_needs(
    consumers: Sequence[SourcedConsumer],
    containers: Sequence[ContainerResources],
    of_classes: Mapping[str, int] | None = None,
) -> PartNeeds:
    """`of_classes`: what the manifest requests of resource classes, in thousandths of devices."""
    topologies = [s.consumer.topology for s in consumers if s.consumer.topology is not None]
    needs = [(s.consumer.container, need) for s in consumers for need in s.consumer.needs]
    devices = device_needs([need for _, need in needs], of_classes or {}, topologies, containers)
    suffixes = {need.group for _, need in needs if _asks_parts(need)}
    for topology in topologies:
        suffixes.update(topology.groups)
    if not suffixes and not topologies and not devices.groups:
        return PartNeeds([], [])
    mandatory = [(container, need) for container, need in needs if is_mandatory(need)]
    groups: list[PartGroup] = []
    for suffix in sorted(suffixes):
        amounts = _amounts([(c, n) for c, n in mandatory if _asks_parts(n) and n.group == suffix], containers)
        is_optional = not amounts and any(_asks_parts(need) and need.group == suffix for _, need in needs)
        groups.append(_group(suffix, amounts, topologies, is_optional=is_optional))
    relations = _relations(topologies, [group.suffix for group in groups if group.suffix != NAMELESS])
    in_groups = devices_in_groups([need for _, need in needs])
    related = [_with_devices(relation, in_groups, suffixes) for relation in relations]
    return PartNeeds(groups + devices.groups, list(dict.fromkeys(related + devices.relations)))


def _with_devices(relation: Relation, in_groups: Mapping[str, Sequence[str]], suffixes: Collection[str]) -> Relation:
    """Returns the relation with the needs for devices that belong to its groups."""
    if not isinstance(relation, SameSubtree):
        return relation

    def named(groups: Iterable[str]) -> tuple[str, ...]:
        found: list[str] = []
        for suffix in groups:
            found += [suffix] if suffix in suffixes else []
            found += in_groups.get(suffix, ())
        return tuple(dict.fromkeys(found))

    return SameSubtree(groups=named(relation.groups), apart=named(relation.apart))


def _asks_parts(need: Need) -> bool:
    if asks_class(need):
        return False
    return bool(need.group) or is_part_class(need.resource)


def _amounts(needs: Iterable[tuple[str, Need]], containers: Iterable[ContainerResources]) -> dict[str, int]:
    """Adds up the needs of one group. What containers request of it counts as for the whole pod: init containers run one
    after the other. What only parts have, the pod holds as long as it lives."""
    of_container: dict[str, dict[str, int]] = {}
    total: dict[str, int] = {}
    for container, need in needs:
        amounts = total if is_part_class(need.resource) else of_container.setdefault(container, {})
        amounts[need.resource] = amounts.get(need.resource, 0) + need_amounts(need).requests
    asking = [c._replace(requests=of_container.get(c.name, {}), limits={}) for c in containers]
    return dict(sorted((pod_requests(asking) | total).items()))


def _group(
    suffix: str, resources: Mapping[str, int], topologies: Sequence[Topology], *, is_optional: bool
) -> PartGroup:
    of_traits, of_aggregates, in_tree = Conditions(), Conditions(), ""
    for topology in topologies:
        conditions = topology.groups.get(suffix)
        if conditions is not None:
            of_traits = of_traits.plus(traits(conditions.required))
            of_aggregates = of_aggregates.plus(aggregates(conditions.member_of))
            in_tree = in_tree or conditions.in_tree
    return PartGroup(
        suffix=suffix,
        resources=dict(resources),
        required=of_traits.required,
        forbidden=of_traits.forbidden,
        member_of=of_aggregates.required,
        not_member_of=of_aggregates.forbidden,
        in_tree=in_tree,
        optional=is_optional,
    )


def _relations(topologies: Sequence[Topology], suffixes: Sequence[str]) -> list[Relation]:
    found: list[Relation] = []
    isolated: set[str] = set()
    of_traits, of_aggregates = Conditions(), Conditions()
    zones: set[str] = set()
    for topology in topologies:
        for entry in topology.same_subtree:
            together = tuple(sorted({suffix for suffix in entry if not suffix.startswith("!")}))
            apart = tuple(sorted({suffix[1:] for suffix in entry if suffix.startswith("!")}))
            found.append(SameSubtree(groups=together, apart=apart))
        isolated |= set(suffixes if topology.group_policy == "isolate" else topology.isolate)
        of_traits = of_traits.plus(traits(topology.root_required))
        of_aggregates = of_aggregates.plus(aggregates(topology.root_member_of))
        zones.add(topology.zone)
    if isolated:
        found.append(Isolated(groups=tuple(sorted(isolated))))
    if zones - {""}:
        found.append(OneZone(required="required" in zones))
    if any((*of_traits, *of_aggregates)):
        found.append(
            RootConditions(
                required=of_traits.required,
                forbidden=of_traits.forbidden,
                member_of=of_aggregates.required,
                not_member_of=of_aggregates.forbidden,
            )
        )
    return list(dict.fromkeys(found))


def part_amounts(need: Need) -> dict[str, int]:
    """Returns what an optional need adds to its group."""
    return {need.resource: need_amounts(need).requests} if _asks_parts(need) else {}


class Alignment(NamedTuple):
    """The requests by which a kubelet aligns containers or pods with zones; empty for pods that it never aligns."""

    containers: list[PodContainer]
    guaranteed: bool


def alignment(containers: Sequence[ContainerResources]) -> Alignment:
    guaranteed = all(map(is_guaranteed, containers))
    if not guaranteed and all(r in _ALIGNED_IF_GUARANTEED for c in containers for r, n in c.requests.items() if n):
        return Alignment([], False)
    return Alignment(
        [
            PodContainer(
                name=c.name, init=c.init, sidecar=c.sidecar, requests={r: n for r, n in c.requests.items() if n}
            )
            for c in containers
        ],
        guaranteed,
    )
