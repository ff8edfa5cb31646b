"""Machines of one simulated cluster: what the `machines` of a real cluster does, by the same core, over simulated objects.

Requests of the core are carried out at once. Reservations and guests are pods of the cluster like any other; here they also
have the form that the API server would give them, which the core reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from moorage.machine_groups.cluster import ClusterMachines
from moorage.machine_groups.effects import Effect
from moorage.machine_groups.injection import Denied, inject
from moorage.machine_groups.names import MESH, ORIGIN
from moorage.machine_groups.reports import MeshReports
from moorage.machine_groups.written import document_of
from moorage.model.machines import MachinesSync, MachinesSynced
from moorage.model.object_names import NAMESPACE
from moorage.podspec import pinned_to
from moorage.podspec.json_patch import merge_patch

from .cluster_spec import HOSTNAME, ClusterSpec
from .pod_needs import PodNeed, read_pod

Object = dict[str, Any]
#: Carries out what concerns pods.
CarryOut = Callable[[Effect, Object | None], None]
#: Rounds of requests of one event. The core comes to rest long before.
_MAX_ROUNDS = 200
#: The key under which reservations are workloads of the cluster.
OWN = ("", "machines")


class SimulatedMachines:
    """`now` is the wall clock in all calls: windows and pauses are times of day."""

    def __init__(self, spec: ClusterSpec, session: str) -> None:
        self._version = 0
        self._state = ClusterMachines()
        self._state.set_connected(True)
        self._pods: dict[str, Object] = {}  # by uid
        self._names: dict[tuple[str, str], str] = {}  # namespace and name → uid
        self._objects: dict[tuple[str, str, str], Object] = {}
        self._reports = MeshReports(self._state, spec.id, session, 1)
        self._wake_at: float | None = None
        self.set_spec(spec)

    def set_spec(self, spec: ClusterSpec) -> None:
        """Gives the cluster these nodes and Machines."""
        nodes = dict(spec.nodes())
        for name in [key[2] for key in self._objects if key[0] == "Node" and key[2] not in nodes]:
            del self._objects["Node", "", name]
            self._state.drop_node(name)
        for name, kind in nodes.items():
            conditions = [{"type": "Ready", "status": "True" if kind.ready else "False"}]
            node: Object = {
                "metadata": {"name": name, "uid": f"node/{name}", "labels": {HOSTNAME: name, **kind.labels}},
                "spec": {
                    "unschedulable": kind.unschedulable,
                    "taints": [{"key": t.key, "value": t.value, "effect": t.effect} for t in kind.taints],
                },
                "status": {"allocatable": kind.texts, "conditions": conditions},
            }
            before = self._objects.get(("Node", "", name))
            if before is not None:
                node["metadata"]["annotations"] = before["metadata"].get("annotations") or {}
            self._put("Node", "", name, node)
            self._state.put_node(self._objects["Node", "", name])
        self._own = {machine.name: machine for machine in spec.machines}
        self._set_machines()

    def _set_machines(self) -> None:
        """Makes the Machines of the cluster those of its document and those that the mesh wrote for its own."""
        of_mesh = {name: one.machine for name, one in (self._reports.documents or {}).items() if name not in self._own}
        machines = {**self._own, **of_mesh}
        for name in [n for n in self._state.machines if n not in machines]:
            self._objects.pop(("Machine", "", name), None)
            self._state.drop_machine(name)
        for name, machine in machines.items():
            found = self._objects.get(("Machine", "", name))
            wanted = document_of(machine)
            if found is None or found["spec"] != wanted["spec"]:
                generation = 1 + (found["metadata"].get("generation", 0) if found is not None else 0)
                labels = wanted["metadata"]["labels"] | ({ORIGIN: MESH} if name in of_mesh else {})
                meta = {"name": name, "labels": labels, "uid": f"machine/{name}", "generation": generation}
                made = {**wanted, "metadata": meta, "status": (found or {}).get("status") or {}}
                self._put("Machine", "", name, made)
                self._state.put_machine(self._objects["Machine", "", name])

    # --- pods

    def admit(
        self, uid: str, name: str, template: Mapping[str, Any], need: PodNeed, owner: str, now: float
    ) -> PodNeed | str:
        """Returns what a pod needs once it is a guest, or why it is denied. A reservation stays as it is."""
        pod = self._as_object(uid, name, template, need, owner, now)
        self._state.set_namespace(need.namespace, True)
        found = inject(pod, need.namespace, self._state.groups())
        if found is None:
            if need.namespace != NAMESPACE:
                return need  # neither a guest nor a reservation
        elif isinstance(found, Denied):
            return f"{found.code}: {found.message}"
        else:
            pod = found.pod
        self._keep(pod)
        admitted = read_pod(pod)
        # A template has nothing of what the controller of DaemonSets adds to its pods.
        tolerations = tuple(dict.fromkeys([*admitted.tolerations, *need.tolerations]))
        return admitted._replace(node_name=need.node_name, tolerations=tolerations)

    def _as_object(
        self, uid: str, name: str, template: Mapping[str, Any], need: PodNeed, owner: str, now: float
    ) -> Object:
        meta = template.get("metadata") or {}
        kind, _, of = owner.partition("/")
        spec = dict(template.get("spec") or {})
        if kind == "DaemonSet":
            spec = pinned_to(spec, need.node_name)
        return {
            "metadata": {
                "name": name,
                "namespace": need.namespace,
                "uid": uid,
                "labels": dict(need.labels),
                "annotations": dict(meta.get("annotations") or {}),
                "creationTimestamp": datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds"),
                "ownerReferences": [{"kind": kind, "name": of, "controller": True}],
            },
            "spec": spec,
            "status": {},
        }

    def _keep(self, pod: Object) -> None:
        meta = pod["metadata"]
        self._version += 1
        meta["resourceVersion"] = str(self._version)
        self._pods[meta["uid"]] = pod
        self._names[meta["namespace"], meta["name"]] = meta["uid"]
        self._state.put_pod(pod)

    def bound(self, uid: str, node: str) -> None:
        pod = self._pods.get(uid)
        if pod is None:
            return
        self._keep({**pod, "spec": {**pod["spec"], "nodeName": node}, "status": {"phase": "Running"}})

    def gone(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is not None:
            key = pod["metadata"]["namespace"], pod["metadata"]["name"]
            if self._names.get(key) == uid:
                del self._names[key]
            self._state.drop_pod(*key, uid)

    # --- the core

    def step(self, now: float, carry_out: CarryOut) -> bool:
        """Lets the core act until it rests. `carry_out` is called for what concerns pods and their number: with the new form
        of the StatefulSet or of the Pod, or with None where it is deleted. Returns whether it was."""
        carried_out = False
        if self._wake_at is not None and now >= self._wake_at:
            self._state.wake(now)
            self._wake_at = None
        for _ in range(_MAX_ROUNDS):
            effects, later = self._state.plan(now)
            self._wake_at = later
            if not effects:
                break
            for effect in effects:
                self._carry_out(effect, now, carry_out)
                carried_out = carried_out or effect.kind in ("StatefulSet", "Pod", "Node")
        return carried_out

    @property
    def wake_at(self) -> float | None:
        return self._wake_at

    def _carry_out(self, effect: Effect, now: float, carry_out: CarryOut) -> None:
        if effect.verb == "event":
            return
        if effect.kind == "Pod":
            self._carry_out_on_pod(effect, now, carry_out)
            return
        before = self._objects.get(effect.key)
        if effect.verb == "delete" or (before is None and effect.verb != "create"):
            self._objects.pop(effect.key, None)
            if effect.kind == "StatefulSet":
                carry_out(effect, None)
            self._state.done(effect, before if effect.verb == "delete" else None, now)
            return
        body = {k: v for k, v in effect.body.items() if k != "metadata"} | {
            "metadata": {k: v for k, v in (effect.body.get("metadata") or {}).items() if k != "resourceVersion"}
        }
        made = merge_patch(before or {}, body)
        made["metadata"].setdefault("uid", f"{effect.kind}/{effect.name}")
        self._put(*effect.key, made)
        if effect.kind in ("StatefulSet", "Node"):
            carry_out(effect, self._objects[effect.key])
        self._state.done(effect, self._objects[effect.key], now)

    def _carry_out_on_pod(self, effect: Effect, now: float, carry_out: CarryOut) -> None:
        uid = self._names.get((effect.namespace, effect.name))
        pod = self._pods.get(uid) if uid is not None else None
        if pod is None:
            self._state.done(effect, None, now)
        elif effect.verb in ("delete", "evict"):
            carry_out(effect, None)
            self._state.done(effect, {}, now)
        else:
            body = {**effect.body, "metadata": {**effect.body["metadata"]}}
            body["metadata"].pop("resourceVersion", None)
            made = merge_patch(pod, body)
            self._keep(made)
            self._state.done(effect, made, now)
            carry_out(effect, made)

    def _put(self, kind: str, namespace: str, name: str, obj: Object) -> None:
        self._version += 1
        obj["metadata"] = {**obj["metadata"], "resourceVersion": str(self._version)}
        self._objects[kind, namespace, name] = obj

    # --- the mesh

    @property
    def has_news(self) -> bool:
        return self._reports.has_news

    def report(self) -> MachinesSync:
        return self._reports.report()

    def take(self, answer: MachinesSynced, now: float) -> None:
        self._reports.take(answer, now)
        if answer.full or answer.documents or answer.documents_gone:
            self._set_machines()

    def begin_again(self) -> None:
        self._reports.begin_again()
