"""All that one cluster's machines are: what is there comes in, what is to be written comes out. Pure.

Objects are put as the API server has them; an older version of one changes nothing. `plan` looks only at groups and Nodes of which
something changed. The answer to a write is put like any other version of the object, so that nothing is written twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from moorage.model.machines import Condition, Grant, Machine, PoolNode, Reservation, WaitingReason
from moorage.model.problems import Violation
from moorage.podspec import CLAIM

from . import status
from .documents import Surroundings, read
from .effects import Effect, pod_event
from .guest_nodes import PodOnNode, Shape, without_conflict
from .handover import Barred, Guest, Handover, NodesFor, Opening, Plan, Situation, Stored, StoredGrant, TypeCounts
from .injection import MachineGroup, machine_type_of
from .layout import NodeRoom, Slots, lay_out
from .names import GRANTS, MACHINE_GROUP, NAMESPACE, OTHER_NAMESPACE, SLOT_GATE, SLOTS, machine_key, object_name
from .node_marks import Marks, NodeView, condition, marked_for, marks, node_patch, node_view
from .objects import IMAGE, difference, node_pool, service, stateful_set
from .pods import (
    guest,
    has_role_of_guest,
    is_over,
    labels_of,
    left_over,
    opening_patch,
    pin_patch,
    reservation,
    was_let_in,
)
from .sizes import sizes
from .takeover import LeftOver, removal, taken_over_patch, without_finalizer

Object = dict[str, Any]
#: Unused slots of a Node that is not Ready move after this many seconds.
MOVE_AFTER = 300.0
#: What others changed is put back at once, and of one object not again before this many seconds.
REPAIR_INTERVAL = 30.0
#: Seconds between two writes of a status.
STATUS_INTERVAL = 0.5
#: A guest that is still without a slot after this many seconds is told why, once; of older guests others have told it.
TELL_AFTER, TELL_UNTIL = 2.0, 60.0
#: Shapes and sets of labels that are kept before those that nobody has any more are dropped.
_MAX_SHARED = 4096
#: Events of one plan.
MAX_TOLD = 20
#: Seconds until a request is repeated that found another version, which comes with a watch, and one that was refused.
CONFLICT_RETRY, REFUSED_RETRY = 0.3, 5.0


class StoredSlots(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The annotation of a StatefulSet with the slots of its type. `mesh`: the mesh gave them."""

    slots: dict[str, int] = {}
    offline: dict[str, int] = {}
    claim: str = ""
    mesh: bool = False


class _Group:
    """A Machine that keeps all rules, with its Pods and objects."""

    def __init__(self, machine: Machine, uid: str) -> None:
        self.machine, self.uid = machine, uid
        self.sizes = sizes(machine)
        self.handover = Handover(machine, self.sizes)
        self.entries = {node.name: node for node in machine.node_pool}
        self.status_at = 0.0
        self.unmarked: set[str] = set()  # uids of guests that another controller let in
        self.untold: dict[str, float] = {}  # uids of guests that may have to be told why they wait, and when
        #: What StatefulSets have, by type, each with the version from which it was read.
        self.stored: dict[str, tuple[tuple[str, str], Stored]] = {}

    def set_machine(self, machine: Machine) -> None:
        self.machine, self.sizes = machine, sizes(machine)
        self.handover.set_machine(machine, self.sizes)
        self.entries = {node.name: node for node in machine.node_pool}


