"""Machines come to a cluster and leave it, are killed at the worst moments, renew certificates, and keep away from foreign controllers."""

from __future__ import annotations

import asyncio
import signal
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from moorage.kube import Api, ApiError, Unreachable, connect
from moorage.machine_groups.names import DOMAIN, GROUP_VERSION, MACHINE_TYPE, POD_ROLE, SLOT_GATE
from moorage.machines.install import in_use, install, is_installed, uninstall
from moorage.model.object_names import NAMESPACE
from moorage.podspec import pinned_node
from moorage_testkit.agent_process import AgentProcess
from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.failpoints import Failpoints
from moorage_testkit.machine_cluster import Balancer, MachineCluster, MachinesProcess, Refused, Replica
from moorage_testkit.machines import machine
from moorage_testkit.mesh import Mesh
from moorage_testkit.polling import wait_until
from moorage_testkit.servers import free_port

from .conftest import settled

NODES = ["m0", "m1"]
GUEST = {MACHINE_TYPE: "a"}
TEAM = "team"
MACHINES = f"/apis/{GROUP_VERSION}/machines"
#: What may differ: versions, who wrote what, and what nodes and controllers write by themselves.
_OWN = ("resourceVersion", "generation", "managedFields")


@pytest.fixture
def cluster() -> Iterator[MachineCluster]:
    with ControlPlane("machines") as plane:
        for name in NODES:
            plane.node(
                name, allocatable={"cpu": "8", "memory": "32Gi"}, taints=[{"key": "theirs", "effect": "NoExecute"}]
            )
        found = MachineCluster(plane)
        found.namespace(TEAM)
        yield found


async def installed(cluster: MachineCluster) -> None:
    await cluster.install(lambda api: install(api, "moorage", 2, lambda _text: None, deploy=False))


def the_machine(slots: int) -> dict[str, Any]:
    spec = {"spec": {"cpu": "2", "memory": "1Gi"}, "available": slots, "offlineSlots": slots}
    document = machine("g", {"a": spec}, {name: ["a"] for name in NODES}, taint=True)
    return document


async def usage(cluster: MachineCluster, *wanted: int, seconds: float = 30) -> None:
    try:
        await settled(lambda: cluster.usage("g").get("a") == wanted, seconds)
    except AssertionError:
        raise AssertionError(f"usage is {cluster.usage('g')}, not {wanted}") from None


def dump(cluster: MachineCluster) -> dict[str, Any]:
    """Returns all objects of the cluster that last, without what changes by itself."""
    groups = [("/api/v1", cluster.call("GET", "/api/v1"))]
    for group in cluster.call("GET", "/apis")["groups"]:
        version = group["preferredVersion"]["groupVersion"]
        if (resources := cluster.find(f"/apis/{version}")) is not None:  # else it has just gone
            groups.append((f"/apis/{version}", resources))
    found = {}
    for root, listed in groups:
        for resource in listed["resources"]:
            kind = resource["kind"]
            if (
                "/" in resource["name"]
                or "list" not in resource["verbs"]
                or kind in ("Event", "ComponentStatus", "Lease")
            ):
                continue
            for obj in cluster.call("GET", f"{root}/{resource['name']}")["items"]:
                meta = {k: v for k, v in obj["metadata"].items() if k not in _OWN}
                rest = {k: v for k, v in obj.items() if k not in ("metadata", "status")}
                found[f"{root}/{kind}/{meta.get('namespace', '')}/{meta['name']}"] = {"metadata": meta, **rest}
    return found


async def dump_at_rest(cluster: MachineCluster) -> dict[str, Any]:
    """Returns all objects once controllers have made accounts and certificates of all namespaces, and nothing else has come for 3 s."""
    found = dump(cluster)

    async def is_at_rest() -> bool:
        nonlocal found
        before = found
        await asyncio.sleep(3)
        found = await asyncio.to_thread(dump, cluster)
        names = [key.rpartition("/")[2] for key in found if key.startswith("/api/v1/Namespace/")]
        made = ("ServiceAccount/{}/default", "ConfigMap/{}/kube-root-ca.crt")
        return found == before and all(f"/api/v1/{key.format(name)}" in found for name in names for key in made)

    for _ in range(20):
        if await is_at_rest():
            return found
    raise AssertionError("the cluster is never at rest")


