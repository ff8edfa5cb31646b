"""Follows the file with the node's policy. One that cannot be read or used leaves the last good one in force."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from moorage.model.problems import Refused
from moorage.qos.machine import Machine
from moorage.qos.node_policy import NodePolicy, node_policy, parse_node_policy

from .inotify import DirectoryWatch

log = structlog.get_logger("node")

#: Editors write a file in several steps.
_SETTLE = 0.02


class PolicyFile:
    def __init__(self, path: Path | None, machine: Machine) -> None:
        self._path, self._machine = path, machine
        self._content: bytes | None = None
        self.policy: NodePolicy = node_policy()
        self.problem = ""

    def load(self) -> bool:
        """Reads the file; returns whether the policy has changed."""
        if self._path is None:
            return False
        try:
            content = self._path.read_bytes()
            if content == self._content:
                return False
            policy = parse_node_policy(content, self._machine)
        except (OSError, Refused) as error:
            self._reject(error)
            return False
        self._content, self.policy, self.problem = content, policy, ""
        return True

    def _reject(self, error: OSError | Refused) -> None:
        if isinstance(error, Refused):
            found = error.problem.errors or ()
            words = "; ".join(f"{e.path or '.'}: {e.message}" for e in found) or str(error)
        else:
            words = error.strerror or str(error)
        problem = f"{self._path}: {words}"
        if problem != self.problem:
            log.error("the policy is not used; the last good one stays", error=problem)
        self.problem = problem

    async def follow(self, changed: Callable[[], None]) -> None:
        """Calls `changed` after each change of the policy, for ever."""
        if self._path is None:
            return
        dirty = asyncio.Event()
        watch = DirectoryWatch(self._path.parent, dirty.set, shallow=True)
        dirty.set()  # it may have changed since it was loaded
        try:
            while True:
                await dirty.wait()
                await asyncio.sleep(_SETTLE)
                dirty.clear()
                if self.load():
                    changed()
        finally:
            watch.close()
