"""Admits pods: asks plugins for hints, merges them, lets plugins allocate, and takes all of it back when one container is
refused. It is a coroutine of calls: who runs it performs them, over sockets or in its own process, and sends the results."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import cast

from .admission_calls import (
    Admitted,
    Call,
    Calls,
    Failed,
    Method,
    Node,
    PluginInfo,
    PodRecord,
    Refused,
    Result,
    call_plugin,
    run_in_process,
)
from .claimed_zones import BadClaim, slot_zones, zones_for
from .messages import (
    CODES,
    AllocationRefused,
    ContainerSpec,
    ContainerType,
    HintsAnswer,
    PodSpec,
    Refusal,
    ResourceAllocation,
    ResourceRequest,
    from_hint,
    to_hint,
)
from .node_policy import ALIASES, RoleSpec
from .pod_answers import (
    check_conflicts,
    disagreement,
    hints_text,
    in_order,
    is_shared,
    of_plugin,
    plugin_of,
    pod_total,
    problem_of,
    requests_of,
    zones_text,
)
from .topology_hints import Hint, Hints, merge, merge_numeric

__all__ = [
    "Admitted",
    "Call",
    "Calls",
    "Failed",
    "Method",
    "Node",
    "PluginInfo",
    "PodRecord",
    "Refused",
    "Result",
    "admit",
    "call_plugin",
    "check_conflicts",
    "in_order",
    "is_special",
    "pod_total",
    "run_in_process",
]


def admit(pod: PodSpec, node: Node, records: Mapping[str, PodRecord]) -> Calls:
    """Admits a pod. Yields batches of calls that may be made at once; returns the record to be written before the answer, or
    why the pod is refused; then no plugin has anything of it, unless it was admitted before."""
    refusal = _refused_at_once(pod, node)
    if refusal is not None:
        return Refused((refusal,))
    admission = _Admission(pod, node, records)
    if admission.zones_problem is not None:
        return Refused((admission.zones_problem,))
    try:
        record = yield from admission.run()
    except AllocationRefused as refused:
        if pod.uid not in records and admission.asked:
            yield [Call(name, "remove", ResourceRequest(pod.uid, name)) for name in sorted(admission.asked)]
        elif restored := admission.restoring():
            yield restored
        return Refused(tuple(admission.seen) or (refused.refusal,))
    return Admitted(record, tuple(admission.warnings), admission.reused)


def is_special(pod: PodSpec, node: Node) -> bool:
    """Returns whether the pod asks for something special, so that it must not start without it."""
    return bool(pod.role or pod.claim or pod.problem or _asks_strangers(pod, node))


def _asks_strangers(pod: PodSpec, node: Node) -> bool:
    """Returns whether the pod requests a resource of a plugin that is not built in."""
    return any(
        amount > 0 and name in node.plugins and not node.plugins[name].built_in
        for container in pod.containers
        for name, amount in container.requests.items()
    )


def _refused_at_once(pod: PodSpec, node: Node) -> Refusal | None:
    if pod.problem:
        return Refusal(code="RoleUnknown", message=pod.problem)
    if not pod.role:
        if pod.claim and not pod.requests_known:
            return Refusal(code="SpecMissing", message="the pod has a claim, and its manifest is not known yet")
        return None
    role = node.policy.role(pod.role)
    if role is None:
        known = ", ".join(sorted(node.policy.roles))
        return Refusal(code="RoleUnknown", message=f"the node has no role {pod.role!r}; it has {known}")
    if role.namespaces and pod.namespace not in role.namespaces:
        allowed = ", ".join(role.namespaces)
        return Refusal(code="RoleForbidden", message=f"role {pod.role} is for the namespaces {allowed} only")
    if not pod.requests_known:
        return Refusal(
            code="SpecMissing", message=f"the pod has the role {pod.role}, and its manifest is not known yet"
        )
    for name in _implicit(role):
        plugin = node.plugins.get(name)
        if plugin is None or not plugin.running:
            return Refusal(
                code="PluginMissing",
                message=f"role {pod.role} needs the plugin {name}, which is not registered",
                resource=name,
            )
    return None


def _implicit(role: RoleSpec | None) -> tuple[str, ...]:
    """Returns the resources that a role needs whether or not its pods request them."""
    if role is None:
        return ()
    return tuple(dict.fromkeys(("cpu", *(("memory",) if role.binds else ()), *role.implicit)))


class _Admission:
    def __init__(self, pod: PodSpec, node: Node, records: Mapping[str, PodRecord]) -> None:
        self.pod, self.node = pod, node
        self.before = records.get(pod.uid)
        self.role = node.policy.role(pod.role) if pod.role else None
        self.special = is_special(pod, node)
        self.asks_strangers = _asks_strangers(pod, node)
        self.asked: set[str] = set()
        self._changed: list[tuple[str, Sequence[PluginInfo]]] = []  # containers that were given something anew
        self.seen: list[Refusal] = []
        self.warnings: list[str] = []
        self.reused = False
        self.zones_problem: Refusal | None = None
        self.slot, self.zones = -1, 0
        if self.before is not None:
            self.slot, self.zones = self.before.slot, self.before.zones
        elif pod.claim or pod.annotations:
            self._take_slot(records)

    def _take_slot(self, records: Mapping[str, PodRecord]) -> None:
        try:
            found = slot_zones(self.pod, self.node.name)
        except BadClaim as error:
            self.zones_problem = Refusal(code="ClaimUnmet", message=str(error))
            return
        if found:
            taken = [r.slot for r in records.values() if r.slot >= 0 and r.pod.claim == self.pod.claim]
            self.slot, self.zones = zones_for(found, taken)
            if self.zones and not self.zones & ((1 << self.node.zones) - 1):
                message = f"the claim names zones {zones_text(self.zones)}, which this node does not have"
                self.zones_problem = Refusal(code="ClaimUnmet", message=message)

    def run(self) -> Generator[Sequence[Call], Sequence[Result], PodRecord]:
        record = PodRecord(pod=self.pod, slot=self.slot, zones=self.zones)
        if self.node.policy.spec.topology_scope == "pod":
            yield from self._admit_whole(record)
        else:
            for container in in_order(self.pod.containers):
                record.containers[container.name] = yield from self._admit_container(container)
        check_conflicts(record)
        return record

    # --- one container

    def _admit_container(
        self, container: ContainerSpec
    ) -> Generator[Sequence[Call], Sequence[Result], ResourceAllocation]:
        plugins = self._plugins_for(container)
        kept = self._kept(container, plugins)
        if kept is not None:
            self.reused = True
            return kept
        self._check_running(plugins, container.name)
        plugins = [plugin for plugin in plugins if plugin.running]
        aligned = [p for p in plugins if p.with_topology_alignment]
        calls = [Call(p.resource, "hints", self._request(p, container)) for p in aligned]
        results = (yield calls) if calls else []
        hints = self._merge(aligned, results, container.name)
        calls = [
            Call(p.resource, "allocate", self._request(p, container, hints.get(p.resource, self._anywhere())))
            for p in plugins
        ]
        self.asked |= {call.plugin for call in calls}
        results = (yield calls) if calls else []
        self._changed.append((container.name, plugins))
        allocation = self._allocated(calls, results, container.name)
        if container.type == ContainerType.MAIN:
            self._warn_of_less(container.name, container.requests, allocation)
        return allocation

    def _warn_of_less(self, name: str, requests: Mapping[str, float], allocation: ResourceAllocation) -> None:
        """Tells where a container of a pod without a role, or all of it, does not have the CPUs of its own that it should."""
        info = allocation.get("cpu")
        if info is None or self.role is not None:
            return
        count = self.node.policy.native_cpus(self.pod.qos_class, requests.get("cpu", 0.0))
        if count and not info.topology_assignments:
            words = "it shares those of the default pool"
        elif count and count != info.allocated_quantity:
            words = f"it keeps the {info.allocated_quantity:.0f} that it has"
        else:
            return
        self.warnings.append(f"{name}: {count} CPUs of its own are not free; {words}")

    def restoring(self) -> list[Call]:
        """Returns the calls that give containers again what they had, where one of a pod that runs cannot have what it asks for
        now. No one else can have taken that meanwhile but what became smaller."""
        if self.before is None:
            return []
        had = {container.name: container for container in self.before.pod.containers}
        calls = []
        for name, plugins in self._changed:
            for plugin in plugins if name in had else ():
                info = self.before.containers.get(name, {}).get(plugin.resource)
                if info is not None:
                    hint = to_hint(info.resource_hints[0]) if info.resource_hints else self._anywhere()
                    calls.append(Call(plugin.resource, "allocate", self._request(plugin, had[name], hint)))
        return calls

    def _plugins_for(self, container: ContainerSpec | None) -> list[PluginInfo]:
        requests = pod_total(self.pod) if container is None else container.requests
        wanted = {plugin_of(name) for name, amount in requests.items() if amount > 0}
        wanted |= set(_implicit(self.role))
        wanted |= {name for name, plugin in self.node.plugins.items() if plugin.everyone}
        if self.role is None or not self.role.binds:
            pool = self.node.policy.pool_of(self.role)
            if pool is not None and pool.mems:
                wanted.add("memory")
        return [self.node.plugins[name] for name in sorted(wanted) if name in self.node.plugins]

    def _check_running(self, plugins: Sequence[PluginInfo], container: str) -> None:
        for plugin in plugins:
            if not plugin.running and self.special:
                message = f"the plugin {plugin.resource} is known, but not running"
                self._refuse(
                    Refusal(code="PluginMissing", message=message, resource=plugin.resource, container=container)
                )

    def _asked_before(self, container: str) -> Mapping[str, float] | None:
        """Returns what a container asked for when it was admitted; None where that is not known, then or now."""
        if self.before is None or not (self.before.pod.requests_known and self.pod.requests_known):
            return None
        return next((c.requests for c in self.before.pod.containers if c.name == container), None)

    def _kept(self, container: ContainerSpec, plugins: Sequence[PluginInfo]) -> ResourceAllocation | None:
        """Returns what the container has already, where that is still enough. One that asks for another amount than before is
        given it anew, less, too: what it does not need any more others can have."""
        if self.before is None:
            return None
        found = self.before.containers.get(container.name)
        if found is None:
            return None
        for plugin in plugins:
            info = found.get(plugin.resource)
            if info is None:
                continue
            asked = container.requests.get(plugin.resource, 0.0)
            had = self._asked_before(container.name)
            if had is not None and round(had.get(plugin.resource, 0.0), 3) != round(asked, 3):
                return None
            if info.is_scalar_resource and -(-info.allocated_quantity // 1) < round(asked, 3) and not is_shared(info):
                return None
        return found

    def _request(
        self, plugin: PluginInfo, container: ContainerSpec | None, hint: Hint | None = None
    ) -> ResourceRequest:
        pod = self.pod
        requests = pod_total(pod) if container is None else container.requests
        limits: Mapping[str, float] = {} if container is None else container.limits
        return ResourceRequest(
            pod_uid=pod.uid,
            resource=plugin.resource,
            namespace=pod.namespace,
            pod_name=pod.name,
            container="" if container is None else container.name,
            container_type=ContainerType.MAIN if container is None else container.type,
            container_index=0 if container is None else container.index,
            role=ALIASES.get(pod.role, pod.role),
            type=pod.type,
            hint=hint,
            requests=of_plugin(plugin.resource, requests),
            limits=of_plugin(plugin.resource, limits),
            labels=pod.labels,
            annotations=pod.annotations,
            qos_class=pod.qos_class.lower(),
        )

    # --- merging

    def _merge(self, plugins: Sequence[PluginInfo], results: Sequence[Result], container: str) -> dict[str, Hint]:
        answers: dict[str, Hints] = {}
        owner: dict[str, str] = {}
        impossible: dict[str, Refusal] = {}
        for plugin, result in zip(plugins, results, strict=True):
            if isinstance(result, Failed):
                answers[plugin.resource], owner[plugin.resource] = [], plugin.resource
                impossible[plugin.resource] = self._of_failure(plugin.resource, result, container)
                continue
            given = cast("HintsAnswer", result or {})
            for name, hints in given.items():
                answers[name], owner[name] = hints, plugin.resource
                if hints is not None and not hints:
                    impossible[name] = self._impossible(name, container)
        if not self.special:
            # Pods that ask for nothing special start without what nobody can give them.
            answers = {name: hints for name, hints in answers.items() if name not in impossible}
            impossible = {}
        before = answers
        if self.zones:
            answers = {name: self._narrowed(hints) for name, hints in answers.items()}
        chosen, admitted = self._choose(answers)
        if not admitted:
            self._refuse_merge(before, answers, impossible, container)
        return {owner[name]: chosen[name] for name in answers} | {
            plugin.resource: self._anywhere() for plugin in plugins if plugin.resource not in owner.values()
        }

    def _anywhere(self) -> Hint:
        return Hint(self.zones or None, True)

    def _narrowed(self, hints: Hints) -> Hints:
        """Cuts hints to the zones of the claim. Those for other zones go; who has no preference has these."""
        if hints is None:
            return None
        found = []
        for hint in hints:
            mask = self.zones if hint.zones is None else hint.zones
            if mask & ~self.zones == 0:
                found.append(Hint(mask, hint.preferred))
        return found

    def _choose(self, answers: Mapping[str, Hints]) -> tuple[Mapping[str, Hint], bool]:
        spec = self.node.policy.spec
        policy = spec.topology_policy
        if self.zones and any(hints is not None and not hints for hints in answers.values()):
            return {}, False
        # CPUs of its own are aligned as well as may be; who was given a zone, or asks for more than that, gets nothing else.
        in_one_zone = bool(self.zones) and not self.zones & (self.zones - 1)
        strict = bool(self.role or in_one_zone or self.asks_strangers)
        if policy == "numeric" and strict:
            found = merge_numeric(answers, spec.align_resources)
            return found.hints, found.admitted
        if not strict or policy == "numeric":
            policy = "none" if policy == "none" else "best-effort"
        if policy == "none" and ((self.role is not None and self.role.binds) or self.zones):
            policy = "best-effort"
        closest = self.node.distances if spec.prefer_closest_numa else None
        merged = merge(policy, answers.values(), self.node.zones, closest)
        hint = merged.hint
        if self.zones and hint.zones is not None and hint.zones & self.zones:
            hint = Hint(hint.zones & self.zones, hint.preferred)
        return dict.fromkeys(answers, hint), merged.admitted

    def _refuse_merge(
        self,
        before: Mapping[str, Hints],
        answers: Mapping[str, Hints],
        impossible: Mapping[str, Refusal],
        container: str,
    ) -> None:
        if impossible and not self.zones:
            self.seen.extend(impossible.values())
            raise AllocationRefused(self.seen[0])
        said = "; ".join(f"{name}: {hints_text(hints)}" for name, hints in sorted(before.items()) if hints is not None)
        if self.zones:
            message = f"the claim names zones {zones_text(self.zones)}, which cannot give all of it ({said})"
            nearest = next((r.nearest for r in impossible.values() if r.nearest), ())
            first = next(iter(impossible.values()), None)
            refusal = Refusal(
                code="ClaimUnmet",
                message=message,
                resource=first.resource if first is not None else "",
                container=container,
                needed=first.needed if first is not None else None,
                free=first.free if first is not None else None,
                nearest=nearest,
            )
        else:
            policy = self.node.policy.spec.topology_policy
            refusal = Refusal(
                code="TopologyAffinityError",
                message=f"no zones suit all resources under the policy {policy} ({said})",
                container=container,
                nearest=disagreement(answers, self.node.zones),
            )
        self._refuse(refusal)

    def _impossible(self, resource: str, container: str) -> Refusal:
        needed = requests_of(self.pod, container).get(resource)
        what = f"{needed:g} of it" if needed else "it"
        return Refusal(
            code="TopologyAffinityError",
            message=f"the plugin {resource} has no zones for {what}",
            resource=resource,
            container=container,
            needed=needed,
        )

    def _of_failure(self, resource: str, failed: Failed, container: str) -> Refusal:
        """Returns the refusal that an error means: that of a built-in plugin, or the code its text begins with."""
        if failed.refusal is not None:
            return failed.refusal
        code, colon, message = failed.message.partition(": ")
        if colon and code in CODES:
            return Refusal(code=code, message=message[:1000], resource=resource, container=container)
        return Refusal(
            code="UnexpectedAdmissionError",
            message=f"the plugin {resource} failed: {failed.message[:1000]}",
            resource=resource,
            container=container,
        )

    def _refuse(self, refusal: Refusal) -> None:
        self.seen.append(refusal)
        raise AllocationRefused(refusal)

    # --- allocations

    def _allocated(self, calls: Sequence[Call], results: Sequence[Result], container: str) -> ResourceAllocation:
        allocation: ResourceAllocation = {}
        for call, result in zip(calls, results, strict=True):
            if isinstance(result, Failed):
                refusal = self._of_failure(call.plugin, result, container)
                if self.special:
                    self.seen.append(refusal)
                else:
                    self.warnings.append(f"{container or 'the pod'}: {refusal}; it starts without")
                continue
            given = cast("ResourceAllocation", result or {})
            for name, info in given.items():
                problem = problem_of(info)
                if problem:
                    found = Failed(f"it answered {problem}")
                    self.seen.append(self._of_failure(call.plugin, found, container))
                    continue
                hint = call.request.hint
                if not info.resource_hints and hint is not None and hint.zones is not None and not is_shared(info):
                    info.resource_hints = (from_hint(hint),)
                allocation[name] = info
        if self.seen:
            raise AllocationRefused(self.seen[0])
        return allocation

    # --- the pod as a whole

    def _admit_whole(self, record: PodRecord) -> Generator[Sequence[Call], Sequence[Result], None]:
        plugins = self._plugins_for(None)
        if self.before is not None and all(self._kept(c, plugins) is not None for c in self.pod.containers):
            self.reused = True
            record.containers, record.whole = dict(self.before.containers), self.before.whole
            return
        self._check_running(plugins, "")
        plugins = [plugin for plugin in plugins if plugin.running]
        aligned = [p for p in plugins if p.with_topology_alignment]
        results: Sequence[Result] = (
            (yield [Call(p.resource, "pod_hints", self._request(p, None)) for p in aligned]) if aligned else []
        )
        if any(isinstance(result, Failed) and result.unimplemented for result in results):
            # Plugins that know no pods are asked container by container.
            for container in in_order(self.pod.containers):
                record.containers[container.name] = yield from self._admit_container(container)
            return
        hints = self._merge(aligned, results, "")
        calls = [
            Call(p.resource, "pod_allocate", self._request(p, None, hints.get(p.resource, self._anywhere())))
            for p in plugins
        ]
        self.asked |= {call.plugin for call in calls}
        results = (yield calls) if calls else []
        allocation = self._allocated(calls, results, "")
        self._warn_of_less("the pod", pod_total(self.pod), allocation)
        record.whole = True
        for container in self.pod.containers:
            record.containers[container.name] = dict(allocation)
