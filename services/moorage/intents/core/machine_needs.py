"""Checks needs for machines, and works out what a pod asks for that runs in a slot of one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from moorage.machine_groups.names import DOMAIN, NODE_POOL, type_key
from moorage.machine_groups.pods import DEFAULT_GRACE
from moorage.machine_groups.windows import end_of, parse_runtime
from moorage.model.documents import Need
from moorage.model.machine_slots import slot_resource
from moorage.model.shapes import PODS, NeedRef, Toleration

from .consumer_matching import SourcedConsumer
from .diagnostics import Diagnostics

_NAME = "[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_MACHINE = re.compile(f"{_NAME}/{_NAME}", re.ASCII)
_WINDOW = re.compile(_NAME, re.ASCII)
#: Guests are given tolerations for the taints of their node where they are created; its slot decides on which one they run.
_TAINTS_OF_MACHINES = Toleration(key=DOMAIN, operator="Prefix", effect="NoSchedule")
#: The template of a DaemonSet is given those that keep it off no node that is ready.
_READY_NODES = Toleration(key=NODE_POOL, value="ready", effect="NoSchedule")


def check_machine(need: Need, path: str, diagnostics: Diagnostics) -> None:
    if _MACHINE.fullmatch(need.machine) is None:
        diagnostics.error(f"{path}.machine", "InvalidName", f"{need.machine!r} is not GROUP/TYPE, in lower case")
    if need.window and _WINDOW.fullmatch(need.window) is None:
        diagnostics.error(f"{path}.window", "InvalidName", f"{need.window!r} is not the name of a window")
    if need.max_runtime and parse_runtime(need.max_runtime) is None:
        diagnostics.error(f"{path}.maxRuntime", "InvalidQuantity", f"{need.max_runtime!r} is not a duration like 1h30m")
    if need.resource or need.label or need.group or need.requests is not None or need.limits is not None:
        diagnostics.error(path, "Contradiction", "a machine has a size; leave out resource, label, group and amounts")
    if need.mandatory is False or need.weight is not None:
        diagnostics.error(path, "Contradiction", "a slot of a machine cannot be optional")


class MachineNeed:
    """The machine that a pod needs, if any."""

    def __init__(self, consumers: Iterable[SourcedConsumer], diagnostics: Diagnostics) -> None:
        self.machine = self.window = ""
        self.needs: list[NeedRef] = []
        self.max_runtime = ""
        for sourced in consumers:
            for number, need in enumerate(sourced.consumer.needs):
                if not need.machine:
                    continue
                if self.machine and (self.machine, self.window) != (need.machine, need.window):
                    text = f"consumers of {sourced.consumer.object.name} need {self.machine} and {need.machine}"
                    diagnostics.error(f"{sourced.path}.needs[{number}].machine", "Contradiction", text)
                self.machine, self.window, self.max_runtime = need.machine, need.window, need.max_runtime
                name = slot_resource(need.machine, need.window)
                self.needs = [NeedRef(consumer=sourced.name, name=name, amount=1)]

    def runtime(self, kind: str, template: Mapping[str, Any]) -> float:
        """Returns the seconds after which a pod that starts now is gone; 0 where another one would follow it."""
        seconds = parse_runtime(self.max_runtime) or 0
        grace = (template.get("spec") or {}).get("terminationGracePeriodSeconds")
        # The API server refuses others.
        known = grace if isinstance(grace, int) and 0 <= grace < 1 << 63 else DEFAULT_GRACE
        return end_of(0.0, seconds, known) or 0.0 if kind in ("Job", "Pod") else 0.0

    def resources(self, requested: Mapping[str, int]) -> dict[str, int]:
        """Returns what the pod takes of its node: a slot, whose size has its CPU, its memory and its devices already."""
        if not self.machine:
            return dict(requested)
        kept = {name: n for name, n in requested.items() if name not in ("cpu", "memory", PODS) and "/" not in name}
        return kept | {slot_resource(self.machine, self.window): 1}

    def tolerations(self, *, per_node: bool) -> list[Toleration]:
        if not self.machine:
            return []
        if per_node:
            group = self.machine.partition("/")[0]
            return [Toleration(key=DOMAIN, operator="Prefix", value=group, effect="NoSchedule"), _READY_NODES]
        return [_TAINTS_OF_MACHINES]

    def labels(self, *, per_node: bool) -> dict[str, str]:
        """Returns the labels of the nodes of a DaemonSet: only these have slots, and it runs on every node that it selects."""
        group, _, machine_type = self.machine.partition("/")
        return {type_key(machine_type): group} if per_node and self.machine else {}
