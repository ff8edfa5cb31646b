"""Real control planes, started once for all tests that need them, and a small stand-in for the mesh of an agent."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from moorage.agent.worker import main
from moorage.bus import Bus, Incoming, Settings
from moorage.model.desired_state import DesiredApp, DesiredAsk, DesiredReply, Pins
from moorage.model.reports import NodeReport, PodReport, Report, ReportReply
from moorage.model.status import Confirm
from moorage_testkit.control_plane import ControlPlane, control_planes
from moorage_testkit.kube_assets import find
from moorage_testkit.polling import LEAST
from moorage_testkit.servers import NatsServer

GPU = "nvidia.com/gpu"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Reports missing binaries in one line for all tests that need them."""
    assets, why = find()
    needy = [item for item in items if {"plane", "planes"} & set(getattr(item, "fixturenames", ()))]
    if assets is not None or not needy:
        return
    needy[0].add_marker(pytest.mark.skip(reason=f"{len(needy)} tests: {why}"))
    config.hook.pytest_deselected(items=needy[1:])
    items[:] = [item for item in items if item not in needy[1:]]


@pytest.fixture(scope="package")
def planes() -> Iterator[list[ControlPlane]]:
    """Starts edge-1 and edge-2, and core-1 with GPUs and a zone of its own."""
    with control_planes("edge-1", "edge-2", "core-1") as made:
        for plane in made:
            add_nodes(plane)
        yield made


@pytest.fixture(scope="package")
def plane() -> Iterator[ControlPlane]:
    """Returns edge-1."""
    with ControlPlane("edge-1") as plane:
        add_nodes(plane)
        yield plane


def add_nodes(plane: ControlPlane) -> None:
    for i in range(4):
        gpus = {GPU: "2"} if plane.name == "core-1" and i < 2 else {}
        zone = "core" if plane.name == "core-1" else "edge"
        plane.node(f"{plane.name}-n{i}", allocatable=gpus, labels={"topology.kubernetes.io/zone": zone})


class Mesh:
    """Stands in for inventory and patcher: takes reports and confirmations, and answers what should run."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.nodes: dict[str, NodeReport] = {}
        self.pods: dict[str, PodReport] = {}
        self.reports: list[Report] = []
        self.confirms: list[Confirm] = []
        self.desired: dict[str, DesiredApp] = {}
        self.named: list[DesiredApp] = []  # versions whose confirmations are asked for again
        self.asked = 0
        self.silent = False
        self.cluster = ""

    async def start(self) -> None:
        await self.bus.serve("moorage.reports.*.*.*", self._report, max_bytes=8 << 20)
        await self.bus.serve("moorage.desired.get.*.*", self._get)
        await self.bus.serve("moorage.desired.confirm.*.*", self._confirm)

    async def _report(self, incoming: Incoming) -> msgspec.Struct | None:
        if self.silent:
            return None
        report = msgspec.json.decode(incoming.data, type=Report)
        assert len(incoming.data) < 512_000
        self.reports.append(report)
        if report.kind == "full" and report.part[0] == 0:
            self.nodes, self.pods = {}, {}
        self.nodes |= {n.name: n for n in report.nodes}
        self.pods |= {p.uid: p for p in report.pods}
        for name in report.nodes_gone:
            del self.nodes[name]
        for uid in report.pods_gone:
            del self.pods[uid]
        return ReportReply(period_ms=500)

    async def _get(self, incoming: Incoming) -> msgspec.Struct | None:
        if self.silent:
            return None
        self.asked += 1
        ask = msgspec.json.decode(incoming.data, type=DesiredAsk)
        news = [
            app
            for app in self.desired.values()
            if ask.have.get(f"{app.group} {app.app}", 0) < app.version
            or (app.pins is not None and app.pins.tag != ask.pins.get(f"{app.group} {app.app}", ""))
        ]
        return DesiredReply(apps=news + self.named)

    async def _confirm(self, incoming: Incoming) -> bytes | None:
        if self.silent:
            return None
        self.confirms.append(msgspec.json.decode(incoming.data, type=Confirm))
        return b"{}"

    async def want(
        self,
        cluster: str,
        app: str,
        version: int,
        *objects: dict[str, Any],
        remove: bool = False,
        pins: Pins | None = None,
    ) -> None:
        self.desired[app] = DesiredApp(
            group="p/shop/v1/default", app=app, version=version, objects=list(objects), remove=remove, pins=pins
        )
        await self.bus.publish(f"moorage.desired.changed.{cluster.replace('/', '.')}", b"")

    def confirmation(self, app: str, version: int) -> Confirm | None:
        return next((c for c in reversed(self.confirms) if c.app == app and c.version == version), None)

    def states(self, app: str, version: int) -> dict[str, str]:
        confirm = self.confirmation(app, version)
        return {o.object: o.state for o in confirm.objects} if confirm is not None else {}


@pytest_asyncio.fixture
async def mesh(nats: NatsServer) -> AsyncIterator[Mesh]:
    bus = await Bus.connect(nats.settings(), worker="admin")
    mesh = Mesh(bus)
    await mesh.start()
    yield mesh
    await bus.close()


Start = Callable[..., "asyncio.Task[None]"]


@pytest_asyncio.fixture
async def agents(nats: NatsServer) -> AsyncIterator[Start]:
    """`agents(plane)` starts an agent. All are stopped at the end, and none may have failed."""
    tasks: list[asyncio.Task[None]] = []

    def start(
        plane: ControlPlane, cluster: str = "", settings: Settings | None = None, **more: Any
    ) -> asyncio.Task[None]:
        arguments = {"cluster": cluster or f"lab/{plane.name}", "kubeconfig": plane.kubeconfig, **more}
        tasks.append(asyncio.ensure_future(main(settings or nats.settings(), **arguments)))
        return tasks[-1]

    yield start
    for task in tasks:
        task.cancel()
    while tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await tasks.pop()
    gc.collect()  # attribute what they left open to this test


async def settled(check: Callable[[], Any], seconds: float = 20, what: str = "") -> None:
    """Waits for a condition that needs requests to the API server."""
    loop = asyncio.get_running_loop()
    seconds = max(seconds, LEAST)
    end = loop.time() + seconds
    while True:
        found = await asyncio.to_thread(check)
        if found:
            return
        if loop.time() > end:
            raise AssertionError(f"not within {seconds:g} s: {what or check}")
        await asyncio.sleep(0.05)