class ClusterMachines:
    """`image`: of reservations. `connected`: the mesh answers, so that nothing is granted here alone."""

    def __init__(self, image: str = IMAGE, namespace: str = NAMESPACE) -> None:
        self.image, self.namespace = image, namespace
        self.connected = False
        self.expects_mesh = False
        self.other_controller = ""
        self.machines: dict[str, Object] = {}
        self.invalid: dict[str, list[Violation]] = {}
        self.nodes: dict[str, NodeView] = {}
        self.orders: dict[str, Reservation] = {}  # by GROUP/TYPE
        self.grants: dict[str, StoredGrant] = {}  # of the mesh, by uid
        self.mesh_reasons: dict[str, WaitingReason] = {}  # why guests wait by what the mesh knows, by uid
        self.left_over = LeftOver()
        self._given_at: dict[str, float] = {}  # uid → when a guest whose gate is being taken off got its slot
        self._handover_times: list[float] = []
        self._untold_events: list[Effect] = []
        self._groups: dict[str, _Group] = {}  # by group
        self._objects: dict[tuple[str, str, str], Object] = {}
        self._pods: dict[tuple[str, str], tuple[str, str, bool]] = {}  # key → uid, group, is a reservation
        self._pod_labels: dict[str, PodOnNode] = {}  # of guests with a Node
        self._specs: dict[str, Mapping[str, Any]] = {}  # of reservations that are not pinned, by name
        self._shapes: dict[str, Shape] = {}
        self._allowed: dict[tuple[str, str, str], frozenset[str]] = {}
        self._labels: dict[str, Mapping[str, str]] = {}  # of guests, by uid
        self._max_shared = 2 * _MAX_SHARED
        self._shared_labels: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}
        self._enabled: set[str] = set()
        self._versions: dict[str, int] = {}  # uid → the newest version seen
        self._busy: set[tuple[str, str, str]] = set()
        self._later: dict[tuple[str, str, str], float] = {}
        self._put_off: dict[tuple[str, str, str], float] = {}  # after a conflict or a refusal
        self._repaired: dict[tuple[str, str, str], tuple[Object, float]] = {}
        self._unhealthy_since: dict[str, float] = {}
        self._dirty_groups: set[str] = set()
        self._dirty_nodes: set[str] = set()
        self._machines_changed = False
        self._look_for_orphans = True
        self._known_groups: dict[str, MachineGroup] | None = None
        #: Guests whose Machine went; and whether Nodes changed that guests may use.
        self.lost_guests: set[str] = set()
        self.nodes_changed = False

    # --- what is there

    def _is_newer(self, meta: Mapping[str, Any]) -> bool:
        uid, version = str(meta.get("uid", "")), int(meta.get("resourceVersion") or 0)
        if version < self._versions.get(uid, 0):
            return False
        self._versions[uid] = version
        return True

    def put_node(self, node: Object) -> None:
        meta = node["metadata"]
        if not self._is_newer(meta):
            return
        view = node_view(node)
        before = self.nodes.get(view.name)
        if before is None or before.version != view.version:
            self._put_off.pop(("Node", "", view.name), None)
        if before is not None and before._replace(version=view.version) == view:
            self.nodes[view.name] = view
            return
        self.nodes[view.name] = view
        self._node_changed(view.name)

    def drop_node(self, name: str) -> None:
        if self.nodes.pop(name, None) is not None:
            self._node_changed(name)

    def _node_changed(self, name: str) -> None:
        self._allowed.clear()
        self.nodes_changed = True
        self._dirty_nodes.add(name)
        for group in self._groups.values():
            if name in group.entries:
                self._dirty_groups.add(group.machine.group)

    def put_machine(self, machine: Object) -> None:
        if not self._is_newer(machine["metadata"]):
            return
        name = machine["metadata"]["name"]
        before = self.machines.get(name)
        self.machines[name] = machine
        if before is not None and before["metadata"].get("uid") == machine["metadata"].get("uid"):
            self._untold_events = [*self._untold_events, *status.condition_events(before, machine)][-MAX_TOLD:]
        same = before is not None and all(
            before["metadata"].get(k) == machine["metadata"].get(k)
            for k in ("generation", "labels", "uid", "deletionTimestamp")
        )
        if same and before is not None and before.get("spec") == machine.get("spec"):
            if before.get("status") != machine.get("status"):
                self._dirty_groups.add((machine["metadata"].get("labels") or {}).get(MACHINE_GROUP, ""))
            return
        self._machines_changed = True

    def drop_machine(self, name: str) -> None:
        if self.machines.pop(name, None) is not None:
            self._machines_changed = True

    def put_object(self, obj: Object, kind: str) -> None:
        """Puts a StatefulSet, a Service or a MachineNodePool."""
        meta = obj["metadata"]
        if self._is_newer(meta):
            self._put_off.pop((kind, meta.get("namespace", ""), meta["name"]), None)
            self._objects[kind, meta.get("namespace", ""), meta["name"]] = obj
            self._dirty_groups.add((meta.get("labels") or {}).get(MACHINE_GROUP, ""))
            self._dirty_owner(obj)

    def drop_object(self, kind: str, namespace: str, name: str) -> None:
        obj = self._objects.pop((kind, namespace, name), None)
        if obj is not None:
            self._dirty_groups.add((obj["metadata"].get("labels") or {}).get(MACHINE_GROUP, ""))
            self._dirty_owner(obj)

    def _dirty_owner(self, obj: Object) -> None:
        """Marks the group whose object it is, also if somebody took its labels off."""
        for owner in obj["metadata"].get("ownerReferences") or ():
            machine = self.machines.get(str(owner.get("name")))
            if owner.get("kind") == "Machine" and machine is None:
                self._look_for_orphans = True
            elif owner.get("kind") == "Machine" and machine is not None:
                self._dirty_groups.add((machine["metadata"].get("labels") or {}).get(MACHINE_GROUP, ""))

    def set_left_over(self, objects: Iterable[tuple[str, Object]]) -> None:
        """Puts all StatefulSets and Services that another controller left, each with its kind."""
        self._dirty_groups |= self.left_over.set_objects(objects)
        self._look_for_orphans |= bool(self.left_over.groups)

    def set_namespace(self, name: str, enabled: bool) -> None:
        if enabled:
            self.relist_pods |= name not in self._enabled and bool(self._groups)
            self._enabled.add(name)
        else:
            self._enabled.discard(name)

    def put_pod(self, pod: Object) -> None:
        meta = pod["metadata"]
        if not self._is_newer(meta):
            return
        key, labels = (meta.get("namespace", ""), meta["name"]), labels_of(pod)
        group_name = labels.get(MACHINE_GROUP, "")
        self._forget_pod(key, keep=meta["uid"])
        self._put_off.pop(("Pod", *key), None)
        group = self._groups.get(group_name)
        if (old := left_over(pod)) is not None:
            self.left_over.put_pod(group_name, old)
            self._pods[key] = (meta["uid"], group_name, False)
            self._dirty_groups.add(group_name)
            self._look_for_orphans = True
            return
        if group is None or is_over(pod):
            if group is not None:
                group.handover.forget_guest(meta["uid"])
                self._dirty_groups.add(group_name)
            self._pods[key] = (meta["uid"], group_name, False)
            return
        kind = object_name(group_name, machine_type_of(labels))
        held = reservation(pod, kind, self.namespace)
        self._pods[key] = (meta["uid"], group_name, held is not None)
        if held is not None:
            group.handover.put_reservation(held)
            group.handover.pinning.pop(held.name, None) if held.node else None
            if held.deleting:
                group.handover.removing.discard(held.name)
            self._specs[held.name] = {} if held.node else (pod.get("spec") or {})
        elif was_let_in(pod) or (key[0] in self._enabled and has_role_of_guest(pod)):
            self._put_guest(group, pod)
        self._dirty_groups.add(group_name)

    def _forget_unused(self) -> None:
        """Drops shapes and labels that no guest has any more, once there are many."""
        self._shared_labels.clear()
        self._allowed.clear()
        used = {g.shape for group in self._groups.values() for g in group.handover.guests.values()}
        used |= {pod.shape for pod in self._pod_labels.values()}
        self._shapes = {text: shape for text, shape in self._shapes.items() if text in used}
        self._max_shared = 2 * max(_MAX_SHARED, len(self._shapes))

    def _put_guest(self, group: _Group, pod: Object) -> None:
        if len(self._shapes) + len(self._shared_labels) > self._max_shared:
            self._forget_unused()
        found = guest(pod)
        shape = self._shapes.get(found.shape)
        if shape is None:
            shape = self._shapes[found.shape] = Shape(found.shape)
        # Thousands of guests have few shapes and sets of labels.
        found = msgspec.structs.replace(found, shape=shape.text)
        group.handover.put_guest(found)
        if found.is_marked and (found.claim or not found.bound):
            group.unmarked.discard(found.uid)
        else:
            group.unmarked.add(found.uid)
        if not found.gated:
            group.handover.opening.pop(found.uid, None)
            group.untold.pop(found.uid, None)
        elif found.uid not in self._labels:
            group.untold[found.uid] = _seconds(found.created) + TELL_AFTER
        labels = self._shared_labels.setdefault(tuple(sorted(labels_of(pod).items())), labels_of(pod))
        self._labels[found.uid] = labels
        if found.node and not found.deleting:
            self._pod_labels[found.uid] = PodOnNode(found.namespace, labels, found.node, found.shape)

    def drop_pod(self, namespace: str, name: str, uid: str) -> None:
        known = self._pods.get((namespace, name))
        if known is not None and known[0] == uid:
            self._forget_pod((namespace, name))
        self._versions.pop(uid, None)

    def _forget_pod(self, key: tuple[str, str], keep: str = "") -> None:
        known = self._pods.pop(key, None)
        if known is None:
            return
        uid, group_name, is_reservation = known
        group = self._groups.get(group_name)
        self.left_over.drop_pod(key[1], uid)
        self._pod_labels.pop(uid, None)
        if group is None:
            return
        if is_reservation:
            group.handover.drop_reservation(key[1], uid)
            if uid != keep:
                group.handover.pinning.pop(key[1], None)
                group.handover.removing.discard(key[1])
        elif uid == keep:
            group.handover.drop_guest(uid)
        else:
            group.handover.forget_guest(uid)
            group.handover.opening.pop(uid, None)
            group.untold.pop(uid, None)
            group.unmarked.discard(uid)
            self._labels.pop(uid, None)
        self._dirty_groups.add(group_name)

    def set_connected(self, connected: bool) -> None:
        if connected != self.connected:
            self.connected = connected
            self._dirty_groups |= self._groups.keys()

    def set_other_controller(self, name: str) -> None:
        """Sets which foreign controller acts on these Machines; while there is one, nothing is written but the status."""
        if name != self.other_controller:
            self.other_controller = name
            self._machines_changed = True
            self._dirty_groups |= self._groups.keys()
            self._dirty_nodes |= self.nodes.keys()

    def set_order(self, order: Reservation) -> None:
        self.orders[order.machine] = order
        self._dirty_groups.add(order.machine.partition("/")[0])

    def drop_order(self, machine: str) -> None:
        """The mesh holds nothing of this type any more."""
        self.set_order(Reservation(machine=machine, claim=""))

    def set_grant(self, grant: Grant, now: float) -> None:
        before = self.grants.get(grant.uid)
        at = before.at if before is not None and before.claim == grant.claim else now
        self.grants[grant.uid] = StoredGrant(
            node=grant.node,
            claim=grant.claim,
            at=at,
            window=grant.window,
            not_before=grant.not_before,
            until=grant.until,
        )
        self._dirty_groups.add(grant.machine.partition("/")[0])

    def drop_grant(self, uid: str) -> None:
        if self.grants.pop(uid, None) is not None:
            self._dirty_groups |= self._groups.keys()

    # --- what metrics, hooks and reports read

    def take_handover_times(self) -> list[float]:
        """Returns the seconds from each slot being given until the gate was off, since the last call."""
        found, self._handover_times = self._handover_times[-_MAX_SHARED:], []
        return found

    def slot_counts(self) -> dict[tuple[str, str], float]:
        """Returns how many slots each machine type has by state."""
        found: dict[tuple[str, str], float] = {}
        for group in self._groups.values():
            usable = frozenset(n for n, state in self.pool_conditions(group).items() if state == "Ready")
            for name, row in group.handover.counts(usable).items():
                _, stored = group.stored.get(name, (None, Stored(0, {})))
                guests = (group.handover.guests.get(uid) for uid in stored.grants)
                granted = row.granted + sum(guest is not None and guest.gated for guest in guests)
                short = max(0, row.maximum - row.reserved - row.used - granted)
                states = {"reserved": row.reserved, "granted": granted, "used": row.used, "short": short}
                found |= {(machine_key(group.machine.group, name), s): float(n) for s, n in states.items()}
        return found

    def groups(self) -> dict[str, MachineGroup]:
        """Returns the Machines that guests may use."""
        if self._machines_changed:
            self._read_machines()
        if self._known_groups is None:
            self._known_groups = {name: MachineGroup(g.machine, g.sizes) for name, g in self._groups.items()}
        return self._known_groups

    def group(self, name: str) -> Handover | None:
        group = self._groups.get(name)
        return group.handover if group is not None else None

    def surroundings(self, name: str, before: Object | None) -> Surroundings:
        """Returns what a Machine is checked against."""
        others = {n: group.machine for group in self._groups.values() if (n := group.machine.name) != name}
        old = read(before).machine if before is not None else None
        return Surroundings(self.nodes.keys(), others, old)

    def handovers(self) -> list[Handover]:
        return [group.handover for group in self._groups.values()]

    def allowed_nodes(self, group: str, guest: Guest) -> frozenset[str] | None:
        """Returns the Nodes of its group that a guest may use."""
        placed = {uid: grant.node for uid, grant in self.grants.items()}
        return self._nodes_for(self._groups[group])(guest, placed)

    def unhealthy_since(self, node: str) -> float:
        return self._unhealthy_since.get(node, 0.0)

    def pool_conditions_by_node(self) -> dict[str, Condition]:
        """Returns the conditions of all Nodes of pools."""
        return {n: state for group in self._groups.values() for n, state in self.pool_conditions(group).items()}

    def pool_conditions(self, group: _Group) -> dict[str, Condition]:
        return {name: condition(entry, self.nodes.get(name)) for name, entry in group.entries.items()}

    # --- planning

    def plan(self, now: float) -> tuple[list[Effect], float | None]:
        """Returns what is to be done, and when to look again at the latest."""
        if self._machines_changed:
            self._read_machines()
        times = [time for time in self._later.values() if time > now]
        for waiting in (self._later, self._put_off):
            for key in [key for key, time in waiting.items() if time <= now]:
                del waiting[key]
        times += self._put_off.values()
        effects: list[Effect] = []
        dirty, self._dirty_groups = self._dirty_groups, set()
        nodes, self._dirty_nodes = self._dirty_nodes, set()
        for name in sorted(nodes):
            effects += self._plan_node(name, now, times)
        for name in sorted(dirty):
            group = self._groups.get(name)
            if group is not None:
                effects += self._plan_group(group, now, times)
        effects += self._report_invalid(now)
        effects += self._untold_events
        self._untold_events = []
        effects += self._orphans(now)
        for effect in effects:
            if effect.verb != "event":
                self._busy.add(effect.key)
        return effects, min(times, default=None)

    def _orphans(self, now: float) -> list[Effect]:
        """Removes objects of Machines that are gone: the server's garbage collector may not know the kind yet."""
        if not self._look_for_orphans or self.other_controller:
            return []
        self._look_for_orphans = False
        known = {machine["metadata"].get("uid") for machine in self.machines.values()}
        kept = group_names(self.machines.values())
        effects = [removal(pod) for pod in self.left_over.strays(kept)]
        for key, obj in self._objects.items():
            owners = [o for o in obj["metadata"].get("ownerReferences") or () if o.get("kind") == "Machine"]
            is_left = owners and not any(owner.get("uid") in known for owner in owners)
            if is_left:
                effects += _gone(key, obj)
        return [e for e in effects if e.key not in self._busy and not self._is_put_off(*e.key, now)]

    def start_term(self) -> None:
        """Forgets requests under way: a process that begins to act sent none that will be answered."""
        self._busy.clear()
        self._untold_events.clear()
        for group in self._groups.values():
            group.handover.opening.clear()
            group.handover.pinning.clear()
            group.handover.removing.clear()
        self._dirty_groups |= self._groups.keys()
        self._dirty_nodes |= self.nodes.keys()

    def wake(self, now: float) -> None:
        """Looks at all groups again: a time has come that a plan named."""
        self._look_for_orphans = True
        self._dirty_groups |= self._groups.keys()
        self._dirty_nodes |= {name for group in self._groups.values() for name in group.entries}

    def done(self, effect: Effect, answer: Object | None, now: float, *, failed: bool = False) -> None:
        """Takes the answer to a request. A conflict is no failure: what changed will be put."""
        self._busy.discard(effect.key)
        group_name = self._group_of_effect(effect)
        if effect.kind == "Pod":
            self._pod_done(effect, group_name, answer, now, failed)
        if answer is not None:
            self._put_answer(effect, answer)
        else:
            if failed or not self._has_newer_node(effect):
                self._put_off[effect.key] = now + (REFUSED_RETRY if failed else CONFLICT_RETRY)
            self._repaired.pop(effect.key, None)
        if group_name:
            self._dirty_groups.add(group_name)
        if effect.kind == "Node":
            self._dirty_nodes.add(effect.name)

    def _has_newer_node(self, effect: Effect) -> bool:
        """Returns whether the version of a Node that a request missed is known already, so that it need not be waited for."""
        node = self.nodes.get(effect.name) if effect.kind == "Node" else None
        return node is not None and node.version != (effect.body.get("metadata") or {}).get("resourceVersion")

    def _pod_done(self, effect: Effect, group_name: str, answer: Object | None, now: float, failed: bool) -> None:
        group = self._groups.get(group_name)
        if group is None:
            return
        handover = group.handover
        if effect.purpose == "open":
            given_at = self._given_at.pop(str(effect.body["metadata"]["uid"]), now)
            if answer is not None:
                self._handover_times.append(max(0.0, now - given_at))
        if answer is None:  # what became of it is read from the Pod
            handover.pinning.pop(effect.name, None)
            handover.removing.discard(effect.name)
            uid = str((effect.body.get("metadata") or {}).get("uid", ""))
            handover.opening.pop(uid, None)
            refused = handover.guests.get(uid)
            if failed and effect.purpose == "open" and refused is not None:
                handover.note_failure(refused, now)

    def _group_of_effect(self, effect: Effect) -> str:
        if effect.kind == "Pod":
            known = self._pods.get((effect.namespace, effect.name))
            return known[1] if known is not None else ""
        if effect.kind == "Machine":
            machine = self.machines.get(effect.name) or {"metadata": {}}
            return str((machine["metadata"].get("labels") or {}).get(MACHINE_GROUP, ""))
        if (left := self.left_over.group_of(effect.key)) is not None:
            return left
        found = self._objects.get(effect.key) or effect.body
        return str(((found.get("metadata") or {}).get("labels") or {}).get(MACHINE_GROUP, ""))

    def _put_answer(self, effect: Effect, answer: Object) -> None:
        if effect.kind == "Pod" and effect.verb != "evict":
            if answer.get("kind", "Pod") == "Pod" and "metadata" in answer and "uid" in answer["metadata"]:
                self.put_pod(answer)
        elif effect.kind == "Node":
            self.put_node(answer)
        elif effect.kind == "Machine":
            self.put_machine(answer)
        elif effect.verb == "delete":
            self.left_over.took(effect.key)
            self.drop_object(*effect.key)
        elif effect.kind in ("StatefulSet", "Service", "MachineNodePool"):
            self.put_object(answer, effect.kind)

    # --- Machines

    def _read_machines(self) -> None:
        """Reads all Machines again: which are valid depends on those that were there before."""
        self._machines_changed = False
        self._look_for_orphans = True
        self._known_groups = None
        self.invalid.clear()
        accepted: dict[str, Machine] = {}
        uids: dict[str, str] = {}
        ordered = sorted(
            self.machines.values(), key=lambda m: (m["metadata"].get("creationTimestamp") or "", m["metadata"]["name"])
        )
        for raw in ordered:
            meta = raw["metadata"]
            if "deletionTimestamp" in meta:
                continue
            found = read(raw, Surroundings(None, accepted))
            if found.machine is None:
                self.invalid[meta["name"]] = found.violations
                continue
            accepted[meta["name"]] = found.machine
            uids[found.machine.group] = str(meta.get("uid", ""))
        kept = {machine.group: machine for machine in accepted.values()}
        frozen = {
            g.machine.name: g.machine.group for g in self._groups.values() if g.machine.name in self.invalid
        }  # what is stored and invalid stays as it was
        for name, group in list(self._groups.items()):
            if name not in kept and group.machine.name not in frozen:
                self._dirty_nodes |= group.entries.keys()
                self.lost_guests |= group.handover.guests.keys()
                del self._groups[name]
        pods_missing = False
        for name, machine in kept.items():
            group_now = self._groups.get(name)
            if group_now is None or group_now.uid != uids[name]:
                pods_missing = True
                self._groups[name] = _Group(machine, uids[name])
            elif group_now.machine != machine:
                self._dirty_nodes |= group_now.entries.keys()
                group_now.set_machine(machine)
            self._dirty_nodes |= self._groups[name].entries.keys()
        self._dirty_groups |= self._groups.keys()
        self.relist_pods = pods_missing or self.relist_pods

    #: A group came whose Pods were put before: the shell puts all Pods again.
    relist_pods = False

    def forget_versions_of_pods(self) -> None:
        """Lets all Pods be put again."""
        for uid, _, _ in self._pods.values():
            self._versions.pop(uid, None)
        self.relist_pods = False

    def _report_invalid(self, now: float) -> list[Effect]:
        effects = []
        for name, violations in self.invalid.items():
            machine = self.machines[name]
            text = "; ".join(f"{v.path}: {v.message}" for v in violations[:5])
            found = [status.Finding("Ready", False, "Invalid", text)]
            effects += self._status_effect("Machine", machine, {"conditions": self._conditions(machine, found, now)})
        return effects

    def _conditions(self, obj: Object, found: list[status.Finding], now: float) -> list[Object]:
        before = (obj.get("status") or {}).get("conditions") or []
        return status.conditions(found, before, int(obj["metadata"].get("generation") or 0), now)

    def _status_effect(self, kind: str, obj: Object, wanted: Object) -> list[Effect]:
        meta = obj["metadata"]
        patch = difference(wanted, obj.get("status") or {})
        key = (kind, "", meta["name"])
        if patch is None or key in self._busy or self._put_off.get(key):
            return []
        body = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "status": patch}
        return [Effect("status", kind, "", meta["name"], body, "status")]

    # --- Nodes

    def _plan_node(self, name: str, now: float, times: list[float]) -> list[Effect]:
        node = self.nodes.get(name)
        entry_group = next((g for g in self._groups.values() if name in g.entries), None)
        entry = entry_group.entries[name] if entry_group is not None else None
        self._note_health(name, entry, node, now, times)
        key = ("Node", "", name)
        if node is None or self.other_controller:
            return []
        wanted: Marks | None = None
        if entry_group is not None and entry is not None:
            wanted = marks(entry_group.machine, entry_group.sizes, entry, node)
        elif marked_for(node) in group_names(self.machines[n] for n in self.invalid):
            return []  # its Machine is invalid, and stays as it was
        patch = node_patch(node, wanted)
        if patch is None:
            return []
        if key in self._busy or not self._may_write(key, {"marks": wanted, "healthy": node.is_healthy}, now, times):
            return []
        return [Effect("merge", "Node", "", name, patch, "node")]

    def _note_health(
        self, name: str, entry: PoolNode | None, node: NodeView | None, now: float, times: list[float]
    ) -> None:
        if entry is None or condition(entry, node) == "Ready":
            self._unhealthy_since.pop(name, None)
            return
        since = self._unhealthy_since.setdefault(name, now)
        if since + MOVE_AFTER > now:
            times.append(since + MOVE_AFTER)
            self._later["Health", "", name] = since + MOVE_AFTER

    def _may_write(self, key: tuple[str, str, str], wanted: Object, now: float, times: list[float]) -> bool:
        """Returns whether an object may be written: at once if something else is wanted of it than before or it is repaired for the first
        time, else not before REPAIR_INTERVAL."""
        if self._is_put_off(*key, now):
            return False
        before = self._repaired.get(key)
        if before is not None and before[0] == wanted and now < before[1] + REPAIR_INTERVAL:
            times.append(before[1] + REPAIR_INTERVAL)
            self._later[key] = before[1] + REPAIR_INTERVAL
            return False
        # The first write of something new is not a repair; the next one is.
        at = now if before is not None and before[0] == wanted else 0.0
        self._repaired[key] = (wanted, at)
        return True

    # --- groups

    def _plan_group(self, group: _Group, now: float, times: list[float]) -> list[Effect]:
        machine = self.machines.get(group.machine.name)
        if machine is None:
            return []
        if self.other_controller:
            text = f"{self.other_controller} still acts on Machines; remove it, and this one takes over"
            found = [status.Finding("Ready", False, "OtherControllerActive", text)]
            return self._status_effect("Machine", machine, {"conditions": self._conditions(machine, found, now)})
        if group.machine.name in self.invalid:
            return []
        effects = self._object_effects(group, now, times)
        states = self.pool_conditions(group)
        usable = frozenset(name for name, state in states.items() if state == "Ready")
        slots, offline, stored_slots = self._slots(group, states, now)
        situation = Situation(
            slots,
            offline,
            usable,
            self._stored(group),
            self.grants if self.connected else None,
            self._nodes_for(group),
            self.left_over.pods_of(group.machine.group),
            self._barred(group),
        )
        plan = group.handover.plan(now, situation)
        if plan.next is not None:
            times.append(plan.next)
            self._later[("Group", "", group.machine.group)] = plan.next
        writing = {effect.key for effect in effects}
        effects += [e for e in self._handover_effects(group, plan, stored_slots, now) if e.key not in writing]
        effects += self._takeover_effects(group, plan, slots, now)
        effects += self._waiting_events(group, usable, now, times)
        effects += self._status_effects(group, machine, slots, states, usable, now, times)
        return effects

    def _takeover_effects(self, group: _Group, plan: Plan, slots: Slots, now: float) -> list[Effect]:
        """Removes what another controller left of a group, and lets its guests be known as guests."""
        name = group.machine.group
        effects: list[Effect] = []
        # Until slots are laid out there is nothing that could replace what it holds.
        if any(slots.values()) or not any(group.handover.maximum.values()):
            effects += self.left_over.removals(name)
            if not self.left_over.has_sets(name):
                effects += [removal(pod) for pod in plan.replaced]
        for pod in self.left_over.pods_of(name):
            order = self.orders.get(machine_key(name, pod.type))
            if pod.bound and not (pod.claim or pod.deleting) and order is not None and order.claim:
                body = {"metadata": {"uid": pod.uid, "labels": {CLAIM: order.claim}}}
                effects.append(Effect("merge", "Pod", OTHER_NAMESPACE, pod.name, body, "takeover"))
        for uid in sorted(group.unmarked):
            found = group.handover.guests.get(uid)
            if found is None or found.deleting:
                continue
            machine = machine_key(name, found.type)
            order = self.orders.get(machine)
            claim = order.claim if order is not None and found.bound and not found.claim else ""
            if claim or not found.is_marked:
                body = taken_over_patch(found, machine, claim)
                effects.append(Effect("merge", "Pod", found.namespace, found.name, body, "takeover"))
        return [e for e in effects if e.key not in self._busy and not self._is_put_off(*e.key, now)]

    def _waiting_events(self, group: _Group, usable: frozenset[str], now: float, times: list[float]) -> list[Effect]:
        """Tells new guests why they still wait, some at a time."""
        if not group.untold:
            return []
        due = [uid for uid, time in group.untold.items() if time <= now]
        effects: list[Effect] = []
        counts = group.handover.counts(usable) if due else {}
        for uid in due:
            guest = group.handover.guests.get(uid)
            is_new = group.untold[uid] + TELL_UNTIL > now
            if guest is None or not guest.gated or guest.deleting or not guest.ready or not is_new:
                del group.untold[uid]
            elif len(effects) < MAX_TOLD:
                del group.untold[uid]
                effects.append(pod_event(guest, *self._why_waiting(group, guest, counts)))
        if group.untold:
            self._later["Waiting", "", group.machine.group] = later = max(now + 0.5, min(group.untold.values()))
            times.append(later)
        return effects

    def _why_waiting(self, group: _Group, guest: Guest, counts: Mapping[str, TypeCounts]) -> tuple[str, str]:
        """Returns the code of a reason, and what it means with numbers."""
        told = self.mesh_reasons.get(guest.uid) if self.connected else None
        if told is not None and told.message:
            return told.code, told.message
        row = counts[guest.type]
        machine = machine_key(group.machine.group, guest.type)
        numbers = f"{row.used} of {row.maximum} are used, {row.waiting} guests wait"
        if guest.window:
            return "WindowClosed", f"window {guest.window!r} of {machine} is closed or full; {numbers}"
        if self.expects_mesh and not self.connected:
            return "MeshUnreachable", f"the mesh, which gives out slots of {machine}, cannot be reached; {numbers}"
        if row.reserved:
            return "SlotUnbound", f"no Node with a free slot of {machine} may be used by this Pod; {numbers}"
        return "SlotShort", f"no slot of {machine} is free; {numbers}"

    def _object_effects(self, group: _Group, now: float, times: list[float]) -> list[Effect]:
        """Creates and repairs the objects of a group, and removes those of types that it does not have any more."""
        wanted: list[tuple[str, Object]] = [("MachineNodePool", node_pool(group.machine, group.uid))]
        for machine_type in group.machine.types:
            name = machine_type.name
            wanted.append(("Service", service(group.machine, group.uid, name, self.namespace)))
            wanted.append(
                ("StatefulSet", stateful_set(group.machine, group.sizes, group.uid, name, self.image, self.namespace))
            )
        effects: list[Effect] = []
        keys = set()
        for kind, obj in wanted:
            key = (kind, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
            keys.add(key)
            actual = self._objects.get(key)
            if key in self._busy:
                continue
            if actual is None:
                if self._may_write(key, obj, now, times):
                    # Without the number the server would make one.
                    made = {**obj, "spec": {**obj["spec"], "replicas": 0}} if kind == "StatefulSet" else obj
                    effects.append(Effect("create", *key, made, kind))
                continue
            patch = difference(_changeable(kind, obj), actual)
            if (finalizers := without_finalizer(actual)) is not None:
                patch = patch or {}
                patch["metadata"] = {**(patch.get("metadata") or {}), "finalizers": finalizers or None}
            if patch is not None and self._may_write(key, obj, now, times):
                patch["metadata"] = {
                    **(patch.get("metadata") or {}),
                    "resourceVersion": actual["metadata"]["resourceVersion"],
                }
                effects.append(Effect("merge", *key, patch, kind))
        for key, obj in self._objects.items():
            is_ours = any(owner.get("uid") == group.uid for owner in obj["metadata"].get("ownerReferences") or ())
            if is_ours and key not in keys and key not in self._busy and not self._is_put_off(*key, now):
                effects += _gone(key, obj)
        return effects

    def _stored(self, group: _Group) -> dict[str, Stored]:
        """Returns what the StatefulSets of a group have."""
        found = {}
        for name in group.sizes:
            obj = self._set_of(group, name)
            if obj is None:
                continue
            meta = obj["metadata"]
            key = (str(meta.get("uid")), str(meta.get("resourceVersion")))
            if name not in group.stored or group.stored[name][0] != key:
                grants = _read_grants((meta.get("annotations") or {}).get(GRANTS, ""))
                group.stored[name] = key, Stored(int(obj["spec"].get("replicas", 1)), grants)
            found[name] = group.stored[name][1]
        return found

    def _set_of(self, group: _Group, machine_type: str) -> Object | None:
        return self._objects.get(("StatefulSet", self.namespace, object_name(group.machine.group, machine_type)))

    def _slots(
        self, group: _Group, states: Mapping[str, Condition], now: float
    ) -> tuple[Slots, Slots, dict[str, StoredSlots]]:
        """Returns the slots of the types of a group by Node, those that the cluster grants alone, and what to store of both."""
        held: dict[str, StoredSlots] = {}
        for name in group.sizes:
            obj = self._set_of(group, name)
            text = (obj["metadata"].get("annotations") or {}).get(SLOTS, "") if obj is not None else ""
            try:
                held[name] = msgspec.json.decode(text, type=StoredSlots) if text else StoredSlots()
            except (msgspec.DecodeError, RecursionError):
                held[name] = StoredSlots()
        ordered: dict[str, StoredSlots] = {}
        for name in group.sizes:
            order = self.orders.get(machine_key(group.machine.group, name))
            if order is not None:
                ordered[name] = StoredSlots(slots=order.slots, offline=order.offline, claim=order.claim, mesh=True)
            elif held[name].mesh:
                ordered[name] = held[name]
        rooms = {n: self._room(n, states[n], now) for n in group.entries}
        alone = {
            t.name: t.offline_slots for t in group.machine.types if t.name not in ordered and t.spec.dependence is None
        }
        in_use: dict[str, Counter[str]] = {name: Counter() for name in alone}
        by_node: dict[str, Counter[str]] = {}
        for name in group.sizes:
            for pod in group.handover.holding(name):
                if pod.bound:
                    by_node.setdefault(pod.node, Counter())[name] += 1
        for name in alone:
            for node, counts in by_node.items():
                in_use[name][node] = group.handover.taken(counts, name)
        kept = {n: held[n].slots or in_use[n] + self.left_over.places(group.machine.group, n) for n in alone}
        local = lay_out(group.machine, group.sizes, alone, rooms, kept, in_use)
        stored = {
            name: ordered.get(name) or StoredSlots(slots=local[name], offline=local[name])
            for name, size in group.sizes.items()
            if not size.parent
        }
        return {n: s.slots for n, s in stored.items()}, {n: s.offline for n, s in stored.items()}, stored

    def _room(self, name: str, state: Condition, now: float) -> NodeRoom:
        node = self.nodes.get(name)
        if node is None:
            kept = now < self._unhealthy_since.get(name, now) + MOVE_AFTER
            return NodeRoom({}, {}, False, state != "Maintenance" and kept)
        keeps = state == "Ready" or (state == "NotReady" and now < self._unhealthy_since.get(name, now) + MOVE_AFTER)
        return NodeRoom(node.allocatable, node.labels, state == "Ready", keeps)

    def _nodes_for(self, group: _Group) -> NodesFor:
        names = group.machine.group

        def nodes_for(guest: Guest, placed: Mapping[str, str]) -> frozenset[str] | None:
            shape = self._shapes[guest.shape]
            key = (names, guest.type, guest.shape)
            if key not in self._allowed:
                views = [self.nodes[n] for n in group.entries if n in self.nodes]
                self._allowed[key] = frozenset(view.name for view in views if shape.allows(view))
            allowed = self._allowed[key]
            if not shape.has_pod_rules and not any(other.apart for other in self._shapes.values()):
                return allowed
            labels = self._labels.get(guest.uid, {})
            others = self._others(group, guest.uid, placed)
            return frozenset(
                n
                for n in allowed
                if without_conflict(shape, guest.namespace, labels, self.nodes[n], self.nodes, others, self._shapes)
            )

        return nodes_for

    def _barred(self, group: _Group) -> Barred:
        def is_barred(guest: Guest, name: str, placed: Mapping[str, str]) -> bool:
            shape, node = self._shapes[guest.shape], self.nodes.get(name)
            if node is None or not (shape.has_pod_rules or any(other.apart for other in self._shapes.values())):
                return False
            labels, others = self._labels.get(guest.uid, {}), self._others(group, guest.uid, placed)
            return not without_conflict(shape, guest.namespace, labels, node, self.nodes, others, self._shapes)

        return is_barred

    def _others(self, group: _Group, uid: str, placed: Mapping[str, str]) -> list[PodOnNode]:
        """Returns the guests on Nodes but one, and those that are about to come there."""
        found = [pod for other, pod in self._pod_labels.items() if other != uid]
        for other, node in placed.items():
            guest = group.handover.guests.get(other)
            if guest is not None and other != uid and other not in self._pod_labels:
                found.append(PodOnNode(guest.namespace, self._labels.get(other, {}), node, guest.shape))
        return found

    def _handover_effects(
        self, group: _Group, plan: Plan, slots: Mapping[str, StoredSlots], now: float
    ) -> list[Effect]:
        effects: list[Effect] = []
        handover = group.handover
        for name in group.sizes:
            obj = self._set_of(group, name)
            if obj is None or ("StatefulSet", self.namespace, obj["metadata"]["name"]) in self._busy:
                continue
            effects += self._store_effect(obj, plan.stores.get(name), slots.get(name), now)
        for name, node in plan.pins.items():
            if ("Pod", self.namespace, name) in self._busy or self._is_put_off("Pod", self.namespace, name, now):
                continue
            pod = handover.reservations[name]
            handover.pinning[name] = node
            body = pin_patch(pod.uid, pod.version, self._specs.get(name, {}), [SLOT_GATE], node)
            order = self.orders.get(machine_key(group.machine.group, pod.type))
            if order is not None and order.claim:
                body["metadata"]["labels"] = {CLAIM: order.claim}  # so that the mesh counts the Pod in its slot
            effects.append(Effect("merge", "Pod", self.namespace, name, body, "pin"))
        for name in plan.removals:
            if ("Pod", self.namespace, name) in self._busy or self._is_put_off("Pod", self.namespace, name, now):
                continue
            handover.removing.add(name)
            body = {"preconditions": {"uid": handover.reservations[name].uid}}
            effects.append(Effect("delete", "Pod", self.namespace, name, body, "reservation"))
        for opening in plan.openings:
            effects += self._opening_effect(handover, opening, now)
        for found in plan.evictions:
            key = ("Pod", found.namespace, found.name)
            if key not in self._busy and not self._is_put_off(*key, now):
                self._later[key] = now + REPAIR_INTERVAL
                meta = {"name": found.name, "namespace": found.namespace}
                options = {"preconditions": {"uid": found.uid}}
                body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta, "deleteOptions": options}
                effects.append(Effect("evict", *key, body, "eviction"))
                text = f"not bound to {found.node} within 60 s; its successor tries other Nodes"
                effects.append(pod_event(found, "SlotUnbound", text))
        return effects

    def _is_put_off(self, kind: str, namespace: str, name: str, now: float) -> bool:
        key = (kind, namespace, name)
        return max(self._later.get(key, 0.0), self._put_off.get(key, 0.0)) > now

    def _opening_effect(self, handover: Handover, opening: Opening, now: float) -> list[Effect]:
        found = opening.guest
        key = ("Pod", found.namespace, found.name)
        if key in self._busy or self._is_put_off(*key, now):
            return []
        handover.opening[found.uid] = opening.grant.node
        self._given_at[found.uid] = max(opening.grant.at, opening.grant.not_before)
        body = opening_patch(opening, {"affinity": self._shapes[found.shape].affinity}, now)
        return [Effect("merge", *key, body, "open")]

    def _store_effect(self, obj: Object, stored: Stored | None, slots: StoredSlots | None, now: float) -> list[Effect]:
        """Writes replicas, grants and slots of a StatefulSet in one request, which fails if another process wrote meanwhile."""
        meta = obj["metadata"]
        key = ("StatefulSet", self.namespace, meta["name"])
        if self._is_put_off(*key, now):
            return []
        annotations: dict[str, str] = {}
        before = meta.get("annotations") or {}
        patch: Object = {}
        if stored is not None:
            text = msgspec.json.encode(stored.grants, order="sorted").decode() if stored.grants else ""
            if before.get(GRANTS, "") != text:
                annotations[GRANTS] = text
            if obj["spec"].get("replicas") != stored.replicas:
                patch["spec"] = {"replicas": stored.replicas}
        if slots is not None:
            text = msgspec.json.encode(slots, order="sorted").decode()
            if before.get(SLOTS) != text:
                annotations[SLOTS] = text
        if not patch and not annotations:
            return []
        patch["metadata"] = {"resourceVersion": meta["resourceVersion"]}
        if annotations:
            patch["metadata"]["annotations"] = {k: v or None for k, v in annotations.items()}
        return [Effect("merge", *key, patch, "grant" if stored is not None and stored.grants else "scale")]

    def _status_effects(
        self,
        group: _Group,
        machine: Object,
        slots: Slots,
        states: Mapping[str, Condition],
        usable: frozenset[str],
        now: float,
        times: list[float],
    ) -> list[Effect]:
        if now < group.status_at + STATUS_INTERVAL:
            times.append(group.status_at + STATUS_INTERVAL)
            self._later[("Status", "", group.machine.group)] = group.status_at + STATUS_INTERVAL
            return []
        counts = group.handover.counts(usable)
        lacking = Counter(p.type for p in group.handover.reservations.values() if p.unschedulable and not p.bound)
        short = {}
        for name, row in counts.items():
            if name in slots and group.handover.maximum.get(name):
                held = sum(count for node, count in slots[name].items() if node in usable)
                missing = max(0, row.maximum - max(held, row.used)) + lacking[name]
                short[name] = (missing, row.maximum)
        left = len(self.left_over.pods_of(group.machine.group))
        found = status.findings(group.machine, short, states, left)
        wanted = {"conditions": self._conditions(machine, found, now), "availableMachines": status.usage_rows(counts)}
        effects = self._status_effect("Machine", machine, wanted)
        pool = self._objects.get(("MachineNodePool", "", f"{group.machine.name}-node-pool"))
        if pool is not None:
            listed = [{"name": name, "condition": state} for name, state in states.items()]
            pool_found = [found[0], found[2]]
            effects += self._status_effect(
                "MachineNodePool", pool, {"conditions": self._conditions(pool, pool_found, now), "nodePool": listed}
            )
        if effects:
            group.status_at = now
        return effects


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def _read_grants(text: str) -> dict[str, StoredGrant]:
    try:
        return msgspec.json.decode(text, type=dict[str, StoredGrant]) if text else {}
    except (msgspec.DecodeError, RecursionError):
        return {}


def _gone(key: tuple[str, str, str], obj: Object) -> list[Effect]:
    """Returns the request that brings the end of an object nearer."""
    meta = obj["metadata"]
    if (finalizers := without_finalizer(obj)) is not None:
        body: Object = {"metadata": {"finalizers": finalizers or None, "resourceVersion": meta["resourceVersion"]}}
        return [Effect("merge", *key, body, key[0])]
    if "deletionTimestamp" in meta:
        return []
    body = {"propagationPolicy": "Background", "preconditions": {"uid": meta["uid"]}}
    return [Effect("delete", *key, body, key[0])]


def _changeable(kind: str, obj: Object) -> Object:
    """Returns what of an object can be changed after it was made."""
    if kind == "Service":
        return {**obj, "spec": {k: v for k, v in obj["spec"].items() if k != "clusterIP"}}
    if kind == "StatefulSet":
        fixed = ("selector", "serviceName", "podManagementPolicy")
        return {**obj, "spec": {k: v for k, v in obj["spec"].items() if k not in fixed}}
    return obj


def group_names(objects: Iterable[Object]) -> set[str]:
    """Returns the groups that are named by labels."""
    return {(obj["metadata"].get("labels") or {}).get(MACHINE_GROUP, "") for obj in objects} - {""}
