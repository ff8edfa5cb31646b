"""The objects of one cluster: Nodes, Machines, their objects and Pods, and what the mesh gave. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from moorage.model.machines import Condition, Grant, Machine, Reservation, WaitingReason
from moorage.model.object_names import NAMESPACE
from moorage.model.problems import Violation

from . import status
from .documents import Surroundings, read
from .effects import Effect
from .group_state import GroupState, read_slots
from .guest_shapes import GuestShapes
from .handover import Handover
from .handover_records import Guest, Stored, StoredGrant
from .injection import MachineGroup, machine_type_of
from .names import MACHINE_GROUP, machine_key, object_name
from .node_marks import NodeView, condition, node_view
from .object_writes import Key, ObjectWrites
from .objects import IMAGE
from .pods import guest, has_role_of_guest, is_over, labels_of, left_over, reservation, was_let_in
from .takeover import LeftOver

Object = dict[str, Any]
#: The label that a StatefulSet's controller gives its Pods.
POD_NAME = "statefulset.kubernetes.io/pod-name"
#: A guest that is still without a slot after this many seconds is told why.
TELL_AFTER = 2.0
#: Events of one plan.
MAX_TOLD = 20
#: Objects that went, of which answers to requests may come later than that.
_MAX_GONE = 1000
#: Times of hand-overs that are kept until somebody takes them.
_MAX_TIMES = 4096


class Strayed(NamedTuple):
    """A reservation without its labels."""

    uid: str
    labels: Mapping[str, str]


class ClusterObjects:
    """Objects are put as the API server has them; an older version of one changes nothing. `connected`: the mesh answers, so that nothing is
    granted here alone. Groups and Nodes of which something changed are dirty."""

    #: A group came whose Pods were put before: the shell puts all Pods again.
    relist_pods = False

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
        self.given_at: dict[str, float] = {}  # uid → when a guest whose gate is being taken off got its slot
        self._handover_times: list[float] = []
        self.untold_events: list[Effect] = []
        self.by_group: dict[str, GroupState] = {}
        self.objects: dict[Key, Object] = {}
        self.writes = ObjectWrites()
        self.shapes = GuestShapes(self.nodes)
        self._pods: dict[tuple[str, str], tuple[str, str, bool]] = {}  # key → uid, group, is a reservation
        self.pin_specs: dict[str, Mapping[str, Any]] = {}  # of reservations that are not pinned, by name
        self.strayed: dict[str, Strayed] = {}  # reservations without their labels, by name
        self._enabled: set[str] = set()
        self._versions: dict[str, int] = {}  # uid → the newest version seen
        self._gone: dict[str, int] = {}  # the same of objects that went lately
        self.not_ready_since: dict[str, float] = {}
        self.dirty_groups: set[str] = set()
        self.dirty_nodes: set[str] = set()
        self.machines_changed = False
        self.look_for_orphans = True
        self._known_groups: dict[str, MachineGroup] | None = None
        #: Guests whose Machine went; and whether Nodes changed that guests may use.
        self.lost_guests: set[str] = set()
        self.nodes_changed = False

    # --- what is there

    def _is_newer(self, meta: Mapping[str, Any]) -> bool:
        uid, version = str(meta.get("uid", "")), int(meta.get("resourceVersion") or 0)
        if version < self._versions.get(uid, 0) or version <= self._gone.get(uid, -1):
            return False
        self._versions[uid] = version
        return True

    def is_gone(self, obj: Object) -> bool:
        return str((obj.get("metadata") or {}).get("uid", "")) in self._gone

    def _forget_version(self, uid: str) -> None:
        self._gone[uid] = max(self._gone.get(uid, 0), self._versions.pop(uid, 0))
        if len(self._gone) > _MAX_GONE:
            del self._gone[next(iter(self._gone))]

    def put_node(self, node: Object) -> None:
        meta = node["metadata"]
        if not self._is_newer(meta):
            return
        view = node_view(node)
        before = self.nodes.get(view.name)
        if before is None or before.version != view.version:
            self.writes.note_news(("Node", "", view.name))
        if before is not None and before._replace(version=view.version) == view:
            self.nodes[view.name] = view
            return
        self.nodes[view.name] = view
        self._node_changed(view.name)

    def drop_node(self, name: str) -> None:
        view = self.nodes.pop(name, None)
        if view is not None:
            self._forget_version(view.uid)
            self.writes.forget(("Node", "", name))
            self._node_changed(name)

    def _node_changed(self, name: str) -> None:
        self.shapes.forget_allowed()
        self.nodes_changed = True
        self.dirty_nodes.add(name)
        for group in self.by_group.values():
            if name in group.entries:
                self.dirty_groups.add(group.machine.group)

    def put_machine(self, machine: Object) -> None:
        if not self._is_newer(machine["metadata"]):
            return
        name = machine["metadata"]["name"]
        before = self.machines.get(name)
        self.machines[name] = machine
        if before is not None and before["metadata"].get("uid") == machine["metadata"].get("uid"):
            self.untold_events = [*self.untold_events, *status.condition_events(before, machine)][-MAX_TOLD:]
        same = before is not None and all(
            before["metadata"].get(k) == machine["metadata"].get(k)
            for k in ("generation", "labels", "uid", "deletionTimestamp")
        )
        if same and before is not None and before.get("spec") == machine.get("spec"):
            if before.get("status") != machine.get("status"):
                self.dirty_groups.add((machine["metadata"].get("labels") or {}).get(MACHINE_GROUP, ""))
            return
        self.machines_changed = True

    def drop_machine(self, name: str) -> None:
        machine = self.machines.pop(name, None)
        if machine is not None:
            self._forget_version(str(machine["metadata"].get("uid", "")))
            self.writes.forget(("Machine", "", name))
            self.machines_changed = True

    def put_object(self, obj: Object, kind: str) -> None:
        """Puts a StatefulSet, a Service or a MachineNodePool."""
        meta = obj["metadata"]
        if self._is_newer(meta):
            self.writes.note_news((kind, meta.get("namespace", ""), meta["name"]))
            self.objects[kind, meta.get("namespace", ""), meta["name"]] = obj
            self.dirty_groups.add((meta.get("labels") or {}).get(MACHINE_GROUP, ""))
            self._dirty_owner(obj)

    def drop_object(self, kind: str, namespace: str, name: str) -> None:
        obj = self.objects.pop((kind, namespace, name), None)
        if obj is not None:
            self._forget_version(str(obj["metadata"].get("uid", "")))
            owners = [o.get("name") for o in obj["metadata"].get("ownerReferences") or ()]
            if not any(owner in self.machines for owner in owners):
                self.writes.forget((kind, namespace, name))
            self.dirty_groups.add((obj["metadata"].get("labels") or {}).get(MACHINE_GROUP, ""))
            self._dirty_owner(obj)

    def _dirty_owner(self, obj: Object) -> None:
        """Marks the group whose object it is, also if somebody took its labels off."""
        for owner in obj["metadata"].get("ownerReferences") or ():
            machine = self.machines.get(str(owner.get("name")))
            if owner.get("kind") == "Machine" and machine is None:
                self.look_for_orphans = True
            elif owner.get("kind") == "Machine" and machine is not None:
                self.dirty_groups.add((machine["metadata"].get("labels") or {}).get(MACHINE_GROUP, ""))

    def set_left_over(self, objects: Iterable[tuple[str, Object]]) -> None:
        """Puts all StatefulSets and Services that another controller left, each with its kind."""
        self.dirty_groups |= self.left_over.set_objects(objects)
        self.look_for_orphans |= bool(self.left_over.groups)

    def set_namespace(self, name: str, enabled: bool) -> None:
        if enabled:
            self.relist_pods |= name not in self._enabled and bool(self.by_group)
            self._enabled.add(name)
        else:
            self._enabled.discard(name)

    def put_pod(self, pod: Object) -> None:
        meta = pod["metadata"]
        if not self._is_newer(meta):
            return
        key, labels = (meta.get("namespace", ""), meta["name"]), labels_of(pod)
        self._forget_pod(key, keep=meta["uid"])
        if key[0] == self.namespace and (lost := self._strayed(pod)) is not None:
            self.strayed[key[1]] = lost
            labels = {**labels, **lost.labels}
        group_name = labels.get(MACHINE_GROUP, "") or self._only_group(machine_type_of(labels))
        self.writes.note_news(("Pod", *key))
        group = self.by_group.get(group_name)
        if (old := left_over(pod)) is not None:
            self.left_over.put_pod(group_name, old)
            self._pods[key] = (meta["uid"], group_name, False)
            self.dirty_groups.add(group_name)
            self.look_for_orphans = True
            return
        if group is None or is_over(pod):
            if group is not None:
                group.handover.forget_guest(meta["uid"])
                self.dirty_groups.add(group_name)
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
            self.pin_specs[held.name] = {} if held.node else (pod.get("spec") or {})
        elif was_let_in(pod) or (key[0] in self._enabled and has_role_of_guest(pod)):
            self._put_guest(group, pod)
        self.dirty_groups.add(group_name)

    def _strayed(self, pod: Object) -> Strayed | None:
        """Returns the labels that somebody took off a reservation. Without them its StatefulSet neither counts it nor makes another."""
        meta, labels = pod["metadata"], labels_of(pod)
        prefix, _, ordinal = meta["name"].rpartition("-")
        owner = self.objects.get(("StatefulSet", self.namespace, prefix))
        if owner is None or not ordinal.isdigit() or "deletionTimestamp" in meta or POD_NAME not in labels:
            return None
        wanted = owner["spec"]["selector"]["matchLabels"]
        return Strayed(meta["uid"], wanted) if any(labels.get(k) != v for k, v in wanted.items()) else None

    def _only_group(self, machine_type: str) -> str:
        """Returns the only group with a type, "" if several or none have it."""
        found = [name for name, group in self.by_group.items() if machine_type in group.sizes]
        return found[0] if len(found) == 1 else ""

    def _put_guest(self, group: GroupState, pod: Object) -> None:
        found = self.shapes.shared(guest(pod), self._all_guests)
        group.handover.put_guest(found)
        if found.is_marked and (found.has_claim or not found.bound):
            group.unmarked.discard(found.uid)
        else:
            group.unmarked.add(found.uid)
        if not found.gated:
            group.handover.opening.pop(found.uid, None)
            group.untold.pop(found.uid, None)
        elif not self.shapes.knows(found.uid):
            group.untold[found.uid] = _seconds(found.created) + TELL_AFTER
        self.shapes.put(found, labels_of(pod))

    def _all_guests(self) -> Iterable[Guest]:
        return (found for group in self.by_group.values() for found in group.handover.guests.values())

    def drop_pod(self, namespace: str, name: str, uid: str) -> None:
        known = self._pods.get((namespace, name))
        if known is not None and known[0] == uid:
            self._forget_pod((namespace, name))
        self._forget_version(uid)

    def _forget_pod(self, key: tuple[str, str], keep: str = "") -> None:
        if key[0] == self.namespace:
            self.strayed.pop(key[1], None)
        known = self._pods.pop(key, None)
        if known is None:
            return
        uid, group_name, is_reservation = known
        group = self.by_group.get(group_name)
        self.left_over.drop_pod(key[1], uid)
        self.shapes.leave_node(uid)
        if uid != keep:
            self.shapes.drop(uid)
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
        self.dirty_groups.add(group_name)

    def set_connected(self, connected: bool) -> None:
        if connected != self.connected:
            self.connected = connected
            self.dirty_groups |= self.by_group.keys()

    def set_other_controller(self, name: str) -> None:
        """Sets which foreign controller acts on these Machines; while there is one, nothing is written but the status."""
        if name != self.other_controller:
            self.other_controller = name
            self.machines_changed = True
            self.dirty_groups |= self.by_group.keys()
            self.dirty_nodes |= self.nodes.keys()

    def set_order(self, order: Reservation) -> None:
        self.orders[order.machine] = order
        self.dirty_groups.add(order.machine.partition("/")[0])

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
        self.dirty_groups.add(grant.machine.partition("/")[0])

    def drop_grant(self, uid: str) -> None:
        if self.grants.pop(uid, None) is not None:
            self.dirty_groups |= self.by_group.keys()

    def read_machines(self) -> None:
        """Reads all Machines again: which are valid depends on those that were there before."""
        self.machines_changed = False
        self.look_for_orphans = True
        self._known_groups = None
        self.shapes.forget_allowed()
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
            found = read(raw, Surroundings(None, accepted, stored=True))
            if found.machine is None:
                self.invalid[meta["name"]] = found.violations
                continue
            accepted[meta["name"]] = found.machine
            uids[found.machine.group] = str(meta.get("uid", ""))
        kept = {machine.group: machine for machine in accepted.values()}
        frozen = {
            g.machine.name: g.machine.group for g in self.by_group.values() if g.machine.name in self.invalid
        }  # what is stored and invalid stays as it was
        for name, group in list(self.by_group.items()):
            if name not in kept and group.machine.name not in frozen:
                self.dirty_nodes |= group.entries.keys()
                self.lost_guests |= group.handover.guests.keys()
                del self.by_group[name]
        pods_missing = False
        for name, machine in kept.items():
            group_now = self.by_group.get(name)
            if group_now is None or group_now.uid != uids[name]:
                pods_missing = True
                self.by_group[name] = GroupState(machine, uids[name])
            elif group_now.machine != machine:
                self.dirty_nodes |= group_now.entries.keys()
                group_now.set_machine(machine)
            self.dirty_nodes |= self.by_group[name].entries.keys()
        self.dirty_groups |= self.by_group.keys()
        self.relist_pods = pods_missing or self.relist_pods

    def set_of(self, group: GroupState, machine_type: str) -> Object | None:
        """Returns the StatefulSet of a type."""
        return self.objects.get(("StatefulSet", self.namespace, object_name(group.machine.group, machine_type)))

    def reservation_of(self, group: GroupState, machine_type: str) -> str:
        """Returns the claim of all slots of a type in the mesh, "" if it never told."""
        order = self.orders.get(machine_key(group.machine.group, machine_type))
        return order.claim if order is not None else read_slots(self.set_of(group, machine_type)).claim

    # --- what metrics, hooks and reports read

    def take_handover_times(self) -> list[float]:
        """Returns the seconds from each slot being given until the gate was off, since the last call."""
        found, self._handover_times = self._handover_times[-_MAX_TIMES:], []
        return found

    def slot_counts(self) -> dict[tuple[str, str], float]:
        """Returns how many slots each machine type has by state."""
        found: dict[tuple[str, str], float] = {}
        for group in self.by_group.values():
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
        if self.machines_changed:
            self.read_machines()
        if self._known_groups is None:
            self._known_groups = {name: MachineGroup(g.machine, g.sizes) for name, g in self.by_group.items()}
        return self._known_groups

    def group(self, name: str) -> Handover | None:
        group = self.by_group.get(name)
        return group.handover if group is not None else None

    def surroundings(self, name: str, before: Object | None) -> Surroundings:
        """Returns what a Machine is checked against."""
        if self.machines_changed:
            self.read_machines()
        others = {n: group.machine for group in self.by_group.values() if (n := group.machine.name) != name}
        old = read(before, Surroundings(stored=True)).machine if before is not None else None
        return Surroundings(self.nodes.keys(), others, old)

    def handovers(self) -> list[Handover]:
        return [group.handover for group in self.by_group.values()]

    def allowed_nodes(self, group: str, guest: Guest) -> frozenset[str] | None:
        """Returns the Nodes of its group that a guest may use, whoever else is there."""
        return self.shapes.nodes_for(self.by_group[group])(guest)

    def unhealthy_since(self, node: str) -> float:
        return self.not_ready_since.get(node, 0.0)

    def pool_conditions_by_node(self) -> dict[str, Condition]:
        """Returns the conditions of all Nodes of pools."""
        return {n: state for group in self.by_group.values() for n, state in self.pool_conditions(group).items()}

    def pool_conditions(self, group: GroupState) -> dict[str, Condition]:
        return {name: condition(entry, self.nodes.get(name)) for name, entry in group.entries.items()}


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0
