"""Claims pinned to devices on a real control plane: kube-scheduler allocates the devices that were chosen, and no others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.error
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import msgspec
import pytest

from moorage.agent import device_allocation, device_evictions, version_apply
from moorage.agent.install_manifests import ALLOCATION_RULES, OWN_RULES, RULES
from moorage.kube import Unreachable
from moorage.model.claims import Claim, IntentRef
from moorage.model.part_requests import ClassVersion, DeviceAsk
from moorage.model.slots import DeviceGrant, Slot
from moorage.patcher.core.class_needs import ClassNeeds
from moorage.patcher.core.final_objects import FinalObjects
from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.polling import until

from .conftest import Mesh, Start, settled
from .test_agent import CLUSTER, clean, deployment  # noqa: F401 - a fixture

GROUP = "/apis/resource.k8s.io/v1"
NAMESPACED = f"{GROUP}/namespaces/default"
DRIVER = "pin.example.com"
NODE = "edge-1-n0"
SLICE = "pinned-slice"


@pytest.fixture(autouse=True)
def devices(plane: ControlPlane) -> Iterator[None]:
    plane.call("POST", f"{GROUP}/resourceslices", slice_of(*range(4)))
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    plane.call("POST", f"{GROUP}/deviceclasses", {"metadata": {"name": "pinnable"}, "spec": {"selectors": [selector]}})
    yield
    for path in ("/apis/apps/v1/namespaces/default/deployments", "/api/v1/namespaces/default/pods"):
        plane.call("DELETE", path)
    for path in (f"{NAMESPACED}/resourceclaims", f"{NAMESPACED}/resourceclaimtemplates", f"{GROUP}/deviceclasses"):
        plane.call("DELETE", path)
    with contextlib.suppress(urllib.error.HTTPError):
        plane.call("DELETE", f"{GROUP}/resourceslices/{SLICE}")


def slice_of(
    *numbers: int, generation: int = 1, taints: Sequence[int] = (), effect: str = "NoExecute"
) -> dict[str, Any]:
    made = [
        {"name": f"gpu-{i}", "attributes": {"uuid": {"string": f"GPU-{i}"}, "model": {"string": "a"}}}
        | ({"taints": [{"key": "broken", "effect": effect}]} if i in taints else {})
        for i in numbers
    ]
    pool = {"name": NODE, "generation": generation, "resourceSliceCount": 1}
    return {"metadata": {"name": SLICE}, "spec": {"driver": DRIVER, "pool": pool, "nodeName": NODE, "devices": made}}


def replace_slice(plane: ControlPlane, found: dict[str, Any]) -> None:
    live = plane.get(f"{GROUP}/resourceslices/{SLICE}")
    plane.call("PUT", f"{GROUP}/resourceslices/{SLICE}", {**live, "spec": found["spec"]})


def claim(app: str, *numbers: int) -> Claim:
    """The claim of a Deployment, one slot for each of these devices."""
    slots = [
        Slot(
            node=NODE,
            parts={f"{DRIVER}/{NODE}/gpu-{i}": {"PIN_EXAMPLE_COM": 1}},
            devices=[DeviceGrant(part=f"{DRIVER}/{NODE}/gpu-{i}", need="gpu/one", name="PIN_EXAMPLE_COM", amount=1)],
        )
        for i in numbers
    ]
    intent = IntentRef(kind="HpaIntent", name="i", revision=1)
    return Claim(
        id=f"id{app}", decision="d", intent=intent, tenant="t", slots=slots, object=f"Deployment/{app}", app=app
    )


def objects(app: str, *numbers: int, vacated: Sequence[int] = ()) -> list[dict[str, Any]]:
    """The final objects of an app whose pods have these devices, as the patcher makes them. `vacated`: they leave these."""
    request = {"name": "one", "exactly": {"deviceClassName": "pinnable"}}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": f"{app}-gpu"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    entry = {"name": "gpu", "resourceClaimTemplateName": f"{app}-gpu"}
    web = deployment(app, replicas=len(numbers), cpu="100m", resourceClaims=[entry])
    web["spec"]["template"]["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    nodes = {f"id{app}": [NODE]}
    made = msgspec.structs.replace(claim(app, *numbers), vacated=[f"{DRIVER}/{NODE}/gpu-{i}" for i in vacated])
    return FinalObjects([template, web], [], nodes, "d").on_cluster(CLUSTER, [made])


def pods(plane: ControlPlane, app: str) -> dict[str, str]:
    """Returns the pods of an app that are bound and live, each with the device of its claim."""
    items = plane.get(f"/api/v1/namespaces/default/pods?labelSelector=app={app}")["items"]
    claims = {c["metadata"]["name"]: c for c in plane.get(f"{NAMESPACED}/resourceclaims")["items"]}
    found = {}
    for pod in items:
        if "deletionTimestamp" in pod["metadata"] or not pod["spec"].get("nodeName"):
            continue
        names = [s.get("resourceClaimName") for s in pod["status"].get("resourceClaimStatuses") or ()]
        results = [
            result["device"]
            for name in names
            for result in claims.get(name, {})
            .get("status", {})
            .get("allocation", {})
            .get("devices", {})
            .get("results", ())
        ]
        found[pod["metadata"]["uid"]] = ",".join(results)
    return found


async def test_pods_get_the_devices_that_were_chosen_and_a_move_restarts_none(
    plane: ControlPlane, mesh: Mesh, agents: Start
) -> None:
    kubeconfig = plane.service_account("pinning-devices", [*RULES, *OWN_RULES])
    first = agents(plane, kubeconfig=kubeconfig)
    await mesh.want(CLUSTER, "web", 5, *objects("web", 2))
    await settled(lambda: list(pods(plane, "web").values()) == ["gpu-2"], 60, "the third device, not the first")
    await until(lambda: mesh.nodes[NODE].device_classes != [], 20, "classes are reported")
    assert [found.name for found in mesh.nodes[NODE].device_classes] == ["pinnable"]
    (before,) = pods(plane, "web")
    name = next(iter(plane.get(f"{NAMESPACED}/resourceclaims")["items"]))["metadata"]["name"]

    def written() -> dict[str, str]:
        (pod,) = plane.get("/api/v1/namespaces/default/pods?labelSelector=app=web")["items"]
        annotations = pod["metadata"].get("annotations") or {}
        return {k: v for k, v in annotations.items() if "resClass" in k or k == "moorage.dev/devices"}

    entry = {"class": "pinnable", "claim": name, "request": "one", "containers": ["c"], "quantity": 1, "decision": ""}
    uid = plane.get(f"{GROUP}/deviceclasses/pinnable")["metadata"]["uid"]
    entry |= {"parts": [f"{DRIVER}/{NODE}/gpu-2"], "classUid": uid, "algorithm": "first-fit"}
    await settled(lambda: json.loads(written().get("moorage.dev/devices", "[]")) == [entry], 40, "it is written")
    assert written()["scheduler.alpha.kubernetes.io/resClass_pinnable_gpu-2"] == "1"
    # More pods start with devices of their own, and restart none.
    await mesh.want(CLUSTER, "web", 6, *objects("web", 2, 3))
    await settled(lambda: sorted(pods(plane, "web").values()) == ["gpu-2", "gpu-3"], 60, "a second pod")
    assert before in pods(plane, "web")
    # A restarted agent and the same decision again change nothing.
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    agents(plane, kubeconfig=kubeconfig)
    await mesh.want(CLUSTER, "web", 7, *objects("web", 2, 3))
    await until(lambda: mesh.confirmation("web", 7) is not None, 40, "applied")
    running = pods(plane, "web")
    assert before in running and len(running) == 2
    versions = plane.get(f"{GROUP}/deviceclasses/moorage-idweb-one")["metadata"]["generation"]
    # A failed device is replaced in the class. Kubernetes evicts its pod, and the new one gets the other device.
    lost = next(uid for uid, device in running.items() if device == "gpu-3")
    await mesh.want(CLUSTER, "web", 8, *objects("web", 2, 1))
    await settled(
        lambda: plane.get(f"{GROUP}/deviceclasses/moorage-idweb-one")["metadata"]["generation"] > versions, 40, "moved"
    )
    assert pods(plane, "web") == running
    replace_slice(plane, slice_of(0, 1, 2, 3, generation=2, taints=[3]))
    await settled(lambda: sorted(pods(plane, "web").values()) == ["gpu-1", "gpu-2"], 60, "the pod has the other device")
    assert before in pods(plane, "web") and lost not in pods(plane, "web")
    template = plane.get(f"{NAMESPACED}/resourceclaimtemplates/moorage-idweb-gpu")["metadata"]
    assert template.get("generation", 1) == 1
    await mesh.want(CLUSTER, "web", 9, remove=True)
    await until(lambda: (c := mesh.confirmation("web", 9)) is not None and c.removed, 40, "it is gone")

    def left() -> list[str]:
        return [c["metadata"]["name"] for c in plane.get(f"{GROUP}/deviceclasses")["items"]]

    await settled(lambda: left() == ["pinnable"], 40, "its classes are gone")


async def test_where_a_quota_counts_devices_of_a_class_it_holds_for_pins(
    plane: ControlPlane, mesh: Mesh, agents: Start
) -> None:
    counted = "pinnable.deviceclass.resource.k8s.io/devices"
    quotas = "/api/v1/namespaces/default/resourcequotas"
    plane.call("POST", quotas, {"metadata": {"name": "gpus"}, "spec": {"hard": {counted: "2"}}})
    try:
        agents(plane, kubeconfig=plane.service_account("pinning-with-quota", [*RULES, *OWN_RULES]))
        await until(lambda: mesh.nodes.get(NODE) is not None, 40, "it is reported")
        await mesh.want(CLUSTER, "web", 5, *objects("web", 3, 1))
        await settled(lambda: sorted(pods(plane, "web").values()) == ["gpu-1", "gpu-3"], 60, "the chosen devices")
        await settled(lambda: plane.get(f"{quotas}/gpus")["status"]["used"][counted] == "2", 40, "they are counted")

        def told() -> list[tuple[str, bool]]:
            found = mesh.confirmation("web", 5)
            objects = found.objects if found is not None else ()
            return [(one.state, "pinnable" in one.message) for one in objects if one.code == "PinnedByTemplate"]

        await until(lambda: told() == [("Ready", True)], 40, "it is told")
        # A move names another template: its pods roll out, and the quota, which is full, lets them one by one.
        plane.call(
            "PATCH", f"{quotas}/gpus", {"spec": {"hard": {counted: "4"}}}, content_type="application/merge-patch+json"
        )
        await mesh.want(CLUSTER, "web", 6, *objects("web", 3, 0))
        await settled(lambda: sorted(pods(plane, "web").values()) == ["gpu-0", "gpu-3"], 60, "the other devices")

        def templates() -> list[str]:
            found = [t["metadata"]["name"] for t in plane.get(f"{NAMESPACED}/resourceclaimtemplates")["items"]]
            return [name for name in found if name.startswith("moorage-")]

        await until(lambda: len(templates()) == 1, 40, "one template is left")
    finally:
        plane.call("DELETE", f"{quotas}/gpus")


def with_class_needs(app: str, *pods_: Sequence[int]) -> list[dict[str, Any]]:
    """The final objects of an app whose pods need one device of a class, or two: each has these."""
    slots = [
        Slot(
            node=NODE,
            parts={f"{DRIVER}/{NODE}/gpu-{i}": {"PIN_EXAMPLE_COM": 1} for i in numbers},
            devices=[
                DeviceGrant(
                    part=f"{DRIVER}/{NODE}/gpu-{i}", need="gpu", name="PIN_EXAMPLE_COM", amount=1, resource_class="fast"
                )
                for i in numbers
            ],
        )
        for numbers in pods_
    ]
    classes = {"fast": ClassVersion(uid="u", spec="s", algorithm="best-fit")}
    made = msgspec.structs.replace(claim(app, 0), slots=slots, classes=classes)
    asks = tuple(DeviceAsk(resource_class="fast", count=n) for n in (1, 2))
    needs = {f"Deployment/{app}": ClassNeeds({"gpu": asks}, [], {"gpu": {"c"}})}
    web = deployment(app, replicas=len(pods_), cpu="100m")
    objects_of = FinalObjects([web], [], {f"id{app}": [NODE]}, "d", needs=needs)
    return objects_of.on_cluster(CLUSTER, [made])


async def test_a_template_that_gets_another_alternative_is_made_anew_and_no_pod_restarts(
    plane: ControlPlane, mesh: Mesh, agents: Start
) -> None:
    agents(plane)
    await mesh.want(CLUSTER, "web", 5, *with_class_needs("web", [3]))
    await settled(lambda: list(pods(plane, "web").values()) == ["gpu-3"], 60, "it has its device")
    (before,) = pods(plane, "web")
    await mesh.want(CLUSTER, "web", 6, *with_class_needs("web", [3], [0, 2]))
    await settled(lambda: sorted(pods(plane, "web").values()) == ["gpu-0,gpu-2", "gpu-3"], 60, "the second has two")
    assert before in pods(plane, "web") and "Failed" not in mesh.states("web", 6).values()


async def test_two_deployments_race_for_one_device(plane: ControlPlane, mesh: Mesh, agents: Start) -> None:
    """Both are pinned to it, as after a stale decision. One waits, and takes no other."""
    agents(plane)
    await mesh.want(CLUSTER, "one", 5, *objects("one", 1))
    await mesh.want(CLUSTER, "two", 5, *objects("two", 1))

    def devices() -> list[str]:
        return sorted([*pods(plane, "one").values(), *pods(plane, "two").values()])

    await settled(lambda: devices() == ["gpu-1"], 60, "one has it")
    await asyncio.sleep(2)
    assert devices() == ["gpu-1"]
    # The next decision gives it another one.
    waits = "one" if not pods(plane, "one") else "two"
    await mesh.want(CLUSTER, waits, 6, *objects(waits, 0))
    await settled(lambda: devices() == ["gpu-0", "gpu-1"], 60, "each has its own")


async def test_a_strangers_claim_on_a_chosen_device_is_not_touched(
    plane: ControlPlane, mesh: Mesh, agents: Start
) -> None:
    agents(plane)
    request = {"name": "r", "exactly": {"deviceClassName": "pinnable"}}
    spec = {"devices": {"requests": [request]}}
    plane.call("POST", f"{NAMESPACED}/resourceclaims", {"metadata": {"name": "stranger"}, "spec": spec})
    container = {"name": "c", "image": "registry.example/c:1", "resources": {"claims": [{"name": "x"}]}}
    pod = {"containers": [container], "resourceClaims": [{"name": "x", "resourceClaimName": "stranger"}]}
    plane.call("POST", "/api/v1/namespaces/default/pods", {"metadata": {"name": "stranger"}, "spec": pod})

    def stranger() -> dict[str, Any]:
        found: dict[str, Any] = plane.get(f"{NAMESPACED}/resourceclaims/stranger")
        return found

    await settled(lambda: "allocation" in stranger().get("status", {}), 60, "the stranger has a device")
    before = stranger()
    taken = before["status"]["allocation"]["devices"]["results"][0]["device"]
    await until(lambda: mesh.nodes.get(NODE) is not None and bool(mesh.nodes[NODE].in_use), 40, "it is reported")
    assert mesh.nodes[NODE].in_use == {f"{DRIVER}/{NODE}/{taken}": {"PIN_EXAMPLE_COM": "1"}}
    await mesh.want(CLUSTER, "web", 5, *objects("web", int(taken[-1])))
    await until(lambda: "Deployment/web" in mesh.states("web", 5), 40, "it is applied")
    await asyncio.sleep(1)
    assert pods(plane, "web") == {}
    await mesh.want(CLUSTER, "web", 6, *objects("web", 3))
    await settled(lambda: list(pods(plane, "web").values()) == ["gpu-3"], 60, "it gets another one")
    after = stranger()
    assert (after["spec"], after["status"]) == (before["spec"], before["status"])


@contextlib.asynccontextmanager
async def ends_at(
    point: str, module: ModuleType, monkeypatch: pytest.MonkeyPatch, start: Callable[[], asyncio.Task[None]]
) -> AsyncIterator[None]:
    """Starts an agent that ends where it comes to a point of the module; waits for that at the end."""
    ended = asyncio.Event()

    def stops(at: str) -> None:
        if at == point:
            ended.set()
            raise Unreachable("the agent ends here")

    with monkeypatch.context() as patched:
        patched.setattr(module, "reached", stops)
        agent = start()
        yield
        await asyncio.wait_for(ended.wait(), 60)
        agent.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await agent


async def test_where_the_label_says_so_the_agent_allocates(
    plane: ControlPlane, mesh: Mesh, agents: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods wait at a gate until their claims are allocated; an agent that ends in between is followed by one that goes on."""
    kubeconfig = plane.service_account("allocating", [*RULES, *OWN_RULES, *ALLOCATION_RULES])
    start = {"labels": {"moorage.dev/dra": "allocate"}, "kubeconfig": kubeconfig}
    async with ends_at("agent.allocated", device_allocation, monkeypatch, lambda: agents(plane, **start)):
        await mesh.want(CLUSTER, "web", 5, *objects("web", 3, 1))
    assert pods(plane, "web") == {}
    agents(plane, **start)
    await settled(lambda: sorted(pods(plane, "web").values()) == ["gpu-1", "gpu-3"], 60, "each has its device")
    for found in plane.get(f"{NAMESPACED}/resourceclaims")["items"]:
        assert "resource.kubernetes.io/delete-protection" in found["metadata"]["finalizers"]
        allocation = found["status"]["allocation"]
        assert allocation["allocationTimestamp"] and found["status"]["reservedFor"]
        fields = allocation["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"]
        assert fields == [{"key": "metadata.name", "operator": "In", "values": [NODE]}]
    # A device that a stranger took meanwhile is not given away twice; the pod waits for another decision.
    running = pods(plane, "web")
    await mesh.want(CLUSTER, "two", 5, *objects("two", 3))
    await until(lambda: "Deployment/two" in mesh.states("two", 5), 40, "it is applied")
    await asyncio.sleep(1)
    assert pods(plane, "two") == {} and pods(plane, "web") == running
    await mesh.want(CLUSTER, "two", 6, *objects("two", 0))
    await settled(lambda: list(pods(plane, "two").values()) == ["gpu-0"], 60, "it has another one")
    # Whoever has a device gives it back by ending.
    await mesh.want(CLUSTER, "web", 7, remove=True)
    await settled(lambda: len(plane.get(f"{NAMESPACED}/resourceclaims")["items"]) == 1, 60, "they are given back")


