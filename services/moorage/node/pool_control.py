"""Measures the load of pools each second and, where the policy asks for it, moves cores between them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

import structlog

from moorage.qos.messages import AllocationRefused
from moorage.qos.node_policy import ControllerSpec, Pool

from .cgroups import Usage
from .core.pool_controller import PoolController, PoolLoad

if TYPE_CHECKING:
    from .agent import NodeAgent

log = structlog.get_logger("node")

INTERVAL = 1.0
#: At most so many threads of a container are asked how long they waited, where the cgroup does not tell.
_THREADS = 200


class PoolControl:
    def __init__(self, agent: NodeAgent) -> None:
        self._agent = agent
        self._before: dict[str, tuple[float, Usage]] = {}
        self._controller: tuple[ControllerSpec, PoolController] | None = None

    async def run(self) -> None:
        """Measures and decides, for ever. Without a controller in the policy it does nothing."""
        while True:
            await asyncio.sleep(INTERVAL)
            spec = self._agent.policy.policy.spec.controller
            if spec is None or self._agent.cpu is None or not self._agent.settings.enabled:
                self._controller, self._before = None, {}
                continue
            if self._controller is None or self._controller[0] != spec:
                self._controller = spec, PoolController(spec, self._agent.machine.cpus)
            await self._decide(self._controller[1])

    async def _decide(self, controller: PoolController) -> None:
        cpu = self._agent.cpu
        assert cpu is not None
        pools = cpu.pools()
        loads = await self._loads(pools)
        wanted = controller.decide(asyncio.get_running_loop().time(), pools, loads)
        if not wanted:
            return
        whole, exclusive = cpu.whole_pools(), cpu.exclusive
        try:
            # A pool keeps its claim to CPUs that containers have for themselves: they come back when these end.
            await self._agent.set_pools({name: cpus | (whole[name].cpus & exclusive) for name, cpus in wanted.items()})
        except AllocationRefused as refused:
            log.warning("a pool cannot be changed", reason=str(refused))
            return
        log.info("pools were changed by their load", pools={name: cpus.bit_count() for name, cpus in wanted.items()})

    async def _loads(self, pools: dict[str, Pool]) -> dict[str, PoolLoad]:
        """Returns the load of each pool since the last measurement; nothing for those that cannot be measured."""
        loop = asyncio.get_running_loop()
        used: dict[str, float] = defaultdict(float)
        waited: dict[str, float | None] = {}
        spans: dict[str, float] = {}
        after: dict[str, tuple[float, Usage]] = {}
        for record in list(self._agent.index.live()):
            pool = self._agent.pool_of(record.uid, record.name)
            cgroup = await self._agent.reader.cgroup(record) if pool in pools else None
            read_at = loop.time()  # on a busy node it takes a while to get there
            usage = cgroup.usage(_THREADS) if cgroup is not None else None
            if usage is None or not pool:
                continue
            after[record.id] = read_at, usage
            if (before := self._before.get(record.id)) is None:
                continue
            span = read_at - before[0]
            spans[pool] = max(spans.get(pool, 0.0), span)
            used[pool] += max(0.0, usage.cpu - before[1].cpu)
            if usage.waited is not None and before[1].waited is not None:
                wait = max(0.0, usage.waited - before[1].waited) / max(span, 0.001)
                waited[pool] = max(waited.get(pool) or 0.0, wait)
        self._before = after
        return {
            name: PoolLoad(used[name] / (max(1, pools[name].cpus.bit_count()) * span), waited.get(name), loop.time())
            for name, span in spans.items()
            if span > 0
        }
