"""Machines in a real cluster: how soon guests are bound, what hooks cost, and what a cluster at rest costs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import ssl
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
import psutil

from moorage.kube import Api, ApiError, Reflector, connect
from moorage.machine_groups.names import GROUP_VERSION, MACHINE_TYPE, NODE_POOL
from moorage.machines.install import install
from moorage.model.object_names import NAMESPACE
from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.machine_cluster import MachineCluster, MachinesProcess
from moorage_testkit.machines import machine

from .harness import Figure

GUEST = {MACHINE_TYPE: "a"}
TEAM = "team"
PODS = f"/api/v1/namespaces/{TEAM}/pods"
_MERGE = "application/merge-patch+json"
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Pods:
    """Records when Pods were bound and when they were gone, by a watch. `most`: the most guests that were bound and not over at any time."""

    def __init__(self) -> None:
        self.bound: dict[str, float] = {}
        self.there: set[str] = set()
        self.over: set[str] = set()
        self.most = 0
        self.on_running: Callable[[str], None] = lambda _name: None
        self._holding: set[str] = set()
        self._running: set[str] = set()
        self._changed = asyncio.Event()

    def put(self, key: Any, pod: dict[str, Any]) -> None:
        name = f"{key.namespace}/{key.name}"
        self.there.add(name)
        if pod["spec"].get("nodeName") and name not in self.bound:
            self.bound[name] = time.perf_counter()
            if key.namespace == TEAM:
                self._holding.add(name)
                self.most = max(self.most, len(self._holding))
        phase = pod["status"].get("phase")
        # kwok may write once more that a Pod runs which has ended, as no kubelet does: it is ended again.
        if phase == "Running" and key.namespace == TEAM and (name not in self._running or name in self.over):
            self._running.add(name)
            self.over.discard(name)
            self.on_running(key.name)
        if phase in ("Succeeded", "Failed"):
            self.over.add(name)
            self._holding.discard(name)
        self._changed.set()

    def drop(self, key: Any, _uid: str) -> None:
        name = f"{key.namespace}/{key.name}"
        self.there.discard(name)
        self.bound.pop(name, None)
        self._holding.discard(name)
        self._changed.set()

    async def until(self, check: Callable[[], bool], seconds: float = 300) -> float:
        async with asyncio.timeout(seconds):
            while not check():
                self._changed.clear()
                await self._changed.wait()
        return time.perf_counter()


class Site:
    """A cluster with machines, an administrator's connection, and a watch of all Pods."""

    def __init__(self, cluster: MachineCluster, api: Api, pods: Pods, process: MachinesProcess) -> None:
        self.cluster, self.api, self.pods, self.process = cluster, api, pods, process

    async def create(self, name: str, labels: dict[str, str] | None = None, cpu: str = "") -> None:
        container: dict[str, Any] = {"name": "c", "image": "x"}
        if cpu:
            container["resources"] = {"requests": {"cpu": cpu}}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False}
        body = {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}
        await self.api.call("POST", PODS, body=msgspec.json.encode(body), timeout=60)

    async def delete(self, name: str) -> None:
        await self.api.call("DELETE", f"{PODS}/{name}", timeout=60)

    async def usage(self, *wanted: int, seconds: float = 300) -> None:
        async with asyncio.timeout(seconds):
            while (await asyncio.to_thread(self.cluster.usage, "g")).get("a") != wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def site(
    nodes: int, slots: int, cpu: str = "2", arguments: Sequence[str] = (), holds: int | None = None
) -> AsyncIterator[Site]:
    """`arguments`: more of the API server; `holds`: how many of the slots find room."""
    with ControlPlane("bench", arguments=arguments) as plane:
        for i in range(nodes):
            plane.node(f"n{i}", allocatable={"cpu": "64", "memory": "256Gi"})
        cluster = MachineCluster(plane)
        await cluster.install(lambda api: install(api, "moorage", 2, lambda _text: None, deploy=False))
        cluster.namespace(TEAM)
        process = MachinesProcess(cluster)
        api = await connect(plane.kubeconfig)
        pods = Pods()
        watch = asyncio.ensure_future(Reflector(api, "/api/v1/pods", _decode, pods.put, pods.drop).run())
        try:
            while not process.is_ready():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            await asyncio.sleep(2)
            spec = {"spec": {"cpu": cpu, "memory": "1Gi"}, "available": slots, "offlineSlots": slots}
            cluster.machine(machine("g", {"a": spec}, {f"n{i}": ["a"] for i in range(nodes)}))
            found = Site(cluster, api, pods, process)
            await found.usage(slots, slots if holds is None else holds, 0, 0)
            yield found
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
            await api.close()
            process.remove()


