"""Runs the agents of clusters that are registered with a kubeconfig, one process each, for as long as the cluster is
registered. `moorage cluster join` is the alternative: it runs the agent in the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec
import structlog

from moorage.bus import Bus, Settings
from moorage.mesh import stores
from moorage.model.names import token
from moorage.model.v2_resources import path_of
from moorage.telemetry import MetricValue

from ..exit_codes import Failure
from ..state_dir import StateDirectory, write_private
from .agent_users import ask
from .processes import die_with_parent

log = structlog.get_logger("agents")
KEYS = "cluster-providers.*.clusters.*"
#: Restart back-off of an agent in seconds: doubled each time, up to the second value.
_FIRST_DELAY, _LAST_DELAY = 1.0, 60.0
#: Seconds until an agent that was asked to end is killed.
_GRACE = 3.0


class _Cluster(msgspec.Struct):
    kubeconfig: str = ""


_cluster = msgspec.json.Decoder(_Cluster).decode


class RegisteredAgents:
    def __init__(self, state: StateDirectory) -> None:
        self._state = state
        self._kubeconfigs: dict[str, str] = {}  # by cluster
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._running: set[str] = set()

    def metrics(self) -> Iterable[MetricValue]:
        """Yields the metrics at collection time."""
        counts = {"running": len(self._running), "stopped": len(self._kubeconfigs) - len(self._running)}
        yield MetricValue(
            "moorage_local_agents", "Agents of clusters that are registered with a kubeconfig", counts, "state"
        )

    def on_cluster(self, key: str, value: bytes | None, _revision: int) -> None:
        """Starts, restarts or ends a cluster's agent after a change of its registration."""
        _, provider, _, name = path_of(key)
        cluster, text = f"{provider}/{name}", _cluster(value).kubeconfig if value is not None else ""
        if self._kubeconfigs.get(cluster, "") == text:
            return
        if text:
            self._kubeconfigs[cluster] = text
        else:
            del self._kubeconfigs[cluster]
        task = self._tasks.get(cluster)
        self._tasks[cluster] = asyncio.create_task(self._replace(cluster, text, task))

    async def _replace(self, cluster: str, text: str, previous: asyncio.Task[None] | None) -> None:
        """Ends the previous agent before it starts one with the new kubeconfig, so that only one runs at a time."""
        if previous is not None:
            previous.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await previous
        if text:
            await self._run(cluster, self._kubeconfig_file(cluster, text))
        else:
            self._kubeconfig_file(cluster, "").unlink(missing_ok=True)
            with contextlib.suppress(Failure):  # the user may not exist, or the broker may be gone
                await asyncio.to_thread(ask, self._state, "revoke", cluster)
            log.info("agent removed", cluster=cluster)

    def _kubeconfig_file(self, cluster: str, text: str) -> Path:
        directory = self._state.root / "kubeconfigs"
        directory.mkdir(exist_ok=True, mode=0o700)
        path = directory / f"{'.'.join(token(part) for part in cluster.split('/'))}.yaml"
        if text:
            write_private(path, text)
        return path

    async def _run(self, cluster: str, kubeconfig: Path) -> None:
        provider, name = cluster.split("/")
        command = [
            sys.executable,
            "-m",
            "moorage.cli",
            "agent",
            "--kubeconfig",
            str(kubeconfig),
            "--provider",
            provider,
        ]
        command += ["--name", name, "--state", str(self._state.root)]
        # Settings of the mesh itself must not redirect the agent.
        excluded = ("MOORAGE_NATS_URL", "MOORAGE_CLUSTER", "MOORAGE_METRICS")
        environment = {k: v for k, v in os.environ.items() if k not in excluded}
        delay = _FIRST_DELAY
        while True:
            with (self._state.logs / f"agent-{kubeconfig.stem}.log").open("ab") as out:
                process = await asyncio.create_subprocess_exec(
                    *command, stdout=out, stderr=out, env=environment, preexec_fn=die_with_parent
                )
            log.info("agent started", cluster=cluster, pid=process.pid)
            self._running.add(cluster)
            started = asyncio.get_running_loop().time()
            try:
                status = await process.wait()
            except asyncio.CancelledError:
                await _end(process)
                raise
            finally:
                self._running.discard(cluster)
            run_seconds = asyncio.get_running_loop().time() - started
            delay = _FIRST_DELAY if run_seconds > _LAST_DELAY else min(2 * delay, _LAST_DELAY)
            log.warning("agent exited, restarting", cluster=cluster, status=status, seconds=delay)
            await asyncio.sleep(delay)

    async def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
        try:
            async with asyncio.timeout(_GRACE):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def main(settings: Settings, state: StateDirectory) -> None:
    bus = await Bus.connect(settings, worker="admin")
    registered = RegisteredAgents(state)
    try:
        await bus.bucket(stores.RESOURCES).mirror(registered.on_cluster, KEYS)
        bus.process_health.add_values(registered.metrics)
        bus.set_health(dict)
        await bus.closed.wait()
    finally:
        await registered.stop()
        await bus.close()
