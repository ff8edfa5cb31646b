"""Distributes the files of tests over the processes of a parallel run (pytest-xdist)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

#: Processes from which on the last one only computes.
_ENOUGH = 4


class FileScheduler(LoadFileScheduling):  # type: ignore[misc]
    """Gives each process whole files, in the order of their collection. `scope` names what runs in one process.

    Files of `costly` start servers that serve all of them, so only every other process begins with these. Files of `computing` wait
    for nothing: the last process runs only these, while the others wait for servers and times."""

    def __init__(
        self,
        config: pytest.Config,
        log: object,
        *,
        scope: Callable[[str], str],
        costly: str,
        computing: str,
    ) -> None:
        super().__init__(config, log)
        self._scope, self._costly, self._computing = scope, costly, computing
        self._only_computes = ""  # the process that does

    def _split_scope(self, nodeid: str) -> str:
        return self._scope(nodeid.split("::", 1)[0])

    def schedule(self) -> None:
        if self.collection is None:
            kinds = {nodeid.startswith(self._computing) for nodeid in next(iter(self.registered_collections.values()))}
            if len(self.nodes) >= _ENOUGH and len(kinds) == 2:
                self._only_computes = f"gw{len(self.nodes) - 1}"
        super().schedule()

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(self._next(node), last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if node.gateway.id == self._only_computes and not self._that_compute() and not node.shutting_down:
            node.shutdown()
        else:
            super()._reschedule(node)

    def _next(self, node: WorkerController) -> str:
        scopes = list(self.workqueue)
        if node.gateway.id == self._only_computes:
            preferred = self._that_compute()
        elif int(node.gateway.id.removeprefix("gw")) % 2:
            preferred = [scope for scope in scopes if not scope.startswith(self._costly)]
        else:
            preferred = scopes
        return (preferred or scopes)[0]

    def _that_compute(self) -> list[str]:
        return [scope for scope in self.workqueue if scope.startswith(self._computing)]
