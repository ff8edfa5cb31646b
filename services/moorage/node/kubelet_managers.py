"""Tells whether the kubelet itself gives out what a plugin would: then both would move the same containers."""

from __future__ import annotations

from pathlib import Path

import msgspec

_STATES = {"cpu": ("cpu_manager_state", "cpuManagerPolicy"), "memory": ("memory_manager_state", "memoryManagerPolicy")}
_MAX_SIZE = 16 << 20


class _State(msgspec.Struct, rename="camel"):
    policy_name: str = ""


def active_manager(kubelet: Path, resource: str) -> str:
    """Returns why the plugin of a resource must not be registered beside this kubelet; "" if it may."""
    file, setting = _STATES.get(resource, ("", ""))
    if not file:
        return ""
    try:
        with (kubelet / file).open("rb") as state:
            policy = msgspec.json.decode(state.read(_MAX_SIZE), type=_State).policy_name
    except (OSError, msgspec.DecodeError):
        return ""
    if policy.lower() in ("", "none"):
        return ""
    return (
        f"the kubelet manages {resource} itself ({kubelet / file} has the policy {policy}); set {setting}: none, remove "
        "that file and restart the kubelet, or leave the plugin out with --plugins"
    )
