"""One agent and one real cluster: it reports, applies, repairs, prunes and removes."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.error
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from moorage.agent import context, reporting
from moorage.agent.install_manifests import OWN_RULES, RULES
from moorage.machine_groups.names import MACHINE_TYPE, NAMESPACE_LABELS
from moorage.model.desired_state import DesiredApp
from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.polling import until

from .conftest import Mesh, Start, settled

CLUSTER = "lab/edge-1"


def deployment(
    name: str, namespace: str = "", *, replicas: int = 2, cpu: str = "1", claim: str = "", **spec: Any
) -> dict[str, Any]:
    labels = {"app": name, **({"moorage.dev/claim": claim} if claim else {})}
    container = {"name": "c", "image": "registry.example/c:1", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container], **spec}},
        },
    }


def config(name: str, namespace: str = "", **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace or "default"},
        "data": data,
    }


def there(plane: ControlPlane, path: str) -> Any:
    try:
        return plane.get(path)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def config_path(name: str, namespace: str = "default") -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps/{name}"


def deployment_path(name: str, namespace: str = "default") -> str:
    return f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"


@pytest.fixture(autouse=True)
def clean(plane: ControlPlane) -> Iterator[None]:
    """Removes what a test leaves behind."""
    yield
    for path in ("/apis/apps/v1/namespaces/default/deployments", "/api/v1/namespaces/default/pods"):
        with contextlib.suppress(urllib.error.HTTPError):
            plane.call("DELETE", path)
    for item in plane.get("/api/v1/namespaces/default/configmaps")["items"]:
        if item["metadata"]["name"] != "kube-root-ca.crt":
            plane.call("DELETE", config_path(item["metadata"]["name"]))
    for item in plane.get("/api/v1/namespaces/default/secrets")["items"]:
        plane.call("DELETE", f"/api/v1/namespaces/default/secrets/{item['metadata']['name']}")
    with contextlib.suppress(urllib.error.HTTPError):
        plane.call("DELETE", "/api/v1/namespaces/moorage-system/configmaps?labelSelector=moorage.dev/record")
        plane.call("DELETE", "/api/v1/namespaces/moorage-system/configmaps/moorage-marks")
    with contextlib.suppress(urllib.error.HTTPError):
        plane.call("DELETE", "/apis/coordination.k8s.io/v1/namespaces/moorage-system/leases/moorage-agent")


async def test_running_pods_are_reported_and_counted(plane: ControlPlane, mesh: Mesh, agents: Start) -> None:
    agents(plane, labels={"region": "eu"})
    await until(lambda: len(mesh.nodes) == 4, 40, "a full report")
    assert mesh.reports[0].kind == "full" and mesh.reports[0].labels == {"region": "eu"} and mesh.reports[0].id
    node = mesh.nodes["edge-1-n0"]
    assert node.ready and node.allocatable["cpu"] == "8" and node.labels["topology.kubernetes.io/zone"] == "edge"
    await mesh.want(CLUSTER, "web", 5, deployment("web", cpu="1500m", claim="cl-1"))
    await until(lambda: mesh.states("web", 5) == {"Deployment/web": "Ready"}, 30, "the deployment is ready")
    await until(lambda: len(mesh.pods) == 2 and all(p.node for p in mesh.pods.values()), 40, "its pods are bound")
    assert {p.claim for p in mesh.pods.values()} == {"cl-1"}
    await until(lambda: sum(n.pod_count for n in mesh.nodes.values()) == 2, 40, "pods are counted where they are")
    assert sorted(n.requested.get("cpu", "0") for n in mesh.nodes.values()) in (
        ["0", "0", "1500m", "1500m"],
        ["0", "0", "0", "3"],
    )
    await mesh.want(CLUSTER, "web", 6, remove=True)
    await until(lambda: (c := mesh.confirmation("web", 6)) is not None and c.removed, 30, "it is removed")
    await until(lambda: not mesh.pods and not any(n.pod_count for n in mesh.nodes.values()), 40, "room is free again")
    assert there(plane, deployment_path("web")) is None


async def test_the_same_decision_twice_changes_nothing(plane: ControlPlane, mesh: Mesh, agents: Start) -> None:
    task = agents(plane)
    await mesh.want(CLUSTER, "web", 5, deployment("web"), config("c", a="1"))
    await until(lambda: set(mesh.states("web", 5).values()) == {"Ready"}, 30)
    before = [plane.get(p)["metadata"]["resourceVersion"] for p in (config_path("c"), deployment_path("web"))]
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    mesh.confirms.clear()
    agents(plane)
    await until(lambda: set(mesh.states("web", 5).values()) == {"Ready"}, 30, "the next agent has it too")
    assert [plane.get(p)["metadata"]["resourceVersion"] for p in (config_path("c"), deployment_path("web"))] == before


async def test_a_repeated_version_is_confirmed_again(plane: ControlPlane, mesh: Mesh, agents: Start) -> None:
    agents(plane)
    await mesh.want(CLUSTER, "web", 5, config("c", a="1"))
    await mesh.want(CLUSTER, "old", 6, remove=True)
    await until(lambda: mesh.states("web", 5) == {"ConfigMap/c": "Ready"}, 30)
    await until(lambda: mesh.confirmation("old", 6) is not None, 30)
    by_app = {c.app: c for c in mesh.confirms}
    mesh.confirms.clear()
    await asyncio.sleep(1)
    assert not mesh.confirms, "only new versions are confirmed"
    mesh.named = [DesiredApp(group=c.group, app=c.app, version=c.version) for c in by_app.values()]
    await until(lambda: {c.app for c in mesh.confirms} == {"web", "old"}, 40, "a removal, too")
    for again in mesh.confirms:
        before = by_app[again.app]
        assert (again.version, again.removed, again.objects) == (before.version, before.removed, before.objects)
        assert again.as_of > before.as_of
    assert there(plane, config_path("c")) is not None


async def test_a_new_version_prunes_old_objects_and_drift_is_repaired(
    plane: ControlPlane, mesh: Mesh, agents: Start
) -> None:
    agents(plane)
    await mesh.want(CLUSTER, "web", 5, config("one", a="1"), config("two", a="1"))
    await until(lambda: len(mesh.states("web", 5)) == 2, 30)
    await mesh.want(CLUSTER, "web", 6, config("one", a="2"))
    await settled(lambda: there(plane, config_path("two")) is None, what="what the new version has not is pruned")
    assert plane.get(config_path("one"))["data"] == {"a": "2"}
    await asyncio.to_thread(
        plane.call, "PATCH", config_path("one"), {"data": {"a": "9", "theirs": "stays"}}, "application/merge-patch+json"
    )
    await settled(
        lambda: plane.get(config_path("one"))["data"] == {"a": "2", "theirs": "stays"}, what="a change is taken back"
    )
    await asyncio.to_thread(plane.call, "DELETE", config_path("one"))
    await settled(lambda: there(plane, config_path("one")) is not None, what="what was deleted is made again")


async def test_another_api_version_of_a_kind_is_the_same_object(plane: ControlPlane, mesh: Mesh, agents: Start) -> None:
    def scaler(version: str) -> dict[str, Any]:
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
        spec = {"maxReplicas": 3, "scaleTargetRef": target}
        return {
            "apiVersion": f"autoscaling/{version}",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "h"},
            "spec": spec,
        }

    path = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/h"
    agents(plane)
    await mesh.want(CLUSTER, "web", 5, scaler("v1"), config("c"))
    await until(lambda: len(mesh.states("web", 5)) == 2, 30)
    before = plane.get(path)["metadata"]["uid"]
    await mesh.want(CLUSTER, "web", 6, scaler("v2"))
    await settled(lambda: there(plane, config_path("c")) is None, what="what the new version has not is pruned")
    assert plane.get(path)["metadata"]["uid"] == before
    await mesh.want(CLUSTER, "web", 7, remove=True)
    await until(lambda: (c := mesh.confirmation("web", 7)) is not None and c.removed, 30)
    assert there(plane, path) is None


async def test_objects_of_others_are_not_changed(plane: ControlPlane, mesh: Mesh, agents: Start) -> None:
    plane.call("POST", "/api/v1/namespaces/default/configmaps", config("theirs", a="theirs"))
    agents(plane)
    await mesh.want(CLUSTER, "web", 5, config("theirs", a="ours"), config("mine", a="1"))
    await until(lambda: mesh.states("web", 5) == {"ConfigMap/theirs": "Failed", "ConfigMap/mine": "Ready"}, 30)
    confirm = mesh.confirmation("web", 5)
    assert confirm is not None and "conflict" in confirm.objects[0].message
    assert plane.get(config_path("theirs"))["data"] == {"a": "theirs"}
    await mesh.want(CLUSTER, "web", 6, config("theirs", b="added"), config("mine", a="1"))
    await settled(lambda: plane.get(config_path("theirs"))["data"] == {"a": "theirs", "b": "added"})
    await mesh.want(CLUSTER, "web", 7, remove=True)
    await until(lambda: (c := mesh.confirmation("web", 7)) is not None and c.removed, 30)
    assert plane.get(config_path("theirs"))["data"] == {"a": "theirs"}, "what was ours on it is taken back"
    assert there(plane, config_path("mine")) is None


async def test_a_refused_object_is_reported_and_others_are_applied(
    plane: ControlPlane, mesh: Mesh, agents: Start
) -> None:
    agents(plane)
    bad = deployment("bad")
    bad["spec"]["template"]["metadata"]["labels"] = {"app": "other"}
    strange = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
    await mesh.want(CLUSTER, "web", 5, bad, strange, config("fine", a="1"))
    await until(lambda: len(mesh.states("web", 5)) == 3, 30)
    confirm = mesh.confirmation("web", 5)
    assert confirm is not None
    found = {o.object: o for o in confirm.objects}
    assert found["Deployment/bad"].state == "Failed" and "selector" in found["Deployment/bad"].message
    assert found["Widget/w"].state == "Failed" and "no kind Widget" in found["Widget/w"].message
    assert found["ConfigMap/fine"].state == "Ready"


async def test_unschedulable_pods_are_reported(plane: ControlPlane, mesh: Mesh, agents: Start) -> None:
    agents(plane)
    await mesh.want(CLUSTER, "web", 5, deployment("big", cpu="99", claim="cl-big"))

    def explained() -> bool:
        confirm = mesh.confirmation("web", 5)
        return confirm is not None and "Insufficient cpu" in confirm.objects[0].message

    await until(explained, 30, "the scheduler's words")
    assert mesh.states("web", 5) == {"Deployment/big": "Progressing"}


async def test_host_ports_in_use_are_reported(plane: ControlPlane, mesh: Mesh, agents: Start) -> None:
    agents(plane)
    ports = [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 53, "hostPort": 53, "protocol": "UDP"}]
    spread = deployment("web", claim="cl-web")
    spread["spec"]["template"]["spec"]["containers"][0]["ports"] = ports
    network = deployment("net", replicas=1, hostNetwork=True)
    network["spec"]["template"]["spec"]["containers"][0]["ports"] = [{"containerPort": 9100}]
    await mesh.want(CLUSTER, "web", 5, spread, network)

    def used() -> list[list[str]]:
        return sorted(node.host_ports for node in mesh.nodes.values())

    both = ["53/UDP", "8080/TCP"]
    await until(lambda: sum(set(both) <= set(ports) for ports in used()) == 2, 30, "two nodes with the ports")
    await until(lambda: sum("9100/TCP" in ports for ports in used()) == 1, 30, "a port of the node's network")
    assert sum(map(len, used())) == 5
    await mesh.want(CLUSTER, "web", 6, remove=True)
    await until(lambda: used() == [[], [], [], []], 30, "free ports")


async def test_namespaces_and_crds_are_applied_first(plane: ControlPlane, mesh: Mesh, agents: Start) -> None:
    agents(plane)
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "names": {"kind": "Widget", "plural": "widgets"},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }
    widget = {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": "w", "namespace": "shop"},
        "spec": {"a": 1},
    }
    await mesh.want(CLUSTER, "web", 5, widget, deployment("web", "shop"), config("c", "shop", a="1"), crd)
    await until(lambda: set(mesh.states("web", 5).values()) == {"Ready"}, 40, "all of it")
    assert plane.get("/apis/example.com/v1/namespaces/shop/widgets/w")["spec"] == {"a": 1}
    await mesh.want(CLUSTER, "web", 6, remove=True)
    await until(lambda: (c := mesh.confirmation("web", 6)) is not None and c.removed, 70)
    # The garbage collector, which foreground deletion waits for, discovers new kinds every 30 s.
    assert there(plane, "/api/v1/namespaces/shop") is None, "a namespace that only we used goes with what was in it"
    assert there(plane, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com") is None


def removed(mesh: Mesh, app: str, version: int) -> bool:
    confirm = mesh.confirmation(app, version)
    return confirm is not None and confirm.removed


def guests(name: str, namespace: str) -> dict[str, Any]:
    found = deployment(name, namespace, replicas=0)
    found["spec"]["template"]["metadata"]["labels"][MACHINE_TYPE] = "compute-small"
    return found


async def test_namespaces_that_agents_make_are_enabled_for_machines(
    plane: ControlPlane, mesh: Mesh, agents: Start
) -> None:
    agents(plane)

    def label(namespace: str) -> str | None:
        found = plane.get(f"/api/v1/namespaces/{namespace}")["metadata"].get("labels", {}).get(NAMESPACE_LABELS[0])
        return None if found is None else str(found)

    await mesh.want(CLUSTER, "own", 5, guests("w", "of-guests"), config("c", "of-guests", a="1"))
    await until(lambda: set(mesh.states("own", 5).values()) == {"Ready"}, 40, "all of it")
    assert label("of-guests") == "enabled"

    await mesh.want(CLUSTER, "plain", 6, config("c", "of-both", a="1"))
    await until(lambda: set(mesh.states("plain", 6).values()) == {"Ready"}, 40, "the namespace is there")
    assert label("of-both") is None, "only guests need it"
    await mesh.want(CLUSTER, "later", 7, guests("w", "of-both"))
    await until(lambda: set(mesh.states("later", 7).values()) == {"Ready"}, 40, "guests of another app")
    assert label("of-both") == "enabled"
    await mesh.want(CLUSTER, "later", 8, guests("w", "of-both"), config("d", "of-both", a="1"))
    await until(lambda: mesh.states("later", 8).get("ConfigMap/d") == "Ready", 40, "the next version")
    assert label("of-both") == "enabled"
    for version, app in enumerate(("own", "later", "plain"), 9):
        await mesh.want(CLUSTER, app, version, remove=True)
        await until(partial(removed, mesh, app, version), 70, f"{app} is removed")
    assert there(plane, "/api/v1/namespaces/of-both") is None


async def test_guests_wait_for_a_namespace_of_others_to_be_enabled(
    plane: ControlPlane, mesh: Mesh, agents: Start
) -> None:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "theirs"}}
    plane.call("POST", "/api/v1/namespaces", body)
    agents(plane)
    await mesh.want(CLUSTER, "web", 5, guests("w", "theirs"), config("c", "theirs", a="1"))
    await until(lambda: mesh.states("web", 5).get("Deployment/w") == "Failed", 40, "it is refused")
    confirm = mesh.confirmation("web", 5)
    assert confirm is not None
    (status,) = [found for found in confirm.objects if found.object == "Deployment/w"]
    assert status.code == "NamespaceNotEnabled" and "kubectl label namespace theirs" in status.message
    assert there(plane, deployment_path("w", "theirs")) is None and there(plane, config_path("c", "theirs"))
    assert not plane.get("/api/v1/namespaces/theirs")["metadata"]["labels"].keys() & set(NAMESPACE_LABELS)
    patch = {"metadata": {"labels": {NAMESPACE_LABELS[1]: "enabled"}}}
    await asyncio.to_thread(plane.call, "PATCH", "/api/v1/namespaces/theirs", patch, "application/merge-patch+json")
    await until(lambda: mesh.states("web", 5).get("Deployment/w") == "Ready", 40, "it is applied")
    await mesh.want(CLUSTER, "web", 6, remove=True)
    await until(lambda: (c := mesh.confirmation("web", 6)) is not None and c.removed, 70)
    assert there(plane, "/api/v1/namespaces/theirs")


async def test_objects_that_cannot_be_watched_are_compared(
    plane: ControlPlane, mesh: Mesh, agents: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks objects that the agent may not list, as Secrets with the rights of `join`, or does not watch, as those of others."""
    monkeypatch.setattr(context, "COMPARE", 0.5)
    given = await asyncio.to_thread(plane.service_account, "least", [*RULES, *OWN_RULES])
    plane.call("POST", "/api/v1/namespaces/default/configmaps", config("theirs", a="theirs"))
    agents(plane, kubeconfig=given)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"key": "one"}}
    await mesh.want(CLUSTER, "web", 5, secret, config("theirs", b="added"))
    await until(lambda: set(mesh.states("web", 5).values()) == {"Ready"}, 30)
    path = "/api/v1/namespaces/default/secrets/s"
    before = plane.get(path)["metadata"]["resourceVersion"]
    await asyncio.sleep(1.5)
    assert plane.get(path)["metadata"]["resourceVersion"] == before, "comparing changes nothing"
    patch = {"stringData": {"key": "two"}}
    await asyncio.to_thread(plane.call, "PATCH", path, patch, "application/merge-patch+json")
    await settled(lambda: plane.get(path)["data"] == {"key": "b25l"}, what="a change is taken back")
    await asyncio.to_thread(plane.call, "DELETE", path)
    await settled(lambda: there(plane, path) is not None, what="what was deleted is made again")
    await asyncio.to_thread(
        plane.call, "PATCH", config_path("theirs"), [{"op": "remove", "path": "/data/b"}], "application/json-patch+json"
    )
    await settled(lambda: plane.get(config_path("theirs"))["data"].get("b") == "added", what="so are fields of ours")
    await mesh.want(CLUSTER, "web", 6, remove=True)
    await until(lambda: (c := mesh.confirmation("web", 6)) is not None and c.removed, 30)
    assert there(plane, path) is None and plane.get(config_path("theirs"))["data"] == {"a": "theirs"}


