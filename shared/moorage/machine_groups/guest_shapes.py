"""Keeps which Nodes guests may use, and who is where. Thousands of guests have few shapes and sets of labels. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from .group_state import GroupState
from .guest_nodes import Shape
from .guest_rules import GuestKinds, PlacedGuests
from .handover_records import Guest, NodesFor
from .node_marks import NodeView
from .objects import tolerations

#: Shapes and sets of labels that are kept before those that nobody has any more are dropped.
_MAX_SHARED = 4096


class GuestShapes:
    """`nodes`: those of the cluster, by name."""

    def __init__(self, nodes: Mapping[str, NodeView]) -> None:
        self._nodes = nodes
        self.kinds = GuestKinds()
        self._shapes: dict[str, Shape] = {}
        self._labels: dict[str, Mapping[str, str]] = {}  # of guests, by uid
        self._on_nodes: dict[str, str] = {}  # uid → Node, of guests with one
        self._shared_labels: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}
        self._allowed: dict[tuple[str, str, str], frozenset[str]] = {}
        self._max_shared = 2 * _MAX_SHARED

    # --- guests

    def knows(self, uid: str) -> bool:
        return uid in self._labels

    def shared(self, guest: Guest, in_use: Callable[[], Iterable[Guest]]) -> Guest:
        """Returns the guest with the one text that all guests of its shape have. `in_use`: all guests."""
        if len(self._shapes) + len(self._shared_labels) > self._max_shared:
            self._forget_unused(in_use())
        shape = self._shapes.get(guest.shape)
        if shape is None:
            shape = self._shapes[guest.shape] = Shape(guest.shape)
        return msgspec.structs.replace(guest, shape=shape.text)

    def put(self, guest: Guest, labels: Mapping[str, str]) -> None:
        labels = self._shared_labels.setdefault(tuple(sorted(labels.items())), labels)
        self._labels[guest.uid] = labels
        if guest.node and not guest.deleting:
            self._on_nodes[guest.uid] = guest.node
        shape = self._shapes[guest.shape]
        self.kinds.put(guest.uid, guest.namespace, labels, shape.near, shape.apart)

    def leave_node(self, uid: str) -> None:
        self._on_nodes.pop(uid, None)

    def drop(self, uid: str) -> None:
        self._labels.pop(uid, None)
        self.kinds.drop(uid)

    def spec(self, guest: Guest) -> dict[str, Any]:
        """Returns what of the spec of a guest concerns its Node."""
        shape = self._shapes[guest.shape]
        return {"affinity": shape.affinity, "tolerations": shape.own_tolerations}

    def forget_allowed(self) -> None:
        """Forgets which Nodes guests may use: Nodes or Machines changed."""
        self._allowed.clear()

    def _forget_unused(self, guests: Iterable[Guest]) -> None:
        """Drops shapes and labels that no guest has any more, once there are many."""
        self._shared_labels.clear()
        self._allowed.clear()
        used = {guest.shape for guest in guests}
        self._shapes = {text: shape for text, shape in self._shapes.items() if text in used}
        self._max_shared = 2 * max(_MAX_SHARED, len(self._shapes))

    # --- where guests may go

    def nodes_for(self, group: GroupState) -> NodesFor:
        """Returns a function that tells which Nodes of a group a guest may use, whoever else is there."""
        name = group.machine.group
        given: dict[str, list[tuple[str, str]]] = {}

        def given_to(machine_type: str) -> list[tuple[str, str]]:
            """Returns keys and values of the taints of a type: types may have come to its Nodes since a guest was let in."""
            if machine_type not in given:
                wanted = tolerations(group.machine, group.sizes, machine_type)
                given[machine_type] = [(t["key"], t["value"]) for t in wanted]
            return given[machine_type]

        def nodes_for(guest: Guest) -> frozenset[str]:
            key = (name, guest.type if guest.gated else "", guest.shape)  # others are given no tolerations any more
            if key not in self._allowed:
                shape = self._shapes[guest.shape]
                views = [self._nodes[n] for n in group.entries if n in self._nodes]
                taints = given_to(guest.type) if guest.gated else ()
                self._allowed[key] = frozenset(view.name for view in views if shape.allows(view, taints))
            return self._allowed[key]

        return nodes_for

    def placed(self) -> PlacedGuests:
        """Returns the guests that are on Nodes, by what rules of guests see of them."""
        rules = self.kinds.rules()
        found = PlacedGuests(rules, self.kinds.kind_of, self._domain_of)
        if rules:
            for uid, node in self._on_nodes.items():
                found.put(uid, node)
        return found

    def _domain_of(self, node: str, topology_key: str) -> str | None:
        view = self._nodes.get(node)
        return None if view is None else view.labels.get(topology_key)
