"""Agents of clusters that are registered with a kubeconfig: each runs here, beside the mesh, for as long as the cluster is
registered. Who would rather have it run in the cluster joins it instead."""

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
from .processes import with_parent

log = structlog.get_logger("agents")
KEYS = "cluster-providers.*.clusters.*"
#: Seconds until an agent that ended is started again: doubled each time, up to the second.
_FIRST, _LAST = 1.0, 60.0
#: How long an agent has to end.
_PATIENCE = 3.0


class _Cluster(msgspec.Struct):
    kubeconfig: str = ""


_cluster = msgspec.json.Decoder(_Cluster).decode


class RegisteredAgents:
    def __init__(self, state: StateDirectory) -> None:
        self._state = state
        self._wanted: dict[str, str] = {}  # cluster → kubeconfig
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._turn = asyncio.Event()
        self._running: set[str] = set()

    def figures(self) -> Iterable[MetricValue]:
        """What is counted when somebody collects it."""
        counts = {"running": len(self._running), "stopped": len(self._wanted) - len(self._running)}
        yield MetricValue(
            "moorage_local_agents", "Agents of clusters that are registered with a kubeconfig", counts, "state"
        )

    def saw(self, key: str, value: bytes | None, _revision: int) -> None:
        _, provider, _, name = path_of(key)
        cluster, text = f"{provider}/{name}", _cluster(value).kubeconfig if value is not None else ""
        if self._wanted.get(cluster, "") == text:
            return
        if text:
            self._wanted[cluster] = text
        else:
            del self._wanted[cluster]
        task = self._tasks.get(cluster)
        self._tasks[cluster] = asyncio.create_task(self._follow(cluster, text, task))

    async def _follow(self, cluster: str, text: str, before: asyncio.Task[None] | None) -> None:
        """One agent at a time, with what its cluster is registered with now."""
        if before is not None:
            before.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await before
        if text:
            await self._run(cluster, self._file(cluster, text))
        else:
            self._file(cluster, "").unlink(missing_ok=True)
            with contextlib.suppress(Failure):  # its user was never made, or went with the broker
                await asyncio.to_thread(ask, self._state, "revoke", cluster)
            log.info("an agent ended for good", cluster=cluster)

    def _file(self, cluster: str, text: str) -> Path:
        place = self._state.root / "kubeconfigs"
        place.mkdir(exist_ok=True, mode=0o700)
        path = place / f"{'.'.join(token(part) for part in cluster.split('/'))}.yaml"
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
        # What the mesh was told about others must not lead the agent elsewhere.
        others = ("MOORAGE_NATS_URL", "MOORAGE_CLUSTER", "MOORAGE_METRICS")
        environment = {k: v for k, v in os.environ.items() if k not in others}
        delay = _FIRST
        while True:
            with (self._state.logs / f"agent-{kubeconfig.stem}.log").open("ab") as out:
                process = await asyncio.create_subprocess_exec(
                    *command, stdout=out, stderr=out, env=environment, preexec_fn=with_parent
                )
            log.info("an agent runs", cluster=cluster, pid=process.pid)
            self._running.add(cluster)
            began = asyncio.get_running_loop().time()
            try:
                status = await process.wait()
            except asyncio.CancelledError:
                await _end(process)
                raise
            finally:
                self._running.discard(cluster)
            delay = _FIRST if asyncio.get_running_loop().time() - began > _LAST else min(2 * delay, _LAST)
            log.warning("an agent ended; it starts again", cluster=cluster, status=status, seconds=delay)
            await asyncio.sleep(delay)

    async def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
        try:
            async with asyncio.timeout(_PATIENCE):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def main(settings: Settings, state: StateDirectory) -> None:
    bus = await Bus.connect(settings, worker="admin")
    registered = RegisteredAgents(state)
    try:
        await bus.bucket(stores.RESOURCES).mirror(registered.saw, KEYS)
        bus.vitals.show(registered.figures)
        bus.set_health(dict)
        await bus.closed.wait()
    finally:
        await registered.stop()
        await bus.close()