async def test_a_temporarily_refused_object_is_applied_and_old_objects_are_pruned(
    plane: ControlPlane, mesh: Mesh, agents: Start
) -> None:
    """Pruning waits until all of the new version is applied."""
    agents(plane)
    await mesh.want(CLUSTER, "web", 5, config("old", a="1"))
    await until(lambda: mesh.states("web", 5) == {"ConfigMap/old": "Ready"}, 30)
    plane.call("POST", "/api/v1/namespaces/default/configmaps", config("blocked", a="theirs"))
    await mesh.want(CLUSTER, "web", 6, config("blocked", a="ours"))
    await until(lambda: mesh.states("web", 6) == {"ConfigMap/blocked": "Failed"}, 30)
    assert there(plane, config_path("old")) is not None
    await asyncio.to_thread(plane.call, "DELETE", config_path("blocked"))
    await until(lambda: mesh.states("web", 6) == {"ConfigMap/blocked": "Ready"}, 30)
    await settled(lambda: there(plane, config_path("old")) is None, what="the old object is pruned")
    assert plane.get(config_path("blocked"))["data"] == {"a": "ours"}


async def test_an_object_without_a_name_fails_its_version(plane: ControlPlane, mesh: Mesh, agents: Start) -> None:
    agents(plane)
    nameless = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "c-"}, "data": {}}
    await mesh.want(CLUSTER, "web", 5, config("c", a="1"), nameless)
    await until(lambda: mesh.states("web", 5) == {"ConfigMap/c": "Failed", "ConfigMap/": "Failed"}, 20)
    confirm = mesh.confirmation("web", 5)
    assert confirm is not None and "without a name" in confirm.objects[0].message
    assert there(plane, config_path("c")) is None
    await asyncio.sleep(0.5)
    assert mesh.confirms[-1] == confirm, "nothing else is confirmed afterwards"
    await mesh.want(CLUSTER, "web", 6, config("c", a="1"))
    await until(lambda: mesh.states("web", 6) == {"ConfigMap/c": "Ready"}, 20)