async def one_at_a_time(times: int = 40) -> Figure:
    """From a guest being created until it is bound; the floor is made of the same steps without us, in turn."""
    samples: list[float] = []
    floors: dict[str, list[float]] = {"plain Pod bound": [], "reservation gone": [], "one PATCH": []}
    async with site(4, 8) as s:
        template = {"metadata": {"labels": {"app": "floor"}}, "spec": {"containers": [{"name": "c", "image": "x"}], "terminationGracePeriodSeconds": 1}}  # fmt: skip
        body = {"metadata": {"name": "floor"}, "spec": {"selector": {"matchLabels": {"app": "floor"}}, "serviceName": "x", "podManagementPolicy": "Parallel", "replicas": 2, "template": template}}  # fmt: skip
        path = f"/apis/apps/v1/namespaces/{TEAM}/statefulsets"
        await s.api.call("POST", path, body=msgspec.json.encode(body))
        for i in range(times):
            await s.pods.until(lambda: {f"{TEAM}/floor-0", f"{TEAM}/floor-1"} <= s.pods.bound.keys())
            began = time.perf_counter()
            await s.create("guest", GUEST)
            await s.pods.until(lambda: f"{TEAM}/guest" in s.pods.bound)
            samples.append((s.pods.bound[f"{TEAM}/guest"] - began) * 1e3)
            began = time.perf_counter()
            await s.create("plain", cpu="100m")
            await s.pods.until(lambda: f"{TEAM}/plain" in s.pods.bound)
            floors["plain Pod bound"].append((s.pods.bound[f"{TEAM}/plain"] - began) * 1e3)
            began = time.perf_counter()
            await s.api.call("PATCH", f"{path}/floor", body=b'{"spec":{"replicas":1}}', content_type=_MERGE)
            gone = await s.pods.until(lambda: f"{TEAM}/floor-1" not in s.pods.there)
            floors["reservation gone"].append((gone - began) * 1e3)
            began = time.perf_counter()
            mark = b'{"metadata":{"labels":{"n":"%d"}}}' % i
            await s.api.call("PATCH", f"{PODS}/plain", body=mark, content_type=_MERGE)
            floors["one PATCH"].append((time.perf_counter() - began) * 1e3)
            await s.api.call("PATCH", f"{path}/floor", body=b'{"spec":{"replicas":2}}', content_type=_MERGE)
            await s.delete("guest")
            await s.delete("plain")
            await s.pods.until(lambda: not {f"{TEAM}/guest", f"{TEAM}/plain"} & s.pods.there)
            await asyncio.sleep(0.6)
            await s.usage(8, 8, 0, 0)
    floor = {name: float(np.median(values)) for name, values in floors.items()}
    total = sum(floor.values())
    goal = "p50 <= 2 x floor, p99 <= 3 x p50"
    return Figure.of(
        "guest created -> bound", samples, goal, floor=floor, p50=2 * total, p99=3 * float(np.median(samples))
    )


async def many(count: int = 1000, nodes: int = 50) -> Figure:
    """Guests for all slots at once; the floor: a StatefulSet of as many scaled to 0, and as many plain Pods bound."""
    async with site(nodes, count) as s:

        async def all_bound(prefix: str, labels: dict[str, str] | None, cpu: str) -> float:
            names = [f"{prefix}-{i}" for i in range(count)]
            gate = asyncio.Semaphore(64)

            async def create(name: str) -> None:
                async with gate:
                    await s.create(name, labels, cpu)

            began = time.perf_counter()
            await asyncio.gather(*map(create, names))
            await s.pods.until(lambda: sum(n.startswith(f"{TEAM}/{prefix}-") for n in s.pods.bound) == count, 900)
            return time.perf_counter() - began

        guests = await all_bound("guest", GUEST, "")
        await asyncio.gather(*(s.delete(f"guest-{i}") for i in range(count)))
        await s.usage(count, count, 0, 0, seconds=600)
        await asyncio.to_thread(s.cluster.delete, f"/apis/{GROUP_VERSION}/machines/g")
        began = time.perf_counter()
        # Without the Machine its StatefulSet goes with all Pods, as one that is scaled to 0.
        await s.pods.until(lambda: not any(n.startswith(f"{NAMESPACE}/") for n in s.pods.there), 900)
        scaled = time.perf_counter() - began
        plain = await all_bound("plain", None, "2")
    floor = {"set to 0": scaled * 1e3, "plain Pods bound": plain * 1e3}
    total = sum(floor.values())
    return Figure.of(f"{count} guests at once", [guests * 1e3], "<= 2 x floor", floor=floor, p50=2 * total)


