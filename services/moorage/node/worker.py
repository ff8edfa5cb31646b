"""The node agent as a process: `moorage node run`, or one built-in plugin by `moorage node plugin NAME`."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from moorage.model.problems import Refused
from moorage.qos.builtin import builtin_plugin

from .agent import NodeAgent, RootTaken
from .grpc_unix import SocketRefused
from .mesh_reports import BadCredentials
from .plugin_server import PluginServer
from .policy_file import PolicyFile
from .settings import Settings
from .state_file import StateFile
from .sysfs import SysfsUnreadable, read_machine

_ARENA_MAX = -8  # of mallopt(3)
#: Errors that tell the operator what to change.
CANNOT_RUN = (BadCredentials, RootTaken, SocketRefused, SysfsUnreadable, Refused, PermissionError)


async def run_agent(settings: Settings) -> None:
    """Runs an agent until it is cancelled. Prints `ready` and the runtime address for the kubelet."""
    agent = NodeAgent(settings)
    try:
        await agent.start()
        address = f" unix://{settings.cri_socket}" if settings.attach == "cri" else ""
        sys.stdout.write(f"ready{address}\n")
        sys.stdout.flush()
        gc.collect()
        gc.freeze()
        await agent.run()
    finally:
        await agent.stop()


async def run_plugin(name: str, root: Path, config: Path | None, sysfs: Path) -> None:
    """Runs one built-in plugin in this process, for an agent that was started without it."""
    machine = read_machine(sysfs)
    policy = PolicyFile(config, machine)
    policy.load()
    plugin = builtin_plugin(name, policy.policy, machine)
    server = PluginServer(plugin, StateFile(root / f"{name}_plugin_state"))
    if problem := server.load():
        sys.stderr.write(f"{problem}\n")
    await server.start(root / "plugins_registry" / f"{name}.sock")
    sys.stdout.write("ready\n")
    sys.stdout.flush()

    def changed() -> None:
        plugin.set_policy(policy.policy)
        server.save()

    try:
        await asyncio.gather(policy.follow(changed), asyncio.Event().wait())
    finally:
        await server.stop()


def _save_memory() -> None:
    """Keeps the allocator from making an area for each of gRPC's threads."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


def serve(work: Coroutine[Any, Any, None]) -> int:
    """Runs until the work ends or a signal cancels it; returns 0 after a signal."""

    _save_memory()

    async def main() -> None:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()

        def end() -> None:
            # What gRPC still waits for must not delay the end.
            late = threading.Timer(4.0, os._exit, (0,))
            late.daemon = True
            late.start()
            task.cancel()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())
    return 0
