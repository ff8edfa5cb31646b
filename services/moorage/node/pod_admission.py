"""Admits pods: performs the calls that admission asks for over the plugins' sockets, and writes the checkpoint before it answers.

Admissions run side by side, so that a slow plugin delays its own pods only. One that was refused while another one changed what
is free is tried again at once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import structlog

from moorage.bus.failpoints import reached
from moorage.qos import admission
from moorage.qos.admission import Admitted, Call, Calls, Failed, PluginInfo, PodRecord, Result
from moorage.qos.builtin import BUILT_IN
from moorage.qos.messages import ContainerSpec, ContainerType, PodSpec, Refusal, ResourceAllocation, ZoneMiss
from moorage.qos.node_policy import NodePolicy
from moorage.qos.topology_hints import Distances

from .containers import COPY, Adjustment, ContainerIndex, ContainerRecord, is_asked
from .core.checkpoint import encode_copy
from .core.properties import container_annotations, environment, oci_properties
from .cri_proxy import Refused
from .metrics import Metrics
from .plugin_endpoint import PluginFailed
from .plugin_registry import PluginRegistry
from .pod_objects import KnownPod
from .pod_source import PodSource

log = structlog.get_logger("node")

#: Seconds that a pod's manifest is waited for.
WAIT_FOR_SPEC = 2.0
#: How often an admission is tried that was refused while another one changed what is free.
_TRIES = 3
_MAX_OUTCOMES = 1000
#: So many pods that only plugins know are looked after at a time.
_MAX_UNRECORDED = 1000


class Outcome(NamedTuple):
    """A pod as `moorage node why` shows it."""

    pod: str
    uid: str
    refusals: tuple[Refusal, ...]
    warnings: tuple[str, ...] = ()

    @property
    def code(self) -> str:
        return self.refusals[0].code if self.refusals else ""


class PodAdmission:
    """The gate through which all pods pass. `write` writes the checkpoint, `settle` makes room before a pod starts, `blocked`
    tells who is still on CPUs that a pod has for itself."""

    def __init__(
        self,
        node: str,
        policy: Callable[[], NodePolicy],
        zones: int,
        distances: Distances | None,
        registry: PluginRegistry,
        source: PodSource,
        index: ContainerIndex,
        metrics: Metrics,
        write: Callable[[], None],
        settle: Callable[[], Awaitable[None]],
        blocked: Callable[[str], str],
    ) -> None:
        self._node, self._policy, self._zones, self._distances = node, policy, zones, distances
        self._registry, self._source, self._index, self._metrics = registry, source, index, metrics
        self._write, self._settle, self._blocked = write, settle, blocked
        self.enabled = True
        self.recovered = asyncio.Event()
        self.records: dict[str, PodRecord] = {}
        #: Pods that some plugins have not been told to forget yet: uid → those plugins.
        self.removing: dict[str, set[str]] = {}
        #: Pods that plugins know and the agent does not, since a crash between the two: uid → those plugins.
        self._unrecorded: dict[str, set[str]] = {}
        self.outcomes: OrderedDict[str, Outcome] = OrderedDict()
        self.on_outcome: Callable[[Outcome], None] = lambda outcome: None
        #: What is free by zone of a resource that strangers give out.
        self.free_by_zone: Callable[[str], Mapping[int, float]] = lambda resource: {}
        #: Notified when something was given back.
        self.room = asyncio.Condition()
        self._changes = 0
        #: Pods of one claim, and calls of one pod, one after the other; and how many there are.
        self._locks: dict[str, asyncio.Lock] = {}
        self._waiting: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()

    # --- the gate

    async def admit(self, told: PodSpec, container: str = "") -> None:
        if self.enabled:
            await self.recovered.wait()
            await self.admit_running(told, container)

    async def admit_running(self, told: PodSpec, container: str = "") -> None:
        """Admits a pod that runs already, or is about to."""
        key = told.claim or told.uid
        self._waiting[key] += 1
        try:
            async with self._locks.setdefault(key, asyncio.Lock()):
                await self._admit(told, container)
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key], self._locks[key]

    async def _admit(self, told: PodSpec, container: str) -> None:
        self._source.name_static(told)
        known = self._source.get(told.uid)
        if self._stands(told, known, container):
            await self._settle()
            if blocked := self._blocked(told.uid):
                raise Refused(f"UnexpectedAdmissionError: {blocked}")
            return
        started = time.monotonic()
        if known is None:
            known = await self._source.wait(told.uid, WAIT_FOR_SPEC)
        pod = known.spec if known is not None else told
        before = self.records.get(pod.uid)
        if container and all(c.name != container for c in pod.containers):
            kind = ContainerType.EPHEMERAL if pod.requests_known else ContainerType.MAIN
            others = before.pod.containers if before is not None and not pod.requests_known else pod.containers
            extra = ContainerSpec(name=container, type=kind, index=len(others))
            pod = msgspec.structs.replace(pod, containers=(*others, extra))
        found = await self._decide(pod)
        if isinstance(found, Admitted):
            found = self._keep(found)
        if isinstance(found, Admitted):
            await self._settle()
            if blocked := self._blocked(pod.uid):
                found = admission.Refused((Refusal(code="UnexpectedAdmissionError", message=blocked),))
                if before is None:
                    self.release(pod.uid)
        outcome = self._note(pod, found)
        self._metrics.observe_admission(
            "refused" if outcome.refusals else "admitted", outcome.code, time.monotonic() - started
        )
        if outcome.refusals:
            raise Refused(outcome.refusals[0].with_zones())

    def _stands(self, told: PodSpec, known: KnownPod | None, container: str) -> bool:
        """Returns whether the pod is admitted already, with all that it asks for now."""
        record = self.records.get(told.uid)
        if record is None:
            return False
        if container and container not in record.containers:
            return False
        if known is None:
            return True
        asked = {c.name: c.requests for c in record.pod.containers}
        return all(asked.get(c.name) == c.requests for c in known.spec.containers)

    async def _decide(self, pod: PodSpec) -> Admitted | admission.Refused:
        for attempt in range(_TRIES):
            changes = self._changes
            found = await self._perform(admission.admit(pod, self.node(), self.records))
            if isinstance(found, Admitted) or changes == self._changes or attempt == _TRIES - 1:
                break
        if isinstance(found, Admitted):
            return found
        return admission.Refused(tuple(map(self._with_free, found.refusals)))

    def _with_free(self, refusal: Refusal) -> Refusal:
        """Adds what is free to a refusal by a plugin that can only say no."""
        if refusal.free is not None or not refusal.needed:
            return refusal
        free = sorted(self.free_by_zone(refusal.resource).items(), key=lambda item: (-item[1], item[0]))
        if not free:
            return refusal
        misses = (ZoneMiss(zone=z, free=n, message=f"{n:g} of {refusal.needed:g} are free") for z, n in free)
        return msgspec.structs.replace(refusal, free=free[0][1], nearest=tuple(misses))

    def node(self) -> admission.Node:
        plugins = {}
        for name in self._registry.names():
            endpoint = self._registry.get(name)
            plugins[name] = PluginInfo(
                resource=name,
                running=endpoint is not None,
                with_topology_alignment=endpoint is None or endpoint.options.with_topology_alignment,
                built_in=name in BUILT_IN,
                everyone=name == "cpu",
            )
        return admission.Node(self._node, self._policy(), plugins, self._zones, self._distances)

    async def _perform(self, calls: Calls) -> Admitted | admission.Refused:
        results: Sequence[Result] | None = None
        while True:
            try:
                batch = next(calls) if results is None else calls.send(results)
            except StopIteration as done:
                outcome: Admitted | admission.Refused = done.value
                return outcome
            results = await asyncio.gather(*map(self._call, batch))

    async def _call(self, call: Call) -> Result:
        endpoint = self._registry.get(call.plugin)
        if endpoint is None:
            return Failed(f"the plugin {call.plugin} is not running")
        try:
            if call.method in ("hints", "pod_hints"):
                return await endpoint.hints(call.request)
            if call.method == "remove":
                await endpoint.remove_pod(call.request.pod_uid)
                return None
            return await endpoint.allocate(call.request)
        except PluginFailed as failed:
            if call.method == "remove":
                self.removing.setdefault(call.request.pod_uid, set()).add(call.plugin)
            return Failed(str(failed), failed.refusal, failed.unimplemented)

    def _keep(self, found: Admitted) -> Admitted | admission.Refused:
        """Writes the checkpoint with the pod. If that fails, the pod is refused and has nothing."""
        uid = found.record.pod.uid
        before = self.records.get(uid)
        reached("node.allocated")
        self.records[uid] = found.record
        self._changes += 1
        try:
            self._write()
        except OSError as error:
            if before is None:
                del self.records[uid]
                self._forget(uid)
            else:
                self.records[uid] = before
            message = f"the checkpoint cannot be written: {error.strerror or error}"
            return admission.Refused((Refusal(code="UnexpectedAdmissionError", message=message),))
        reached("node.admitted")
        return found

    def _note(self, pod: PodSpec, found: Admitted | admission.Refused) -> Outcome:
        refusals = () if isinstance(found, Admitted) else found.refusals
        warnings = found.warnings if isinstance(found, Admitted) else ()
        outcome = Outcome(f"{pod.namespace}/{pod.name}", pod.uid, refusals, warnings)
        before = self.outcomes.pop(pod.uid, None)
        self.outcomes[pod.uid] = outcome
        while len(self.outcomes) > _MAX_OUTCOMES:
            self.outcomes.popitem(last=False)
        if outcome != before:
            for warning in warnings:
                log.warning("a pod is admitted with less", pod=outcome.pod, warning=warning)
            if refusals:
                log.warning("a pod is refused", pod=outcome.pod, reason=str(refusals[0]))
            self.on_outcome(outcome)
        return outcome

    def adjustment(self, uid: str, container: str) -> Adjustment:
        given = self._given(uid, container)
        if not self.enabled or given is None:
            return Adjustment()
        annotations = {COPY: encode_copy(given), **container_annotations(given)}
        return Adjustment(oci_properties(given), environment(given), annotations)

    def _given(self, uid: str, container: str) -> ResourceAllocation | None:
        record = self.records.get(uid)
        return record.containers.get(container) if record is not None else None

    def owned(self, uid: str, container: str) -> frozenset[str]:
        given = self._given(uid, container) if self.enabled else None
        return frozenset(oci_properties(given)) if given is not None else frozenset()

    def keep_asked(self, record: ContainerRecord, asked: Mapping[str, str]) -> None:
        now = {**record.asked, **{name: value for name, value in asked.items() if is_asked(value)}}
        if now != record.asked:
            record.asked = now
            self._try_write()

    async def pre_start(self, uid: str, container: str) -> None:
        record = self.records.get(uid)
        if not self.enabled or record is None:
            return
        wanted = [
            endpoint
            for name in record.containers.get(container, {})
            if (endpoint := self._registry.get(name)) is not None and endpoint.options.pre_start_required
        ]
        pod = record.pod
        try:
            await asyncio.gather(*(e.pre_start(uid, pod.namespace, pod.name, container) for e in wanted))
        except PluginFailed as failed:
            raise Refused(f"UnexpectedAdmissionError: {failed}") from failed

    def sandbox_stopped(self, uid: str) -> None:
        known = self._source.get(uid)
        if self._source.is_gone(uid) or (known is not None and (known.ended or known.deleting)):
            self.release(uid)

    def sandbox_removed(self, uid: str) -> None:
        known = self._source.get(uid)
        if known is None or known.ended or known.deleting:
            self.release(uid)

    # --- taking back

    def pod_changed(self, uid: str) -> None:
        """Hears that a manifest is new, changed or gone."""
        if uid not in self.records:
            return
        known = self._source.get(uid)
        if known is not None and known.ended:
            self._index.end(uid)
            self.release(uid)
        elif self._source.is_gone(uid) and not self._index.is_live(uid):
            self.release(uid)
        elif known is not None and not known.deleting and not self._stands(known.spec, known, ""):
            self._spawn(self._resize(known.spec))

    async def _resize(self, pod: PodSpec) -> None:
        """Allocates anew for a pod that asks for more or less. Refused, it keeps what it has."""
        try:
            await self.admit(pod)
        except Refused as refused:
            log.warning("a running pod cannot be resized", pod=f"{pod.namespace}/{pod.name}", reason=str(refused))

    def release(self, uid: str) -> None:
        """Takes back what a pod has, in the checkpoint at once, and from all plugins until each has agreed."""
        if self.records.pop(uid, None) is None:
            return
        self._changes += 1
        self._try_write()
        self._forget(uid)

    def _try_write(self) -> None:
        try:
            self._write()
        except OSError as error:
            log.error("the checkpoint cannot be written", error=str(error))

    def _forget(self, uid: str) -> None:
        self.removing[uid] = set(self._registry.names())
        self._spawn(self._forget_now(uid))

    async def _forget_now(self, uid: str) -> None:
        await self.remove_pending([uid])
        await self._settle()
        async with self.room:
            self.room.notify_all()

    async def remove_pending(self, uids: Sequence[str] | None = None) -> None:
        """Tells plugins to forget pods that are gone; those that fail are told again later."""
        for uid in list(self.removing) if uids is None else uids:
            if uid in self.records:  # it came back meanwhile
                self.removing.pop(uid, None)
                continue
            for name in list(self.removing.get(uid, ())):
                endpoint = self._registry.get(name)
                if endpoint is None:
                    if not self._registry.is_known(name):
                        self.removing[uid].discard(name)
                    continue
                try:
                    await endpoint.remove_pod(uid)
                except PluginFailed as failed:
                    log.warning("a plugin does not forget a pod", plugin=name, error=str(failed))
                    continue
                self.removing.get(uid, set()).discard(name)
            if not self.removing.get(uid):
                self.removing.pop(uid, None)

    def collect(self) -> None:
        """Releases pods that are certainly gone: after all manifests are known, and never before."""
        for uid in list(self.records):
            known = self._source.get(uid)
            if (known is not None and known.ended) or (self._source.is_gone(uid) and not self._index.is_live(uid)):
                self.release(uid)
        for uid in [uid for uid in self._unrecorded if uid in self.records]:
            del self._unrecorded[uid]
        for uid in [uid for uid in self._unrecorded if self._source.is_gone(uid) and not self._index.is_live(uid)]:
            self.removing.setdefault(uid, set()).update(self._unrecorded.pop(uid))
            self._spawn(self._forget_now(uid))

    def note_unrecorded(self, plugin: str, known: Collection[str]) -> None:
        """Hears which pods a plugin knows. One that it knows alone is being admitted, or was before a crash: once it is gone, the
        plugin is told to forget it."""
        room = max(0, _MAX_UNRECORDED - len(self._unrecorded))
        for uid in islice((uid for uid in known if uid not in self.records), room):
            self._unrecorded.setdefault(uid, set()).add(plugin)

    def forget(self, uids: Iterable[str]) -> None:
        """Forgets the records of pods, before they are made again."""
        for uid in list(uids):
            del self.records[uid]

    def take_over(self, records: Mapping[str, PodRecord]) -> None:
        """Replaces what pods have by what their plugins say now."""
        self.records.update(records)
        self._changes += 1

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def idle(self) -> None:
        """Waits until nothing is being taken back."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
