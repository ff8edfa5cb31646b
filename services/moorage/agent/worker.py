"""The agent as a process: elects, and while it is the one that acts, follows its cluster, reports and applies. Everything it
does in a term is one group of tasks; the first that fails ends the term. Cut off from the mesh it goes on keeping what it
applied, and gives way to one that is not."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any

import structlog

from moorage.bus import Bus, Settings, new_id, subjects
from moorage.kube import Api, ApiDiscovery, ApiError, LeaderElector, Reflector, Term, Unreachable, connect
from moorage.model.names import cluster_tokens
from moorage.telemetry import ACTIVE, MetricValue

from .app_records import AppRecords
from .context import ClusterContext
from .core import kube_types
from .core.cluster_state import ClusterState
from .desired_state import DesiredStateClient
from .fenced_configmap import StaleTerm
from .object_watches import ObjectWatches
from .reporting import TOO_OLD, Reporting

log = structlog.get_logger("agent")

NAMESPACE = "moorage-system"
LEASE = "moorage-agent"
SESSION = "moorage.dev/session"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"


async def main(
    settings: Settings,
    *,
    cluster: str,
    kubeconfig: str | Path | None = None,
    context: str | None = None,
    labels: Mapping[str, str] | None = None,
    namespace: str = NAMESPACE,
) -> None:
    """Until cancelled, or until the mesh cannot be reached any more."""
    api = await connect(kubeconfig, context)
    try:
        bus = await Bus.connect(settings, worker=f"agent.{cluster_tokens(cluster)}")
        try:
            agent = Agent(api, bus, cluster, dict(labels or {}), namespace)
            bus.vitals.add_values(agent.figures)
            await _act(agent)
        finally:
            await bus.close()
    finally:
        await api.close()


async def _act(agent: Agent) -> None:
    agent.bus.set_waiting_for("the API server")
    await _namespace(agent.api, agent.namespace)
    agent.bus.set_health(agent.health)
    identity = f"{socket.gethostname()}-{os.getpid()}-{new_id()}"
    elector = LeaderElector(agent.api, agent.namespace, LEASE, identity, lambda: agent.bus.nc.is_connected)
    acting = asyncio.ensure_future(elector.run(agent.act))
    closed = asyncio.ensure_future(agent.bus.closed.wait())
    try:
        await asyncio.wait({acting, closed}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (acting, closed):
            task.cancel()
        outcome = (await asyncio.gather(acting, closed, return_exceptions=True))[0]
    if isinstance(outcome, Exception):
        raise outcome


async def _namespace(api: Api, name: str) -> None:
    """Where the lease and the records are. Joining makes it; on a laptop we do, if we may."""
    while True:
        try:
            if await api.get(f"/api/v1/namespaces/{name}") is None:
                body = b'{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"%b"}}' % name.encode()
                await api.call("POST", "/api/v1/namespaces", body=body)
            return
        except ApiError as error:
            if error.code in (403, 409):
                return  # without the right to look, the lease will tell
            log.warning("the API server refuses", error=error.message)
        except Unreachable as error:
            log.warning("the API server cannot be reached", error=str(error))
        await asyncio.sleep(2)


class Agent:
    def __init__(self, api: Api, bus: Bus, cluster: str, labels: dict[str, str], namespace: str) -> None:
        self.api, self.bus, self.cluster, self.labels, self.namespace = api, bus, cluster, labels, namespace
        self._deciding: DesiredStateClient | None = None
        self._acting: tuple[Callable[[], float | None], Reporting, ClusterContext] | None = None

    async def act(self, term: Term) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._begin(term, tasks)
        except* StaleTerm as lost:
            log.warning("another agent acts", reason=str(lost.exceptions[0]))
        finally:
            self._acting = None

    def health(self) -> dict[str, Any]:
        if self._acting is None:
            return {"ok": True, "missing": [], "role": "standby"}
        age, reporting, _ = self._acting
        seen = age()
        missing = [] if seen is not None and seen < TOO_OLD else ["the API server"]
        missing += [] if reporting.accepted.is_set() else ["the inventory, which takes no reports of this cluster"]
        return {"ok": not missing, "missing": missing, "role": "active"}

    def figures(self) -> Iterable[MetricValue]:
        """What is counted when somebody collects it."""
        yield MetricValue(*ACTIVE, float(self._acting is not None))
        if self._acting is None:
            return
        age, reporting, site = self._acting
        if (seen := age()) is not None:
            yield MetricValue("moorage_agent_view_age_seconds", "Age of what it knows of the cluster", seen)
        yield MetricValue("moorage_agent_reports_total", "Reports that were sent in this term", reporting.sent)
        yield MetricValue("moorage_agent_apps", "Apps that it keeps in the cluster", len(site.apps))

    async def _begin(self, term: Term, tasks: asyncio.TaskGroup) -> None:
        def spawn(coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
            return tasks.create_task(coro)

        view = ClusterState()
        reflectors = self._reflectors(view)
        nodes, pods = reflectors[0], reflectors[1]
        for reflector in reflectors:
            spawn(reflector.run())
        loop = asyncio.get_running_loop()

        def age() -> float | None:
            if not all(r.synced.is_set() for r in reflectors) or not (nodes.listed and pods.listed):
                return None
            return loop.time() - min(nodes.current(), pods.current())

        reporting = Reporting(self.bus, self.cluster, view, age, self.labels, term.before.get(SESSION, ""))
        term.notes[SESSION] = reporting.session
        view.stirred = reporting.changed.set
        records = AppRecords(self.api, self.namespace, term)
        following = ObjectWatches(
            self.api, spawn, lambda label: deciding.woken(label), lambda kind, live: site.seen(kind, live)
        )
        site = ClusterContext(self.api, term, records, ApiDiscovery(self.api), following, view)
        deciding = DesiredStateClient(self.bus, self.cluster, site, spawn, lambda: reporting.period)
        self._acting = age, reporting, site
        spawn(reporting.run())
        await self._take_over(records, deciding)
        await site.search(spawn)
        await self._listen(deciding)
        spawn(deciding.ask())
        spawn(deciding.tell())

    def _reflectors(self, view: ClusterState) -> list[Reflector[Any]]:
        api = self.api
        return [
            Reflector(api, "/api/v1/nodes", kube_types.node, view.put_node, view.drop_node),
            Reflector(api, "/api/v1/pods", kube_types.pod, view.put_pod, view.drop_pod),
            Reflector(api, SLICES, kube_types.slice_, view.put_slice, view.drop_slice),
            Reflector(api, TOPOLOGIES, kube_types.topology, view.put_topology, view.drop_topology),
        ]

    async def _take_over(self, records: AppRecords, deciding: DesiredStateClient) -> None:
        """What predecessors made. From here on they can write nothing any more."""
        while True:
            try:
                for record in await records.load():
                    deciding.adopt(record)
                return
            except (ApiError, Unreachable) as error:
                log.warning("the records cannot be read yet", error=str(error))
                await asyncio.sleep(1)

    async def _listen(self, deciding: DesiredStateClient) -> None:
        """One subscription for all terms of this process."""
        first = self._deciding is None
        self._deciding = deciding
        if first:
            await self.bus.subscribe(subjects.desired("changed", self.cluster), self._hinted)
            self.bus.on_reconnect(self._reconnected)

    def _hinted(self, _subject: str = "", _data: bytes = b"") -> None:
        if self._deciding is not None:
            self._deciding.asking.set()

    async def _reconnected(self) -> None:
        self._hinted()
