"""Decided worlds on a real scheduler: pods with host ports, anti-affinity, affinity and topology spread, each held to the node
of its slot, all start.

Worlds share a control plane. Each has a namespace, nodes and label keys of its own, so that no rule reaches into another.
"""

from __future__ import annotations

import random
import urllib.error
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import msgspec
import pytest

from moorage.intents.core import validate
from moorage.intents.core.resolve import resolve
from moorage.ledger import Ledger
from moorage.merger.core.propose import NameOrder, propose
from moorage.merger.core.responses import ControllerResults, Replies
from moorage.model.claims import Decision
from moorage.podspec import parse_host_port
from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.fleets import fleet_of
from moorage_testkit.polling import wait_until
from moorage_testkit.rule_worlds import HOSTNAME, KINDS, World, random_world

BATCH = 50
LABEL = "test.moorage.dev/worlds"
CORE = "/api/v1"
Body = dict[str, Any]


class DecidedWorld(NamedTuple):
    name: str
    world: World
    decision: Decision


def own_world(world: World, name: str) -> World:
    """Returns the world with a namespace and label keys of its own."""

    def renamed(value: Any, inside: str = "") -> Any:
        if isinstance(value, list):
            return [renamed(entry, inside) for entry in value]
        if isinstance(value, dict):
            return {key_of(key): renamed(entry, key) for key, entry in value.items() if not _reaches_out(key, entry)}
        if value in ("default", "elsewhere") and inside in ("namespaces", "kubernetes.io/metadata.name"):
            return name if value == "default" else f"{name}-elsewhere"
        return key_of(value) if inside in ("topologyKey", "key") else value

    def key_of(key: str) -> str:
        return f"{name}.test/{key}" if key in ("zone", "rack") else key

    application = renamed(world.application)
    for app in application["spec"]["apps"]:
        for made in app["manifests"]:
            made["metadata"]["namespace"] = name
            # Every node of the control plane has a host name, so spreads by host need a label of their own.
            for spread in made["spec"]["template"]["spec"].get("topologySpreadConstraints", ()):
                if spread["topologyKey"] == HOSTNAME:
                    spread["topologyKey"] = f"{name}.test/host"
    nodes = []
    for report in world.nodes:
        own = f"{name}-{report.name}"
        labels = {key_of(k): v for k, v in report.labels.items()} | {HOSTNAME: own, f"{name}.test/host": own}
        nodes.append(msgspec.structs.replace(report, name=own, labels=labels))
    return World(application, nodes)


def _reaches_out(key: str, value: Any) -> bool:
    """Returns whether a selector takes pods of all namespaces, and so of other worlds."""
    return key == "namespaceSelector" and value == {}


def decided_worlds(seed: str) -> Iterator[DecidedWorld]:
    """Yields worlds that have a decision, without end."""
    number = 0
    while True:
        number += 1
        name = f"w{seed}-{number}"
        kinds = random.Random(f"{name} kinds").choice([KINDS, ("apart",), ("spread",), ("near",), ("apart", "spread")])
        world = own_world(random_world(random.Random(name), kinds, nodes=5, pods=7, name=name), name)
        record = resolve(validate.application(world.application))
        if any(": affinity" in warning.message for warning in record.warnings):
            continue  # its pods must be near to pods that there are not
        fleet = fleet_of({"lab/a": world.nodes})
        none = ControllerResults(Replies([app.name for app in record.apps], [], {}, {}), fleet.membership)
        proposal = propose(record, none, fleet, Ledger(), NameOrder(), "d")
        if isinstance(proposal, Decision) and any(s.rules for app in record.apps for s in app.shapes):
            yield DecidedWorld(name, world, proposal)


def pin(node: str) -> str:
    """Returns a resource that only this node has. Unlike node affinity it changes no domain of a spread."""
    return f"pin.test/{node}"


def node_bodies(worlds: Iterable[DecidedWorld], batch: str) -> Iterator[Body]:
    for _, world, _ in worlds:
        for report in world.nodes:
            amounts = {**report.allocatable, pin(report.name): "99"}
            yield {
                "metadata": {"name": report.name, "labels": {**report.labels, LABEL: batch}},
                "spec": {"taints": msgspec.to_builtins(report.taints)},
                "status": {"allocatable": amounts, "capacity": amounts},
            }


def pod_bodies(decided: DecidedWorld) -> Iterator[Body]:
    """Yields the pods of a world, each pinned to its slot, in the order of the claims."""
    objects = {
        (app["name"], made["metadata"]["name"]): made
        for app in decided.world.application["spec"]["apps"]
        for made in app["manifests"]
    }
    for claim in decided.decision.claims:
        name = claim.object.partition("/")[2]
        template = objects[claim.app, name]["spec"]["template"]
        number = 0
        for slot in claim.slots:
            for _ in range(slot.count):
                container = msgspec.json.decode(msgspec.json.encode(template["spec"]["containers"][0]))
                container["resources"]["requests"][pin(slot.node)] = "1"
                container["resources"]["limits"] = {pin(slot.node): "1"}
                labels = {**template["metadata"]["labels"], "pod-template-hash": name}
                yield {
                    "metadata": {"name": f"{name}-{number}", "namespace": decided.name, "labels": labels},
                    "spec": {**template["spec"], "containers": [container], "terminationGracePeriodSeconds": 0},
                }
                number += 1


