"""Shows the claims of decisions on nodes and parts of clusters as consumers of the Placement interface."""

from __future__ import annotations

from collections.abc import Iterator

from moorage.fleet import Fleet
from moorage.ledger import Changes, Ledger
from moorage.model.allocations import Consumer
from moorage.model.claims import Claim
from moorage.model.part_names import is_class
from moorage.model.shapes import EXCLUSIVE
from moorage.parts.layout import ANY, Layout, part_id

from .reported_names import CLAIM, claim_uuid, class_of, units_of, uuids_of


class ReportedClaims:
    """The claims of a ledger, and the names of nodes and parts that they know, also of those that are gone."""

    def __init__(self, fleet: Fleet, ledger: Ledger) -> None:
        self._fleet, self._ledger = fleet, ledger
        self._claims: dict[str, str] = {}  # uuid of its consumer → claim
        self._named_by: dict[str, dict[str, str]] = {}  # uuid of a node or part → claim → name
        self._names_of: dict[str, tuple[str, ...]] = {}  # claim → uuids of nodes and parts
        self._changed = set(ledger.claims)  # that are not learned yet

    def folded(self, changes: Changes) -> None:
        self._changed |= changes.claims

    def gone_name(self, uuid: str) -> str | None:
        """Returns the name of a node or part that is not there, and that claims name."""
        self.learn()
        names = self._named_by.get(uuid)
        return None if names is None else next(iter(names.values()))

    def named(self) -> set[str]:
        """Returns the uuids of the nodes and parts that claims name."""
        self.learn()
        return set(self._named_by)

    def is_claim(self, consumer: str) -> bool:
        self.learn()
        return consumer in self._claims

    def get(self, consumer: str) -> Consumer | None:
        """Returns a claim as a consumer."""
        self.learn()
        ident = self._claims.get(consumer)
        return None if ident is None else self._shown(self._ledger.claims[ident].claim, None)

    def of_project(self, project: str) -> Iterator[Consumer]:
        """Yields the claims of a project."""
        self.learn()
        for ident in list(self._claims.values()):
            active = self._ledger.claims.get(ident)
            if active is not None and active.claim.tenant == project:
                yield self._shown(active.claim, None)

    def on(self, name: str) -> list[Consumer]:
        """Returns the claims that hold something of the node or part of this name, with what they hold of it alone."""
        provider, cluster, ident = name.split("/", 2)
        idents = sorted(self._ledger.by_cluster.get(f"{provider}/{cluster}", ()))
        shown = (self._shown(self._ledger.claims[i].claim, ident) for i in idents)
        return [consumer for consumer in shown if consumer.allocations]

    def _shown(self, claim: Claim, only: str | None) -> Consumer:
        held: dict[str, dict[str, int]] = {}
        tied: dict[str, frozenset[str]] = {}
        for slot in claim.slots:
            if only is not None and only.partition("/")[0] != slot.node and only not in slot.parts:
                continue
            if slot.node not in tied:
                tied[slot.node] = self._tied_on(claim.cluster, slot.node)
            rest = dict(slot.resources)
            for ident, amounts in slot.parts.items():
                of_part = held.setdefault(ident, {})
                for name, amount in amounts.items():
                    of_part[name] = of_part.get(name, 0) + amount * slot.count
                    if not is_class(name) and name in rest:
                        rest[name] -= amount
            for name, amount in rest.items():
                ident = part_id(slot.node, f"/{ANY}") if name in tied[slot.node] else slot.node
                if amount > 0:
                    of_node = held.setdefault(ident, {})
                    of_node[name] = of_node.get(name, 0) + amount * slot.count
        of = uuids_of(claim.cluster)
        allocations = {
            of(ident): {class_of(name): -(-amount // units_of(name)) for name, amount in sorted(amounts.items())}
            for ident, amounts in held.items()
            if only is None or ident == only
        }
        return Consumer(
            uuid=claim_uuid(claim.id),
            project=claim.tenant,
            user=claim.intent.name,
            type=CLAIM,
            generation=1,
            allocations=allocations,
        )

    def _tied_on(self, cluster: str, node: str) -> frozenset[str]:
        cid = self._fleet.ids.get(cluster)
        row = None if cid is None else self._fleet.row_of(cid, node)
        return frozenset() if row is None else resources_of_zones(self._fleet.inside(row)[1])

    def learn(self) -> None:
        """Learns the claims that changed. One that changed several times is learned once."""
        changed, self._changed = self._changed, set()
        for ident in changed:
            for provider in self._names_of.pop(ident, ()):
                names = self._named_by[provider]
                del names[ident]
                if not names:
                    del self._named_by[provider]
            active = self._ledger.claims.get(ident)
            if active is None:
                self._claims.pop(claim_uuid(ident), None)
                continue
            self._claims[claim_uuid(ident)] = ident
            cluster = active.claim.cluster
            named = {part for slot in active.claim.slots for part in (slot.node, *slot.parts) if part}
            of = uuids_of(cluster)
            found = {of(part): f"{cluster}/{part}" for part in named}
            self._names_of[ident] = tuple(found)
            for provider, name in found.items():
                self._named_by.setdefault(provider, {})[ident] = name


def resources_of_zones(layout: Layout) -> frozenset[str]:
    """Returns the resources that zones of a node offer, so that the node itself does not."""
    at = layout.at.get(f"/{ANY}")
    found = set() if at is None else set(layout.parts[at].inventories)
    if any(name == EXCLUSIVE for _, name in layout.entries):
        found.add(EXCLUSIVE)
    return frozenset(found)