#: Lets the API server log the writes of the service account, without the Lease.
_AUDIT = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, resources: [{group: coordination.k8s.io}]}
- {level: Metadata, users: ["system:serviceaccount:moorage-system:moorage-machines"], verbs: [create, update, patch, delete]}
- {level: None}
"""


async def ended(guests: int = 3000, slots: int = 1000, nodes: int = 50, seconds: float = 1.0) -> list[Figure]:
    """Three times as many guests as slots; each ends so many seconds after it began to run. The API server's own log counts our writes."""
    with tempfile.TemporaryDirectory() as directory:
        policy, audited = Path(directory) / "policy.yaml", Path(directory) / "audit.log"
        policy.write_text(_AUDIT)
        arguments = (f"--audit-policy-file={policy}", f"--audit-log-path={audited}", "--audit-log-mode=blocking")
        async with site(nodes, slots, arguments=arguments) as s:
            before = len(audited.read_text().splitlines())
            gate = asyncio.Semaphore(64)
            tasks: set[asyncio.Task[None]] = set()

            async def create(i: int) -> None:
                async with gate:
                    await s.create(f"guest-{i}", GUEST)

            async def end(name: str) -> None:
                await asyncio.sleep(seconds)
                body = b'{"status":{"phase":"Succeeded"}}'
                await s.api.call("PATCH", f"{PODS}/{name}/status", body=body, content_type=_MERGE, timeout=60)

            def began_to_run(name: str) -> None:
                task = asyncio.ensure_future(end(name))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

            s.pods.on_running = began_to_run
            began = time.perf_counter()
            await asyncio.gather(*map(create, range(guests)))
            await s.pods.until(lambda: len(s.pods.over) == guests, 600)
            took = time.perf_counter() - began
            await s.usage(slots, slots, 0, 0)
            lines = map(msgspec.json.decode, audited.read_text().splitlines()[before:])
            writes = Counter(f"{line['verb']} {line['objectRef']['resource']}" for line in lines)
    each = {name: count / guests for name, count in writes.most_common()}
    sys.stdout.write(f"     writes of each kind per guest: {', '.join(f'{k} {v:.3f}' for k, v in each.items())}\n")
    return [
        Figure.of(f"{guests} guests on {slots} slots, all ended", [took * 1e3], "all run"),
        Figure.of("most of them bound at a time", [s.pods.most], f"<= {slots}", p50=slots, unit="guests"),
        Figure.of("writes per guest", [sum(each.values())], "<= 6", p50=6, unit="writes"),
    ]


async def hooks(seconds: float = 20, rate: int = 100) -> Figure:
    """The answers of hooks, beside a bare handler with the same certificate that echoes as much. Both as the API server asks."""
    async with site(2, 4) as s:
        command = (sys.executable, "-m", "tests.bench.bare_hook")
        bare = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert bare.stdout is not None
        port = (await bare.stdout.readline()).decode().strip()
        url = next(
            line.split()[1] for line in s.process.log.read_text().splitlines() if line.startswith("ready https://")
        )
        pod = {"metadata": {"name": "x", "labels": GUEST}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {"uid": "u", "operation": "CREATE", "namespace": TEAM, "object": pod},
        }
        body = msgspec.json.encode(review)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        ours: list[float] = []
        theirs: list[float] = []
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=client)) as session:

            async def ask(address: str, samples: list[float]) -> None:
                began = time.perf_counter()
                async with session.post(address, data=body) as answer:
                    await answer.read()
                samples.append((time.perf_counter() - began) * 1e3)

            for _ in range(int(seconds * rate)):
                await ask(f"{url}/inject", ours)
                await ask(f"https://127.0.0.1:{port}/", theirs)
                await asyncio.sleep(max(0.0, 1 / rate - 0.002))
        bare.terminate()
        await bare.wait()
    floor = {"bare handler": float(np.median(theirs))}
    goal = "p50 <= 2 x bare handler, p99 <= 25 ms"
    return Figure.of("hook answered", ours, goal, floor=floor, p50=2 * floor["bare handler"], p99=25)


