"""The agent of one node: puts plugins, admission, adjustment and the way of attachment together, and keeps them going."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
import structlog

from moorage.qos.admission import PodRecord
from moorage.qos.builtin import BUILT_IN, BuiltInPlugin, builtin_plugin
from moorage.qos.cpu_plugin import CpuPlugin
from moorage.qos.cpusets import format_cpuset, parse_cpuset
from moorage.qos.messages import AllocationRefused, Refusal
from moorage.qos.node_policy import NicSpec
from moorage.qos.state_file import BadState

from . import grpc_unix
from .adjuster import Adjuster, Updater
from .alone import PodRunner
from .cgroups import has_version_2
from .containers import ContainerIndex, ContainerRecord, is_asked
from .core import checkpoint
from .core.adjustment import Wanted
from .core.checkpoint import Checkpoint
from .core.properties import CPUSET_CPUS, is_exclusive, oci_properties, take_over
from .cri_interceptors import CriInterceptors
from .cri_proxy import CriProxy
from .http_api import HttpApi
from .kubelet_managers import active_manager
from .mesh_link import MeshLink
from .metrics import Metrics
from .nri_plugin import NriPlugin
from .operations import AgentOperations
from .plugin_devices import PluginDevices
from .plugin_endpoint import PluginFailed
from .plugin_mirrors import PluginMirrors
from .plugin_registry import PluginRegistry
from .plugin_server import PluginServer
from .pod_admission import PodAdmission
from .pod_resources import PodResources
from .pod_source import ManifestDirectory, PodSource
from .policy_file import PolicyFile
from .pool_control import PoolControl
from .recovery import Recovery
from .runtime import FIELDS, RUNNING, Runtime
from .settings import Settings
from .state_file import StateFile
from .sysfs import read_machine, read_network_cards
from .updaters import CgroupReader, CriUpdater, NriUpdater

if TYPE_CHECKING:
    from .node_objects import NodeObjects

log = structlog.get_logger("node")

STATE = "qos_resource_manager_state"
#: Seconds after which the state files of built-in plugins follow the checkpoint.
_STATE_DELAY = 0.1
#: The directory that is taken by one agent at a time.
_LOCK = "lock"


class RootTaken(Exception):
    """Another agent uses the directory."""


class NodeAgent:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.started = time.time()
        self.metrics = Metrics()
        self.machine = read_machine(settings.sysfs)
        self.policy = PolicyFile(settings.config, self.machine)
        self.policy.load()
        self.index = ContainerIndex()
        directory = settings.pods if settings.pods != "api" else ""
        static_on = settings.node if directory and settings.attach != "alone" else ""
        self.source = PodSource(self._pod_changed, static=bool(static_on))
        self.manifests = ManifestDirectory(Path(directory), self.source, static_on) if directory else None
        self.registry = PluginRegistry(
            settings.registry,
            self.metrics.count_call,
            lambda name: active_manager(settings.kubelet, name),
            self._plugin_changed,
        )
        self.servers: dict[str, PluginServer] = {}
        self.mirrors = PluginMirrors(self.registry, self.make_plugin)
        self.problems: list[str] = []
        self.state = StateFile(settings.root / STATE)
        self._written = b""
        self._resources: set[str] = set()
        self.channel = grpc_unix.channel(settings.runtime)
        self.runtime = Runtime(self.channel)
        self.reader = CgroupReader(self.runtime)
        self.admission = PodAdmission(
            settings.node,
            lambda: self.policy.policy,
            self.machine.zones,
            self.machine.distances or None,
            self.registry,
            self.source,
            self.index,
            self.metrics,
            self.write_checkpoint,
            self.settle,
            self.blocked,
        )
        self.admission.enabled = settings.enabled
        self.recovery = Recovery(self)
        self.nri = NriPlugin(settings.nri, self.admission, self.index, self.recovery.add, self.recovery.synchronized)
        updater: Updater = (
            NriUpdater(self.nri, self.reader) if settings.attach == "nri" else CriUpdater(self.runtime, self.reader)
        )
        self.adjuster = Adjuster(self.index, updater, self.wanted, self.metrics)
        self.proxy = CriProxy(self.channel)
        self.runner: PodRunner | None = None
        self.api: NodeObjects | None = None
        self.pod_resources = PodResources(
            self.live_records, self.registry, self.machine, lambda: self.policy.policy.reserved_cpus
        )
        self.devices = PluginDevices(self)
        self.admission.free_by_zone = self.devices.free_by_zone
        self.mesh = MeshLink(self)
        self.operations = AgentOperations(self)
        self.http = HttpApi(self.operations)
        self._lock_file = -1
        self._pools: object = None
        self._settling = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.failure: asyncio.Future[None] | None = None

    # --- starting and ending

    async def start(self) -> None:
        """Starts serving. When this returns, the kubelet may call."""
        self.failure = asyncio.get_running_loop().create_future()
        self._take_root()
        self._load_checkpoint()
        for name in self.settings.plugins:
            await self._start_plugin(name)
        self.registry.expect(self._resources)
        await self.registry.start(self.settings.legacy_socket)
        await self.pod_resources.start(self.settings.pod_resources_socket)
        await self.http.start(self.settings.http_socket)
        if self.settings.attach == "cri":
            write_files = None if has_version_2() else self.write_files
            interceptors = CriInterceptors(self.admission, self.index, write_files)
            self.proxy.interceptors = interceptors.all() if self.settings.enabled else {}
            await self.proxy.start(self.settings.cri_socket)
        await self._follow_pods()
        self.spawn(self.policy.follow(self._policy_changed))
        self.spawn(self.recovery.run())
        if self.settings.attach == "alone" and self.manifests is not None:
            self.runner = PodRunner(
                self.runtime,
                self.manifests,
                self.admission,
                self.index,
                self.admission.room,
                self.settings.cgroup_parent,
                None if has_version_2() else self.write_files,
            )
        if self.settings.enabled:
            self.spawn(self._reconcile())
            self.spawn(self.devices.run())
        self.spawn(PoolControl(self).run())
        self.mesh.start()

    async def run(self) -> None:
        """Runs until cancelled, or until a part fails for good."""
        assert self.failure is not None
        await self.failure

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.proxy.stop(0.5)
        await self.http.stop()
        await self.registry.stop()
        for server in self.servers.values():
            await server.stop()
        await self.pod_resources.stop()
        if self.api is not None:
            await self.api.close()
        await self.channel.close()
        if self._lock_file >= 0:
            os.close(self._lock_file)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Runs a part of the agent; if it fails, the agent ends, and its supervisor starts it again."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a part of the agent failed", exc_info=error)
            if self.failure is not None and not self.failure.done():
                self.failure.set_exception(error)

    def _take_root(self) -> None:
        grpc_unix.make_private(self.settings.root)
        self._lock_file = os.open(self.settings.root / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RootTaken(f"another agent uses {self.settings.root}; choose another --root or end it") from None

    async def _start_plugin(self, name: str) -> None:
        plugin = self.make_plugin(name)
        server = PluginServer(plugin, StateFile(self.settings.root / f"{name}_plugin_state"), _STATE_DELAY)
        if problem := server.load():
            self.add_problem(problem)
        pods = {uid: record.pod for uid, record in self.admission.records.items()}
        for problem in plugin.adopt(pods, checkpoint.by_plugins(self.admission.records)):
            self.add_problem(problem)
        server.save()
        self.servers[name] = server
        await server.start(self.settings.registry / f"{name}.sock")

    def make_plugin(self, name: str) -> BuiltInPlugin:
        """Returns a built-in plugin of this machine that has given nothing."""
        cards = [
            NicSpec(name=card.name, numa=max(card.numa, 0), mbps=card.mbps)
            for card in read_network_cards(self.settings.sysfs)
        ]
        return builtin_plugin(name, self.policy.policy, self.machine, cards)

    def plugin(self, name: str) -> BuiltInPlugin | None:
        """Returns a built-in plugin with what it has given: of this process, or a copy of one in a process of its own."""
        server = self.servers.get(name)
        return server.plugin if server is not None else self.mirrors.plugins.get(name)

    def add_problem(self, text: str) -> None:
        log.error("the state is incomplete", error=text)
        self.problems.append(text)

    async def _follow_pods(self) -> None:
        if self.manifests is not None:
            self.spawn(self.manifests.run())
        elif self.settings.attach != "alone":
            from .node_objects import NodeObjects, Unreachable

            try:
                self.api = await NodeObjects.connect(self.settings.kubeconfig, self.settings.node)
            except Unreachable as error:
                self.add_problem(f"pods are known by the runtime only: {error}")
                return
            self.spawn(self.api.watch_pods(self.source))

    # --- the checkpoint

    def _load_checkpoint(self) -> None:
        content = self.state.read()
        if content is None:
            return
        try:
            found = checkpoint.decode(content)
        except BadState as error:
            self.add_problem(self.state.set_aside(str(error)))
            return
        self._written = content
        self.admission.records.update(found.records)
        self.recovery.asked = found.asked
        self._resources = set(found.resources)

    def write_checkpoint(self) -> None:
        """Writes the checkpoint if it has changed. Raises OSError if it cannot."""
        asked: dict[str, checkpoint.Asked] = {}
        for record in self.index.live():
            if record.asked:
                asked.setdefault(record.uid, {})[record.id] = record.asked
        resources = sorted({*self._resources, *self.registry.names()})
        content = checkpoint.encode(Checkpoint(records=self.admission.records, asked=asked, resources=resources))
        if content != self._written:
            self.state.write(content)
            self._written = content

    def live_records(self) -> Mapping[str, PodRecord]:
        """Returns the records of pods that have not ended."""
        return {
            uid: record
            for uid, record in self.admission.records.items()
            if (known := self.source.get(uid)) is None or not known.ended
        }

    # --- adjustment

    def wanted(self, record: ContainerRecord) -> Wanted | None:
        found = self.admission.records.get(record.uid)
        given = found.containers.get(record.name) if found is not None else None
        if not given or not self.admission.enabled:
            return None
        decided = oci_properties(given)
        # Properties that no plugin decides any more, such as the quota of CPUs that are shared again, follow the kubelet.
        back = {name: value for name, value in record.asked.items() if name not in decided and is_asked(value)}
        return Wanted({**back, **decided}, is_exclusive(given))

    async def settle(self) -> None:
        """Moves containers whose pools have changed, because of an admission, a removal or a command."""
        async with self._settling:
            await self._copy_plugins()
            cpu = self.cpu
            state = self._pool_state(cpu)
            if cpu is not None and state == self._pools:
                return
            if cpu is None or self._pools is None or _has_pooled(cpu):
                await self.refresh(["cpu"])
            self._measure()
            found = await self.adjuster.adjust()
            self._pools = state if not found.failed else None

    async def write_files(self, record: ContainerRecord) -> None:
        """Writes the files of a container's cgroup that the runtime interface cannot say with cgroups of version 1."""
        want = self.wanted(record)
        files = {name: value for name, value in want.properties.items() if name not in FIELDS} if want else {}
        if not files:
            return
        try:
            await self.reader.cgroup(record)
            self.reader.write(record, files)
        except (OSError, grpc.aio.AioRpcError) as error:
            log.warning("a cgroup cannot be written", pod=record.pod, container=record.name, error=str(error))

    def blocked(self, uid: str) -> str:
        """Returns who is still on CPUs that containers of a pod have for themselves; "" if nobody is."""
        record = self.admission.records.get(uid)
        alone = 0
        for given in record.containers.values() if record is not None else ():
            if is_exclusive(given):
                alone |= parse_cpuset(given["cpu"].allocation_result)
        if not alone:
            return ""
        for other in self.index.live():
            if other.uid == uid or other.state != RUNNING or not other.applied.get(CPUSET_CPUS):
                continue
            if shared := parse_cpuset(other.applied[CPUSET_CPUS]) & alone:
                why = self.adjuster.failed.get((other.uid, other.name), "it was not moved yet")
                name = f"{other.namespace}/{other.pod}/{other.name}"
                return f"CPUs {format_cpuset(shared)} are still used by {name}: {why}"
        return ""

    @staticmethod
    def _pool_state(cpu: CpuPlugin | None) -> object:
        return cpu and (cpu.exclusive, {name: pool.cpus for name, pool in cpu.pools().items()})

    def pool_of(self, uid: str, container: str) -> str:
        """Returns the pool that a container runs in; "" if it has CPUs of its own or no record."""
        cpu = self.cpu
        entry = cpu.entries.get(uid, {}).get(container) if cpu is not None else None
        return entry.pool if entry is not None and not entry.own else ""

    def forget_written(self) -> None:
        self._written = b""

    @property
    def cpu(self) -> CpuPlugin | None:
        """The built-in CPU plugin, or a copy of it."""
        plugin = self.plugin("cpu")
        return plugin if isinstance(plugin, CpuPlugin) else None

    async def _copy_plugins(self) -> None:
        """Learns what built-in plugins in processes of their own have given."""
        apart = [name for name in BUILT_IN if name not in self.servers]
        await asyncio.gather(*map(self.mirrors.refresh, apart))

    def _measure(self) -> None:
        if (cpu := self.cpu) is None:
            return
        self.metrics.pools = {name: pool.cpus.bit_count() for name, pool in cpu.pools().items()}
        zones = self.machine.cpus.numas.items()
        self.metrics.exclusive = {zone: (cpu.exclusive & cpus).bit_count() for zone, cpus in zones}

    async def refresh(self, names: list[str]) -> None:
        """Asks plugins what containers should have now, and takes that over. One that fails keeps what it gave."""
        for name in names:
            endpoint = self.registry.get(name)
            if endpoint is None:
                continue
            try:
                answer = await endpoint.resources_allocation()
            except PluginFailed as failed:
                log.warning("a plugin does not say what it gave", plugin=name, error=str(failed))
                continue
            self.admission.note_unrecorded(name, answer)
            changed, problems = take_over(self.admission.records, name, answer)
            for problem in problems:
                log.warning("a plugin's answer is not used", error=problem)
            if changed:
                self.admission.take_over(changed)
                self.try_write()

    def try_write(self) -> None:
        try:
            self.write_checkpoint()
        except OSError as error:
            log.error("the checkpoint cannot be written", error=str(error))

    async def set_pools(self, wanted: Mapping[str, int]) -> None:
        """Gives pools other CPUs, and returns when every container was read back. Raises AllocationRefused, with all as it was."""
        if (cpu := self.cpu) is None:
            raise AllocationRefused(Refusal(code="PluginMissing", message="the built-in CPU plugin does not run"))
        before = {name: pool.cpus for name, pool in cpu.whole_pools().items() if name in wanted}
        await self._give_pools(wanted)
        found = await self.adjuster.adjust(all_or_nothing=True)
        if found.failed:
            await self._give_pools(before)
            await self.adjuster.adjust()
            why = "; ".join(f"{uid}/{name}: {words}" for (uid, name), words in found.failed.items())
            raise AllocationRefused(Refusal(code="UnexpectedAdmissionError", message=f"pools stay as they were: {why}"))
        if (server := self.servers.get("cpu")) is not None:
            server.save()
        self._pools = self._pool_state(self.cpu)
        self._measure()

    async def _give_pools(self, wanted: Mapping[str, int]) -> None:
        """Has the CPU plugin change its pools, and asks what containers should have then."""
        server, endpoint = self.servers.get("cpu"), self.registry.get("cpu")
        if server is not None and isinstance(server.plugin, CpuPlugin):
            server.plugin.set_pools(wanted)
        elif endpoint is None:
            raise AllocationRefused(Refusal(code="PluginMissing", message="the CPU plugin is away"))
        else:
            try:
                await endpoint.set_pools({name: format_cpuset(cpus) for name, cpus in wanted.items()})
            except PluginFailed as failed:
                refusal = failed.refusal or Refusal(code="UnexpectedAdmissionError", message=str(failed))
                raise AllocationRefused(refusal) from failed
            await self.mirrors.refresh("cpu")
        await self.refresh(["cpu"])

    async def _reconcile(self) -> None:
        """Each period asks plugins that cannot signal, reads everything back and puts it right."""
        await self.admission.recovered.wait()
        while True:
            await asyncio.sleep(self.settings.period)
            # Built-in plugins in this process change when they are told to; asking them would only cost.
            names = [
                e.resource
                for e in self.registry.endpoints()
                if e.options.need_reconcile and e.resource not in self.servers
            ]
            await self.refresh(names)
            await self._copy_plugins()
            await self.admission.remove_pending()
            if self.source.listed.is_set():
                self.admission.collect()
            await self.adjuster.put_right()
            await self.devices.refresh()
            await self._write_capacity()

    async def _write_capacity(self) -> None:
        found = self.devices.capacity()
        if self.api is not None and (found.allocatable or found.removed):
            await self.api.write_capacity(found)

    # --- events

    def _pod_changed(self, uid: str) -> None:
        if self.settings.enabled:
            self.admission.pod_changed(uid)
        if self.runner is not None:
            self.runner.changed(uid)

    def _plugin_changed(self, name: str) -> None:
        self._resources.add(name)
        self.devices.wake()
        if name not in self.servers:
            self.spawn(self.mirrors.refresh(name))

    def _policy_changed(self) -> None:
        self._pools = None
        for server in self.servers.values():
            server.plugin.set_policy(self.policy.policy)
            server.save()
        self.mirrors.set_policy(self.policy.policy)
        self.spawn(self.settle())


def _has_pooled(cpu: CpuPlugin) -> bool:
    """Returns whether a container runs in a pool. What others have is theirs alone, and changes with their own admission only."""
    return any(entry.pool and not entry.cpus for pod in cpu.entries.values() for entry in pod.values())
