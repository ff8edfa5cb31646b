"""A small Kubernetes with adversarial timing for machine groups: an API server with versions, watches that lag, the controller of
StatefulSets, a scheduler that counts what nodes have, and kubelets that need time to end Pods."""

from __future__ import annotations

import copy
import random
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import msgspec

from moorage.machine_groups.cluster import ClusterMachines
from moorage.machine_groups.effects import Effect
from moorage.machine_groups.injection import Injected, inject
from moorage.machine_groups.names import MACHINE_TYPE, NAMESPACE_LABELS, OTHER_NAMESPACE, POD_ROLE
from moorage.model.object_names import NAMESPACE
from moorage.parsing import parse_amount
from moorage.podspec import pinned_node

from .machines import machine, offline

Object = dict[str, Any]
TEAM = "team"


class Conflict(Exception):
    pass


class World:
    """`machine` is the document; nodes have `allocatable`. All that happens is driven by `step`."""

    def __init__(self, machine: Object, nodes: dict[str, dict[str, str]], rng: random.Random, **labels: str) -> None:
        self.rng, self.now = rng, 1_800_000_000.0
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.version = 0
        self.events: list[tuple[str, str, Object]] = []  # verb, kind, object: what watches have not delivered yet
        self.pending: list[Effect] = []
        self.writes: Counter[str] = Counter()
        self.told: list[tuple[str, str]] = []  # names of Pods, and reasons of events about them
        self.allocatable = nodes
        self.silent: set[str] = set()  # Nodes whose kubelets do nothing
        for name, amounts in nodes.items():
            self.create(
                "Node",
                {
                    "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
                    "spec": {},
                    "status": {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
                },
            )
        self.create("Machine", machine)
        self.start()

    def start(self) -> None:
        """Starts the process, again: it knows what a list has."""
        self.pending = []  # requests of the one before that are lost
        self.core = ClusterMachines()
        self.core.set_namespace(TEAM, True)
        self.look_for_left_over()
        self.events = []
        ordered = sorted(
            self.objects, key=lambda k: ("Node", "Machine").index(k[0]) if k[0] in ("Node", "Machine") else 9
        )
        for key in ordered:
            self.deliver("put", key[0], self.objects[key])

    # --- the API server

    def create(self, kind: str, obj: Object) -> Object:
        self.version += 1
        meta = obj.setdefault("metadata", {})
        key = (kind, meta.get("namespace", ""), meta["name"])
        if key in self.objects:
            raise Conflict
        meta |= {"uid": f"{kind}-{self.version}", "resourceVersion": str(self.version), "generation": 1}
        meta["creationTimestamp"] = f"2027-01-15T08:{self.version // 60 % 60:02}:{self.version % 60:02}Z"
        self.objects[key] = obj
        self.notify("put", kind, obj)
        return copy.deepcopy(obj)

    def change(self, kind: str, obj: Object) -> Object:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self.notify("put", kind, obj)
        return copy.deepcopy(obj)

    def remove(self, kind: str, namespace: str, name: str) -> None:
        obj = self.objects.pop((kind, namespace, name), None)
        if obj is not None:
            self.version += 1
            self.notify("drop", kind, obj)

    def notify(self, verb: str, kind: str, obj: Object) -> None:
        self.events.append((verb, kind, copy.deepcopy(obj)))

    def deliver(self, verb: str, kind: str, obj: Object) -> None:
        obj, core = copy.deepcopy(obj), self.core
        meta = obj["metadata"]
        namespace, name = meta.get("namespace", ""), meta["name"]
        if kind == "Node":
            core.put_node(obj) if verb == "put" else core.drop_node(name)
        elif kind == "Machine":
            core.put_machine(obj) if verb == "put" else core.drop_machine(name)
            core.groups()
        elif kind == "Pod":
            core.put_pod(obj) if verb == "put" else core.drop_pod(namespace, name, meta["uid"])
        elif namespace == OTHER_NAMESPACE:
            self.look_for_left_over()
        else:
            core.put_object(obj, kind) if verb == "put" else core.drop_object(kind, namespace, name)

    def look_for_left_over(self) -> None:
        """Lists what another controller left in its namespace."""
        found = [(k[0], o) for k, o in self.objects.items() if k[0] != "Pod" and k[1] == OTHER_NAMESPACE]
        self.core.set_left_over(copy.deepcopy(found))

    def perform(self, effect: Effect) -> Object | None:
        """Performs a request; None where the server refuses it."""
        found = self.objects.get(effect.key)
        if effect.verb == "event":
            self.told.append((effect.name, effect.body["reason"]))
            return {}
        self.writes[effect.purpose] += 1
        if effect.verb == "create":
            # As it travels: parts that are one object here are not there.
            body = msgspec.json.decode(msgspec.json.encode(effect.body))
            return None if found is not None else self.create(effect.kind, body)
        if found is None:
            return None
        meta = effect.body.get("metadata") or {}
        uid = effect.body.get("preconditions", {}).get("uid") or meta.get("uid")
        if uid not in (None, found["metadata"]["uid"]) or meta.get("resourceVersion", found["metadata"]["resourceVersion"]) != found["metadata"]["resourceVersion"]:  # fmt: skip
            return None
        if effect.verb in ("delete", "evict"):
            if effect.kind == "Pod":
                if effect.body.get("gracePeriodSeconds") == 0:
                    self.remove(*effect.key)
                    return copy.deepcopy(found)
                return self.delete_pod(found)
            if not found["metadata"].get("finalizers"):
                self.remove(*effect.key)
            return copy.deepcopy(found)
        body = copy.deepcopy(effect.body)
        for field in ("uid", "resourceVersion"):
            body.get("metadata", {}).pop(field, None)
        merge(found, body)
        return self.change(effect.kind, found)

    def delete_pod(self, pod: Object) -> Object:
        if "deletionTimestamp" not in pod["metadata"]:
            pod["metadata"]["deletionTimestamp"] = "now"
            self.change("Pod", pod)
        if not pod["spec"].get("nodeName"):
            self.remove("Pod", pod["metadata"].get("namespace", ""), pod["metadata"]["name"])
        return copy.deepcopy(pod)

    # --- Pods

    def pods(self) -> list[Object]:
        return [obj for key, obj in self.objects.items() if key[0] == "Pod"]

    def guest(self, name: str, machine_type: str, *, owner: str = "", **fields: Any) -> Object:
        """Creates a guest as the hook lets it in. `owner`: its ReplicaSet."""
        labels = {MACHINE_TYPE: machine_type, **fields.pop("labels", {})}
        spec = {"containers": [{"name": "main"}], "terminationGracePeriodSeconds": 0, **fields}
        pod = {"metadata": {"name": name, "namespace": TEAM, "labels": labels}, "spec": spec, "status": {}}
        made = inject(pod, TEAM, self.core.groups())
        assert isinstance(made, Injected), made
        found = copy.deepcopy(made.pod)
        if owner:
            reference = {"kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}
            found["metadata"]["ownerReferences"] = [reference]
        return self.create("Pod", found)

    def controllers(self) -> None:
        """Runs the controller of StatefulSets once."""
        for key, obj in list(self.objects.items()):
            if key[:2] != ("StatefulSet", NAMESPACE):
                continue
            name, replicas = key[2], obj["spec"].get("replicas", 1)
            for i in range(replicas):
                if ("Pod", NAMESPACE, f"{name}-{i}") not in self.objects:
                    template = copy.deepcopy(obj["spec"]["template"])
                    owner = {"kind": "StatefulSet", "name": name, "controller": True}
                    meta = {**template["metadata"], "name": f"{name}-{i}", "namespace": NAMESPACE}
                    self.create(
                        "Pod",
                        {"metadata": {**meta, "ownerReferences": [owner]}, "spec": template["spec"], "status": {}},
                    )
            for pod in self.pods():
                owner = (pod["metadata"].get("ownerReferences") or [{}])[0]
                ordinal = pod["metadata"]["name"].rpartition("-")[2]
                if (
                    owner.get("name") == name
                    and int(ordinal) >= replicas
                    and "deletionTimestamp" not in pod["metadata"]
                ):
                    self.delete_pod(pod)

    def schedule(self) -> None:
        """Binds one Pod that may be bound, if its Node has room."""
        waiting = [p for p in self.pods() if not p["spec"].get("nodeName") and not p["spec"].get("schedulingGates")]
        self.rng.shuffle(waiting)
        for pod in waiting:
            node = pinned_node(pod["spec"])
            if not node and pod["metadata"].get("namespace") in (TEAM, OTHER_NAMESPACE):
                node = next((n for n in self.allocatable if self.fits(pod, n)), "")
            if "deletionTimestamp" not in pod["metadata"] and node in self.allocatable and self.fits(pod, node):
                pod["spec"]["nodeName"] = node
                self.change("Pod", pod)
                return
            self.note_unschedulable(pod)

    def note_unschedulable(self, pod: Object) -> None:
        if not pod["status"].get("conditions"):
            since = datetime.fromtimestamp(self.now, UTC).isoformat(timespec="seconds")
            found = {"type": "PodScheduled", "reason": "Unschedulable", "lastTransitionTime": since}
            pod["status"]["conditions"] = [found]
            self.change("Pod", pod)

    def stranger(self, name: str, node: str, cpu: str) -> None:
        """Creates a Pod of somebody else on a Node."""
        containers = [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]
        meta = {"name": name, "namespace": "other", "labels": {}}
        self.create("Pod", {"metadata": meta, "spec": {"nodeName": node, "containers": containers}, "status": {}})

    def fits(self, pod: Object, node: str) -> bool:
        total: Counter[str] = Counter()
        for other in [*self.on(node), pod]:
            for container in other["spec"]["containers"]:
                for name, text in (container.get("resources", {}).get("requests") or {}).items():
                    total[name] += parse_amount(name, text, True)
        return all(total[k] <= parse_amount(k, self.allocatable[node].get(k, "0"), False) for k in total)

    def on(self, node: str) -> list[Object]:
        return [
            p for p in self.pods() if p["spec"].get("nodeName") == node and p.get("status", {}).get("phase") != "Succeeded"
        ]  # fmt: skip

    def kubelets(self) -> None:
        """Ends one Pod that is being deleted."""
        if ending := self.ending():
            pod = self.rng.choice(ending)
            self.remove("Pod", pod["metadata"].get("namespace", ""), pod["metadata"]["name"])

    def ending(self) -> list[Object]:
        """Returns the Pods that are being deleted, and whose kubelet runs."""
        pods = [p for p in self.pods() if "deletionTimestamp" in p["metadata"]]
        return [p for p in pods if p["spec"].get("nodeName") not in self.silent]

    def finish(self, pod: Object) -> None:
        pod["status"] = {"phase": "Succeeded"}
        self.change("Pod", pod)

    def guests(self) -> list[Object]:
        return [p for p in self.pods() if p["metadata"]["labels"].get(POD_ROLE) == "guest"]

    # --- time

    def observe(self) -> None:
        """Delivers the next event of a random object; of one object they come in order, sometimes twice."""
        if not self.events:
            return
        i = self.rng.randrange(len(self.events))
        _, kind, chosen = self.events[i]
        meta = chosen["metadata"]
        key = (kind, meta.get("namespace", ""), meta["name"])
        for j, (verb, other, obj) in enumerate(self.events):
            if (other, obj["metadata"].get("namespace", ""), obj["metadata"]["name"]) == key:
                self.deliver(verb, other, obj)
                if verb == "put" and self.rng.random() < 0.1:
                    self.deliver(verb, other, obj)
                del self.events[j]
                return

    def plan(self) -> None:
        effects, _ = self.core.plan(self.now)
        self.pending += effects

    def answer(self) -> None:
        """Performs one request, and gives its answer or loses it."""
        if not self.pending:
            return
        effect = self.pending.pop(self.rng.randrange(len(self.pending)))
        answer = self.perform(effect)
        self.core.done(effect, answer if self.rng.random() < 0.9 else None, self.now)

    def step(self) -> None:
        """Does one thing."""
        actions = (self.observe, self.observe, self.plan, self.answer, self.answer, self.controllers, self.schedule, self.kubelets)  # fmt: skip
        self.rng.choice(actions)()

    def rest(self, steps: int = 400) -> None:
        """Lets everything happen until nothing does."""
        quiet = 0
        for _ in range(steps):
            before = (self.version, len(self.events), len(self.pending))
            while self.events:
                self.observe()
            self.core.wake(self.now)
            self.plan()
            while self.pending:
                self.answer()
            self.controllers()
            for _ in range(len(self.pods())):
                self.schedule()
            while self.ending():
                self.kubelets()
            self.now += 0.6
            quiet = quiet + 1 if (self.version, len(self.events), len(self.pending)) == before else 0
            if quiet == 3:
                return
        raise AssertionError(f"no rest: {self.writes}")

    def machine(self, name: str) -> Object:
        return self.objects["Machine", "", name]

    def usage(self, name: str) -> dict[str, dict[str, int]]:
        rows = self.machine(name)["status"]["availableMachines"]
        return {row["name"]: row["usage"] for row in rows}

    def condition(self, name: str, kind: str) -> Object:
        return next(c for c in self.machine(name)["status"]["conditions"] if c["type"] == kind)


def merge(target: Object, patch: Object) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            if not isinstance(target.get(key), dict):
                target[key] = {}
            merge(target[key], value)
        else:
            target[key] = value


def enabled() -> dict[str, str]:
    return {NAMESPACE_LABELS[0]: "enabled"}


def world(slots: int = 3, nodes: int = 2, per_node: int = 2, seed: int = 1, **spec: Any) -> World:
    """Returns a world with a Machine g of one type a, and Nodes n0, n1, … that have room for `per_node` slots each."""
    names = [f"n{i}" for i in range(nodes)]
    document = machine("g", {"a": offline(slots, **spec)}, {name: ["a"] for name in names}, taint=True)
    return World(document, {name: {"cpu": str(2 * per_node), "memory": "64Gi"} for name in names}, random.Random(seed))
