"""Knows what built-in plugins have given that run in processes of their own: what the agent shows and reports of those in its own
process, it shows of these, too."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from moorage.qos.builtin import BUILT_IN, BuiltInPlugin
from moorage.qos.node_policy import NodePolicy

from .plugin_endpoint import PluginFailed
from .plugin_registry import PluginRegistry

log = structlog.get_logger("node")


class PluginMirrors:
    """Copies of built-in plugins of other processes. `make` makes a plugin of a name that has given nothing yet."""

    def __init__(self, registry: PluginRegistry, make: Callable[[str], BuiltInPlugin]) -> None:
        self._registry, self._make = registry, make
        self._states: dict[str, bytes] = {}
        self.plugins: dict[str, BuiltInPlugin] = {}

    def set_policy(self, policy: NodePolicy) -> None:
        for plugin in self.plugins.values():
            plugin.set_policy(policy)

    async def refresh(self, name: str) -> None:
        """Copies the state of a plugin. One that is a stranger's has none to copy; of one that is away the last copy stays."""
        endpoint = self._registry.get(name)
        if endpoint is None or name not in BUILT_IN:
            return
        try:
            state = await endpoint.state()
        except PluginFailed as failed:
            if failed.unimplemented:
                self.plugins.pop(name, None)
                self._states.pop(name, None)
            return
        if state == self._states.get(name):
            return
        self._states[name], mirror = state, self._make(name)
        try:
            mirror.restore(state)
        except ValueError as error:
            self.plugins.pop(name, None)
            log.warning("the state of a plugin cannot be shown", plugin=name, error=str(error))
            return
        self.plugins[name] = mirror