async def test_after_leaving_the_cluster_is_as_before_joining(cluster: MachineCluster) -> None:
    before = await dump_at_rest(cluster)
    await installed(cluster)
    process = MachinesProcess(cluster)
    try:
        await settled(process.is_ready, 40, "it is ready")
        for name in NODES:  # reservations tolerate no taints of others
            cluster.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
        cluster.machine(the_machine(1))
        await usage(cluster, 1, 1, 0, 0)
        for i in range(2):
            cluster.pod(TEAM, f"guest-{i}", GUEST)
        await usage(cluster, 1, 0, 1, 1)
        api = await connect(cluster.plane.kubeconfig)
        try:
            assert await in_use(api) == ["Machine g", f"guest {TEAM}/guest-0", f"guest {TEAM}/guest-1"]
            # A guest that waits is started: nobody would take its gate off any more. A process that still runs makes nothing again.
            await uninstall(api, lambda _text: None)
            for root in ("/apis/apps/v1", "/api/v1"):
                plural = "statefulsets" if "apps" in root else "services"
                assert not cluster.call("GET", f"{root}/namespaces/{NAMESPACE}/{plural}")["items"]
            process.remove()
            cluster.delete(f"/api/v1/namespaces/{NAMESPACE}")  # as the agent does, whose it is, too
        finally:
            await api.close()
    finally:
        process.remove()
    assert not any(pod["spec"].get("schedulingGates") for pod in cluster.pods(TEAM))
    for i in range(2):
        cluster.delete_pod(TEAM, f"guest-{i}")
    for name in NODES:
        taints = [{"key": "theirs", "effect": "NoExecute"}]
        cluster.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": taints}})

    await as_before(cluster, before)


async def as_before(cluster: MachineCluster, before: dict[str, Any]) -> None:
    try:
        await settled(lambda: dump(cluster) == before, 60)
    except AssertionError:
        assert dump(cluster) == before