async def test_a_burst_of_pods_becomes_few_reports(plane: ControlPlane, mesh: Mesh, agents: Start) -> None:
    agents(plane)
    await until(lambda: bool(mesh.nodes), 20)
    await mesh.want(CLUSTER, "web", 5, deployment("many", replicas=60, cpu="10m", claim="cl-many"))
    started, before = asyncio.get_running_loop().time(), len(mesh.reports)
    await until(lambda: sum(n.pod_count for n in mesh.nodes.values()) == 60, 60, "all of them are counted")
    took = asyncio.get_running_loop().time() - started
    assert len(mesh.reports) - before <= 2 + took / reporting.SPACING, "60 pods change many hundred times"


async def test_devices_come_from_resource_slices(plane: ControlPlane, mesh: Mesh, agents: Start) -> None:
    path = "/apis/resource.k8s.io/v1/resourceslices"

    def slice_of(name: str, pool: str, *devices: str, **where: Any) -> dict[str, Any]:
        listed = [{"name": d, "attributes": {"model": {"string": "x"}}} for d in devices]
        pool_fields = {"name": pool, "generation": 1, "resourceSliceCount": 1}
        return {
            "metadata": {"name": name},
            "spec": {"driver": "d.example.com", "pool": pool_fields, "devices": listed, **where},
        }

    def known() -> dict[str, list[str]]:
        return {name: [d.name for d in node.devices] for name, node in mesh.nodes.items() if node.devices}

    agents(plane)
    plane.call("POST", path, slice_of("local", "one", "gpu-0", "gpu-1", nodeName="edge-1-n0"))
    plane.call("POST", path, slice_of("wide", "net", "nic-0", allNodes=True))
    try:
        everywhere: dict[str, list[str]] = {f"edge-1-n{i}": ["nic-0"] for i in range(4)}
        await until(lambda: known() == {**everywhere, "edge-1-n0": ["nic-0", "gpu-0", "gpu-1"]}, 40, "all devices")
        assert mesh.nodes["edge-1-n1"].devices[0].shared is True
        assert mesh.nodes["edge-1-n0"].devices[1].attributes == {"model": "x"}
    finally:
        plane.call("DELETE", f"{path}/wide")
    await until(lambda: known() == {"edge-1-n0": ["gpu-0", "gpu-1"]}, 10)
    plane.call("DELETE", f"{path}/local")
    await until(lambda: not known(), 10)


async def test_of_two_agents_one_leads_and_the_other_takes_over(plane: ControlPlane, mesh: Mesh, agents: Start) -> None:
    first = agents(plane)
    await until(lambda: bool(mesh.nodes), 20)
    agents(plane)
    sessions = {r.session for r in mesh.reports}
    await mesh.want(CLUSTER, "web", 5, config("c", a="1"))
    await until(lambda: mesh.states("web", 5) == {"ConfigMap/c": "Ready"}, 20)
    assert {r.session for r in mesh.reports} == sessions, "only one reports"
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    await until(lambda: {r.session for r in mesh.reports} != sessions, 40, "the other one reports")
    taken = next(r for r in mesh.reports if r.session not in sessions)
    assert taken.kind == "full" and taken.succeeds in sessions
    lease = plane.get("/apis/coordination.k8s.io/v1/namespaces/moorage-system/leases/moorage-agent")
    assert lease["spec"]["leaseTransitions"] == 2
    await mesh.want(CLUSTER, "web", 6, remove=True)
    await until(
        lambda: (c := mesh.confirmation("web", 6)) is not None and c.removed, 20, "it knows what its predecessor made"
    )
    assert there(plane, config_path("c")) is None
