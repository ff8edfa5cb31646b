"""Tests the probes, metrics and spans of an agent in a real cluster."""

from __future__ import annotations

import asyncio
import os
import sys
import urllib.error
import urllib.request

from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.otlp_collector import OtlpCollector
from moorage_testkit.polling import until
from moorage_testkit.servers import NatsServer, free_port

from .conftest import Mesh
from .test_agent import clean, config

__all__ = ["clean"]  # a fixture


def get(port: int, path: str) -> str:
    """Returns the body of the response, whatever its status; empty if the connection is refused."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return str(error.read().decode())
    except OSError:
        return ""


async def test_an_agent_has_probes_metrics_and_traces(plane: ControlPlane, mesh: Mesh, nats: NatsServer) -> None:
    port, trace = free_port(), "0af7651916cd43dd8448eb211c80319c"
    mesh.silent = True

    async def get_text(path: str) -> str:
        return await asyncio.to_thread(get, port, path)

    async def becomes(path: str, wanted: str) -> None:
        async with asyncio.timeout(60):
            while wanted not in await get_text(path):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)

    with OtlpCollector() as collector:
        env = os.environ | collector.env
        env |= {"MOORAGE_NATS_URL": nats.url, "MOORAGE_CLUSTER": "lab/edge-1", "MOORAGE_METRICS": f"127.0.0.1:{port}"}
        command = [sys.executable, "-m", "moorage.cli", "agent", "--kubeconfig", str(plane.kubeconfig)]
        null = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(*command, env=env, stdout=null, stderr=null)
        try:
            await becomes("/readyz", "missing: the inventory")
            assert await get_text("/livez") == "ok\n"
            mesh.silent = False
            await becomes("/readyz", "ok\n")
            await mesh.want("lab/edge-1", "web", 5, config("traced", a="1"))
            mesh.desired["web"].traceparent = f"00-{trace}-{'3' * 16}-01"
            mesh.desired["web"].version = 6
            await mesh.bus.publish("moorage.desired.changed.lab.edge-1", b"")
            await until(lambda: set(mesh.states("web", 6).values()) == {"Ready"}, 60, "it is applied")
            await until(lambda: bool(collector.of(trace)), 40, "its span was exported")
            (span,) = collector.of(trace).values()
            assert (span.service, span.name, span.parent) == ("moorage-agent", "apply", "3" * 16)
            confirm = mesh.confirmation("web", 6)
            assert confirm is not None and confirm.traceparent == f"00-{trace}-{span.id}-01"
            metrics = await get_text("/metrics")
            for line in ("moorage_worker_active 1.0", "moorage_agent_apps 1.0", 'worker="agent"'):
                assert line in metrics
            assert "moorage_agent_view_age_seconds" in metrics and "moorage_agent_reports_total" in metrics
        finally:
            process.terminate()
            async with asyncio.timeout(60):
                await process.wait()
