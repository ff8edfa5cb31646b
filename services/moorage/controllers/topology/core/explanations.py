"""Explains why the parts of nodes do not serve a shape: per group how many parts have the class, the traits and the amount, and
which relation excludes the rest, with the nearest miss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from moorage.fit import Unassigned, assign
from moorage.fit.cluster_fit import compute_fit, rows_of_clusters
from moorage.fit.inner_rows import nodes_by_layout, tree_node
from moorage.fit.static_inside import StaticInside
from moorage.model.part_names import HW_NUMA_ROOT, is_class
from moorage.model.part_requests import AttributeRelation, RoleZone
from moorage.parsing import format_amount, readable_amount
from moorage.parts import Group, pod_request
from moorage.parts.pod_request import ZONE
from moorage.parts.properties import meets
from moorage.parts.role_request import CORES_GROUP, cores_alone, role_group, with_cores_of_zones, with_role_of
from moorage.qos.role_locks import LOCK_TOTAL, ROLE_LOCK, fits_beside
from moorage.qos.role_parts import ROLE_GROUP, known_trait
from moorage.sdk import EXCLUSIVE, Fleet, Isolated, Mask, OneZone, Reason, RootConditions, SameSubtree, Shape

from .daemon_sets import SAMPLES, lacking_nodes

#: Clusters of which the pods that they hold are counted.
_COUNTED = 8
#: Clusters that are tested for what excludes them.
_TESTED = 64
#: Parts that are looked at for what they take of others.
_LOOKED_AT = 256
_Rows = NDArray[np.int64]
#: Not among what zones give.
_NEVER_OF_ZONES = ("pods",)


class _Nearest(NamedTuple):
    """The part that comes nearest to amounts, and the class that it lacks most."""

    part: str
    resource: str
    needed: int
    free: int


class PartExplanations:
    """The reasons for one shape, about clusters that have room for it but not inside their nodes."""

    def __init__(self, fleet: Fleet, app: str, shape: Shape, clusters: Mask) -> None:
        self._fleet, self._app, self._left = fleet, app, clusters.copy()
        self._sample: Mask = np.zeros(fleet.size, np.bool_)
        parts = fleet.parts
        rows = np.flatnonzero(parts.node[: parts.n] >= 0).astype(np.int64)
        rows = rows[parts.healthy[rows]]
        self._cluster = fleet.cluster[parts.node[rows]]
        keep = clusters[self._cluster]
        self._rows, self._cluster = rows[keep], self._cluster[keep]
        self._shape = self._as_asked(shape)
        self._free_of: dict[str, _Rows] = {}

    def reasons(self) -> list[tuple[Reason, Mask]]:
        """Returns each reason with its clusters. A cluster is counted for the first thing that fails there."""
        found: list[tuple[Reason, Mask]] = [*self._of_trees()]
        for suffix, group in pod_request(self._shape).groups.items():
            if not group.devices:  # the controller of resource classes explains these
                found += self._of_group(suffix, group)
        if self._left.any():
            found += self._of_relations()
        return found

    def _of_trees(self) -> Iterator[tuple[Reason, Mask]]:
        """Yields where the node is not whose tree a group names. What is said of other clusters is about that node alone."""
        named = {
            tree_node(group.in_tree): group for group in self._shape.groups if group.in_tree and not group.optional
        }
        if not named:
            return
        there = np.zeros(self._fleet.size, np.bool_)
        nodes: list[int] = []
        for cid in np.flatnonzero(self._left).tolist():
            rows = [self._fleet.row_of(cid, node) for node in named]
            if len(rows) == 1 and rows[0] is not None:
                nodes.append(rows[0])
                there[cid] = True
        clusters: Mask = self._left & ~there
        self._left &= there
        if clusters.any():
            group = next(iter(named.values()))
            trees = " and ".join(sorted(named))
            message = f"no node is {trees}, in whose tree inTree wants parts of {self._shape.object}"
            yield self._reason("PartMissing", clusters, message, group=group.suffix), clusters
        keep = np.isin(self._fleet.parts.node[self._rows], nodes)
        self._rows, self._cluster = self._rows[keep], self._cluster[keep]

    def _as_asked(self, shape: Shape) -> Shape:
        """Returns the shape with what its role, or CPUs of its own, take of zones on the first of these nodes that tells that."""
        own, cores = role_group(shape), cores_alone(shape)
        if self._fleet.layout is None or (own is None and not cores):
            return shape
        numbers = np.unique(self._fleet.layout[self._fleet.parts.node[self._rows]])
        for layout in (self._fleet.parts.layouts.found[number] for number in numbers.tolist()):
            static = StaticInside.of(layout)
            if own is not None and own.role is not None and own.role.name in layout.inside.roles:
                return with_role_of(shape, layout.inside.roles, static.zone_classes, static.largest)
            if cores and static.gives_exclusive:
                return with_cores_of_zones(shape, cores, static.largest.get(EXCLUSIVE, 0))
        return shape

    # -- groups ----------------------------------------------------------------------------------------------------------

    def _of_group(self, suffix: str, group: Group) -> Iterator[tuple[Reason, Mask]]:
        if suffix == ROLE_GROUP:
            yield from self._of_role(group)
        shape, name = self._shape, f"group {suffix}" if suffix else "what is asked without a group"
        for resources in [group.resources] if suffix else [{c: n} for c, n in group.resources.items()]:
            classes = ", ".join(resources)
            of_class = f"parts with {classes}" if classes else "parts"
            node = self._nodes_offering(group, resources)
            having = np.ones(len(self._rows), np.bool_)
            for resource in resources:
                having &= self._free(resource) > -1
            clusters = self._without(having, node)
            if clusters.any():
                message = f"no node has {of_class}, which {name} of {shape.object} needs"
                yield self._reason("PartMissing", clusters, message, group=suffix, need=classes), clusters
            meeting = having & self._meets(group, spread=not suffix)
            clusters = self._without(meeting, node)
            if clusters.any():
                count = int(np.count_nonzero(having & clusters[self._cluster]))
                message = f"of {count} {of_class}, none meets the conditions of {name} of {shape.object}"
                message += f": {_conditions(group)}"
                yield self._reason("PartMissing", clusters, message, group=suffix, need=classes), clusters
            enough = meeting.copy()
            for resource, amount in resources.items():
                enough &= self._free(resource) >= amount
            yield from self._short(meeting, enough, node, resources, suffix, name)

    def _of_role(self, group: Group) -> Iterator[tuple[Reason, Mask]]:
        """Yields where nodes do not know the role of a pod, or keep it for other namespaces; then where all its zones are held by
        pods of roles that do not share them."""
        nowhere = np.zeros(self._fleet.size, np.bool_)
        *others, role = group.required
        known = frozenset(map(known_trait, role))
        named = min(known, key=len)  # without a namespace
        knowing = self._fleet.parts.traits.where(
            ("role", named), lambda names: any(name == named or name.startswith(f"{named}_IN_") for name in names)
        )[self._fleet.parts.trait_set[self._rows]]
        clusters = self._without(knowing, nowhere)
        if clusters.any():
            message = f"no node knows the role of {self._shape.object}"
            yield self._reason("RoleUnknown", clusters, message, group=ROLE_GROUP), clusters
        allowed = self._meets(Group(required=(*others, known)), spread=False)
        clusters = self._without(allowed, nowhere)
        if clusters.any():
            message = f"nodes keep the role of {self._shape.object} for other namespaces"
            yield self._reason("RoleForbidden", clusters, message, group=ROLE_GROUP), clusters
        is_open = self._meets(group, spread=False)
        if lock := group.resources.get(ROLE_LOCK):
            is_open &= fits_beside(np.maximum(LOCK_TOTAL - self._free(ROLE_LOCK), 0), lock)
        clusters = self._without(is_open, nowhere)
        if clusters.any():
            count = int(np.count_nonzero(allowed & clusters[self._cluster]))
            message = f"{count} zones are held by pods of roles that do not share them with {self._shape.object}"
            yield self._reason("ZoneShort", clusters, message, group=ROLE_GROUP), clusters

    def _nodes_offering(self, group: Group, resources: Mapping[str, int]) -> Mask:
        """Returns the clusters with a node that may meet the group itself: with Kubernetes resources that its parts do not
        offer. How much it has is not for this controller to say."""
        fleet = self._fleet
        clusters = np.zeros(fleet.size, np.bool_)
        if group.required or group.member_of or group.properties or not resources or any(map(is_class, resources)):
            return clusters
        usable = fleet.usable[: fleet.n]
        if fleet.layout is not None:
            classes = [{entry.resource for entry in layout.entries} for layout in fleet.parts.layouts.found]
            offers = np.array([classes_of.isdisjoint(resources) for classes_of in classes], np.bool_)
            usable = usable & offers[fleet.layout[: fleet.n]]
        clusters[fleet.cluster[: fleet.n][usable]] = True
        return clusters

    def _free(self, resource: str) -> _Rows:
        """Returns what is free of a class, by part; -1: it does not have the class."""
        found = self._free_of.get(resource)
        if found is None:
            place = np.full(self._fleet.parts.n, -1, np.int64)
            entries = self._fleet.parts.classes.get(resource)
            if entries is not None:
                at = np.flatnonzero(entries.row[: entries.n] >= 0)
                free = entries.capacity[at] - entries.used[at] - entries.claimed[at]
                place[entries.row[at]] = np.maximum(free, 0)
            found = self._free_of[resource] = place[self._rows]
        return found

    def _meets(self, group: Group, *, spread: bool) -> Mask:
        parts = self._fleet.parts
        required = () if spread else group.required
        traits = parts.traits.where(
            ("traits", required, group.forbidden),
            lambda names: all(any_of & names for any_of in required) and not group.forbidden & names,
        )
        aggregates = parts.aggregates.where(
            ("aggregates", group.member_of, group.not_member_of),
            lambda names: all(any_of & names for any_of in group.member_of) and not group.not_member_of & names,
        )
        met: Mask = traits[parts.trait_set[self._rows]] & aggregates[parts.aggregate_set[self._rows]]
        if group.properties:
            selected = parts.properties.where(group.properties, lambda found: meets(found, group.properties))
            met &= selected[parts.property_set[self._rows]]
        return met

    def _short(
        self, meeting: Mask, enough: Mask, node: Mask, resources: Mapping[str, int], suffix: str, name: str
    ) -> Iterator[tuple[Reason, Mask]]:
        clusters = self._without(enough, node)
        if not clusters.any():
            return
        among = meeting & clusters[self._cluster]
        nearest = self._nearest(among, resources)
        if nearest is None:
            return
        text = f"of {int(np.count_nonzero(among))} parts that could be {name} of {self._shape.object}, none has "
        text += " and ".join(f"{readable_amount(c, n)} {c}" for c, n in resources.items()) + " free"
        code = "ZoneShort" if suffix == ROLE_GROUP or suffix.startswith(CORES_GROUP) else "PartShort"
        yield self._numbers(code, clusters, text, nearest, group=suffix), clusters

    def _without(self, serving: Mask, node: Mask) -> Mask:
        """Returns the clusters that are left and have no such part or node, and counts them as explained."""
        there = node.copy()
        there[self._cluster[serving]] = True
        clusters: Mask = self._left & ~there
        self._left &= there
        return clusters

    def _nearest(self, among: Mask, resources: Mapping[str, int]) -> _Nearest | None:
        """Returns the part of which the smallest share of an amount is the largest."""
        at = np.flatnonzero(among)
        wanted = {name: amount for name, amount in resources.items() if amount > 0}
        if not len(at) or not wanted:
            return None
        shares = np.array([np.maximum(self._free(name)[at], 0) / amount for name, amount in wanted.items()])
        best = int(np.argmax(shares.min(axis=0)))
        name, amount = list(wanted.items())[int(np.argmin(shares[:, best]))]
        row = int(self._rows[at[best]])
        cluster = self._fleet.names[int(self._cluster[at[best]])]
        return _Nearest(f"{cluster} {self._fleet.part_id(row)}", name, amount, max(0, int(self._free(name)[at[best]])))

    # -- relations -------------------------------------------------------------------------------------------------------

    def _of_relations(self) -> Iterator[tuple[Reason, Mask]]:
        """Explains clusters that have a part for each group by itself. Of many, some are tested; what holds for all of these is
        said of all."""
        shape = self._shape
        self._sample[np.flatnonzero(self._left)[:: -(-np.count_nonzero(self._left) // _TESTED)]] = True
        if shape.count > 1 or shape.per_node:
            yield from self._too_many()
        for name, what, relaxed in self._relaxations():
            if not self._left.any():
                return
            clusters = self._fitting(relaxed)
            if not clusters.any():
                continue
            self._left &= ~clusters
            if name == "zone":
                yield from self._zone_short(clusters, what)
            else:
                message = f"parts serve each group of {shape.object}, but none do so with {what}"
                message += self._without_relation(relaxed, clusters, name)
                yield self._reason("RelationFails", clusters, message, relation=name), clusters
        if self._left.any() and len(shape.groups) == 1 and not shape.relations:
            suffix = shape.groups[0].suffix
            what = f"group {suffix}" if suffix else "what is asked without a group"
            yield self._sources_short(what, suffix), self._left
        elif self._left.any():
            message = f"parts serve each group of {shape.object} by itself, but no node has parts for all of them"
            yield self._reason("RelationFails", self._left, message), self._left

    def _without_relation(self, relaxed: Shape, clusters: Mask, name: str) -> str:
        """Returns the parts that a pod would have on a node of these clusters without a relation, and what they have of an attribute
        that it is about."""
        fleet, one = self._fleet, msgspec.structs.replace(relaxed, count=1)
        relation = next((r for r in self._shape.relations if _described(r)[0] == name), None)
        for cid in np.flatnonzero(clusters)[:_COUNTED].tolist():
            found = assign(fleet, fleet.rows_of(cid), [one])
            if isinstance(found, Unassigned) or not found.slots[0]:
                continue
            slot = found.slots[0][0]
            parts = list(slot.parts)
            if isinstance(relation, AttributeRelation):
                needs = relation.groups
                parts = [g.part for g in slot.devices if g.need in needs or g.need.rpartition("/")[0] in needs]
                values = {part: self._attribute(cid, slot.node, part, relation.attribute) for part in parts}
                return f"; nearest is {fleet.names[cid]} {slot.node}: " + ", ".join(
                    f"{p} ({values[p]})" for p in values
                )
            if parts:
                return f"; nearest is {fleet.names[cid]} {slot.node}: {', '.join(parts)}"
        return ""

    def _attribute(self, cid: int, node: str, part: str, name: str) -> str:
        fleet = self._fleet
        row = fleet.row_of(cid, node)
        if row is None:
            return "unknown"
        _, layout = fleet.inside(row)
        at = layout.at.get(fleet.path_of(row, part, layout))
        found = dict(layout.parts[at].properties).get(name) if at is not None else None
        values = found if isinstance(found, tuple) else (found,)
        return ", ".join(map(str, values)) if found is not None else f"without {name}"

    def _sources_short(self, what: str, suffix: str) -> Reason:
        """Explains clusters where parts are free, but not the counters or parts of which they take."""
        message = f"parts that could be {what} of {self._shape.object} are free, but not what they take of others"
        nearest = self._nearest_source(pod_request(self._shape).groups[suffix])
        if nearest is None:
            return self._reason("PartShort", self._left, message, group=suffix)
        return self._numbers("PartShort", self._left, message, nearest, group=suffix)

    def _nearest_source(self, group: Group) -> _Nearest | None:
        """Returns what the part that comes nearest to the group lacks most of others, of the first parts that are free."""
        fleet, parts = self._fleet, self._fleet.parts
        could = self._left[self._cluster] & self._meets(group, spread=False)
        for resource, amount in group.resources.items():
            could &= self._free(resource) >= amount
        best: tuple[float, _Nearest] | None = None
        for row in self._rows[could][:_LOOKED_AT].tolist():
            first, layout = fleet.inside(int(parts.node[row]))
            part = layout.parts[row - first]
            takes = [
                (amount * take.amount, first + take.part, take.resource)
                for resource, amount in group.resources.items()
                for take in part.consumes.get(resource, ())
                if take.part and amount * take.amount > 0
            ]
            if not takes:
                continue
            node = int(parts.node[row])
            ((_, _, free),) = nodes_by_layout(fleet, np.array([node], np.intp))
            entries = [layout.entry_at[layout.parts[source - first].path, name] for _, source, name in takes]
            frees = [max(0, int(free[0, entry])) for entry in entries]
            share, number = min(
                (free / needed, i) for i, (free, (needed, _, _)) in enumerate(zip(frees, takes, strict=True))
            )
            if best is None or share > best[0]:
                needed, source, name = takes[number]
                cluster = fleet.names[int(fleet.cluster[node])]
                best = share, _Nearest(f"{cluster} {fleet.part_id(source)}", name, needed, frees[number])
        return None if best is None else best[1]

    def _too_many(self) -> Iterator[tuple[Reason, Mask]]:
        """Explains clusters whose parts serve some of the pods."""
        shape = self._shape
        clusters = self._fitting(msgspec.structs.replace(shape, count=1, per_node=False))
        if not clusters.any():
            return
        self._left &= ~clusters
        if shape.per_node:
            message = f"{shape.object} runs on every node that it selects, and parts for a pod of it are not on all"
            lacking = lacking_nodes(self._fleet, shape, int(np.argmax(clusters)))
            yield self._reason("PartShort", clusters, message + lacking, need="pods"), clusters
            return
        best = 1
        for cid in np.flatnonzero(clusters)[:_COUNTED].tolist():
            found = assign(self._fleet, self._fleet.rows_of(cid), [shape])
            if isinstance(found, Unassigned) and found.code in ("PartShort", "CapacityShort"):
                best = max(best, found.best)
        message = f"the parts of its nodes serve at most {best} of the {shape.count} pods of {shape.object}"
        reason = self._reason("PartShort", clusters, message, need="pods", needed=str(shape.count), free=str(best))
        yield reason, clusters

    def _fitting(self, shape: Shape) -> Mask:
        """Returns which of the clusters that are left hold this shape, which asks less."""
        tested: Mask = self._left & self._sample
        if not tested.any():
            return tested
        rows = rows_of_clusters(self._fleet, np.flatnonzero(tested))
        fits = compute_fit(self._fleet, shape, rows).fits
        return self._left.copy() if fits[tested].all() else tested & fits

    def _relaxations(self) -> Iterator[tuple[str, str, Shape]]:
        """Yields shapes that ask one thing less: its name, its description, and the shape."""
        shape = self._shape
        if shape.containers:
            yield "zone", "the kubelet takes it from one zone", msgspec.structs.replace(shape, containers=[])
        for i, relation in enumerate(shape.relations):
            others = [*shape.relations[:i], *shape.relations[i + 1 :]]
            name, what = _described(relation)
            yield name, what, msgspec.structs.replace(shape, relations=others)

    def _zone_short(self, clusters: Mask, what: str) -> Iterator[tuple[Reason, Mask]]:
        among = clusters[self._cluster] & self._is_zone()
        zoned = np.zeros(len(clusters), np.bool_)
        zoned[self._cluster[among]] = True
        if (without := clusters & ~zoned).any():
            message = f"its nodes report no zones, and a pod of {self._shape.object} needs one"
            yield self._reason("PartMissing", without, message, relation="zone"), without
        clusters = clusters & zoned
        if not clusters.any():
            return
        needs = {name: n for name, n in self._of_one_zone().items() if (self._free(name)[among] > -1).any()}
        text = f"no zone has free at once what a pod of {self._shape.object} takes of one ({what})"
        nearest = self._nearest(among, needs)
        if nearest is None:
            yield self._reason("ZoneShort", clusters, text, relation="zone"), clusters
        else:
            yield self._numbers("ZoneShort", clusters, text, nearest, relation="zone"), clusters

    def _of_one_zone(self) -> dict[str, int]:
        """Returns the amounts that one zone gives to a pod, by class."""
        shape = self._shape
        if any(isinstance(relation, OneZone) for relation in shape.relations):
            classes = frozenset(shape.resources) - {*_NEVER_OF_ZONES}
            total = dict(pod_request(shape, (), classes).groups[ZONE].resources)
            for group in shape.groups:
                for name, amount in group.resources.items():
                    total[name] = total.get(name, 0) + amount * group.count
            return total
        most: dict[str, int] = {}
        for container in shape.containers:
            for name, amount in container.requests.items():
                most[name] = max(amount, most.get(name, 0))
        return {name: amount for name, amount in most.items() if name not in (EXCLUSIVE, *_NEVER_OF_ZONES)}

    def _is_zone(self) -> Mask:
        parts = self._fleet.parts
        zones = parts.traits.where("zone", lambda names: HW_NUMA_ROOT in names)
        found: Mask = zones[parts.trait_set[self._rows]]
        return found

    # -- texts -----------------------------------------------------------------------------------------------------------

    def _numbers(self, code: str, clusters: Mask, text: str, nearest: _Nearest, **fields: str) -> Reason:
        most = readable_amount(nearest.resource, nearest.free)
        text += f"; nearest is {nearest.part} with {most} of {readable_amount(nearest.resource, nearest.needed)} "
        return self._reason(
            code,
            clusters,
            f"{text}{nearest.resource}",
            need=nearest.resource,
            needed=format_amount(nearest.resource, nearest.needed),
            free=format_amount(nearest.resource, nearest.free),
            **fields,
        )

    def _reason(self, code: str, clusters: Mask, message: str, **fields: str) -> Reason:
        need = fields.get("need", "")
        names = [n.consumer for n in self._shape.needs if n.consumer and (not need or n.name == need)]
        return Reason(
            code=code,
            message=message,
            app=self._app,
            consumer=", ".join(dict.fromkeys(names)) or self._shape.object.partition("/")[2],
            clusters=int(np.count_nonzero(clusters)),
            samples=self._fleet.clusters.named(clusters, SAMPLES),
            **fields,
        )


def _described(relation: object) -> tuple[str, str]:
    if isinstance(relation, SameSubtree):
        names = [*relation.groups, *(f"!{suffix}" for suffix in relation.apart)]
        return f"sameSubtree {','.join(names)}", f"{', '.join(names)} in one subtree"
    if isinstance(relation, Isolated):
        return f"isolate {','.join(relation.groups)}", f"a part of their own for {', '.join(relation.groups)}"
    if isinstance(relation, RootConditions):
        return "root", "the traits and aggregates that the node must have"
    if isinstance(relation, AttributeRelation):
        needs = ", ".join(relation.groups)
        value = "another value" if relation.distinct else "one value"
        what = "distinct" if relation.distinct else "match"
        return f"{what} {relation.attribute}", f"{value} of {relation.attribute} for all devices of {needs}"
    if isinstance(relation, RoleZone):
        return "roleZone", "devices of the node's agent in the zone of its role"
    return "zone", "all of it in one zone is required"


def _conditions(group: Group) -> str:
    texts: list[str] = []
    lists: Sequence[tuple[str, Sequence[frozenset[str]], frozenset[str], Callable[[frozenset[str]], str]]] = (
        ("traits", group.required, group.forbidden, _any_of),
        ("aggregates", group.member_of, group.not_member_of, _any_of),
    )
    for what, required, forbidden, text in lists:
        entries = [*map(text, required), *(f"!{name}" for name in sorted(forbidden))]
        if entries:
            texts.append(f"{what} {', '.join(entries)}")
    if group.properties:
        alternatives = (
            " and ".join(f"{one.key} {one.operator} {','.join(one.values)}".rstrip() for one in alternative)
            for alternative in group.properties
        )
        texts.append(f"properties {' or '.join(alternatives)}")
    return "; ".join(texts)


def _any_of(names: frozenset[str]) -> str:
    return next(iter(names)) if len(names) == 1 else f"in:{','.join(sorted(names))}"
