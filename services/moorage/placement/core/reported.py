"""The nodes and parts of clusters as providers: what each offers and has free now, who holds it, and where an allocation takes
it from. Room is counted in the units of nodes, by the same numbers as decisions are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from moorage.fleet import Fleet
from moorage.ledger import Changes, Ledger, free_in_common, free_of, is_reached, unshared_of
from moorage.model.allocations import IN_COMMON, MAX_INT, Consumer, ConsumerWrite, InventoryRecord
from moorage.model.part_names import is_class
from moorage.model.shapes import EXCLUSIVE
from moorage.model.slots import part_and_class, resource_of_part
from moorage.parts import Forest
from moorage.parts.layout import Layout, layout_of, part_id

from .records import Addition, Provider
from .reported_claims import ReportedClaims, resources_of_zones
from .reported_columns import ReportedColumns, block_of, cluster_of
from .reported_devices import UnitLimits, is_offered, limits_of
from .reported_names import class_of, units_of

#: Nodes and parts that are written before an operation goes on; more are written between operations.
AT_ONCE = 6_000
_BOUNDLESS = 1 << 62


class Place(NamedTuple):
    """A node, or a part of it. `path` is empty for a node. A part that several nodes reach is at none (`IN_COMMON`), and its row is one
    of theirs."""

    uuid: str
    cid: int
    cluster: str
    node: str
    row: int  # of the fleet
    layout: Layout
    path: str

    @property
    def ident(self) -> str:
        return part_id(self.node, self.path)


class Offer(NamedTuple):
    """An inventory in the units of nodes."""

    native: str
    inventory: InventoryRecord
    capacity: int
    free: int

    @property
    def used(self) -> int:
        return -(-(self.capacity - self.free) // units_of(self.native))


class Shortage(Exception):
    """A node has less free than an allocation takes."""

    def __init__(self, provider: str, name: str) -> None:
        super().__init__(provider, name)
        self.provider, self.name = provider, name


class ReportedTrees:
    """`sync` brings the forest up to date; all else reads the fleet as it is now."""

    def __init__(self, forest: Forest) -> None:
        self.fleet, self.ledger = Fleet(), Ledger()
        self._forest = forest
        self.columns = ReportedColumns(self.fleet, forest)
        self._tick = -1
        self._outdated: dict[int, None] = {}
        self._additions: dict[str, dict[str, Addition]] = {}  # by cluster
        self._bare: dict[str, tuple[int, int]] = {}  # numbers of the sets of nodes and parts without additions
        self.claims = ReportedClaims(self.fleet, self.ledger)

    # -- following ----------------------------------------------------------------------------------------------------

    def follow(self, fleet: Fleet, ledger: Ledger) -> None:
        """Shows the nodes of this fleet, with the claims of this ledger, from now on."""
        for cid in list(self.columns.clusters):
            self.columns.erase(cid)
        self.fleet, self.columns = fleet, ReportedColumns(fleet, self._forest)
        self._tick = -1
        self.reload(ledger)

    def reload(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.claims = ReportedClaims(self.fleet, ledger)

    def folded(self, changes: Changes) -> None:
        self.claims.folded(changes)

    @property
    def is_behind(self) -> bool:
        """Returns whether clusters are to be written that `sync` left for later."""
        return bool(self._outdated)

    def sync(self) -> None:
        """Writes the clusters that changed. Of very many, some are left for the next time."""
        self.claims.learn()
        if self._tick != self.fleet.tick:
            changed = None if self._tick < 0 else self.fleet.changed_since(self._tick)
            if changed is None:
                self.columns.reset()
                for cid in list(self.columns.clusters):
                    if not (cid < self.fleet.size and self.fleet.known[cid]):
                        self.columns.erase(cid)
                self._outdated = dict.fromkeys(self.fleet.ids.values())
            else:
                for cid in changed.tolist():  # the newest are written first
                    self._outdated.pop(cid, None)
                    self._outdated[cid] = None
            self._tick = self.fleet.tick
        written = 0
        while self._outdated and written < AT_ONCE:
            cid, _ = self._outdated.popitem()
            self._write(cid)
            trees = self.columns.clusters.get(cid)
            written += 1 if trees is None else len(trees.ids)

    def _write(self, cid: int) -> None:
        self.columns.write(cid)
        if cid in self.columns.clusters:
            for addition in self._additions.get(self.fleet.names[cid], {}).values():
                self._add(addition)

    def _add(self, addition: Addition) -> None:
        forest, row = self._forest, self._forest.rows.get(addition.uuid)
        if row is not None:
            self._bare[addition.uuid] = int(forest.trait_set[row]), int(forest.aggregate_set[row])
            forest.add_names(row, addition.traits, addition.aggregates)

    def own_names(self, uuid: str) -> tuple[frozenset[str], frozenset[str]]:
        """Returns the traits and aggregates that a node or part with additions has without them."""
        traits, aggregates = self._bare.get(uuid, (0, 0)) if self.has(uuid) else (0, 0)
        return self._forest.traits.sets[traits], self._forest.aggregates.sets[aggregates]

    def put_addition(self, uuid: str, old: Addition | None, new: Addition | None) -> None:
        """Takes over an addition that was written."""
        known = new or old
        if known is None:
            return
        cluster = "/".join(known.name.split("/", 2)[:2])
        of_cluster = self._additions.setdefault(cluster, {})
        of_cluster.pop(uuid, None)
        if new is not None:
            of_cluster[uuid] = new
        cid = self.fleet.ids.get(cluster)
        if cid is not None and cid in self.columns.clusters:
            self._write(cid)

    # -- places -------------------------------------------------------------------------------------------------------

    def has(self, uuid: str) -> bool:
        block = self._forest.block_of(uuid)
        return block is not None and cluster_of(block) is not None

    def place(self, uuid: str) -> Place | None:
        """Returns where a provider is; None if it is no node or part that is there."""
        block = self._forest.block_of(uuid)
        cid = None if block is None else cluster_of(block)
        if block is None or cid is None:
            return None
        node, source, at = self._at(cid, self._forest.rows[uuid])
        path = layout_of(source).parts[at].path if source else ""
        row = self.fleet.row_of(cid, node) if cid < self.fleet.size else None
        if row is None:
            return None
        layout = self.fleet.inside(row)[1]
        if path and path not in layout.at:
            return None
        place = Place(uuid, cid, self.fleet.names[cid], node, row, layout, path)
        return self._in_common(place) if path and layout.parts[layout.at[path]].shared else place

    def _in_common(self, place: Place) -> Place:
        rows = self.fleet.parts.reaching(place.cid, place.ident)
        row = int(self.fleet.parts.node[rows[0]]) if len(rows) else place.row
        return place._replace(node=IN_COMMON, row=row, layout=self.fleet.inside(row)[1])

    def _at(self, cid: int, row: int) -> tuple[str, bytes, int]:
        """Returns the node of a row of the forest, the source of its layout, and the position there."""
        trees = self.columns.clusters[cid]
        first = self._forest.first_row(block_of(cid))
        assert first is not None
        index = int(trees.of[row - first])
        return trees.names[index], trees.sources[index], int(trees.place[row - first])

    def name(self, uuid: str) -> str:
        """Returns the name of a provider that is there."""
        row = self._forest.rows[uuid]
        cid = cluster_of(int(self._forest.block[row]))
        assert cid is not None
        node, source, at = self._at(cid, row)
        return f"{self.fleet.names[cid]}/{part_id(node, layout_of(source).parts[at].path if source else '')}"

    def claims_of(self, uuid: str) -> list[Consumer]:
        """Returns the claims that hold something of a node or part, with what they hold of it alone."""
        name = self.name(uuid) if self.has(uuid) else self.claims.gone_name(uuid)
        return [] if name is None else self.claims.on(name)

    def record(self, uuid: str, addition: Addition | None, whole: bool = True) -> Provider:
        """Shows a node or part that is there as a provider. Not `whole`: without inventories."""
        forest = self._forest
        row = forest.rows[uuid]
        parent = int(forest.parent[row])
        place = self.place(uuid) if whole else None
        return Provider(
            uuid=uuid,
            name=self.name(uuid),
            parent=forest.ids[parent] if parent >= 0 else None,
            generation=0 if addition is None else addition.generation,
            inventories={} if place is None else {name: offer.inventory for name, offer in self.offers(place).items()},
            traits=tuple(sorted(forest.traits.sets[int(forest.trait_set[row])])),
            aggregates=tuple(sorted(forest.aggregates.sets[int(forest.aggregate_set[row])])),
            updated=0 if addition is None else addition.updated,
        )

    def root(self, uuid: str) -> str:
        return self._forest.ids[int(self._forest.root[self._forest.rows[uuid]])]

    def tree(self, uuid: str) -> list[str]:
        """Returns the providers of the tree of one that is there, in preorder."""
        root = int(self._forest.root[self._forest.rows[uuid]])
        return self._forest.ids[root : int(self._forest.leave[root])]

    # -- amounts ------------------------------------------------------------------------------------------------------

    def offers(self, place: Place) -> dict[str, Offer]:
        """Returns what a node or part offers, by class."""
        found: dict[str, Offer] = {}
        fleet = self.fleet
        if not place.path:
            tied = resources_of_zones(place.layout)
            for name, column in fleet.stored.items():
                total = int(column.allocatable[place.row])
                if total > 0 and name not in tied:
                    self._offer(found, place, name, total)
            total = -1 if fleet.exclusive is None else int(fleet.exclusive[place.row])
            if total > 0 and EXCLUSIVE not in tied:
                self._offer(found, place, EXCLUSIVE, total)
            return found
        part = place.layout.parts[place.layout.at[place.path]]
        for name, inventory in part.inventories.items() if is_offered(part) else ():
            units, total = units_of(name), inventory.total // units_of(name)
            limits = limits_of(place.layout, part, name) or UnitLimits()
            record = InventoryRecord(
                total=total,
                reserved=-(-inventory.reserved // units),
                min_unit=max(limits.least, -(-inventory.min_unit // units)),
                max_unit=min(limits.most, inventory.max_unit // units, max(total, MAX_INT)),
                step_size=max(limits.step, -(-inventory.step_size // units)),
                allocation_ratio=inventory.allocation_ratio,
            )
            free = self._free(place, name) if part.healthy else min(self._free(place, name), 0)
            found.setdefault(class_of(name), Offer(name, record, inventory.capacity, free))
        return found

    def _offer(self, found: dict[str, Offer], place: Place, name: str, total: int) -> None:
        units = units_of(name)
        record = InventoryRecord(total=total // units)
        found.setdefault(class_of(name), Offer(name, record, total, self._free(place, name)))

    def _free(self, place: Place, native: str) -> int:
        """Returns what can be taken now: what the part, all that it consumes of, and the node have."""
        free = _BOUNDLESS
        for name in self._takes(place, native, 1):
            if place.node == IN_COMMON:
                there = free_in_common(self.fleet, place.cid, name)
            else:
                there = free_of(self.fleet, place.row, name)
            units = 1000 if native == EXCLUSIVE and not name.startswith(EXCLUSIVE) else 1
            free = min(free, 0 if there is None else there // units)
        return free

    def _takes(self, place: Place, native: str, amount: int) -> dict[str, int]:
        """Returns what an amount takes of the node and its parts. What it takes of ancestors that are parts is not named: it
        is counted through the part."""
        takes: dict[str, int] = {}
        if not place.path:
            takes[native] = amount
        else:
            part = place.layout.parts[place.layout.at[place.path]]
            takes[resource_of_part(place.ident, native)] = amount
            if any(not take.part for take in part.consumes.get(native, ())):
                takes[native] = amount
        if native == EXCLUSIVE:  # an exclusive core is a core
            takes[EXCLUSIVE] = amount
            takes["cpu"] = amount * 1000
            if place.path and "cpu" in place.layout.parts[place.layout.at[place.path]].inventories:
                takes[resource_of_part(place.ident, "cpu")] = amount * 1000
        return takes

    # -- allocations --------------------------------------------------------------------------------------------------

    def located(self, consumer: Consumer, old: Consumer | None = None) -> Consumer:
        """Returns the consumer with the names of the nodes and parts among its providers, and with what it takes of them. Of
        those that are gone it keeps what it had: `old` is the consumer before."""
        names: dict[str, str] = {}
        taken: dict[str, dict[str, dict[str, int]]] = {}
        for provider, amounts in consumer.allocations.items():
            place = self.place(provider)
            if place is None:
                if old is not None and provider in old.names:
                    names[provider] = old.names[provider]
                    _keep_of_gone(old, provider, amounts, taken)
                continue
            names[provider] = f"{place.cluster}/{place.ident}"
            offers = self.offers(place)
            for name, amount in amounts.items():
                native = offers[name].native
                held_at = _held_at(old, place, native)
                at = place.node if held_at is None else held_at
                of_node = taken.setdefault(place.cluster, {}).setdefault(at, {})
                for key, takes in self._takes(place, native, amount * units_of(native)).items():
                    of_node[key] = of_node.get(key, 0) + takes
        return msgspec.structs.replace(consumer, names=names, taken=taken)

    def check_room(self, writes: Iterable[ConsumerWrite], before: Mapping[str, Consumer]) -> None:
        """Raises Shortage if the writes, whose consumers are located, take more of a node than it has. What does not grow is
        allowed."""
        after: dict[tuple[str, str, str], int] = {}
        for write in writes:
            old = before.get(write.consumer.uuid)
            for sign, taken in ((-1, old.taken if old is not None else {}), (1, write.consumer.taken)):
                for cluster, nodes in taken.items():
                    for node, amounts in nodes.items():
                        for name, amount in amounts.items():
                            for key, units in self._all_takes(cluster, node, name):
                                after[key] = after.get(key, 0) + sign * amount * units
        short = {key for key, grown in after.items() if grown > 0 and self._is_short(*key, grown)}
        if not short:
            return
        for write in writes:
            for provider, amounts in write.consumer.allocations.items():
                place = self.place(provider)
                for name in amounts if place is not None else ():
                    assert place is not None
                    native = self.offers(place)[name].native
                    takes = self._takes(place, native, 1)
                    if any(k in short for key in takes for k, _ in self._all_takes(place.cluster, place.node, key)):
                        raise Shortage(provider, name)
        raise Shortage(*next(iter(short))[1:])

    def _is_short(self, cluster: str, node: str, name: str, more: int) -> bool:
        cid = self.fleet.ids.get(cluster)
        if node == IN_COMMON:
            if cid is None or not is_reached(self.fleet, cid, name):
                return True
            return (free_in_common(self.fleet, cid, name, itself=True) or 0) < more
        row = None if cid is None else self.fleet.row_of(cid, node)
        if row is None or not self.fleet.usable[row]:
            return True
        free = unshared_of(self.fleet, row, name)
        return free is None or free < more

    def _all_takes(self, cluster: str, node: str, name: str) -> Iterator[tuple[tuple[str, str, str], int]]:
        """Yields what an amount of a node or part is taken of, other parts included, and how many units of each."""
        yield (cluster, node, name), 1
        cid, of_part = self.fleet.ids.get(cluster), part_and_class(name)
        if cid is None or of_part is None:
            return
        if node == IN_COMMON:
            rows = self.fleet.parts.reaching(cid, of_part[0])
            row = int(self.fleet.parts.node[rows[0]]) if len(rows) else None
        else:
            row = self.fleet.row_of(cid, node)
        if row is None:
            return
        layout = self.fleet.inside(row)[1]
        at = layout.at.get(self.fleet.path_of(row, of_part[0], layout))
        for take in () if at is None else layout.parts[at].consumes.get(of_part[1], ()):
            if take.part:
                above = part_id(self.fleet.node_name(row), layout.parts[take.part].path)
                yield (cluster, node, resource_of_part(above, take.resource)), take.amount


def _held_at(old: Consumer | None, place: Place, native: str) -> str | None:
    """Returns the node where a consumer holds something of a part: also if other nodes reach the part now, or no others any more."""
    name = resource_of_part(place.ident, native)
    nodes = {} if old is None or not place.path else old.taken.get(place.cluster, {})
    return next((node for node, amounts in nodes.items() if name in amounts), None)


def _keep_of_gone(
    old: Consumer, provider: str, amounts: Mapping[str, int], taken: dict[str, dict[str, dict[str, int]]]
) -> None:
    """Adds what a consumer goes on taking of a node or part that is gone: it counts again once that is back."""
    name, held = old.names[provider], old.allocations[provider]
    of_provider, of_cluster, ident = name.split("/", 2)
    cluster = f"{of_provider}/{of_cluster}"
    for node, before in old.taken.get(cluster, {}).items():
        shares: dict[str, int] = {}
        for key, units in before.items():
            part, native = part_and_class(key) or (node, key)
            resource = class_of(native)
            if part != ident or resource not in held:
                continue
            shares[key] = units * amounts.get(resource, 0) // held[resource]
            if part != node and not is_class(native) and native in before:  # it is taken of the node, too
                shares[native] = shares[key]
        of_node = taken.setdefault(cluster, {}).setdefault(node, {}) if shares else {}
        for key, units in shares.items():
            of_node[key] = of_node.get(key, 0) + units
