"""Makes the built-in plugins of a machine."""

from __future__ import annotations

from collections.abc import Iterable

from .cpu_plugin import CpuPlugin
from .cpu_pools import CPU
from .machine import Machine
from .memory_plugin import MEMORY, MemoryPlugin
from .nic_plugin import NIC, NicPlugin
from .node_policy import NicSpec, NodePolicy

BUILT_IN = (CPU, MEMORY, NIC)
BuiltInPlugin = CpuPlugin | MemoryPlugin | NicPlugin


def builtin_plugin(name: str, policy: NodePolicy, machine: Machine, nics: Iterable[NicSpec] = ()) -> BuiltInPlugin:
    """Returns the plugin of this name; raises ValueError where there is none. `nics`: the interfaces that the machine has."""
    if name == CPU:
        return CpuPlugin(policy, machine)
    if name == MEMORY:
        return MemoryPlugin(policy, machine)
    if name == NIC:
        return NicPlugin(policy, machine, nics)
    raise ValueError(f"there is no built-in plugin {name}; there are {', '.join(BUILT_IN)}")