def cut_after(api: Api, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a connection send only so many requests."""
    call = api.call
    left = iter(range(most))

    async def limited(method: str, path: str, **more: Any) -> tuple[int, bytes]:
        if next(left, None) is None:
            raise Unreachable("cut")
        return await call(method, path, **more)

    monkeypatch.setattr(api, "call", limited)


async def test_leaving_goes_on_where_it_was_interrupted(
    cluster: MachineCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loses the connection after some requests, later ones each time, and restarts the API server."""
    for name in NODES:
        cluster.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
    before = await dump_at_rest(cluster)
    await installed(cluster)
    process = MachinesProcess(cluster)
    try:
        await settled(process.is_ready, 40, "it is ready")
        cluster.machine(the_machine(1))
        for i in range(2):
            cluster.pod(TEAM, f"guest-{i}", GUEST)
        await usage(cluster, 1, 0, 1, 1)
    finally:
        process.remove()
    interrupted, restarted = 0, False
    while True:
        api = await connect(cluster.plane.kubeconfig)
        cut_after(api, 9 + 5 * interrupted, monkeypatch)
        try:
            if not await is_installed(api):
                break
            await uninstall(api, lambda _text: None)
        except Unreachable:
            interrupted += 1
        except ApiError as error:  # a server that has just started
            assert error.is_transient, error
            await asyncio.sleep(0.5)
        finally:
            await api.close()
        if interrupted == 3 and not restarted:
            restarted = True
            await asyncio.to_thread(cluster.plane.stop_server)
            await asyncio.to_thread(cluster.plane.start_server)
    assert interrupted > 5
    assert not any(pod["spec"].get("schedulingGates") for pod in cluster.pods(TEAM))
    for i in range(2):
        cluster.delete_pod(TEAM, f"guest-{i}")
    cluster.delete(f"/api/v1/namespaces/{NAMESPACE}")
    await as_before(cluster, before)


async def test_leaving_waits_for_no_kubelet(cluster: MachineCluster) -> None:
    """Reservations on a Node that says nothing go without it; else the namespace would stay."""
    await installed(cluster)
    for name in NODES:
        cluster.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
    process, kubelets = MachinesProcess(cluster), cluster.plane.processes["kwok"]
    try:
        await settled(process.is_ready, 40, "it is ready")
        cluster.machine(the_machine(2))
        await usage(cluster, 2, 2, 0, 0)
        kubelets.send_signal(signal.SIGSTOP)
        for name in NODES:
            conditions = cluster.call("GET", f"/api/v1/nodes/{name}")["status"]["conditions"]
            lost = [c | {"status": "Unknown"} if c["type"] == "Ready" else c for c in conditions]
            cluster.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": lost}})
        api = await connect(cluster.plane.kubeconfig)
        try:
            await uninstall(api, lambda _text: None)
        finally:
            await api.close()
        await settled(lambda: not cluster.pods(NAMESPACE), 20, "no Pod is left")
    finally:
        kubelets.send_signal(signal.SIGCONT)
        process.remove()


async def test_what_the_service_account_may_not_do(cluster: MachineCluster) -> None:
    await installed(cluster)
    api = await connect(cluster.kubeconfig)
    try:
        refused = Counter[int]()
        for method, path in (
            ("GET", "/api/v1/secrets"),
            ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets"),
            ("GET", f"/api/v1/namespaces/{TEAM}/secrets/x"),
            ("DELETE", "/api/v1/nodes/m0"),
            ("DELETE", f"/api/v1/namespaces/{TEAM}/pods/x"),
            ("DELETE", f"/apis/apps/v1/namespaces/{TEAM}/statefulsets/x"),
            ("DELETE", f"/api/v1/namespaces/{TEAM}"),
            ("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
            ("DELETE", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/moorage-machines"),
            ("GET", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/other"),
            ("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"),
        ):
            try:
                await api.call(method, path)
            except ApiError as error:
                refused[error.code] += 1
        assert refused == {403: 11}
    finally:
        await api.close()


async def test_a_foreign_controller_is_told_and_let_be(cluster: MachineCluster) -> None:
    await installed(cluster)
    cluster.namespace("imperator-system", label=None)
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    deployment = {
        "metadata": {"name": "imperator-controller"},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "x"}}, "template": template},
    }
    path = "/apis/apps/v1/namespaces/imperator-system/deployments"
    cluster.call("POST", path, deployment)
    for name in NODES:
        cluster.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
    process = MachinesProcess(cluster)
    try:
        await settled(process.is_ready, 40, "it is ready")
        cluster.machine(the_machine(1))

        def reason() -> str:
            conditions = (cluster.get_machine("g").get("status") or {}).get("conditions") or [{}]
            return str(conditions[0].get("reason"))

        await settled(lambda: reason() == "OtherControllerActive", 20)
        assert cluster.find(f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/a-g") is None
        assert "imperator.tenzen-y.io/a" not in cluster.call("GET", "/api/v1/nodes/m0")["metadata"]["labels"]
        assert "schedulingGates" not in cluster.pod(TEAM, "theirs", GUEST, query="?dryRun=All")["spec"]
        cluster.delete(f"{path}/imperator-controller")
        # From this moment nobody is let in without a gate.
        assert cluster.pod(TEAM, "ours", GUEST)["spec"]["schedulingGates"] == [{"name": SLOT_GATE}]
        await usage(cluster, 1, 0, 1, 0)
    finally:
        process.remove()


def let_in(cluster: MachineCluster) -> int:
    """Returns how many guests were let onto Nodes and are not gone."""
    return sum(
        bool(pod["spec"].get("nodeName") or pinned_node(pod["spec"]))
        and {"name": SLOT_GATE} not in (pod["spec"].get("schedulingGates") or ())
        and pod["metadata"]["labels"].get(POD_ROLE) == "guest"
        for pod in cluster.pods(TEAM)
    )


def created(cluster: MachineCluster, names: list[str]) -> bool:
    """Creates guests, and returns whether all were."""
    try:
        while names:
            cluster.pod(TEAM, names[-1], GUEST)
            names.pop()
    except Refused:
        return False
    return True


async def test_killed_at_each_step_of_a_hand_over(cluster: MachineCluster, tmp_path: Path) -> None:
    await installed(cluster)
    for name in NODES:
        cluster.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
    points = Failpoints(tmp_path / "points")
    process = MachinesProcess(cluster, **points.environment)
    try:
        await settled(process.is_ready, 40, "it is ready")
        cluster.machine(the_machine(2))
        await usage(cluster, 2, 2, 0, 0)
        for number, point in enumerate(("machines.granted", "machines.scaled", "machines.vacated", "machines.opened")):
            points.arm(point)
            missing: list[str] = []
            for i in range(3):
                try:
                    cluster.pod(TEAM, f"g{number}-{i}", GUEST)
                except Refused:  # without machines there are no new guests
                    missing.append(f"g{number}-{i}")
            await settled(lambda: process.process.poll() is not None, 20, f"killed at {point}")
            assert let_in(cluster) <= 2
            cluster.pod(TEAM, f"other-{number}", {"app": "other"})  # a Pod that is no guest does not notice
            cluster.delete_pod(TEAM, f"other-{number}")
            process.start()
            await settled(process.is_ready, 40, "it is ready again")
            await settled(partial(created, cluster, missing), 20, "hooks answer")
            await usage(cluster, 2, 0, 2, 1)
            assert process.is_ready() and let_in(cluster) == 2
            for pod in cluster.pods(TEAM):
                cluster.delete_pod(TEAM, pod["metadata"]["name"])
            await usage(cluster, 2, 2, 0, 0)
        points.arm("machines.cleaned")
        cluster.delete(f"{MACHINES}/g")
        await settled(lambda: process.process.poll() is not None, 20, "killed between two Nodes")
        process.start()
        await settled(
            lambda: all("taints" not in cluster.call("GET", f"/api/v1/nodes/{n}")["spec"] for n in NODES), 40, "clean"
        )
    finally:
        process.remove()


async def test_certificates_are_renewed_without_a_refused_request(cluster: MachineCluster) -> None:
    """They live for 43 s here, so that there are two within 40 s."""
    await installed(cluster)
    process = MachinesProcess(cluster, MOORAGE_CERTIFICATE_DAYS="0.0005")
    secret = f"/api/v1/namespaces/{NAMESPACE}/secrets/moorage-machines-tls"
    try:
        await settled(process.is_ready, 40, "it is ready")
        seen: set[str] = set()
        end = time.monotonic() + 60
        asked = 0
        while len(seen) < 2 and time.monotonic() < end:
            with pytest.raises(Refused, match="MachineUnknown"):
                cluster.pod(TEAM, "probe", {MACHINE_TYPE: "none"}, query="?dryRun=All")
            asked += 1
            seen.add(cluster.call("GET", secret)["data"]["tls.crt"])
            await asyncio.sleep(0.1)
        assert len(seen) == 2 and asked > 20, "300 times on a quiet machine"
    finally:
        process.remove()


@pytest.mark.long
async def test_two_replicas_renew_their_certificates_under_load_without_a_refused_request(
    cluster: MachineCluster,
) -> None:
    """Behind one address, as a Deployment behind its Service. All connections before and after are made with the CA of that moment."""
    await installed(cluster)
    ports = [free_port(), free_port()]
    refusals: list[str] = []
    asked = 0
    done = asyncio.Event()

    async def ask(number: int) -> None:
        nonlocal asked
        while not done.is_set():
            try:
                await asyncio.to_thread(
                    cluster.pod, TEAM, f"probe-{number}", {MACHINE_TYPE: "none"}, query="?dryRun=All"
                )
            except Refused as refused:
                asked += 1
                if "MachineUnknown" not in refused.message:  # nobody answered
                    refusals.append(refused.message)

    def keys() -> dict[str, str]:
        found: dict[str, str] = cluster.call("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/moorage-machines-tls")[
            "data"
        ]
        return found

    async with Balancer(ports) as balancer:
        replicas = [
            Replica(cluster, f"127.0.0.1:{port}", balancer.url, MOORAGE_CERTIFICATE_DAYS="0.0005") for port in ports
        ]
        try:
            for replica in replicas:
                await settled(replica.is_ready, 40, "it is ready")
            first = keys()["tls.crt"]
            asking = [asyncio.create_task(ask(number)) for number in range(4)]
            await settled(lambda: keys()["tls.crt"] != first, 60, "another certificate is served")
            before = dict(balancer.connections)
            await settled(lambda: "previous-ca.crt" not in keys(), 60, "the CA before is not trusted any more")
            served = asked
            await settled(lambda: asked > served + 50, 30, "requests go on")
            done.set()
            await asyncio.gather(*asking)
        finally:
            for replica in replicas:
                replica.remove()
    assert not refusals, f"{len(refusals)} of {asked} requests: {refusals[0]}"
    assert all(balancer.connections[port] > before[port] for port in ports), "both serve the new certificate"


async def nothing(_api: Api) -> None:
    """Installs nothing: `join` has done so."""


async def test_a_cluster_with_machines_joins_and_leaves_by_command(cluster: MachineCluster) -> None:
    """Joins and leaves a whole mesh, whose `slots` plans reservations by the agent's reports."""
    for name in NODES:
        cluster.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
    where = ["lab/machines", "--kubeconfig", str(cluster.plane.kubeconfig)]
    before = await dump_at_rest(cluster)

    def run() -> None:
        with Mesh() as mesh:
            joined = mesh.run("cluster", "join", *where, "--machines", "--no-deploy", seconds=60)
            assert joined.returncode == 0, joined.stderr.decode()
            secret = cluster.find("/api/v1/namespaces/moorage-system/secrets/moorage-machines")
            assert (
                secret is not None
                and secret["data"]["MOORAGE_NATS_USER"] == b64encode(b"machines.lab.machines").decode()
            )
            asyncio.run(cluster.install(nothing))
            agent = AgentProcess(mesh, cluster.plane, "--name", "lab/machines")
            process = MachinesProcess(cluster, "--name", "lab/machines", MOORAGE_STATE=str(mesh.state))
            try:
                agent.start()
                until(process.is_ready, 40)
                spec = {"spec": {"cpu": "2", "memory": "1Gi"}, "available": 3}
                cluster.machine(machine("g", {"a": spec}, {name: ["a"] for name in NODES}))
                until(lambda: cluster.usage("g").get("a") == (3, 3, 0, 0), 40)
                cluster.pod(TEAM, "guest", GUEST)
                until(lambda: cluster.usage("g").get("a") == (3, 2, 1, 0), 40)
                refused = mesh.run("cluster", "leave", *where)
                assert refused.returncode == 4 and b"Machine g, guest team/guest" in refused.stderr
                process.remove()
                agent.stop()
                left = mesh.run("cluster", "leave", "--force", *where, seconds=120)
                assert left.returncode == 0, left.stderr.decode()
            finally:
                process.remove()
                agent.stop()

    await asyncio.to_thread(run)
    definition = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/machines.{DOMAIN.rstrip('/')}"
    await settled(lambda: cluster.find(definition) is None, 30, "its definition is gone")
    assert cluster.find("/api/v1/namespaces/moorage-system/secrets/moorage-machines") is None
    for name in NODES:
        node = cluster.call("GET", f"/api/v1/nodes/{name}")
        assert "taints" not in node["spec"] and not any(key.startswith(DOMAIN) for key in node["metadata"]["labels"])
    assert len(cluster.bound(TEAM)) == 1, "no running guest stops"
    cluster.delete_pod(TEAM, "guest")
    await as_before(cluster, before)


def until(check: Callable[[], bool], seconds: float) -> None:
    wait_until(check, within=seconds)
