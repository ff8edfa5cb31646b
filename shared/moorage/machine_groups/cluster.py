"""All that one cluster's machines are: what is there comes in, what is to be written comes out. Pure.

Objects are put as the API server has them; an older version of one changes nothing. `plan` looks only at groups and Nodes of which
something changed. The answer to a write is put like any other version of the object, so that nothing is written twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from moorage.model.machines import PoolNode

from . import status
from .cluster_objects import ClusterObjects, Object
from .effects import Effect
from .group_objects import removal_of
from .group_plan import plan_group
from .group_slots import MOVE_AFTER
from .group_status import conditions_of, status_effect
from .names import MACHINE_GROUP
from .node_marks import Marks, NodeView, condition, marked_for, marks, node_patch
from .takeover import removal


class ClusterMachines(ClusterObjects):
    """Plans what is to be written, and takes the answers."""

    # --- planning

    def plan(self, now: float) -> tuple[list[Effect], float | None]:
        """Returns what is to be done, and when to look again at the latest."""
        if self.machines_changed:
            self.read_machines()
        times = self.writes.next_times(now)
        effects: list[Effect] = []
        dirty, self.dirty_groups = self.dirty_groups, set()
        nodes, self.dirty_nodes = self.dirty_nodes, set()
        for name in sorted(nodes):
            effects += self._plan_node(name, now, times)
        for name in sorted(dirty):
            group = self.by_group.get(name)
            if group is not None:
                effects += plan_group(self, group, now, times)
        effects += self._report_invalid(now, times)
        effects += self.untold_events
        self.untold_events = []
        effects += self._orphans(now)
        self.writes.begin(effects)
        return effects, min(times, default=None)

    def _orphans(self, now: float) -> list[Effect]:
        """Removes objects of Machines that are gone: the server's garbage collector may not know the kind yet."""
        if not self.look_for_orphans or self.other_controller:
            return []
        self.look_for_orphans = False
        known = {machine["metadata"].get("uid") for machine in self.machines.values()}
        kept = group_names(self.machines.values())
        effects = [removal(pod) for pod in self.left_over.strays(kept)]
        for key, obj in self.objects.items():
            owners = [o for o in obj["metadata"].get("ownerReferences") or () if o.get("kind") == "Machine"]
            is_left = owners and not any(owner.get("uid") in known for owner in owners)
            if is_left:
                effects += removal_of(key, obj)
        return [e for e in effects if self.writes.is_free(e.key, now)]

    def start_term(self) -> None:
        """Forgets requests under way: a process that begins to act sent none that will be answered."""
        self.writes.end_all()
        self.untold_events.clear()
        for group in self.by_group.values():
            group.handover.opening.clear()
            group.handover.pinning.clear()
            group.handover.removing.clear()
        self.dirty_groups |= self.by_group.keys()
        self.dirty_nodes |= self.nodes.keys()

    def wake(self, now: float) -> None:
        """Looks at all groups again: a time has come that a plan named."""
        self.look_for_orphans = True
        self.dirty_groups |= self.by_group.keys()
        self.dirty_nodes |= {name for group in self.by_group.values() for name in group.entries}

    def done(self, effect: Effect, answer: Object | None, now: float, *, failed: bool = False) -> None:
        """Takes the answer to a request. A conflict is no failure: what changed will be put."""
        self.writes.end(effect.key)
        group_name = self._group_of_effect(effect)
        if effect.kind == "Pod":
            self._pod_done(effect, group_name, answer, now, failed)
        if answer is not None:
            self._put_answer(effect, answer)
        else:
            self.writes.note_failure(effect.key, now, refused=failed, known=self._has_newer_node(effect))
        if group_name:
            self.dirty_groups.add(group_name)
        if effect.kind == "Node":
            self.dirty_nodes.add(effect.name)

    def _has_newer_node(self, effect: Effect) -> bool:
        """Returns whether the version of a Node that a request missed is known already, so that it need not be waited for."""
        node = self.nodes.get(effect.name) if effect.kind == "Node" else None
        return node is not None and node.version != (effect.body.get("metadata") or {}).get("resourceVersion")

    def _pod_done(self, effect: Effect, group_name: str, answer: Object | None, now: float, failed: bool) -> None:
        group = self.by_group.get(group_name)
        if group is None:
            return
        handover = group.handover
        if effect.purpose == "open":
            given_at = self.given_at.pop(str(effect.body["metadata"]["uid"]), now)
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
        found = self.objects.get(effect.key) or effect.body
        return str(((found.get("metadata") or {}).get("labels") or {}).get(MACHINE_GROUP, ""))

    def _put_answer(self, effect: Effect, answer: Object) -> None:
        if effect.kind == "Pod" and effect.verb != "evict":
            if effect.verb == "delete" and self.is_gone(answer):
                return  # the answer has the version of the deletion
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

    def _report_invalid(self, now: float, times: list[float]) -> list[Effect]:
        effects = []
        for name, violations in self.invalid.items():
            machine = self.machines[name]
            text = "; ".join(f"{v.path}: {v.message}" for v in violations[:5])
            found = [status.Finding("Ready", False, "Invalid", text)]
            wanted = {"conditions": conditions_of(machine, found, now)}
            effects += status_effect(self, "Machine", machine, wanted, now, times)
        return effects

    # --- Nodes

    def _plan_node(self, name: str, now: float, times: list[float]) -> list[Effect]:
        node = self.nodes.get(name)
        entry_group = next((g for g in self.by_group.values() if name in g.entries), None)
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
        about = {"marks": wanted, "healthy": node.is_healthy, "uid": node.uid}
        if self.writes.is_busy(key) or not self.writes.may_repair(key, about, now, times):
            return []
        return [Effect("merge", "Node", "", name, patch, "node")]

    def _note_health(
        self, name: str, entry: PoolNode | None, node: NodeView | None, now: float, times: list[float]
    ) -> None:
        if entry is None or condition(entry, node) == "Ready":
            self.not_ready_since.pop(name, None)
            return
        since = self.not_ready_since.setdefault(name, now)
        if since + MOVE_AFTER > now:
            times.append(since + MOVE_AFTER)
            self.writes.later["Health", "", name] = since + MOVE_AFTER


def group_names(objects: Iterable[Object]) -> set[str]:
    """Returns the groups that are named by labels."""
    return {(obj["metadata"].get("labels") or {}).get(MACHINE_GROUP, "") for obj in objects} - {""}
