"""A node agent: admissions with three plugins, calls through the proxy, pools of real containers, idling and starting with 250
pods."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import psutil
from pytest import MonkeyPatch
from tests.node.agent_process import AgentProcess
from tests.node.containerd import Containerd
from tests.node.cri_client import CriClient
from tests.node.fake_plugin import FakePlugin
from tests.node.loaded_pools import LoadedPools
from tests.node.machines import pod, write_pod, write_policy, write_sysfs
from tests.node.recording_runtime import RecordingRuntime
from tests.node.test_api_server import PODS

from moorage.fleet import Fleet, FleetFollower
from moorage.node import grpc_unix
from moorage.node.agent import NodeAgent
from moorage.node.pod_objects import known_pod
from moorage.node.settings import Settings
from moorage.node.state_file import StateFile
from moorage_testkit import node_assets
from moorage_testkit.mesh import Mesh
from moorage_testkit.polling import until
from moorage_testkit.scripted_api import ScriptedServer, write_kubeconfig

from .harness import Figure

GATE = ("--feature-gates", "QoSResourceManager=true")
NICS = [{"name": "eth0", "numa": 0, "mbps": 25000}, {"name": "eth1", "numa": 1, "mbps": 25000}]


async def _timed(work: Callable[[], Awaitable[Any]]) -> float:
    started = time.perf_counter()
    await work()
    return (time.perf_counter() - started) * 1e3


def _settings(directory: Path) -> Settings:
    write_sysfs(directory / "sys", 2, 128)
    write_policy(directory / "policy.yaml", nics=NICS)
    (directory / "pods").mkdir()
    return Settings(
        node="n1",
        runtime=f"unix://{directory}/r.sock",
        root=directory / "n",
        config=directory / "policy.yaml",
        pods=str(directory / "pods"),
        sysfs=directory / "sys",
        kubelet=directory,
        enabled=True,
    )


@asynccontextmanager
async def _directory() -> AsyncIterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mrg-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


async def node_admissions() -> list[Figure]:
    """Beside six bare calls in two rounds and a synced file."""
    async with _directory() as directory:
        runtime = RecordingRuntime()
        await runtime.start(directory / "r.sock")
        agent = NodeAgent(_settings(directory))
        await agent.start()
        await agent.admission.recovered.wait()
        while agent.operations.ready():  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
        samples, floors = [], []
        bare = [await _bare(directory / f"bare{i}.sock") for i in range(3)]
        file = StateFile(directory / "floor")
        content = os.urandom(100_000)

        async def floor() -> None:
            for _ in range(2):
                await asyncio.gather(*(call(b"x" * 200) for call, *_ in bare))
            file.write(content)

        for i in range(330):
            found = known_pod(pod(f"p{i}", "numa-enhancement", "2", "1Gi"))
            agent.source.put(found)
            spent = await _timed(lambda found=found: agent.admission.admit(found.spec))  # type: ignore[misc]
            spent_floor = await _timed(floor)
            if i >= 30:
                samples.append(spent)
                floors.append(spent_floor)
            if i >= 60:
                agent.admission.release(f"uid-p{i - 60}")
        await agent.admission.idle()
        await agent.stop()
        await runtime.stop()
        for _, server, channel in bare:
            await channel.close()
            await server.stop(0)
    beside = sorted(floors)[len(floors) // 2]
    goal = "p50 <= 2.5 x floor and <= 5 ms, p99 <= 15 ms"
    figure = Figure.of(
        "node admission, 3 plugins", samples, goal, p50=min(5, 2.5 * beside), p99=15, floor={"bare": beside}
    )
    return [figure]


async def _bare(path: Path) -> tuple[Any, grpc.aio.Server, grpc.aio.Channel]:
    async def answer(request: bytes, _: Any) -> bytes:
        return request

    handler = grpc_unix.unary_methods("bare.Bare", {"Call": grpc.unary_unary_rpc_method_handler(answer)})
    server = await grpc_unix.serve(path, [handler])
    channel = grpc_unix.channel(str(path))
    return channel.unary_unary("/bare.Bare/Call"), server, channel


async def node_proxy() -> list[Figure]:
    """A call through the proxy of another process, beside the same call without."""
    async with _directory() as directory:
        settings = _settings(directory)
        runtime = RecordingRuntime()
        await runtime.start(directory / "r.sock")
        agent = AgentProcess(settings.root, *_arguments(settings), *GATE)
        await agent.start()
        through, direct = CriClient(agent.cri), CriClient(settings.runtime)
        samples: list[float] = []
        floors: list[float] = []
        for i in range(500):
            for client, found in ((through, samples), (direct, floors)):
                call = client.channel.unary_unary("/runtime.v1.RuntimeService/Status")
                spent = await _timed(lambda call=call: call(b""))  # type: ignore[misc]
                if i >= 100:
                    found.append(spent)
        await through.close()
        await direct.close()
        await agent.stop()
        await runtime.stop()
    beside = sorted(floors)[len(floors) // 2]
    return [Figure.of("node proxy, a call", samples, "+ <= 1 ms", p50=beside + 1, floor={"without": beside})]


def _arguments(settings: Settings) -> list[str]:
    return [
        *("--node", settings.node, "--runtime", settings.runtime, "--config", str(settings.config)),
        *("--pods", settings.pods, "--sysfs", str(settings.sysfs), "--kubelet-dir", str(settings.kubelet)),
    ]


async def node_pools() -> list[Figure]:
    """20 real containers move from one CPU to another and back; the floor is 20 updates of them at once."""
    programs = node_assets.containerd("1.6")
    if node_assets.missing() or programs is None:
        return []
    async with _directory() as directory:
        daemon = Containerd(programs, directory / "c")
        await daemon.start()
        await daemon.import_image()
        write_policy(
            directory / "policy.yaml", pools={"online": {"cpus": "0", "default": True}, "offline": {"cpus": "1"}}
        )
        (directory / "pods").mkdir()
        settings = Settings(
            "n1", runtime=f"unix://{daemon.socket}", root=directory / "n", config=directory / "policy.yaml"
        )
        settings = settings._replace(
            pods=str(directory / "pods"), kubelet=directory, plugins=("cpu", "memory"), enabled=True
        )
        agent = NodeAgent(settings)
        await agent.start()
        client = CriClient(str(settings.cri_socket), daemon.cgroup_parent)
        found = []
        for i in range(20):
            manifest = pod(f"p{i}", "ETL" if i % 2 else "online-micro_service", "100m", "16Mi")
            write_pod(directory / "pods", manifest)
            found.append(await client.run(f"p{i}", f"uid-p{i}", manifest["metadata"]["annotations"]))
        samples, floors = [], []
        for i in range(10):
            one, other = (1, 2) if i % 2 else (2, 1)
            samples.append(await _timed(lambda a=one, b=other: agent.set_pools({"online": a, "offline": b})))  # type: ignore[misc]
            floors.append(
                await _timed(lambda: asyncio.gather(*(agent.runtime.update(c, {"CpuShares": "100"}) for c in found)))
            )
        await client.close()
        await agent.stop()
        await daemon.stop()
    beside = sorted(floors)[len(floors) // 2]
    return [Figure.of("node pools, 20 containers", samples, "<= 300 ms", p50=300, floor={"20 updates": beside})]


async def node_idle() -> list[Figure]:
    """250 pods of an API server, each in a cgroup of its own, reported to a mesh: from the start of the process to the first
    admission, the share of a core while idle, and resident memory."""
    async with _directory() as directory, _mesh(directory) as mesh, ScriptedServer() as server:
        write_policy(directory / "policy.yaml", pools={"online": {"cpus": "0", "default": True}})
        settings = Settings("n1", runtime=f"unix://{directory}/r.sock", root=directory / "n")
        settings = settings._replace(config=directory / "policy.yaml", pods="api", kubelet=directory)
        runtime = RecordingRuntime()
        await runtime.start(directory / "r.sock")
        server.collections[PODS] = {}
        kubeconfig = write_kubeconfig(directory / "kubeconfig", server.url, token="secret")
        joined = await _joined(mesh, directory)
        agent = AgentProcess(settings.root, *_arguments(settings), *GATE, *joined, "--kubeconfig", str(kubeconfig))
        await agent.start()
        client = CriClient(agent.cri)
        with _cgroups(250) as pids:
            for i in range(250):
                manifest = pod(f"p{i}", "online-micro_service", "100m", "16Mi")
                await server.put(PODS, f"p{i}", **manifest)
                container = await client.run(f"p{i}", f"uid-p{i}", manifest["metadata"]["annotations"])
                runtime.pids[container] = pids[i]
            await server.put(PODS, "next", **pod("next", "online-micro_service"))
            return await _figures_of(agent, runtime, client)


@asynccontextmanager
async def _mesh(directory: Path) -> AsyncIterator[Mesh]:
    """A mesh whose fleet is one node."""
    node = {"name": "n1", "allocatable": {"cpu": "254", "memory": "400Gi", "pods": "1000"}}
    fleet = directory / "fleet.json"
    fleet.write_text(json.dumps({"kind": "Fleet", "clusters": [{"provider": "lab", "name": "one", "nodes": [node]}]}))
    mesh = Mesh("--fleet", str(fleet))
    try:
        await asyncio.to_thread(mesh.start)
        yield mesh
    finally:
        await asyncio.to_thread(mesh.remove)


async def _joined(mesh: Mesh, directory: Path) -> list[str]:
    """Gives the node a user of its own and returns the arguments for its agent."""
    file = directory / "n1.json"
    done = await mesh.arun("node", "join", "lab/one/n1", "--credentials", str(file))
    assert done.returncode == 0, done.stderr.decode()
    return ["--credentials", str(file), "--cluster", "lab/one"]


@contextmanager
def _cgroups(count: int) -> Iterator[list[int]]:
    """Runs processes, each in a cgroup of its own on CPU 0."""
    version1 = Path("/sys/fs/cgroup/cpuset")
    parent = (version1 if version1.is_dir() else Path("/sys/fs/cgroup")) / f"moorage-bench-{os.getpid()}"
    processes = []
    try:
        parent.mkdir()
        for name, value in (("cpuset.cpus", "0"), ("cpuset.mems", "0")):
            if version1.is_dir():
                (parent / name).write_text(value)
        for i in range(count):
            place = parent / str(i)
            place.mkdir()
            (place / "cpuset.cpus").write_text("0")
            (place / "cpuset.mems").write_text("0")
            processes.append(subprocess.Popen(["sleep", "1000"]))
            (place / "cgroup.procs").write_text(str(processes[-1].pid))
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for found, _, _ in os.walk(parent, topdown=False):
            os.rmdir(found)


async def _figures_of(agent: AgentProcess, runtime: RecordingRuntime, client: CriClient) -> list[Figure]:
    starts = []
    for _ in range(3):
        await agent.kill()
        calls = len(runtime.updates())

        async def start() -> None:
            await agent.start()
            again = CriClient(agent.cri)
            await again.run("next", "uid-next", {"kubernetes.io/pod-role": "online-micro_service"})
            await again.close()

        starts.append(await _timed(start))
        assert len(runtime.updates()) == calls, "a start updates nothing"
    imports = await _timed(_imports)
    assert agent.process is not None
    process = psutil.Process(agent.process.pid)
    await asyncio.sleep(3)
    before, started = sum(process.cpu_times()[:2]), time.monotonic()
    await asyncio.sleep(15)
    share = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - started) * 100
    memory = process.memory_info().rss / (1 << 20)
    await client.close()
    await agent.stop()
    await runtime.stop()
    return [
        Figure.of("node start, 250 pods", starts, "<= 1000 ms", p50=1000, floor={"imports": imports}),
        Figure.of("node idle, 250 containers", [share], "<= 0.5 % of a core", p50=0.5, unit="%"),
        Figure.of("node memory, 250 pods", [memory], "<= 64 MB", p50=64, unit="MB"),
    ]


async def _imports() -> None:
    import sys

    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import moorage.node.worker, moorage.cli.main")
    await process.wait()


async def node_plugins() -> list[Figure]:
    """From a plugin's socket to its registration."""
    async with _directory() as directory:
        runtime = RecordingRuntime()
        await runtime.start(directory / "r.sock")
        agent = NodeAgent(_settings(directory))
        await agent.start()
        samples = []
        for i in range(40):
            plugin = FakePlugin(f"example.com/r{i}")

            async def register(plugin: FakePlugin = plugin, i: int = i) -> None:
                await plugin.start(directory / "n" / "plugins_registry" / f"r{i}.sock")
                while not plugin.registered:  # noqa: ASYNC110 - it tells nobody
                    await asyncio.sleep(0.002)

            samples.append(await _timed(register))
            await plugin.stop()
        await agent.stop()
        await runtime.stop()
    return [Figure.of("node plugin registered", samples, "p99 <= 200 ms", p99=200)]