def blocking_pods(decided: DecidedWorld) -> Iterator[Body]:
    """Yields pods that use the host ports that nodes had in use, on these nodes already."""
    for report in decided.world.nodes:
        for text in report.host_ports:
            port = parse_host_port(text)
            ports = [{"containerPort": port.port, "hostPort": port.port, "protocol": port.protocol}]
            yield {
                "metadata": {"name": f"block-{report.name}", "namespace": "default"},  # where no rule looks
                "spec": {
                    "nodeName": report.name,
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [{"name": "c", "image": "i", "ports": ports}],
                },
            }


class Cluster:
    """Requests to the API server, several at a time."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def create(self, bodies: Iterable[Body], path: Callable[[Body], str]) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda body: self._call("POST", path(body), body), bodies))

    def _call(self, method: str, path: str, body: Body | None = None) -> bytes:
        """Sends a request again where a busy server did not answer in time; what it did the first time it refuses then."""
        repeated = False
        while True:
            try:
                return self._plane.call(method, path, body)
            except urllib.error.HTTPError as error:
                if repeated and error.code in (404, 409):
                    return b""
                raise AssertionError(f"{method} {path}: {error.read().decode()}: {body}") from error
            except (TimeoutError, urllib.error.URLError):
                repeated = True

    def items(self, path: str) -> list[Body]:
        found: list[Body] = msgspec.json.decode(self._call("GET", path))["items"]
        return found

    def delete(self, paths: Iterable[str]) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda path: self._call("DELETE", path, {"gracePeriodSeconds": 0}), paths))

    def until(self, check: Callable[[], bool], seconds: float, what: Callable[[], object]) -> None:
        wait_until(check, what, seconds)


def pods_path(body: Body) -> str:
    return f"{CORE}/namespaces/{body['metadata']['namespace']}/pods"


def bind(plane: ControlPlane, batch: str, worlds: list[DecidedWorld], rng: random.Random) -> None:
    """Creates the worlds, their pods in any order, and waits until all are bound."""
    cluster = Cluster(plane)
    names = {decided.name for decided in worlds}
    cluster.create(node_bodies(worlds, batch), lambda _: f"{CORE}/nodes")
    cluster.create(({"metadata": {"name": name}} for name in sorted(names)), lambda _: f"{CORE}/namespaces")
    taints = {report.name: len(report.taints) for decided in worlds for report in decided.world.nodes}

    def prepared() -> bool:
        nodes = cluster.items(f"{CORE}/nodes?labelSelector={LABEL}={batch}")
        accounts = {a["metadata"]["namespace"] for a in cluster.items(f"{CORE}/serviceaccounts")}
        settled = all(len(n["spec"].get("taints", ())) == taints[n["metadata"]["name"]] for n in nodes)
        return settled and len(nodes) == len(taints) and names <= accounts

    cluster.until(prepared, 120, lambda: "nodes are not ready, or namespaces have no service account")
    cluster.create((body for decided in worlds for body in blocking_pods(decided)), pods_path)
    pods = [body for decided in worlds for body in pod_bodies(decided)]
    rng.shuffle(pods)
    cluster.create(pods, pods_path)

    def unbound() -> dict[str, Any]:
        """Returns the pods without a node, with the scheduler's message."""
        return {
            f"{pod['metadata']['namespace']}/{pod['metadata']['name']}": pod["status"].get("conditions")
            for pod in cluster.items(f"{CORE}/pods")
            if pod["metadata"]["namespace"] in names and not pod["spec"].get("nodeName")
        }

    cluster.until(lambda: not unbound(), 240, unbound)
    assert sum(pod["metadata"]["namespace"] in names for pod in cluster.items(f"{CORE}/pods")) >= len(pods)
    cluster.delete(f"{CORE}/namespaces/{name}/pods" for name in sorted({*names, "default"}))
    cluster.delete(f"{CORE}/nodes/{name}" for name in taints)


def bind_many(plane: ControlPlane, seed: str, count: int) -> None:
    found = decided_worlds(seed)
    for number in range(0, count, BATCH):
        worlds = [next(found) for _ in range(min(BATCH, count - number))]
        bind(plane, f"{seed}-{number}", worlds, random.Random(seed))


@pytest.mark.timeout(600)
def test_pods_of_decided_worlds_start(plane: ControlPlane) -> None:
    bind_many(plane, "a", BATCH)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_pods_of_many_decided_worlds_start(plane: ControlPlane) -> None:
    bind_many(plane, "b", 1000)
