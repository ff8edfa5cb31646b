"""Keeps which Nodes guests may use, and which other guests are where. Thousands of guests have few shapes and sets of labels. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from .group_state import GroupState
from .guest_nodes import PodOnNode, Shape, without_conflict
from .handover_records import Barred, Guest, NodesFor
from .node_marks import NodeView

#: Shapes and sets of labels that are kept before those that nobody has any more are dropped.
_MAX_SHARED = 4096


class GuestShapes:
    """`nodes`: those of the cluster, by name."""

    def __init__(self, nodes: Mapping[str, NodeView]) -> None:
        self._nodes = nodes
        self._shapes: dict[str, Shape] = {}
        self._labels: dict[str, Mapping[str, str]] = {}  # of guests, by uid
        self._on_nodes: dict[str, PodOnNode] = {}  # guests with a Node, by uid
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
            self._on_nodes[guest.uid] = PodOnNode(guest.namespace, labels, guest.node, guest.shape)

    def leave_node(self, uid: str) -> None:
        self._on_nodes.pop(uid, None)

    def drop(self, uid: str) -> None:
        self._labels.pop(uid, None)

    def affinity(self, guest: Guest) -> dict[str, Any]:
        return self._shapes[guest.shape].affinity

    def forget_allowed(self) -> None:
        """Forgets which Nodes guests may use: Nodes changed."""
        self._allowed.clear()

    def _forget_unused(self, guests: Iterable[Guest]) -> None:
        """Drops shapes and labels that no guest has any more, once there are many."""
        self._shared_labels.clear()
        self._allowed.clear()
        used = {guest.shape for guest in guests} | {pod.shape for pod in self._on_nodes.values()}
        self._shapes = {text: shape for text, shape in self._shapes.items() if text in used}
        self._max_shared = 2 * max(_MAX_SHARED, len(self._shapes))

    # --- where guests may go

    def nodes_for(self, group: GroupState) -> NodesFor:
        """Returns a function that tells which Nodes of a group a guest may use."""
        names = group.machine.group

        def nodes_for(guest: Guest, placed: Mapping[str, str]) -> frozenset[str] | None:
            shape = self._shapes[guest.shape]
            key = (names, guest.type, guest.shape)
            if key not in self._allowed:
                views = [self._nodes[n] for n in group.entries if n in self._nodes]
                self._allowed[key] = frozenset(view.name for view in views if shape.allows(view))
            allowed = self._allowed[key]
            if not shape.has_pod_rules and not any(other.apart for other in self._shapes.values()):
                return allowed
            labels = self._labels.get(guest.uid, {})
            others = self._others(group, guest.uid, placed)
            return frozenset(
                n
                for n in allowed
                if without_conflict(shape, guest.namespace, labels, self._nodes[n], self._nodes, others, self._shapes)
            )

        return nodes_for

    def barred(self, group: GroupState) -> Barred:
        """Returns a function that tells whether rules about other guests keep a guest off a Node."""

        def is_barred(guest: Guest, name: str, placed: Mapping[str, str]) -> bool:
            shape, node = self._shapes[guest.shape], self._nodes.get(name)
            if node is None or not (shape.has_pod_rules or any(other.apart for other in self._shapes.values())):
                return False
            labels, others = self._labels.get(guest.uid, {}), self._others(group, guest.uid, placed)
            return not without_conflict(shape, guest.namespace, labels, node, self._nodes, others, self._shapes)

        return is_barred

    def _others(self, group: GroupState, uid: str, placed: Mapping[str, str]) -> list[PodOnNode]:
        """Returns the guests on Nodes but one, and those that are about to come there."""
        found = [pod for other, pod in self._on_nodes.items() if other != uid]
        for other, node in placed.items():
            guest = group.handover.guests.get(other)
            if guest is not None and other != uid and other not in self._on_nodes:
                found.append(PodOnNode(guest.namespace, self._labels.get(other, {}), node, guest.shape))
        return found
