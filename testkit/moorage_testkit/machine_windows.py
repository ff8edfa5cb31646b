"""Windows of a Machine in a real cluster that joined a whole mesh, whose broker is killed before each of them begins."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from moorage.bus import Bus
from moorage.kube import Api, Reflector, connect
from moorage.ledger import open_ledger
from moorage.machine_groups.names import MACHINE_TYPE, SLOT_GATE, WINDOW

from .agent_process import AgentProcess
from .control_plane import ControlPlane
from .machine_cluster import MachineCluster, MachinesProcess
from .machines import machine
from .mesh import Mesh

TEAM, CLUSTER = "team", "lab/machines"
#: The broker is killed this many seconds before a window begins.
KILLED = 2.0
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class OpenedWindow(NamedTuple):
    """The times when a window began, when its slot was committed for its guest, and when the gate was off, in seconds since 1970."""

    begin: float
    committed: float
    opened: float


async def _nothing(_api: Api) -> None:
    """Installs nothing: `join` has done so."""


class WindowSite:
    """A mesh, a cluster with `slots` slots, and the times at which its guests lost their gates."""

    def __init__(self, mesh: Mesh, cluster: MachineCluster, slots: int) -> None:
        self.mesh, self.cluster, self._slots = mesh, cluster, slots
        self.opened: dict[str, float] = {}

    def _see(self, key: Any, pod: dict[str, Any]) -> None:
        gates = {gate["name"] for gate in pod["spec"].get("schedulingGates") or ()}
        if key.namespace == TEAM and SLOT_GATE not in gates:
            self.opened.setdefault(key.name, time.time())

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        api = await connect(self.cluster.plane.kubeconfig)
        watch = asyncio.ensure_future(
            Reflector(api, f"/api/v1/namespaces/{TEAM}/pods", _decode, self._see, lambda _key, _uid: None).run()
        )
        try:
            yield
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
            await api.close()

    async def until(self, check: Callable[[], bool], seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while not await asyncio.to_thread(check):
            if time.monotonic() > end:
                raise TimeoutError(f"{what}: not within {seconds:g} s")
            await asyncio.sleep(0.1)

    async def run(self, first: float, apart: float) -> list[OpenedWindow]:
        """Lets windows begin `apart` seconds one after the other, the first in `first` seconds, with a guest for each."""
        count = self._slots
        start = float(int(time.time() + first) + 1)
        begins = {f"w{n}": start + n * apart for n in range(count)}
        windows = [
            {"name": name, "slots": 1, "from": _text(begin), "until": _text(start + count * apart + 600)}
            for name, begin in begins.items()
        ]
        spec = {"spec": {"cpu": "1", "memory": "1Gi"}, "available": count, "windows": windows}
        self.cluster.machine(machine("g", {"a": spec}, {"n0": ["a"]}))
        await self.until(lambda: self.cluster.usage("g").get("a") == (count, count, 0, 0), 60, "the slots are held")
        for name in begins:
            labels = {MACHINE_TYPE: "a", WINDOW: name}
            await asyncio.to_thread(self.cluster.pod, TEAM, name, labels)
        for begin in begins.values():
            await asyncio.sleep(max(0.0, begin - KILLED - time.time()))
            await asyncio.to_thread(self.mesh.kill, "nats")
        await self.until(lambda: begins.keys() <= self.opened.keys(), 60, "all are let in")
        bus = await Bus.connect(self.mesh.settings, worker="admin", timeout=30)
        granted = (await open_ledger(bus)).ledger.machines.granted
        committed = {slot.name: slot.at for slot in granted.values()}
        await bus.close()
        return [OpenedWindow(begin, committed[name], self.opened[name]) for name, begin in begins.items()]


def _text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def windows_with_the_broker_killed(count: int, first: float, apart: float) -> list[OpenedWindow]:
    with ControlPlane("machines") as plane, Mesh() as mesh:
        plane.node("n0", allocatable={"cpu": "64", "memory": "256Gi"})
        cluster = MachineCluster(plane)
        where = [CLUSTER, "--kubeconfig", str(plane.kubeconfig), "--machines", "--no-deploy"]
        joined = await mesh.arun("cluster", "join", *where)
        if joined.returncode:
            raise RuntimeError(joined.stderr.decode())
        await cluster.install(_nothing)
        cluster.namespace(TEAM)
        agent = AgentProcess(mesh, plane, "--name", CLUSTER)
        process = MachinesProcess(cluster, "--name", CLUSTER, MOORAGE_STATE=str(mesh.state))
        try:
            agent.start()
            site = WindowSite(mesh, cluster, count)
            await site.until(process.is_ready, 60, "hooks are answered")
            async with site.watched():
                return await site.run(first, apart)
        finally:
            process.remove()
            agent.stop()