async def rest(nodes: int = 500, slots: int = 1000, waiting: int = 3000, seconds: float = 60) -> list[Figure]:
    """A cluster in which guests wait and nothing happens."""
    async with site(nodes, slots) as s:
        gate = asyncio.Semaphore(64)

        async def create(i: int) -> None:
            async with gate:
                await s.create(f"guest-{i}", GUEST)

        await asyncio.gather(*map(create, range(slots + waiting)))
        await s.usage(slots, 0, slots, waiting, seconds=1200)
        await asyncio.sleep(5)

        async def versions() -> dict[str, str]:
            found: dict[str, str] = {}
            for path in ("/api/v1/nodes", "/api/v1/pods", f"/apis/{GROUP_VERSION}/machines", f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets"):  # fmt: skip
                for obj in (await s.api.get(path) or {})["items"]:
                    found[obj["metadata"]["uid"]] = obj["metadata"]["resourceVersion"]
            return found

        before = await versions()
        process = psutil.Process(s.process.process.pid)
        used = sum(process.cpu_times()[:2])
        await asyncio.sleep(seconds)
        share = (sum(process.cpu_times()[:2]) - used) / seconds * 100
        memory = process.memory_info().rss / 1e6
        after = await versions()
        writes = sum(before.get(uid) != version for uid, version in after.items())
    return [
        Figure.of("writes at rest", [float(writes)], "0", p50=0, unit="writes"),
        Figure.of("a core at rest", [share], "<= 1 %", p50=1, unit="%"),
        Figure.of("memory", [memory], "<= 200 MB", p50=200, unit="MB"),
    ]


async def cordoned(times: int = 20) -> list[Figure]:
    """From a Node being cordoned until its label is off, and until the conditions of the Machine and of its pool say so."""
    samples: list[float] = []
    told: list[float] = []
    async with site(3, 3) as s:
        seen: dict[str, dict[str, Any]] = {}
        changed = asyncio.Event()

        def put(key: Any, obj: dict[str, Any]) -> None:
            seen[key.name] = obj
            changed.set()

        async def until(check: Callable[[], bool]) -> float:
            while not check():
                changed.clear()
                await changed.wait()
            return time.perf_counter()

        def is_labelled() -> bool:
            return NODE_POOL in seen["n1"]["metadata"]["labels"]

        def healthy(is_healthy: bool) -> bool:
            conditions = {c["type"]: c["status"] for c in seen["g"]["status"]["conditions"]}
            pool = {node["name"]: node["condition"] for node in seen["g-node-pool"]["status"]["nodePool"]}
            wanted = ("True", "Ready") if is_healthy else ("False", "NotReady")
            return (conditions["NodesHealthy"], pool["n1"]) == wanted

        paths = ("/api/v1/nodes", f"/apis/{GROUP_VERSION}/machines", f"/apis/{GROUP_VERSION}/machinenodepools")
        reflectors = [Reflector(s.api, path, _decode, put, lambda _key, _uid: None) for path in paths]
        watches = [asyncio.ensure_future(reflector.run()) for reflector in reflectors]
        for reflector in reflectors:
            await reflector.synced.wait()
        for _ in range(times):
            await until(lambda: is_labelled() and healthy(True))
            began = time.perf_counter()
            await s.api.call("PATCH", "/api/v1/nodes/n1", body=b'{"spec":{"unschedulable":true}}', content_type=_MERGE)
            samples.append((await until(lambda: not is_labelled()) - began) * 1e3)
            told.append((await until(lambda: healthy(False)) - began) * 1e3)
            await s.api.call("PATCH", "/api/v1/nodes/n1", body=b'{"spec":{"unschedulable":null}}', content_type=_MERGE)
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
    return [
        Figure.of("Node cordoned -> label off", samples, "p99 <= 300 ms", p99=300),
        Figure.of("Node cordoned -> conditions set", told, "p99 <= 300 ms", p99=300),
    ]


async def held(nodes: int = 1, available: int = 3, seconds: float = 60) -> Figure:
    """Counts changes of the number of replicas where fewer slots fit than are available."""
    seen: list[int] = []
    async with site(nodes, available, cpu="30", holds=2) as s:
        key = "a-g"

        def put(found: Any, stateful_set: dict[str, Any]) -> None:
            if found.name == key:
                seen.append(stateful_set["spec"]["replicas"])

        path = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets"
        watch = asyncio.ensure_future(Reflector(s.api, path, _decode, put, lambda _key, _uid: None).run())
        await asyncio.sleep(seconds)
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
    flips = sum(one != other for one, other in itertools.pairwise(seen))
    return Figure.of(f"replicas changed in {seconds:.0f} s, 2 of 3 slots fit", [flips], "0", p50=0, unit="times")


async def killed() -> Figure:
    """From the leader being killed until a guest that was asked for all the time is bound."""
    async with site(2, 4) as s:
        second = MachinesProcess(s.cluster)
        try:
            while not second.is_ready():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            await s.create("first", GUEST)
            await s.pods.until(lambda: f"{TEAM}/first" in s.pods.bound)
            began = time.perf_counter()
            s.process.stop(signal.SIGKILL)
            while True:
                try:
                    await s.create("next", GUEST)
                    break
                except ApiError:  # nobody answers where the hooks still are
                    await asyncio.sleep(0.1)
            await s.pods.until(lambda: f"{TEAM}/next" in s.pods.bound)
            took = s.pods.bound[f"{TEAM}/next"] - began
        finally:
            second.remove()
    return Figure.of("leader killed -> next grant", [took], "<= 15 s", p50=15, unit="s")


async def machine_cluster() -> list[Figure]:
    return [await one_at_a_time(), await hooks(), *await cordoned(), await held(), await killed()]
