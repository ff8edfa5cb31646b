"""Distributes the files of tests over the processes of a parallel run (pytest-xdist)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

#: Processes from which on the last one runs in the background.
_ENOUGH = 4


class FileScheduler(LoadFileScheduling):  # type: ignore[misc]
    """Gives each process whole files, in the order of their collection. `scope` names what runs in one process.

    Files of `costly` start servers that serve all of them, so only every other process begins with these. Files of `background` wait
    for nothing: one process runs only these, at low priority, while the others wait for servers and times."""

    def __init__(
        self,
        config: pytest.Config,
        log: object,
        *,
        scope: Callable[[str], str],
        costly: str,
        background: str,
    ) -> None:
        super().__init__(config, log)
        self._scope, self._costly, self._background = scope, costly, background
        self._in_background = ""

    def _split_scope(self, nodeid: str) -> str:
        return self._scope(nodeid.split("::", 1)[0])

    def schedule(self) -> None:
        if self.collection is None:
            collected = next(iter(self.registered_collections.values()))
            self._in_background = background_process(len(self.nodes), collected, self._background)
        super().schedule()

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(self._next(node), last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if node.gateway.id == self._in_background and not self._of_background() and not node.shutting_down:
            node.shutdown()
        else:
            super()._reschedule(node)

    def _next(self, node: WorkerController) -> str:
        scopes = list(self.workqueue)
        if node.gateway.id == self._in_background:
            preferred = self._of_background()
        elif int(node.gateway.id.removeprefix("gw")) % 2:
            preferred = [scope for scope in scopes if not scope.startswith(self._costly)]
        else:
            preferred = scopes
        return (preferred or scopes)[0]

    def _of_background(self) -> list[str]:
        return [scope for scope in self.workqueue if scope.startswith(self._background)]


def background_process(processes: int, collected: Iterable[str], background: str) -> str:
    """Returns the name of the process that runs only files of `background`; empty if none does."""
    kinds = {nodeid.startswith(background) for nodeid in collected}
    return f"gw{processes - 1}" if processes >= _ENOUGH and len(kinds) == 2 else ""


def yield_to_others(collected: Iterable[str], background: str) -> None:
    """Lowers the priority of this process, and of what it starts, if it is the one in the background."""
    name, processes = os.environ.get("PYTEST_XDIST_WORKER"), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))
    if name == background_process(processes, collected, background):
        os.nice(10)