@pytest.mark.parametrize("how", ["pins", "allocates"])
async def test_a_pod_leaves_a_device_that_is_gone_and_an_agent_that_ends_then_is_followed(
    plane: ControlPlane, mesh: Mesh, agents: Start, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Kubernetes ends no pod of a device that is not there any more."""
    rules = [*RULES, *OWN_RULES, *(ALLOCATION_RULES if how == "allocates" else ())]
    start: dict[str, Any] = {"kubeconfig": plane.service_account(f"leaving-{how}", rules)}
    if how == "allocates":
        start["labels"] = {"moorage.dev/dra": "allocate"}
    async with ends_at("agent.vacated", device_evictions, monkeypatch, lambda: agents(plane, **start)):
        await mesh.want(CLUSTER, "web", 5, *objects("web", 2, 3))
        await settled(lambda: sorted(pods(plane, "web").values()) == ["gpu-2", "gpu-3"], 60, "both have theirs")
        before = pods(plane, "web")
        replace_slice(plane, slice_of(0, 1, 2, generation=2))
        await asyncio.sleep(1)
        assert pods(plane, "web") == before, "nothing says that they leave"
        await mesh.want(CLUSTER, "web", 6, *objects("web", 2, 1, vacated=[3]))
    agents(plane, **start)
    await settled(lambda: sorted(pods(plane, "web").values()) == ["gpu-1", "gpu-2"], 60, "it has the other device")
    after = pods(plane, "web")
    kept = next(uid for uid, device in before.items() if device == "gpu-2")
    assert after[kept] == "gpu-2"
    # Once nothing is left of it the order ends, and restarts change nothing.
    await mesh.want(CLUSTER, "web", 7, *objects("web", 2, 1))
    await until(lambda: mesh.confirmation("web", 7) is not None, 40, "applied")
    await asyncio.sleep(1)
    assert pods(plane, "web") == after


async def test_slices_and_classes_that_change_complete_the_pins_again(
    plane: ControlPlane, mesh: Mesh, agents: Start
) -> None:
    """The class is unknown first, and the device has another uuid later."""
    plane.call("DELETE", f"{GROUP}/deviceclasses/pinnable")
    agents(plane)
    await mesh.want(CLUSTER, "web", 5, *objects("web", 1))
    refused = "DeviceClass/moorage-idweb-one"
    await until(lambda: mesh.states("web", 5).get(refused) == "Failed", 60, "there is no such class")
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    plane.call("POST", f"{GROUP}/deviceclasses", {"metadata": {"name": "pinnable"}, "spec": {"selectors": [selector]}})
    await settled(lambda: list(pods(plane, "web").values()) == ["gpu-1"], 60, "it runs")
    changed = slice_of(0, 1, 2, 3, generation=2)
    changed["spec"]["devices"][1]["attributes"]["uuid"] = {"string": "GPU-new"}
    replace_slice(plane, changed)

    def pin() -> str:
        found = plane.get(f"{GROUP}/deviceclasses/moorage-idweb-one")
        return str(found["spec"]["selectors"][1]["cel"]["expression"])

    await settled(lambda: "GPU-new" in pin(), 40, "the pin names what tells the device apart now")


@pytest.mark.parametrize("point", ["agent.recorded", "agent.applied"])
async def test_an_agent_that_ends_between_class_template_and_pods_is_followed(
    plane: ControlPlane, mesh: Mesh, agents: Start, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    async with ends_at(point, version_apply, monkeypatch, lambda: agents(plane)):
        await mesh.want(CLUSTER, "web", 5, *objects("web", 2))
    agents(plane)
    await settled(lambda: list(pods(plane, "web").values()) == ["gpu-2"], 60, "the next agent goes on")
    await mesh.want(CLUSTER, "web", 6, remove=True)
    await until(lambda: (c := mesh.confirmation("web", 6)) is not None and c.removed, 40, "it is gone")

    def left() -> list[str]:
        return [c["metadata"]["name"] for c in plane.get(f"{GROUP}/deviceclasses")["items"]]

    await settled(lambda: left() == ["pinnable"], 40, "its classes are gone")
    await settled(lambda: not plane.get(f"{NAMESPACED}/resourceclaimtemplates")["items"], 40, "and its templates")


async def test_extended_resources_that_a_class_backs_are_counted(
    plane: ControlPlane, mesh: Mesh, agents: Start
) -> None:
    """No device plugin offers the resource: kube-scheduler makes a claim of its own for the pod."""
    resource = "example.com/pinnable"
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    spec = {"selectors": [selector], "extendedResourceName": resource}
    plane.call("POST", f"{GROUP}/deviceclasses", {"metadata": {"name": "backing"}, "spec": spec})
    agents(plane)
    await until(lambda: NODE in mesh.nodes and mesh.nodes[NODE].allocatable.get(resource) == "4", 60, "four are free")
    web = deployment("web", replicas=1, cpu="100m", claim="idweb")
    web["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {resource: "2"}}
    await mesh.want(CLUSTER, "web", 5, web)
    await until(lambda: mesh.nodes[NODE].requested.get(resource) == "2", 60, "the pod is bound")
    await until(lambda: len(mesh.nodes[NODE].in_use) == 2, 40, "two devices are in use")
    await until(lambda: mesh.nodes[NODE].allocatable.get(resource) == "4", 40, "two are free")


async def test_a_cluster_without_devices_runs_everything_else(mesh: Mesh, agents: Start) -> None:
    """Its API server does not serve `resource.k8s.io`. Its scheduler would wait for that, so there is none."""
    with ControlPlane("plain", scheduler=False, arguments=["--runtime-config=resource.k8s.io/v1=false"]) as plain:
        plain.node("plain-n0")
        agents(plain)
        await until(lambda: "plain-n0" in mesh.nodes, 60, "a full report")
        assert mesh.nodes["plain-n0"].devices == [] and mesh.nodes["plain-n0"].device_classes == []
        web, *pinned = deployment("web", replicas=1, cpu="100m"), *objects("gone", 1)
        await mesh.want("lab/plain", "web", 5, web)
        await mesh.want("lab/plain", "gone", 5, *pinned)
        await until(lambda: mesh.states("web", 5) == {"Deployment/web": "Progressing"}, 60, "it is applied")
        refused = "DeviceClass/moorage-idgone-one"
        await until(lambda: mesh.states("gone", 5).get(refused) == "Failed", 60, "it is told")