async def node_controller() -> list[Figure]:
    """From more load to the CPUs of containers, and how often a constant load moves a core within a minute."""
    samples, moves = [], 0
    with MonkeyPatch.context() as patch:
        for i in range(5):
            async with _directory() as directory:
                loaded = LoadedPools(directory, patch, ("cpu", "memory"))
                async with loaded.running():
                    await asyncio.sleep(2 + 0.2 * i)
                    samples.append(await _timed(partial(_more_load, loaded)))
                    if i == 4:
                        calls = len(loaded.runtime.updates())
                        await asyncio.sleep(60)
                        moves = len(loaded.runtime.updates()) - calls
    return [
        Figure.of("node controller, more load", samples, "<= 2000 ms", p99=2000),
        Figure.of("node controller, 60 s of constant load", [moves], "0 updates", p50=0, unit="updates"),
    ]


async def _more_load(loaded: LoadedPools) -> None:
    loaded.files.load["web"] = 17.7
    await until(lambda: loaded.cpus("web").bit_count() == 30)


async def node_mesh(pods: int = 100) -> list[Figure]:
    """From the kubelet's first call for a pod until a controller sees what it has of its zone."""
    async with _directory() as directory, _mesh(directory) as mesh:
        settings = _settings(directory)
        runtime = RecordingRuntime()
        await runtime.start(directory / "r.sock")
        agent = AgentProcess(settings.root, *_arguments(settings), *GATE, *await _joined(mesh, directory))
        await agent.start()
        client, fleet = CriClient(agent.cri), Fleet()
        follower = FleetFollower(mesh.settings.redis_url, fleet)
        await follower.start()
        await until(lambda: "moorage.dev/exclusive-cpu" in fleet.parts.classes, 60)
        samples = []
        for i in range(pods):
            manifest = pod(f"p{i}", "numa-enhancement", "1", "256Mi")
            write_pod(directory / "pods", manifest)
            started = time.perf_counter()
            await client.run(f"p{i}", f"uid-p{i}", manifest["metadata"]["annotations"])
            await until(lambda i=i: _exclusive_cpus(fleet) == i + 1, 30)  # type: ignore[misc]
            samples.append((time.perf_counter() - started) * 1e3)
            await asyncio.sleep(0.01 * (i % 7))
        await follower.stop()
        await client.close()
        await agent.stop()
        await runtime.stop()
    return [Figure.of("node admission until a controller sees it", samples, "p99 <= 300 ms", p99=300)]


def _exclusive_cpus(fleet: Fleet) -> int:
    return round(float(fleet.parts.classes["moorage.dev/exclusive-cpu"].used.sum()))
